"""The session: one child with its log, its input, its readers and its end.

It joins `process` (system calls), `lifecycle` (rules), `buffer` (the log), `drain` (who
fills it), `outlet` (its readers), `awaited` (who waits for a pattern, port or file),
`stdin` (its writers), `budget` (what it may use) and `ending` (the tree's end), and
answers the commands that a client addresses to it. The worker gives it readiness,
reaped processes and the time; it gives messages.
"""

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from actors import lifecycle, observe, process, terminal
from actors.answers import Answers
from actors.arena import Arena
from actors.awaited import Awaited
from actors.budget import NOTHING, Budget, Over
from actors.buffer import Log
from actors.drain import Drain
from actors.ending import Ending, exit_facts, leftovers
from actors.facts import ExitStatus, Stats
from actors.holds import Hold
from actors.launch import Launch
from actors.outlet import INLINE, Ask, Outlet, Progress, Reader
from actors.probe import Look
from actors.settings import TtySize
from actors.stdin import Stdin
from actors.usage import measure
from broker import cgroup, errors, tree
from broker.wire import MAX_IDS, STREAMS, Kind, Message, Payload, pack

EVICTED: Final = b"[creche: evicted to make room for another session]\n"
"""The last line in the log of an evicted session."""
GONE: Final = errors.SessionNotFound()
"""Why what is still asked of a released session is refused."""
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
        *,
        memory: int = 0,
    ) -> None:
        self.answers = Answers(memory)
        self.memo = b""
        self.ending = Ending(home)
        self.number = number
        self.epoch = epoch
        self.launch = launch
        self.leg = leg
        self.arena = Arena(launch.retention.size)
        self.log = Log(launch.retention.kind, launch.retention.size, self.arena)
        self.process: process.Process
        self.life: lifecycle.Lifecycle
        self.budget: Budget
        self.drain: Drain
        self.stdin: Stdin
        self.progress = Progress(set())
        self.outlet = Outlet(self.log, self.progress, launch, self)
        self.awaited = Awaited(
            self.log,
            self.progress,
            self,
            Look(launch.cwd),
            blocking=self.outlet.blocking,
        )
        self._before: observe.Sight | None = None
        self.released = False
        self.releases_itself = False
        self.pausers: set[int] = set()
        self._exit: dict[str, Any] = {}
        self._now = 0.0
        self.last_used = 0.0
        self.spoke: float | None = None

    # -- start ------------------------------------------------------------------

    def start(self, clock: Callable[[], float], fds: tuple[int, ...]) -> None:
        """Start the child, which gets the descriptors under the numbers it is to have.

        Raises:
            SpawnFailed: nothing is left of the attempt.
            InvalidRequest: there are more or fewer than it is to have.
        """
        if len(fds) != len(self.launch.pass_fds):
            why = f"{len(fds)} came of {len(self.launch.pass_fds)}"
            raise errors.InvalidRequest("pass_fds", why)
        self.ending.start()
        self.started = clock()
        if self.launch.observe:
            self._before = observe.Sight(self.launch.observe)
        self.hold = Hold(self.launch.scratch)
        try:
            self.process = _started(self.launch, fds)
        except BaseException:
            self.hold.close()
            raise
        self.execed = self._now = self.last_used = clock()
        self.budget = Budget(self.launch.limits, self.execed)
        self.progress.streams = set(self.process.outputs)
        streams = frozenset(self.progress.streams)
        self.life = lifecycle.Lifecycle(_terms(self.launch), streams, self.execed)
        self.drain = Drain(self.process, self.log, self.progress, self.budget, self)
        self.stdin = Stdin(self.process, self.launch, self.progress, self)
        self.stdin.start(self._now)

    @property
    def state(self) -> str:
        """Return `running`, `exited` or `closed`."""
        return self.life.state.value

    @property
    def stamps(self) -> list[float | None]:
        """When it came, the program began, it first wrote, and its end was seen."""
        return [self.started, self.execed, self.spoke, self._exit.get("ended")]

    @property
    def over(self) -> bool:
        """Return whether it was released and its tree is proven gone."""
        return self.released and self.life.empty

    # -- what the worker watches ------------------------------------------------

    def watched(self) -> tuple[tuple[int, ...], int | None]:
        """Return the descriptors to read, and the one to write if there is any."""
        return self.drain.wanted(), self.stdin.wanted()

    def ready(self, fd: int, now: float) -> None:
        """Handle readiness (or the end) of one of the watched descriptors."""
        self._now = now
        if fd == self.process.stdin:
            self.stdin.pour(now)
            return
        if self.drain.ready(fd):  # else its end was read earlier in this turn
            self._serve()

    def only_reader(self) -> Reader | None:
        """Return the one reader whom a little more output concerns, and nobody else.

        None: somebody else waits for it, or something follows from it.
        """
        simple = (
            self.spoke is not None
            and not self._exit
            and not self.awaited.waits
            and self.launch.idle_timeout is None
            and self.launch.chunk >= INLINE
            and not self.budget.counts_output
            and self.drain.turn <= INLINE
            and self.log.address is None
        )
        return self.outlet.only_reader() if simple else None

    def next_deadline(self) -> float | None:
        """Return when `tick` is wanted, None while nothing is due."""
        # Asked twice in each turn of the worker: 0.8 us while nothing is due.
        due = [self.life.next_deadline(), self.stdin.next_deadline()]
        if self.outlet.pending:
            due.append(self.outlet.next_deadline())
        if not self.life.empty:
            due.append(self.budget.next_sample())
        if self.awaited.waits:
            due.append(self.awaited.next_deadline())
        return min([end for end in due if end is not None], default=None)

    def tick(self, now: float) -> None:
        """Let what is due happen."""
        self._now = now
        self.stdin.tick(now)
        self.happened(lifecycle.Tick())
        self._look_at_tree()
        self._serve()

    def grew(self) -> None:
        """Tell the readers that there is more in the log."""
        if self.spoke is None:
            self.spoke = self._now
        self.outlet.on_output(self._now)

    # -- budgets ----------------------------------------------------------------

    def _look_at_tree(self) -> None:
        due = self.budget.next_sample()
        if due is not None and due <= self._now and not self.life.empty:
            try:
                sample = measure()
            except OSError:  # no descriptor is to be had: look again later
                sample = NOTHING
            self._overrun(self.budget.sampled(sample, self._now))

    def look_at_output(self) -> None:
        """Compare the output with its budget."""
        self._overrun(self.budget.written(self.log.end))

    def _overrun(self, over: list[Over]) -> None:
        for name, action in over:
            if action == "notify" or self.life.state is not RUNNING:
                body = {"limit": name}  # no status will tell it
                notice = Message(Kind.NOTICE, 0, 0, self.number, self.epoch, body=body)
                self.leg.send(notice)
            if action == "terminate":
                self._end_for(name)

    def _end_for(self, name: str) -> None:
        """Terminate the tree because it used up a budget."""
        if self.life.state is RUNNING and name == "output":
            # Read on, and a child that ignores SIGTERM floods the log until its kill.
            self.drain.cut_off = True
        grace, timeout = self.launch.terminate_grace, self.launch.kill_timeout
        kill = lifecycle.Kill(None, grace, timeout, "limit")
        self.happened(kill)

    # -- the end ----------------------------------------------------------------

    def on_reaped(self, pid: int, wait_status: int, usage: Any, now: float) -> None:
        """Take the status of a process of the tree that the worker reaped."""
        self._now = now
        self.ending.reaped(usage)
        if pid == self.process.pid and not self._exit:
            self._exit = exit_facts(wait_status, usage, tree_peak=self.budget.peak)
            self._exit["ended"] = now

    def on_reaped_all(self, now: float, *, empty: bool) -> None:
        """Follow up on a round of reaping; `empty`: the kernel says nothing is left."""
        self._now = now
        if not empty:
            self.happened(lifecycle.Reaped())
        if self._exit and self.progress.status is None:
            self._leader_event(empty=empty)
        elif empty and not self.life.empty and self._exit:
            self.happened(lifecycle.TreeEmpty())
        self._serve()

    def _leader_event(self, *, empty: bool) -> None:
        """Drain what the pipes hold at this moment, then let the rules go on."""
        self.process.on_exit()
        self.drain.exited()
        self._exit["leftovers"] = () if empty else leftovers()
        self.drain.catch_up(alone=empty)
        event = lifecycle.LeaderExited(
            self._exit["signal"] or 0,
            empty,
            oom=self._exit["signal"] == SIGKILL and self.ending.oom_killed(),
            spared=self.ending.spared(self.process.pid),
        )
        self.happened(event)
        self.look_at_output()
        self.stdin.close()

    def happened(self, event: lifecycle.Event) -> None:
        """Follow what the rules say to an event."""
        for action in self.life.handle(event, self._now):
            match action:
                case lifecycle.SignalGroup(number):
                    with suppress(PermissionError):  # the kill names who survives it
                        tree.send_group(self.process.pid, number)
                case lifecycle.Sweep():
                    self.ending.sweep()
                case lifecycle.Abandon():
                    self.drain.abandon()
                case lifecycle.Report(cause):
                    self._report(cause)
                case lifecycle.Close():
                    self.progress.closed = True
                    self._note_changes()
                    self._push(Kind.CLOSED)
                case lifecycle.Answer(key, proven):
                    receipt = self.ending.receipt(proven=proven)
                    self._answer(key, {"receipt": receipt})

    def _note_changes(self) -> None:
        if self._before is not None:
            after = observe.Sight(self.launch.observe)
            self.progress.changes = pack(observe.changes(self._before, after))

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

    # -- another broker ---------------------------------------------------------

    def cut_off(self) -> None:
        """Go on although there is no broker now; another one may come."""
        self.answers.cut_off(self.stdin.writers)
        self.outlet.cut_off()

    def registration(self) -> Message:
        """Return what another broker has to know."""
        status = self.progress.status
        clients = self.outlet.clients | self.awaited.clients | self.pausers
        body = {
            "pid": self.process.pid,
            "started": self.started,
            "stdin": self.process.stdin is not None,
            "status": status.to_wire() if status else None,
            "closed": self.progress.closed,
            "released": self.released,
            "clients": sorted(clients)[:MAX_IDS],
            "used": self.last_used,
        }
        ids = 0, 0, self.number, self.epoch
        return Message(Kind.REGISTER, *ids, 0.0, body, self.memo)

    def finish(self) -> None:
        """Close everything, and refuse what is still asked; the tree is gone."""
        self.outlet.refuse_all(GONE)
        self.awaited.refuse(GONE)
        self.stdin.close()
        self.process.close()
        self.hold.close()
        self.arena.close()

    # -- commands ---------------------------------------------------------------

    def command(self, message: Message, now: float) -> None:
        """Carry out one command; it is answered now or later, exactly once."""
        self._now = now
        ask = Ask(message.client, message.request)
        if ask in self.answers.known and ask.request:
            self._answer_again(ask)
            return
        if message.kind in _USES:
            self.last_used = now
        try:
            _COMMANDS[message.kind](self, ask, message)
        except errors.EngineError as error:
            self._error(ask, error)
        if message.kind is not Kind.WRITE:  # input alone gives no reader anything
            self._serve()

    def say(
        self, kind: Kind, ask: Ask, body: dict[str, Any], payload: Payload | None = None
    ) -> None:
        """Send a message to who asked; nothing when no answer is wanted."""
        if ask.request:
            message = Message(kind, *ask, self.number, self.epoch, 0.0, body, payload)
            self.leg.send(message)
            # What a broker asks itself has no number that the next one would know.
            if ask.client and payload is None and kind in (Kind.REPLY, Kind.ERROR):
                self.answers.note(ask, kind, body)

    def _answer_again(self, ask: Ask) -> None:
        """Give the answer that a lost broker had, unless it is still to come."""
        answer = self.answers.known[ask]
        if answer is not None:
            self.say(answer[0], ask, answer[1])

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
        payload, at = bytes(message.payload or b""), message.body["at"]
        self.stdin.write(ask, payload, at, self._now)

    def _on_close_stdin(self, ask: Ask, _: Message) -> None:
        self.stdin.end(self._now)
        self._answer(ask, {})

    def _on_poll(self, ask: Ask, message: Message) -> None:
        self.outlet.poll(ask, message.body, self._now)

    def _on_read(self, ask: Ask, message: Message) -> None:
        self.outlet.read(ask, message.body, self._now)

    def _on_open(self, ask: Ask, message: Message) -> None:
        self.outlet.open(ask, message.body)

    def _on_resume(self, ask: Ask, message: Message) -> None:
        self.outlet.resume(ask, message.body)

    def _on_memo(self, _: Ask, message: Message) -> None:
        self.memo = message.body["memo"]

    def _on_credit(self, ask: Ask, message: Message) -> None:
        self.outlet.credit(ask, message.body)

    def _on_stop(self, ask: Ask, message: Message) -> None:
        target = Ask(ask.client, message.body["target"])
        self.outlet.stop(target)
        self.awaited.stop(target)
        if not self.outlet.readers:  # of a run: nobody is there to hear of its end
            self._tell_end()
        if target.request == 0:  # it is gone, and nobody else would let the clock go
            self.pause(ask.client, paused=False)
            self.stdin.refused.discard(ask.client)
        self._answer(ask, {})

    def _on_expect(self, ask: Ask, message: Message) -> None:
        self.awaited.expect(ask, message.body, self._now)

    def _on_ready(self, ask: Ask, message: Message) -> None:
        self.awaited.ready(ask, message.body, self._now)

    def _on_append(self, ask: Ask, message: Message) -> None:
        stream = self._diagnostics()
        line = bytes(message.payload or b"")
        line += b"" if line.endswith(b"\n") else b"\n"
        self.drain.append(stream, line)
        self._answer(ask, {})

    def _diagnostics(self) -> str:
        """Return the stream to which a host's lines are added."""
        launch = self.launch
        own = launch.stderr == "pipe" and launch.tty is None
        if not own and launch.stdout == "null":
            raise errors.InvalidRequest("text", "has no place: no output is piped")
        stream = "stderr" if own else "stdout"
        if stream not in self.progress.streams:
            raise errors.InvalidRequest("text", f"comes too late: {stream} has ended")
        return stream

    def _on_kill(self, ask: Ask, message: Message) -> None:
        body = message.body
        if body["release"]:
            self._tell_end()
            self._release()
        if self.life.empty:
            self._answer(ask, {"receipt": [0, 0, []]})
            return
        if body["cause"] == "evicted" and not self._exit:
            self._mark_evicted()
        self.ending.begin()
        kill = lifecycle.Kill(ask, body["grace"], body["timeout"], body["cause"])
        self.happened(kill)

    def _mark_evicted(self) -> None:
        """Leave a line in the log that says why the child ends."""
        for stream in ("stderr", "stdout"):
            if stream in self.progress.streams:
                self.drain.append(stream, EVICTED)
                return

    def _release(self) -> None:
        self.released = True
        self.outlet.refuse_polls(GONE)
        self.awaited.refuse(GONE)
        self.stdin.close()

    def _on_signal(self, ask: Ask, message: Message) -> None:
        body = message.body
        if self._exit:
            self._answer(ask, {"sent": False})
            return
        if body["interrupt"]:
            self.happened(lifecycle.Interrupted())
        try:
            sent = self._send_signal(body)
        except PermissionError as error:
            raise errors.EngineError("the child runs as another user") from error
        self._answer(ask, {"sent": sent})

    def _send_signal(self, body: Mapping[str, Any]) -> bool:
        if body["interrupt"]:
            self.stdin.interrupt()
            return self.process.interrupt()
        send = tree.send_group if body["group"] else tree.signal_child
        return send(self.process.pid, body["number"])

    def _on_resize(self, ask: Ask, message: Message) -> None:
        self.process.resize(TtySize(**message.body))
        self._answer(ask, {})

    def _on_snapshot(self, ask: Ask, _: Message) -> None:
        launch, status = self.launch, self.progress.status
        size = self.process.size
        dropped = sum(self.log.stats(s).dropped for s in STREAMS)
        document = {
            "id": self.number,
            "scope": launch.scope,
            "argv": list(launch.argv),
            "cwd": launch.cwd,
            "pid": self.process.pid,
            "tty": None if size is None else size.to_wire(),
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

    def _on_stats(self, ask: Ask, _: Message) -> None:
        launch, log = self.launch, self.log
        try:
            sample = NOTHING if self.life.empty else measure()
        except OSError as error:
            raise errors.EngineError(f"the tree cannot be read: {error}") from error
        self.budget.note(sample)
        apart = launch.stderr == "pipe" and launch.tty is None
        stats = Stats(
            stdout=log.stats("stdout"),
            stderr=log.stats("stderr") if apart else None,
            cpu_time=self.ending.cpu_time + sample.cpu_time,
            memory=sample.memory,
            processes=sample.processes,
        )
        self._answer(ask, stats.to_wire())

    def _on_clock(self, ask: Ask, message: Message) -> None:
        self.pause(ask.client, paused=message.body["paused"])
        self._answer(ask, {})

    def pause(self, client: int, *, paused: bool) -> None:
        """Stop the clock for a client, or let it go on once no client wants it so."""
        (self.pausers.add if paused else self.pausers.discard)(client)
        paused = bool(self.pausers)
        self.outlet.pause(self._now, paused=paused)
        self.awaited.pause(self._now, paused=paused)
        self.happened(lifecycle.Paused(paused))

    def _on_attach(self, ask: Ask, message: Message) -> None:
        """Answer a new owner, who has no capture that tells of the end."""
        self._tell_end()
        self._on_visit(ask, message)

    def _tell_end(self) -> None:
        """Tell the broker of the end after all, as the capture of a run does not.

        Somebody else wants to hear of it now, or that capture is gone, and whoever
        visits the session is still to be told.
        """
        if self.releases_itself and not self.released:
            self.releases_itself = False
            if self.progress.status is not None:
                self._push(Kind.EXITED)
            if self.progress.closed:
                self._push(Kind.CLOSED)

    def _on_visit(self, ask: Ask, _: Message) -> None:
        """Tell a new owner, or a visitor, what the first one knew from its spawn."""
        launch, status = self.launch, self.progress.status
        there = self.progress.streams | self.progress.ends.keys()
        document = {
            "argv": list(launch.argv),
            "tty": launch.tty is not None,
            "streams": [stream for stream in STREAMS if stream in there],
            "retention": launch.retention.to_wire(),
            "metadata": dict(launch.metadata),
            "status": status.to_wire() if status else None,
        }
        body = {"pid": self.process.pid, "started": self.started}
        self._answer(ask, body, pack(document))

    def _serve(self) -> None:
        """Give the readers what they are due, and read on if that made room."""
        self._give()
        while self.drain.held and self.drain.resume():  # which may be held again
            self._give()
        captured = self.releases_itself and not self.outlet.readers
        if captured and self.progress.closed and not self.released:
            self._release()
            if not self.life.empty:
                timeout = self.launch.kill_timeout
                self.happened(lifecycle.Kill(None, None, timeout, "owner-drop"))

    def _give(self) -> None:
        if self.awaited.waits:
            self.awaited.serve(self._now, held=self.drain.held)
        self.outlet.serve(self._now, held=self.drain.held)

    def go_on(self, now: float) -> None:
        """Go on with bulk output: the leg has room again."""
        self._now = now
        self._serve()


def _started(launch: Launch, fds: tuple[int, ...]) -> process.Process:
    if launch.tty is None:
        return process.start(launch, fds)
    return terminal.start(launch, launch.tty, fds)


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


def read_launch(message: Message) -> Launch:
    """Return the launch in a START message's payload.

    Raises:
        ProtocolError: the payload is no document.
        InvalidRequest: it is not a complete launch.
    """
    return Launch.from_wire(message.payload or b"")


RUNNING: Final = lifecycle.State.RUNNING
SIGKILL: Final = lifecycle.SIGKILL

Command = Callable[[Session, Ask, Message], None]

_COMMANDS: Final[dict[Kind, Command]] = {
    Kind.ATTACH: Session._on_attach,  # noqa: SLF001
    Kind.VISIT: Session._on_visit,  # noqa: SLF001
    Kind.WRITE: Session._on_write,  # noqa: SLF001 - the table names the class's own cells
    Kind.CLOSE_STDIN: Session._on_close_stdin,  # noqa: SLF001
    Kind.POLL: Session._on_poll,  # noqa: SLF001
    Kind.READ: Session._on_read,  # noqa: SLF001
    Kind.OPEN: Session._on_open,  # noqa: SLF001
    Kind.RESUME: Session._on_resume,  # noqa: SLF001
    Kind.MEMO: Session._on_memo,  # noqa: SLF001
    Kind.CREDIT: Session._on_credit,  # noqa: SLF001
    Kind.STOP: Session._on_stop,  # noqa: SLF001
    Kind.KILL: Session._on_kill,  # noqa: SLF001
    Kind.SIGNAL: Session._on_signal,  # noqa: SLF001
    Kind.SNAPSHOT: Session._on_snapshot,  # noqa: SLF001
    Kind.STATS: Session._on_stats,  # noqa: SLF001
    Kind.CLOCK: Session._on_clock,  # noqa: SLF001
    Kind.RESIZE: Session._on_resize,  # noqa: SLF001
    Kind.EXPECT: Session._on_expect,  # noqa: SLF001
    Kind.READY: Session._on_ready,  # noqa: SLF001
    Kind.APPEND: Session._on_append,  # noqa: SLF001
}

_USES: Final = frozenset({Kind.WRITE, Kind.POLL, Kind.SIGNAL, Kind.RESIZE})
