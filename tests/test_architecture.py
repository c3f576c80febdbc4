"""What the layout promises: who imports what, who signals, what is public."""

import ast
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import actors
import broker
from broker import opening, pool

ACTORS = Path(actors.__file__).parent
BROKER = Path(broker.__file__).parent
TOP = Path(__file__).resolve().parent.parent
SOURCES = sorted([*ACTORS.rglob("*.py"), *BROKER.rglob("*.py")])
SIGNALLERS = {"os.kill", "os.killpg", "signal.pidfd_send_signal"}
HEAVY = {"asyncio", "multiprocess", "psutil", "threading", "zmq"}
"""No module of a worker: `threading` alone would cost each of them 300 KiB."""
every_source = pytest.mark.parametrize(
    "source", SOURCES, ids=lambda p: f"{p.parent.name}/{p.name}"
)


def nodes(source: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(source.read_text()))


def imported(source: Path) -> set[str]:
    """The modules that a source file imports, wherever in it."""
    found = set()
    for node in nodes(source):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert node.level == 0, "relative imports hide where a name comes from"
            found.add(node.module)
    return found


@every_source
def test_the_broker_never_imports_the_actors(source: Path) -> None:
    roots = {name.split(".")[0] for name in imported(source)}
    assert source.is_relative_to(ACTORS) or "actors" not in roots


@every_source
def test_signals_are_sent_by_the_tree_module_alone(source: Path) -> None:
    if source == BROKER / "tree.py":
        return
    named = {ast.unparse(n) for n in nodes(source) if isinstance(n, ast.Attribute)}
    for node in nodes(source):
        if isinstance(node, ast.ImportFrom):
            named |= {f"{node.module}.{alias.name}" for alias in node.names}
    assert not named & SIGNALLERS


def loaded_by(program: str) -> set[str]:
    """The modules in a process started as the pool is, after `program` ran in it."""
    boot = "import sys; sys.path.extend(sys.argv[1:])\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{boot}{program}", *roots()],
        capture_output=True,
        check=True,
        env={},
        text=True,
    )
    return set(done.stdout.split())


def roots() -> list[str]:
    return opening.import_roots()


@pytest.mark.parametrize("module", ["actors.rehearsal", "actors.worker", "broker.pool"])
def test_a_worker_and_its_pool_are_lean(module: str) -> None:
    loaded = loaded_by(f"import {module}; print(*sys.modules)")
    assert module in loaded
    assert not {name.split(".")[0] for name in loaded} & HEAVY


def test_the_heavy_modules_can_be_found_where_a_worker_imports_from() -> None:
    """Otherwise the test above would prove nothing."""
    loaded = loaded_by("import asyncio, zmq; print(*sys.modules)")
    assert {"asyncio", "zmq"} <= loaded


@pytest.mark.parametrize("worker", [opening.WORKER, opening.LONE_WORKER])
def test_the_worker_that_the_supervisor_names_exists(worker: str) -> None:
    module, name = worker.split(":")
    rehearsal = import_module(module)
    assert callable(getattr(rehearsal, name))
    parameters = inspect.signature(rehearsal.main).parameters
    assert list(parameters) == ["leg", "control", "home", "record", "grace"]
    assert callable(pool.main)


def test_importing_the_package_loads_no_engine() -> None:
    loaded = loaded_by("import actors; print(*sys.modules)")
    assert {name for name in loaded if name.startswith("actors")} == {"actors"}
    assert "broker" not in loaded


# The public names


def typed_imports() -> dict[str, str]:
    """Name → module, as `actors/__init__.py` tells it to type checkers."""
    found: dict[str, str] = {}
    for node in ast.parse(Path(actors.__file__).read_text()).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                assert statement.module is not None
                found |= {alias.name: statement.module for alias in statement.names}
    return found


def test_what_type_checkers_see_is_what_there_is() -> None:
    assert typed_imports() == actors._HOME
    assert sorted(actors.__all__) == sorted([*typed_imports(), "__version__"])
    assert dir(actors) == actors.__all__


@pytest.mark.parametrize("name", actors.__all__)
def test_a_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(actors, name)
    if inspect.isclass(value) or inspect.isroutine(value):
        assert (inspect.getdoc(value) or "").strip()
        assert value.__module__ == actors._HOME[name]


@pytest.mark.parametrize("name", actors.__all__)
def test_the_public_methods_of_a_public_class_are_documented(name: str) -> None:
    value = getattr(actors, name)
    if not inspect.isclass(value):
        return
    for attribute, member in vars(value).items():
        if not attribute.startswith("_") and (
            inspect.isroutine(member) or isinstance(member, property)
        ):
            assert (inspect.getdoc(member) or "").strip(), f"{name}.{attribute}"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = actors.nonsense


@every_source
def test_every_module_says_what_it_is_for(source: Path) -> None:
    assert ast.get_docstring(ast.parse(source.read_text()))


def test_import_roots_are_directories_named_once() -> None:
    assert len(roots()) == len(set(roots()))
    assert all(os.path.isdir(root) for root in roots())


def test_the_modules_that_are_to_be_covered_whole_are_there() -> None:
    line = re.search(r"^modules = (.+)$", (TOP / "tox.ini").read_text(), re.MULTILINE)
    assert line is not None
    assert [path for path in line[1].split(",") if not (TOP / path).is_file()] == []
