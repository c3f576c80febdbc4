"""What sessions use, from one look at them to the next. Pure.

Counters grow: processor time and bytes of output. What a person wants to see is how
fast, so each look is compared with the one before. A session that is seen first has
been running since its start, and is measured over that time.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Look(NamedTuple):
    """A session at one moment; times in seconds, sizes in bytes.

    Attributes:
        id: its number.
        name: its name, empty without one.
        scope: name of its scope, empty without one.
        state: as in a snapshot.
        argv: what it runs.
        wall_time: since its start.
        cpu_time: of its tree so far.
        memory: resident, of its tree.
        processes: of its tree.
        written: output so far.
    """

    id: int
    name: str
    scope: str
    state: str
    argv: tuple[str, ...]
    wall_time: float
    cpu_time: float
    memory: int
    processes: int
    written: int


class Use(NamedTuple):
    """What a session, or several, use now.

    Attributes:
        sessions: how many.
        processes: of their trees.
        cpu: processors that they keep busy; 1.0 is one of them.
        memory: resident bytes.
        rate: bytes of output a second.
    """

    sessions: int
    processes: int
    cpu: float
    memory: int
    rate: float


class Rates:
    """Compares each round of looks with the one before."""

    def __init__(self) -> None:
        self._before: dict[int, Look] = {}

    def round(self, looks: Iterable[Look]) -> list[tuple[Look, Use]]:
        """Return each look with what its session uses, the busiest first."""
        now = {look.id: look for look in looks}
        found = [(look, self._use(look)) for look in now.values()]
        self._before = now
        return sorted(found, key=lambda pair: (-pair[1].cpu, pair[0].id))

    def _use(self, look: Look) -> Use:
        before = self._before.get(look.id)
        past, cpu, written = 0.0, 0.0, 0
        if before is not None and before.wall_time < look.wall_time:
            past, cpu, written = before.wall_time, before.cpu_time, before.written
        time = max(look.wall_time - past, 0.001)
        # What processes used is not counted for a moment while they are reaped.
        busy = max(look.cpu_time - cpu, 0.0) / time
        rate = (look.written - written) / time
        return Use(1, look.processes, busy, look.memory, rate)


def total(uses: Iterable[Use]) -> Use:
    """Return what all of them use together."""
    columns = list(zip(*uses, strict=True)) or [()] * len(Use._fields)
    return Use(*map(sum, columns))


def by_scope(found: Iterable[tuple[Look, Use]]) -> dict[str, Use]:
    """Return what each scope uses, by name; sessions without one are not in any."""
    scopes: dict[str, list[Use]] = {}
    for look, use in found:
        if look.scope:
            scopes.setdefault(look.scope, []).append(use)
    return {name: total(uses) for name, uses in sorted(scopes.items())}
