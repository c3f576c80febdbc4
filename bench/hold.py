"""Many children that live: starting them, what each costs idle, ending them all."""

import asyncio
import os
import time
from asyncio.subprocess import PIPE
from typing import Final

import actors
from bench import proc
from bench.measure import Case, Figure, Values

SLEEP: Final = ("/bin/sleep", "1000")
SESSIONS: Final = 200
STARTING: Final = 32
"""Starts under way at any time."""
SETTLE: Final = 0.5
"""Seconds for what follows the last start to be over."""
IDLE: Final = 3.0
"""Seconds over which idle CPU is counted."""


async def _idle_costs(before: int, pids: list[int]) -> Values:
    await asyncio.sleep(SETTLE)
    processes = proc.engine(pids)
    memory = proc.pss(processes) - before
    used = proc.cpu(processes)
    since = time.perf_counter()
    await asyncio.sleep(IDLE)
    busy = (proc.cpu(processes) - used) / (time.perf_counter() - since)
    return {"memory": memory / len(pids) / 1024, "idle": busy * 100}


def _asyncio() -> Values:
    async def start(gate: asyncio.Semaphore) -> asyncio.subprocess.Process:
        async with gate:
            return await asyncio.create_subprocess_exec(
                *SLEEP, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
            )

    async def measure() -> Values:
        memory = proc.pss([os.getpid()])
        gate = asyncio.Semaphore(STARTING)
        before = time.perf_counter()
        children = await asyncio.gather(*(start(gate) for _ in range(SESSIONS)))
        started = time.perf_counter() - before
        costs = await _idle_costs(memory, [child.pid for child in children])
        before = time.perf_counter()
        for child in children:
            child.kill()
        await asyncio.gather(*(child.wait() for child in children))
        return _values(started, costs, time.perf_counter() - before)

    return asyncio.run(measure())


def _creche() -> Values:
    async def start(engine: actors.Engine, gate: asyncio.Semaphore) -> actors.Child:
        async with gate:
            return await engine.spawn(SLEEP, stdin="pipe")

    async def measure() -> Values:
        memory = proc.pss([os.getpid()])
        gate = asyncio.Semaphore(STARTING)
        async with actors.Engine() as engine:
            before = time.perf_counter()
            children = await asyncio.gather(
                *(start(engine, gate) for _ in range(SESSIONS))
            )
            started = time.perf_counter() - before
            costs = await _idle_costs(memory, [child.pid for child in children])
            before = time.perf_counter()
            await engine.kill(child.id for child in children)
            ended = time.perf_counter() - before
            await asyncio.gather(*(child.aclose() for child in children))
        return _values(started, costs, ended)

    return asyncio.run(measure())


def _values(started: float, costs: Values, ended: float) -> Values:
    return {"start": SESSIONS / started, **costs, "kill": ended * 1e3}


CASES: Final = (
    Case(
        f"hold-{SESSIONS}",
        (
            Figure("start", "/s", "more"),
            Figure("memory", "KiB each", "less"),
            Figure("idle", "% of a core", "less"),
            Figure("kill", "ms", "less"),
        ),
        {"asyncio": _asyncio, "creche": _creche},
    ),
)
