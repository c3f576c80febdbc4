"""One child in the foreground: joined to the streams and signals of this process.

=====================  ============================================================
here                   at the child
=====================  ============================================================
bytes on stdin         are written to its stdin, as fast as it reads
end of stdin           closes its stdin
SIGINT                 is an interrupt of its foreground group
SIGTERM                asks it to end, and kills what is left of its tree
its output             is written to stdout and stderr, in the order it came
nobody reads stdout    ends its tree, as a shell's pipeline would
=====================  ============================================================

Nothing is kept whole, in either direction: the child waits for whoever reads its
output, and whoever feeds it waits for the child. Both kinds of waiting leave the event
loop free, so that signals always get through.
"""

import asyncio
import os
import select
import signal
from collections.abc import Callable, Coroutine
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import actors

if TYPE_CHECKING:
    from collections.abc import Iterator

STDIN, STDOUT, STDERR = range(3)
PIECE: Final = 64 * 1024
"""Bytes read from stdin at once: what one message to the worker carries."""
KEPT: Final = 4 * 1024 * 1024
"""Bytes of output that wait in the engine for a slow reader before the child waits."""

Work = Coroutine[Any, Any, object]
Start = Callable[[Work], None]


class ReaderGone(Exception):
    """Nobody reads our output any more; the child was ended."""


def run(
    argv: tuple[str, ...], options: dict[str, Any], endpoint: str | None
) -> actors.ExitStatus:
    """Run a command on our streams and return how it ended.

    Args:
        argv: the command.
        options: more of what `actors.Spec` takes.
        endpoint: of a running broker; None starts a private one.

    Raises:
        ReaderGone: stdout or stderr was closed by its reader.
        SpawnFailed, InvalidRequest, BrokerLost: as for `Engine.spawn`.
    """
    _fill_standard_streams()  # before the event loop opens files of its own
    return asyncio.run(_run(argv, options, endpoint))


async def _run(
    argv: tuple[str, ...], options: dict[str, Any], endpoint: str | None
) -> actors.ExitStatus:
    settings = actors.Settings(warm=1, retention=actors.OutputPolicy.block(KEPT))
    async with actors.Engine(endpoint, settings=settings) as engine:
        child = await engine.spawn(argv, stdin="pipe", **options)
        async with child:
            return await _join(child)


def _fill_standard_streams() -> None:
    """Open /dev/null for each standard stream that was closed when we started.

    The next file opened would take its number, and get the child's output.
    """
    for fd in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


async def _join(child: actors.Child) -> actors.ExitStatus:
    tasks: set[asyncio.Task[Any]] = set()

    def start(work: Work) -> None:
        tasks.add(asyncio.ensure_future(work))

    start(_feed(child))
    with _signals(start, child):
        try:
            return await _drain(child)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _signals(start: Start, child: actors.Child) -> "Iterator[None]":
    """Pass SIGINT and SIGTERM on to the child, unless they are ignored here."""
    loop = asyncio.get_running_loop()
    passed: dict[signal.Signals, Callable[[], Work]]
    passed = {signal.SIGINT: child.interrupt, signal.SIGTERM: child.terminate}

    def pass_on(number: signal.Signals) -> None:
        start(passed[number]())

    taken = [n for n in passed if signal.getsignal(n) is not signal.SIG_IGN]
    for number in taken:
        loop.add_signal_handler(number, pass_on, number)
    start(_give_back(taken, child))
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)


async def _give_back(taken: list[signal.Signals], child: actors.Child) -> None:
    """Give signals their default effect again once the child has ended.

    What is left to do then may be to write for a reader that never comes.
    """
    await child.wait()
    loop = asyncio.get_running_loop()
    for number in taken:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)


async def _drain(child: actors.Child) -> actors.ExitStatus:
    """Write the child's output to ours until its end, and return how it ended."""
    status = None
    async with child.events() as events:
        async for event in events:
            if isinstance(event, actors.Chunk):
                await _put(event)
            elif isinstance(event, actors.Exited):
                status = event.status
    assert status is not None  # Exited comes before Closed
    return status


async def _put(chunk: actors.Chunk) -> None:
    fd = STDOUT if chunk.stream == "stdout" else STDERR
    try:
        # In a thread: a reader may not take it for hours.
        await asyncio.to_thread(_write, fd, chunk.data)
    except BrokenPipeError:
        raise ReaderGone from None


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            # Somebody made the shared file non-blocking, a terminal's for one.
            select.select((), (fd,), ())


async def _feed(child: actors.Child) -> None:
    """Write our stdin to the child's until either ends."""
    with suppress(actors.EngineError):  # it does not want any more
        while data := await _read():
            await child.write(data)
        await child.close_stdin()


async def _read() -> bytes:
    """Return what is on stdin next, waiting for it; nothing at its end."""
    while True:
        await _readable(STDIN)
        try:
            return os.read(STDIN, PIECE)
        except BlockingIOError:
            continue  # another reader of the same file was faster
        except OSError:
            return b""  # a directory, or the terminal of others: nothing to read


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(fd, _set, ready)
    except PermissionError:
        return  # a regular file: always ready, so epoll refuses it
    try:
        await ready
    finally:
        loop.remove_reader(fd)


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)
