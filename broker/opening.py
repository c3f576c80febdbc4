"""What comes first in an engine: its options, its place, and its pool.

The pool needs 60 ms of processor time for its imports, supervisor and broker together
70. So the pool is executed before these two are imported, 25 ms after the start of the
program, and comes up beside them. Hence this module imports next to nothing.
"""

import _socket
import os
import signal
import sys
from contextlib import suppress
from typing import Final, NamedTuple, Self

from broker import cgroup, lease, places
from broker.errors import EngineError, InvalidRequest

WORKER: Final = "actors.rehearsal:rehearsed"
"""Called in the pool, returns what a worker runs."""
LONE_WORKER: Final = "actors.rehearsal:unrehearsed"
"""The same where one worker at most is kept ready: that would wait 10 ms of processor
time for what spares each worker less than one."""

BOOT: Final = """\
import sys
sys.path.extend(sys.argv[8:])
from broker.pool import main
names = dict(zip(("target", "home", "directory"), sys.argv[4:7]))
main(*map(int, sys.argv[1:4]), **names, grace=float(sys.argv[7]))
"""


class Options(NamedTuple):
    """What a supervisor is started with.

    Attributes:
        endpoint: `ipc://PATH` of a shared broker; None: an embedded one, whose
            directory is made below the runtime root.
        keeper: descriptor of the socket to the client that embeds this engine.
        client: pid of that client, 0 for a shared broker.
        warm: idle workers kept ready.
        containment: `auto`, or `cgroup` or `subreaper` to insist on it.
        log: file that unhandled exceptions of engine processes are appended to.
        grace: seconds that workers and clients wait for another broker if this one is
            lost; 0: there will be none, and everything ends.
        ready_fd: descriptor that a shared broker's endpoint is written to once clients
            can connect, and which is closed then; None for none.
        print_endpoint: whether stdout gets that endpoint alone, for a line.
    """

    endpoint: str | None = None
    keeper: int | None = None
    client: int = 0
    warm: int = 4
    containment: str = "auto"
    log: str | None = None
    grace: float = 0.0
    ready_fd: int | None = None
    print_endpoint: bool = False

    def tell(self, line: str) -> None:
        """Write a line to the client that embeds this engine, if one does."""
        if self.keeper is not None:
            with suppress(OSError):  # the client is gone: the supervisor will notice
                os.write(self.keeper, line.encode(errors="surrogateescape") + b"\n")

    def refuse(self, error: EngineError) -> None:
        """Tell whoever started this why there will be no engine."""
        if self.keeper is None:
            say(f"creche: {error}")
        elif isinstance(error, InvalidRequest):
            self.tell(f"refused {error.field} {error.message}")
        else:
            self.tell(f"failed {error}")


class Pool(NamedTuple):
    """A pool that was executed: its process, and what leads to it.

    Attributes:
        pid: of a child of this process.
        leg: the broker's end of the leg to it.
        lifeline: ends the pool when it is closed.
    """

    pid: int
    leg: _socket.socket
    lifeline: _socket.socket

    @classmethod
    def execute(cls, page: int, home: str, journal: str, options: Options) -> Self:
        """Execute a pool clean.

        Args:
            page: the lease page.
            home: path of the cgroup above those of the workers; empty for none.
            journal: path of the directory for their records.
            options: of its supervisor.

        Raises:
            InvalidRequest: what it imports is not installed.
        """
        roots = import_roots()
        leg, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        ours, lifeline = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        inherited = (theirs.fileno(), lifeline.fileno(), page)
        for fd in inherited:
            os.set_inheritable(fd, True)
        argv = [sys.executable, "-I", "-S", "-c", BOOT]
        worker = WORKER if options.warm > 1 else LONE_WORKER
        argv += [*map(str, inherited), worker, home, journal, str(options.grace)]
        argv += roots
        pid = _execute(argv)
        os.set_inheritable(page, False)
        theirs.close()
        lifeline.close()
        return cls(pid, leg, ours)


class Opening(NamedTuple):
    """What there is of an engine when its supervisor begins.

    Attributes:
        home: path of the cgroup above those of the workers; empty for none.
        page: descriptor of the lease page.
        journal: path of the directory for the workers' records, which the supervisor
            makes and locks before there is a worker.
        pool: the first one, which comes up.
    """

    home: str
    page: int
    journal: str
    pool: Pool

    @classmethod
    def start(cls, options: Options) -> Self:
        """Leave the client's session and terminal, and have a pool come up.

        Raises:
            InvalidRequest: the containment that is insisted on cannot be had, or there
                is no descriptor of the number given.
        """
        _settle(options)
        if options.ready_fd is not None:
            _keep_from_pool(options.ready_fd)
        home = _make_home(options.containment)
        page = lease.create()
        journal = _name_journal()
        pool = Pool.execute(page, home, journal, options)
        return cls(home, page, journal, pool)


def _name_journal() -> str:
    root = places.place(places.JOURNAL, os.environ, os.geteuid())
    name = places.RUN_PREFIX + os.urandom(8).hex().encode()
    return os.fsdecode(os.path.join(root, name))


def _settle(options: Options) -> None:
    _fill_streams()
    if os.getpid() != os.getsid(0):
        with suppress(PermissionError):  # leads its group: `serve` in a terminal
            os.setsid()
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    reset_signals()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if ignored and options.keeper is None:  # by nohup: it shall outlive its terminal
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if options.log is not None:
        fd = os.open(options.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, 2)
        os.close(fd)


def _fill_streams() -> None:
    """Open /dev/null for each standard stream that is closed.

    Else the lease page would be our stdout, and be written to when we are ready.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _keep_from_pool(fd: int) -> None:
    """Have a descriptor that was inherited go no further.

    Raises:
        InvalidRequest: there is none of this number.
    """
    try:
        os.set_inheritable(fd, False)
    except OSError as closed:
        raise InvalidRequest("ready-fd", f"{fd} is no open descriptor") from closed


def reset_signals() -> None:
    """Give every signal its default action and unblock all.

    Who started the engine may have ignored or blocked some; a child inherits that.
    Two are ignored, as Python does: a worker that writes to a child which has just
    closed its stdin must live. The start of a child gives these their default again.
    """
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _make_home(containment: str) -> str:
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


def import_roots() -> list[str]:
    """Return the directories that the pool imports from: ours, and msgpack's."""
    from importlib.util import find_spec  # noqa: PLC0415 - the pool needs none of it

    roots = []
    for package in ("broker", "actors", "msgpack"):
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise InvalidRequest("installation", f"the package {package!r} is missing")
        root = os.path.dirname(os.path.dirname(os.path.abspath(spec.origin)))
        if root not in roots:
            roots.append(root)
    return roots


def _execute(argv: list[str]) -> int:
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


def say(line: str) -> None:
    """Write a line to stderr, if that is open."""
    with suppress(OSError):
        os.write(2, line.encode(errors="surrogateescape") + b"\n")
