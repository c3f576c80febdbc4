"""Terminals: situations that users of other libraries reported."""

import asyncio
import hashlib
import os
import random
import re
from functools import partial
from pathlib import Path

import pytest

import actors
from actors import Child, Engine
from tests.helpers import NOT_BLOCKED, eventually, gone, parent, tag
from tests.live.children import (
    cpu_ticks,
    drained,
    engine_processes,
    program,
    repeated,
    terminals_of,
    until,
)

pytestmark = pytest.mark.live

READS_LINES = """
import hashlib, termios
modes = termios.tcgetattr(0)
modes[3] &= ~termios.ECHO
termios.tcsetattr(0, termios.TCSANOW, modes)
write(b"ready\\n")
while (data := os.read(0, 1 << 20)) != b"END\\n":
    if not data:
        os._exit(1)
    line = data.removesuffix(b"\\n")
    sum = hashlib.sha256(line).hexdigest()
    write(b"line %d %d %s\\n" % (len(line), len(data) - len(line), sum.encode()))
os._exit(0)
"""

READS_RAW = """
import hashlib, tty
tty.setraw(0)
write(b"ready\\n")
left, sum = int(sys.argv[2]), hashlib.sha256()
while left:
    data = os.read(0, left)
    left -= len(data)
    sum.update(data)
write(b"raw " + sum.hexdigest().encode())
os._exit(0)
"""

LOGS_RAW = """
import select, tty
tty.setraw(0)
write(b"ready\\n")
while True:
    data = os.read(0, 4096)
    write(b"got %s\\n" % data.hex().encode())
    if b"q" in data:
        os._exit(0)
"""

LEAVES_TERMINAL_FOR_A_WHILE = """
signal.signal(signal.SIGHUP, signal.SIG_IGN)
name = os.ttyname(0)
write(b"first\\n")
for fd in 0, 1, 2:
    os.close(fd)
time.sleep(float(sys.argv[2]))
fd = os.open(name, os.O_RDWR | os.O_NOCTTY)
write(b"second\\n", fd)
os._exit(4)
"""

TELLS_SIZES = """
def size():
    return b"%d %d\\n" % tuple(os.get_terminal_size(0))[::-1]
signal.signal(signal.SIGWINCH, lambda *_: write(b"winch " + size()))
write(b"size " + size())
rest()
"""

IS_INTERRUPTED = """
def interrupted(*_):
    write(b"got-int\\n")
    os._exit(42)
signal.signal(signal.SIGINT, interrupted)
os.close(os.open("/dev/tty", os.O_RDWR))
leads, group = os.getsid(0) == os.getpid(), os.getpgrp()
write(b"sid=%d fg=%d\\n" % (leads, os.tcgetpgrp(0) == group))
rest()
"""


async def ready(engine: Engine, body: str, *words: str) -> Child:
    child = await engine.spawn(program(body, tag(), *words), tty=True)
    await until(child, b"ready")
    return child


# -- lines beyond 4095 bytes ---------------------------------------------------


@pytest.mark.parametrize("size", [4096, 5000, 9000])
async def test_a_line_is_whole_or_refused_and_later_ones_are_unharmed(
    size: int,
) -> None:
    line = b"L" * 4095
    async with actors.Engine() as engine:
        child = await ready(engine, READS_LINES)
        async with child:
            await child.write(line + b"\n")
            await until(
                child, b"line 4095 1 " + hashlib.sha256(line).hexdigest().encode()
            )
            with pytest.raises(actors.InvalidRequest, match="4095") as refused:
                await child.write(b"L" * size + b"\n")
            assert refused.value.field == "data"
            await child.write(b"END\n")
            output, last = await drained(child, wait=NOT_BLOCKED)
    assert output.strip() == b""
    assert last.exit_code == 0


async def test_raw_mode_takes_everything() -> None:
    data = random.Random(23).randbytes(60_000)
    async with actors.Engine() as engine:
        child = await ready(engine, READS_RAW, str(len(data)))
        async with child:
            assert (await child.write(data)).accepted == len(data)
            output, last = await drained(child, wait=NOT_BLOCKED)
    assert output.endswith(b"raw " + hashlib.sha256(data).hexdigest().encode())
    assert last.exit_code == 0


# -- the end-of-file character in raw mode -------------------------------------


async def test_closing_the_input_of_a_raw_terminal_types_nothing() -> None:
    async with actors.Engine() as engine:
        child = await ready(engine, LOGS_RAW)
        async with child:
            await child.write(b"ab")
            await until(child, b"got 6162\n")
            with pytest.raises(
                actors.InvalidRequest, match=r"such as '\\x04'"
            ) as refused:
                await child.close_stdin()
            assert refused.value.field == "tty"
            await child.write(b"q")
            output, last = await drained(child, wait=NOT_BLOCKED)
    assert output == b"got 71\n"
    assert last.exit_code == 0


