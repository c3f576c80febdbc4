"""Process identity, signals, and ending a whole tree by reading /proc.

This is the only module that sends signals. It runs in workers, in the pool and in the
supervisor, which stay lean: nothing but small parts of the standard library here.

What it builds on:

* A pid alone names nobody: it may have been given to another process since it was read.
  A pid with its start time does (`Identity`), and a pidfd opened *before* the start
  time is compared keeps naming that process until the signal is sent.
* A child that its parent has not reaped keeps its pid. So a direct child needs no
  pidfd, as long as signalling and reaping are done by the same thread.
* A subreaper adopts every orphan below it, however often that forked or called setsid.
  Killing all members of the tree from the top down, reaping, and looking again
  therefore comes to an end; stopping them first gains nothing, and a process group is
  something a member can leave.
"""

import ctypes
import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

__all__ = [
    "Identity",
    "ProcStat",
    "Survivor",
    "Sweep",
    "become_subreaper",
    "can_adopt",
    "children",
    "descendants",
    "detach",
    "environment",
    "identify",
    "processes",
    "send_group",
    "signal_child",
    "signal_process",
    "stat",
    "survivor",
]

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_PTRACE_DETACH = 17

_TICKS = os.sysconf("SC_CLK_TCK")

# Links of /proc/PID/task: two of its own, and one for each thread.
_ONE_THREAD = 3

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_int, *(ctypes.c_ulong,) * 2)


def _pidfd_works() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


# What this kernel, or the sandbox around us, offers: see `children` and `Sweep`.
CHILDREN_FILES = os.path.exists("/proc/thread-self/children")
PIDFD = _pidfd_works()


# --- identity ---


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, told apart from a later one with the same pid.

    Attributes:
        pid: The process id.
        started: When it started, in clock ticks since boot, as the kernel gives it.
    """

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class ProcStat:
    """The part of `/proc/PID/stat` that is needed here.

    Attributes:
        pid: The process id.
        state: One letter, as ps prints it.
        parent: The pid of the parent, or of whoever adopted the process.
        group: The process group.
        session: The session.
        threads: How many threads live; one for a zombie.
        started: Start time in clock ticks since boot.
    """

    pid: int
    state: str
    parent: int
    group: int
    session: int
    threads: int
    started: int

    @property
    def identity(self) -> Identity:
        """The identity this was read from."""
        return Identity(self.pid, self.started)

    @property
    def ended(self) -> bool:
        """Whether it has ended and only waits for its parent to reap it."""
        # A leader that ended before its other threads is in state Z as well, but the
        # process runs on and can fork.
        return self.state in "ZX" and self.threads <= 1


@dataclass(frozen=True, slots=True)
class Survivor:
    """A process that is still there although it should have ended.

    Attributes:
        pid: The process id.
        started: When it started, in seconds since boot; 0 where /proc hides it.
        uid: Its effective user id; a foreign one is why it could not be signalled.
            -1 where /proc hides it.
        state: One letter, as ps prints it: `D` waits for the kernel, `Z` to be reaped.
            `?` where /proc hides it.
    """

    pid: int
    started: float
    uid: int
    state: str


def _read(path: str) -> bytes | None:
    """The content of a file under /proc; None if the process is gone or hidden.

    Without the file object of `open` it takes 2 us less, of 7 to 10.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    content = b""
    try:
        while part := os.read(fd, 4096):
            content += part
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    return content


def stat(pid: int) -> ProcStat | None:
    """Read what the kernel tells about a process.

    Returns:
        None if there is no such process, or /proc hides it from us.
    """
    content = _read(f"/proc/{pid}/stat")
    if not content:
        return None
    # The name comes second, in parentheses, and may hold spaces and parentheses.
    fields = content[content.rindex(b")") + 2 :].split(b" ", 20)
    return ProcStat(
        pid=pid,
        state=fields[0].decode("ascii"),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        threads=int(fields[17]),
        started=int(fields[19]),
    )


def identify(pid: int) -> Identity | None:
    """The identity of the process that has this pid now; None if there is none."""
    found = stat(pid)
    return found.identity if found else None


def environment(pid: int) -> bytes:
    """What a process was started with, `NAME=VALUE` with a NUL after each.

    Empty if it is gone, may not be read, or has overwritten it.
    """
    return _read(f"/proc/{pid}/environ") or b""


