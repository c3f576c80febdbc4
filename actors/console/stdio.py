"""The standard streams of this process, read and written beside an event loop.

Reading waits in the loop, and writing in a thread: a reader may not take our output for
hours, and signals are to get through meanwhile.
"""

import asyncio
import os
import select
from collections.abc import Callable
from typing import Final

STDIN, STDOUT, STDERR = range(3)
NAMES: Final = ("stdin", "stdout", "stderr")
PIECE: Final = 64 * 1024
"""Bytes read from stdin at once: what one message to a worker carries."""


ATOMIC: Final = 4096
"""Bytes that a pipe with room for any takes without waiting (PIPE_BUF)."""


class ReaderGone(Exception):
    """Nobody reads our output any more."""


async def put(fd: int, data: bytes) -> None:
    """Write all of `data`, however long that takes.

    Raises:
        ReaderGone: nobody will read it.
        OSError: it was refused, by a full disk for one; it names the stream.
    """
    try:
        await asyncio.to_thread(write, fd, data)
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise refused(fd, error) from error


def refused(fd: int, error: OSError) -> OSError:
    """Return the error of a standard stream with its name."""
    return OSError(error.errno, error.strerror, NAMES[fd])


def write(fd: int, data: bytes) -> None:
    """Write all of `data`, in no event loop: that may take long.

    Raises:
        OSError: it was refused.
    """
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            # Somebody made the shared file non-blocking, a terminal's for one.
            select.select((), (fd,), ())


async def read() -> bytes:
    """Return what is on stdin next, waiting for it; nothing at its end."""
    while True:
        await readable(STDIN)
        try:
            return os.read(STDIN, PIECE)
        except BlockingIOError:
            continue  # another reader of the same file was faster
        except OSError:
            return b""  # closed, or the terminal of others: nothing to read


def check_input() -> None:
    """Make sure that stdin can be read, though there may be nothing on it.

    Raises:
        OSError: it is closed, or there to be written; it names the stream.
    """
    try:
        os.read(STDIN, 0)
    except OSError as error:
        raise refused(STDIN, error) from error


def has_room(fd: int) -> bool:
    """Return whether so little as ATOMIC can be written, or is refused, at once."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


async def readable(fd: int) -> None:
    """Wait until there is something to read, or the end of it."""
    loop = asyncio.get_running_loop()
    await _ready(fd, loop.add_reader, loop.remove_reader)


async def writable(fd: int) -> None:
    """Wait until there is room, or nobody who reads it."""
    loop = asyncio.get_running_loop()
    await _ready(fd, loop.add_writer, loop.remove_writer)


async def _ready(
    fd: int, add: Callable[..., object], remove: Callable[[int], object]
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
