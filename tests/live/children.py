"""Child programs for difficult situations, and the few loops that tests of them share.

Each program is Python source for `program()`: all its processes show its tag in their
command lines, and each ends by itself after `FOREVER` seconds.
"""

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from actors import Child, Chunk, Engine, EventStream, PollResult
from broker import tree
from tests.helpers import FOREVER, NOT_BLOCKED, go, parent, python, stop

KIB = 1024
MIB = 1024 * KIB

Opened = Callable[..., AbstractAsyncContextManager[Engine]]
"""What the fixture `opened` is: called like `Engine`, it opens one for a block."""

ROOT = str(Path(__file__).resolve().parent.parent.parent)

PRELUDE = f"""
import os, sys, time

def forked(act):
    pid = os.fork()
    if pid == 0:
        signal.alarm({FOREVER})
        act()
        os._exit(0)
    return pid

def rest():
    while True:
        signal.pause()

def write(data, fd=1):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]
"""


def program(body: str, *words: str) -> list[str]:
    """Return a command that runs `body` with `words` in its command line."""
    return python(PRELUDE + body, *words)


REST = "write(b'ready\\n'); rest()"

HELPER_HOLDS_PIPES = "forked(rest); write(b'main-done\\n'); os._exit(3)"

HELPER_AND_LEADER_REST = "forked(rest); write(b'ready\\n'); rest()"

CLOSES_OUTPUT_AND_WORKS = """
os.close(1); os.close(2)
while os.read(0, 4096):
    pass
os._exit(23)
"""

BURST = """
import hashlib
size = int(sys.argv[2])
write(hashlib.shake_128().hexdigest(size // 2 + 1).encode()[:size])
os._exit(0)
"""


