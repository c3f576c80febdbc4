"""What a person does with the sessions of a running broker: the verbs of `creche`.

All of it goes through an engine with the operator's key, which owns nothing: whatever
ends here, also by Ctrl-C, no session does. A session is addressed by its number, or by
the name that is in its metadata as `name`.

A detached session is spawned under a key that all of these engines have, and given up
at once. Its end counts as told once one of them has visited it.
"""

import asyncio
import fcntl
import os
import signal
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import actors
from actors.console import stdio, terminal
from actors.console.objects import NAME
from actors.console.rates import Look
from actors.console.replay import Unasking

OWNER: Final = b"creche run --detach"
"""The key of detached sessions; it is no secret: whoever uses it is the operator."""
MOST_DIGITS: Final = 15
"""Digits of the number of a session at most; the engine takes none beyond 2**53."""
NAMING: Final = 0
"""The byte of the key file that is claimed to give a name: the number of no session."""
AGAIN: Final = 0.05
"""Seconds until a claim that others have is asked for again."""
_LOCK: Final = "@hhqqi"
"""The layout of struct flock."""
QUIT: Final = b"\x1c"
END: Final = b"\x04"
INTERRUPT: Final = b"\x03"


@asynccontextmanager
async def operating(
    endpoint: str, settings: actors.Settings | None = None
) -> AsyncIterator[actors.Engine]:
    """Open an engine that may do everything with the sessions of a broker.

    Raises:
        BrokerLost: there is no broker.
        InvalidRequest: the endpoint is none, or its directory is refused.
    """
    engine = actors.Engine(endpoint, owner_key=OWNER, operator=True, settings=settings)
    try:
        await engine.__aenter__()
    except (actors.BrokerLost, actors.InvalidRequest) as error:
        if isinstance(error, actors.InvalidRequest) and not _of_absence(error):
            raise
        absent = f"no broker answers at {endpoint}: start one by `creche serve`"
        raise actors.BrokerLost(absent) from error
    try:
        yield engine
    finally:
        await engine.aclose()


def _of_absence(error: actors.InvalidRequest) -> bool:
    """Return whether an endpoint was refused because no broker has been there."""
    return isinstance(error.__context__, FileNotFoundError)


async def find(engine: actors.Engine, word: str) -> int:
    """Return the number of the session that a number or a name stands for.

    A living one comes first, then the one that was started last.

    Raises:
        SessionNotFound: there is none.
        InvalidRequest: several living ones have this name.
    """
    number = _number(word)
    if number is not None:
        return number
    named = [
        found
        for found in await engine.children(ended=True)
        if found.metadata.get(NAME) == word
    ]
    living = [found for found in named if found.status is None]
    if len(living) > 1:
        ids = ", ".join(str(found.id) for found in living)
        raise actors.InvalidRequest("name", f"{word!r} is that of several: {ids}")
    if not named:
        raise actors.SessionNotFound(f"no session has the number or name {word!r}")
    return (living or named)[-1].id


def _number(word: str) -> int | None:
    """Return the number that a word is; None: no session has it, or it is a name."""
    return int(word) if word.isdecimal() and len(word) <= MOST_DIGITS else None


async def visit(engine: actors.Engine, word: str) -> actors.Child:
    """Return a handle of the session that a number or a name stands for.

    Raises:
        SessionNotFound: there is none, or it is over and forgotten.
        InvalidRequest: several living ones have this name, or it is no number.
        WorkerLost: its worker died.
    """
    number = await find(engine, word)
    try:
        return await engine.visit(number)
    except actors.SessionNotFound as error:
        gone = f"there is no session {word}: see `creche ps --all`"
        raise actors.SessionNotFound(gone) from error


# -- starting ----------------------------------------------------------------------


