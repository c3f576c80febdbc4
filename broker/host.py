"""What this machine offers, and how a tree is doing: the only user of psutil.

For the broker and for `creche doctor`. Pool and worker never import it: psutil would
triple the memory of every worker.
"""

import ctypes
import importlib.metadata
import os
import platform
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import psutil

from broker import capacity, cgroup, tree
from broker.registry import Capacity

__all__ = ["Capability", "Host", "report", "versions"]

# From asm-generic/socket.h, Linux 6.5; Python has no name for it yet.
SO_PEERPIDFD = 77

# From linux/sched.h; Python has names for them from 3.12 on.
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWPID: Final = 0x20000000

# What a broker with a few hundred sessions needs: a leg, a log and a lifeline for each.
_FEW_FILES = 4096
_FEW_PIDS = 4096
_FEW_PTYS = 64
_LITTLE_SHM = 64 << 20

SESSION_MEMORY = 1 << 20
"""Bytes of an idle session, its child not counted."""


class Capability(NamedTuple):
    """One thing that a machine offers, or not as it could.

    Attributes:
        name: What it is.
        advice: What is worse for it, and what to do; empty if nothing is.
    """

    name: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """What was found. Sizes in bytes; a limit of None is no limit, or unknown.

    Attributes:
        kernel: The release of the kernel.
        python: The version of this interpreter.
        zmq: The version of pyzmq, "missing" if it is not installed.
        msgpack: Likewise.
        psutil: Likewise.
        containment: The best by which a tree can be held here: "cgroup", "subreaper",
            or "pgroup", which a child can leave.
        subreaper: Whether a process can adopt the orphans below it.
        cgroup: Whether a cgroup v2 can be made here.
        pid_namespaces: Whether a namespace of pids can be made here. What this version
            does is the same without.
        files_soft: Descriptors this process may have open now.
        files_hard: As many as it may ask for.
        pid_max: Where the kernel's pids end.
        processes_user: Processes and threads that this user may have.
        processes_cgroup: Processes and threads that the cgroups around us may have.
        memory_total: Physical memory.
        memory_available: What can be had of it without swapping.
        shm_free: Free space in /dev/shm, 0 if there is none.
        ptys_used: Terminals in use.
        ptys_max: Terminals there can be.
        pidfd: Whether processes can be held by descriptor.
        peer_pidfd: Whether a socket tells the pidfd of its peer.
        children_files: Whether the kernel lists the children of a thread.
        pipe_soft_limit: Memory that the pipes of one user may have before new ones are
            made small.
    """

    kernel: str
    python: str
    zmq: str
    msgpack: str
    psutil: str
    containment: str
    subreaper: bool
    cgroup: bool
    pid_namespaces: bool
    files_soft: int | None
    files_hard: int | None
    pid_max: int | None
    processes_user: int | None
    processes_cgroup: int | None
    memory_total: int
    memory_available: int
    shm_free: int
    ptys_used: int | None
    ptys_max: int | None
    pidfd: bool
    peer_pidfd: bool
    children_files: bool
    pipe_soft_limit: int | None

    @property
    def room(self) -> Capacity:
        """How many sessions one broker would take here, and what ends with them.

        `SESSION_MEMORY` is what an idle session takes without its child.
        """
        processes = (self.pid_max, self.processes_user, self.processes_cgroup)
        least = capacity.least(
            self.files_hard, min((n for n in processes if n is not None), default=None)
        )
        return min(least, Capacity(self.memory_available // SESSION_MEMORY, "memory"))

    @property
    def capabilities(self) -> tuple[Capability, ...]:
        """What there is to say of each capability."""
        return tuple(
            Capability(name, advice if falls_short(self) else "")
            for name, (falls_short, advice) in _CAPABILITIES.items()
        )

    @property
    def degraded(self) -> tuple[str, ...]:
        """One sentence for each thing that is worse here than it could be."""
        return tuple(found.advice for found in self.capabilities if found.advice)


def _below(limit: int | None, enough: int) -> bool:
    return limit is not None and limit < enough


_CAPABILITIES: dict[str, tuple[Callable[[Host], bool], str]] = {
    "subreaper": (
        lambda host: not host.subreaper,
        (
            "Orphans cannot be adopted, so a child that leaves its process group can "
            "outlive its session: use Linux 3.4 or later and allow prctl."
        ),
    ),
    "cgroup": (
        lambda host: not host.cgroup,
        (
            "No writable cgroup v2, so trees are ended by repeated walks of /proc, and "
            "once a whole engine was killed, a daemon that had emptied its environment "
            "is not found: delegate a cgroup (systemd: Delegate=yes)."
        ),
    ),
    "pidfd": (
        lambda host: not host.pidfd,
        (
            "No pidfds, so no engine starts, and recovery kills nothing: use Linux 5.3 "
            "or later and allow pidfd_open."
        ),
    ),
    "peer_pidfd": (
        lambda host: not host.peer_pidfd,
        (
            "Sockets do not tell the pidfd of a peer, so clients are identified by pid "
            "and start time: use Linux 6.5 or later."
        ),
    ),
    "children_files": (
        lambda host: not host.children_files,
        (
            "The kernel keeps no lists of children, so every walk reads all of /proc: "
            "use a kernel with CONFIG_PROC_CHILDREN."
        ),
    ),
    "files": (
        lambda host: _below(host.files_hard, _FEW_FILES),
        (
            f"Few descriptors for many sessions: raise the hard limit to {_FEW_FILES} "
            "(ulimit -Hn); a broker raises its soft limit to that."
        ),
    ),
    "pids": (
        lambda host: (
            _below(host.pid_max, _FEW_PIDS)
            or _below(host.processes_user, _FEW_PIDS)
            or _below(host.processes_cgroup, _FEW_PIDS)
        ),
        (
            f"Few processes for many sessions: raise kernel.pid_max, ulimit -u and the "
            f"pids.max of the cgroups around to {_FEW_PIDS}."
        ),
    ),
    "shm": (
        lambda host: host.shm_free < _LITTLE_SHM,
        "Little space in /dev/shm: mount it larger (docker: --shm-size).",
    ),
    "ptys": (
        lambda host: (
            host.ptys_max is not None
            and _below(host.ptys_max - (host.ptys_used or 0), _FEW_PTYS)
        ),
        "Few terminals left: raise kernel.pty.max.",
    ),
}
"""Each, with what makes it worse than it could be, and what to do then."""


def report() -> Host:
    """Look at the machine. Takes milliseconds; for a probe, makes and leaves a cgroup.

    Not for a process that may fork meanwhile.
    """
    files_soft, files_hard = _limits(resource.RLIMIT_NOFILE)
    adopts, cgroups = tree.can_adopt(), cgroup.probe()
    memory = psutil.virtual_memory()
    pipe_pages = _number("/proc/sys/fs/pipe-user-pages-soft")
    return Host(
        **versions(),
        containment="pgroup" if not adopts else "cgroup" if cgroups else "subreaper",
        subreaper=adopts,
        cgroup=cgroups,
        pid_namespaces=_can_make_pid_namespace(),
        files_soft=files_soft,
        files_hard=files_hard,
        pid_max=capacity.pid_max(),
        processes_user=_limits(resource.RLIMIT_NPROC)[0],
        processes_cgroup=_cgroup_pids(),
        memory_total=memory.total,
        memory_available=memory.available,
        shm_free=_free("/dev/shm"),
        ptys_used=_number("/proc/sys/kernel/pty/nr"),
        ptys_max=_number("/proc/sys/kernel/pty/max"),
        pidfd=tree.PIDFD,
        peer_pidfd=_tells_peer_pidfd(),
        children_files=tree.CHILDREN_FILES,
        # Zero pages switch the limit off.
        pipe_soft_limit=pipe_pages * resource.getpagesize() if pipe_pages else None,
    )


def versions() -> dict[str, str]:
    """Return the versions of the kernel, this interpreter and the libraries."""
    return {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "zmq": _version("pyzmq"),
        "msgpack": _version("msgpack"),
        "psutil": _version("psutil"),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _can_make_pid_namespace() -> bool:
    """Try it, in a fork: what a process has unshared it cannot take back."""
    unshare = ctypes.CDLL(None).unshare
    pid = os.fork()
    if pid == 0:
        # With rights, or as the root of a namespace of users, which may be forbidden.
        made = not unshare(_CLONE_NEWPID) or not unshare(_CLONE_NEWUSER | _CLONE_NEWPID)
        os._exit(0 if made else 1)
    return os.waitpid(pid, 0)[1] == 0


def _limits(kind: int) -> tuple[int | None, int | None]:
    soft, hard = (
        None if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(kind)
    )
    return soft, hard


def _number(path: str) -> int | None:
    """The number in a file of the kernel; None if it has none, or says "max"."""
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _cgroup_pids() -> int | None:
    """The lowest `pids.max` from our cgroup upwards, for each of them counts."""
    limits: list[int] = []
    for controller in ("", "pids"):
        directory = cgroup.own_directory(controller) or "/"
        while directory != "/":
            limit = _number(os.path.join(directory, "pids.max"))
            if limit is not None:
                limits.append(limit)
            directory = os.path.dirname(directory)
    return min(limits, default=None)


def _free(path: str) -> int:
    try:
        space = os.statvfs(path)
    except OSError:
        return 0
    return space.f_bavail * space.f_frsize


def _tells_peer_pidfd() -> bool:
    near, far = socket.socketpair()
    with near, far:
        try:
            os.close(near.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
        except OSError:
            return False
    return True
