"""Our output waits for its reader, and nothing else does, whatever it goes to."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from actors import Screen, TtySize, ignition
from actors.console import stdio
from tests.helpers import NOT_BLOCKED, eventually
from tests.person import PATIENCE

pytestmark = [pytest.mark.live, pytest.mark.timeout(PATIENCE)]

LINES = 20_000
WRITES = f"""
import asyncio, os, sys, threading
from actors.batch import waiting
from actors.console import stdio

def refuse(thread):
    raise RuntimeError("can't start new thread")

os_write = os.write
full = threading.Event()

def write(fd, data):
    try:
        return os_write(fd, data)
    except BlockingIOError:
        full.set()
        raise

os.write = write
if sys.argv[2:]:
    threading.Thread.start = refuse

async def main():
    write = {{"batch": waiting.write, "run": stdio.put}}[sys.argv[1]]
    writing = asyncio.ensure_future(write(1, b"a line\\n" * {LINES}))
    await asyncio.sleep(0)
    while stdio.has_room(1) and not full.is_set():
        await asyncio.sleep(0)
    print("free", file=sys.stderr, flush=True)
    await writing

asyncio.run(main())
"""
"""Says on stderr that it is free while stdout takes no more.

A terminal may have room again behind a refusal without anybody reading: the kernel
passes on what it has, and wakes no writer for that.
"""
OFFERS = """
import os
from actors.batch import progress

said = os.dup(2)
os.dup2(1, 2)
for _ in range(1000):  # more than it takes
    progress.offer("a line\\n" * 100)
os.write(said, b"free\\n")
"""
"""The same of words for people, which it has written to the same file."""


DRAWS = """
import os
from actors.batch.bar import Bar
from actors.batch.tally import Tally

said = os.dup(2)
os.dup2(1, 2)
bar = Bar()
for _ in range(1000):  # more than it takes
    bar.draw(Tally(total=3), 1.0)
bar.close()
os.write(said, b"free\\n")
"""
"""The same of a bar."""
STANDS_STILL = """
import asyncio, os, sys, time
from actors.batch.bar import Bar
from actors.batch.jobs import Job
from actors.batch.output import Texts
from actors.batch.progress import tell
from actors.batch.tally import Tally
from actors.console import stdio

class Spool:
    sizes = {"stdout": 6, "stderr": 0}

    def pieces(self, stream):
        return iter([b"output"])

said = os.dup(2)
os.dup2(1, 2)
bar = Bar()
bar.draw(Tally(total=3), 1.0)
os.write(said, b"drawn\\n")
while stdio.has_room(2):
    time.sleep(0.01)
if sys.argv[1] == "end":
    bar.close()
    os.write(said, b"closed\\n")
    tell("all is done", bar.rest())
else:
    loop = asyncio.new_event_loop()
    job = Texts(bar, tag=False).job(Job(1, "true", ["true"], {}, ()), None, Spool())
    writing = loop.create_task(job)
    loop.run_until_complete(asyncio.sleep(0))
    bar.draw(Tally(total=3), 2.0)
    os.write(said, b"closed\\n")
    loop.run_until_complete(writing)
    loop.close()
"""
"""Takes a bar away from a terminal that stands still, and writes what comes next."""
WRITES_AT_A_HIGH_NUMBER = f"""
import fcntl, os, resource
from actors.console import stdio

resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))
stdio.unwaited = lambda fd: fd
high = fcntl.fcntl(1, fcntl.F_DUPFD, 1024)
os.set_blocking(high, False)
stdio.write(high, b"a line\\n" * {LINES})
"""
"""Has to wait for room at such a number as a terminal that is opened late has."""


@contextmanager
def before_a_terminal(
    script: str, *words: str
) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", script, *words],
        env=ignition.environment() | {"TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(theirs)
        try:
            yield ours, process
        finally:
            process.kill()
            os.close(ours)


def read_all(fd: int) -> bytes:
    """Return what is read from a terminal until its other side is closed."""
    shown = b""
    with suppress(OSError):
        while data := os.read(fd, 65536):
            shown += data
    return shown


@pytest.mark.parametrize("how", ["batch", "run", "run without-thread"])
def test_a_terminal_that_nobody_reads_holds_up_what_is_for_it_alone(how: str) -> None:
    with before_a_terminal(WRITES, *how.split()) as (ours, process):
        assert process.stderr is not None
        assert process.stderr.readline() == "free\n"
        assert read_all(ours) == b"a line\r\n" * LINES
        assert process.wait() == 0


@pytest.mark.parametrize("script", [OFFERS, DRAWS], ids=["words", "bar"])
def test_what_is_for_people_waits_for_no_terminal(script: str) -> None:
    with before_a_terminal(script) as (_, process):
        assert process.stderr is not None
        assert process.stderr.readline() == "free\n"


def test_a_terminal_of_any_number_is_waited_for() -> None:
    with before_a_terminal(WRITES_AT_A_HIGH_NUMBER) as (ours, process):
        assert read_all(ours) == b"a line\r\n" * LINES
        assert process.wait() == 0


@pytest.fixture
def _ended_writers() -> Iterator[None]:
    """Wait until the threads have ended with their loop, which is to be collected."""
    before = threading.active_count()
    yield
    # The thread may be about to let go of it.
    eventually(lambda: gc.collect() >= 0 and threading.active_count() == before)


@pytest.mark.usefixtures("_ended_writers")
async def test_one_thread_writes_all_that_goes_to_a_descriptor() -> None:
    ours, theirs = os.pipe()
    before = set(threading.enumerate())
    await stdio.put(theirs, b"a")
    (thread,) = set(threading.enumerate()) - before
    await stdio.put(theirs, b"b")
    assert set(threading.enumerate()) - before == {thread}
    assert os.read(ours, 3) == b"ab"
    os.close(ours)
    with pytest.raises(stdio.ReaderGone):
        await stdio.put(theirs, b"c")
    os.close(theirs)


@pytest.mark.usefixtures("_ended_writers")
async def test_any_error_of_a_write_is_that_of_whoever_waits() -> None:
    async with asyncio.timeout(NOT_BLOCKED):
        with pytest.raises(OverflowError):  # no descriptor has such a number
            await stdio.put(1 << 40, b"a")


@pytest.mark.parametrize(("next_", "text"), [("end", "all is done"), ("job", "output")])
def test_a_bar_that_could_not_be_taken_away_is_so_before_what_comes_next(
    next_: str, text: str
) -> None:
    with before_a_terminal(STANDS_STILL, next_) as (ours, process):
        assert process.stderr is not None
        assert process.stderr.readline() == "drawn\n"
        os.write(ours, b"\x13")  # ^S
        assert process.stderr.readline() == "closed\n"
        os.write(ours, b"\x11")  # ^Q
        shown = read_all(ours)
        assert process.wait() == 0
    screen = Screen(TtySize(24, 80))
    screen.feed(shown)
    assert screen.text.removeprefix("^S").removeprefix("creche: ") == text
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l")
