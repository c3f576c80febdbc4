"""Old output of a terminal asks nothing any more."""

import pytest
from hypothesis import given, strategies as st

from actors.console.replay import LONGEST, Unasking, unasking

QUESTIONS = {
    "attributes": b"\x1b[c",
    "more attributes": b"\x1b[>0c",
    "status": b"\x1b[5n",
    "cursor": b"\x1b[6n",
    "a cursor of DEC": b"\x1b[?6n",
    "mode": b"\x1b[?2026$p",
    "version": b"\x1b[>0q",
    "keyboard": b"\x1b[?u",
    "window": b"\x1b[18t",
    "title": b"\x1b[21t",
    "background": b"\x1b]11;?\x07",
    "colour": b"\x1b]4;1;?\x1b\\",
    "capability": b"\x1bP+q544e\x1b\\",
    "setting": b"\x1bP$qm\x1b\\",
    "an old one": b"\x1bZ",
    "the oldest": b"\x05",
}
DRAWING = (
    b"\x1b[1;31mred\x1b[0m \x1b[2J\x1b[H\x1b[?1049h\x1b[22;0;0t\x1b[>4;2m"
    b"\x1b]0;a title; why?\x07\x1b[?25l\x1b[ q cn\r\n\x1b(B\x1b[>1u\x1b[8;24;80t"
)


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_a_question_is_left_out(question: bytes) -> None:
    assert unasking(b"a" + question + b"b") == b"ab"


def test_what_draws_stays() -> None:
    assert unasking(DRAWING) == DRAWING


@given(st.binary())
def test_only_what_has_a_control_character_goes(data: bytes) -> None:
    plain = data.replace(b"\x1b", b"").replace(b"\x05", b"")
    assert unasking(plain) == plain


def shown(pieces: list[bytes]) -> bytes:
    """Return what is shown of output that comes in pieces."""
    asks = Unasking()
    return b"".join([*map(asks.taken, pieces), asks.rest()])


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_a_question_is_left_out_wherever_a_piece_ends(question: bytes) -> None:
    whole = b"a" + question + b"b"
    for cut in range(len(whole)):
        assert shown([whole[:cut], whole[cut:]]) == b"ab"
    assert shown([bytes([byte]) for byte in whole]) == b"ab"


def test_what_draws_stays_wherever_a_piece_ends() -> None:
    assert shown([bytes([byte]) for byte in DRAWING]) == DRAWING


def test_what_never_becomes_a_question_is_not_held_for_ever() -> None:
    assert shown([b"a\x1b[6"]) == b"a\x1b[6"
    asks, begun = Unasking(), b"\x1bP+q"
    assert asks.taken(begun) == b""
    assert asks.taken(b"x" * LONGEST) == begun + b"x" * LONGEST
    assert asks.rest() == b""
