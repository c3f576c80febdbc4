"""The budgets that an engine watches: which is over, and when to look again. Pure.

`output` is asked at every read, so it needs no timer. `tree_memory` and
`tree_processes` are known from samples of the tree, which are taken only while one of
them is set:

==========================  ==================================================
the last sample was         the next one is due
==========================  ==================================================
half a budget or more       after `NEAR` seconds
less                        after `FAR` seconds
expensive (a large tree)    not before `COSTS` times what it took
==========================  ==================================================

A budget is over when *more* than its value is used. It is told once, whatever its
action; another one of the same session is told for itself.

How far output can go beyond its budget, where that ends the tree: reading stops with
the first byte too much, so nothing more is taken than what the pipes can hold (64 KiB
each, unless the child enlarged them) once the leader has ended, and what its
descendants write in the moment between that and their kill.
"""

from typing import Final, NamedTuple

from actors.settings import WATCHES, Action, Limits, Watch, WatchName

NEAR: Final = 0.25
"""Seconds between samples of a tree that has used half of a budget."""
FAR: Final = 0.5
"""Seconds between samples of a tree that has used less."""
COSTS: Final = 20
"""Times its own cost that a sample is apart from the next: 5 % of a processor."""


class Sample(NamedTuple):
    """A tree as it is now.

    Attributes:
        processes: living ones.
        memory: resident bytes of all; what they share is counted for each.
        cpu_time: seconds that these, and those they waited for, were on a processor.
        cost: seconds that it took to find out.
    """

    processes: int
    memory: int
    cpu_time: float
    cost: float


NOTHING: Final = Sample(0, 0, 0.0, 0.0)
"""An empty tree."""


class Over(NamedTuple):
    """A budget that is used up, and what to do."""

    name: WatchName
    action: Action


class Budget:
    """The budgets of one session, from its start at time `now` on.

    Attributes:
        peak: the largest resident memory of a sample, None before the first.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self.peak: int | None = None
        self._left: dict[WatchName, Watch] = {}
        for name in WATCHES:
            watch = limits.watch(name)
            if watch is not None:
                self._left[name] = watch
        self._due = now + NEAR

    def next_sample(self) -> float | None:
        """Return when a sample is wanted, None while nothing depends on one."""
        if "tree_memory" in self._left or "tree_processes" in self._left:
            return self._due
        return None

    @property
    def counts_output(self) -> bool:
        """Whether `written` has to be asked after each read, whatever `room` says."""
        return "output" in self._left

    def room(self, produced: int) -> float:
        """Return how many bytes may be read before `written` has to be asked.

        Args:
            produced: bytes of both streams so far.
        """
        watch = self._left.get("output")
        if watch is None or watch.action == "notify":
            return float("inf")
        return max(1, watch.value - produced + 1)

    def written(self, produced: int) -> list[Over]:
        """Return what is over now that the child has written so many bytes."""
        return self._spend("output", produced)

    def sampled(self, sample: Sample, now: float) -> list[Over]:
        """Return what is over as the tree is now, and plan the next sample."""
        self.note(sample)
        pause = NEAR if self._near(sample) else FAR
        self._due = now + max(pause, COSTS * sample.cost)
        memory = self._spend("tree_memory", sample.memory)
        return memory + self._spend("tree_processes", sample.processes)

    def note(self, sample: Sample) -> None:
        """Take a sample that nobody judges by: it counts for the peak."""
        self.peak = max(self.peak or 0, sample.memory)

    def _near(self, sample: Sample) -> bool:
        used: dict[WatchName, int] = {
            "tree_memory": sample.memory,
            "tree_processes": sample.processes,
        }
        return any(
            name in self._left and 2 * amount >= self._left[name].value
            for name, amount in used.items()
        )

    def _spend(self, name: WatchName, used: int) -> list[Over]:
        watch = self._left.get(name)
        if watch is None or used <= watch.value:
            return []
        del self._left[name]
        return [Over(name, watch.action)]
