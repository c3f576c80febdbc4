"""The session: one child with its log, its input, its readers and its end.

It joins `process` (system calls), `lifecycle` (rules), `buffer` (the log) and `inbox`
(stdin), and answers the commands that a client addresses to it. The worker gives it
readiness, reaped processes and the time; it gives back messages through `send`.

Readers are cursors over the log. A reader gets at most its window ahead of what its
client has taken (CREDIT); what does not fit stays in the log, where retention decides.
A *lossless* reader holds the log: nothing from what its client has not yet taken on is
dropped, and when that fills the log the child's pipes are not read any more.
"""

import os
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from actors import lifecycle, process
from actors.buffer import Cursor, Hole, Log
from actors.events import ExitStatus, Survivor, Usage
from actors.inbox import Inbox
from actors.launch import Launch
from broker import errors, tree
from broker.wire import Kind, Message, pack, unpack

DYING: Final = 0.05
"""Seconds in which a child that lost its stdin is reaped if it is dying."""
READS_A_TURN: Final = 4
"""Reads of one stream before the other descriptors get their turn (64 KiB each)."""
POLL_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of output in one poll's answer; more stays for the next poll."""
MOST_PIECES: Final = 10_000
"""Runs of one stream in one poll's answer."""
LEFTOVERS: Final = 100
"""Leftovers named in a status, which has to fit into a control frame."""
TAIL: Final = 4096
"""Bytes of output in a snapshot."""


class Ask(NamedTuple):
    """Who asked, under which number."""

    client: int
    request: int


class Reply(Protocol):
    """Where messages for clients go; `room` is False while the leg is congested."""

    def send(self, message: Message) -> None:
        """Send `message` over the leg, never blocking."""

    def room(self) -> bool:
        """Return whether bulk output should be handed over now."""


class Reader:
    """One event stream: a cursor, and how far ahead of its client it may run."""

    def __init__(self, ask: Ask, cursor: Cursor, chunks: int, size: int) -> None:
        self.ask = ask
        self.cursor = cursor
        self.taken = cursor.sequence
        self.sent = 0
        self.credited = 0
        self.chunks = chunks
        self.size = size
        self.lossless = False
        self.ended: set[str] = set()
        self.exited = False

    def allowance(self) -> int:
        """Return how many bytes may be sent now."""
        if self.sent - self.credited >= self.chunks:
            return 0
        return self.size - (self.cursor.sequence - self.taken)


class Poll(NamedTuple):
    """A pending poll, and when it is answered whatever there is."""

    ask: Ask
    cursor: Cursor
    mode: str
    limit: int
    ends: float
    quiet_from: float | None


class Read(NamedTuple):
    """A pending cursor read of one stream."""

    ask: Ask
    stream: str
    offset: int
    limit: int
    ends: float