def burst(size: int) -> bytes:
    """Return what `BURST` writes: no part of it is like another."""
    return hashlib.shake_128().hexdigest(size // 2 + 1).encode()[:size]


LAST_WORDS = """
write(b"A" * 5000); time.sleep(0.25); write(b"B" * 5000); os._exit(6)
"""

NUMBERS = """
for n in range(int(sys.argv[2])):
    os.write(1, b"%d\\n" % n)
os._exit(0)
"""


def numbers(count: int) -> bytes:
    """Return what `NUMBERS` writes."""
    return b"".join(b"%d\n" % n for n in range(count))


LONG_LINE = "write(b'x' * int(sys.argv[2]) + b'\\nafter-long-line\\n')"

FLOOD = """
block = b"f" * 65536
while True:
    os.write(1, block)
"""

LEAVES_ON_CUE = """
while b"go\\n" not in os.read(0, 3):
    pass
write(b"leaving\\n")
os._exit(9)
"""

ECHOES_LINES = """
lines = 0
for line in sys.stdin.buffer:
    lines += 1
    write(b"E:" + line)
write(b"total %d\\n" % lines)
"""

ESCAPES_GROUP = """
def escape():
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.write(1, b"ready\\n")
    rest()
forked(escape)
rest()
"""

LEAVES_POOL = """
def helper():
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for fd in 0, 1, 2:
        os.close(fd)
    rest()
for _ in range(3):
    forked(helper)
os._exit(0)
"""

THREE_GENERATIONS = """
def middle():
    forked(lambda: (os.write(1, b"up\\n"), rest()))
    rest()
forked(middle)
rest()
"""

STOPS_ITSELF = f"""
def guard():
    signal.alarm(0)
    time.sleep({FOREVER})
    os.kill(os.getppid(), signal.SIGKILL)
forked(guard)
def polite(*_):
    write(b"term-handled\\n")
    os._exit(17)
signal.signal(signal.SIGTERM, polite)
write(b"ready\\n")
os.kill(os.getpid(), signal.SIGSTOP)
rest()
"""

DIES_BY = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.kill(os.getpid(), int(sys.argv[2]))
rest()
"""

TICKS = """
for n in range(int(sys.argv[2])):
    os.write(1, b"tick %d\\n" % n)
    time.sleep(0.05)
write(b"ticker-done\\n")
"""

DESCRIBES_ITSELF = """
import resource
fds = []
for fd in range(64):
    try:
        os.fstat(fd)
        fds.append(fd)
    except OSError:
        pass
with open("/proc/self/status") as file:
    status = dict(line.split(":", 1) for line in file)
state = {
    "fds": fds,
    "sid": os.getsid(0), "pgid": os.getpgrp(), "pid": os.getpid(),
    "blocked": status["SigBlk"].strip(), "ignored": status["SigIgn"].strip(),
    "umask": status["Umask"].strip(), "cwd": os.getcwd(),
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "nofile": resource.getrlimit(resource.RLIMIT_NOFILE),
    "env": dict(os.environ), "argv": sys.argv[1:],
}
write(repr(state).encode())
"""


REPEATS_INPUT = """
while data := os.read(0, 65536):
    write(data)
"""

COUNTS_INPUT = """
total = 0
while data := os.read(0, 65536):
    total += len(data)
write(b"total %d" % total)
"""

STEP_BY_STEP = """
for line in sys.stdin.buffer:
    fd, _, word = line.rstrip(b"\\n").partition(b" ")
    write(word, int(fd))
"""


# -- what tests do with children ------------------------------------------------


def repeated(few: int, full: int) -> pytest.MarkDecorator:
    """Run a test with a few `runs`; with all of them under `-m soak`."""
    marks = [pytest.mark.soak, pytest.mark.timeout(900)]
    return pytest.mark.parametrize("runs", [few, pytest.param(full, marks=marks)])


async def drained(child: Child, **options: Any) -> tuple[bytes, PollResult]:
    """Poll to the end; return the whole standard output, and the last answer."""
    parts = []
    while True:
        seen = await child.poll(**options)
        parts.append(seen.stdout)
        if seen.done:
            return b"".join(parts), seen


async def until(child: Child, word: bytes) -> bytes:
    """Poll until `word` was written; return the output so far."""
    parts = b""
    while word not in parts:
        seen = await child.poll(mode="output", wait=NOT_BLOCKED)
        parts += seen.stdout
        assert parts or not seen.done, "the child ended without a word"
    return parts


async def collected(stream: EventStream) -> list[Any]:
    return [event async for event in stream]


def data_of(events: list[Any], stream: str = "stdout") -> bytes:
    return b"".join(
        event.data
        for event in events
        if isinstance(event, Chunk) and event.stream == stream
    )


def kinds(events: list[Any]) -> list[str]:
    return [type(event).__name__ for event in events]


def command_line(pid: int) -> bytes:
    """Return the words of a process, empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def engine_processes(engine: Engine) -> dict[str, list[int]]:
    """Return the pids of a private broker's processes by what they are."""
    assert engine._opened is not None
    embedded = engine._opened._embedded
    assert embedded is not None
    supervisor = embedded.pid
    found: dict[str, list[int]] = {"supervisor": [supervisor], "worker": []}
    below = [pid for pid in tree.descendants(supervisor) if command_line(pid)]
    pools = [pid for pid in below if b"broker.pool" in command_line(pid)]
    found["pool"] = [pid for pid in pools if _parent(pid) == supervisor]
    found["worker"] = [pid for pid in pools if _parent(pid) in found["pool"]]
    same = command_line(supervisor)
    found["broker"] = [pid for pid in below if command_line(pid) == same]
    return found


def _parent(pid: int) -> int:
    try:
        return parent(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def cpu_ticks(pid: int) -> int:
    """Return how long a process has been on a processor, in clock ticks."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


def resident(pids: Iterable[int]) -> dict[int, int]:
    """Return the resident memory of each process, in bytes."""
    page = os.sysconf("SC_PAGE_SIZE")
    return {
        pid: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
        for pid in pids
    }


def peak(pid: int) -> int:
    """Return the most memory that a process ever had resident, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Let a process stand still for a block."""
    try:
        stop(pid)
        yield
    finally:
        go(pid)


CLIENT = """
import asyncio, os, signal, sys
import actors
signal.alarm(100)
"""


def client(body: str, *words: str, **options: Any) -> "subprocess.Popen[bytes]":
    """Start a Python program that uses the engine, with its output in a pipe."""
    environment = {**os.environ, "PYTHONPATH": ROOT, **options.pop("env", {})}
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT + body, *words],
        stdout=subprocess.PIPE,
        env=environment,
        **options,
    )


async def arrived(child: Child) -> None:
    """Wait until what was asked of the child before has reached its worker.

    Commands keep their order: an answer to this one comes after those.
    """
    for _ in range(5):
        await asyncio.sleep(0)  # tasks that were made just now ask first
    await child.snapshot()


def terminals_of(engine: Engine) -> int:
    """Return how many descriptors of the engine's processes are terminals."""
    pids = [pid for kind in engine_processes(engine).values() for pid in kind]
    found = 0
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                name = os.readlink(f"/proc/{pid}/fd/{fd}")
            except FileNotFoundError:
                continue
            found += name.startswith(("/dev/pts/", "/dev/ptmx"))
    return found
