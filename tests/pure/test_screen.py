"""The screen of a terminal: output in, lines out."""

import sys

import pytest
from hypothesis import example, given, settings, strategies as st

from actors import Chunk, Closed, Gap, Screen, TtySize


def test_output_is_drawn_as_a_person_would_see_it() -> None:
    screen = Screen(TtySize(3, 10))
    screen.feed(b"one\r\ntwo  \r\n\x1b[31mthr")
    assert screen.lines == ("one", "two", "thr")
    screen.feed(b"\x1b[1;1H\x1b[2Kup")
    assert screen.text == "up\ntwo\nthr"
    assert screen.cursor == (0, 2)


def test_lines_scroll_out_of_the_top() -> None:
    screen = Screen(TtySize(2, 10))
    screen.feed(b"one\r\ntwo\r\nthree")
    assert screen.lines == ("two", "three")


def test_a_character_may_come_in_pieces() -> None:
    screen = Screen()
    for byte in "žluť\x1b]2;kůň\x07".encode():
        screen.feed(bytes([byte]))
    assert screen.text == "žluť"
    assert screen.title == "kůň"


def test_events_are_taken_as_they_come() -> None:
    screen = Screen()
    screen.feed(Chunk("stdout", 0, 0, b"seen"))
    screen.feed(Gap("stdout", 4, 9))
    screen.feed(Closed())
    assert screen.text == "seen"
    assert screen.missed == 5


def test_a_screen_changes_its_size_with_the_terminal() -> None:
    screen = Screen(TtySize(4, 20))
    screen.resize(TtySize(2, 5))
    screen.feed(b"\x1b[Habcdefg")
    assert screen.size == TtySize(2, 5)
    assert screen.lines == ("abcde", "fg")


def test_without_pyte_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyte", None)
    with pytest.raises(ModuleNotFoundError, match="the extra `screen`"):
        Screen()


PARTS = [
    b"\x1b[?6h",
    *(bytes([byte]) for byte in b"\x1b?;1390mHJKrhlALPnc@XdaefgGE'`(#M78x\n\r\b\t\x0e"),
    *(b"\x1b[", b"\x9b", b"\x1b]", b"\x07", "ä".encode(), "中".encode()),
]
"""Whatever means something to a terminal, and some that means nothing."""


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PARTS), max_size=40).map(b"".join))
@example(b"\x1b[?4m")
@example(b"\x1b[;A")
@example(b"\x1b[3K")
@example(b"\x1b[9J")
@example(b"\x1b[?6h\x1b[3d")
@example("中\rx".encode())
def test_no_output_is_too_strange_to_be_shown(data: bytes) -> None:
    screen = Screen(TtySize(5, 20))
    screen.feed(data + b"\x18\x1b\\\x0f\x1b[H\x1b[?6l\x1b[Jwell")
    assert len(screen.lines) == 5
    assert "well" in screen.text


def test_what_is_not_understood_draws_nothing() -> None:
    screen = Screen(TtySize(2, 10))
    screen.feed(b"one\x1b[3K\x1b[?3A\x1b[?4m\x1b[>4;2m\r\n\x1b[1;7Atwo")
    assert screen.lines == ("two", "")


def test_half_of_a_wide_character_is_no_trouble() -> None:
    screen = Screen(TtySize(2, 10))
    screen.feed("中国\r\nx中\rx".encode())
    assert screen.lines == ("中国", "x中")
    screen.feed(b"\ry\x1b[1;1Hz")
    assert screen.lines == ("z国", "y中")


def test_what_is_shown_keeps_its_colours_and_styles() -> None:
    shown = Screen(TtySize(3, 12))
    shown.feed(b"a\x1b[1;31mred\x1b[0;92;44mx\x1b[0;4;38;5;208my\x1b[0m\r\nend")
    assert shown.styled == (
        "\x1b[0ma\x1b[0;1;31mred\x1b[0;92;44mx\x1b[0;4;38;2;255;135;0my\x1b[0m      "
        "\x1b[0m\n\x1b[0mend         \x1b[0m"
    )
    again = Screen(TtySize(3, 12))
    again.feed(shown.styled.replace("\n", "\r\n").encode())
    assert again.styled == shown.styled


def test_an_empty_screen_has_no_style() -> None:
    assert Screen().styled == ""