class Session:
    """One child and everything that can be asked of it."""

    def __init__(self, number: int, epoch: int, launch: Launch, leg: Reply) -> None:
        self.number = number
        self.epoch = epoch
        self.launch = launch
        self.leg = leg
        self.log = Log(launch.retention.kind, launch.retention.size)
        self.process: process.Process
        self.life: lifecycle.Lifecycle
        self.inbox = Inbox(launch.stdin_queue)
        self.sweep = tree.Sweep()
        self.reaped = 0
        self.reaped_before_kill: int | None = None
        self.status: ExitStatus | None = None
        self.released = False
        self.owner_alive = True
        self.held = False
        self.ends: dict[str, tuple[Kind, int]] = {}
        self.readers: dict[Ask, Reader] = {}
        self.polls: list[Poll] = []
        self.reads: list[Read] = []
        self._targets: dict[str, int] | None = None
        self._exit_mark: int | None = None
        self._cut: list[tuple[Hashable, int]] = []
        self._cut_told = 0.0
        self._exit: dict[str, Any] = {}
        self._now = 0.0
        self.last_used = 0.0

    # -- start ------------------------------------------------------------------

    def start(self, clock: Callable[[], float]) -> None:
        """Start the child.

        Raises:
            SpawnFailed: nothing is left of the attempt.
        """
        process.check_supported(self.launch)
        self.started = clock()
        self.process = process.start(self.launch)
        self.execed = self._now = self.last_used = clock()
        streams = frozenset(self.process.outputs)
        self.life = lifecycle.Lifecycle(_terms(self.launch), streams, self.execed)
        if isinstance(self.launch.stdin, bytes):
            self.inbox.feed(self.launch.stdin)
            self._pour()

    @property
    def state(self) -> str:
        """Return `running`, `exited` or `closed`."""
        return self.life.state.value

    @property
    def over(self) -> bool:
        """Return whether it was released and its tree is proven gone."""
        return self.released and self.life.empty

    # -- what the worker watches ------------------------------------------------

    def watched(self) -> dict[int, int]:
        """Return descriptor → poll events for the selector loop."""
        wanted: dict[int, int] = {}
        if not self.held:
            wanted.update(dict.fromkeys(self.process.outputs.values(), POLLIN))
        if self.inbox and self.process.stdin is not None:
            # Only with something to write: a pipe whose reader is gone is always ready.
            wanted[self.process.stdin] = POLLOUT
        return wanted

    def ready(self, fd: int, now: float) -> None:
        """Handle readiness (or the end) of one of the watched descriptors."""
        self._now = now
        if fd == self.process.stdin:
            self._pour()
            return
        for stream, ours in self.process.outputs.items():
            if ours == fd:
                self._read(stream)
                break
        self._serve()

    def next_deadline(self) -> float | None:
        """Return when `tick` is wanted, None while nothing is due."""
        due = [self.life.next_deadline()]
        for poll in self.polls:
            due.append(poll.ends)
            if poll.quiet_from is not None:
                due.append(min(poll.ends, poll.quiet_from + self.launch.quiet))
        due += [read.ends for read in self.reads]
        if self._cut:
            due.append(self._cut_told)
        return min((end for end in due if end is not None), default=None)

    def tick(self, now: float) -> None:
        """Let what is due happen."""
        self._now = now
        if self._cut and now >= self._cut_told:
            self._close_stdin()
        self._do(self.life.handle(lifecycle.Tick(), now))
        self._serve()

    # -- output -----------------------------------------------------------------

    def _read(self, stream: str) -> None:
        for _ in range(READS_A_TURN):
            room = self.log.room()
            if room <= 0:
                self._hold(held=True)
                return
            count = self._read_once(stream, room)
            if count is None:
                return
            if count == 0:
                self._end(stream, Kind.EOF)
                return

    def _read_once(self, stream: str, room: int) -> int | None:
        space = self.log.space()
        try:
            count = self.process.read_into(stream, space[:room])
        except OSError as error:
            self._broken(stream, error)
            return None
        if count:
            self.log.commit(stream, count)
            self._do(self.life.handle(lifecycle.Output(), self._now))
            self._on_output()
        return count

    def _on_output(self) -> None:
        self.polls = [
            poll._replace(quiet_from=self._now) if poll.mode == "output" else poll
            for poll in self.polls
        ]
        self._check_mark()

    def _end(self, stream: str, kind: Kind) -> None:
        self.process.close_output(stream)
        self.ends[stream] = (kind, self.log.end)
        self._check_mark()
        self._do(self.life.handle(lifecycle.StreamDone(stream), self._now))

    def _broken(self, stream: str, error: OSError) -> None:
        self._failure = error
        self._end(stream, Kind.BROKEN)

    def _hold(self, *, held: bool) -> None:
        if held is not self.held:
            self.held = held
            self._do(self.life.handle(lifecycle.Held(held), self._now))

    def _unhold(self) -> None:
        if self.held and self.log.room() > 0:
            self._hold(held=False)

    def _check_mark(self) -> None:
        """Note where every byte that was in the pipes at the exit has been logged."""
        if self._targets is None or self._exit_mark is not None:
            return
        for stream, target in self._targets.items():
            open_still = stream in self.process.outputs
            if open_still and self.log.stats(stream).produced < target:
                return
        self._exit_mark = self.log.end

    # -- input ------------------------------------------------------------------

    def _pour(self) -> None:
        """Move queued input into the pipe, and answer the writers that are through."""
        while self.inbox and self.process.stdin is not None:
            try:
                count = self.process.write(self.inbox.next())
            except OSError:  # EPIPE: the child closed its stdin, its writers are told
                self._cut_input()
                return
            if count == 0:
                return
            for ask, accepted in self.inbox.took(count):
                self._wrote(ask, accepted)
        if self.inbox.finished:
            self._close_stdin()

    def _cut_input(self) -> None:
        """Close a stdin that nobody reads; the writers hear of it once it is clear why.

        A dying child loses its pipes a moment before it can be reaped.
        """
        self.process.close_stdin()
        self._cut += self.inbox.close()
        self._cut_told = self._now + DYING

    def _close_stdin(self) -> None:
        self.process.close_stdin()
        cut, self._cut = self._cut, []
        for ask, accepted in cut + self.inbox.close():
            self._wrote(ask, accepted)

    def _wrote(self, ask: Hashable, accepted: int) -> None:
        state = "ended" if self.status is not None else self.state
        self._answer(ask, {"accepted": accepted, "state": state})

    # -- the end ----------------------------------------------------------------

    def on_reaped(self, pid: int, wait_status: int, usage: Any, now: float) -> None:
        """Take the status of a process of the tree that the worker reaped."""
        self._now = now
        self.reaped += 1
        if pid == self.process.pid and not self._exit:
            self._leader_exited(wait_status, usage)
        self._do(self.life.handle(lifecycle.Reaped(), now))

    def on_reaped_all(self, now: float, *, empty: bool) -> None:
        """Follow up on a round of reaping; `empty`: the kernel says nothing is left."""
        self._now = now
        if self._exit and self.status is None:
            self._leader_event(empty=empty)
        elif empty and not self.life.empty and self._exit:
            self._do(self.life.handle(lifecycle.TreeEmpty(), now))
        self._serve()

    def _leader_exited(self, wait_status: int, usage: Any) -> None:
        signaled = os.WIFSIGNALED(wait_status)
        self._exit = {
            "code": None if signaled else os.WEXITSTATUS(wait_status),
            "signal": os.WTERMSIG(wait_status) if signaled else None,
            "core": signaled and os.WCOREDUMP(wait_status),
            "usage": Usage(
                user=usage.ru_utime,
                sys=usage.ru_stime,
                max_rss=usage.ru_maxrss * 1024,
                voluntary=usage.ru_nvcsw,
                involuntary=usage.ru_nivcsw,
            ),
            "ended": self._now,
        }

    def _leader_event(self, *, empty: bool) -> None:
        """Drain what the pipes hold at this moment, then let the rules go on."""
        outputs = self.process.outputs
        self._targets = {
            stream: self.log.stats(stream).produced + self.process.waiting(stream)
            for stream in outputs
        }
        self._exit["leftovers"] = () if empty else _below()
        for stream in list(outputs):
            self._drain(stream)
        self._check_mark()
        event = lifecycle.LeaderExited(self._exit["signal"] or 0, empty)
        self._do(self.life.handle(event, self._now))
        self._close_stdin()

    def _drain(self, stream: str) -> None:
        """Read what is in the pipe now, not what is written meanwhile."""
        left = self.process.waiting(stream)
        while left > 0 and stream in self.process.outputs:
            room = min(self.log.room(), left)
            if room <= 0:
                self._hold(held=True)
                return
            count = self._read_once(stream, room)
            if not count:
                return
            left -= count

    def _do(self, actions: list[lifecycle.Action]) -> None:
        for action in actions:
            match action:
                case lifecycle.SignalGroup(number):
                    tree.send_group(self.process.pid, number)
                case lifecycle.Sweep():
                    self.sweep.step()
                case lifecycle.Abandon():
                    self._abandon()
                case lifecycle.Report(cause):
                    self._report(cause)
                case lifecycle.Close():
                    self._push(Kind.CLOSED)
                case lifecycle.Answer(key, proven):
                    self._killed(key, proven=proven)

    def _report(self, cause: str) -> None:
        self.status = ExitStatus(
            cause=cause,  # type: ignore[arg-type]  # lifecycle deals in plain strings
            started=self.started,
            execed=self.execed,
            wall_time=self._exit["ended"] - self.started,
            **self._exit,
        )
        self._push(Kind.EXITED)

    def _push(self, kind: Kind) -> None:
        assert self.status is not None  # Close follows Report
        body = {"status": self.status.to_wire()}
        self.leg.send(Message(kind, 0, 0, self.number, self.epoch, 0.0, body))

    def _abandon(self) -> None:
        for stream in list(self.process.outputs):
            self._drain(stream)
            if stream in self.process.outputs:
                self._end(stream, Kind.ABANDONED)

    def _killed(self, key: Hashable, *, proven: bool) -> None:
        survivors = [] if proven else [list(_plain(s)) for s in self.sweep.survivors()]
        reaped = self.reaped - (self.reaped_before_kill or 0)
        self._answer(key, {"receipt": [len(self.sweep.signalled), reaped, survivors]})

    def finish(self) -> None:
        """Close everything, and refuse what is still asked; the tree is gone."""
        for poll in self.polls:
            self._error(poll.ask, errors.SessionNotFound())
        for read in self.reads:
            self._error(read.ask, errors.SessionNotFound())
        for ask in self.readers:
            self._error(ask, errors.SessionNotFound())
        self._close_stdin()
        self.process.close()

    # -- commands ---------------------------------------------------------------

    def command(self, message: Message, now: float) -> None:
        """Carry out one command; it is answered now or later, exactly once."""
        self._now = now
        ask = Ask(message.client, message.request)
        if message.kind in _USES:
            self.last_used = now
        try:
            _COMMANDS[message.kind](self, ask, message)
        except errors.EngineError as error:
            self._error(ask, error)
        self._serve()

    def _answer(
        self, ask: Hashable, body: dict[str, Any], payload: bytes | None = None
    ) -> None:
        if isinstance(ask, Ask) and ask.request:
            reply = Message(
                Kind.REPLY, *ask, self.number, self.epoch, 0.0, body, payload
            )
            self.leg.send(reply)

    def _error(self, ask: Ask, error: errors.EngineError) -> None:
        if ask.request:
            code, values = errors.encode(error)
            body = {"code": code, "values": values}
            self.leg.send(Message(Kind.ERROR, *ask, self.number, self.epoch, 0.0, body))

    def _on_write(self, ask: Ask, message: Message) -> None:
        if self.process.stdin is None:
            raise errors.StdinUnavailable(self._why_no_stdin())
        payload = bytes(message.payload or b"")
        accepted = self.inbox.put(ask, payload, message.body["at"])
        if accepted is not None:
            self._wrote(ask, accepted)
        self._pour()

    def _why_no_stdin(self) -> str:
        if self.status is not None:
            return "the child has ended"
        if self.launch.stdin == "null":
            return "stdin is null: spawn with stdin='pipe' to write"
        return "stdin is closed"

    def _on_close_stdin(self, ask: Ask, _: Message) -> None:
        self._close_stdin()
        self._answer(ask, {})

    def _on_poll(self, ask: Ask, message: Message) -> None:
        body = message.body
        cursor = Cursor(body["stdout"], body["stderr"])
        try:
            self.log.read(cursor, 1, 1)
        except ValueError as error:
            raise errors.InvalidRequest("cursor", str(error)) from error
        if self.launch.retention.kind == "block":
            self.log.hold(("poll", ask.client), cursor.sequence)
            self._unhold()
        limit = min(body["limit"], POLL_LIMIT)
        quiet = self._now if self.log.end > cursor.sequence else None
        ends = self._now + body["wait"]
        self.polls.append(Poll(ask, cursor, body["mode"], limit, ends, quiet))

    def _on_read(self, ask: Ask, message: Message) -> None:
        body = message.body
        stream = body["stream"]
        produced = self.log.stats(stream).produced
        offset = produced if body["offset"] is None else body["offset"]
        if offset > produced:
            raise errors.InvalidRequest("after", f"is beyond the {produced} bytes yet")
        if self.launch.retention.kind == "block":
            key = ("read", ask.client, body["reader"])
            self.log.hold(key, self.log.seek(stream, offset))
            self._unhold()
        ends = self._now + body["wait"]
        limit = min(body["limit"], POLL_LIMIT)
        self.reads.append(Read(ask, stream, offset, limit, ends))

    def _on_open(self, ask: Ask, message: Message) -> None:
        body = message.body
        self.open(ask, self._place(body), body, capture=body["capture"])

    def _place(self, body: Any) -> Cursor:
        """Return where a new reader begins: a capture tells what it missed."""
        after = body["after"]
        if body["newest"]:
            return self.log.at(self.log.end)
        if after is None:
            return Cursor(0, 0) if body["capture"] else self.log.at(self.log.first())
        if after > self.log.end:
            raise errors.InvalidRequest(
                "after", f"is beyond the {self.log.end} bytes yet"
            )
        return self.log.at(max(after, self.log.first()))

    def open(self, ask: Ask, cursor: Cursor, body: Any, *, capture: bool) -> None:
        """Attach an event reader at `cursor`; a capture is lossless by any policy."""
        reader = Reader(ask, cursor, body["chunks"], body["bytes"])
        self.readers[ask] = reader
        if capture or self.launch.retention.kind == "block":
            reader.lossless = True
            self.log.hold(ask, cursor.sequence)

    def _on_credit(self, ask: Ask, message: Message) -> None:
        reader = self.readers.get(ask)
        if reader is None:
            return  # it was stopped while the credit was on its way
        reader.credited = max(reader.credited, message.body["chunks"])
        reader.taken = max(reader.taken, message.body["sequence"])
        if reader.credited > reader.sent or reader.taken > reader.cursor.sequence:
            self._drop_reader(ask)
            raise errors.InvalidRequest("credit", "is for more than was sent")
        if reader.lossless:
            self.log.hold(ask, reader.taken)
            self._unhold()

    def _on_stop(self, ask: Ask, message: Message) -> None:
        target = Ask(ask.client, message.body["target"])
        self._drop_reader(target)
        self.log.release(("read", ask.client, target.request))
        self.polls = [poll for poll in self.polls if poll.ask != target]
        self.reads = [read for read in self.reads if read.ask != target]
        self._unhold()
        self._answer(ask, {})

    def _drop_reader(self, ask: Ask) -> None:
        self.readers.pop(ask, None)
        self.log.release(ask)
        self._unhold()

    def _on_kill(self, ask: Ask, message: Message) -> None:
        body = message.body
        if body["release"]:
            self._release()
        if self.life.empty:
            self._answer(ask, {"receipt": [0, 0, []]})
            return
        if self.reaped_before_kill is None:
            self.reaped_before_kill = self.reaped
        kill = lifecycle.Kill(ask, body["grace"], body["timeout"], body["cause"])
        self._do(self.life.handle(kill, self._now))

    def _release(self) -> None:
        self.released = True
        for poll in self.polls:
            self._error(poll.ask, errors.SessionNotFound())
        self.polls.clear()
        self._close_stdin()

    def _on_signal(self, ask: Ask, message: Message) -> None:
        body = message.body
        if self._exit:
            self._answer(ask, {"sent": False})
            return
        if body["interrupt"]:
            self._do(self.life.handle(lifecycle.Interrupted(), self._now))
        pid, number = self.process.pid, body["number"]
        whole = body["group"]
        sent = tree.send_group(pid, number) if whole else tree.signal_child(pid, number)
        self._answer(ask, {"sent": sent})

    def _on_snapshot(self, ask: Ask, _: Message) -> None:
        launch = self.launch
        dropped = sum(self.log.stats(s).dropped for s in ("stdout", "stderr"))
        document = {
            "id": self.number,
            "scope": launch.scope,
            "argv": list(launch.argv),
            "cwd": launch.cwd,
            "pid": self.process.pid,
            "tty": launch.tty.to_wire() if launch.tty else None,
            "state": self.state,
            "started": self.started,
            "last_used": self.last_used,
            "wall_time": self._wall_time(),
            "status": self.status.to_wire() if self.status else None,
            "tail": self.log.newest(TAIL),
            "dropped": dropped,
            "metadata": dict(launch.metadata),
            "authority": launch.authority,
        }
        self._answer(ask, {}, pack(document))

    def _wall_time(self) -> float:
        return self.status.wall_time if self.status else self._now - self.started

    # -- serving readers --------------------------------------------------------

    def _serve(self) -> None:
        """Give every reader, read and poll what it is due now."""
        for reader in list(self.readers.values()):
            self._pump(reader)
        self.reads = [read for read in self.reads if not self._served_read(read)]
        self.polls = [poll for poll in self.polls if not self._served_poll(poll)]

    def pump(self, now: float) -> None:
        """Go on with bulk output: the leg has room again."""
        self._now = now
        for reader in list(self.readers.values()):
            self._pump(reader)

    def _pump(self, reader: Reader) -> None:
        while self.leg.room():
            self._pump_marks(reader)
            limit = min(reader.allowance(), self._until_mark(reader), self.launch.chunk)
            count = reader.chunks - (reader.sent - reader.credited)
            if reader.cursor.sequence >= self.log.end or limit <= 0 or count <= 0:
                break
            pieces, reader.cursor = self.log.read(reader.cursor, limit, count)
            for piece in pieces:
                self._send_piece(reader, piece)
        self._pump_marks(reader)

    def _until_mark(self, reader: Reader) -> int:
        """Return how far the next mark (exit, end of a stream) is: chunks end there."""
        here = reader.cursor.sequence
        marks = [
            at for stream, (_, at) in self.ends.items() if stream not in reader.ended
        ]
        if self._exit_mark is not None and not reader.exited:
            marks.append(self._exit_mark)
        return min((mark - here for mark in marks if mark > here), default=self.log.end)

    def _send_piece(self, reader: Reader, piece: Any) -> None:
        if isinstance(piece, Hole):
            gap = {"stream": piece.stream, "start": piece.start, "end": piece.end}
            self._emit(reader, Kind.GAP, gap)
            return
        body = {
            "stream": piece.stream,
            "offset": piece.offset,
            "sequence": piece.sequence,
        }
        reader.sent += 1
        self._emit(reader, Kind.CHUNK, body, piece.data)

    def _emit(
        self,
        reader: Reader,
        kind: Kind,
        body: dict[str, Any],
        payload: bytes | None = None,
    ) -> None:
        message = Message(
            kind, *reader.ask, self.number, self.epoch, 0.0, body, payload
        )
        self.leg.send(message)

    def _pump_marks(self, reader: Reader) -> None:
        for stream, (kind, at) in self.ends.items():
            if reader.cursor.sequence >= at and stream not in reader.ended:
                reader.ended.add(stream)
                self._emit(reader, kind, self._end_body(stream, kind))
        if self.status is None:
            return
        status = {"status": self.status.to_wire()}
        mark = self._exit_mark
        if not reader.exited and mark is not None and reader.cursor.sequence >= mark:
            reader.exited = True
            self._emit(reader, Kind.EXITED, status)
        if (
            self.life.state is lifecycle.State.CLOSED
            and reader.exited
            and reader.cursor.sequence >= self.log.end
            and reader.ask in self.readers
        ):
            self._emit(reader, Kind.CLOSED, status)
            self._drop_reader(reader.ask)

    def _end_body(self, stream: str, kind: Kind) -> dict[str, Any]:
        if kind is not Kind.BROKEN:
            return {"stream": stream}
        error = self._failure
        return {
            "stream": stream,
            "kind": type(error).__name__,
            "message": str(error)[:1000],
            "errno": error.errno or 0,
        }

    def _served_read(self, read: Read) -> bool:
        produced = self.log.stats(read.stream).produced
        ended = read.stream not in self.process.outputs
        if read.offset >= produced and not ended and self._now < read.ends:
            return False
        gap, offset, data = self.log.read_stream(read.stream, read.offset, read.limit)
        eof = ended and offset + len(data) >= produced
        self._answer(read.ask, {"offset": offset, "gap": gap, "eof": eof}, data)
        return True

    def _served_poll(self, poll: Poll) -> bool:
        quiet = poll.quiet_from
        calm = quiet is not None and self._now >= quiet + self.launch.quiet
        done = self._exit_seen and self.life.state is lifecycle.State.CLOSED
        # What holds the child back may be this very poll, which has not taken it yet.
        enough = (poll.mode == "output" and calm) or self.held
        if not done and self._now < poll.ends and not enough:
            return False
        pieces, after = self.log.read(poll.cursor, poll.limit, MOST_PIECES)
        document = [
            [p.stream, p.end - p.start, None]
            if isinstance(p, Hole)
            else [p.stream, 0, p.data]
            for p in pieces
        ]
        status = self.status if self._exit_seen else None
        body = {
            "state": self.state if self._exit_seen else "running",
            "status": status.to_wire() if status else None,
            "more": after.sequence < self.log.end,
            "done": done and after.sequence >= self.log.end,
            "wall_time": self._wall_time(),
        }
        self._answer(poll.ask, body, pack(document))
        return True

    @property
    def _exit_seen(self) -> bool:
        """Return whether the exit may be told: the bytes before it are in the log."""
        return self.status is not None and self._exit_mark is not None


