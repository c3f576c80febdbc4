"""`python -m bench mixed --minutes N`: everything at once, at saturation, for long.

A shared broker gets more work of each kind than it can do: short commands, dialogues,
streams, kills of many, owners that drop by being collected, by leaving their scope and
by SIGKILL. After each minute it is told what was done and what the engine holds:
nothing may grow, and the last minute should be like the second (the first warms up).
"""

import argparse
import asyncio
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import actors
from bench import machine, proc, report
from bench.commands import CAT, LINE, MIB, SLEEP, TRUE, zeros
from bench.parts import Parts
from bench.place import environment
from bench.rivals.creche import Creche
from bench.system import Job

MINUTE: Final = 60.0
"""Seconds."""
TRIPS: Final = 100
"""Echoes of a dialogue before it ends and another begins."""
STREAMED: Final = 16
"""MiB of a stream."""
CROWD: Final = 20
"""Sessions that are killed at once, or dropped."""
DROPPED: Final = 5
"""Sessions of a client that is killed."""

KINDS: Final = (
    "spawns",
    "echoes",
    "MiB streamed",
    "kills",
    "collected",
    "left",
    "dropped",
)
"""What is counted: the last four are sessions, by how they ended."""

Minute = dict[str, float]
"""What was done in a minute, and what was held at its end, by name."""


class Load:
    """Work of each kind, again and again, counted."""

    def __init__(self, system: Creche, endpoint: str) -> None:
        self.done: Counter[str] = Counter()
        self.begun = asyncio.Event()
        """Set once there was work of each kind: the minutes are counted from then on."""
        self._system = system
        self._endpoint = endpoint

    def taken(self) -> Minute:
        """Return what was done since the last time that this was asked."""
        done = {name: float(self.done[name]) for name in KINDS}
        self.done.clear()
        return done

    async def again(self, job: Job, over: asyncio.Event) -> None:
        """Do a job until it is over."""
        while not over.is_set():
            await job()
            if all(self.done[name] for name in KINDS):
                self.begun.set()

    def jobs(self) -> list[Job]:
        """Return what goes on at once, as often as it does."""
        return [
            *[self._spawn] * 16,
            *[self._talk] * 8,
            *[self._stream] * 2,
            self._kill,
            self._collect,
            self._leave,
            self._drop,
        ]

    async def _spawn(self) -> None:
        await self._system.run(TRUE)
        self.done["spawns"] += 1

    async def _talk(self) -> None:
        session = await self._system.open(CAT)
        for _ in range(TRIPS):
            await self._system.trip(session, LINE)
            self.done["echoes"] += 1
        await self._system.close(session)

    async def _stream(self) -> None:
        seen = await self._system.drain(zeros(STREAMED * MIB, 65536))
        assert seen == STREAMED * MIB, f"{seen} bytes came"
        self.done["MiB streamed"] += STREAMED

    async def _kill(self) -> None:
        held = await self._system.hold_many(SLEEP, CROWD)
        await self._system.kill(held)
        await self._system.forget(held)
        self.done["kills"] += CROWD

    async def _collect(self) -> None:
        await self._system.engine.spawn(SLEEP)  # nobody keeps the handle
        self.done["collected"] += 1

    async def _leave(self) -> None:
        async with self._system.engine.scope() as scope:
            for _ in range(CROWD):
                await scope.spawn(SLEEP)
        self.done["left"] += CROWD

    async def _drop(self) -> None:
        client = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "bench.mixed", self._endpoint),
            stdout=asyncio.subprocess.PIPE,
            env=environment(),
        )
        assert client.stdout is not None  # it is piped
        up = await client.stdout.readline()
        assert up == b"up\n", "a client did not start"
        client.kill()
        await client.communicate()
        self.done["dropped"] += DROPPED


class Watch:
    """Looks at what an engine and its client, this process, hold."""

    def __init__(self, parts: Parts, directory: Path) -> None:
        self._pids = {
            "client": os.getpid(),
            "broker": parts.broker,
            "pool": parts.pool,
            "supervisor": parts.supervisor,
        }
        self._directory = directory

    def held(self) -> Minute:
        """Return what there is now."""
        workers = proc.children(self._pids["pool"])
        each = proc.pss(workers) / max(1, len(workers))
        return {
            "workers": len(workers),
            "files": sum(1 for _ in self._directory.rglob("*")),
            **{f"fds, {name}": proc.fds([pid]) for name, pid in self._pids.items()},
            **{f"MiB, {name}": proc.pss([p]) / MIB for name, p in self._pids.items()},
            "MiB, a worker": each / MIB,
        }


async def run(minutes: int, directory: Path, *, minute: float = MINUTE) -> list[Minute]:
    """Load a broker for so many minutes; return what was done and held in each.

    Args:
        minutes: how many.
        directory: a private one, for the broker.
        minute: seconds of one.

    Raises:
        ExceptionGroup: work went wrong.
    """
    endpoint = f"ipc://{directory}/broker.sock"
    with _broker(endpoint):
        system = Creche(endpoint)
        await system.start()
        one = await system.engine.spawn(SLEEP)
        watch, load = Watch(Parts.of(one.pid), directory), Load(system, endpoint)
        found, over = [], asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for job in load.jobs():
                group.create_task(load.again(job, over))
            await load.begun.wait()
            for _ in range(minutes):
                await asyncio.sleep(minute)
                found.append({**load.taken(), **watch.held()})
            over.set()
        await one.aclose()
        await system.stop()
    return found


@contextmanager
def _broker(endpoint: str) -> Iterator[None]:
    """Have a shared broker for as long as this lasts."""
    words = [sys.executable, "-m", "actors", "serve", "--endpoint", endpoint]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, env=environment(), start_new_session=True
    ) as broker:
        try:
            assert broker.stdout is not None  # it is piped
            assert b" ready " in broker.stdout.readline(), "the broker did not start"
            yield
        finally:
            broker.terminate()


async def _be_dropped(endpoint: str) -> None:
    """Own some children until this process is killed."""
    async with actors.Engine(endpoint) as engine:
        held = [await engine.spawn(SLEEP) for _ in range(DROPPED)]
        print("up", flush=True)
        await asyncio.Event().wait()
        del held


def told(minutes: Sequence[Minute]) -> str:
    """Return the minutes as a table; its last column is the last over the second."""
    numbers = [str(number) for number in range(1, len(minutes) + 1)]
    return report.table(
        ("in a minute, at its end", *numbers, "last/second"),
        (
            (
                name,
                *(f"{minute[name]:.4g}" for minute in minutes),
                report.ratio(growth(name, minutes)),
            )
            for name in minutes[0]
        ),
    )


def growth(name: str, minutes: Sequence[Minute]) -> float:
    """Return the last minute's number over the second's; NaN if there is none."""
    if len(minutes) < 2 or not minutes[1][name]:
        return math.nan
    return minutes[-1][name] / minutes[1][name]


def main(words: Sequence[str]) -> None:
    """Load, and tell."""
    parser = argparse.ArgumentParser("python -m bench mixed", description=__doc__)
    parser.add_argument("--minutes", type=int, default=5, help="5 unless told")
    minutes = parser.parse_args(words).minutes
    with tempfile.TemporaryDirectory() as directory:
        print(told(asyncio.run(run(minutes, Path(directory)))))
    print(machine.line(machine.facts()))


if __name__ == "__main__":
    asyncio.run(_be_dropped(sys.argv[1]))
