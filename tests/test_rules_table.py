"""The table of the rules is whole: every rule is there, and every test of one."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import mutations, without

TESTS = Path(__file__).resolve().parent
TABLE = (TESTS.parent / "docs" / "rules.md").read_text()
RULES = {f"S{n}" for n in range(1, 58)}


def rows() -> Iterator[tuple[str, list[str]]]:
    """Yield each rule of the table with its cells."""
    for line in TABLE.splitlines():
        rule, *cells = line.strip("| ").split(" | ")
        if re.fullmatch(r"S\d+", rule):
            yield rule, cells


def shown() -> dict[str, list[str]]:
    """Return rule → tests that the table gives for it."""
    return {
        rule: re.findall(r"`(\w+::\w+)`", cells[1])
        for rule, cells in rows()
        if len(cells) == 2
    }


@cache
def every_test() -> set[str]:
    """Return every test there is, as `module::name`."""
    return {
        f"{path.stem}::{node.name}"
        for path in TESTS.rglob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_")
    }


def named_by_a_rule() -> dict[str, set[str]]:
    """Return rule → tests that have its number in their name."""
    found = defaultdict(set)
    for test in every_test():
        if number := re.search(r"::test_s(\d+)_", test):
            found[f"S{number[1]}"].add(test)
    return found


def test_every_rule_has_one_line() -> None:
    found = [rule for rule, _ in rows()]
    assert sorted(found) == sorted(RULES)


def test_every_line_says_what_holds_and_what_shows_it() -> None:
    for rule, cells in rows():
        assert cells[0].endswith("."), rule
    assert {rule for rule, given in shown().items() if not given} == set()


def test_every_test_in_the_table_exists() -> None:
    given = {test for line in shown().values() for test in line}
    assert given - every_test() == set()


def test_every_test_that_is_named_by_a_rule_is_in_its_line() -> None:
    table = shown()
    missing = {
        rule: sorted(named - set(table.get(rule, ())))
        for rule, named in named_by_a_rule().items()
    }
    assert {rule: left for rule, left in missing.items() if left} == {}


def test_every_rule_but_the_absent_ones_has_a_live_test_by_its_number() -> None:
    live = {path.stem for path in (TESTS / "live").rglob("test_*.py")}
    named = {
        rule
        for rule, tests in named_by_a_rule().items()
        if any(test.partition("::")[0] in live for test in tests)
    }
    assert named == RULES


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda m: m.what)
def test_every_mutation_fits_the_code(mutation: mutations.Mutation) -> None:
    assert mutations.mutated(mutation, TESTS.parent)
    path, _, name = mutation.test.partition("::")
    assert f"{Path(path).stem}::{name}" in every_test()


@pytest.mark.parametrize("path", without.FAST_PATHS, ids=lambda path: path.what)
def test_every_fast_path_can_be_switched_off(path: mutations.Mutation) -> None:
    assert mutations.mutated(path, TESTS.parent)
