"""The outlet: everything by which clients read a session's log.

Readers are cursors over the log. A reader gets at most its window ahead of what its
client has taken (CREDIT); what does not fit stays in the log, where retention decides.
A *lossless* reader holds the log: nothing from what its client has not yet taken on is
dropped, and when that fills the log the child's pipes are not read any more.

A reader is *local* once its client says that it has mapped the arena (`arena`), whose
address it is told when there is one. From then on it gets the place of longer output
instead of the bytes, which are pinned until it has taken them. It gets nothing while
the answer is awaited, unless so much comes meanwhile that some might be dropped.

Ends have places in the log as bytes have: a reader is told of a stream's end, or of the
exit, when it has got everything that came before.

A pause pushes the deadlines of polls and reads back; what is there is still given.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from actors.buffer import Cursor, Hole, Log, Placed
from actors.clock import Clock
from actors.facts import ExitStatus
from actors.launch import Launch
from broker import errors
from broker.wire import Kind, Payload, pack

POLL_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of output in one poll's answer; more stays for the next poll."""
MOST_PIECES: Final = 10_000
"""Runs of one stream in one poll's answer."""
INLINE: Final = 8 * 1024
"""Bytes that travel even to a local reader, as nothing is gained by their place."""
PATIENCE: Final = 1024 * 1024
"""Bytes that wait for a client's answer; or half of what the log keeps, if less.

It comes in 0.3 ms. To send meanwhile costs more: 0.2 ms of three processes a chunk."""
DYING: Final = 0.05
"""Seconds in which a child whose stdin or stream has ended is reaped if it is dying."""


class Ask(NamedTuple):
    """Who asked, under which number."""

    client: int
    request: int


class Voice(Protocol):
    """How messages reach the clients."""

    def say(
        self, kind: Kind, ask: Ask, body: dict[str, Any], payload: Payload | None = None
    ) -> None:
        """Send a message to who asked; nothing when no answer is wanted."""

    def room(self) -> bool:
        """Return whether bulk output should be handed over now."""


class End(NamedTuple):
    """The end of a stream: which kind, and the sequence where it lies."""

    kind: Kind
    at: int
    body: dict[str, Any]


@dataclass(slots=True)
class Progress:
    """How far the child has come, as its session sees it.

    Attributes:
        streams: those that are still read.
        ends: of the other ones.
        status: how the child ended, once it has.
        exit_mark: the sequence at which everything is logged that was in the pipes at
            the child's end; None before.
        closed: whether the child and all its streams have ended.
        changes: what changed in the observed directories, packed, None if not asked.
    """

    streams: set[str]
    ends: dict[str, End] = field(default_factory=dict)
    status: ExitStatus | None = None
    exit_mark: int | None = None
    closed: bool = False
    changes: bytes | None = None

    @property
    def exit_seen(self) -> bool:
        """Whether the exit may be told: the bytes before it are in the log."""
        return self.status is not None and self.exit_mark is not None

    @property
    def state(self) -> str:
        """`running`, `exited` or `closed`, as it may be told."""
        if not self.exit_seen:
            return "running"
        return "closed" if self.closed else "exited"


class Reader:
    """One event stream: a cursor, and how far ahead of its client it may run."""

    __slots__ = (
        "ask",
        "awaited",
        "capture",
        "chunks",
        "credited",
        "cursor",
        "ended",
        "exited",
        "introduced",
        "local",
        "lossless",
        "sent",
        "size",
        "start",
        "taken",
    )

    def __init__(
        self,
        ask: Ask,
        cursor: Cursor,
        chunks: int,
        size: int,
        *,
        capture: bool,
        lossless: bool,
    ) -> None:
        self.ask = ask
        self.capture = capture
        self.cursor = self.start = cursor
        self.taken = cursor.sequence
        self.introduced = self.awaited = self.local = False
        self.sent = 0
        self.credited = 0
        self.chunks = chunks
        self.size = size
        self.lossless = lossless
        self.ended: set[str] = set()
        self.exited = False

    def allowance(self) -> tuple[int, int]:
        """Return how many bytes and chunks may be sent now."""
        under_way = self.cursor.sequence - self.taken
        return self.size - under_way, self.chunks - (self.sent - self.credited)


