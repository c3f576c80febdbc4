"""Starting a short command and seeing its end; nobody wants its output."""

import time
from functools import partial
from typing import Final

from bench.clock import serially
from bench.commands import TRUE
from bench.measure import Case, Figure, Found, times
from bench.sizes import Sizes
from bench.system import System
from bench.turn import everyone

WIDTHS: Final = (16, 64, 256)


async def _one_by_one(sizes: Sizes, system: System) -> Found:
    taken = await serially(partial(system.run, TRUE), sizes.serial)
    return times(taken, per_second=1e3)


async def _at_once(sizes: Sizes, width: int, system: System) -> Found:
    # The first of a pool are dearer.
    await system.keep_running(TRUE, width=width, times=width)
    before = time.perf_counter()
    await system.keep_running(TRUE, width=width, times=sizes.batch)
    return Found({"rate": sizes.batch / (time.perf_counter() - before)})


def cases(sizes: Sizes) -> tuple[Case, ...]:
    """Return one by one, and at each width."""
    return (
        Case(
            "true",
            (Figure("p50", "ms", "less"), Figure("p99", "ms", "less")),
            everyone(partial(_one_by_one, sizes)),
        ),
        *(
            Case(
                f"true-{width}",
                (Figure("rate", "/s", "more"),),
                everyone(partial(_at_once, sizes, width)),
            )
            for width in WIDTHS
        ),
    )
