"""The session: one child with its log, its input, its readers and its end.

It joins `process` (system calls), `lifecycle` (rules), `buffer` (the log), `outlet`
(its readers) and `inbox` (stdin), and answers the commands that a client addresses to
it. The worker gives it readiness, reaped processes and the time; it gives messages.
"""

import os
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Protocol

from actors import lifecycle, process
from actors.buffer import Log
from actors.events import ExitStatus, Survivor, Usage
from actors.inbox import Inbox
from actors.launch import Launch
from actors.outlet import Ask, End, Outlet, Progress
from broker import cgroup, errors, tree
from broker.wire import STREAMS, Kind, Message, Payload, pack, unpack

DYING: Final = 0.05
"""Seconds in which a child that lost its stdin is reaped if it is dying."""
READS_A_TURN: Final = 4
"""Reads of one stream before the other descriptors get their turn (64 KiB each)."""
LEFTOVERS: Final = 100
"""Leftovers named in a status, which has to fit into a control frame."""
SURVIVORS: Final = 500
"""Survivors named in a receipt: as many as fit into a control frame."""
LARGE_TREE: Final = 100
"""Processes above which a tree is killed by its cgroup: walking them takes 20 ms."""
EVICTED: Final = b"[creche: evicted to make room for another session]\n"
"""The last line in the log of an evicted session."""
TAIL: Final = 4096
"""Bytes of output in a snapshot."""


class Leg(Protocol):
    """Where messages for clients go; `room` is False while the leg is congested."""

    def send(self, message: Message) -> None:
        """Send `message` over the leg, never blocking."""

    def room(self) -> bool:
        """Return whether bulk output should be handed over now."""


