"""The client's side of writes: long input goes in pieces, in order, few at once.

A client's writes into one session take turns, whatever handles they come by. At most
half of the worker's queue is under way, so nobody is refused for what this client sent
itself; and few pieces of it, or the worker could not tell after a lost broker which of
them it has. What a cancelled write has sent counts too, until it is in the pipe. One
failure speaks for all pieces of a write; once something went in, a stdin that is found
closed only ends it: the count tells how far it came.

Other clients may have filled the queue. Then a piece is refused, and the worker refuses
whatever this client sent behind it, so that nothing overtakes it: until an empty write
at the start tells that this was heard. That goes ahead of the piece when it is sent
again, after a while.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from actors.events import WriteResult, WriteState
from actors.record import Record
from broker import errors
from broker.link import Link, ignored
from broker.wire import Kind, Message

if TYPE_CHECKING:
    from weakref import WeakValueDictionary

WRITE_PIECE: Final = 64 * 1024
"""Bytes of input per message: the broker never holds more of one writer at once."""
MOST_UNDER_WAY: Final = 8
"""Pieces of one client under way at once, however large the queue.

What a worker remembers of its answers has to reach for those of several clients."""
LONGEST_PAUSE: Final = 1.0
"""Seconds until a refused piece is sent again, at most; at first as the worker says."""


class Inflow:
    """What one client has on its way into a session; its handles of it share this."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.under_way: set[asyncio.Future[Message]] = set()


@dataclass(slots=True)
class Course:
    """How far one write has come.

    Attributes:
        accepted: bytes that are in the pipe.
        begun: whether it was taken up: a closed stdin is its end then, no refusal.
    """

    data: bytes
    at: int | None
    accepted: int = 0
    state: WriteState = "running"
    begun: bool = False


class Writing:
    """What one handle of a child writes.

    Args:
        queue: bytes of input that the worker queues at most.
        inflows: those of this client, by session.
    """

    def __init__(
        self,
        link: Link,
        record: Record,
        queue: int,
        inflows: "WeakValueDictionary[int, Inflow]",
    ) -> None:
        self._link = link
        self._record = record
        self._window = min(max(1, queue // (2 * WRITE_PIECE)), MOST_UNDER_WAY)
        self._inflows = inflows
        self._joined: Inflow | None = None  # most handles, those of runs, write nothing

    @property
    def _inflow(self) -> Inflow:
        if self._joined is None:
            self._joined = self._inflows.setdefault(self._record.id, Inflow())
        return self._joined

    async def write_input(self, data: bytes) -> WriteResult:
        """Write what the caller's parameter `input` gave, and say so of a refusal."""
        try:
            return await self.write(data, None)
        except errors.InvalidRequest as refused:
            raise errors.InvalidRequest("input", refused.message) from refused

    async def write(self, data: bytes, at: int | None) -> WriteResult:
        """Write after the writes before this one; see `Child.write`."""
        inflow = self._inflow
        async with inflow.turn:
            self._record.check_owner()
            if len(data) > WRITE_PIECE or inflow.under_way:
                return await self._write(Course(data, at))
            try:
                return await self._write_piece(data, at)
            except errors.CapacityExceeded as full:
                await self._wait_for_room(full.retry_after)
            self._record.check_owner()
            return await self._write(Course(data, at, begun=True))

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

    async def _write(self, course: Course) -> WriteResult:
        pause = 0.0
        while True:
            try:
                await self._send(course)
            except errors.CapacityExceeded as full:
                course.begun = True
                pause = min(max(full.retry_after, 2 * pause), LONGEST_PAUSE)
                await self._wait_for_room(pause)
            else:
                return WriteResult(course.accepted, course.state)

    async def _send(self, course: Course) -> None:
        """Send the rest of a write; return once it is in, or cannot get in any more.

        Raises:
            CapacityExceeded: what is not accepted was refused, for now.
        """
        asked: deque[asyncio.Future[Message]] = deque()
        under_way, sent, end = self._inflow.under_way, course.accepted, len(course.data)
        while True:
            while len(under_way) >= self._window:
                await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            self._record.check_owner()
            asked.append(self._ask(course, sent))
            sent += WRITE_PIECE
            while asked and (len(asked) >= self._window or sent >= end):
                wanted = min(WRITE_PIECE, end - course.accepted)
                count = await self._written(asked.popleft(), course)
                course.accepted += count
                if count < wanted:
                    return
            if sent >= end:
                return

    def _ask(self, course: Course, start: int) -> asyncio.Future[Message]:
        piece = course.data[start : start + WRITE_PIECE]
        body = {"at": None if course.at is None else course.at + start}
        asked = self._link.ask(Kind.WRITE, self._record.id, body, piece)
        self._track(asked)
        return asked

    def _track(self, asked: "asyncio.Future[Message]") -> None:
        """Count a piece until it is in the pipe, whoever waits for that."""
        asked.add_done_callback(ignored)
        self._inflow.under_way.add(asked)
        asked.add_done_callback(self._inflow.under_way.discard)

    async def _written(self, asked: asyncio.Future[Message], course: Course) -> int:
        """Return what went in of a piece; only a first one may find stdin closed."""
        try:
            body: Any = (await asyncio.shield(asked)).body
        except errors.StdinUnavailable:
            if not course.begun:
                raise
            course.state = "running" if self._record.status is None else "ended"
            return 0
        course.begun = True
        course.state = _state(body)
        return int(body["accepted"])

    async def _wait_for_room(self, pause: float) -> None:
        """Let others' input go in, and tell the worker that the refusal was heard."""
        try:
            await asyncio.sleep(pause)
        finally:  # else the next write would be refused for this one
            if self._link.lost is None:
                heard = self._link.ask(Kind.WRITE, self._record.id, {"at": 0}, b"")
                heard.add_done_callback(ignored)


def _state(body: Any) -> WriteState:
    return "running" if body["state"] == "running" else "ended"
