"""Descriptors of this process, without ever standing still in the event loop."""

import asyncio
import os
import select
from collections.abc import Callable
from typing import Any, Final

ATOMIC: Final = 4096
"""Bytes that a pipe with room for any takes without waiting (PIPE_BUF)."""
SHARE: Final = 256 * 1024
"""Bytes that are written before others get their turn."""


def fill() -> None:
    """Open /dev/null for each standard stream that was closed when we started.

    The next file opened would take its number, and get the output of jobs.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


async def readable(fd: int) -> None:
    """Wait until there is something to read, or the end of it."""
    loop = asyncio.get_running_loop()
    await _ready(fd, loop.add_reader, loop.remove_reader)


async def write(fd: int, data: bytes) -> None:
    """Write all of `data`, at the pace of whoever reads it.

    Raises:
        BrokenPipeError: nobody does any more.
        OSError: it is refused, by a full disk for one.
    """
    rest = memoryview(data)
    left = SHARE
    while rest:
        if left <= 0 or not _has_room(fd):
            await _writable(fd)
            left = SHARE
        try:
            count = os.write(fd, rest[:ATOMIC])
        except BlockingIOError:
            left = 0  # somebody made the shared file non-blocking, and it is full
            continue
        rest = rest[count:]
        left -= count


async def _writable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    await _ready(fd, loop.add_writer, loop.remove_writer)


def _has_room(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


async def _ready(
    fd: int, add: Callable[..., object], remove: Callable[[int], Any]
) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    try:
        add(fd, _set, ready)
    except PermissionError:
        await asyncio.sleep(0)  # a regular file: always ready, so epoll refuses it
        return
    try:
        await ready
    finally:
        remove(fd)


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)
