"""SIGKILL of a client, a worker, a broker: how long until its whole tree is gone.

The reference kills the same tree by itself, knowing every process of it: no engine can
be faster than that.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import actors
from bench.measure import Case, Figure, Found, times
from bench.parts import Parts
from bench.place import environment
from bench.sizes import Sizes
from bench.victims import Victims

TREE: Final = 20
"""Processes in the hostile tree."""
LIFETIME: Final = 60
"""Seconds after which a tree ends by itself, whatever becomes of the benchmark."""

HOSTILE: Final = f"""
import os, signal
signal.alarm({LIFETIME})
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
up, told = os.pipe()
for _ in range({TREE - 1}):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.alarm({LIFETIME})
        os.write(told, b"%d " % os.getpid())
        while True:
            signal.pause()
    os.wait()
words = b""
while words.count(b" ") < {TREE - 1}:
    words += os.read(up, 4096)
os.write(1, words + b"%d\\n" % os.getpid())
while True:
    signal.pause()
"""
"""Daemons that left session and parent and ignore what can be ignored; it tells their
pids in one line once all of them are up, its own last."""

HOSTILE_ARGV: Final = (sys.executable, "-I", "-S", "-c", HOSTILE)
CLIENT_ARGV: Final = (sys.executable, "-m", "bench.drop")

Victim = Callable[[int, Parts], int]
"""Chooses who is killed: given the client, and the parts of its engine."""

VICTIMS: Final[dict[str, Victim]] = {
    "client": lambda client, _: client,
    "worker": lambda _, parts: parts.worker,
    "broker": lambda _, parts: parts.broker,
}


def _plain(count: int) -> Found:
    return times([_plain_drop() for _ in range(count)], per_second=1e3)


def _plain_drop() -> float:
    with _telling(HOSTILE_ARGV) as (_, pids), Victims(pids) as tree:
        before = time.perf_counter()
        tree.kill()
        tree.wait()
        return time.perf_counter() - before


def _ours(count: int, victim: Victim) -> Found:
    return times([_drop(victim) for _ in range(count)], per_second=1e3)


def _drop(victim: Victim) -> float:
    with _telling(CLIENT_ARGV) as (client, pids), Victims(pids) as tree:
        parts = Parts.of(pids[-1])
        engine = Victims([parts.supervisor])
        with engine, Victims([victim(client, parts)]) as one:
            before = time.perf_counter()
            one.kill()
            tree.wait()
            taken = time.perf_counter() - before
            with Victims([client]) as owner:  # it may be the one: then none is left
                owner.kill()
            engine.wait()
            return taken


@contextmanager
def _telling(argv: Sequence[str]) -> Iterator[tuple[int, list[int]]]:
    """Start a command; give its pid and the pids that it tells; reap it."""
    started = subprocess.Popen(
        argv, stdout=subprocess.PIPE, env=environment(), start_new_session=True
    )
    with started as process:
        assert process.stdout is not None  # it is piped
        try:
            yield process.pid, [int(word) for word in process.stdout.readline().split()]
        finally:
            process.kill()


async def _own_a_tree() -> None:
    """Be a client with a hostile tree that lives until it is killed."""
    async with actors.Engine() as engine:
        child = await engine.spawn(HOSTILE_ARGV)
        async for event in child.events():
            if isinstance(event, actors.Chunk):
                os.write(1, event.data)
        await asyncio.Event().wait()  # whatever ends the tree: another ends the client


def cases(sizes: Sizes) -> tuple[Case, ...]:
    """Return one case for each that can be killed."""
    return tuple(
        Case(
            f"drop-{name}",
            (Figure("p50", "ms", "less"), Figure("p99", "ms", "less")),
            {
                "plain kill": partial(_plain, sizes.drops),
                "creche": partial(_ours, sizes.drops, victim),
            },
        )
        for name, victim in VICTIMS.items()
    )


if __name__ == "__main__":
    asyncio.run(_own_a_tree())
