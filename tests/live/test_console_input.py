"""Our stdin is read without ever blocking, whoever else reads it."""

import os
import socket
import subprocess
import sys
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors import ignition
from tests.person import PATIENCE

pytestmark = pytest.mark.live

WOKEN = """
from actors.console import stdio

wait = stdio.readable

async def readable(fd):
    stdio.readable = wait

stdio.readable = readable
"""
"""Wakes us once for what another reader takes."""
READING = """
import asyncio
from actors.batch import source
from actors.console import stdio

async def line():
    return (await stdio.read()).decode().strip()

async def job():
    async for job in source.Lines(["-"]).jobs(set()):
        return job.argv

async def main():
    reading = asyncio.ensure_future({reads}())
    for _ in range(10):
        await asyncio.sleep(0)
    print("free", flush=True)
    print(await reading, flush=True)
    print(repr(await stdio.read()), flush=True)

asyncio.run(main())
"""
"""Says that it is free while it reads, and then what it has read, up to the end."""


def pipe() -> tuple[int, int]:
    return os.pipe()


def sockets() -> tuple[int, int]:
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def terminal() -> tuple[int, int]:
    master, slave = os.openpty()
    return slave, master


@contextmanager
def reading(script: str, stdin: int) -> Iterator[Callable[[], str]]:
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=ignition.environment(),
        stdin=stdin,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline
        finally:
            process.kill()


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("reads", ["line", "job"])
@pytest.mark.parametrize("made", [pipe, sockets, terminal])
def test_who_is_woken_for_what_another_has_read_waits_on(
    made: Callable[[], tuple[int, int]], reads: str
) -> None:
    here, there = made()
    with reading(WOKEN + READING.format(reads=reads), here) as heard:
        assert heard() == "free\n"
        os.write(there, b"word\n")
        assert heard() == "word\n"
        assert os.get_blocking(here)  # it belongs to all who share it
        os.close(here)
        os.close(there)
        assert heard() == "b''\n"


@pytest.mark.timeout(PATIENCE)
def test_the_end_of_a_fifo_is_found_whose_writer_has_gone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    there = os.open(tmp_path / "fifo", os.O_RDWR)
    here = os.open(tmp_path / "fifo", os.O_RDONLY)
    os.write(there, b"word\n")
    os.close(there)
    with reading(READING.format(reads="line"), here) as heard:
        assert [heard() for _ in range(3)] == ["free\n", "word\n", "b''\n"]
    os.close(here)


@pytest.mark.timeout(PATIENCE)
def test_the_other_side_of_a_terminal_is_not_taken_for_one() -> None:
    """Opened anew it would be that of another terminal, and nobody is in front."""
    here, there = os.openpty()
    tty.setraw(there)
    with reading(READING.format(reads="line"), here) as heard:
        assert heard() == "free\n"
        os.write(there, b"word\n")
        assert heard() == "word\n"
        os.close(there)
        assert heard() == "b''\n"
    os.close(here)
