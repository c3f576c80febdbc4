"""The pool: a small process that forks workers, and reaps and sweeps what they leave.

It is executed clean (`python -I -S`), imports the worker once, and then forks: a fork
of a small process with frozen objects takes 0.4 ms and costs what it touches. It must
never import zmq, asyncio, psutil or multiprocess.

It is a subreaper. Its known children are its workers; *any other direct child is an
orphan of a dead worker*, killed with everything below it. A worker is reported GONE
only when it is reaped and no orphan is left; or, after a while, as not proven to be.
Orphans that are left then are *stubborn*: they concern no worker that is lost later.

Losing the broker it goes on, as its workers do for their grace: the supervisor sends it
a leg to the next one over `lifeline`, and it gives each worker a leg over its control
pair.

Losing the supervisor (end of file on `lifeline`) ends it: each worker sees the end of
its own control pair and ends its tree; what remains is swept. It closes the control
pairs as well when the broker hangs: that one process looks at the lease page, instead
of every worker, is what lets hundreds of idle sessions cost nothing.
"""

import _socket
import gc
import importlib
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, NoReturn

from broker import cgroup, journal, lease, tree
from broker.opening import reset_signals
from broker.pipe import Leg, LegClosed, hand_over
from broker.wire import Kind, Message

END_TIMEOUT: Final = 6.0
"""Seconds that workers get to end their trees: more than they give themselves."""
PROOF_TIMEOUT: Final = 5.0
"""Seconds after which a lost worker is reported although orphans of it survive."""
NEIGHBOURS: Final = 8
"""Objects in a row that show that there are no more gaps of their size."""
EMPTY: Final = sys.getsizeof(b"")
"""Bytes of an object beside its content."""
SURVIVORS_PAUSE: Final = 1000
"""Milliseconds between walks for orphans that did not go in that time."""
LOT: Final = 64
"""Workers that a fresh broker is told of in one message."""
REPORTED: Final = 10.0
"""Seconds after which a broker has surely heard of a lost worker, and told of it."""
SWEEP_PAUSE: Final = 1
"""Milliseconds between walks while orphans are left (exits also trigger one)."""

Main = Callable[[int, int, cgroup.Cgroup | None, journal.Record, float], NoReturn]


class Loss(NamedTuple):
    """The end of a worker that is not reported yet.

    Attributes:
        since: when it was reaped.
        others: orphans that it did not leave, as they were stubborn before it ended.
    """

    since: float
    others: frozenset[int]


