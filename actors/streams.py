"""What a client sees of a child's output: event streams, cursor reads, whole captures.

Each is fed by messages of one request number, and gives credit as its consumer takes
them, so that the worker never runs further ahead than the window.

Much output stays in the session's arena. A stream that is told of one maps it and says
so; then it is sent places instead of bytes, and copies these when they are consumed.
Where it cannot be mapped that is said, and the bytes go on travelling.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Self

from actors import checks
from actors.buffer import Placed
from actors.events import (
    Change,
    Chunk,
    Closed,
    Completed,
    Event,
    Exited,
    ExitStatus,
    Gap,
    Piece,
    StreamAbandoned,
    StreamEof,
    StreamError,
)
from actors.mapped import Mapped
from actors.record import Record, check_caller, lost_status
from broker import errors
from broker.link import Link, error_of
from broker.wire import STREAMS, Kind, Message, Payload, unpack

WINDOW: Final = ("chunks", "bytes", "capture")
"""What a RESUME has in common with the OPEN of the stream."""
LARGEST_READ: Final = 4 * 1024 * 1024
"""Bytes that one read of a `Reader` gives at most."""

Taker = Callable[[str, bytes], object]
"""Takes output as it comes: the name of its stream, and a piece of it."""


class Credit:
    """What a reader's consumer has taken, told to the worker in quarters of the window.

    A quarter keeps the worker busy and costs one message in 64 chunks.
    """

    def __init__(self, link: Link, session: int, request: int, size: int) -> None:
        self.link = link
        self.session = session
        self.request = request
        self.step = max(1, size // 4)
        self.local = False
        self.chunks = 0
        self.sequence = 0
        self._told_chunks = 0
        self._told = 0

    def take(self, sequence: int, chunk_step: int, chunks: int = 1) -> None:
        """Note what was taken up to `sequence`; tell the worker when it is time."""
        self.chunks += chunks
        self.sequence = sequence
        due = self.chunks - self._told_chunks >= chunk_step
        if due or sequence - self._told >= self.step:
            self.tell()

    def offered(self, address: Any) -> Mapped | None:
        """Map the arena at `address` if that can be; say whether places will do."""
        arena = None
        with suppress(OSError):
            arena = Mapped(address)
        self.local = arena is not None
        self.tell()
        return arena

    def tell(self) -> None:
        """Tell the worker what was taken, and whether its places can be read here."""
        self._told_chunks, self._told = self.chunks, self.sequence
        body = {
            "chunks": self.chunks,
            "sequence": self.sequence,
            "local": self.local,
        }
        self.link.post(Kind.CREDIT, self.session, self.request, body)


class Place:
    """How far a stream has come, for another broker: what arrived here, and no more.

    Args:
        start: where it began, as (stdout, stderr); None where the worker decided that.
    """

    def __init__(self, start: tuple[int, int] | None) -> None:
        self._at = None if start is None else list(start)
        self._received = 0
        self._ended: list[str] = []
        self._exited = False

    def note(self, message: Message) -> None:
        """Note a message of the stream that arrived."""
        body: Any = message.body
        if message.kind is Kind.CHUNK:
            self._chunk(body, len(message.payload or b""))
        elif message.kind is Kind.PLACED:
            self._chunk(body, body["length"])
        elif message.kind is Kind.GAP and self._at is not None:
            self._at[STREAMS.index(body["stream"])] = body["end"]
        elif message.kind in (Kind.EOF, Kind.ABANDONED, Kind.BROKEN):
            self._ended.append(body["stream"])
        elif message.kind is Kind.EXITED:
            self._exited = True

    def _chunk(self, body: Any, length: int) -> None:
        index, offset = STREAMS.index(body["stream"]), body["offset"]
        other, end = body["sequence"] - offset, offset + length
        self._at = [other, end] if index else [end, other]
        self._received += 1

    def resumption(self, credit: Credit | None, waiting: int) -> dict[str, Any] | None:
        """Return the body of a RESUME; None: nothing arrived, so it is to be opened.

        Args:
            credit: what was taken, None before there is anything.
            waiting: bytes that have arrived and were not taken.
        """
        if self._at is None:
            return None
        return {
            "stdout": self._at[0],
            "stderr": self._at[1],
            "received": self._received,
            "taken": 0 if credit is None else credit.chunks,
            "sequence": sum(self._at) - waiting,
            "local": credit is not None and credit.local,
            "ended": self._ended,
            "exited": self._exited,
        }


class EventStream:
    """The events of one session, in order; every stream sees every byte.

    Attached when it is made. Leaving it early (`aclose`, or collecting it) does not
    stop the child.
    """

    def __init__(
        self,
        child: object,
        record: Record,
        link: Link,
        *,
        after: int | None,
        newest: bool,
        chunks: int,
        size: int,
        piece: int,
    ) -> None:
        self._child = child  # an iterator in use keeps the child's owner alive
        self._record = record
        self._link = link
        self._request = link.number()
        self._credit = Credit(link, record.id, self._request, size)
        self._chunk_step = max(1, chunks // 4)
        self._piece = piece
        self._arena: Mapped | None = None
        self._inbox: deque[Event | Placed | errors.EngineError] = deque()
        self._open = set(record.streams)
        self._waiters: set[asyncio.Future[None]] = set()
        self._closed = False
        body = {
            "after": after,
            "newest": newest,
            "chunks": chunks,
            "bytes": size,
            "capture": False,
        }
        self._opening = body
        self._place = Place((0, 0) if after is None and not newest else None)
        feed, begin = weakref.WeakMethod(self._feed), weakref.WeakMethod(self._begin)
        link.listen(
            self._request, lambda message: _call(feed, message), lambda: _call(begin)
        )
        link.post(Kind.OPEN, record.id, self._request, body)
        self._finalizer = weakref.finalize(
            self, _stop, link, record, self._request, record.process
        )
        self._finalizer.atexit = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        check_caller(self._record.process, self._link.loop)
        while True:
            while not self._inbox:
                await self._arrival()
            event = self._inbox.popleft()
            if not isinstance(event, Placed):
                return self._consumed(event)
            chunk = self._copied(event)
            if chunk is not None:
                return chunk

    async def _arrival(self) -> None:
        if self._closed:
            raise StopAsyncIteration
        waiter = self._link.loop.create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _consumed(self, event: Event | errors.EngineError) -> Event:
        if isinstance(event, errors.EngineError):
            self._finish()
            raise event
        if isinstance(event, Chunk):
            self._take(event)
        if isinstance(event, Closed):
            self._finish()
        return event

    def _copied(self, placed: Placed) -> Chunk | None:
        """Return the first piece of what lies in the arena; the rest is next."""
        size = min(placed.length, self._piece)
        stream, offset, sequence, place, length = placed
        data = None if self._arena is None else self._arena.copy(place, size, sequence)
        if data is None:
            return None  # this stream was ended; the error that says so comes next
        if size < length:
            rest = (offset + size, sequence + size, place + size, length - size)
            self._inbox.appendleft(Placed(stream, *rest))
        chunk = Chunk(stream, offset, sequence, data)  # type: ignore[arg-type]
        self._take(chunk, messages=int(size == length))
        return chunk

    def _take(self, chunk: Chunk, messages: int = 1) -> None:
        if self._link.lost is None:
            end = chunk.sequence + len(chunk.data)
            self._credit.take(end, self._chunk_step, messages)

    async def aclose(self) -> None:
        """Stop reading; the child goes on and its output is drained."""
        self._inbox.clear()
        self._finalizer()
        self._finish()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _begin(self) -> None:
        """Go on where another broker's worker has to."""
        waiting = sum(
            event.length if isinstance(event, Placed) else len(event.data)
            for event in self._inbox
            if isinstance(event, Placed | Chunk)
        )
        place = self._place.resumption(self._credit, waiting)
        if place is None:
            self._link.post(Kind.OPEN, self._record.id, self._request, self._opening)
            return
        window = {name: self._opening[name] for name in WINDOW}
        self._link.post(Kind.RESUME, self._record.id, self._request, place | window)

    def _feed(self, message: Message) -> None:
        self._place.note(message)
        if message.kind is Kind.PLACED:
            self._inbox.append(Placed(**message.body))
        elif message.kind is Kind.ARENA:
            self._arena = self._credit.offered(message.body)
        else:
            self._inbox.extend(self._events(message))
        if message.kind in (Kind.CLOSED, Kind.ERROR):
            self._finalizer.detach()
            self._link.unlisten(self._request)
        self._wake()

    def _finish(self) -> None:
        self._closed = True
        if self._arena is not None:
            self._arena.close()
            self._arena = None
        self._wake()  # also those who wait for what will not come any more

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _events(self, message: Message) -> list[Event | errors.EngineError]:
        if message.kind is Kind.ERROR:
            error = error_of(message)
            if isinstance(error, errors.WorkerLost):
                return list(self._worker_lost())
            return [error]
        event = event_of(message)
        if isinstance(event, StreamEof | StreamAbandoned | StreamError):
            self._open.discard(event.stream)
        return [event]

    def _worker_lost(self) -> list[Event]:
        broken = [
            StreamError(stream, "worker-lost", "the worker was lost")
            for stream in STREAMS
            if stream in self._open
        ]
        return [Exited(lost_status(self._record.started)), *broken, Closed()]