async def detach(
    endpoint: str,
    argv: tuple[str, ...],
    options: dict[str, Any],
    *,
    name: str | None,
    ttl: float | None,
    grace: float,
) -> dict[str, Any]:
    """Start a child that belongs to nobody; return its `id`, `name` and `pid`.

    Args:
        endpoint: of the broker that it is left to.
        argv: the command.
        options: more of what `actors.Spec` takes.
        name: that it can be addressed by; no living session may have it.
        ttl: seconds after which it is killed.
        grace: seconds between SIGTERM and SIGKILL.

    Raises:
        InvalidRequest: the name is taken or is a number, or an option is not valid.
        SpawnFailed, CapacityExceeded, BrokerLost: as for `Engine.spawn`.
    """
    settings = actors.Settings(terminate_grace=grace)
    if options.get("tty"):
        options = {**options, "tty": terminal.size() or True}
    async with operating(endpoint, settings) as engine, _naming(endpoint, name):
        if name is not None:
            await _check_name(engine, name)
            options = {**options, "metadata": {NAME: name}}
        child = await engine.spawn(argv, **options)
        started = {"id": child.id, "name": name, "pid": child.pid}
        await child.detach(ttl)
        return started


async def _check_name(engine: actors.Engine, name: str) -> None:
    if not name or name.isdecimal():
        why = f"{name!r} is a number or empty: give a word"
        raise actors.InvalidRequest("name", why)
    for found in await engine.children():
        if found.metadata.get(NAME) == name:
            taken = f"{name!r} is the name of session {found.id}, which still runs"
            raise actors.InvalidRequest("name", taken)


class Claim:
    """A right at a broker that one process has at a time: `ours` tells who has it.

    A lock on one byte of the broker's key file, which every operator can open. It goes
    with its process.

    Args:
        endpoint: of the broker.
        byte: what it is for: `NAMING`, or the number of a session whose keyboard it is.
    """

    def __init__(self, endpoint: str, byte: int) -> None:
        place = Path(endpoint.removeprefix("ipc://")).parent / "operator.key"
        self._fd = os.open(place, os.O_RDWR | os.O_CLOEXEC)
        lock = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        try:
            # Of the open file, not of the process: that one's goes with any descriptor.
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, lock)
        except BlockingIOError:
            self.close()

    @property
    def ours(self) -> bool:
        """Whether this process has it."""
        return self._fd >= 0

    def close(self) -> None:
        """Let others have it; harmless to repeat."""
        if self.ours:
            os.close(self._fd)
            self._fd = -1


@asynccontextmanager
async def _naming(endpoint: str, name: str | None) -> AsyncIterator[None]:
    """For a block in which one is given, have nobody else name a session there."""
    if name is None:
        yield
        return
    while not (claim := Claim(endpoint, NAMING)).ours:  # noqa: ASYNC110 - a lock tells nobody
        await asyncio.sleep(AGAIN)
    try:
        yield
    finally:
        claim.close()


# -- looking -----------------------------------------------------------------------


async def listed(
    endpoint: str, scope: str | None, *, ended: bool
) -> list[actors.Snapshot]:
    """Return the sessions of a broker, or those of one scope, by number."""
    async with operating(endpoint) as engine:
        return await engine.children(scope, ended=ended)


async def happening(
    endpoint: str, scope: str | None
) -> AsyncGenerator[actors.Snapshot | actors.Lifecycle, None]:
    """Yield the sessions there are, then what happens to any, without end.

    Once something of that was missed, the sessions there are come again.
    """
    async with operating(endpoint) as engine, engine.events(scope) as events:
        for found in await engine.children(scope):
            yield found
        async for event in events:
            yield event
            if event.missed:
                for found in await engine.children(scope):
                    yield found


async def stats(endpoint: str, word: str) -> actors.Stats:
    """Return what a session wrote, and what its tree uses."""
    async with operating(endpoint) as engine:
        return await (await visit(engine, word)).stats()


async def logs(endpoint: str, word: str, *, follow: bool, since: int) -> None:
    """Write the output of a session, which is kept in part, to our streams.

    Args:
        endpoint: of its broker.
        word: its number or name.
        follow: go on until its end.
        since: bytes of both streams to leave out, those included that are not kept.

    Raises:
        ReaderGone: nobody reads our output.
    """
    async with operating(endpoint) as engine:
        child = await visit(engine, word)
        there = await produced(child)
        start = min(since, there)
        if start < there or follow:
            await show(child, start, None if follow else there)


async def produced(child: actors.Child) -> int:
    """Return how many bytes a child has written so far."""
    return _written(await child.stats())