class Pool:
    """The zygote's loop: forks on request, reaps, sweeps, reports."""

    def __init__(
        self,
        leg: Leg,
        lifeline: Leg,
        stamp: lease.Page,
        main: Main,
        home: str,
        *,
        records: journal.Journal,
        grace: float,
    ) -> None:
        self.leg = leg
        self.lifeline = lifeline
        self.stamp = stamp
        self.main = main
        self.home = home
        self.records = records
        self.grace = grace
        self.workers: dict[int, tuple[int, _socket.socket]] = {}
        self.lost: dict[int, Loss] = {}
        self.condemned: dict[int, frozenset[int]] = {}
        """Pids, and who was stubborn before."""
        self.stubborn: frozenset[int] = frozenset()
        """Orphans that did not go in the time of the workers that left them."""
        self.unproven: set[int] = set()
        """Workers that were reported while something was left of them."""
        self.next_try = 0.0
        self.broken = -REPORTED
        """When the last worker was lost, and not retired; or a broker had to doubt."""
        self.broker_gone = False
        self.heard = 0.0
        """When the broker that is gone gave its last sign of life."""
        self.soft_limit = raise_file_limit()
        self.wake = wake_on_child()
        self.lease_check = time.monotonic() + lease.RENEWAL

    def run(self) -> None:
        """Serve until the supervisor is gone, then see every worker off."""
        while True:
            ready = self._wait()
            if self.leg.fileno() in ready:
                self._requests()
            if self.lifeline.fileno() in ready and not self._follow():
                break
            if self.wake in ready:
                os.read(self.wake, 4096)
            self._reap()
            self._sweep()
            self._check_lease(time.monotonic())
        self._end()

    def _wait(self) -> set[int]:
        """Wait for something to happen; return the descriptors that tell of it."""
        poller = select.poll()
        for fd in (self.lifeline.fileno(), self.wake):
            poller.register(fd, select.POLLIN)
        if not self.broker_gone:
            events = select.POLLIN | (select.POLLOUT if self.leg.queued else 0)
            poller.register(self.leg.fileno(), events)
        return {fd for fd, _ in poller.poll(self._timeout())}

    def _follow(self) -> bool:
        """Serve the next broker; False once the supervisor is gone."""
        try:
            for _, fds in self.lifeline.receive():
                while not self.broker_gone:  # it is dead: its last words are all here
                    self._requests()
                self.leg.close()
                self.leg = Leg(_socket.socket(fileno=fds[0]))
                self.broker_gone = False
                self.stamp.stamp(time.monotonic())  # the next one has yet to begin
                self._introduce()
        except LegClosed:
            return False
        return True

    def _introduce(self) -> None:
        """Join each worker to the broker, and tell that which workers there are."""
        controls = list(self.workers.values())
        parts = [controls[at : at + LOT] for at in range(0, len(controls), LOT)]
        for part in parts:
            legs = [_socket.socketpair(_socket.AF_UNIX) for _ in part]
            for (_, control), (_, theirs) in zip(part, legs, strict=True):
                hand_over(control, theirs)
                theirs.close()
            numbers = [worker for worker, _ in part]
            body = {"workers": numbers, "last": False, "whole": True}
            ours = tuple(leg.fileno() for leg, _ in legs)
            self.leg.send(Message(Kind.WORKERS, body=body), fds=ours)
            for leg, _ in legs:
                leg.close()
        whole = self.heard - self.broken > REPORTED
        if not whole:
            # Nor has the next one reason to trust, if this one does not live long.
            self.broken = time.monotonic()
        body = {"workers": [], "last": True, "whole": whole}
        self.leg.send(Message(Kind.WORKERS, body=body))

    def _timeout(self) -> int:
        if self.lost:
            return SWEEP_PAUSE
        if self.condemned or self.unproven:
            return SURVIVORS_PAUSE
        return max(0, int((self.lease_check - time.monotonic()) * 1000) + 1)

    def _check_lease(self, now: float) -> None:
        """End every worker when the broker has not stamped the page for a whole lease.

        A late check of our own (a stopped machine, a stopped pool) proves nothing: the
        page is looked at again one renewal later before anything is killed.
        """
        if now < self.lease_check:
            return
        late = now - self.lease_check > lease.RENEWAL
        self.lease_check = now + lease.RENEWAL
        if not (late or self.broker_gone) and self.stamp.age(now) > lease.DURATION:
            self.broken = now  # they end with 0, and that broker may never hear of it
            for _, control in self.workers.values():
                control.close()

    # -- forking ----------------------------------------------------------------

    def _requests(self) -> None:
        """Carry out what the broker asks, and notice when it is gone."""
        self.leg.flush()
        try:
            for message, fds in self.leg.receive():
                if message.kind is Kind.FORK:
                    self._fork_all(message.body["workers"], fds)
                elif message.kind is Kind.CONDEMN:
                    self._condemn(message.body["worker"])
        except LegClosed:
            self.broker_gone = True
            now = time.monotonic()
            self.heard = now - self.stamp.age(now)

    def _fork_all(self, workers: list[int], legs: tuple[int, ...]) -> None:
        """Fork a worker for each number and leg, one right after the other.

        What this process writes to between two forks is the first one's alone from
        then on: an idle worker has 0.57 MiB of its own, and 0.92 where a message is
        read before the next fork, which then takes 0.9 ms instead of 0.45.
        """
        for worker, leg in zip(workers, legs, strict=True):
            ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
            try:
                pid = os.fork()
            except OSError as error:
                ours.close()
                self._report(worker, error.errno or 0, proven=True)
            else:
                if pid == 0:
                    self._become_worker(worker, leg, theirs.fileno())
                self.workers[pid] = (worker, ours)
                # A broker that follows may not know that there was one of this number.
                self.unproven.discard(worker)
            theirs.close()
            os.close(leg)

    def _become_worker(self, worker: int, leg: int, control: int) -> NoReturn:
        """Run a worker in the forked copy; nothing of the pool's is kept open."""
        try:
            signal.set_wakeup_fd(-1)
            close_all_but(leg, control)
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.soft_limit, hard))
            home = self._enter_cgroup(worker)
            record = self.records.open(worker, home)
            self.main(leg, control, home, record, self.grace)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(70)

    def _condemn(self, worker: int) -> None:
        """Kill a worker that stands still; what it leaves is swept as ever.

        One that is traced by its own child cannot be reaped before that child is gone:
        its orphans are swept without waiting for it.
        """
        for pid, (number, _) in self.workers.items():
            if number == worker:
                tree.signal_child(pid, signal.SIGKILL)
                self.condemned[pid] = self.stubborn

    def _enter_cgroup(self, worker: int) -> cgroup.Cgroup | None:
        """Move this fresh worker into a cgroup of its own, where there can be one."""
        if self.home:
            try:
                return cgroup.Cgroup.enter_new(self.home, f"w{worker}")
            except OSError:  # the walks of /proc do without it
                return None  # not `suppress`: it lies on 6 shared pages more
        return None

    def _leave_cgroup(self, worker: int) -> None:
        """Kill what a dead worker left in its cgroup, and remove that when it is empty.

        The walks do the same; this also ends what forks faster than they can follow.
        """
        place = cgroup.Cgroup(f"{self.home}/w{worker}")
        if self.home and os.path.exists(place.path):
            with suppress(
                OSError
            ):  # not yet empty, or an old kernel: the sweep goes on
                place.kill()
                place.remove()

    # -- losing -----------------------------------------------------------------

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.stubborn -= {pid}
            if pid in self.workers:
                worker, control = self.workers.pop(pid)
                others = self.condemned.pop(pid, self.stubborn)
                control.close()
                self.lost[worker] = Loss(time.monotonic(), others)
                # With 0 ends who is retired, and who waited for a broker in vain.
                if status or self.broker_gone:
                    self.broken = self.lost[worker].since
                self._leave_cgroup(worker)

    def _sweep(self) -> None:
        """Kill what lost workers left, and report those of which nothing is left."""
        if not (self.lost or self.condemned or self.unproven):
            return
        spared = self.workers.keys() | self.stubborn
        if tree.Sweep(lambda: spared).step():
            for worker, loss in list(self.lost.items()):
                if self.stubborn <= loss.others:
                    self._see_off(worker)
                    del self.lost[worker]
                    self._report(worker, 0, proven=True)
            if not self.stubborn:
                for worker in self.unproven:
                    self._see_off(worker)
                self.unproven.clear()
        now = time.monotonic()
        if any(since + PROOF_TIMEOUT < now for since, _ in self.lost.values()):
            self._give_up(now)
        if self.stubborn and now > self.next_try:
            self.next_try = now + SURVIVORS_PAUSE / 1000
            tree.Sweep(self.workers.keys).step()

    def _give_up(self, now: float) -> None:
        """Report the workers whose time is over; what is left is stubborn.

        Some of it may be of a worker that was lost since. That one is reaped before it
        counts as stubborn, and is not proven gone before it is.
        """
        left = set(tree.children(os.getpid())) - self.workers.keys()
        self._reap()
        for worker, loss in list(self.lost.items()):
            if loss.since + PROOF_TIMEOUT < now:
                del self.lost[worker]
                self.unproven.add(worker)
                self._report(worker, 0, proven=False)
        self.stubborn |= left.intersection(tree.children(os.getpid()))

    def _see_off(self, worker: int) -> None:
        """Remove the cgroup and the record of a worker of which nothing is left."""
        self._leave_cgroup(worker)
        self.records.remove(worker)

    def _report(self, worker: int, errno: int, *, proven: bool) -> None:
        if not self.broker_gone:
            body = {"worker": worker, "errno": errno, "proven": proven}
            self.leg.send(Message(Kind.GONE, body=body))

    def _end(self) -> None:
        for _, control in self.workers.values():
            control.close()
        ends = time.monotonic() + END_TIMEOUT
        while self.workers and time.monotonic() < ends:
            self._wait_child()
        everything = tree.Sweep()
        ends = time.monotonic() + PROOF_TIMEOUT
        while not (gone := everything.step()) and time.monotonic() < ends:
            self._wait_child(SWEEP_PAUSE)
        if gone:
            self.records.clear()

    def _wait_child(self, milliseconds: int = 50) -> None:
        poller = select.poll()
        poller.register(self.wake, select.POLLIN)
        if poller.poll(milliseconds):
            os.read(self.wake, 4096)
        self._reap()


