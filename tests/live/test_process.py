"""Starting one child: what is left when the system refuses a part of it."""

import errno
import os
from typing import NoReturn

import pytest

from actors import SpawnFailed, process
from actors.ambient import Surroundings
from actors.launch import Launch
from actors.settings import Settings
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
