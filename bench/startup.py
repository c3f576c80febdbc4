"""From nothing to the end of a first child: a new engine, or a new loop, each time.

The imports of the calling program are made before; an engine's processes make theirs
within the time.
"""

import time
from functools import partial

from bench import rivals
from bench.commands import TRUE
from bench.measure import Case, Figure, Found, Work, times
from bench.sizes import Sizes
from bench.turn import load


def _starts(count: int, name: str) -> Found:
    taken = [_start(name) for _ in range(count + 1)]
    return times(taken[1:], per_second=1e3)  # the first made imports


def _start(name: str) -> float:
    system = load(rivals.RIVALS[name])
    took = 0.0

    async def main() -> None:
        nonlocal took
        await system.start()
        await system.run(TRUE)
        took = time.perf_counter() - before
        await system.stop()

    before = time.perf_counter()
    system.play(main)
    return took


def cases(sizes: Sizes) -> tuple[Case, ...]:
    """Return the one case."""
    works: dict[str, Work] = {
        name: partial(_starts, sizes.starts, name) for name in rivals.RIVALS
    }
    return (Case("start-up", (Figure("p50", "ms", "less"),), works),)
