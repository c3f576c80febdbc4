"""Many children that live: starting them, what each costs, ending them all.

Once as they come, and once with a worker forked ahead for each: of what is started that
way the reference and the floor have nothing to prepare.
"""

import time
from functools import partial
from typing import Final

from bench import proc
from bench.commands import SLEEP
from bench.measure import Case, Figure, Found
from bench.sizes import Sizes
from bench.system import System
from bench.turn import everyone

SETTLE: Final = 0.5
"""Seconds for what follows the last start to be over."""


async def _hold(count: int, system: System) -> Found:
    before = time.perf_counter()
    held = await system.hold_many(SLEEP, count)
    started = time.perf_counter() - before
    await system.sleep(SETTLE)
    memory = proc.pss(proc.engine()) - system.memory_before
    before = time.perf_counter()
    await system.kill(held)
    ended = time.perf_counter() - before
    await system.forget(held)
    return Found(
        {"start": count / started, "memory": memory / count / 1024, "kill": ended * 1e3}
    )


async def _hold_warm(count: int, system: System) -> Found:
    await system.prepare(count)
    await system.sleep(SETTLE)
    return await _hold(count, system)


def cases(sizes: Sizes) -> tuple[Case, ...]:
    """Return the one number of children, without and with preparation."""
    return tuple(
        Case(
            f"hold-{sizes.sessions}{name}",
            (
                Figure("start", "/s", "more"),
                Figure("memory", "KiB each", "less"),
                Figure("kill", "ms", "less"),
            ),
            everyone(partial(play, sizes.sessions)),
        )
        for name, play in (("", _hold), ("-warm", _hold_warm))
    )
