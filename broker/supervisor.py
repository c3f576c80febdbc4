"""The supervisor: starts the pool and the broker, watches both, sees everything off.

It owns the runtime directory, its lock and the listening sockets, so that they survive
whatever happens to the broker. It is single-threaded and the outermost subreaper: what
a dead pool leaves behind lands here and is swept.

=====================  ============================================================
lost                   what follows
=====================  ============================================================
pool                   its workers and their trees are swept, then the broker is told
                       (POOL_GONE), and given a fresh pool (POOL)
broker                 another one takes its place, on the same sockets; embedded, or
                       without a grace, or too often: everything ends
client (embedded)      everything ends: by its word, its socket's end, or its pidfd
SIGTERM, SIGINT        everything ends
=====================  ============================================================

Ending is one order for all causes: broker first, whose legs are its workers' lifelines;
then the pool, which sees its workers off; then whatever is still below this process.
"""

import _socket
import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from broker import aftermath, auth, cgroup, lease, places, pool, tree
from broker.errors import EngineError
from broker.journal import Journal
from broker.notices import Manager, Notices
from broker.opening import Opening, Options, Pool, say
from broker.pipe import Leg, LegClosed
from broker.wire import Kind, Message

if TYPE_CHECKING:
    from types import ModuleType

BROKER_TIMEOUT: Final = 1.0
"""Seconds for the broker to end after SIGTERM, before SIGKILL."""
POOL_TIMEOUT: Final = pool.END_TIMEOUT + pool.PROOF_TIMEOUT + 1.0
"""Seconds for the pool to see its workers off: more than it allows itself."""
BROKER_STARTS: Final = 8
BROKER_PERIOD: Final = 10.0
"""More lost brokers than that in so many seconds: something is broken, and all ends."""
AT_ONCE: Final = 4
"""Lost brokers in that time that are replaced without a wait."""
FIRST_WAIT: Final = 0.1
"""Seconds before the next one; before each further one twice as long."""
LONGEST_WAIT: Final = 0.8
"""Seconds of such a wait at most: well within the grace of those who wait for it."""
POOL_STARTS: Final = 10
POOL_PERIOD: Final = 10.0
"""More pools than that in so many seconds: something is broken, and all ends."""
SWEEP_TIMEOUT: Final = 5.0
PAUSE: Final = 1
"""Milliseconds between walks while orphans are left."""


