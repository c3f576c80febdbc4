"""The supervisor: starts the pool and the broker, watches both, sees everything off.

It owns the runtime directory, its lock and the listening sockets, so that they survive
whatever happens to the broker. It is single-threaded and the outermost subreaper: what
a dead pool leaves behind lands here and is swept.

=====================  ============================================================
lost                   what follows
=====================  ============================================================
pool                   its workers and their trees are swept, then the broker is told
                       (POOL_GONE), and given a fresh pool (POOL)
broker                 everything ends
client (embedded)      everything ends: by its word, its socket's end, or its pidfd
SIGTERM, SIGINT        everything ends
=====================  ============================================================

Ending is one order for all causes: broker first, whose legs are its workers' lifelines;
then the pool, which sees its workers off; then whatever is still below this process.
"""

import _socket
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final, NoReturn

from broker import auth, cgroup, lease, pool, tree
from broker.errors import AlreadyRunning, EngineError, InvalidRequest
from broker.pipe import Leg, LegClosed
from broker.wire import Kind, Message

WORKER: Final = "actors.worker:main"
BROKER_TIMEOUT: Final = 1.0
"""Seconds for the broker to end after SIGTERM, before SIGKILL."""
POOL_TIMEOUT: Final = 8.0
"""Seconds for the pool to see its workers off; it allows itself less."""
POOL_STARTS: Final = 10
POOL_PERIOD: Final = 10.0
"""More pools than that in so many seconds: something is broken, and all ends."""
SWEEP_TIMEOUT: Final = 5.0
PAUSE: Final = 1
"""Milliseconds between walks while orphans are left."""

BOOT: Final = """\
import sys
sys.path.extend(sys.argv[6:])
from broker.pool import main
main(*map(int, sys.argv[1:4]), *sys.argv[4:6])
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What a supervisor is started with.

    Attributes:
        endpoint: `ipc://PATH` of a shared broker; None: an embedded one, whose
            directory is made below the runtime root.
        keeper: descriptor of the socket to the client that embeds this engine.
        client: pid of that client, 0 for a shared broker.
        warm: idle workers kept ready.
        containment: `auto`, or `cgroup` or `subreaper` to insist on it.
        log: file that unhandled exceptions of engine processes are appended to.
    """

    endpoint: str | None = None
    keeper: int | None = None
    client: int = 0
    warm: int = 4
    containment: str = "auto"
    log: str | None = None


