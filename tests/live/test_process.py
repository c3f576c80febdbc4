"""Starting one child: what is left when the system refuses a part of it."""

import errno
import fcntl
import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn
from unittest.mock import Mock

import pytest

from actors import SpawnFailed, process
from actors.ambient import Surroundings
from actors.launch import Launch
from actors.settings import Limits, Settings
from actors.spec import Spec

pytestmark = pytest.mark.live

PIPES = 4
"""Those of one start: three streams, and the one that tells of a failed exec."""


@pytest.fixture
def launch() -> Launch:
    here = Surroundings()
    try:
        spec = Spec(["true"], stdin="pipe")
        return spec.launch(here.read(), Settings(), "", "0" * 32)
    finally:
        here.close()


@pytest.mark.parametrize("left", range(PIPES))
def test_a_start_without_a_pipe_is_refused_and_leaves_none_open(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    pipes, pipe = iter(range(left)), os.pipe

    def scarce() -> tuple[int, int]:
        return pipe() if next(pipes, None) is not None else refuse()

    def refuse() -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "pipe", scarce)
    with pytest.raises(SpawnFailed) as refused:
        process.start(launch)
    assert (refused.value.errno, refused.value.step) == (errno.EMFILE, "pipe")
    assert os.listdir("/proc/self/fd") == before


@pytest.fixture
def protected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a score of this process that it may not lower again."""

    def refuse(_: int) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(process, "_oom_score", lambda: 300)
    monkeypatch.setattr(process, "_set_oom_score", refuse)
    process._limits.cache_clear()
    yield
    process._limits.cache_clear()


@pytest.mark.usefixtures("protected")
def test_a_score_that_cannot_be_had_fails_only_whoever_asked_for_it(
    launch: Launch,
) -> None:
    assert process.limits(replace(launch, oom_score_adj=299)) is None
    asked = replace(launch, oom_score_adj=299, limits=Limits(oom_score_adj=299))
    with pytest.raises(SpawnFailed) as refused:
        process.start(asked)
    assert (refused.value.errno, refused.value.step) == (errno.EACCES, "limits")


def test_copies_of_descriptors_have_none_of_the_numbers_that_are_taken() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    pipe = os.pipe()
    free = os.dup(pipe[0])
    os.close(free)
    copies = process._copies(pipe, (free, hard - 1))
    assert free not in copies
    assert [os.readlink(f"/proc/self/fd/{fd}") for fd in copies] == [
        os.readlink(f"/proc/self/fd/{fd}") for fd in pipe
    ]
    for fd in (*pipe, *copies):
        os.close(fd)


# Wide pipes


@pytest.fixture
def own_tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the wide pipes of this test alone."""
    monkeypatch.setattr(
        process, "_TICKET", b"\0" + os.urandom(8).hex().encode() + b"-%d-%d"
    )


def streaming() -> process.Process:
    """Return what reads a pipe that nobody writes to, and has no process."""
    read, write = os.pipe()
    os.close(write)
    return process.Process(0, None, {"stdout": read})


def held_by(pipe: process.Process) -> int:
    return fcntl.fcntl(pipe.outputs["stdout"], fcntl.F_GETPIPE_SZ)


@pytest.mark.usefixtures("own_tickets")
def test_a_pipe_is_widened_while_few_are() -> None:
    pipes = [streaming() for _ in range(process.WIDE_PIPES + 1)]
    for pipe in pipes:
        assert pipe.capacity("stdout") == held_by(pipe) == process.PIPE
        pipe.widen("stdout")
    last = pipes.pop()
    assert last.capacity("stdout") == held_by(last) == process.PIPE
    assert {pipe.capacity("stdout") for pipe in pipes} == {process.WIDE_PIPE}
    assert {held_by(pipe) for pipe in pipes} == {process.WIDE_PIPE}
    pipes.pop().close()
    last.widen("stdout")
    assert held_by(last) == process.WIDE_PIPE
    for pipe in [*pipes, last]:
        pipe.close()


def test_a_pipe_is_not_widened_without_a_free_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe = streaming()
    with monkeypatch.context() as patch:
        patch.setattr("_socket.socket", Mock(side_effect=OSError("too many")))
        pipe.widen("stdout")
    assert pipe.capacity("stdout") == held_by(pipe) == process.PIPE
    pipe.close()


@pytest.mark.usefixtures("own_tickets")
def test_a_pipe_that_may_not_be_widened_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe = streaming()
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(process, "WIDE_PIPE", 2**31)
        pipe.widen("stdout")
    assert pipe.capacity("stdout") == held_by(pipe) == process.PIPE
    assert os.listdir("/proc/self/fd") == before
    pipe.close()
