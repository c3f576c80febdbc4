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

With a terminal of its own, it has the size of ours, and follows it; ours is raw, so
that keys such as ^C come as bytes, and are what its terminal makes of them. SIGHUP and
SIGQUIT do to it what SIGTERM does, and so does the end of ours: what it says then is
lost.

Nothing is kept whole, in either direction: the child waits for whoever reads its
output, and whoever feeds it waits for the child. Both kinds of waiting leave the event
loop free, so that signals always get through.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import actors
from actors.console import stdio, terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

KEPT: Final = 4 * 1024 * 1024
"""Bytes of output that wait in the engine for a slow reader before the child waits."""

Work = Coroutine[Any, Any, object]
Start = Callable[[Work], None]


class Ended(NamedTuple):
    """How a child ended, and how many bytes it wrote to each stream."""

    status: actors.ExitStatus
    written: dict[str, int]


def run(
    argv: tuple[str, ...],
    options: dict[str, Any],
    endpoint: str | None,
    *,
    grace: float,
    warm: int,
) -> Ended:
    """Run a command on our streams and return how it ended.

    Args:
        argv: the command.
        options: more of what `actors.Spec` takes.
        endpoint: of a running broker; None starts a private one.
        grace: seconds between SIGTERM and SIGKILL.
        warm: idle workers that a private broker keeps ready.

    Raises:
        ReaderGone: stdout or stderr was closed by its reader.
        SpawnFailed, InvalidRequest, BrokerLost: as for `Engine.spawn`.
    """
    settings = actors.Settings(
        warm=warm, retention=actors.OutputPolicy.block(KEPT), terminate_grace=grace
    )
    return asyncio.run(_run(argv, options, endpoint, settings))


async def _run(
    argv: tuple[str, ...],
    options: dict[str, Any],
    endpoint: str | None,
    settings: actors.Settings,
) -> Ended:
    if options.get("tty"):
        options = {**options, "tty": terminal.size() or True}
    async with actors.Engine(endpoint, settings=settings) as engine:
        child = await engine.spawn(argv, stdin="pipe", **options)
        async with child:
            return await _join(child, settings.terminate_grace)


async def _join(child: actors.Child, grace: float) -> Ended:
    tasks: set[asyncio.Task[Any]] = set()

    def start(work: Work) -> None:
        tasks.add(asyncio.ensure_future(work))

    ours = terminal.Console()
    start(_feed(child))
    with _signals(start, child, ours, grace):
        try:
            with ours.raw() if child.tty else nullcontext():
                return await _drain(child, lambda: start(child.terminate(grace)))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _signals(
    start: Start, child: actors.Child, ours: terminal.Console, grace: float
) -> "Iterator[None]":
    """Pass signals on to the child until it has ended, unless they are ignored here."""
    passed: dict[signal.Signals, Callable[[], Work]] = {
        signal.SIGINT: child.interrupt,
        signal.SIGTERM: lambda: child.terminate(grace),
    }
    if child.tty:
        ends = (signal.SIGHUP, signal.SIGQUIT)
        passed |= dict.fromkeys(ends, passed[signal.SIGTERM])

    async def carry_out(number: signal.Signals) -> None:
        try:
            await passed[number]()
        except actors.EngineError:
            # Its broker is lost; to hear of that may wait for a reader, as below.
            ours.die(number)

    async def back() -> None:
        await ours.again()
        await fit(child)

    def pass_on(number: signal.Signals) -> None:
        if child.ended:
            # What is left to do is to write for a reader that may never come.
            ours.die(number)
        start(carry_out(number))

    handlers: dict[signal.Signals, Callable[[], object]]
    handlers = {number: partial(pass_on, number) for number in passed}
    if child.tty:
        handlers[signal.SIGWINCH] = lambda: start(fit(child))
        handlers[signal.SIGCONT] = lambda: start(back())
        start(fit(child))  # it may have changed since the spawn
    with terminal.handling(handlers):
        yield


async def fit(child: actors.Child) -> None:
    """Give the child's terminal the size of ours."""
    size = terminal.size()
    if size is not None:
        await child.resize(size.rows, size.cols)


async def _drain(child: actors.Child, ask_to_end: Callable[[], None]) -> Ended:
    """Write the child's output to ours until its end, and return how it ended.

    Once our terminal is closed its output is dropped: so it has its grace to end in,
    whether SIGHUP has come by then or not.
    """
    status, dropped = None, False
    written: Counter[str] = Counter({"stdout": 0, "stderr": 0})
    async with child.events() as events:
        async for event in events:
            if isinstance(event, actors.Chunk):
                written[event.stream] += len(event.data)
                if not dropped and not await _taken(child, event):
                    dropped = True
                    ask_to_end()
            elif isinstance(event, actors.Exited):
                status = event.status
    assert status is not None  # Exited comes before Closed
    return Ended(status, dict(written))


async def _taken(child: actors.Child, output: actors.Chunk) -> bool:
    """Write output to ours; return False if that is a terminal that was closed."""
    ours = stdio.STDOUT if output.stream == "stdout" else stdio.STDERR
    try:
        await stdio.put(ours, output.data)
    except OSError as error:
        if child.tty and stdio.is_hangup(ours, error):
            return False
        raise
    return True


async def _feed(child: actors.Child) -> None:
    """Write our stdin to the child's until either ends."""
    with suppress(actors.EngineError):  # it does not want any more
        while data := await stdio.read():
            await type_in(child, data)
        await child.close_stdin()


async def type_in(child: actors.Child, data: bytes) -> None:
    """Write input to a child; tell of a line that its terminal would cut.

    Raises:
        StdinUnavailable, SessionNotFound, WorkerLost: as for `Child.write`.
    """
    try:
        await child.write(data)
    except actors.InvalidRequest as refused:
        await stdio.tell(f"\r\ncreche: {refused}\r\n")
