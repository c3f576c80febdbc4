"""The standard streams of this process, read and written beside an event loop.

Reading waits in the loop, and writing in a thread that nothing waits for: a reader may
not take our output for hours, and signals are to get through meanwhile. There is one
for each descriptor, from the first output to the end of the loop.
"""

import asyncio
import errno
import fcntl
import os
import select
import signal
import socket
import stat
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from queue import SimpleQueue
from typing import Final

STDIN, STDOUT, STDERR = range(3)
NAMES: Final = ("stdin", "stdout", "stderr")
PIECE: Final = 64 * 1024
"""Bytes read from stdin at once: what one message to a worker carries."""
GLANCE: Final = 0.2
"""Seconds between two looks at what nothing wakes us for, as a change of foreground."""
MASTER: Final = os.makedev(5, 2)
"""The device of a terminal's other side, where its emulator is."""


ATOMIC: Final = 4096
"""Bytes that a pipe with room for any takes without waiting (PIPE_BUF)."""

_Pieces = SimpleQueue[tuple[bytes, "asyncio.Future[None]"] | None]
"""What a thread is to write, each with whom to tell; None: nothing any more."""
_written_from: Final[
    weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, _Pieces]]
] = weakref.WeakKeyDictionary()


class ReaderGone(Exception):
    """Nobody reads our output any more."""


async def put(fd: int, data: bytes) -> None:
    """Write all of `data`, however long that takes.

    Raises:
        ReaderGone: nobody will read it.
        OSError: it was refused, by a full disk for one; it names the stream.
    """
    try:
        await _written(fd, data)
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise refused(fd, error) from error


async def _written(fd: int, data: bytes) -> None:
    try:
        pieces = _pieces(asyncio.get_running_loop(), fd)
    except RuntimeError:  # what we run has taken all that its user may have
        await _write_in_turns(fd, data)
    else:
        await _put(pieces, data)


def _put(pieces: _Pieces, data: bytes) -> "asyncio.Future[None]":
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    pieces.put((data, written))
    return written


def _pieces(loop: asyncio.AbstractEventLoop, fd: int) -> _Pieces:
    """Return what a thread writes to `fd` as long as this loop lives.

    Raises:
        RuntimeError: no thread is to be had.
    """
    by_fd = _written_from.setdefault(loop, {})
    if fd not in by_fd:
        pieces: _Pieces = SimpleQueue()
        # Neither the loop's end nor ours waits for it: for the executor's both would.
        threading.Thread(target=_keep_writing, args=(fd, pieces), daemon=True).start()
        weakref.finalize(loop, pieces.put, None).atexit = False
        by_fd[fd] = pieces
    return by_fd[fd]


def _keep_writing(fd: int, pieces: _Pieces) -> None:
    while (piece := pieces.get()) is not None:
        _write_piece(fd, *piece)
        del piece  # it would keep the loop


def _write_piece(fd: int, data: bytes, written: "asyncio.Future[None]") -> None:
    refusal = _refusal(fd, data)
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        written.get_loop().call_soon_threadsafe(_settle, written, refusal)


def _refusal(fd: int, data: bytes) -> BaseException | None:
    """Write; return why not, whatever it is: somebody waits."""
    try:
        write(fd, data)
    except BaseException as error:
        return error
    return None


async def _write_in_turns(fd: int, data: bytes) -> None:
    """Write all of `data` in the loop, a little at a time."""
    rest, file = memoryview(data), unwaited(fd)
    while rest:
        count = 0
        if has_room(fd):
            with suppress(BlockingIOError):
                count = os.write(file, rest[:ATOMIC])
        rest = rest[count:]
        await asyncio.sleep(0 if count else GLANCE)


def _settle(written: "asyncio.Future[None]", refusal: BaseException | None) -> None:
    if written.done():
        return  # whoever waited was cancelled
    if refusal is None:
        written.set_result(None)
    else:
        written.set_exception(refusal)


async def tell(words: str) -> None:
    """Say something to people, on stderr, if anybody hears it."""
    with suppress(OSError, ReaderGone):
        await put(STDERR, words.encode(errors="backslashreplace"))


def refused(fd: int, error: OSError) -> OSError:
    """Return the error of a standard stream with its name."""
    return OSError(error.errno, error.strerror, NAMES[fd])


