"""Starting a short command and seeing its end, with and without its output."""

import asyncio
import os
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import actors
from bench.clock import Once, at_once, serially
from bench.measure import Case, Figure, Values, Work, quantile

TRUE: Final = "/bin/true"
SERIAL: Final = 200
WIDTH: Final = 64
MANY: Final = 1200

Times = Callable[[Once], Awaitable[Values]]
"""How often, and how many at once: what turns one command into figures."""


async def _serial(once: Once) -> Values:
    taken = await serially(once, SERIAL)
    return {"p50": quantile(taken, 0.5) * 1e3, "p99": quantile(taken, 0.99) * 1e3}


async def _many(once: Once) -> Values:
    await at_once(once, WIDTH, WIDTH)  # the first of a pool are dearer
    return {"rate": await at_once(once, WIDTH, MANY)}


def _asyncio(output: int, times: Times) -> Values:
    async def once() -> None:
        child = await asyncio.create_subprocess_exec(
            TRUE, stdin=DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        await child.communicate()

    async def measure() -> Values:
        return await times(once)

    return asyncio.run(measure())


def _creche(output: str, times: Times) -> Values:
    async def measure() -> Values:
        async with actors.Engine() as engine:
            return await times(
                partial(engine.run, [TRUE], stdout=output, stderr=output)
            )

    return asyncio.run(measure())


def _raw_serial() -> Values:
    async def once() -> None:
        _reap_one(_posix_spawn())

    return asyncio.run(_serial(once))


def _posix_spawn() -> int:
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    return os.posix_spawn(TRUE, [TRUE], os.environ, file_actions=null, setsid=True)


def _reap_one(pid: int) -> None:
    os.waitpid(pid, 0)


def _raw_many() -> Values:
    started = 0
    before = time.perf_counter()
    for ended in range(MANY):
        while started < MANY and started - ended < WIDTH:
            _posix_spawn()
            started += 1
        _reap_one(-1)
    return {"rate": MANY / (time.perf_counter() - before)}


_SERIAL_FIGURES: Final = (Figure("p50", "ms", "less"), Figure("p99", "ms", "less"))
_MANY_FIGURES: Final = (Figure("rate", "/s", "more"),)


def _systems(asyncio_output: int, our_output: str, times: Times) -> dict[str, Work]:
    return {
        "asyncio": partial(_asyncio, asyncio_output, times),
        "creche": partial(_creche, our_output, times),
    }


CASES: Final = (
    Case(
        "true",
        _SERIAL_FIGURES,
        {**_systems(DEVNULL, "null", _serial), "posix_spawn": _raw_serial},
    ),
    Case(
        "true-64",
        _MANY_FIGURES,
        {**_systems(DEVNULL, "null", _many), "posix_spawn": _raw_many},
    ),
    Case("capture", _SERIAL_FIGURES, _systems(PIPE, "pipe", _serial)),
    Case("capture-64", _MANY_FIGURES, _systems(PIPE, "pipe", _many)),
)
