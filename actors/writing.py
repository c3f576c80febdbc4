"""The client's side of writes: long input goes in pieces, in order, few at once.

At most half of the worker's queue is under way for one handle, so a writer is never
refused for what it sent itself. What a cancelled write has sent counts too, until it is
in the pipe. One failure speaks for all pieces of a write; once something went in, a
stdin that is found closed only ends it: the count tells how far it came.
"""

import asyncio
from collections import deque
from typing import Any, Final

from actors.events import WriteResult, WriteState
from actors.record import Record
from broker import errors
from broker.link import Link, ignored
from broker.wire import Kind, Message

WRITE_PIECE: Final = 64 * 1024
"""Bytes of input per message: the broker never holds more of one writer at once."""


class Writing:
    """What one handle of a child writes.

    Args:
        queue: bytes of input that the worker queues at most.
    """

    def __init__(self, link: Link, record: Record, queue: int) -> None:
        self._link = link
        self._record = record
        self._window = max(1, queue // (2 * WRITE_PIECE))
        self._under_way: set[asyncio.Future[Message]] = set()
        self._turn = asyncio.Lock()

    async def write(self, data: bytes, at: int | None) -> WriteResult:
        """Write after the writes before this one; see `Child.write`."""
        async with self._turn:
            if len(data) > WRITE_PIECE or self._under_way:
                return await self._write(data, at)
            return await self._write_piece(data, at)

    async def _write_piece(self, data: bytes, at: int | None) -> WriteResult:
        """Write what one message carries: 3 callbacks of the loop, by `_write` 7."""
        link, request = self._link, self._link.number()
        try:
            reply = await link.ask(
                Kind.WRITE, self._record.id, {"at": at}, data, request=request
            )
        except asyncio.CancelledError:
            late = link.wait_again(request)
            if late is not None:
                self._track(late)
            raise
        body: Any = reply.body
        return WriteResult(body["accepted"], _state(body))

    async def _write(self, data: bytes, at: int | None) -> WriteResult:
        starts = range(0, max(1, len(data)), WRITE_PIECE)
        asked: deque[asyncio.Future[Message]] = deque()
        accepted, pieces = 0, 0
        state: WriteState = "running"
        for start in starts:
            while len(self._under_way) >= self._window:
                await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
            asked.append(self._ask(data, at, start))
            while len(asked) >= self._window or (asked and start == starts[-1]):
                count, state = await self._written(asked.popleft(), first=not pieces)
                accepted, pieces = accepted + count, pieces + 1
                if accepted < min(len(data), pieces * WRITE_PIECE):
                    return WriteResult(accepted, state)
        return WriteResult(accepted, state)

    def _ask(self, data: bytes, at: int | None, start: int) -> asyncio.Future[Message]:
        piece = data[start : start + WRITE_PIECE]
        body = {"at": None if at is None else at + start}
        asked = self._link.ask(Kind.WRITE, self._record.id, body, piece)
        self._track(asked)
        return asked

    def _track(self, asked: "asyncio.Future[Message]") -> None:
        """Count a piece until it is in the pipe, whoever waits for that."""
        asked.add_done_callback(ignored)
        self._under_way.add(asked)
        asked.add_done_callback(self._under_way.discard)

    async def _written(
        self, asked: asyncio.Future[Message], *, first: bool
    ) -> tuple[int, WriteState]:
        """Return what went in of a piece; only a first one may find stdin closed."""
        try:
            body: Any = (await asyncio.shield(asked)).body
        except errors.StdinUnavailable:
            if first:
                raise
            return 0, "running" if self._record.status is None else "ended"
        return body["accepted"], _state(body)


def _state(body: Any) -> WriteState:
    return "running" if body["state"] == "running" else "ended"
