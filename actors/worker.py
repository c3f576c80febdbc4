"""The worker: one selector loop that owns one child at a time.

The pool forks it with two sockets: its *leg* to the broker, over which all commands and
all output go, and its *control pair* to the pool. Each is also a lifeline. Whatever is
lost, the worker ends its child's whole tree and then itself:

================  ==========================================
lost              noticed by
================  ==========================================
broker            end of file on the leg
pool, supervisor  end of file on the control pair
broker hangs      the pool, which watches the lease page for all, closes the pair
================  ==========================================

Only the end of the leg may be no loss yet: with a *grace* the worker is then *adrift*.
It goes on with its child, of what it says nothing arrives. If a fresh leg comes over
the control pair within the grace, it tells the broker there what session it has.

Everything the child starts and abandons becomes a child of this process (it is a
subreaper), so that "no children are left" from the kernel proves that the tree is gone.
Nothing else here reaps.
"""

import _socket
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain, islice
from typing import Any, Final, NoReturn

from actors import process
from actors.buffer import Cursor
from actors.express import Express
from actors.outlet import Ask
from actors.session import Session, read_launch
from broker import cgroup, errors, journal, tree
from broker.pipe import Leg, LegClosed, message_in, taken_over
from broker.wire import BULK, Kind, Message

CONGESTED: Final = 256 * 1024
"""Bytes queued on the leg from which on bulk output waits in the log."""
LONGEST_WAIT: Final = 3600.0
"""Seconds of one wait for events: poll(2) takes 24 days at most."""
LATE: Final = 0.005
"""Seconds for which the answer to a START that captures waits for something to follow.

A short command has ended by then: one message wakes broker and client, instead of two.
"""
ANSWERS: Final = 64
"""Answers that a session remembers, for those that get lost with a broker.

A client has `writing.MOST_UNDER_WAY` pieces of input under way at most."""
END_TIMEOUT: Final = 5.0
"""Seconds to end the tree after a lifeline broke; the pool's sweep is behind it."""


Watched = tuple[tuple[int, ...], int | None]
"""Descriptors of a session to read, and the one to write."""
Wanted = tuple[bool, Watched]
"""Whether the leg is to be written, and what is watched of the session."""
NOTHING: Final[Watched] = (), None


