"""What an operation costs beside few and beside many live children.

The figures of one level are compared with those of another, of the same system in the
same round: what grows is seen in the curve.
"""

from functools import partial
from typing import Any

from bench.clock import serially
from bench.commands import CAT, LINE, SLEEP, TRUE
from bench.measure import Case, Figure, Found, quantile
from bench.sizes import Sizes
from bench.system import System
from bench.turn import everyone


async def _grow(sizes: Sizes, system: System) -> Found:
    values: dict[str, float] = {}
    held: list[Any] = []
    for level in sizes.levels:
        held += await system.hold_many(SLEEP, level - len(held))
        for name, seconds in (await _operations(sizes.level_times, system)).items():
            values[f"{name} @{level}"] = seconds * 1e6
    await system.kill(held)
    await system.forget(held)
    return Found(values)


async def _operations(count: int, system: System) -> dict[str, float]:
    session = await system.open(CAT)
    echo = await serially(partial(system.trip, session, LINE), count)
    await system.close(session)
    true = await serially(partial(system.run, TRUE), count)
    return {"true": quantile(true, 0.5), "echo": quantile(echo, 0.5)}


def cases(sizes: Sizes) -> tuple[Case, ...]:
    """Return one case, with a figure for each operation at each level."""
    figures = [
        Figure(name, "us", "less", level)
        for name in ("true", "echo")
        for level in sizes.levels
    ]
    return (Case("growth", figures, everyone(partial(_grow, sizes))),)