class Session:
    """One child and everything that can be asked of it."""

    def __init__(
        self,
        number: int,
        epoch: int,
        launch: Launch,
        leg: Leg,
        home: cgroup.Cgroup | None,
    ) -> None:
        self.home = home
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
        self.progress = Progress(set())
        self.outlet = Outlet(self.log, self.progress, launch, self)
        self.released = False
        self.releases_itself = False
        self.held = False
        self._targets: dict[str, int] | None = None
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
        self.progress.streams = set(self.process.outputs)
        streams = frozenset(self.progress.streams)
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
        due = [self.life.next_deadline(), self.outlet.next_deadline()]
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
            self.outlet.on_output(self._now)
            self._check_mark()
        return count

    def _end(
        self, stream: str, kind: Kind, details: Mapping[str, Any] | None = None
    ) -> None:
        self.process.close_output(stream)
        self.progress.streams.discard(stream)
        body = {"stream": stream, **(details or {})}
        self.progress.ends[stream] = End(kind, self.log.end, body)
        self._check_mark()
        self._do(self.life.handle(lifecycle.StreamDone(stream), self._now))

    def _broken(self, stream: str, error: OSError) -> None:
        details = {
            "kind": type(error).__name__,
            "message": str(error)[:1000],
            "errno": error.errno or 0,
        }
        self._end(stream, Kind.BROKEN, details)

    def _hold(self, *, held: bool) -> None:
        if held is not self.held:
            self.held = held
            self._do(self.life.handle(lifecycle.Held(held), self._now))

    def _check_mark(self) -> None:
        """Note where every byte that was in the pipes at the exit has been logged."""
        if self._targets is None or self.progress.exit_mark is not None:
            return
        for stream, target in self._targets.items():
            if (
                stream in self.progress.streams
                and self.log.stats(stream).produced < target
            ):
                return
        self.progress.exit_mark = self.log.end

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
        state = "ended" if self.progress.status is not None else self.state
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
        if self._exit and self.progress.status is None:
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
                    with suppress(PermissionError):  # the kill names who survives it
                        tree.send_group(self.process.pid, number)
                case lifecycle.Sweep():
                    self._sweep()
                case lifecycle.Abandon():
                    self._abandon()
                case lifecycle.Report(cause):
                    self._report(cause)
                case lifecycle.Close():
                    self.progress.closed = True
                    self._push(Kind.CLOSED)
                case lifecycle.Answer(key, proven):
                    self._killed(key, proven=proven)

    def _sweep(self) -> None:
        """Walk the tree once; end a large one by its cgroup, if there is one.

        A thousand processes that fork leave a walk no processor time to end with.
        """
        with suppress(OSError):  # an old kernel: the walks do without
            if self.home is not None and len(self.home.pids()) > LARGE_TREE:
                self.home.kill_around()
        self.sweep.step()

    def _report(self, cause: str) -> None:
        self.progress.status = ExitStatus(
            cause=cause,  # type: ignore[arg-type]  # lifecycle deals in plain strings
            started=self.started,
            execed=self.execed,
            wall_time=self._exit["ended"] - self.started,
            **self._exit,
        )
        self._push(Kind.EXITED)

    def _push(self, kind: Kind) -> None:
        """Tell the broker, and by it the owner, who reads a capture's end instead."""
        if self.releases_itself:
            return
        status = self.progress.status
        assert status is not None  # Close follows Report
        body = {"status": status.to_wire()}
        self.leg.send(Message(kind, 0, 0, self.number, self.epoch, 0.0, body))

    def _abandon(self) -> None:
        for stream in list(self.process.outputs):
            self._drain(stream)
            if stream in self.process.outputs:
                self._end(stream, Kind.ABANDONED)

    def _killed(self, key: Hashable, *, proven: bool) -> None:
        found = () if proven else self.sweep.survivors()[:SURVIVORS]
        survivors = [list(_plain(survivor)) for survivor in found]
        reaped = self.reaped - (self.reaped_before_kill or 0)
        self._answer(key, {"receipt": [len(self.sweep.signalled), reaped, survivors]})

    def finish(self) -> None:
        """Close everything, and refuse what is still asked; the tree is gone."""
        self.outlet.refuse_all(errors.SessionNotFound())
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

    def say(
        self, kind: Kind, ask: Ask, body: dict[str, Any], payload: Payload | None = None
    ) -> None:
        """Send a message to who asked; nothing when no answer is wanted."""
        if ask.request:
            message = Message(kind, *ask, self.number, self.epoch, 0.0, body, payload)
            self.leg.send(message)

    def room(self) -> bool:
        """Return whether the leg takes more bulk output now."""
        return self.leg.room()

    def _answer(
        self, ask: Hashable, body: dict[str, Any], payload: bytes | None = None
    ) -> None:
        if isinstance(ask, Ask):
            self.say(Kind.REPLY, ask, body, payload)

    def _error(self, ask: Ask, error: errors.EngineError) -> None:
        code, values = errors.encode(error)
        self.say(Kind.ERROR, ask, {"code": code, "values": values})

    def _on_write(self, ask: Ask, message: Message) -> None:
        if self.process.stdin is None:
            raise errors.StdinUnavailable(self._why_no_stdin())
        payload = bytes(message.payload or b"")
        accepted = self.inbox.put(ask, payload, message.body["at"])
        if accepted is not None:
            self._wrote(ask, accepted)
        self._pour()

    def _why_no_stdin(self) -> str:
        if self.progress.status is not None:
            return "the child has ended"
        if self.launch.stdin == "null":
            return "stdin is null: spawn with stdin='pipe' to write"
        return "stdin is closed"

    def _on_close_stdin(self, ask: Ask, _: Message) -> None:
        self._close_stdin()
        self._answer(ask, {})

    def _on_poll(self, ask: Ask, message: Message) -> None:
        self.outlet.poll(ask, message.body, self._now)

    def _on_read(self, ask: Ask, message: Message) -> None:
        self.outlet.read(ask, message.body, self._now)

    def _on_open(self, ask: Ask, message: Message) -> None:
        self.outlet.open(ask, message.body)

    def _on_credit(self, ask: Ask, message: Message) -> None:
        self.outlet.credit(ask, message.body)

    def _on_stop(self, ask: Ask, message: Message) -> None:
        self.outlet.stop(Ask(ask.client, message.body["target"]))
        self._answer(ask, {})

    def _on_kill(self, ask: Ask, message: Message) -> None:
        body = message.body
        if body["release"]:
            self._release()
        if self.life.empty:
            self._answer(ask, {"receipt": [0, 0, []]})
            return
        if body["cause"] == "evicted" and not self._exit:
            self._mark_evicted()
        if self.reaped_before_kill is None:
            self.reaped_before_kill = self.reaped
        kill = lifecycle.Kill(ask, body["grace"], body["timeout"], body["cause"])
        self._do(self.life.handle(kill, self._now))

    def _mark_evicted(self) -> None:
        """Leave a line in the log that says why the child ends."""
        for stream in ("stderr", "stdout"):
            if stream in self.progress.streams:
                self.log.append(stream, EVICTED)
                self.outlet.on_output(self._now)
                return

    def _release(self) -> None:
        self.released = True
        self.outlet.refuse_polls(errors.SessionNotFound())
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
        send = tree.send_group if whole else tree.signal_child
        try:
            sent = send(pid, number)
        except PermissionError as error:
            raise errors.EngineError("the child runs as another user") from error
        self._answer(ask, {"sent": sent})

    def _on_snapshot(self, ask: Ask, _: Message) -> None:
        launch, status = self.launch, self.progress.status
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
            "wall_time": status.wall_time if status else self._now - self.started,
            "status": status.to_wire() if status else None,
            "tail": self.log.newest(TAIL),
            "dropped": dropped,
            "metadata": dict(launch.metadata),
            "authority": launch.authority,
        }
        self._answer(ask, {}, pack(document))

    def _on_attach(self, ask: Ask, _: Message) -> None:
        """Tell a new owner what the first one knew from its spawn."""
        launch, status = self.launch, self.progress.status
        there = self.progress.streams | self.progress.ends.keys()
        document = {
            "argv": list(launch.argv),
            "streams": [stream for stream in STREAMS if stream in there],
            "retention": launch.retention.to_wire(),
            "metadata": dict(launch.metadata),
            "status": status.to_wire() if status else None,
        }
        body = {"pid": self.process.pid, "started": self.started}
        self._answer(ask, body, pack(document))

    def _serve(self) -> None:
        """Give the readers what they are due, and read on if that made room."""
        self.outlet.serve(self._now, held=self.held)
        if self.held and self.log.room() > 0:
            self._hold(held=False)
        captured = self.releases_itself and not self.outlet.readers
        if captured and self.progress.closed and not self.released:
            self._release()
            kill = lifecycle.Kill(None, None, self.launch.kill_timeout, "owner-drop")
            self._do(self.life.handle(kill, self._now))

    def pump(self) -> None:
        """Go on with bulk output: the leg has room again."""
        self.outlet.pump()


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
    Kind.ATTACH: Session._on_attach,  # noqa: SLF001
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