class Supervisor:
    """The outermost engine process."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.home = ""
        self.directory = open_directory(options.endpoint)
        self.directory.lock()
        if options.endpoint is None:
            auth.RunDirectory.sweep_stale(os.path.dirname(self.directory.location))
        self.directory.operator_key()
        name = os.path.basename(auth.endpoint_path(options.endpoint))
        self.name = name or auth.BROKER_SOCKET
        self.listener = self.directory.listen(self.name)
        self.lifeline = self.directory.listen(auth.LIFELINE_SOCKET)
        self.page = lease.create()
        self.wake = pool.wake_on_child()
        self.ending = False
        self.replaced: list[float] = []
        self.pool_pid = 0
        self.broker_pid = 0
        self.pool_lifeline: _socket.socket
        self.control: Leg

    @property
    def endpoint(self) -> str:
        """Return the address that clients connect to."""
        return "ipc://" + os.fsdecode(os.path.join(self.directory.location, self.name))

    # -- start ------------------------------------------------------------------

    def start(self) -> None:
        """Start pool and broker; both come up side by side.

        Raises:
            InvalidRequest: the containment that is insisted on cannot be had.
        """
        self.home = make_home(self.options.containment)
        tree.become_subreaper()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        pool_leg = self._start_pool()
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.control = Leg(ours)
        # 55 ms of imports, while the pool, on another processor, does its own.
        import multiprocess  # noqa: PLC0415

        context = multiprocess.get_context("fork")
        process = context.Process(target=self._be_broker, args=(theirs, pool_leg))
        process.start()
        self.broker_pid = process.pid
        theirs.close()
        pool_leg.close()

    def _start_pool(self) -> _socket.socket:
        """Execute the pool clean; return the broker's end of the leg to it."""
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.pool_lifeline, lifeline = _socket.socketpair(
            _socket.AF_UNIX, _socket.SOCK_STREAM
        )
        inherited = (theirs.fileno(), lifeline.fileno(), self.page)
        for fd in inherited:
            os.set_inheritable(fd, True)
        argv = [sys.executable, "-I", "-S", "-c", BOOT]
        argv += [*map(str, inherited), WORKER, self.home, *import_roots()]
        self.pool_pid = execute(argv)
        os.set_inheritable(self.page, False)
        theirs.close()
        lifeline.close()
        return ours

    def _be_broker(self, control: _socket.socket, pool_leg: _socket.socket) -> None:
        """Run the broker in the forked copy: zmq is imported here and nowhere else."""
        pool.leave_terminal()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        self.pool_lifeline.close()
        self.control.close()
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
        )

    # -- watching ---------------------------------------------------------------

    def run(self) -> None:
        """Watch until something ends the engine."""
        poller = select.poll()
        for fd in self._watched():
            poller.register(fd, select.POLLIN)
        while not self.ending:
            ready = {fd for fd, _ in poller.poll()}
            if self.wake in ready:
                os.read(self.wake, 4096)
                self._reap()
            if ready - {self.wake, self.control.fileno()}:
                self.ending = True
            elif self.control.fileno() in ready:
                self._from_broker()
            if self.pool_pid == 0 and not self.ending:
                self._replace_pool()

    def _watched(self) -> list[int]:
        watched = [self.wake, self.control.fileno()]
        if self.options.keeper is not None:
            watched += [self.options.keeper, pidfd_of_parent(self.options.client)]
        return watched

    def _on_signal(self, *_: object) -> None:
        self.ending = True

    def _from_broker(self) -> None:
        """Take the broker's word that it is up, or notice that it is gone."""
        try:
            for _ in self.control.receive():
                self._announce()
        except LegClosed:
            self.ending = True

    def _announce(self) -> None:
        if self.options.keeper is None:
            with suppress(OSError):  # nobody reads it: the broker serves all the same
                os.write(1, f"creche broker ready {self.endpoint}\n".encode())

    def _reap(self) -> None:
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
                self.ending = True

    def _replace_pool(self) -> None:
        """Sweep what a dead pool left, then tell the broker and give it a new pool.

        A pool that cannot even start would be replaced for ever: that ends the engine.
        """
        now = time.monotonic()
        self.replaced = [at for at in self.replaced if at > now - POOL_PERIOD] + [now]
        if len(self.replaced) > POOL_STARTS:
            _say(f"creche: the pool died {POOL_STARTS} times in {POOL_PERIOD} s")
            self.ending = True
            return
        self.pool_lifeline.close()
        proven = self._sweep(lambda: (self.broker_pid,))
        self.control.send(Message(Kind.POOL_GONE, body={"proven": proven}))
        pool_leg = self._start_pool()
        self.control.send(Message(Kind.POOL), fds=(pool_leg.fileno(),))
        pool_leg.close()
        self.control.flush()

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
        if self.broker_pid:
            self.control.close()
            tree.signal_child(self.broker_pid, signal.SIGTERM)
            self._await("broker_pid", BROKER_TIMEOUT)
        if self.broker_pid:
            tree.signal_child(self.broker_pid, signal.SIGKILL)
        if self.pool_pid:
            self.pool_lifeline.close()
            self._await("pool_pid", POOL_TIMEOUT)
        self._sweep(tuple)
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


def execute(argv: list[str]) -> int:
    """Execute a program in a fork of this process, which has one thread.

    Returns its pid. glibc's `posix_spawn` would leave signals 32 and 33 ignored, and a
    disposition that is inherited goes down to every child.
    """
    pid = os.fork()
    if pid == 0:
        try:
            os.execv(argv[0], argv)
        finally:
            os._exit(127)
    return pid


def make_home(containment: str) -> str:
    """Make the cgroup above those of all workers; return its path, empty for none.

    Raises:
        InvalidRequest: cgroups are insisted on, and none can be written.
    """
    if containment != "subreaper" and cgroup.probe():
        with suppress(OSError):
            cgroup.sweep_stale()
            return cgroup.Cgroup.create(f"{cgroup.PREFIX}{os.getpid()}").path
    if containment == "cgroup":
        raise InvalidRequest(
            "settings.containment", "no writable cgroup v2: use auto, or delegate one"
        )
    return ""


