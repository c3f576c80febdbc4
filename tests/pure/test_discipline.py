"""A terminal's lines: where they end, how long they are, what would be cut."""

import os
import termios
from typing import Any

import pytest
from hypothesis import given, strategies as st

from actors.discipline import LONGEST_LINE, Discipline, Line
from broker.errors import InvalidRequest

IFLAG, LFLAG, CC = 0, 3, 6


@pytest.fixture(scope="module")
def fresh() -> list[Any]:
    """What a new terminal of this machine has."""
    master, slave = os.openpty()
    try:
        return termios.tcgetattr(slave)
    finally:
        os.close(master)
        os.close(slave)


def changed(
    fresh: list[Any], *, i: tuple[int, int] = (0, 0), local: tuple[int, int] = (0, 0)
) -> Discipline:
    """Return the rules with flags switched (on, off) in input and local modes."""
    attributes = list(fresh)
    attributes[IFLAG] = (attributes[IFLAG] | i[0]) & ~i[1]
    attributes[LFLAG] = (attributes[LFLAG] | local[0]) & ~local[1]
    return Discipline.of(attributes)


def test_a_new_terminal_is_canonical_and_ends_at_control_d(fresh: list[Any]) -> None:
    rules = Discipline.of(fresh)
    assert rules.canonical
    assert rules.eof == b"\x04"
    assert rules.literal == b"\x16"
    assert set(rules.breaks) == set(b"\n\r\x04\x15\x03\x1c\x1a")


@pytest.mark.parametrize(
    ("i", "local", "with_", "without"),
    [
        ((0, termios.ICRNL), (0, 0), b"\n", b"\r"),
        ((termios.IGNCR, 0), (0, 0), b"\n", b"\r"),
        ((termios.INLCR, 0), (0, 0), b"\r", b"\n"),
        ((0, 0), (0, termios.ISIG), b"\n\x04\x15", b"\x03\x1c\x1a"),
        ((0, 0), (termios.NOFLSH, 0), b"\n\x04\x15", b"\x03\x1c\x1a"),
        ((0, 0), (0, termios.IEXTEN), b"\n\x04", b"\x16"),
    ],
)
def test_what_ends_a_line_follows_the_modes(
    fresh: list[Any], i: Any, local: Any, with_: bytes, without: bytes
) -> None:
    rules = changed(fresh, i=i, local=local)
    assert set(with_) <= set(rules.breaks)
    assert not set(without) & set(rules.breaks + rules.literal)


def test_characters_that_are_switched_off_end_nothing(fresh: list[Any]) -> None:
    attributes = [*fresh[:CC], list(fresh[CC])]
    attributes[CC][termios.VEOF] = b"\0"
    attributes[CC][termios.VEOL] = b";"
    rules = Discipline.of(attributes)
    assert rules.eof == b""
    assert b";" in rules.breaks
    assert b"\0" not in rules.breaks


def test_raw_mode_has_no_lines_and_no_end(fresh: list[Any]) -> None:
    rules = changed(fresh, local=(0, termios.ICANON))
    assert rules == Discipline(canonical=False)
    rules.check(b"x" * 100_000, Line(5))
    assert rules.unfinished(b"x" * 100_000, Line(5)) == Line()


@pytest.mark.parametrize(
    ("data", "before", "after"),
    [
        (b"", Line(7), Line(7)),
        (b"abc", Line(7), Line(10)),
        (b"abc\n", Line(7), Line()),
        (b"abc\nde", Line(7), Line(2)),
        (b"a\rb", Line(), Line(1)),
        (b"a\x04", Line(9), Line()),
        (b"abc\x15d", Line(9), Line(1)),
        (b"ab\x16\nc", Line(1), Line(6)),
        (b"ab\x16\x16\nc", Line(1), Line(1)),
        (b"ab\x16", Line(1), Line(4, quotes=True)),
        (b"", Line(4, quotes=True), Line(4, quotes=True)),
        (b"\n", Line(4, quotes=True), Line(5)),
        (b"\n\n", Line(4, quotes=True), Line()),
        (b"\x16", Line(4, quotes=True), Line(5)),
        (b"\x16\x16", Line(4, quotes=True), Line(6, quotes=True)),
    ],
)
def test_the_unfinished_line_is_followed(
    fresh: list[Any], data: bytes, before: Line, after: Line
) -> None:
    assert Discipline.of(fresh).unfinished(data, before) == after


def test_a_byte_stays_quoted_where_none_can_be_any_more(fresh: list[Any]) -> None:
    rules = changed(fresh, local=(0, termios.IEXTEN))
    assert rules.unfinished(b"\n", Line(1, quotes=True)) == Line(2)
    assert rules.unfinished(b"a\x16", Line()) == Line(2)


@pytest.mark.parametrize(
    ("data", "before", "longest"),
    [
        (b"x" * 4096, 0, 4096),
        (b"x\n", 4095, 4096),
        (b"x" * 9000 + b"\n", 0, 9000),
        (b"ok\n" * 10 + b"x" * 5000 + b"\nok\n", 0, 5000),
        (b"x" * 4094 + b"\x16\n" + b"\n", 0, 4096),
    ],
)
def test_s35_a_line_that_would_be_cut_is_refused(
    fresh: list[Any], data: bytes, before: int, longest: int
) -> None:
    with pytest.raises(InvalidRequest, match=f"a line of {longest} .* 4095") as no:
        Discipline.of(fresh).check(data, Line(before))
    assert no.value.field == "data"


def test_a_line_with_a_newline_that_was_quoted_before_is_refused(
    fresh: list[Any],
) -> None:
    with pytest.raises(InvalidRequest, match="a line of 4097"):
        Discipline.of(fresh).check(b"\n" + b"a" * 4095 + b"\n", Line(1, quotes=True))


@pytest.mark.parametrize(
    ("data", "before"),
    [
        (b"x" * 4095, 0),
        (b"x" * 4095 + b"\n", 0),
        (b"x\n" * 100_000, 4094),
        ((b"x" * 4095 + b"\n") * 20, 0),
        (b"\n" + b"x" * 4095, 4095),
    ],
)
def test_s35_lines_that_fit_pass(fresh: list[Any], data: bytes, before: int) -> None:
    Discipline.of(fresh).check(data, Line(before))


BYTES = st.binary(max_size=40) | st.lists(st.sampled_from(b"a\n\x16")).map(bytes)


@given(st.lists(BYTES), st.integers(0, LONGEST_LINE))
def test_a_line_is_as_long_in_pieces_as_in_one(pieces: list[bytes], at: int) -> None:
    rules = Discipline(canonical=True, eof=b"\4", breaks=b"\n\r\4", literal=b"\x16")
    line = Line(at)
    for piece in pieces:
        line = rules.unfinished(piece, line)
    assert line == rules.unfinished(b"".join(pieces), Line(at))
