"""Much output, read to its last byte: large writes, small writes, many streams."""

import os
import time
from functools import partial
from typing import Final

from bench import proc
from bench.commands import MIB, zeros
from bench.measure import Case, Figure, Found
from bench.sizes import Sizes
from bench.system import System
from bench.turn import everyone

LARGE: Final = 65536
SMALL: Final = 4096
STREAMS: Final = 16


async def _drain(size: int, write: int, streams: int, system: System) -> Found:
    each = max(1, int(size * system.share) // streams) * MIB
    argv = zeros(each, write)

    async def one() -> None:
        seen = await system.drain(argv)
        if seen != each:
            raise AssertionError(f"{each} bytes were written, {seen} were read")

    used, before = _cpu(), time.perf_counter()
    await system.together([one] * streams)
    taken = time.perf_counter() - before
    gibs = each * streams / MIB / 1024
    return Found({"rate": gibs * 1024 / taken, "cpu": (_cpu() - used) / gibs})


def _cpu() -> float:
    """The seconds of CPU of this process, and of all below it that is and was."""
    return proc.used(proc.family(os.getpid()))


_FIGURES: Final = (Figure("rate", "MiB/s", "more"), Figure("cpu", "s/GiB", "less"))


def cases(sizes: Sizes) -> tuple[Case, ...]:
    """Return the three ways to write much."""
    return (
        Case(
            "64-KiB-writes",
            _FIGURES,
            everyone(partial(_drain, sizes.stream, LARGE, 1), ["drain"]),
        ),
        Case(
            "4-KiB-writes",
            _FIGURES,
            everyone(partial(_drain, sizes.small_writes, SMALL, 1), ["drain"]),
        ),
        Case(
            f"{STREAMS}-streams",
            _FIGURES,
            everyone(partial(_drain, sizes.stream, LARGE, STREAMS), ["drain_many"]),
        ),
    )