class Supervisor:
    """The outermost engine process."""

    def __init__(self, options: Options, opening: Opening) -> None:
        self.options = options
        self.home, self.page, self.records, self.pool = opening
        self.directory = open_directory(options.endpoint)
        try:
            self._take_place()
        except BaseException:
            # In that of a shared broker may be what made it fail, and is not ours.
            if options.endpoint is None and self.directory.locked:
                self.directory.remove()
            raise
        self.wake = pool.wake_on_child()
        self.ending = False
        self.announced = False
        self.lease = lease.Page(self.page)
        self.notices = Notices(
            # What an embedded engine was started with is meant for its client.
            Manager("", None)
            if options.keeper is not None
            else Manager.found(os.environ, os.getpid()),
            options.ready_fd,
            bare=options.print_endpoint,
        )
        self.replaced: list[float] = []
        self.lost: list[float] = []
        self.pool_pid = self.pool.pid
        self.broker_pid = 0
        self.control: Leg
        self.secret = os.urandom(32)

    def _take_place(self) -> None:
        """Lock the directory, and make what lies in it, and the journal."""
        self.directory.lock()
        if self.options.endpoint is None:
            auth.RunDirectory.sweep_stale(os.path.dirname(self.directory.location))
        else:  # the client that embeds an engine has done it
            aftermath.sweep(os.path.dirname(os.fsencode(self.records)))
        self.directory.operator_key()
        name = os.path.basename(auth.endpoint_path(self.options.endpoint))
        self.name = name or auth.BROKER_SOCKET
        self.listener = self.directory.listen(self.name)
        self.lifeline = self.directory.listen(auth.LIFELINE_SOCKET)
        self.journal = open_journal(os.fsencode(self.records))

    @property
    def endpoint(self) -> str:
        """Return the address that clients connect to."""
        return "ipc://" + os.fsdecode(os.path.join(self.directory.location, self.name))

    # -- start ------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker; the pool comes up meanwhile."""
        tree.become_subreaper()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._start_broker(self.pool.leg, follows=False)

    def _start_broker(self, leg: _socket.socket, *, follows: bool) -> None:
        """Start a broker with this leg to the pool; it may follow a lost one."""
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.control = Leg(ours)
        process = forking().Process(
            target=self._be_broker, args=(theirs, leg), kwargs={"follows": follows}
        )
        process.start()
        self.broker_pid = process.pid
        theirs.close()
        leg.close()

    def _be_broker(
        self, control: _socket.socket, pool_leg: _socket.socket, *, follows: bool
    ) -> None:
        """Run the broker in the forked copy: zmq is imported here and nowhere else."""
        pool.leave_terminal()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        self.pool.lifeline.close()
        self.control.close()
        self.notices.close()
        if self.options.keeper is not None:
            os.close(self.options.keeper)
        from broker import server  # noqa: PLC0415 - see the docstring

        server.run(
            control=control,
            pool_leg=pool_leg,
            listener=self.listener,
            name=self.name,
            lifeline=self.lifeline,
            directory=self.directory,
            page=self.page,
            shared=self.options.endpoint is not None,
            warm=self.options.warm,
            containment="cgroup" if self.home else "subreaper",
            grace=self.options.grace,
            secret=self.secret,
            follows=follows,
            whole=not self._lost_pool(),
        )

    # -- watching ---------------------------------------------------------------

    def run(self) -> None:
        """Watch until something ends the engine."""
        gc.freeze()
        gc.enable()
        owner = self._owner()
        self._reap()  # also what ended before its end could wake us
        while not self.ending:
            if self.pool_pid == 0:
                self._replace_pool()
                continue
            if self.broker_pid == 0 and self._replace_broker():
                continue
            poller = select.poll()
            for fd in (self.wake, self.control.fileno(), *owner):
                if fd >= 0:
                    poller.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poller.poll(self._timeout())}
            if self.wake in ready:
                os.read(self.wake, 4096)
                self._reap()
            if ready & owner:
                self.ending = True
            elif self.control.fileno() in ready:
                self._from_broker()

    def _owner(self) -> set[int]:
        """Return the descriptors that tell that the client of an embedded one ends."""
        if self.options.keeper is None:
            return set()
        return {self.options.keeper, pidfd_of_parent(self.options.client)}

    def _on_signal(self, *_: object) -> None:
        self.ending = True

    def _from_broker(self) -> None:
        """Take the broker's word that it is up, or notice that it is gone."""
        try:
            for _ in self.control.receive():
                self._announce()
        except LegClosed:
            self.control.close()  # it is about to be reaped

    def _announce(self) -> None:
        if self.options.keeper is None and not self.announced:
            self.announced = True
            self.notices.ready(self.endpoint)
            if self.options.grace:
                # What the next one needs: it comes up in 7 to 20 ms of processor time
                # instead of 60. Nothing of it starts a thread.
                import broker.server  # noqa: F401, PLC0415 - not what a first one waits for

    def _timeout(self) -> float | None:
        """Return the milliseconds until something is due; None: nothing is."""
        waits = [wait for wait in (self._wait(), self._beat()) if wait is not None]
        return min(waits, default=None)

    def _beat(self) -> int | None:
        """Show who wants to know that the broker lives; return milliseconds to wait."""
        now = time.monotonic()
        return self.notices.beat(now, alive=self.lease.age(now) < lease.DURATION)

    def _reap(self) -> None:
        """Reap whatever has ended, and note what it was.

        Raises:
            EngineError: the shared broker was lost, and there is no grace for another.
        """
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pool_pid:
                self.pool_pid = 0
            elif pid == self.broker_pid:
                self.broker_pid = 0
                self.control.close()
                now = time.monotonic()
                self.lost = [at for at in self.lost if at > now - BROKER_PERIOD] + [now]
                if self.options.grace == 0 and not self.ending:
                    self.ending = True
                    if self.options.keeper is None:
                        why = "the broker died, and there is no grace for another"
                        raise EngineError(f"{why}: everything ends")

    def _wait(self) -> float | None:
        """Return the milliseconds until a lost broker is replaced; None: none is."""
        if self.broker_pid:
            return None
        return max(0.0, self._due() - time.monotonic()) * 1000 + 1

    def _due(self) -> float:
        """Return when the next broker is to be started: the later the more often."""
        many = len(self.lost) - AT_ONCE - 1
        wait = min(FIRST_WAIT * 2**many, LONGEST_WAIT) if many >= 0 else 0.0
        return self.lost[-1] + wait

    def _replace_broker(self) -> bool:
        """Start another broker, if it is time; return whether something was done.

        It and the pool get the ends of a new leg: what the lost one had read of the old
        leg is lost with it.

        Raises:
            EngineError: too many were lost.
        """
        if len(self.lost) > BROKER_STARTS:
            often = f"more than {BROKER_STARTS} times in {BROKER_PERIOD:g} s"
            raise EngineError(f"the broker died {often}: everything ends")
        if time.monotonic() < self._due():
            return False
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        lifeline = Leg(self.pool.lifeline)
        lifeline.send(Message(Kind.POOL), fds=(theirs.fileno(),))
        theirs.close()
        self._start_broker(ours, follows=True)
        return True

    def _replace_pool(self) -> None:
        """Sweep what a dead pool left, then tell the broker and give it a new pool.

        A pool that cannot even start would be replaced for ever: that ends the engine.

        Raises:
            EngineError: too many were lost.
        """
        now = time.monotonic()
        self.replaced = [at for at in self.replaced if at > now - POOL_PERIOD] + [now]
        if len(self.replaced) > POOL_STARTS:
            often = f"more than {POOL_STARTS} times in {POOL_PERIOD:g} s"
            why = f"the pool died {often}: everything ends"
            if self.options.keeper is not None:  # whose client listens no more
                say(f"creche: {why}")
            raise EngineError(why)
        self.pool.lifeline.close()
        proven = self._sweep(lambda: (self.broker_pid,))
        if proven:
            Journal(self.records).clear()
        page, home, records = self.page, self.home, self.records
        self.pool = Pool.execute(page, home, records, self.options)
        self.pool_pid = self.pool.pid
        if self.broker_pid:  # else the next one asks the new pool
            self.control.send(Message(Kind.POOL_GONE, body={"proven": proven}))
            self.control.send(Message(Kind.POOL), fds=(self.pool.leg.fileno(),))
            self.control.flush()
        self.pool.leg.close()

    def _lost_pool(self) -> bool:
        """Return whether a pool was lost of which no broker may have told clients."""
        return any(at > time.monotonic() - pool.REPORTED for at in self.replaced)

    def _sweep(self, spare: Callable[[], Collection[int]]) -> bool:
        """End what is below this process; return whether it is proven gone."""
        sweep = tree.Sweep(spare)
        ends = time.monotonic() + SWEEP_TIMEOUT
        while not (gone := sweep.step()) and time.monotonic() < ends:
            select.poll().poll(PAUSE)
            self._reap()
        return gone

    # -- the end ----------------------------------------------------------------

    def end(self) -> None:
        """End everything that was started, in the one order."""
        self.ending = True
        self.notices.stopping()
        for listener in (self.lifeline, self.listener):
            listener.close()  # so that no client waits for another broker
        if self.broker_pid:
            self.control.close()
            tree.signal_child(self.broker_pid, signal.SIGTERM)
            self._await("broker_pid", BROKER_TIMEOUT)
        if self.broker_pid:
            tree.signal_child(self.broker_pid, signal.SIGKILL)
        if self.pool_pid:
            self.pool.lifeline.close()
            self._await("pool_pid", POOL_TIMEOUT)
        if self._sweep(tuple):
            Journal(self.records).clear()
            self.journal.remove()
        if self.home:
            with suppress(OSError):  # a survivor is in it
                cgroup.Cgroup(self.home).remove()
        self.directory.remove()

    def _await(self, name: str, timeout: float) -> None:
        poller = select.poll()
        poller.register(self.wake, select.POLLIN)
        ends = time.monotonic() + timeout
        while getattr(self, name) and time.monotonic() < ends:
            if poller.poll(int((ends - time.monotonic()) * 1000) + 1):
                os.read(self.wake, 4096)
            self._reap()


