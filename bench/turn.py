"""One system's turn at a workload, in the process of its own round."""

import importlib
import os
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from bench import proc
from bench.measure import Found, Work
from bench.rivals import RIVALS, Rival
from bench.system import System

Play = Callable[[System], Coroutine[Any, Any, Found]]
"""Does the work of a round with a system that was started."""


def everyone(play: Play, needs: Collection[str] = ()) -> dict[str, Work]:
    """Return the work of every system that has what a workload needs, by name."""
    return {
        name: partial(_turn, rival, play)
        for name, rival in RIVALS.items()
        if not set(needs) & set(rival.lacks)
    }


def _turn(rival: Rival, play: Play) -> Found:
    # Before anything is imported: what a library weighs is part of what it costs.
    memory = proc.pss([os.getpid()])
    system = load(rival)
    system.memory_before, system.share = memory, rival.share

    async def main() -> Found:
        await system.start()
        try:
            return await play(system)
        finally:
            await system.stop()

    found = system.play(main)
    return replace(found, stages=system.stages)


def load(rival: Rival) -> System:
    """Return a new system of a rival; imports what it needs."""
    module, _, name = rival.place.partition(":")
    system: System = getattr(importlib.import_module(module), name)()
    return system
