"""The client's side of polls: where they have come to, and what one of them returns.

The cursor of each stream is kept here and sent with each poll. It moves when the answer
is taken in, so a poll that is cancelled or fails consumes nothing. Polls take turns, as
two of them with one cursor would return the same bytes.

A poll that is to yield takes its request back, and asks again for what is there now:
the answer to the first one is not taken in any more, so nothing is returned twice.

Input goes ahead of the poll, and what refuses it is heard before the poll returns. That
it is in the pipe is not waited for: a child that does not read would hold the poll up
beyond its time.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from math import inf
from typing import Any, Final

from actors import checks
from actors.events import ExitStatus, PollResult, WriteResult
from actors.holding import Holding
from actors.record import Record, lost_status
from actors.settings import Settings
from actors.text import TextView
from broker import errors
from broker.link import Link, ignored
from broker.wire import STREAMS, Kind, Message, unpack

_LOST: Final = {"state": "lost", "more": False, "done": True, "status": None}

Write = Callable[[bytes], Coroutine[Any, Any, WriteResult]]


class Polling:
    """What one handle of a child has polled.

    Args:
        write: writes what a poll gives as input; it keeps no handle alive.
    """

    def __init__(
        self, link: Link, record: Record, settings: Settings, write: Write
    ) -> None:
        self._link = link
        self._record = record
        self._settings = settings
        self._write = write
        self._view = TextView()
        self._cursor = dict.fromkeys(STREAMS, 0)
        self._holding = Holding(link, record)
        self._turn = asyncio.Lock()
        self._polled = False

    def terms(
        self, data: bytes, wait: float | None, mode: str | None, limit: int
    ) -> dict[str, Any]:
        """Return what a poll with the input `data` asks of the worker.

        Raises:
            InvalidRequest: `wait` is no time, or there is no such mode.
        """
        return {
            "wait": self._clamp(wait, first=bool(data) or not self._polled),
            "mode": _mode(mode, talks=bool(data) or self._record.tty),
            "limit": limit,
        }

    def _clamp(self, wait: float | None, *, first: bool) -> float:
        settings = self._settings
        asked = settings.poll_wait if wait is None else wait
        most = settings.poll_wait_max if first else settings.poll_empty_wait_max
        if asked == inf:
            return most
        checks.seconds("wait", asked)
        return min(asked, most)

    async def poll(
        self, data: bytes, terms: dict[str, Any], yield_on: asyncio.Event | None
    ) -> PollResult:
        """Write `data` if there is some, and poll; see `Child.poll`."""
        async with self._turn:
            self._record.check_owner()
            self._polled = True
            started = self._link.loop.time()
            if data:
                reply = await self._write_and_ask(data, terms, yield_on)
            else:
                reply = await self._ask(terms, yield_on, None)
            return self._result(reply, self._link.loop.time() - started)

    async def _write_and_ask(
        self, data: bytes, terms: dict[str, Any], yield_on: asyncio.Event | None
    ) -> Message | errors.WorkerLost:
        # It may wait for as long as the child lives: were it a call of the handle, that
        # could not be collected before.
        writing = asyncio.ensure_future(self._write(data))
        writing.add_done_callback(ignored)  # the poll may be over before it is
        await asyncio.sleep(0)  # the write is asked for first
        reply = await self._ask(terms, yield_on, writing)
        await self._hear_refusal(writing)
        return reply

    async def _hear_refusal(self, writing: "asyncio.Future[WriteResult]") -> None:
        """Raise what refused the input, though its being in the pipe is not awaited.

        A poll overtakes input where that has to queue. A write beyond all input does
        not, and is refused at once: whatever refused the input was told before that.
        """
        if not writing.done():
            beyond = {"at": checks.MOST}
            asked = self._link.ask(Kind.WRITE, self._record.id, beyond, b"")
            asked.add_done_callback(ignored)
            await asyncio.wait((writing, asked), return_when=asyncio.FIRST_COMPLETED)
        if writing.done():
            with suppress(errors.WorkerLost):  # a poll tells that by its state
                writing.result()

    async def _ask(
        self,
        terms: dict[str, Any],
        yield_on: asyncio.Event | None,
        writing: "asyncio.Future[WriteResult] | None",
    ) -> Message | errors.WorkerLost:
        request, session = self._link.number(), self._record.id
        body = {**terms, **self._cursor, "reader": self._holding.number()}
        asked = self._link.ask(Kind.POLL, session, body, request=request)
        asked.add_done_callback(ignored)  # the write may have failed first, and told
        yielding = asyncio.ensure_future(yield_on.wait()) if yield_on else None
        pending = {f for f in (asked, yielding, writing) if f is not None}
        try:
            while not asked.done():
                done, pending = await asyncio.wait(
                    pending, return_when=asyncio.FIRST_COMPLETED
                )
                if writing in done and writing is not None:
                    writing.result()
                if yielding in done and not asked.done():
                    self._link.take_back(session, request)
                    asked = self._link.ask(Kind.POLL, session, {**body, "wait": 0.0})
                    pending = {asked}
            return asked.result()
        except errors.WorkerLost as lost:
            return lost
        finally:
            if yielding is not None:
                yielding.cancel()
            if not asked.done():
                asked.cancel()
                self._link.take_back(session, request)

    def _result(
        self, reply: Message | errors.WorkerLost, wall_time: float
    ) -> PollResult:
        items: list[tuple[str, int, bytes | None]] = []
        if isinstance(reply, errors.WorkerLost):
            self._record.end(lost_status(self._record.started))
            body: Any = _LOST
            status = self._record.status
        else:
            body = reply.body
            wire = body["status"]
            status = None if wire is None else ExitStatus.from_wire(wire)
            items = unpack(reply.payload or b"")
        before = self._view.undecodable
        taken = self._take(items, done=body["done"])
        return PollResult(
            **taken,
            undecodable=self._view.undecodable - before,
            status=status,
            state=body["state"],
            more=body["more"],
            done=body["done"],
            wall_time=wall_time,
            chunk_id=os.urandom(3).hex(),
        )

    def _take(
        self, items: list[tuple[str, int, bytes | None]], *, done: bool
    ) -> dict[str, Any]:
        """Move the cursor over gaps and chunks; return what they add up to."""
        parts: dict[str, list[bytes]] = {stream: [] for stream in STREAMS}
        text, transcript, dropped = "", [], 0
        for stream, gap, data in items:
            if data is None:
                dropped += gap
                text += self._view.skip(stream)
                self._cursor[stream] += gap
                continue
            parts[stream].append(data)
            transcript.append(data)
            text += self._view.decode(stream, data)
            self._cursor[stream] += len(data)
        if done:
            text += self._view.finish()
        return {
            "stdout": b"".join(parts["stdout"]),
            "stderr": b"".join(parts["stderr"]),
            "transcript": b"".join(transcript),
            "text": text,
            "dropped_bytes": dropped,
        }


def _mode(mode: str | None, *, talks: bool) -> str:
    if mode is None:
        return "output" if talks else "completion"
    if mode not in ("output", "completion"):
        raise errors.InvalidRequest("mode", "is output or completion")
    return mode
