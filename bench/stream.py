"""Much output, read to its last byte: large writes, small writes, many streams."""

import asyncio
import resource
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import actors
from bench.measure import Case, Figure, Values, Work

DD: Final = "/bin/dd"
MIB: Final = 1024 * 1024
SIZE: Final = 256 * MIB
STREAMS: Final = 16
KEPT: Final = 4 * MIB
"""Bytes of output that the session keeps: it holds the child back, it loses nothing."""

Drain = Callable[[list[str]], Awaitable[int]]
"""Runs a command and returns how many bytes of output came."""


async def _all(drain: Drain, write: int, streams: int) -> Values:
    size = SIZE // streams
    argv = [DD, "if=/dev/zero", f"bs={write}", f"count={size // write}", "status=none"]
    before = time.perf_counter()
    seen = await asyncio.gather(*(drain(argv) for _ in range(streams)))
    taken = time.perf_counter() - before
    if any(count != size for count in seen):
        raise AssertionError(f"{size} bytes each were written, {seen} were read")
    return {"rate": size * streams / MIB / taken}


def _with_cpu(values: Values) -> Values:
    """Add the CPU time of this process and of everything that it has reaped."""
    used = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        used += usage.ru_utime + usage.ru_stime
    return {**values, "cpu": used * (1024 * MIB / SIZE)}


def _asyncio(write: int, streams: int) -> Values:
    return _with_cpu(asyncio.run(_all(_asyncio_drain, write, streams)))


async def _asyncio_drain(argv: list[str]) -> int:
    child = await asyncio.create_subprocess_exec(
        *argv, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, start_new_session=True
    )
    assert child.stdout is not None  # it is piped
    seen = 0
    while data := await child.stdout.read(MIB):
        seen += len(data)
    await child.wait()
    return seen


def _creche(write: int, streams: int) -> Values:
    async def measure() -> Values:
        async with actors.Engine() as engine:
            return await _all(partial(_creche_drain, engine), write, streams)

    return _with_cpu(asyncio.run(measure()))


async def _creche_drain(engine: actors.Engine, argv: list[str]) -> int:
    seen = 0
    kept = actors.OutputPolicy("block", KEPT)
    child = await engine.spawn(argv, stderr="null", retention=kept)
    async with child, child.events() as events:
        async for event in events:
            if isinstance(event, actors.Chunk):
                seen += len(event.data)
    return seen


_FIGURES: Final = (Figure("rate", "MiB/s", "more"), Figure("cpu", "s/GiB", "less"))


def _systems(write: int, streams: int) -> dict[str, Work]:
    return {
        "asyncio": partial(_asyncio, write, streams),
        "creche": partial(_creche, write, streams),
    }


CASES: Final = (
    Case("64-KiB-writes", _FIGURES, _systems(64 * 1024, 1)),
    Case("4-KiB-writes", _FIGURES, _systems(4096, 1)),
    Case("16-streams", _FIGURES, _systems(64 * 1024, STREAMS)),
)
