"""Doing one thing often, one after the other, and timing each."""

import time
from collections.abc import Awaitable, Callable

Once = Callable[[], Awaitable[object]]


async def serially(once: Once, times: int, *, warm: int = 3) -> list[float]:
    """Return the seconds that each of `times` calls took."""
    for _ in range(warm):
        await once()
    taken = []
    for _ in range(times):
        before = time.perf_counter()
        await once()
        taken.append(time.perf_counter() - before)
    return taken
