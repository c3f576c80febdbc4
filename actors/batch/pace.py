"""A time limit that follows what jobs usually take. Pure."""

import bisect
from collections import deque
from typing import Final

ENOUGH: Final = 3
"""Jobs whose times are known before there is a limit."""
REMEMBERED: Final = 1000
"""Times of jobs that the median is taken of: the newest."""


class Pace:
    """The median of what successful jobs took.

    Args:
        share: the limit as a multiple of it.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._newest: deque[float] = deque()
        self._sorted: list[float] = []

    @property
    def limit(self) -> float | None:
        """Seconds that a job may take; None until enough is known."""
        if len(self._newest) < ENOUGH:
            return None
        return self._sorted[len(self._sorted) // 2] * self._share

    def note(self, seconds: float) -> None:
        """Learn what a successful job took."""
        self._newest.append(seconds)
        bisect.insort(self._sorted, seconds)
        if len(self._newest) > REMEMBERED:
            oldest = self._newest.popleft()
            del self._sorted[bisect.bisect_left(self._sorted, oldest)]