def _written(now: actors.Stats) -> int:
    both = (now.stdout, now.stderr)
    return sum(stream.produced for stream in both if stream is not None)


async def show(
    child: actors.Child, start: int, until: int | None, *, live: bool = False
) -> None:
    """Write a child's output from one place on, up to another or to its end.

    Args:
        child: whose.
        start: bytes of both streams to leave out.
        until: the place to end at; None: its end.
        live: pass on what it asks the terminal: the answer goes to it.

    Raises:
        ReaderGone: nobody reads our output.
    """
    harmless = child.tty and os.isatty(stdio.STDOUT) and not live
    asks = Unasking()
    place = start
    # A reader that begins in the middle is not told what is not kept there.
    async with child.events(start or "oldest") as events:
        async for event in events:
            if isinstance(event, actors.Gap):
                place += event.end - event.start
                await tell_missing(event.end - event.start)
            elif isinstance(event, actors.Chunk):
                if event.sequence > place:
                    await tell_missing(event.sequence - place)
                data = asks.taken(event.data) if harmless else event.data
                await put(event.stream, data)
                place = event.sequence + len(event.data)
                if until is not None and place >= until:
                    break
    if rest := asks.rest():
        await put("stdout", rest)


async def put(stream: str, data: bytes) -> None:
    """Write a child's output to our stream of the same name."""
    await stdio.put(stdio.STDOUT if stream == "stdout" else stdio.STDERR, data)


async def tell_missing(count: int) -> None:
    """Say that output is not there any more."""
    words = f"creche: {count} bytes of output are not kept any more\r\n"
    await stdio.tell(words)


async def screen(endpoint: str, word: str) -> actors.Screen:
    """Return what the terminal of a session shows.

    Raises:
        NotATerminal: it has none.
        ModuleNotFoundError: there is no emulator of terminals.
    """
    async with operating(endpoint) as engine:
        child = await visit(engine, word)
        size = (await child.snapshot()).tty
        if size is None:
            raise _without_terminal(child)
        shown = actors.Screen(size)
        for event in await kept(child):
            shown.feed(event)
        return shown


def _without_terminal(child: actors.Child) -> actors.NotATerminal:
    why = f"session {child.id} has no terminal: start it with `creche run --tty`"
    return actors.NotATerminal(why)


async def kept(child: actors.Child) -> list[actors.Chunk | actors.Gap]:
    """Return the output that is kept of a child now."""
    there = await produced(child)
    found: list[actors.Chunk | actors.Gap] = []
    if not there:
        return found
    async with child.events() as events:
        async for event in events:
            if isinstance(event, actors.Chunk | actors.Gap):
                found.append(event)
            if (
                isinstance(event, actors.Chunk)
                and event.sequence + len(event.data) >= there
            ):
                break
    return found


# -- acting ------------------------------------------------------------------------


async def wait(endpoint: str, word: str, timeout: float | None) -> actors.ExitStatus:
    """Return how a session ended, once it has.

    Raises:
        TimedOut: it did not in time.
    """
    async with operating(endpoint) as engine:
        return await (await visit(engine, word)).wait(timeout)


async def resize(endpoint: str, word: str, rows: int, cols: int) -> None:
    """Give a session's terminal another size.

    Raises:
        NotATerminal: it has none.
    """
    async with operating(endpoint) as engine:
        child = await visit(engine, word)
        if not child.tty:
            raise _without_terminal(child)
        await child.resize(rows, cols)


class Killed(NamedTuple):
    """What became of a session.

    Attributes:
        word: How it was addressed.
        id: Its number; None if there is none of that name.
        answer: The receipt, or why there is none.
    """

    word: str
    id: int | None
    answer: actors.KillReceipt | actors.EngineError


_UNREACHABLE: Final = (
    actors.SessionNotFound,
    actors.WorkerLost,
    actors.InvalidRequest,
)


