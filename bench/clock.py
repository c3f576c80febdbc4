"""Doing one thing often, alone or many at once, and timing it."""

import asyncio
import time
from collections.abc import Awaitable, Callable

Once = Callable[[], Awaitable[object]]


async def serially(once: Once, times: int, *, warm: int = 3) -> list[float]:
    """Return the seconds that each of `times` calls took, one after the other."""
    for _ in range(warm):
        await once()
    taken = []
    for _ in range(times):
        before = time.perf_counter()
        await once()
        taken.append(time.perf_counter() - before)
    return taken


async def at_once(once: Once, width: int, times: int) -> float:
    """Return the calls per second with `width` of them under way at any time."""
    turns = iter(range(times))

    async def keep_going() -> None:
        for _ in turns:
            await once()

    before = time.perf_counter()
    await asyncio.gather(*(keep_going() for _ in range(width)))
    return times / (time.perf_counter() - before)