def _call(method: Any, *arguments: Message) -> None:
    live = method()
    if live is not None:
        live(*arguments)


def _stop(link: Link, record: Record, request: int, process: int) -> None:
    """Detach a reader; runs in any thread, also while the loop is gone."""
    if not record.here(process) or link.lost is not None:
        return

    def stop() -> None:
        link.unlisten(request)
        if link.lost is None:
            link.tell(Kind.STOP, record.id, {"target": request})

    link.call(stop)


def event_of(message: Message) -> Event:
    """Return the event in a reader's message.

    Raises:
        ProtocolError: it is none.
    """
    make = _EVENTS.get(message.kind)
    if make is None:
        raise errors.ProtocolError(f"{message.kind.name} is no event")
    return make(message.body, message.payload)


_EVENTS: Final[dict[Kind, Callable[[Any, Any], Event]]] = {
    Kind.CHUNK: lambda body, payload: Chunk(**body, data=bytes(payload)),
    Kind.GAP: lambda body, _: Gap(**body),
    Kind.EOF: lambda body, _: StreamEof(**body),
    Kind.ABANDONED: lambda body, _: StreamAbandoned(**body),
    Kind.BROKEN: lambda body, _: StreamError(**body),
    Kind.EXITED: lambda body, _: Exited(ExitStatus.from_wire(body["status"])),
    Kind.CLOSED: lambda *_: Closed(),
}


