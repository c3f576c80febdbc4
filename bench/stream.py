"""Much output, read to its last byte: large and small writes, many streams, bursts.

Once more as a reader on another machine has it: all bytes travel in frames.
"""

import os
import time
from functools import partial
from typing import Final

from bench import proc
from bench.clock import serially
from bench.commands import MIB, zeros
from bench.measure import Case, Figure, Found, times
from bench.rivals import OURS, REFERENCE
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


async def _remote(size: int, system: System) -> Found:
    system.stay_remote()
    return await _drain(size, LARGE, 1, system)


async def _bursts(size: int, count: int, system: System) -> Found:
    taken = await serially(partial(system.drain, zeros(size, LARGE)), count)
    return times(taken, per_second=1e3)


def _cpu() -> float:
    """The seconds of CPU of this process, and of all below it that is and was."""
    return proc.used(proc.family(os.getpid()))


_FIGURES: Final = (Figure("rate", "MiB/s", "more"), Figure("cpu", "s/GiB", "less"))


_BURST_FIGURES: Final = (Figure("p50", "ms", "less"), Figure("p99", "ms", "less"))


def cases(sizes: Sizes) -> tuple[Case, ...]:
    """Return the ways to write much, and what is written at a stroke."""
    large = everyone(partial(_drain, sizes.stream, LARGE, 1), ["drain"])
    small = everyone(partial(_drain, sizes.small_writes, SMALL, 1), ["drain"])
    many = everyone(partial(_drain, sizes.stream, LARGE, STREAMS), ["drain_many"])
    remote = everyone(partial(_remote, sizes.stream))
    return (
        Case("64-KiB-writes", _FIGURES, large),
        Case("4-KiB-writes", _FIGURES, small),
        Case(f"{STREAMS}-streams", _FIGURES, many),
        Case("in-frames", _FIGURES, {name: remote[name] for name in (REFERENCE, OURS)}),
        *(
            Case(name, _BURST_FIGURES, everyone(burst, ["drain"]))
            for name, burst in (
                ("burst-64-KiB", partial(_bursts, LARGE, sizes.bursts)),
                ("burst-8-MiB", partial(_bursts, 8 * MIB, sizes.bursts)),
            )
        ),
    )
