"""Attached to a session of a running broker: its output here, what is typed there.

Any number of people attach to one session. All see its output: first what is kept of
it, then what comes. One of them has the keyboard: whoever came first and wants it. It
is theirs as long as they are attached, by a lock that goes with their process; their
terminal's size is the session's. Those who came later only watch.

==========================  =====================  ===================================
what happens                a terminal's session   one with pipes
==========================  =====================  ===================================
a key is typed              it is passed on        its line is, once that is complete
the detach keys             end this, not it       are no keys
Ctrl-C                      is passed on           ends this, not it
our stdin ends              nothing                closes its stdin
the session ends            ends this, with its exit code
nobody reads our output     ends this, not it
==========================  =====================  ===================================

Ctrl-C of one who only watches ends the watching. The detach keys are heard also while
the program reads nothing; what was typed before them may be lost then.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final

import actors
from actors.console import foreground, operating, stdio, terminal
from actors.console.keys import Detacher
from actors.console.replay import unasking

AHEAD: Final = 1024
"""Keys, or parts of a paste, that wait for the child to read before nobody does."""
LINGER: Final = 1.0
"""Seconds that whoever leaves waits for what was typed before to be in."""
_INTERRUPT: Final = b"\x03"


async def attach(
    endpoint: str, word: str, *, keys: bytes, watch: bool, replay: bool
) -> actors.ExitStatus | None:
    """Join a session to our streams until either ends.

    Args:
        endpoint: of its broker.
        word: its number or name.
        keys: what the keys send that detach; empty: none do.
        watch: leave the keyboard to others.
        replay: show what is kept of its output first.

    Returns:
        How it ended; None: we were detached.

    Raises:
        SessionNotFound, InvalidRequest, WorkerLost: as for `operating.visit`.
        ReaderGone: nobody reads our output.
    """
    async with operating.operating(endpoint) as engine:
        child = await operating.visit(engine, word)
        keyboard = None if watch else operating.Claim(endpoint, child.id)
        try:
            if keyboard is not None and not keyboard.ours:
                await stdio.tell(f"creche: {word} has its writer: watching only\n")
            if not child.tty and os.isatty(stdio.STDERR):
                note = f"creche: attached to {word}: Ctrl-C leaves it, and it goes on\n"
                await stdio.tell(note)
            types = keyboard is not None and keyboard.ours
            return await Attached(child, keys, types=types).run(replay=replay)
        finally:
            if keyboard is not None:
                keyboard.close()


class Attached:
    """One child joined to our streams.

    Args:
        child: a visited one.
        keys: what the keys send that detach.
        types: whether we have the keyboard.
    """

    def __init__(self, child: actors.Child, keys: bytes, *, types: bool) -> None:
        self._child = child
        self._detacher = Detacher(keys)
        self._types = types
        self._console = terminal.Console()
        self._tasks: set[asyncio.Task[None]] = set()
        self._typed: asyncio.Queue[bytes] = asyncio.Queue(AHEAD)

    async def run(self, *, replay: bool) -> actors.ExitStatus | None:
        """Stay attached until the child ends, or the person leaves."""
        if not (self._child.tty and self._console.there):
            return await self._both(replay=replay)
        handlers: dict[signal.Signals, Callable[[], object]]
        handlers = {n: partial(self._console.die, n) for n in terminal.ENDING}
        handlers[signal.SIGCONT] = lambda: self._start(self._back())
        if self._types:
            handlers[signal.SIGWINCH] = self._fit_soon
        with terminal.handling(handlers), self._console.raw():
            if self._types:
                self._fit_soon()
            return await self._both(replay=replay)

    def _fit_soon(self) -> None:
        self._start(foreground.fit(self._child))

    async def _back(self) -> None:
        await self._console.again()
        if self._types:
            await foreground.fit(self._child)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.ensure_future(work))

    async def _both(self, *, replay: bool) -> actors.ExitStatus | None:
        """Show and type at once, until one of them is over."""
        showing = asyncio.ensure_future(self._show(replay=replay))
        typing = asyncio.ensure_future(self._type())
        writing = asyncio.ensure_future(self._write())
        try:
            await asyncio.wait((showing, typing), return_when="FIRST_COMPLETED")
            if showing.done() or not typing.result():
                return await showing
            return None
        finally:
            left = (showing, typing, writing, *self._tasks)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _show(self, *, replay: bool) -> actors.ExitStatus:
        start = self._replay() if replay else operating.produced(self._child)
        await operating.show(self._child, await start, None, live=True)
        return await self._child.wait()

    async def _replay(self) -> int:
        """Show what is kept, and return the place where it ends."""
        place = 0
        old: list[bytes] = []
        for event in await operating.kept(self._child):
            if isinstance(event, actors.Gap):
                place += event.end - event.start
                continue  # what came before is not to be seen any more
            place = event.sequence + len(event.data)
            if self._child.tty:
                old.append(event.data)
            else:
                await operating.put(event.stream, event.data)
        await stdio.put(stdio.STDOUT, unasking(b"".join(old)))
        return place

    async def _type(self) -> bool:
        """Pass on what is typed; return whether the person has left.

        What is typed while nobody wants it is read as well: it may be the way out.
        """
        keys = self._child.tty and self._console.there
        while data := await stdio.read():
            passed = self._detacher.typed(data) if keys else data
            if keys and not self._types and _INTERRUPT in data:
                return True
            if self._types and passed:
                await self._typed.put(passed)
            if self._detacher.detached:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LINGER):
                        await self._typed.join()
                return True
            if not keys:  # nobody there who wants to leave: as fast as it reads
                await self._typed.join()
        if self._types and not self._child.tty:
            with suppress(actors.StdinUnavailable):
                await self._child.close_stdin()
        return False

    async def _write(self) -> None:
        """Write what is typed, as fast as the child reads."""
        while True:
            with suppress(actors.EngineError):  # if it is over, its output tells
                await foreground.type_in(self._child, await self._typed.get())
            self._typed.task_done()