def processes() -> list[ProcStat]:
    """All processes that /proc shows, whoever they belong to.

    Raises:
        OSError: /proc could not be read, for example for want of a descriptor.
    """
    found = (stat(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return [process for process in found if process]


def survivor(pid: int) -> Survivor | None:
    """Describe a process for a report; None if it is gone."""
    found = stat(pid)
    status = _read(f"/proc/{pid}/status")
    if not found or not status:
        return None
    # The owner of /proc/PID would not do: it is root where a program is not dumpable.
    uids = status.partition(b"\nUid:")[2].split(maxsplit=2)
    return Survivor(pid, found.started / _TICKS, int(uids[1]), found.state)


# --- the tree ---

_Lister = Callable[[int], Collection[int]]


def children(pid: int) -> list[int]:
    """The children of all threads of a process, ended but unreaped ones included.

    A snapshot: where the process forks meanwhile, look again. An empty list also stands
    for a process that is gone.

    Raises:
        OSError: /proc could not be read, for example for want of a descriptor.
    """
    return list(_lister()(pid))


def descendants(root: int) -> list[int]:
    """Every process below `root`, parents before their children, `root` left out.

    Raises:
        OSError: As for `children`.
    """
    look = _lister()
    return list(_walk(look(root), look))


def _lister() -> _Lister:
    """What names the children of a pid, good for one walk."""
    if CHILDREN_FILES:
        return _children_by_thread
    families = _families()
    return lambda pid: families.get(pid, ())


def _children_by_thread(pid: int) -> list[int]:
    try:
        threads = _threads(pid)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
    listings = [_read(f"/proc/{pid}/task/{thread}/children") for thread in threads]
    return [int(child) for listing in listings if listing for child in listing.split()]


def _threads(pid: int) -> Sequence[int | str]:
    """The threads of a process; that of one which has no other takes 2 us, not 5."""
    task = f"/proc/{pid}/task"
    return (pid,) if os.stat(task).st_nlink == _ONE_THREAD else os.listdir(task)


def _families() -> dict[int, list[int]]:
    """All parents and their children, where the kernel keeps no lists of children."""
    families: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (found := stat(int(name))):
            families.setdefault(found.parent, []).append(found.pid)
    return families


def _walk(tops: Iterable[int], look: _Lister) -> Iterator[int]:
    """Yield `tops` and all that is below them, each after its children were listed.

    So the taker may kill what it is given: the children are already known by then.
    """
    queue = list(tops)
    known = set(queue)
    for pid in queue:
        fresh = [child for child in look(pid) if child not in known]
        known.update(fresh)
        queue.extend(fresh)
        yield pid


# --- what a process asks of the kernel for itself ---


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def become_subreaper() -> None:
    """Adopt every orphan below this process from now on.

    Not inherited by fork: each process that wants it asks for itself, before it starts
    its first child.

    Raises:
        OSError: The kernel does not offer it.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def can_adopt() -> bool:
    """Whether `become_subreaper` would work here; changes nothing."""
    answer = ctypes.c_int()
    try:
        _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(answer))
    except OSError:
        return False
    return True


# --- signals ---


def _refuse_special(pid: int) -> None:
    """Zero and below would mean whole groups or everybody."""
    if pid <= 1 or pid == os.getpid():
        raise ValueError(f"refusing to signal process {pid}")


def signal_child(pid: int, number: int) -> bool:
    """Signal a direct child of this process.

    To be called by the thread that reaps, for only so does the pid stay the child's.

    Returns:
        False if it has ended, or is no child of ours (any more).

    Raises:
        PermissionError: It runs as another user.
        ValueError: `pid` is no single process, or this one.
    """
    _refuse_special(pid)
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    # One that has us as its tracer is told of when it stops, too.
    if ended and ended.si_code != os.CLD_TRAPPED:
        return False
    os.kill(pid, number)
    return True


def detach(pid: int, number: int) -> None:
    """Let a child go on that asked to be traced, and stopped for us to see a signal.

    It takes the signal as if nobody had traced it. SIGTRAP is left out: the kernel has
    sent it, for an exec. A child that is killed meanwhile needs nothing any more.

    Args:
        pid: The child, or a thread of it, as wait4(2) has given it.
        number: The signal that it stopped for.
    """
    passed = 0 if number == signal.SIGTRAP else number
    _libc.ptrace(_PTRACE_DETACH, pid, 0, passed)


def signal_process(identity: Identity, number: int) -> bool:
    """Signal the process with this identity and no other.

    Returns:
        False if it is gone, also when another process has its pid now.

    Raises:
        PermissionError: It runs as another user.
        OSError: No pidfd could be had.
        ValueError: Its pid is no single process, or this one.
    """
    return _send_confirmed(
        identity.pid, number, lambda: identify(identity.pid) == identity
    )


def _send_confirmed(pid: int, number: int, confirmed: Callable[[], bool]) -> bool:
    _refuse_special(pid)
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # Asked only now. If the pid changes hands from here on, the descriptor still
        # names the process that is gone, and sending fails.
        if not confirmed():
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def send_group(leader: int, number: int) -> bool:
    """Signal a process group. Members may have left it: it is a courtesy, no proof.

    To be called only while the leader is an unreaped child, or with a group just read
    from the child's own terminal: nothing else keeps the number from being reused.

    Returns:
        False if there is no such group.

    Raises:
        PermissionError: All of its members run as other users.
        ValueError: `leader` leads no group that could be meant, or our own.
    """
    if leader <= 1 or leader == os.getpgrp():
        raise ValueError(f"refusing to signal process group {leader}")
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return False
    return True


# --- ending a tree ---


class Sweep:
    """Ends everything below this process, which must be a subreaper.

    A sweep neither waits nor reaps. Call `step`, reap every child that has ended (each
    process has exactly one place that reaps), and call `step` again at the next SIGCHLD
    or after a millisecond, until it returns True or a deadline has passed. Each round
    ends for good whatever it saw; what was born meanwhile is below us still, and the
    next round sees it.

    Where there are no pidfds, only direct children are killed: their children come to
    us, and the rounds go down the tree one generation at a time.

    Attributes:
        signalled: Every process that was killed, once each, however often it was met.
        refused: Those the kernel did not let us kill.
    """

    def __init__(self, spare: Callable[[], Collection[int]] = tuple) -> None:
        """Prepare a sweep.

        Args:
            spare: Names the direct children that are to be left alone together with
                all that is below them. Asked in every step, in the caller's thread.
        """
        self.signalled: set[Identity] = set()
        self.refused: set[Identity] = set()
        self._spare = spare

    def step(self) -> bool:
        """Walk the tree once from the top down and kill every member.

        Returns:
            True when nothing is left: the only success there is. A child that has ended
            but is not reaped counts as left.

        Raises:
            OSError: The tree could not be read, for example for want of a descriptor.
        """
        spared = frozenset(self._spare())
        look = _lister()
        tops = _tops(look, spared)
        if not tops:
            # Only the kernel knows for certain: a list put together from /proc can miss
            # a child that moved while it was read.
            return bool(spared) or _childless()
        for pid in _walk(tops, look) if PIDFD else tops:
            self._end(pid, spared, direct=pid in tops)
        return False

    def survivors(self) -> tuple[Survivor, ...]:
        """What is still there, spared trees left out.

        A direct child that /proc hides is named at least: whatever it hides of what is
        below that one comes to us when it ends.

        Raises:
            OSError: As for `step`.
        """
        look = _lister()
        tops = _tops(look, frozenset(self._spare()))
        found = [
            survivor(pid) or (_hidden(pid) if pid in tops else None)
            for pid in _walk(tops, look)
        ]
        return tuple(process for process in found if process)

    def _end(self, pid: int, spared: frozenset[int], *, direct: bool) -> None:
        found = stat(pid)
        if found.ended if found else not direct:
            return
        # Hidden by /proc: as our child, not reaped, it is no other process for certain.
        identity = found.identity if found else Identity(pid, 0)
        try:
            sent = (
                signal_child(pid, signal.SIGKILL)
                if direct
                else _kill_below(identity, spared)
            )
        except PermissionError:
            self.refused.add(identity)
        else:
            if sent:
                self.signalled.add(identity)


def _hidden(pid: int) -> Survivor:
    """What can be said of a child that /proc does not show (`hidepid`).

    It is of another user, or may not be dumped: ssh-agent asks for that.
    """
    return Survivor(pid, 0.0, -1, "?")


def _tops(look: _Lister, spared: frozenset[int]) -> dict[int, None]:
    """The direct children that a sweep is to end, in the order to end them."""
    # Last come, first served: one that forks and exits without end is caught sooner by
    # its youngest than by the dead it leaves behind.
    found = [pid for pid in look(os.getpid()) if pid not in spared]
    return dict.fromkeys(reversed(found))


def _kill_below(identity: Identity, spared: frozenset[int]) -> bool:
    # The start time is counted in ticks of 10 ms, in which a pid can change hands;
    # descent from us cannot be had by chance.
    return _send_confirmed(
        identity.pid,
        signal.SIGKILL,
        lambda: identify(identity.pid) == identity and _descends(identity.pid, spared),
    )


def _descends(pid: int, spared: frozenset[int]) -> bool:
    """Whether the line of parents leads from `pid` to us, and past no spared child."""
    here = os.getpid()
    while pid > 1 and pid != here and pid not in spared:
        found = stat(pid)
        pid = found.parent if found else 0
    return pid == here


def _childless() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False
