"""How far a batch is, told on a stderr that takes it or not."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from actors.batch.progress import Plain, offer, tell
from actors.batch.tally import Tally

pytestmark = pytest.mark.live


@contextmanager
def piped() -> Iterator[tuple[int, int]]:
    """Have a pipe for stderr; return its ends."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    with pytest.MonkeyPatch.context() as patch, os.fdopen(theirs, "w") as text:
        patch.setattr(sys, "stderr", text)
        yield ours, theirs
    os.close(ours)


def fill(fd: int) -> None:
    os.set_blocking(fd, False)
    try:
        while True:
            os.write(fd, bytes(4096))
    except BlockingIOError:
        os.set_blocking(fd, True)


def test_a_line_is_written_now_and_then() -> None:
    with piped() as (ours, _):
        Plain().draw(Tally(total=3), 1.0)
        assert os.read(ours, 4096).startswith(b"creche: 0/3 done")


def test_nobody_is_waited_for_who_does_not_read() -> None:
    with piped() as (_, theirs):
        fill(theirs)
        Plain().draw(Tally(total=3), 1.0)
        offer("end")


def test_what_is_offered_is_written_as_far_as_there_is_room() -> None:
    with piped() as (ours, _):
        offer("x" * 1_000_000)
        assert os.read(ours, 20) == b"creche: xxxxxxxxxxxx"


def test_no_line_lies_within_what_goes_to_the_same_file() -> None:
    view, tally = Plain(), Tally(total=3)
    with piped() as (ours, theirs):
        with view.aside(theirs):
            view.wrote(theirs, b"first half ")
            view.draw(tally, 1.0)
        with pytest.raises(BlockingIOError):
            os.read(ours, 4096)
        other = os.open(os.devnull, os.O_WRONLY)
        with view.aside(other):
            view.draw(tally, 1.0)
        os.close(other)
        with view.aside(other):  # what is written there is refused
            view.draw(tally, 2.0)
        view.draw(tally, 3.0)
        assert os.read(ours, 4096).count(b"0/3 done") == 3


def test_a_reader_that_is_gone_is_not_missed() -> None:
    with piped() as (ours, _):
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), ours)  # closes the end that was read
        tell("end")
        offer("end")