def is_hangup(fd: int, error: OSError) -> bool:
    """Return whether a write was refused because its terminal was closed."""
    # By then os.isatty says that it is none.
    return error.errno == errno.EIO and stat.S_ISCHR(os.fstat(fd).st_mode)


def write(fd: int, data: bytes) -> None:
    """Write all of `data`, in no event loop: that may take long.

    Raises:
        OSError: it was refused.
    """
    fd = unwaited(fd)
    room = select.poll()  # any number: a batch of many jobs has many files
    room.register(fd, select.POLLOUT)
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            # It is a terminal, or somebody made the shared file non-blocking.
            room.poll()


@cache
def unwaited(fd: int) -> int:
    """Return what to write to so as never to wait for a terminal; else it is `fd`.

    A terminal that has room may have less than is written. Its flags are those of all
    who share it, so it is opened anew.
    """
    if _is_terminal(fd):
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with suppress(OSError):  # it is another user's, or there is no /proc
            return os.open(f"/proc/self/fd/{fd}", flags)
    return fd


async def read() -> bytes:
    """Return what is on stdin next, waiting for it; nothing at its end."""
    try:
        return await take()
    except OSError:
        return b""  # closed, or the terminal of others: nothing to read


async def take() -> bytes:
    """Return what is on stdin next, as `read` does.

    Raises:
        OSError: it cannot be read; it names the stream.
    """
    try:
        receive = _receive()
        while True:
            await readable(STDIN)
            if not in_front():
                await asyncio.sleep(GLANCE)
                continue
            try:
                return receive()
            except BlockingIOError:
                continue  # another reader of the same file was faster
    except OSError as error:
        raise refused(STDIN, error) from error


@cache
def _receive() -> Callable[[], bytes]:
    """Return what reads from stdin at once, or raises BlockingIOError.

    Of those who share the file all are woken, and one finds something. Its flags are
    theirs as well, so it is opened anew, or asked for this one time. Files that are
    neither have no need of it: what is in them is there.

    Raises:
        OSError: stdin is closed, or there to be written.
    """
    mode = _mode()
    if stat.S_ISSOCK(mode):
        again = socket.socket(fileno=os.dup(STDIN))
        return partial(again.recv, PIECE, socket.MSG_DONTWAIT)
    fd = STDIN
    if stat.S_ISFIFO(mode) or _is_terminal(STDIN):
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with suppress(OSError):  # it is another user's, or there is no /proc
            fd = os.open(f"/proc/self/fd/{STDIN}", flags)
    return partial(os.read, fd, PIECE)


def in_front() -> bool:
    """Return whether stdin is ours to read: a terminal is its foreground group's.

    Others are stopped for reading, and what they run may want nothing from it. To those
    who ignore that, reading is refused, which is the end.
    """
    if not _is_terminal(STDIN) or signal.getsignal(signal.SIGTTIN) == signal.SIG_IGN:
        return True
    try:
        return os.tcgetpgrp(STDIN) == os.getpgrp()
    except OSError:  # it is not the terminal of our session
        return True


def _mode() -> int:
    """Return the mode of stdin's file.

    Raises:
        OSError: it is closed, or there to be written.
    """
    if fcntl.fcntl(STDIN, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return os.fstat(STDIN).st_mode


def _is_terminal(fd: int) -> bool:
    """Return whether that is a terminal's own side.

    The other side looks like one, and opened anew it would be that of another terminal.
    """
    return os.isatty(fd) and os.fstat(fd).st_rdev != MASTER


def check_input() -> None:
    """Make sure that stdin can be read, though there may be nothing on it.

    Raises:
        OSError: it is closed, or there to be written; it names the stream.
    """
    try:
        _mode()
        if not os.isatty(STDIN):  # one would stop us behind its shell, even for nothing
            os.read(STDIN, 0)
    except OSError as error:
        raise refused(STDIN, error) from error


def has_room(fd: int) -> bool:
    """Return whether so little as ATOMIC can be written, or is refused, at once.

    A terminal may have room for less: then `unwaited` refuses the rest.
    """
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


def write_now(fd: int, data: bytes) -> bytes:
    """Write what is taken at once; return the rest, as of what is refused."""
    fd = unwaited(fd)
    with suppress(OSError):
        while data and has_room(fd):
            data = data[os.write(fd, data[:ATOMIC]) :]
    return data


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