def forking() -> Any:
    """Return how multiprocess starts a process by a fork.

    Its import tries dill for its pickles, takes pickle where there is none, and a fork
    needs neither: 3 ms instead of 24.
    """
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]  # None: the import fails
    modules["dill"] = None
    import multiprocess  # noqa: PLC0415 - see above

    del modules["dill"]
    return multiprocess.get_context("fork")


def open_directory(endpoint: str | None) -> auth.RunDirectory:
    """Make or adopt the directory that this engine's sockets live in."""
    if endpoint is not None:
        return auth.RunDirectory.create(os.path.dirname(auth.endpoint_path(endpoint)))
    root = places.runtime_root(os.environ, os.geteuid())
    name = places.RUN_PREFIX + os.urandom(8).hex().encode()
    return auth.RunDirectory.create(root, name)


def open_journal(location: bytes) -> auth.RunDirectory:
    """Make and lock the directory for the records of this engine's workers."""
    above, name = os.path.split(location)
    auth.RunDirectory.create(os.path.dirname(above)).close()
    directory = auth.RunDirectory.create(above, name)
    directory.lock()
    return directory


def pidfd_of_parent(client: int) -> int:
    """Return a pidfd of the client that executed this process.

    Raises:
        ProcessLookupError: it is gone already.
    """
    pidfd = os.pidfd_open(client)
    if os.getppid() != client:
        raise ProcessLookupError(f"the client {client} has ended")
    return pidfd


def supervise(options: Options, opening: Opening) -> None:
    """Be the supervisor until the engine is over.

    Raises:
        AlreadyRunning: another broker has this endpoint.
        InvalidRequest: the runtime directory is refused.
        ProcessLookupError: the client died meanwhile: there is nobody to serve.
        OSError: the system refused something.
        EngineError: a broker or a pool was lost, and no other takes its place.
    """
    try:
        supervisor = Supervisor(options, opening)
    except BaseException:
        _take_back(opening)
        raise
    try:
        supervisor.start()
        options.tell(f"ready {supervisor.endpoint}")
        supervisor.run()
    finally:
        supervisor.end()


def _take_back(opening: Opening) -> None:
    """End a pool that nobody has asked for anything."""
    tree.signal_child(opening.pool.pid, signal.SIGKILL)
    os.waitpid(opening.pool.pid, 0)
    if opening.home:
        cgroup.Cgroup(opening.home).remove()
