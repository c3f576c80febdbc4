"""The clock of a scope on the client's side: deadlines that a pause pushes back.

The sessions of the scope have clocks of their own, which their workers stop. What is
measured here is how long a caller's run may take, or what it waits for in a child.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from actors.clock import Clock


class Timeouts:
    """The timeouts that are running in one scope; pauses of it nest.

    Outside of scopes one that nobody pauses takes its place.
    """

    def __init__(self) -> None:
        self.depth = 0
        self._clock = Clock()
        self._paused = 0.0
        self._ends: dict[asyncio.Timeout, float] = {}

    def time(self) -> float:
        """Return the time in seconds, from an arbitrary start, without the pauses."""
        return self._clock.read(_now()) - self._paused

    @asynccontextmanager
    async def timeout(self, delay: float | None) -> AsyncIterator[None]:
        """Limit a block as `asyncio.timeout` does, but for the time of pauses.

        Raises:
            TimeoutError: it took longer than `delay` seconds; None: never.
        """
        if delay is None:
            yield
            return
        async with asyncio.timeout(None) as timer:
            self._ends[timer] = self._clock.read(_now()) + delay
            self._plan(timer)
            try:
                yield
            finally:
                del self._ends[timer]

    def pause(self) -> bool:
        """Stop the clock once more; return whether it ran."""
        self.depth += 1
        self._clock.stop(_now())
        self._plan_all()
        return self.depth == 1

    def resume(self) -> bool:
        """Take one pause back; return whether it was the last one."""
        self.depth -= 1
        if self.depth:
            return False
        shift = self._clock.go(_now())
        self._paused += shift
        self._ends = {timer: end + shift for timer, end in self._ends.items()}
        self._plan_all()
        return True

    def _plan_all(self) -> None:
        for timer in self._ends:
            self._plan(timer)

    def _plan(self, timer: asyncio.Timeout) -> None:
        if not timer.expired():
            timer.reschedule(self._clock.when(self._ends[timer]))


def _now() -> float:
    return asyncio.get_running_loop().time()