async def kill(
    endpoint: str,
    words: Iterable[str],
    *,
    scope: str | None,
    everything: bool,
    grace: float | None,
) -> list[Killed]:
    """End sessions at once; return what became of each.

    Args:
        endpoint: of their broker.
        words: numbers and names.
        scope: end all in the scopes of this name as well.
        everything: end all there are.
        grace: seconds between SIGTERM and SIGKILL; None: SIGKILL at once.
    """
    async with operating(endpoint) as engine:
        named, absent = list(words), []
        if everything or scope is not None:
            found = await engine.children(None if everything else scope)
            named += [str(session.id) for session in found]
            if not (found or everything):
                empty = actors.SessionNotFound("no session is in a scope of this name")
                absent = [Killed(f"--scope {scope}", None, empty)]
        unique: dict[str, str] = {}
        for word in dict.fromkeys(named):
            unique.setdefault(await _numbered(engine, word), word)
        ends = (_kill(engine, meant, word, grace) for meant, word in unique.items())
        return await asyncio.gather(*ends) + absent


async def _numbered(engine: actors.Engine, word: str) -> str:
    """Return a session's number; of a word that means none, the word."""
    try:
        return str(await find(engine, word))
    except _UNREACHABLE:
        return word


async def _kill(
    engine: actors.Engine, meant: str, word: str, grace: float | None
) -> Killed:
    number = _number(meant)
    try:
        child = await visit(engine, meant)
        ended = await (child.kill() if grace is None else child.terminate(grace))
    except _UNREACHABLE as error:
        return Killed(word, number, error)
    return Killed(word, number, ended)


async def write(
    endpoint: str, word: str, data: bytes | None, keys: list[bytes], *, eof: bool
) -> None:
    """Write to a session's stdin.

    Args:
        endpoint: of its broker.
        word: its number or name.
        data: what to write first; None: nothing, or our stdin if there are no keys.
        keys: what keys send, written next.
        eof: close its stdin at last.

    Raises:
        StdinUnavailable: it takes no input, or ended before it took all.
        InvalidRequest: its terminal would cut a line.
        OSError: our stdin, which is what to write, cannot be read to its end.
    """
    async with operating(endpoint) as engine:
        child = await visit(engine, word)
        if data is not None:
            await _write(child, data)
        elif not keys and not eof:
            stdio.check_input()
            while piece := await stdio.take():
                await _write(child, piece)
        for key in keys:
            await _press(child, key)
        if eof:
            await child.close_stdin()


async def _write(child: actors.Child, data: bytes) -> None:
    done = await child.write(data)
    if done.accepted < len(data):
        why = f"it ended: {done.accepted} of {len(data)} bytes went in"
        raise actors.StdinUnavailable(why)


async def _press(child: actors.Child, key: bytes) -> None:
    """Type a key; where there is no terminal, do what one would make of it."""
    if child.tty:
        await _write(child, key)
    elif key == INTERRUPT:
        await child.interrupt()
    elif key == QUIT:
        await child.signal(signal.SIGQUIT, group=True)
    elif key == END:
        await child.close_stdin()
    else:
        await _write(child, b"\n" if key == b"\r" else key)


# -- watching ----------------------------------------------------------------------


async def looks(endpoint: str, interval: float) -> AsyncGenerator[list[Look], None]:
    """Yield how the living sessions of a broker are, once in an interval.

    Args:
        endpoint: of the broker.
        interval: seconds between two looks.
    """
    async with operating(endpoint) as engine:
        visited: dict[int, actors.Child] = {}
        while True:
            found = await engine.children()
            living = {session.id for session in found}
            for number in visited.keys() - living:
                await visited.pop(number).aclose()
            looked = (_look(engine, visited, session) for session in found)
            yield [look for look in await asyncio.gather(*looked) if look is not None]
            await asyncio.sleep(interval)


async def _look(
    engine: actors.Engine, visited: dict[int, actors.Child], found: actors.Snapshot
) -> Look | None:
    """Return how a session is; None: it went meanwhile."""
    try:
        if found.id not in visited:
            visited[found.id] = await engine.visit(found.id)
        now = await visited[found.id].stats()
    except (actors.SessionNotFound, actors.WorkerLost):
        return None
    return Look(
        id=found.id,
        name=found.metadata.get(NAME, ""),
        scope=found.scope,
        state=found.state,
        argv=found.argv,
        wall_time=found.wall_time,
        cpu_time=now.cpu_time,
        memory=now.memory,
        processes=now.processes,
        written=_written(now),
    )
