"""Which process of an engine is which: read off the tree, whatever they are called."""

from dataclasses import dataclass
from typing import Self

from bench import proc


@dataclass(frozen=True, slots=True)
class Parts:
    """The processes of an engine that has a child."""

    supervisor: int
    broker: int
    pool: int
    worker: int

    @classmethod
    def of(cls, child: int) -> Self:
        """Return what stands above a child.

        Its worker is its parent, the pool forks workers, and the supervisor starts the
        pool and the broker.
        """
        worker = proc.parent(child)
        pool = proc.parent(worker)
        supervisor = proc.parent(pool)
        (broker,) = set(proc.children(supervisor)) - {pool}
        return cls(supervisor, broker, pool, worker)
