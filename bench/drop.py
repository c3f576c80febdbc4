"""SIGKILL of a client: how long until the last process of its tree is gone.

The reference kills the same tree by itself, knowing every process of it: no engine can
be faster than that.
"""

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Final

import actors
from bench.measure import Case, Figure, Values, quantile

TREE: Final = 10
"""Processes in the hostile tree."""
DROPS: Final = 15
"""Per round; a third of a second each, nearly all of it preparation."""
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
pids in one line once all of them are up."""

HOSTILE_ARGV: Final = (sys.executable, "-I", "-S", "-c", HOSTILE)
CLIENT_ARGV: Final = (sys.executable, "-c", "import bench.drop; bench.drop.client()")


class Victims:
    """Processes, watched and signalled by pidfd: a number may change hands."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pidfds = [os.pidfd_open(pid) for pid in pids]

    def kill(self) -> None:
        for pidfd in self._pidfds:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def wait(self) -> None:
        """Return when the last of them has ended."""
        for pidfd in self._pidfds:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            poller.poll()

    def close(self) -> None:
        for pidfd in self._pidfds:
            os.close(pidfd)


def client() -> None:
    """Be a client with a hostile tree that lives until it is killed."""

    async def live() -> None:
        async with actors.Engine() as engine:
            child = await engine.spawn(HOSTILE_ARGV)
            async for event in child.events():
                if isinstance(event, actors.Chunk):
                    os.write(1, event.data)

    asyncio.run(live())


def _plain_drop() -> float:
    with _started(HOSTILE_ARGV) as root, closing(Victims(_told(root))) as tree:
        before = time.perf_counter()
        tree.kill()
        tree.wait()
        return time.perf_counter() - before


def _creche_drop() -> float:
    with _started(CLIENT_ARGV) as owner, closing(Victims(_told(owner))) as tree:
        before = time.perf_counter()
        owner.kill()
        tree.wait()
        return time.perf_counter() - before


def _started(argv: Sequence[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)


def _told(process: "subprocess.Popen[bytes]") -> list[int]:
    assert process.stdout is not None  # it is piped
    return [int(word) for word in process.stdout.readline().split()]


def _plain() -> Values:
    return _values([_plain_drop() for _ in range(DROPS)])


def _creche() -> Values:
    return _values([_creche_drop() for _ in range(DROPS)])


def _values(taken: Sequence[float]) -> Values:
    return {
        "p50": quantile(taken, 0.5) * 1e3,
        "p99": quantile(taken, 0.99) * 1e3,
    }


CASES: Final = (
    Case(
        f"drop-{TREE}",
        (Figure("p50", "ms", "less"), Figure("p99", "ms", "less")),
        {"plain kill": _plain, "creche": _creche},
    ),
)