def _terms(launch: Launch) -> lifecycle.Terms:
    return lifecycle.Terms(
        post_exit_grace=launch.post_exit_grace,
        leftover=launch.leftover,
        leftover_delay=launch.leftover_delay,
        timeout=launch.timeout,
        idle_timeout=launch.idle_timeout,
        terminate_grace=launch.terminate_grace,
        kill_timeout=launch.kill_timeout,
    )


def _plain(survivor: tree.Survivor) -> tuple[int, float, int, str]:
    return survivor.pid, survivor.started, survivor.uid, survivor.state


def _below() -> tuple[Survivor, ...]:
    """Return the processes below this worker: the leader's leftovers."""
    found = (tree.survivor(pid) for pid in tree.descendants(os.getpid()))
    living = (Survivor(*_plain(s)) for s in found if s and s.state != "Z")
    return tuple(islice(living, LEFTOVERS))


def read_launch(message: Message) -> Launch:
    """Return the launch in a START message's payload.

    Raises:
        ProtocolError: the payload is no document.
        InvalidRequest: it is not a complete launch.
    """
    return Launch.from_wire(unpack(message.payload or b""))


POLLIN: Final = 1
POLLOUT: Final = 4

Command = Callable[[Session, Ask, Message], None]

_COMMANDS: Final[dict[Kind, Command]] = {
    Kind.WRITE: Session._on_write,  # noqa: SLF001 - the table names the class's own cells
    Kind.CLOSE_STDIN: Session._on_close_stdin,  # noqa: SLF001
    Kind.POLL: Session._on_poll,  # noqa: SLF001
    Kind.READ: Session._on_read,  # noqa: SLF001
    Kind.OPEN: Session._on_open,  # noqa: SLF001
    Kind.CREDIT: Session._on_credit,  # noqa: SLF001
    Kind.STOP: Session._on_stop,  # noqa: SLF001
    Kind.KILL: Session._on_kill,  # noqa: SLF001
    Kind.SIGNAL: Session._on_signal,  # noqa: SLF001
    Kind.SNAPSHOT: Session._on_snapshot,  # noqa: SLF001
}

_USES: Final = frozenset({Kind.WRITE, Kind.POLL, Kind.SIGNAL})
