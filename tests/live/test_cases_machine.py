"""Odd machines: descriptors without end, and clocks that are set."""

import asyncio
import os
import resource
import sys
import time
from pathlib import Path

import pytest

import actors
from tests.helpers import NOT_BLOCKED, parent, tag
from tests.live.children import (
    REST,
    TICKS,
    client,
    drained,
    engine_processes,
    program,
    until,
)
from tests.parts import serving

pytestmark = pytest.mark.live

LOADED = 10
"""How many times longer things may take on a loaded machine."""


# -- descriptors that select() could not take ------------------------------------

SELECT_LIMIT = 1024
WITH_BALLAST = """
import os, resource, sys
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384), hard))
for _ in range(1100):
    os.set_inheritable(os.open("/dev/null", os.O_RDONLY), True)
"""
EXECUTES = "os.execv(sys.argv[1], sys.argv[1:])"

TALKS_TO_MANY = (
    WITH_BALLAST
    + """
from tests.live.children import *
endpoint, word, count = sys.argv[1:]
gate = asyncio.Semaphore(32)
async def begin(scope):
    async with gate:
        return await scope.spawn(program(ECHOES_LINES, word), stdin="pipe")
async def talk(child):
    async with gate:
        await child.write(b"".join(b"%d\\n" % n for n in range(100)))
        await child.close_stdin()
        output, last = await drained(child)
    assert output == b"".join(b"E:%d\\n" % n for n in range(100)) + b"total 100\\n"
    assert last.exit_code == 0
async def talk_on_a_terminal(scope):
    child = await scope.spawn(program(ECHOES_LINES, word), tty=True)
    for n in range(100):
        await child.write(b"%d\\n" % n)
        await child.expect("E:%d\\r\\n" % n, timeout=15)
    await child.close_stdin()
    await child.expect("total 100\\r\\n", timeout=15)
    assert (await child.wait()).code == 0
async def main():
    async with actors.Engine(endpoint) as engine, engine.scope() as scope:
        children = await asyncio.gather(*(begin(scope) for _ in range(int(count))))
        assert all(child.returncode is None for child in children)
        assert (await engine.info()).counts["live"] == int(count)
        os.write(1, b"%d\\n" % children[0].pid)
        sys.stdin.readline()
        await asyncio.gather(*map(talk, children))
        await talk_on_a_terminal(scope)
    os.write(1, b"all\\n")
asyncio.run(main())
"""
)


def highest(pid: int) -> int:
    """Return the highest number of a descriptor of this process."""
    return max(map(int, os.listdir(f"/proc/{pid}/fd")))


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 8192,
    reason="needs a hard limit of 8192 descriptors",
)
@pytest.mark.parametrize(
    "count",
    [8, pytest.param(1200, marks=[pytest.mark.soak, pytest.mark.timeout(300)])],
)
def test_descriptors_may_have_numbers_over_1023(count: int, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    ballast = [sys.executable, "-c", WITH_BALLAST + EXECUTES]
    words = [endpoint, tag(), str(count)]
    with (
        serving(endpoint, *ballast) as broker,
        client(TALKS_TO_MANY, *words, stdin=-1) as process,
    ):
        assert process.stdout is not None
        worker = parent(int(process.stdout.readline()))
        for pid in (broker.pid, parent(worker), process.pid):
            assert highest(pid) > SELECT_LIMIT
        output, _ = process.communicate(b"\n")
        assert (output, process.returncode) == (b"all\n", 0)


# -- clocks ----------------------------------------------------------------------

SETS_CLOCK = """
import os, time
_wall, _wall_ns = time.time, time.time_ns
def _step():
    return {by} if os.path.exists({flag!r}) else 0
time.time = lambda: _wall() + _step()
time.time_ns = lambda: _wall_ns() + _step() * 10**9
with open({installed!r}, "a") as file:
    file.write(f"{{os.getpid()}}\\n")
"""
IN_ENGINE = """
import sys
if "broker" in sys.orig_argv:
    from broker import opening  # the pool starts without this file
    opening.BOOT = open({code!r}).read() + opening.BOOT
"""


@pytest.mark.parametrize("by", [7200, -7200])
async def test_a_clock_that_is_set_ends_nothing_early_or_late(
    by: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag, installed = tmp_path / "flag", tmp_path / "installed"
    step = SETS_CLOCK.format(by=by, flag=str(flag), installed=str(installed))
    (tmp_path / "step.py").write_text(step)
    code = step + IN_ENGINE.format(code=str(tmp_path / "step.py"))
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    here, here_ns = time.time, time.time_ns  # noqa: TID251 - it is what is set
    monkeypatch.setattr(time, "time", lambda: here() + by * flag.exists())
    monkeypatch.setattr(time, "time_ns", lambda: here_ns() + by * flag.exists() * 10**9)
    watch = actors.Settings(lease=10.0, lease_renewal=0.2, on_hung="kill")
    async with actors.Engine(settings=watch) as engine:
        ticker = await engine.spawn(program(TICKS, tag(), "12"), timeout=30)
        late = await engine.spawn(program(REST, tag()), timeout=0.8)
        waiting = asyncio.ensure_future(late.wait(NOT_BLOCKED))
        seen = await until(ticker, b"tick 3\n")
        flag.touch()
        output, last = await drained(ticker)
        assert (seen + output).count(b"tick ") == 12
        assert (seen + output).endswith(b"ticker-done\n")
        status = await ticker.wait()
        assert (status.code, status.cause) == (0, "exited")
        assert 0.6 <= status.wall_time < 30
        assert 0 <= last.wall_time < 30
        status = await waiting
        assert (status.cause, status.signal) == ("timeout", 15)
        assert 0.8 <= status.wall_time < 0.8 + LOADED
        assert (
            await engine.run(["echo", "later"], timeout=NOT_BLOCKED)
        ).stdout == b"later\n"
        with pytest.raises(actors.TimedOut):
            await engine.run(["sleep", "100"], timeout=0.1)
        processes = engine_processes(engine)
        stepped = set(map(int, installed.read_text().split()))
        assert {*processes["supervisor"], *processes["pool"]} <= stepped
        for child in (ticker, late):
            await child.aclose()
