"""A line to `cat` and back: one session, and many at once."""

import time
from functools import partial
from typing import Any, Final

from bench.clock import serially
from bench.commands import CAT, LINE
from bench.measure import Case, Figure, Found, times
from bench.sizes import Sizes
from bench.system import System
from bench.turn import everyone

SESSIONS: Final = 64


async def _opened(system: System) -> Any:
    session = await system.open(CAT)
    back = await system.trip(session, LINE)
    assert back.split() == LINE.split(), back  # a terminal has line ends of its own
    return session


async def _one(sizes: Sizes, system: System) -> Found:
    session = await _opened(system)
    trip = partial(system.trip, session, LINE)
    taken = await serially(trip, sizes.trips, warm=50)
    await system.close(session)
    return times(taken, per_second=1e6)


async def _many(sizes: Sizes, system: System) -> Found:
    sessions = [await _opened(system) for _ in range(SESSIONS)]

    async def talk(session: Any) -> None:
        for _ in range(sizes.trips_each):
            await system.trip(session, LINE)

    before = time.perf_counter()
    await system.together([partial(talk, session) for session in sessions])
    taken = time.perf_counter() - before
    for session in sessions:
        await system.close(session)
    return Found({"rate": SESSIONS * sizes.trips_each / taken})


def cases(sizes: Sizes) -> tuple[Case, ...]:
    """Return one session, and many."""
    return (
        Case(
            "echo",
            (Figure("p50", "us", "less"), Figure("p99", "us", "less")),
            everyone(partial(_one, sizes)),
        ),
        Case(
            f"echo-{SESSIONS}",
            (Figure("rate", "trips/s", "more"),),
            everyone(partial(_many, sizes)),
        ),
    )
