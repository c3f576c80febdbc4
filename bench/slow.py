"""`python -m bench slow`: a stream whose reader is slow, and what others notice of it.

A child writes as fast as it can, its reader takes a little at a time: what do broker,
worker and client hold meanwhile, does another session's echo suffer, and does a kill
have to wait until the output is read?
"""

import argparse
import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import actors
from bench import machine, proc, report
from bench.clock import Once, serially
from bench.commands import CAT, LINE, MIB, zeros
from bench.measure import quantile
from bench.options import changed
from bench.parts import Parts
from bench.rivals.creche import KEPT, Creche

POLICIES: Final = {"block": KEPT, "tail": actors.Settings().retention}
"""One that holds the child back, and the default, which leaves a gap."""
ECHOES: Final = 50
"""Echoes between two looks at the memory."""
PAUSE: Final = 0.1
"""Seconds between two such lots."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is written, and how it is read.

    Attributes:
        mib: MiB that the child writes.
        rate: MiB that its reader takes in a second.
        seconds: for how long it is watched before it is killed.
    """

    mib: int = 1024
    rate: float = 1.0
    seconds: float = 15.0


@dataclass(frozen=True, slots=True)
class Noticed:
    """What a slow reader costs others; seconds and bytes.

    Attributes:
        alone: echoes of another session before the stream.
        beside: its echoes meanwhile.
        memory: the most that each part had more than before, and in all.
        kill: the time until the end of the writer was proven.
        read: the bytes that its reader had by then.
    """

    alone: Sequence[float]
    beside: Sequence[float]
    memory: Mapping[str, tuple[int, int]]
    kill: float
    read: int


class Reader:
    """Takes the output of a child at a steady rate, in a task."""

    def __init__(self, child: actors.Child, rate: float) -> None:
        self.read = 0
        self._child = child
        self._rate = rate
        self._task = asyncio.ensure_future(self._go_on())

    async def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with self._child.events() as events:
            async for event in events:
                if isinstance(event, actors.Chunk):
                    self.read += len(event.data)
                    due = started + self.read / self._rate
                    await asyncio.sleep(due - loop.time())

    async def stop(self) -> None:
        """Read no further.

        Raises:
            Exception: what ended the reading.
        """
        if self._task.cancel():
            await asyncio.wait([self._task])
        else:
            await self._task


class Memory:
    """The memory of the parts that a stream passes, watched by looking."""

    def __init__(self, child: actors.Child) -> None:
        parts = Parts.of(child.pid)
        self._pids = {
            "client": os.getpid(),
            "broker": parts.broker,
            "worker": parts.worker,
        }
        self._before = self._sizes()
        self._most = dict(self._before)

    def _sizes(self) -> dict[str, int]:
        return {name: proc.pss([pid]) for name, pid in self._pids.items()}

    def look(self) -> None:
        """Note what they have now, if it is more than ever."""
        for name, size in self._sizes().items():
            self._most[name] = max(self._most[name], size)

    def found(self) -> dict[str, tuple[int, int]]:
        """Return the most that each had, more than at first, and in all."""
        return {
            name: (size - self._before[name], size) for name, size in self._most.items()
        }


async def notice(amount: Amount, policy: actors.OutputPolicy) -> Noticed:
    """Watch one slow reader of a stream with this retention."""
    system = Creche()
    await system.start()
    other = await system.open(CAT)

    async def trip() -> None:
        await system.trip(other, LINE)

    alone = await serially(trip, 10 * ECHOES)
    command = zeros(amount.mib * MIB, 65536)
    writer = await system.engine.spawn(command, stderr="null", retention=policy)
    memory, reader = Memory(writer), Reader(writer, amount.rate * MIB)
    beside = await _watch(amount.seconds, trip, memory)
    before = time.perf_counter()
    await writer.kill()
    killed = time.perf_counter() - before
    await reader.stop()
    await writer.aclose()
    await system.close(other)
    await system.stop()
    return Noticed(alone, beside, memory.found(), killed, reader.read)


async def _watch(seconds: float, trip: Once, memory: Memory) -> list[float]:
    """Return what echoes took while the stream went on."""
    ends, taken = time.monotonic() + seconds, list[float]()
    while time.monotonic() < ends:
        taken += await serially(trip, ECHOES, warm=0)
        memory.look()
        await asyncio.sleep(PAUSE)
    return taken


def told(policy: str, noticed: Noticed) -> list[tuple[str, str, str]]:
    """Return what was noticed as the cells of a table."""
    echoes = {"alone": noticed.alone, "beside the stream": noticed.beside}
    return [
        *(
            (policy, f"echo {which}, {name}", f"{quantile(taken, part) * 1e6:.0f} us")
            for name, part in (("p50", 0.5), ("p99", 0.99))
            for which, taken in echoes.items()
        ),
        *(
            (policy, f"memory of the {part}", f"+{_mib(more)}, {_mib(whole)} in all")
            for part, (more, whole) in noticed.memory.items()
        ),
        (policy, "read by then", _mib(noticed.read)),
        (policy, "kill", f"{noticed.kill * 1e3:.1f} ms"),
    ]


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"


def main(words: Sequence[str]) -> None:
    """Measure, and tell."""
    parser = argparse.ArgumentParser("python -m bench slow", description=__doc__)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"how much, and how slowly: {Amount()}",
    )
    amount = changed(Amount(), parser.parse_args(words).set)
    lines = [
        line
        for name, policy in POLICIES.items()
        for line in told(name, asyncio.run(notice(amount, policy)))
    ]
    print(report.table(("retention", "what", "found"), lines))
    print(machine.line(machine.facts()))
