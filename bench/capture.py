"""Starting a short command and having its output, from three pipes."""

import time
from functools import partial
from typing import Final

from bench.clock import serially
from bench.commands import ECHO
from bench.measure import Case, Figure, Found, times
from bench.sizes import Sizes
from bench.system import System
from bench.turn import everyone

WIDTH: Final = 64


async def _checked(system: System) -> None:
    output = await system.capture(ECHO)
    assert output.split() == [b"hi"], output  # a terminal has line ends of its own


async def _one_by_one(sizes: Sizes, system: System) -> Found:
    taken = await serially(partial(_checked, system), sizes.serial)
    return times(taken, per_second=1e3)


async def _at_once(sizes: Sizes, system: System) -> Found:
    once = partial(_checked, system)
    await system.keep_going(once, width=WIDTH, times=WIDTH)
    before = time.perf_counter()
    await system.keep_going(once, width=WIDTH, times=sizes.batch)
    return Found({"rate": sizes.batch / (time.perf_counter() - before)})


def cases(sizes: Sizes) -> tuple[Case, ...]:
    """Return one by one, and many at once."""
    return (
        Case(
            "capture",
            (Figure("p50", "ms", "less"), Figure("p99", "ms", "less")),
            everyone(partial(_one_by_one, sizes)),
        ),
        Case(
            f"capture-{WIDTH}",
            (Figure("rate", "/s", "more"),),
            everyone(partial(_at_once, sizes)),
        ),
    )
