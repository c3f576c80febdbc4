"""The screen of a terminal: output in, lines out."""

import sys

import pytest

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
    with pytest.raises(ModuleNotFoundError, match=r"install creche\[screen\]"):
        Screen()