def wake_on_child() -> int:
    """Return a descriptor that becomes readable at each SIGCHLD."""
    wake, write = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return wake


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one; return what it was."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft


def close_all_but(*keep: int) -> None:
    """Close every descriptor above 2 that is not kept."""
    low = 3
    for fd in sorted(keep):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def leave_terminal() -> None:
    """Go into a session of our own: what is typed at a terminal is not for us."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def fill_holes() -> list[bytes]:
    """Return objects in the gaps between others; keep them.

    What a worker makes would land in these gaps, each on a page that is shared until
    then: 120 KiB a worker. Once new objects follow each other in memory, they are on
    fresh pages. A size for each of pymalloc's classes.
    """
    fillers = []
    for size in range(48, 513, 16):
        neighbours = at = 0
        while neighbours < NEIGHBOURS:
            fillers.append(bytes(size - EMPTY))
            neighbours = neighbours + 1 if id(fillers[-1]) == at + size else 0
            at = id(fillers[-1])
    return fillers


def main(
    leg: int,
    lifeline: int,
    page: int,
    *,
    target: str,
    home: str,
    directory: str,
    grace: float,
) -> NoReturn:
    """Be the pool on these inherited descriptors.

    Args:
        leg: to the broker.
        lifeline: to the supervisor.
        page: the lease page.
        target: `module:function`; called once, it returns what a worker runs.
        home: path of the cgroup above those of the workers; empty for none.
        directory: path of that of the workers' records.
        grace: seconds that a worker waits for another broker when one is lost.
    """
    for fd in (leg, lifeline, page):
        os.set_inheritable(fd, False)
    leave_terminal()
    reset_signals()
    tree.become_subreaper()
    module, name = target.split(":")
    function: Main = getattr(importlib.import_module(module), name)()
    stamp = lease.Page(page)
    records = journal.Journal(directory)
    _fillers = fill_holes()
    gc.freeze()  # a collection in a worker would otherwise touch, so copy, every page
    broker, supervisor = (Leg(_socket.socket(fileno=fd)) for fd in (leg, lifeline))
    ours = Pool(broker, supervisor, stamp, function, home, records=records, grace=grace)
    ours.run()
    os._exit(0)