class Worker:
    """The actor: its leg, its session, its clock.

    Args:
        leg: to the broker.
        control: to the pool.
        home: the cgroup that this process lives in, if it has one of its own.
        record: what it keeps on file of its session.
        grace: seconds that it goes on without a broker.
    """

    def __init__(
        self,
        leg: Leg,
        control: int,
        home: cgroup.Cgroup | None,
        record: journal.Record,
        grace: float,
    ) -> None:
        self.leg = leg
        self.control = control
        self.home = home
        self.record = record
        self.grace = grace
        self.retired = False
        """Whether the broker has said that it will close the leg."""
        self.adrift: float | None = None
        """When the grace is over, while there is no broker."""
        self.session: Session | None = None
        self.poller = select.poll()
        self.watching: dict[int, int] = {}
        self._wanted: Wanted | None = None
        self._due: float | None = None
        self._late: Message | None = None
        self.express: Express | None = None
        self._leg_fd = leg.fileno()
        self._stale = True
        self._kept_back = False
        self.wake, self.wake_write = os.pipe()
        for fd in (self.wake, self.wake_write):
            os.set_blocking(fd, False)
        # SIGCHLD has the pool's handler. Setting it again would cost each worker
        # 100 KiB: the enum code that it runs lies on pages that are shared until then.
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)

    # -- the leg, as the session sees it ----------------------------------------

    def send(self, message: Message) -> None:
        """Send over the leg; a reader's own messages keep their order."""
        in_order = message.kind in BULK or (
            message.request and message.kind in (Kind.EXITED, Kind.CLOSED)
        )
        late, self._late = self._late, None
        if late is not None:
            self.leg.put(late, urgent=True)
        self.leg.put(message, urgent=not in_order)

    def send_now(self, message: Message) -> None:
        """Send at once what nothing else is to go with, or before."""
        if self.leg.queued or self._late is not None:
            self.send(message)
        else:
            self.leg.send(message)

    def room(self) -> bool:
        """Return whether the leg takes more bulk output now; if not, a turn follows."""
        if self.leg.queued >= CONGESTED:
            self.leg.flush()
            if self.leg.queued >= CONGESTED:
                self._kept_back = True
                return False
        return True

    # -- the loop ---------------------------------------------------------------

    def run(self) -> NoReturn:
        """Serve until a lifeline breaks, then end the tree and this process."""
        try:
            self.settle()
            while True:
                self.turn()
        except LegClosed:
            self._end()

    def turn(self) -> None:
        """Wait for something to happen, and follow up on all that has.

        Raises:
            LegClosed: a lifeline broke.
        """
        timeout = self._timeout()
        ready = self.poller.poll(timeout)
        # What is due may not wait until less goes the short way.
        self._stale = self._stale or not ready or timeout == 0
        for fd, _ in ready:
            if fd == self._leg_fd:
                self._on_leg()
            elif self._stale or not self._express_output(fd):
                self._stale = True
                self._on_ready(fd)
        if self._stale or self.leg.queued:
            self.settle()

    def _express_output(self, fd: int) -> bool:
        return self.express is not None and self.express.output(fd)

    def _express_input(self, frame: memoryview) -> bool:
        return self.express is not None and self.express.input(frame)

    def _on_ready(self, fd: int) -> None:
        if fd == self.wake:
            os.read(self.wake, 4096)
            self._reap()
        elif fd == self.control:
            self._on_control()
        elif self.session is not None:
            self.session.ready(fd, time.monotonic())

    def settle(self) -> None:
        """Follow up on a turn in which more happened than what goes the short way."""
        if self._kept_back and self.room():
            self._go_on()
        self._on_time()
        self._release()
        if self.leg.queued:  # the broker is woken once for all that was gathered
            self.leg.flush()
        self._watch()
        if self.express is not None:
            self.express.refresh()
        self._stale = self._kept_back

    def _go_on(self) -> None:
        """Send what was kept back: one leg full, then commands have their turn."""
        self._kept_back = False
        if self.session is not None:
            self.session.go_on(time.monotonic())

    def _watch(self) -> None:
        session = self.session
        # Also with an empty queue: a broker that reads fast takes all in one flush.
        to_send = self._kept_back or self.leg.queued > 0
        wanted = to_send, session.watched() if session else NOTHING
        if wanted == self._wanted:
            return
        self._wanted = wanted
        leg_events = select.POLLIN | (select.POLLOUT if wanted[0] else 0)
        events = {self.wake: select.POLLIN, self.control: select.POLLIN}
        if self.adrift is None:
            events[self.leg.fileno()] = leg_events
        readable, writable = wanted[1]
        events.update(dict.fromkeys(readable, select.POLLIN))
        if writable is not None:
            events[writable] = select.POLLOUT
        for fd in self.watching.keys() - events.keys():
            self.poller.unregister(fd)
        for fd, wish in events.items():
            self.poller.register(fd, wish)
        self.watching = events

    def _timeout(self) -> int | None:
        """Return milliseconds until something is due, rounded up: at 0 it is.

        None: nothing will be.
        """
        if self._due is None:
            return None
        wait = min(self._due - time.monotonic(), LONGEST_WAIT)
        return 0 if wait <= 0 else int(wait * 1000) + 1

    def _on_leg(self) -> None:
        try:
            self._take_frames()
        except LegClosed:
            if self.retired or not self.grace:
                raise
            self._lose_leg()

    def _lose_leg(self) -> None:
        """Go on without a broker; whoever read here says so again at the next one."""
        self.leg.close()
        self.adrift = time.monotonic() + self.grace
        self._late = self._wanted = None
        self._leg_fd = -1
        self._stale = True
        self._kept_back = False
        if self.session is not None:
            self.session.cut_off()

    def _on_control(self) -> None:
        """Take a leg to another broker, and say what session there is.

        Raises:
            LegClosed: the pool is gone, or wants this worker to end.
        """
        sock = taken_over(self.control)
        if sock is None:
            raise LegClosed
        while self.adrift is None:  # the old broker is dead: its last words are here
            self._on_leg()
        self.leg, self.adrift, self._wanted = Leg(sock), None, None
        self._leg_fd = self.leg.fileno()
        if self.session is not None:
            self.leg.put(self.session.registration(), urgent=True)
        else:
            self.leg.put(Message(Kind.IDLE, body={"stamps": []}), urgent=True)

    def _take_frames(self) -> None:
        for frame, fds in self._frames():
            if not self._stale and not fds and self._express_input(frame):
                continue
            self._stale = True  # what may go the short way is not known any more
            self._command(message_in(frame), fds)
            for fd in fds:
                os.close(fd)

    def _frames(self) -> Iterator[tuple[memoryview, tuple[int, ...]]]:
        """Read what came; a START may bring more than our own limit has numbers for."""
        frames = self.leg.frames()
        if self.session is not None:
            return frames
        with process.any_number():
            first = list(islice(frames, 1))
        return chain(first, frames)

    def _on_time(self) -> None:
        """Let what is due happen, and find out when that is the next time."""
        session = self.session
        if self.adrift is not None and self.adrift <= time.monotonic():
            raise LegClosed
        if session is None:
            self._due = self.adrift
            return
        self._due = session.next_deadline()
        if self._due is not None and self._due <= time.monotonic():
            session.tick(time.monotonic())
            self._due = session.next_deadline()
        if self._late is not None:
            self._answer_late(session)
        if self.adrift is not None:
            self._due = min(self._due or self.adrift, self.adrift)

    def _answer_late(self, session: Session) -> None:
        """Send the answer to a START that is held back, if that was long enough."""
        ends = session.execed + LATE
        if ends <= time.monotonic():
            late, self._late = self._late, None
            assert late is not None
            self.send(late)
        else:
            self._due = ends if self._due is None else min(self._due, ends)

    # -- commands ---------------------------------------------------------------

    def _command(self, message: Message, fds: tuple[int, ...]) -> None:
        session = self.session
        if message.kind is Kind.START:
            with process.any_number() if fds else nullcontext():
                self._start(message, fds)
        elif message.kind is Kind.RETIRE:
            self.retired = True
        elif session is not None and session.number == message.session:
            session.command(message, time.monotonic())
        elif message.request and message.kind is not Kind.CREDIT:
            self._refuse(message, errors.SessionNotFound())

    def _refuse(self, message: Message, error: errors.EngineError) -> None:
        code, values = errors.encode(error)
        self.send(message.reply(Kind.ERROR, {"code": code, "values": values}))

    def _start(self, message: Message, fds: tuple[int, ...]) -> None:
        ask = Ask(message.client, message.request)
        try:
            launch = read_launch(message)
            session = Session(
                message.session,
                message.epoch,
                launch,
                self,
                self.home,
                memory=ANSWERS if self.grace else 0,
            )
            self.record.begin(session.number, launch.mark)
            session.start(time.monotonic, fds)
        except errors.EngineError as error:
            self.record.clear()
            self._refuse(message, error)  # which says that this worker is idle, too
            return
        self.record.born(session.number, launch.mark, session.process.pid)
        self.session = session
        self.express = Express(session, self.send_now)
        if launch.paused:
            session.pause(ask.client, paused=True)
        session.memo = message.body["memo"]
        session.releases_itself = message.body["release"]
        reader = message.body["reader"]
        if reader is not None:
            first = Ask(ask.client, reader)
            session.outlet.attach(first, Cursor(0, 0), message.body, capture=True)
        body = {
            "pid": session.process.pid,
            "started": session.started,
            "stdin": session.process.stdin is not None,
        }
        reply = message.reply(Kind.REPLY, body)
        if session.releases_itself:
            self._late = reply
        else:
            self.send(reply)

    def _release(self) -> None:
        """Go idle once the session is released and its tree is proven gone."""
        session = self.session
        if session is not None and session.over:
            session.finish()
            self.record.clear()
            self.session = self.express = None
            body = {"stamps": session.stamps}
            idle = Message(Kind.IDLE, 0, 0, session.number, session.epoch, 0.0, body)
            self.send(idle)

    # -- reaping ----------------------------------------------------------------

    def _reap(self) -> None:
        session = self.session
        now = time.monotonic()
        found, empty = reaped()
        if session is None:
            return
        for pid, status, usage in found:
            session.on_reaped(pid, status, usage, now)
        session.on_reaped_all(now, empty=empty)

    def close(self) -> None:
        """Let go of everything; for one whose process goes on."""
        signal.set_wakeup_fd(-1)
        if self.session is not None:
            self.session.finish()
        self.record.close()
        self.leg.close()
        for fd in (self.control, self.wake, self.wake_write):
            os.close(fd)

    def _end(self) -> NoReturn:
        if self.session is not None and end_tree(END_TIMEOUT):
            self.record.clear()
        os._exit(0)


