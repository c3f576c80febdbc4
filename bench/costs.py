"""`python -m bench costs`: what one session, message and byte cost on this machine.

CPU is counted, not time, so that a busy machine gives nearly the same numbers. They are
what `python -m bench scale --measured FILE` calculates with.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench import machine, proc, report
from bench.clock import serially
from bench.commands import CAT, LINE, MIB, SLEEP, TRUE, zeros
from bench.hold import SETTLE
from bench.options import changed
from bench.parts import Parts
from bench.rivals.creche import Creche
from bench.scale import Costs

WIDTH: Final = 16
"""Commands under way at any time."""
ANSWERS: Final = 2
"""Messages of an echo: the line, and what comes back."""


@dataclass(frozen=True, slots=True)
class Work:
    """How much is done to count what it costs.

    Attributes:
        starts: commands that are run to their end.
        trips: lines that are echoed.
        mib: MiB of output.
        sessions: children that are held.
        seconds: for which these are idle.
    """

    starts: int = 1000
    trips: int = 3000
    mib: int = 1024
    sessions: int = 200
    seconds: float = 5.0


class Meter:
    """Counts the CPU of a broker, and of this process with all below it."""

    def __init__(self, system: Creche, broker: int) -> None:
        self.system = system
        self.broker = broker

    async def cost(
        self, work: Callable[[], Awaitable[object]], count: float
    ) -> tuple[float, float]:
        """Return the seconds of the broker and of all, for each of `count` things."""
        broker, everything = self._used()
        await work()
        then = self._used()
        return (then[0] - broker) / count, (then[1] - everything) / count

    def _used(self) -> tuple[float, float]:
        family = proc.family(os.getpid())
        return proc.cpu([self.broker]), proc.used(family)


async def measure(work: Work, *, remote: bool = False) -> Costs:
    """Return what things cost, a reader being local unless told."""
    system = Creche()
    if remote:
        system.stay_remote()
    await system.start()
    one = await system.hold(SLEEP)
    meter = Meter(system, Parts.of(one.pid).broker)
    await asyncio.sleep(SETTLE)
    found = {
        **await _held(meter, work),  # first: later there are idle workers to take
        **await _starts(meter, work.starts),
        **await _messages(meter, work.trips),
        **await _bytes(meter, work.mib * MIB),
    }
    await one.aclose()
    await system.stop()
    return Costs(**found)


async def _starts(meter: Meter, count: int) -> dict[str, float]:
    run = partial(meter.system.keep_running, TRUE, width=WIDTH)
    await run(times=WIDTH)  # the first of a pool are dearer
    broker, everything = await meter.cost(partial(run, times=count), count)
    return {"broker_session": broker, "session": everything}


async def _messages(meter: Meter, count: int) -> dict[str, float]:
    session = await meter.system.open(CAT)
    trips = partial(serially, partial(meter.system.trip, session, LINE), count)
    broker, everything = await meter.cost(trips, ANSWERS * count)
    await meter.system.close(session)
    return {"broker_message": broker, "message": everything}


async def _bytes(meter: Meter, size: int) -> dict[str, float]:
    drain = partial(meter.system.drain, zeros(size, 65536))
    broker, everything = await meter.cost(drain, size)
    return {"broker_byte": broker, "byte": everything}


async def _held(meter: Meter, work: Work) -> dict[str, float]:
    count, before = work.sessions, _sizes(meter.broker)
    held = await meter.system.hold_many(SLEEP, count)
    await asyncio.sleep(SETTLE)
    after = _sizes(meter.broker)
    engine = proc.engine()
    used = proc.cpu(engine)
    await asyncio.sleep(work.seconds)
    idle = (proc.cpu(engine) - used) / count / work.seconds
    children = proc.pss(child.pid for child in held)
    await meter.system.kill(held)
    await meter.system.forget(held)
    return {
        "idle": idle,
        "child_memory": children / count,
        **{f"engine_{name}": float(size) for name, size in before.items()},
        **{f"session_{name}": (after[name] - before[name]) / count for name in before},
    }


def _sizes(broker: int) -> dict[str, int]:
    """What an engine has, its client's memory and threads included."""
    family = list(proc.family(os.getpid()))
    return {
        "memory": proc.pss(proc.engine()),
        "pids": proc.threads(family),
        "files": proc.fds([broker]),
    }


def told(costs: Costs) -> str:
    """Return costs for people: CPU in us, memory in MiB."""
    return report.table(
        ("what", "cost"),
        ((name, _shown(name, cost)) for name, cost in asdict(costs).items()),
    )


def _shown(name: str, cost: float) -> str:
    if name.endswith("byte"):
        return f"{cost * 2**30:.3g} s/GiB"
    if name.endswith("memory"):
        return f"{cost / MIB:.3g} MiB"
    if name.endswith(("pids", "files")):
        return f"{cost:.3g}"
    return f"{cost * 1e6:.3g} us"


def main(words: Sequence[str]) -> None:
    """Measure, and tell."""
    parser = argparse.ArgumentParser("python -m bench costs", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="for `bench scale`")
    parser.add_argument("--remote", action="store_true", help="output in frames")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help=str(Work())
    )
    given = parser.parse_args(words)
    costs = asyncio.run(measure(changed(Work(), given.set), remote=given.remote))
    print(told(costs), machine.line(machine.facts()), sep="\n")
    if given.json:
        written: dict[str, Any] = {"machine": machine.facts(), "costs": asdict(costs)}
        given.json.write_text(json.dumps(written, indent=1) + "\n")
