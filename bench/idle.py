"""Children that do nothing: the CPU that they cost whoever holds them."""

import time
from functools import partial

from bench import proc
from bench.commands import SLEEP
from bench.hold import SETTLE
from bench.measure import Case, Figure, Found
from bench.sizes import Sizes
from bench.system import System
from bench.turn import everyone


async def _idle(sizes: Sizes, system: System) -> Found:
    held = await system.hold_many(SLEEP, sizes.idle)
    await system.sleep(SETTLE)
    processes = proc.engine()
    used, before = proc.cpu(processes), time.perf_counter()
    await system.sleep(sizes.idle_seconds)
    busy = (proc.cpu(processes) - used) / (time.perf_counter() - before)
    await system.kill(held)
    await system.forget(held)
    return Found({"cpu": busy * 100})


def cases(sizes: Sizes) -> tuple[Case, ...]:
    """Return the one number of children."""
    return (
        Case(
            f"idle-{sizes.idle}",
            (Figure("cpu", "% of a core", "less"),),
            everyone(partial(_idle, sizes)),
        ),
    )
