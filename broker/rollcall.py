"""What a broker in the place of a lost one has to wait for. Pure.

The pool tells which workers of the lost broker live; each of them says what it has, or
is gone. Before that no client is heard: the retry of a spawn could start a child that
is there already. Who has not spoken by `ends` stands still, and is waited for no more.
So it is over once the pool has told of all, and each has spoken or is gone; or by time,
which whoever calls takes for over only when there is nothing left to hear.
"""

from collections.abc import Iterable


class RollCall:
    """The workers that did not speak yet.

    Args:
        ends: when they are given up (seconds, monotonic).

    Attributes:
        missing: those that are known to live and have not spoken.
    """

    def __init__(self, ends: float) -> None:
        self.ends = ends
        self.missing: set[int] = set()
        self._listed = False

    def found(self, workers: Iterable[int], *, last: bool) -> None:
        """Wait for workers too; `last`: there are no others."""
        self.missing.update(workers)
        self._listed = self._listed or last

    def heard(self, worker: int) -> None:
        """Wait for a worker no more: it spoke, or is gone."""
        self.missing.discard(worker)

    @property
    def complete(self) -> bool:
        """Whether nobody is left to be waited for."""
        return self._listed and not self.missing