class Poll(NamedTuple):
    """A pending poll, and when it is answered whatever there is.

    Attributes:
        quiet_from: since when the child is quiet, if that is what the poll waits for.
    """

    ask: Ask
    cursor: Cursor
    mode: str
    limit: int
    ends: float
    quiet_from: float | None


class Read(NamedTuple):
    """A pending cursor read of one stream, by the reader of this number."""

    ask: Ask
    reader: int
    stream: str
    offset: int
    limit: int
    ends: float


class Outlet:
    """The readers, pending polls and pending reads of one session."""

    def __init__(
        self, log: Log, progress: Progress, launch: Launch, voice: Voice
    ) -> None:
        self.log = log
        self.progress = progress
        self.launch = launch
        self.voice = voice
        self.patience = min(PATIENCE, launch.retention.size // 2)
        self.blocking = launch.retention.kind == "block"
        self.readers: dict[Ask, Reader] = {}
        self.left: dict[Ask, Reader] = {}
        self.holds: dict[int, set[int]] = {}
        self.polls: list[Poll] = []
        self.reads: list[Read] = []
        self.clock = Clock()

    # -- asked ------------------------------------------------------------------

    def poll(self, ask: Ask, body: Any, now: float) -> None:
        """Take a POLL; `serve` answers it.

        Raises:
            InvalidRequest: the cursor is none of this log.
        """
        cursor = Cursor(body["stdout"], body["stderr"])
        try:
            self.log.read(cursor, 1, 1)
        except ValueError as error:
            raise errors.InvalidRequest("cursor", str(error)) from error
        if self.blocking:
            self._hold(ask.client, body["reader"], cursor.sequence)
        limit = min(body["limit"], POLL_LIMIT)
        said = body["mode"] == "output" and self.log.end > cursor.sequence
        quiet_from = now if said else None
        ends = _ends(self.polls, ask, self.clock.read(now) + body["wait"])
        self.polls = [poll for poll in self.polls if poll.ask != ask]  # asked again
        self.polls.append(Poll(ask, cursor, body["mode"], limit, ends, quiet_from))

    def read(self, ask: Ask, body: Any, now: float) -> None:
        """Take a READ; `serve` answers it.

        Raises:
            InvalidRequest: the offset lies in the future.
        """
        stream = body["stream"]
        produced = self.log.produced(stream)
        offset = produced if body["offset"] is None else body["offset"]
        if offset > produced:
            raise errors.InvalidRequest("after", f"is beyond the {produced} bytes yet")
        if self.blocking:
            self._hold(ask.client, body["reader"], self.log.seek(stream, offset))
        limit = min(body["limit"], POLL_LIMIT)
        reader = body["reader"]
        ends = _ends(self.reads, ask, self.clock.read(now) + body["wait"])
        self.reads = [read for read in self.reads if read.ask != ask]  # asked again
        self.reads.append(Read(ask, reader, stream, offset, limit, ends))

    def open(self, ask: Ask, body: Any) -> None:
        """Attach an event reader where it asks for.

        Raises:
            InvalidRequest: that lies in the future.
        """
        before = self.left.pop(ask, None)
        place = self._place(body) if before is None else before.start
        self.attach(ask, place, body, capture=body["capture"])

    def resume(self, ask: Ask, body: Any) -> None:
        """Go on with an event reader that has got this far, from a broker now lost.

        Raises:
            InvalidRequest: that is no place in this log.
        """
        cursor = Cursor(body["stdout"], body["stderr"])
        try:
            self.log.read(cursor, 1, 1)
        except ValueError as error:
            raise errors.InvalidRequest("cursor", str(error)) from error
        if body["sequence"] > cursor.sequence or body["taken"] > body["received"]:
            raise errors.InvalidRequest("cursor", "took more than it has received")
        self.left.pop(ask, None)
        capture, taken = body["capture"], body["sequence"]
        self.attach(ask, cursor, body, capture=capture, taken=taken)
        reader = self.readers[ask]
        reader.sent, reader.credited = body["received"], body["taken"]
        reader.local = reader.introduced = body["local"]
        reader.ended, reader.exited = set(body["ended"]), body["exited"]

    def cut_off(self) -> None:
        """Forget how far event readers are, as the last of it may not have arrived.

        They tell, or begin again where they began. What they hold is held on.
        """
        self.left |= self.readers
        self.readers = {}

    @property
    def clients(self) -> set[int]:
        """Those who wait for something, or hold something back."""
        asks = [*self.readers, *self.left, *(p.ask for p in self.polls)]
        asks += [read.ask for read in self.reads]
        return {ask.client for ask in asks} | {c for c, h in self.holds.items() if h}

    def _place(self, body: Any) -> Cursor:
        """Return where a new reader begins; it is told what it missed."""
        after, log = body["after"], self.log
        if body["newest"]:
            return log.at(log.end)
        if after is None:
            return Cursor(0, 0)
        if after > log.end:
            raise errors.InvalidRequest("after", f"is beyond the {log.end} bytes yet")
        return log.at(max(after, log.first()))

    def attach(
        self,
        ask: Ask,
        cursor: Cursor,
        body: Any,
        *,
        capture: bool,
        taken: int | None = None,
    ) -> None:
        """Attach an event reader at `cursor`; it has taken what lies before `taken`.

        A capture is lossless by any policy. It is told of output, and of the end of
        all: what lies between is nothing to it, and three messages less.
        """
        lossless = capture or self.blocking
        self.readers[ask] = reader = Reader(
            ask,
            cursor,
            body["chunks"],
            body["bytes"],
            capture=capture,
            lossless=lossless,
        )
        if taken is not None:
            reader.taken = taken
        if lossless:
            self._hold(ask.client, ask.request, reader.taken)

    def _hold(self, client: int, reader: int, sequence: int) -> None:
        """Hold the log for one of a client's readers."""
        self.holds.setdefault(client, set()).add(reader)
        self.log.hold((client, reader), sequence)

    def _let_go(self, client: int, reader: int) -> None:
        self.holds.get(client, set()).discard(reader)
        self.log.release((client, reader))

    def credit(self, ask: Ask, body: Any) -> None:
        """Note what a reader's client has taken.

        Raises:
            InvalidRequest: more than was sent; the reader is dropped.
        """
        reader = self.readers.get(ask)
        if reader is None:
            return  # it was stopped while the credit was on its way
        reader.local, reader.awaited = body["local"], False
        reader.credited = max(reader.credited, body["chunks"])
        reader.taken = max(reader.taken, body["sequence"])
        if reader.credited > reader.sent or reader.taken > reader.cursor.sequence:
            self._detach(ask)
            raise errors.InvalidRequest("credit", "is for more than was sent")
        if reader.lossless:
            self._hold(ask.client, ask.request, reader.taken)
        self.log.unpin(ask, body["sequence"])

    def stop(self, target: Ask) -> None:
        """Forget a reader, a pending poll or read; request 0: all of this client's."""
        if target.request == 0:
            self._forget_client(target.client)
            return
        self._detach(target)
        self.polls = [poll for poll in self.polls if poll.ask != target]
        self.reads = [read for read in self.reads if read.ask != target]

    def _forget_client(self, client: int) -> None:
        for ask in [ask for ask in self.readers | self.left if ask.client == client]:
            self._detach(ask)
        self.polls = [poll for poll in self.polls if poll.ask.client != client]
        self.reads = [read for read in self.reads if read.ask.client != client]
        for reader in list(self.holds.get(client, ())):
            self._let_go(client, reader)

    def _detach(self, ask: Ask) -> None:
        self.readers.pop(ask, None)
        self.left.pop(ask, None)
        self._let_go(ask.client, ask.request)

    def refuse_polls(self, error: errors.EngineError) -> None:
        """Answer pending polls and reads with an error."""
        for poll in self.polls:
            self._refuse(poll.ask, error)
        for read in self.reads:
            self._refuse(read.ask, error)
        self.polls.clear()
        self.reads.clear()

    def refuse_all(self, error: errors.EngineError) -> None:
        """Answer everything that is pending with an error."""
        self.refuse_polls(error)
        for ask in self.readers:
            self._refuse(ask, error)
        self.readers.clear()

    def _refuse(self, ask: Ask, error: errors.EngineError) -> None:
        code, values = errors.encode(error)
        self.voice.say(Kind.ERROR, ask, {"code": code, "values": values})

    # -- served -----------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether a poll or a read waits."""
        return bool(self.polls or self.reads)

    def next_deadline(self) -> float | None:
        """Return when `serve` is wanted, None while nothing is due."""
        ends = [read.ends for read in self.reads] + [poll.ends for poll in self.polls]
        due = [end for end in map(self.clock.when, ends) if end is not None]
        calm = (p.quiet_from for p in self.polls if p.quiet_from is not None)
        due.extend(since + self.launch.quiet for since in calm)
        return min(due, default=None)

    def on_output(self, now: float) -> None:
        """Note that the child wrote something: quiet begins anew."""
        self.polls = [
            poll._replace(quiet_from=now) if poll.mode == "output" else poll
            for poll in self.polls
        ]

    def pause(self, now: float, *, paused: bool) -> None:
        """Stop the clock of what waits, or let it go on."""
        if paused:
            self.clock.stop(now)
            return
        shift = self.clock.go(now)
        self.polls = [poll._replace(ends=poll.ends + shift) for poll in self.polls]
        self.reads = [read._replace(ends=read.ends + shift) for read in self.reads]

    def serve(self, now: float, *, held: bool) -> None:
        """Give every reader, read and poll what it is due.

        Args:
            now: the time.
            held: whether the child is held back, perhaps by a pending poll itself,
                which has not taken what there is: it is answered.
        """
        self.pump()
        if self.reads:
            self.reads = [r for r in self.reads if not self._served_read(r, now)]
        if self.polls:
            self.polls = [p for p in self.polls if not self._served_poll(p, now, held)]

    def only_reader(self) -> Reader | None:
        """Return the one who waits for the next output, if there is nobody else."""
        if len(self.readers) != 1 or self.polls or self.reads:
            return None
        (reader,) = self.readers.values()
        return reader if reader.cursor.sequence == self.log.end else None

    def pump(self) -> None:
        """Send readers what they may get."""
        for reader in list(self.readers.values()):
            self._pump(reader)

    def _pump(self, reader: Reader) -> None:
        self._tell_ends(reader)
        while reader.cursor.sequence < self.log.end and self.voice.room():
            size, count = reader.allowance()
            limit = min(size, self._until_end(reader))
            if limit <= 0 or count <= 0:
                break
            self._introduce(reader)
            if reader.awaited and self.log.end - reader.cursor.sequence < self.patience:
                break
            self._give(reader, limit, count)
            self._tell_ends(reader)

    def _introduce(self, reader: Reader) -> None:
        """Tell a reader of the arena, once there is one."""
        if self.log.address is not None and not reader.introduced:
            reader.introduced = reader.awaited = True
            self.voice.say(Kind.ARENA, reader.ask, self.log.address)

    def _give(self, reader: Reader, limit: int, count: int) -> None:
        """Send what comes next, by its place if that may be."""
        if reader.local:
            placed = self.log.locate(reader.cursor, limit, INLINE + 1)
            if placed is not None:
                self._send_placed(reader, placed)
                return
        limit = min(limit, self.launch.chunk)
        pieces, reader.cursor = self.log.read(reader.cursor, limit, count)
        for piece in pieces:
            self._send(reader, piece)

    def _send_placed(self, reader: Reader, placed: Placed) -> None:
        reader.cursor = reader.cursor.after(placed.stream, placed.length)
        reader.sent += 1
        self.log.pin(reader.ask, placed)
        self.voice.say(Kind.PLACED, reader.ask, placed._asdict())

    def _until_end(self, reader: Reader) -> int:
        """Return how far the next end is: no read goes past one that is to be told."""
        here, progress = reader.cursor.sequence, self.progress
        ends = [e.at for s, e in progress.ends.items() if s not in reader.ended]
        if progress.exit_mark is not None and not reader.exited:
            ends.append(progress.exit_mark)
        return min((at - here for at in ends if at > here), default=self.log.end)

    def _send(self, reader: Reader, piece: Any) -> None:
        if isinstance(piece, Hole):
            reader.taken += piece.end - piece.start  # nothing of it is under way
            self.voice.say(Kind.GAP, reader.ask, piece._asdict())
            return
        body = {
            "stream": piece.stream,
            "offset": piece.offset,
            "sequence": piece.sequence,
        }
        reader.sent += 1
        self.voice.say(Kind.CHUNK, reader.ask, body, piece.data)

    def _tell_ends(self, reader: Reader) -> None:
        progress, here = self.progress, reader.cursor.sequence
        for stream, end in progress.ends.items():
            if here >= end.at and stream not in reader.ended:
                reader.ended.add(stream)
                if not reader.capture:
                    self.voice.say(end.kind, reader.ask, end.body)
        if progress.exit_seen and here >= (progress.exit_mark or 0):
            self._tell_exit(reader)

    def _tell_exit(self, reader: Reader) -> None:
        """Tell a reader that has come to the exit of it, and of the end of all."""
        if not reader.exited:
            reader.exited = True
            if not reader.capture:
                self.voice.say(Kind.EXITED, reader.ask, self._status())
        over = self.progress.closed and reader.cursor.sequence >= self.log.end
        if over and reader.ask in self.readers:
            changes = self.progress.changes if reader.capture else None
            self.voice.say(Kind.CLOSED, reader.ask, self._status(), changes)
            self._detach(reader.ask)

    def _status(self) -> dict[str, Any]:
        assert self.progress.status is not None  # it is told once there is one
        return {"status": self.progress.status.to_wire()}

    def _served_read(self, read: Read, now: float) -> bool:
        produced = self.log.produced(read.stream)
        ended = read.stream not in self.progress.streams
        early = self.clock.read(now) < read.ends
        if read.offset >= produced and not ended and early:
            self._hold_no_other_stream(read)
            return False
        gap, offset, data = self.log.read_stream(read.stream, read.offset, read.limit)
        eof = ended and offset + len(data) >= produced
        body = {"offset": offset, "gap": gap, "eof": eof}
        self.voice.say(Kind.REPLY, read.ask, body, data)
        return True

    def _hold_no_other_stream(self, read: Read) -> None:
        """Move a waiting read's hold behind what only other streams said meanwhile."""
        if read.reader in self.holds.get(read.ask.client, ()):
            self._hold(read.ask.client, read.reader, self.log.end)

    def _served_poll(self, poll: Poll, now: float, held: bool) -> bool:
        progress = self.progress
        quiet, done = poll.quiet_from, progress.exit_seen and progress.closed
        calm = quiet is not None and now >= quiet + self.launch.quiet
        unread = self.log.end > poll.cursor.sequence
        enough = done or (held and unread) or calm
        if not enough and self.clock.read(now) < poll.ends:
            return False
        pieces, after = self.log.read(poll.cursor, poll.limit, MOST_PIECES)
        document = [
            [p.stream, p.end - p.start, None]
            if isinstance(p, Hole)
            else [p.stream, 0, p.data]
            for p in pieces
        ]
        status = progress.status if progress.exit_seen else None
        body = {
            "state": progress.state,
            "status": status.to_wire() if status else None,
            "more": after.sequence < self.log.end,
            "done": done and after.sequence >= self.log.end,
        }
        self.voice.say(Kind.REPLY, poll.ask, body, pack(document))
        return True


def _ends(pending: Iterable[Poll | Read], ask: Ask, ends: float) -> float:
    """Return when what is asked ends: what is asked again ends when it was to.

    Its client says what is left of its wait, but knows nothing of pauses.
    """
    return next((one.ends for one in pending if one.ask == ask), ends)
