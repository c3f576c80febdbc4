"""Whose process is it? What the records of dead engines say of those that live. Pure.

Given what the records say and who lives now, `Kinship.look` tells for each record which
processes belong to it. Nothing belongs by its bare number:

* the worker, and the leader: by pid and start time, in the same boot;
* whoever carries the record's mark, which is random, in its environment;
* whoever is in the worker's cgroup, which is told from a later one of its name;
* then, again and again: the children of those, and the members of a session whose
  leader is one of those. While a session has a member its number is nobody else's.

A member of the leader's session is *unsure* where the leader is gone and no member is
known otherwise: a later process can have had the leader's pid, and led a session.

What was once known to belong stays known from one look to the next, as do the sessions
it led: after the kill of a leader there may be a child of it that nobody has seen yet.

A record to which the caller itself belongs is not for it to end.
"""

from collections.abc import Collection, Mapping, Set as AbstractSet
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from broker.journal import Entry
    from broker.tree import ProcStat

__all__ = ["Kin", "Kinship", "Process"]


class Process(NamedTuple):
    """A process as it is now.

    Attributes:
        stat: what the kernel tells of it.
        mark: what it carries in its environment; empty for nothing, or not readable.
    """

    stat: "ProcStat"
    mark: bytes


class Kin(NamedTuple):
    """Who belongs to one record.

    Attributes:
        ours: pids, those that only wait to be reaped left out.
        unsure: pids of whom that cannot be said.
        mine: whether the caller is one of them.
    """

    ours: frozenset[int]
    unsure: frozenset[int]
    mine: bool


class Kinship:
    """Knows the processes of one record, from one look to the next.

    Attributes:
        entry: what the record says; it may say more at a later look.
    """

    def __init__(self, entry: "Entry") -> None:
        self.entry = entry
        self._sessions: set[int] = set()

    def look(
        self,
        processes: Mapping[int, Process],
        inside: Collection[int],
        lineage: Collection[int],
    ) -> Kin:
        """Return who belongs to the record now.

        Args:
            processes: all there are, by pid.
            inside: pids of those in the worker's cgroup.
            lineage: pids of the caller and of all above it.
        """
        known = {pid for pid, process in processes.items() if self._is_known(process)}
        known |= processes.keys() & set(inside)
        self._grow(known, processes)
        ours = {pid for pid in known if not processes[pid].stat.ended}
        unsure = self._unsure(processes) - known
        return Kin(frozenset(ours), frozenset(unsure), bool(known & set(lineage)))

    def _is_known(self, process: Process) -> bool:
        entry, identity = self.entry, process.stat.identity
        if identity in (entry.worker, entry.leader):
            return True
        return bool(entry.mark) and process.mark == entry.mark

    def _grow(self, known: set[int], processes: Mapping[int, Process]) -> None:
        """Add children and members of sessions until there are no more."""
        while True:
            sessions = self._learn(known, processes)
            grown = {
                pid
                for pid, (stat, _) in processes.items()
                if stat.parent in known or stat.session in sessions
            } - known
            if not grown:
                return
            known |= grown

    def _learn(
        self, known: set[int], processes: Mapping[int, Process]
    ) -> AbstractSet[int]:
        """Return the sessions all of whose members belong to the record."""
        for stat, mark in (processes[pid] for pid in known):
            # The worker's own is that of its pool; what carries the mark has left it.
            carries = bool(mark) and mark == self.entry.mark
            if carries or stat.session in known or self._led_by_leader(stat.session):
                self._sessions.add(stat.session)
        # If somebody unknown has such a number now, it is another session's.
        return {s for s in self._sessions if s in known or s not in processes}

    def _led_by_leader(self, session: int) -> bool:
        leader = self.entry.leader
        return leader is not None and leader.pid == session

    def _unsure(self, processes: Mapping[int, Process]) -> set[int]:
        leader = self.entry.leader
        if leader is not None and leader.pid in processes:
            return set()  # the leader's, then they are known; or of a later one
        return {
            pid
            for pid, (stat, _) in processes.items()
            if self._led_by_leader(stat.session) and not stat.ended
        }