def open_directory(endpoint: str | None) -> auth.RunDirectory:
    """Make or adopt the directory that this engine's sockets live in."""
    if endpoint is not None:
        return auth.RunDirectory.create(os.path.dirname(auth.endpoint_path(endpoint)))
    root = auth.runtime_root(os.environ, os.geteuid())
    name = auth.RUN_PREFIX + os.urandom(8).hex().encode()
    return auth.RunDirectory.create(root, name)


def import_roots() -> list[str]:
    """Return the directories that the pool imports from: ours, and msgpack's."""
    roots = []
    for package in ("broker", "actors", "msgpack"):
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise InvalidRequest("installation", f"the package {package!r} is missing")
        root = os.path.dirname(os.path.dirname(os.path.abspath(spec.origin)))
        if root not in roots:
            roots.append(root)
    return roots


def pidfd_of_parent(client: int) -> int:
    """Return a pidfd of the client that executed this process.

    Raises:
        ProcessLookupError: it is gone already.
    """
    pidfd = os.pidfd_open(client)
    if os.getppid() != client:
        raise ProcessLookupError(f"the client {client} has ended")
    return pidfd


def _prepare_process(log: str | None) -> None:
    """Leave the client's session and terminal; keep a place for last words."""
    if os.getpid() != os.getsid(0):
        with suppress(PermissionError):  # leads its group: `serve` in a terminal
            os.setsid()
    pool.reset_signals()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if log is not None:
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, 2)
        os.close(fd)


def main(options: Options) -> NoReturn:
    """Be the supervisor; returns to nobody."""
    _prepare_process(options.log)
    try:
        supervisor = Supervisor(options)
        try:
            supervisor.start()
            _tell(options, f"ready {supervisor.endpoint}")
            supervisor.run()
        finally:
            supervisor.end()
    except AlreadyRunning:
        _say(f"creche: a broker is already running at {options.endpoint}")
        os._exit(1)
    except EngineError as error:
        _refuse(options, error)
        os._exit(1)
    except ProcessLookupError:
        pass  # the client died while we started: there is nobody to serve
    except OSError as error:
        _refuse(options, EngineError(f"cannot start: {error}"))
        os._exit(1)
    os._exit(0)


def _refuse(options: Options, error: EngineError) -> None:
    if options.keeper is None:
        _say(f"creche: {error}")
    elif isinstance(error, InvalidRequest):
        _tell(options, f"refused {error.field} {error.message}")
    else:
        _tell(options, f"failed {error}")


def _tell(options: Options, line: str) -> None:
    if options.keeper is not None:
        with suppress(OSError):  # the client is gone: run() will notice
            os.write(options.keeper, line.encode(errors="surrogateescape") + b"\n")


def _say(line: str) -> None:
    with suppress(OSError):
        os.write(2, line.encode(errors="surrogateescape") + b"\n")


def parse(arguments: Sequence[str]) -> Options:
    """Return the options in the command line of `python -m broker`."""
    import argparse  # noqa: PLC0415 - 8 ms that only this process pays

    parser = argparse.ArgumentParser(
        "python -m broker",
        description="Be a broker for many clients until SIGTERM or SIGINT.",
    )
    parser.add_argument("--endpoint", help="ipc://PATH of the shared broker")
    parser.add_argument("--keeper", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--client", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--warm", type=int, default=4, help="idle workers kept ready")
    parser.add_argument(
        "--containment",
        choices=("auto", "cgroup", "subreaper"),
        default="auto",
        help="how trees are held together",
    )
    parser.add_argument("--log", help="file for unhandled errors of engine processes")
    given = parser.parse_args(arguments)
    endpoint = given.endpoint
    if endpoint is None and given.keeper is None:
        root = auth.runtime_root(os.environ, os.geteuid())
        endpoint = "ipc://" + os.fsdecode(os.path.join(root, auth.BROKER_SOCKET))
    return Options(
        endpoint, given.keeper, given.client, given.warm, given.containment, given.log
    )