class Capture:
    """All output of a session from its first byte on, kept up to a limit.

    Over the limit the rest is drained, so that the child can end. At most `chunks`
    pieces with `size` bytes are under way. With `into`, that is called with what would
    be kept, until it raises something.

    Attributes:
        session: the number, once it is known.
        refused: what `into` raised; then the capture is closed before its end.
        left: whether nobody waits for it any more, but for what it tells of the end.
    """

    def __init__(
        self,
        link: Link,
        request: int,
        chunks: int,
        size: int,
        limit: int | None,
        *,
        into: Taker | None = None,
    ) -> None:
        self.request = request
        self.session: int | None = None
        self._link = link
        self._chunks = chunks
        self._place = Place((0, 0))
        self._chunk_step = max(1, chunks // 4)
        self._size = size
        self._limit = limit
        self._into = into
        self.refused: BaseException | None = None
        self._parts: dict[str, list[bytes]] = {stream: [] for stream in STREAMS}
        self._kept = 0
        self._credit: Credit | None = None
        self._arena: Mapped | None = None
        self.exceeded = False
        self.left = False
        self.lost = 0
        self.status: ExitStatus | None = None
        self.changes: tuple[tuple[Change, ...], bool] = (), False
        self._heir: Record | None = None
        self.closed: asyncio.Future[None] = link.loop.create_future()
        link.listen(request, self._feed, self._begin)

    def _begin(self) -> None:
        """Go on at another broker, unless the start itself is asked again."""
        place = self._place.resumption(self._credit, 0)
        if self.session is not None and place is not None:
            window = {"chunks": self._chunks, "bytes": self._size, "capture": True}
            self._link.post(Kind.RESUME, self.session, self.request, place | window)

    def output(self, stream: str) -> bytes:
        """Return what was kept of a stream."""
        return b"".join(self._parts[stream])

    def fed(self, feeding: "asyncio.Future[None]") -> None:
        """Fail as the feeding of the child did: it may wait for the rest for ever."""
        error = None if feeding.cancelled() else feeding.exception()
        if error is not None and not self.closed.done():
            self.closed.set_exception(error)

    def stop(self) -> None:
        """Forget the capture: nobody waits for it any more."""
        self._link.unlisten(self.request)
        self._leave_arena()
        if self.closed.done() and not self.closed.cancelled():
            self.closed.exception()

    def leave(self) -> None:
        """Keep nothing more: others of the session go on, to hear of its end by this.

        Until then its output is drained as before, or it would hold the child back.
        """
        self.left, self._limit, self._into = True, 0, None
        self._parts = {stream: [] for stream in STREAMS}
        self.closed.cancel()

    def leave_to(self, record: Record) -> None:
        """Leave it to the others of a session: they are told of its end by `record`."""
        self.leave()
        self._heir = record
        if self.status is not None:
            record.end(self.status)

    def _feed(self, message: Message) -> None:
        kind = message.kind
        self._place.note(message)
        if kind is Kind.CHUNK:
            self._chunk(message, message.payload or b"")
        elif kind is Kind.PLACED:
            self._placed(message)
        elif kind is Kind.ARENA:
            self._arena = self._crediting(message).offered(message.body)
        elif kind is Kind.GAP:
            self.lost += message.body["end"] - message.body["start"]
        elif kind is Kind.CLOSED:
            self.status = ExitStatus.from_wire(message.body["status"])
            if message.payload is not None:
                self.changes = changes_of(message.payload)
            self._link.unlisten(self.request)
            self._leave_arena()
            if self._heir is not None:
                self._heir.end(self.status)
            if not self.closed.done():
                self.closed.set_result(None)
        elif kind is Kind.ERROR:
            self._link.unlisten(self.request)
            self._leave_arena()
            if not self.closed.done():
                self.closed.set_exception(error_of(message))

    def _leave_arena(self) -> None:
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def _placed(self, message: Message) -> None:
        body = message.body
        place, length, sequence = body["place"], body["length"], body["sequence"]
        if self._arena is None:
            return  # nobody waits for this capture any more
        data = self._arena.copy(place, length, sequence)
        if data is not None:  # else the error that ends this capture comes next
            self._chunk(message, data)

    def _chunk(self, message: Message, data: Payload) -> None:
        room = len(data) if self._limit is None else self._limit - self._kept
        if len(data) > room:
            self.exceeded = True
        if room > 0:
            kept = bytes(data[:room])
            self._keep(message.body["stream"], kept)
            self._kept += len(kept)
        end = message.body["sequence"] + len(data)
        self._crediting(message).take(end, self._chunk_step)

    def _keep(self, stream: str, kept: bytes) -> None:
        if self._into is None:
            self._parts[stream].append(kept)
        elif self.refused is None:
            try:
                self._into(stream, kept)
            except BaseException as refused:  # whoever waits sees it; not the link
                self.refused = refused
                if not self.closed.done():
                    self.closed.set_result(None)

    def _crediting(self, message: Message) -> Credit:
        if self._credit is None:  # a run learns its session's number only now
            self._credit = Credit(self._link, message.session, self.request, self._size)
        return self._credit


class Reader:
    """A cursor of one stream: each `read` gives what comes next.

    Under a `block` policy it is lossless from its first read on, until `aclose` or
    until it is collected.
    """

    def __init__(
        self,
        child: object,
        record: Record,
        link: Link,
        stream: str,
        offset: int | None,
    ) -> None:
        self._child = child  # a reader in use keeps the child's owner alive
        self._record = record
        self._link = link
        self._stream = stream
        self._offset = offset
        self._number = link.number()
        self._beginning: asyncio.Future[Message] | None = None
        self._lock = asyncio.Lock()
        self._finalizer = weakref.finalize(
            self, _stop, link, record, self._number, record.process
        )
        self._finalizer.atexit = False

    async def read(self, max_bytes: int = LARGEST_READ, wait: float = 10.0) -> Piece:
        """Return the next bytes, at least one unless the wait or the stream ends.

        Args:
            max_bytes: bytes to return at most.
            wait: seconds to wait for the first byte; 0: what is there now.

        Raises:
            InvalidRequest: a bound is out of range, or the reader was closed.
            WorkerLost: the worker died with what it had not yet sent.
        """
        check_caller(self._record.process, self._link.loop)
        checks.size("max_bytes", max_bytes)
        checks.seconds("wait", wait)
        async with self._lock:
            return await self._read(max_bytes, wait)

    async def _read(self, max_bytes: int, wait: float) -> Piece:
        self._check_open()
        if self._offset is None:
            self._offset = await self._newest()
            self._check_open()  # a read would hold the log again, for nobody
        self._record.check_owner()  # or hold back another's
        request = self._link.number()
        future = self._ask(request, wait, min(max_bytes, LARGEST_READ))
        try:
            reply = await future
        except asyncio.CancelledError:
            self._link.take_back(self._record.id, request)
            raise
        found: Any = reply.body
        data = bytes(reply.payload or b"")
        self._offset = found["offset"] + len(data)
        return Piece(
            self._stream,  # type: ignore[arg-type]  # checked by Child.reader
            found["offset"],
            data,
            found["gap"],
            found["eof"],
        )

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise errors.InvalidRequest("reader", "is closed: make another one")

    async def _newest(self) -> int:
        """Return where the stream ended when this was asked first, cancelled or not.

        A read that waits there without knowing the place would, cancelled or asked
        again at another broker, leave the next one to begin further on.
        """
        if self._beginning is None:
            self._beginning = self._ask(self._link.number(), wait=0.0, limit=1)
        try:
            reply: Any = await asyncio.shield(self._beginning)
        except errors.EngineError:
            self._beginning = None
            raise
        return int(reply.body["offset"])

    def _ask(self, request: int, wait: float, limit: int) -> "asyncio.Future[Message]":
        body = {
            "reader": self._number,
            "stream": self._stream,
            "offset": self._offset,
            "wait": wait,
            "limit": limit,
        }
        return self._link.ask(Kind.READ, self._record.id, body, request=request)

    async def aclose(self) -> None:
        """Give the cursor up."""
        self._finalizer()


def completed(record: Record, capture: Capture, limit: int | None) -> Completed:
    """Return what a finished capture holds.

    Raises:
        OutputLimitExceeded, OutputLost, WorkerLost: see `Child.output`.
    """
    capture.closed.result()
    stdout, stderr = capture.output("stdout"), capture.output("stderr")
    if capture.lost:
        raise errors.OutputLost(capture.lost, stdout, stderr)
    if capture.exceeded:
        raise errors.OutputLimitExceeded(limit or 0, stdout, stderr)
    if capture.status is None:
        raise errors.WorkerLost
    return Completed(
        argv=record.argv,
        stdout=stdout,
        stderr=stderr,
        status=capture.status,
        metadata=dict(record.metadata),
        changes=capture.changes[0],
        changes_truncated=capture.changes[1],
    )


def changes_of(payload: Payload) -> tuple[tuple[Change, ...], bool]:
    """Return the changes in a payload, and whether these are not all."""
    found, truncated = unpack(payload)
    return tuple(
        Change(path.decode("utf-8", "surrogateescape"), kind) for path, kind in found
    ), truncated
