"""The screen of a terminal: output in, lines out."""

import sys
from importlib.util import find_spec

import pytest
from hypothesis import example, given, settings, strategies as st

from actors import Chunk, Closed, Gap, Screen, TtySize
from actors.emulation.choice import emulator
from actors.emulation.ghostty import Ghostty
from actors.emulation.pyte import Pyte

Kind = type[Ghostty] | type[Pyte]
LIBRARIES: dict[Kind, str] = {Ghostty: "pyghostty", Pyte: "pyte"}
EMULATORS = [kind for kind, library in LIBRARIES.items() if find_spec(library)]
ORANGE: dict[Kind, str] = {Ghostty: "38;5;208", Pyte: "38;2;255;135;0"}
"""The same colour by its number, and by its parts."""


@pytest.fixture(params=EMULATORS, autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kind:
    """Give the emulator that screens have in a test: each that is installed."""
    monkeypatch.setattr("actors.screen.emulator", request.param)
    kind: Kind = request.param
    return kind


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
@example(b"\x1b[1;7A")
@example(b"\x1b[3K\x1b[?1049l")
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
    screen.feed(b"one\x1b[3K\x1b[?3A\x1b[?4m\x1b[>4;2m\r\ntwo")
    assert screen.lines == ("one", "two")


def test_half_of_a_wide_character_is_no_trouble() -> None:
    screen = Screen(TtySize(2, 10))
    screen.feed("中国\r\nx中\rx".encode())
    assert screen.lines == ("中国", "x中")
    screen.feed(b"\ry\x1b[1;1Hz")
    # Where the other half was, a terminal has a blank.
    assert [line.replace(" ", "") for line in screen.lines] == ["z国", "y中"]


@pytest.mark.parametrize("mode", [47, 1047, 1049])
def test_a_second_screen_is_left_as_if_it_had_not_been_there(mode: int) -> None:
    screen = Screen(TtySize(3, 20))
    screen.feed(b"$ less\r\n")
    screen.feed(b"\x1b[?%dh\x1b[?%dh\x1b[Hpage" % (mode, mode))
    assert screen.text == "page"
    screen.feed(b"\x1b[?%dl" % mode)
    assert screen.text == "$ less"
    # Only the newest of these modes, which all programs use, keeps the cursor as well.
    assert screen.cursor == ((1, 0) if mode == 1049 else (0, 4))


def test_a_screen_may_become_smaller_while_its_second_is_shown() -> None:
    screen = Screen(TtySize(4, 20))
    screen.feed(b"$ vi\x1b[4;20H\x1b[?1049h")
    screen.resize(TtySize(2, 5))
    screen.feed(b"\x1b[?1049l")
    row, column = screen.cursor
    assert (row, column) <= (1, 4)
    assert len(screen.lines) == 2


def test_what_is_shown_keeps_its_colours_and_styles(kind: Kind) -> None:
    shown = Screen(TtySize(3, 12))
    shown.feed(b"a\x1b[1;31mred\x1b[0;92;44mx\x1b[0;4;38;5;208my\x1b[0m\r\nend")
    assert shown.styled == (
        f"\x1b[0ma\x1b[0;1;31mred\x1b[0;92;44mx\x1b[0;4;{ORANGE[kind]}my\x1b[0m      "
        "\x1b[0m\n\x1b[0mend         \x1b[0m"
    )
    again = Screen(TtySize(3, 12))
    again.feed(shown.styled.replace("\n", "\r\n").encode())
    assert again.styled == shown.styled


def test_an_empty_screen_has_no_style() -> None:
    assert Screen().styled == ""


def test_what_was_erased_in_a_colour_keeps_it() -> None:
    shown = Screen(TtySize(2, 4))
    shown.feed(b"\x1b[42m\x1b[K\x1b[0mx\r\n\x1b[48;2;1;2;3m\x1b[K\x1b[0m-")
    assert shown.styled == (
        "\x1b[0mx\x1b[0;42m   \x1b[0m\n\x1b[0m-\x1b[0;48;2;1;2;3m   \x1b[0m"
    )


def test_the_second_cell_of_a_wide_character_has_no_text() -> None:
    shown = Screen(TtySize(1, 5))
    shown.feed("中x".encode())
    assert shown.styled == "\x1b[0m中x  \x1b[0m"


def test_a_cell_may_hold_more_than_one_code_point() -> None:
    shown = Screen(TtySize(1, 3))
    marked = "q" + 9 * "\N{COMBINING ACUTE ACCENT}"
    shown.feed(f"{marked}!".encode())
    assert shown.lines == (f"{marked}!",)
    assert shown.styled == f"\x1b[0m{marked}! \x1b[0m"


@pytest.mark.parametrize("code", [*range(90, 98), *range(100, 108)])
def test_bright_colours_are_shown_by_their_numbers(code: int) -> None:
    shown = Screen(TtySize(1, 2))
    shown.feed(b"\x1b[%dmx" % code)
    assert shown.styled == f"\x1b[0;{code}mx\x1b[0m \x1b[0m"


@pytest.mark.parametrize("parts", [b"300;0;0", b"1;300;300", b"9999;9999;9999"])
def test_a_colour_that_is_none_is_no_trouble(parts: bytes, kind: Kind) -> None:
    shown = Screen(TtySize(1, 2))
    shown.feed(b"\x1b[38;2;%bmx" % parts)
    assert "x" in shown.styled
    if kind is Pyte:
        assert shown.styled == "\x1b[0mx \x1b[0m"


@pytest.mark.parametrize("unseen", ["\N{VARIATION SELECTOR-16}", "\u200b", "\x01"])
def test_what_has_no_width_ends_no_line(unseen: str) -> None:
    screen = Screen(TtySize(1, 20))
    screen.feed(f"\u2714{unseen} passed".encode())
    assert screen.text.startswith("\u2714")
    assert screen.text.endswith(" passed")


def test_a_reset_leaves_the_second_screen() -> None:
    screen = Screen(TtySize(3, 20))
    screen.feed(b"old\x1b[?1049h\x1b[Hpage\x1bcnew")
    assert screen.text == "new"
    screen.feed(b"\x1b[?1049l")
    assert screen.text == "new"


# -- which one there is -------------------------------------------------------------


@pytest.mark.skipif(Ghostty not in EMULATORS, reason="there is no wheel of it")
def test_that_of_ghostty_is_preferred() -> None:
    assert isinstance(emulator(TtySize()), Ghostty)


def test_without_it_pyte_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyghostty", None)
    assert isinstance(emulator(TtySize()), Pyte)


def test_without_any_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyghostty", None)
    monkeypatch.setitem(sys.modules, "pyte", None)
    with pytest.raises(ModuleNotFoundError, match="the extra `screen`"):
        emulator(TtySize())
