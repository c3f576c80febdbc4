"""Coroutine tests, a runtime directory of their own, and the leak guard."""

import asyncio
import gc
import inspect
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from actors import portal
from broker import tree
from tests import faces
from tests.helpers import NOT_BLOCKED, eventually

settings.register_profile("patient", deadline=None)  # a busy machine proves nothing
settings.load_profile("patient")
tree.become_subreaper()  # whatever escapes an engine shows up as our own child
# What a plain shell runs behind itself has SIGINT ignored, and so has all it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Counts of the soak tests."""
    parser.addoption("--spawns", type=int, default=10_000, help="soak: spawns")
    parser.addoption("--kills", type=int, default=1_000, help="soak: killed clients")
    parser.addoption("--crashes", type=int, default=20, help="soak: killed engines")
    parser.addoption("--idle-seconds", type=float, default=60.0, help="soak: idling")
    parser.addoption("--examples", type=int, default=20, help="runs of the model")


def pytest_collection_finish() -> None:
    """Keep what is imported by now out of the guard's collections, one per live test.

    Whatever a test makes comes later, and is collected.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(scope="session")
def runtime_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtime")


@pytest.fixture(scope="session")
def latin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return variables for a locale in which a byte is a character."""
    compiler = shutil.which("localedef")
    if compiler is None:
        pytest.skip("nothing here makes a locale")
    where, charset = tmp_path_factory.mktemp("locales"), "ISO-8859-1"
    made = str(where / f"de_DE.{charset}")
    command = [compiler, "-i", "de_DE", "-f", charset, made]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("the sources of locales are not here")
    return {"LOCPATH": str(where), "LC_ALL": f"de_DE.{charset}", "PYTHONUTF8": "0"}


@pytest.fixture(params=list(faces.FACES))
def opened(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Return what opens an engine of either face: `async with opened() as engine:`."""
    monkeypatch.setattr(portal, "wait_for", faces.wait_for)
    return faces.FACES[request.param]


@pytest.fixture(autouse=True)
def _own_runtime(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests' engines away from the user's."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime_dir))


@pytest.fixture(autouse=True)
def _no_leaks(
    request: pytest.FixtureRequest,
    runtime_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """Fail a live test that leaves anything behind, or whose engine said last words."""
    if request.node.get_closest_marker("live") is None:
        yield
        return
    log = tmp_path / "engine.log"
    monkeypatch.setenv("CRECHE_LOG", str(log))
    before = holdings(runtime_dir)
    yield
    gc.collect()
    left: dict[str, set[str]] = {}

    def clean() -> bool:
        nonlocal left
        reap()
        left = {
            kind: found - before[kind]
            for kind, found in holdings(runtime_dir).items()
            if found - before[kind]
        }
        return not left

    eventually(clean, NOT_BLOCKED, lambda: f"left behind: {left}")
    words = log.read_text() if log.exists() else ""
    assert not words, f"an engine process failed:\n{words}"


def holdings(runtime_dir: Path) -> dict[str, set[str]]:
    """Return what this process holds: the guard compares before and after."""
    fds = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            fds.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except FileNotFoundError:
            continue  # the descriptor of this very listing
    return {
        "processes": {describe(pid) for pid in tree.descendants(os.getpid())},
        "descriptors": fds,
        "threads": {f"{t.name} {t.ident}" for t in threading.enumerate()},
        "files": set(run_directories(runtime_dir)),
    }


def run_directories(runtime_dir: Path) -> Iterator[str]:
    """Yield those of engines; one that goes meanwhile is none."""
    for place, names, _ in os.walk(runtime_dir):
        yield from (f"{place}/{name}" for name in names if name.startswith("run-"))


def describe(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except (FileNotFoundError, ProcessLookupError):
        words = b""
    return f"{pid} {words.decode(errors='replace').strip()}"


def reap() -> None:
    """Reap engine processes whose parent was killed by a test."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return
