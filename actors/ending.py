"""How a child's tree ends: what was reaped and killed of it, and what is left.

A worker has one child, so everything below its process is that child's tree. The leader
is reaped as every other process of it is; what it leaves is looked at then. A kill is a
sweep, repeated by the rules of `lifecycle` until the kernel says that nothing is left;
a tree too large to be walked is ended by its cgroup, where there is one.
"""

import os
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from actors.facts import Survivor, Usage
from actors.usage import oom_killed_since, oom_kills
from broker import cgroup, tree

LEFTOVERS: Final = 100
"""Leftovers named in a status, which has to fit into a control frame."""
SURVIVORS: Final = 500
"""Survivors named in a receipt: as many as fit into a control frame."""
LARGE_TREE: Final = 100
"""Processes above which a tree is killed by its cgroup: walking them takes 20 ms."""


class Ending:
    """What is known of one tree's end.

    Args:
        home: the cgroup of the worker and its tree, if it has one.

    Attributes:
        cpu_time: seconds of processor time that the reaped processes took.
    """

    def __init__(self, home: cgroup.Cgroup | None) -> None:
        self.cpu_time = 0.0
        self._home = home
        self._ooms: int | None = None
        self._sweep = tree.Sweep()
        self._reaped = 0
        self._reaped_before_kill: int | None = None
        self._spares_nobody = False

    def start(self) -> None:
        """Note what was before the tree: how often memory ran out."""
        self._ooms = oom_kills(self._home)

    def reaped(self, usage: Any) -> None:
        """Count one process that was reaped."""
        self._reaped += 1
        self.cpu_time += usage.ru_utime + usage.ru_stime

    def begin(self) -> None:
        """Count from now on what a kill reaps; the first one counts."""
        if self._reaped_before_kill is None:
            self._reaped_before_kill = self._reaped

    def sweep(self) -> None:
        """Walk the tree once; end a large one by its cgroup, if there is one.

        A thousand processes that fork leave a walk no processor time to end with.
        """
        with suppress(OSError):  # an old kernel: the walks do without
            if self._home is not None and self._home.crowded(LARGE_TREE):
                self._home.kill_around()
                self._spares_nobody = True
        self._sweep.step()

    def spared(self, pid: int) -> bool:
        """Return whether every kill of a process was refused: it ended by itself."""
        if not self._sweep.refused:
            return False
        refused = self._sweep.refused - self._sweep.signalled
        spared = any(identity.pid == pid for identity in refused)
        return spared and not self._spares_nobody

    def oom_killed(self) -> bool:
        """Return whether the kernel killed in the tree for want of memory."""
        return oom_killed_since(self._ooms, self._home)

    def receipt(self, *, proven: bool) -> list[Any]:
        """Return how many were killed and reaped, and who is left, if any may be."""
        found = () if proven else self._sweep.survivors()[:SURVIVORS]
        reaped = self._reaped - (self._reaped_before_kill or 0)
        return [len(self._sweep.signalled), reaped, [list(_plain(s)) for s in found]]


def exit_facts(
    wait_status: int, usage: Any, *, tree_peak: int | None
) -> dict[str, Any]:
    """Return what a leader's wait status and usage say of its `ExitStatus`."""
    signaled = os.WIFSIGNALED(wait_status)
    return {
        "code": None if signaled else os.WEXITSTATUS(wait_status),
        "signal": os.WTERMSIG(wait_status) if signaled else None,
        "core": signaled and os.WCOREDUMP(wait_status),
        "usage": Usage(
            user=usage.ru_utime,
            sys=usage.ru_stime,
            max_rss=usage.ru_maxrss * 1024,
            voluntary=usage.ru_nvcsw,
            involuntary=usage.ru_nivcsw,
            tree_peak=tree_peak,
        ),
    }


def leftovers() -> tuple[Survivor, ...]:
    """Return the processes below this worker: what a leader left."""
    found = (tree.survivor(pid) for pid in tree.descendants(os.getpid()))
    living = (Survivor(*_plain(s)) for s in found if s and s.state != "Z")
    return tuple(islice(living, LEFTOVERS))


def _plain(survivor: tree.Survivor) -> tuple[int, float, int, str]:
    return survivor.pid, survivor.started, survivor.uid, survivor.state