def reaped() -> tuple[list[tuple[int, int, Any]], bool]:
    """Reap every child that has ended: pid, wait status, resource usage.

    One that called PTRACE_TRACEME made this process its tracer, and stops for it at
    every signal and exec: it is told to go on.

    The second value tells whether this process has no child any more: the kernel's
    answer is the proof.
    """
    found: list[tuple[int, int, Any]] = []
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return found, True
        if pid == 0:
            return found, False
        if os.WIFSTOPPED(status):
            tree.detach(pid, os.WSTOPSIG(status))
        else:
            found.append((pid, status, usage))


def end_tree(timeout: float) -> bool:
    """Kill and reap everything below this process; return whether all is gone."""
    sweep = tree.Sweep()
    ends = time.monotonic() + timeout
    while not reaped()[1]:
        sweep.step()
        if time.monotonic() >= ends:
            return False
        select.poll().poll(1)  # victims need a moment to exit
    return True


def main(
    leg: int,
    control: int,
    home: cgroup.Cgroup | None,
    record: journal.Record,
    grace: float,
) -> NoReturn:
    """Be a worker; called by the pool right after its fork.

    Args:
        leg: to the broker.
        control: to the pool.
        home: the cgroup that this process lives in, if it has one of its own.
        record: what it keeps on file of its session.
        grace: seconds that it goes on without a broker.
    """
    tree.become_subreaper()
    Worker(Leg(_socket.socket(fileno=leg)), control, home, record, grace).run()
