"""Where a command's output ends, whatever it writes and however it arrives."""

import pytest
from hypothesis import given, strategies as st

from actors.boundary import CALM, HALF, Cut, script

WORD = "0123456789abcdef" * (2 * HALF // 16)
REPORT = WORD.encode() + b" 3."


def cut(limit: int | None = None, before: dict[str, bytes] | None = None) -> Cut:
    return Cut(WORD, limit, before or {})


def test_the_script_never_holds_the_whole_word() -> None:
    assert WORD.encode() not in script(b"true", WORD, interrupted=False)


def test_an_interruption_is_undone_before_the_next_command_only() -> None:
    calm = script(b"true", WORD, interrupted=True)
    assert calm == CALM + script(b"true", WORD, interrupted=False)


@given(
    output=st.binary(max_size=200) | st.just(WORD.encode()[:-1] * 2 + b" 0."),
    sizes=st.lists(st.integers(1, 50), min_size=1),
    after=st.binary(max_size=50),
)
def test_what_precedes_the_report_is_the_output(
    output: bytes, sizes: list[int], after: bytes
) -> None:
    written, found, at = output + REPORT + after, cut(), 0
    for size in sizes * (len(written) // sum(sizes) + 1):
        found.feed("stdout", written[at : at + size])
        at += size
    assert found.output("stdout") == output
    assert found.rest["stdout"] == after
    assert found.code == 3


def test_a_command_is_done_when_both_streams_say_so() -> None:
    found = cut()
    found.feed("stdout", b"out" + REPORT)
    before = found.done
    found.feed("stderr", b"err" + WORD.encode() + b" .")
    assert (before, found.done) == (False, True)
    assert (found.output("stdout"), found.output("stderr")) == (b"out", b"err")


@pytest.mark.parametrize(
    ("limit", "exceeded", "kept"),
    [
        (0, True, b""),
        (5, True, b"abcde"),
        (6, False, b"abcdef"),
        (None, False, b"abcdef"),
    ],
)
def test_over_the_limit_the_first_bytes_are_kept(
    limit: int | None, exceeded: bool, kept: bytes
) -> None:
    found = cut(limit)
    found.feed("stdout", b"abcdef" + REPORT)
    assert (found.exceeded, found.output("stdout")) == (exceeded, kept)


def test_what_came_after_a_report_belongs_to_the_next_command() -> None:
    first = cut()
    first.feed("stdout", REPORT + b"from a job, ")
    first.feed("stdout", b"and more")
    other = WORD[::-1]
    second = Cut(other, None, first.rest)
    second.feed("stdout", other.encode() + b" 0.")
    assert second.output("stdout") == b"from a job, and more"


def test_an_ended_shell_gives_what_was_held_back() -> None:
    found = cut()
    found.feed("stderr", b"last words")
    assert found.output("stderr") == b""
    found.finish()
    assert found.output("stderr") == b"last words"
    assert not found.done
