"""A line to `cat` and back: one session, and many at once."""

import asyncio
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import actors
from bench.clock import Once, serially
from bench.measure import Case, Figure, Values, quantile

CAT: Final = "/bin/cat"
LINE: Final = b"0123456789abcdef\n"
TRIPS: Final = 2000
SESSIONS: Final = 64
TRIPS_EACH: Final = 100

Times = Callable[[list[Once]], Awaitable[Values]]


async def _serial(sessions: list[Once]) -> Values:
    taken = await serially(sessions[0], TRIPS, warm=50)
    return {"p50": quantile(taken, 0.5) * 1e6, "p99": quantile(taken, 0.99) * 1e6}


async def _many(sessions: list[Once]) -> Values:
    async def talk(trip: Once) -> None:
        for _ in range(TRIPS_EACH):
            await trip()

    loop = asyncio.get_running_loop()
    before = loop.time()
    await asyncio.gather(*(talk(trip) for trip in sessions))
    return {"rate": len(sessions) * TRIPS_EACH / (loop.time() - before)}


def _asyncio(count: int, times: Times) -> Values:
    async def measure() -> Values:
        children = [
            await asyncio.create_subprocess_exec(
                CAT, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True
            )
            for _ in range(count)
        ]
        values = await times([partial(_asyncio_trip, child) for child in children])
        for child in children:
            child.kill()
            await child.communicate()
        return values

    return asyncio.run(measure())


async def _asyncio_trip(child: asyncio.subprocess.Process) -> None:
    assert child.stdin is not None  # both are piped
    assert child.stdout is not None
    child.stdin.write(LINE)
    await child.stdout.readline()


def _creche(count: int, times: Times) -> Values:
    async def measure() -> Values:
        async with actors.Engine() as engine, AsyncExitStack() as stack:
            trips: list[Once] = []
            for _ in range(count):
                child = await stack.enter_async_context(
                    await engine.spawn([CAT], stdin="pipe", stderr="null")
                )
                events = await stack.enter_async_context(child.events())
                trips.append(partial(_creche_trip, child, events))
            return await times(trips)

    return asyncio.run(measure())


async def _creche_trip(child: actors.Child, events: actors.EventStream) -> None:
    await child.write(LINE)
    seen = 0
    while seen < len(LINE):
        event = await anext(events)
        assert isinstance(event, actors.Chunk)  # nothing else comes while cat runs
        seen += len(event.data)


CASES: Final = (
    Case(
        "echo",
        (Figure("p50", "us", "less"), Figure("p99", "us", "less")),
        {
            "asyncio": partial(_asyncio, 1, _serial),
            "creche": partial(_creche, 1, _serial),
        },
    ),
    Case(
        "echo-64",
        (Figure("rate", "trips/s", "more"),),
        {
            "asyncio": partial(_asyncio, SESSIONS, _many),
            "creche": partial(_creche, SESSIONS, _many),
        },
    ),
)