def closed_all(child: Child) -> bool:
    return not os.listdir(f"/proc/{child.pid}/fd")


# -- a child that leaves its terminal for a while -------------------------------


@repeated(2, 20)
async def test_a_terminal_that_nobody_holds_for_a_while_is_not_at_its_end(
    runs: int,
) -> None:
    async with actors.Engine() as engine:
        for _ in range(runs):
            words = program(LEAVES_TERMINAL_FOR_A_WHILE, tag(), "1.5")
            child = await engine.spawn(words, tty=True)
            await until(child, b"first")
            worker = parent(child.pid)
            await asyncio.to_thread(eventually, partial(closed_all, child))
            spent = cpu_ticks(worker)
            assert (await child.poll(wait=0.2)).state == "running"
            assert cpu_ticks(worker) - spent <= 4  # of 20 ticks: no spinning
            output, last = await drained(child, wait=NOT_BLOCKED)
            assert output == b"second\r\n"
            assert last.exit_code == 4
            await child.aclose()


# -- resizing ------------------------------------------------------------------


async def test_each_size_is_seen_in_order_and_nonsense_is_refused() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(TELLS_SIZES, tag()), tty=True)
        async with child:
            seen = await until(child, b"size 24 80\r\n")
            for _ in range(2):
                await child.resize(50, 132)
            seen += await until(child, b"winch 50 132\r\n")
            for rows, cols in ((0, 0), (-1, 80), (70_000, 80)):
                with pytest.raises(actors.InvalidRequest):
                    await child.resize(rows, cols)
            await child.resize(10, 20)
            seen += await until(child, b"winch 10 20\r\n")
            sizes = re.findall(rb"\d+ \d+", seen)
            assert sizes in (
                [b"24 80", b"50 132", b"10 20"],
                [b"24 80", b"50 132", b"50 132", b"10 20"],
            )
            await child.kill()
            await child.resize(30, 100)
        async with await engine.spawn(["cat"], stdin="pipe") as piped:
            with pytest.raises(actors.NotATerminal):
                await piped.resize(30, 100)
            assert (await piped.poll(b"fine\n", wait=NOT_BLOCKED)).stdout == b"fine\n"


# -- the controlling terminal --------------------------------------------------


async def test_the_byte_of_control_c_interrupts_the_child_alone() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(IS_INTERRUPTED, tag()), tty=True)
        async with child:
            await until(child, b"sid=1 fg=1\r\n")
            before = engine_processes(engine)
            await child.write(b"\x03")
            output, last = await drained(child, wait=NOT_BLOCKED)
            assert output.endswith(b"got-int\r\n")
            assert last.exit_code == 42
            assert engine_processes(engine) == before


async def test_control_c_ends_the_job_and_leaves_its_shell(tmp_path: Path) -> None:
    script, word = tmp_path / "shell", tag()
    script.write_text(
        "set -m\ntrap : INT\n"
        """bash -c 'exec -a "job-$0" sleep 150' "$1"\n"""
        'echo "shell-alive rc=$?"\n'
    )
    async with actors.Engine() as engine:
        child = await engine.spawn(["bash", script, word], tty=True)
        async with child:
            await asyncio.to_thread(eventually, lambda: job_of(child) is not None)
            await child.write(b"\x03")
            output, last = await drained(child, wait=NOT_BLOCKED)
        gone(f"job-{word}")
    assert output.endswith(b"shell-alive rc=130\r\n")
    assert last.exit_code == 0


def job_of(child: Child) -> int | None:
    """Return the foreground job once it runs its program."""
    stat = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    try:
        name = Path(f"/proc/{stat[5]}/comm").read_text()
    except FileNotFoundError:
        return None
    return int(stat[5]) if name == "sleep\n" else None


# -- finished sessions give their terminals back -------------------------------


@repeated(4, 100)
async def test_an_ended_session_holds_no_terminal_whoever_forgets_it(
    runs: int,
) -> None:
    kept = []
    async with actors.Engine() as engine:
        for _ in range(runs):
            child = await engine.spawn(["true"], tty=True)
            await drained(child, wait=NOT_BLOCKED)
            await child.aclose()
            forgotten = await engine.spawn(["true"], tty=True)
            await drained(forgotten, wait=NOT_BLOCKED)
            with pytest.warns(ResourceWarning):
                del forgotten
            kept.append(await engine.spawn(["echo", "kept"], tty=True))
        for child in kept:
            await child.wait(NOT_BLOCKED)
        await asyncio.to_thread(eventually, lambda: terminals_of(engine) == 0)
        for child in kept:
            assert (await child.poll(wait=0)).stdout == b"kept\r\n"
            await child.aclose()
