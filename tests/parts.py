"""The processes of an engine, found from outside, and client programs apart."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from broker import tree
from tests.helpers import (
    DAEMON_TREE,
    FOREVER,
    NOT_BLOCKED,
    alive,
    end,
    eventually,
    parent,
    python,
    stop,
)

ROOT = Path(__file__).resolve().parent.parent
DAEMONS = 3

_PAUSES = DAEMON_TREE.rpartition("while True:")[0]
FLOODING_TREE = _PAUSES + "while True:\n    os.write(1, b'x' * 65536)\n"
"""Like DAEMON_TREE; then it writes without end."""

COUNTING_TREE = (
    _PAUSES
    + """
number = 0
while True:
    os.write(1, b"%d\\n" % number)
    number += 1
    time.sleep(0.001)
"""
)
"""Like DAEMON_TREE; then it counts, a number a line: a reader sees every gap."""


def daemons(word: str, code: str = DAEMON_TREE) -> list[str]:
    """Return a command for a tree of daemons that ignore SIGTERM, marked `word`."""
    return python(code, word, str(DAEMONS))


class Parts(NamedTuple):
    """The engine's processes behind one child."""

    worker: int
    pool: int
    supervisor: int
    broker: int

    @classmethod
    def of(cls, child: int) -> "Parts":
        """Return the engine processes that serve the child of this pid."""
        worker = parent(child)
        pool = parent(worker)
        supervisor = parent(pool)
        (broker,) = set(tree.children(supervisor)) - {pool}
        return cls(worker, pool, supervisor, broker)

    def crash(self, *others: int) -> None:
        """Kill all of the engine, and others; none has time to do anything.

        All are stopped before, the pool before its workers are listed: one that it
        forks meanwhile would go on, and write its record when all is over.
        """
        everybody = [*others, self.supervisor, self.broker, self.pool]
        stop(*everybody)
        workers = tree.children(self.pool)
        stop(*workers)
        end(everybody + workers)
        eventually(lambda: not any(map(alive, everybody + workers)))


class Identities:
    """Processes as they are now: a pid that is used again does not count as alive."""

    def __init__(self, *pids: int) -> None:
        self._known = {pid: tree.identify(pid) for pid in pids}

    def alive(self) -> list[int]:
        """Return those that still live."""
        living = []
        for pid, known in self._known.items():
            now = tree.stat(pid)
            if now is not None and not now.ended and now.identity == known:
                living.append(pid)
        return living

    def gone(self) -> None:
        """Wait until none lives."""
        eventually(lambda: not self.alive(), what=lambda: f"alive: {self.alive()}")


PRELUDE = f"""\
import asyncio, gc, os, signal, sys
import actors
from tests.helpers import python
from tests.parts import COUNTING_TREE, FLOODING_TREE, Parts, daemons

signal.alarm({FOREVER})

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def heard():
    return sys.stdin.readline().strip()

async def up(child):
    seen = b""
    while b"up\\n" not in seen:
        seen += (await child.poll(wait=10, mode="output", max_bytes=4096)).stdout

async def start(engine, word, **options):
    child = await engine.spawn(daemons(word), **options)
    await up(child)
    say("pid", child.pid)
    return child

"""
"""What every client program of a test begins with."""


class Program:
    """A client program in a process of its own; it talks in lines."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self, timeout: float = NOT_BLOCKED) -> str:
        """Return its next line; empty at the end."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        ends = time.monotonic() + timeout
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        while b"\n" not in self._buffer:
            left = ends - time.monotonic()
            if left <= 0 or not poller.poll(left * 1000):
                raise AssertionError(f"no line; it said {self._buffer!r}")
            data = os.read(fd, 65536)
            if not data:
                break
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def said(self, word: str) -> list[str]:
        """Take the next line, which begins with `word`; return the other words."""
        line = self.line()
        first, *others = line.split() or [""]
        assert first == word, line
        return others

    def number(self, word: str) -> int:
        """Take the next line, `word NUMBER`."""
        return int(self.said(word)[0])

    def tell(self, line: str) -> None:
        """Write a line to its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL it, and reap it."""
        self.process.kill()
        self.process.wait()


@contextmanager
def running(*command: str, **options: object) -> Iterator[Program]:
    """Run a command for a block; it is killed and reaped in the end."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,  # type: ignore[call-overload]
    )
    try:
        yield Program(process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@contextmanager
def serving(
    endpoint: str, *before: str, grace: float | None = None
) -> Iterator[Program]:
    """Run a shared broker for a block; it has to end by SIGTERM, with 0.

    `before` is a command that executes what follows it.
    """
    command = [*before, sys.executable, "-m", "broker"]
    command += ["--endpoint", endpoint, "--warm", "2"]
    if grace is not None:
        command += ["--grace", str(grace)]
    if log := os.environ.get("CRECHE_LOG"):
        command += ["--log", log]
    with running(*command) as program:
        assert program.line() == f"creche broker ready {endpoint}"
        yield program
        if program.process.poll() is None:
            program.signal(signal.SIGTERM)
            assert program.process.wait(15) == 0


_NARROW = """
import runpy, sys
from broker import capacity
capacity.process_limit = lambda: capacity.SPARE_PROCESSES
sys.argv = sys.argv[3:]
runpy.run_module("broker", run_name="__main__")
"""

NARROW = [sys.executable, "-c", _NARROW]
"""Executes a broker that has room for one session."""


@contextmanager
def client(directory: Path, body: str) -> Iterator[Program]:
    """Run a client program: `PRELUDE` and `body`."""
    name = f"client{len(list(directory.glob('client*.py')))}.py"
    script = directory / name
    script.write_text(PRELUDE + body)
    with running(sys.executable, str(script)) as program:
        yield program
