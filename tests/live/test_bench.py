"""Every workload runs, with every rival that is here, and leaves nothing."""

import asyncio
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from actors import mapped
from bench import compare, costs, mixed, rivals, slow
from bench.commands import CAT, ECHO, LINE, MIB, SLEEP, TRUE, zeros
from bench.one import cases
from bench.place import environment
from bench.sizes import Sizes
from bench.system import System, stepped
from bench.turn import load
from tests.helpers import NOT_BLOCKED

pytestmark = pytest.mark.live

TINY = Sizes(
    serial=2,
    batch=4,
    trips=2,
    trips_each=1,
    stream=16,
    small_writes=1,
    bursts=1,
    sessions=3,
    levels=(1, 2),
    level_times=2,
    drops=1,
    starts=1,
    idle=2,
    idle_seconds=0.1,
)
WIDE = {"true-64", "true-256", "capture-64", "echo-64"}
"""These differ from others in the number of children alone."""
CASES = {
    case.name: case
    for workload in compare.WORKLOADS
    for case in cases(workload, TINY)
    if case.name not in WIDE
}
STANDARD = [name for name, rival in rivals.RIVALS.items() if not rival.package]
"""Those of other libraries leave threads behind, which is theirs to mend."""


@pytest.fixture(autouse=True)
def _arenas(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays remote in a process of its own must not stay so in this one."""
    monkeypatch.setattr(mapped, "MOST_OPEN", mapped.MOST_OPEN)


@pytest.mark.parametrize("name", CASES)
def test_an_engine_brings_every_figure_of_a_case(name: str) -> None:
    found = CASES[name].systems[rivals.OURS]()
    assert set(found.values) >= {figure.key for figure in CASES[name].figures}
    assert all(value >= 0 for value in found.values.values())


@pytest.mark.parametrize("name", CASES)
def test_the_reference_brings_every_figure_of_a_case(name: str) -> None:
    found = CASES[name].systems[CASES[name].reference]()
    assert set(found.values) >= {figure.key for figure in CASES[name].figures}


def test_an_engine_tells_where_its_time_went() -> None:
    found = CASES["true"].systems[rivals.OURS]()
    assert any(rows for rows in found.stages.values())


@pytest.mark.parametrize("name", STANDARD)
def test_a_rival_does_what_workloads_ask(name: str) -> None:
    system, lacks = load(rivals.RIVALS[name]), rivals.RIVALS[name].lacks
    system.play(lambda: everything(system, streams="drain" not in lacks))


async def everything(system: System, *, streams: bool) -> None:
    await system.start()
    await system.run(TRUE)
    await system.keep_running(TRUE, width=2, times=3)
    assert (await system.capture(ECHO)).split() == [b"hi"]
    session = await system.open(CAT)
    assert (await system.trip(session, LINE)).split() == LINE.split()
    await system.close(session)
    if streams:
        assert await system.drain(zeros(MIB, 65536)) == MIB
    held = await system.hold_many(SLEEP, 2)
    await system.sleep(0)
    await system.kill(held)
    await system.forget(held)
    await system.stop()


def test_a_coroutine_that_waits_is_no_plain_call() -> None:
    with pytest.raises(AssertionError, match="waits"):
        stepped(asyncio.sleep(0))


def bench(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "bench", *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=3 * NOT_BLOCKED,
        check=False,
    )


def test_the_command_compares_and_writes_what_it_found(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    words = ["startup", "--rounds", "1", "--set", "starts=1", "--against", "threads"]
    done = bench(*words, "--json", str(file))
    assert done.returncode == 0, done.stderr
    systems = [row["system"] for row in json.loads(file.read_text())["rows"]]
    assert systems == ["asyncio", "creche", "threads"]
    assert all(system in done.stdout for system in systems)


def test_the_command_calculates_how_far_it_goes() -> None:
    done = bench("scale", "--machine", "pids=1000")
    assert (done.returncode, done.stderr) == (0, "")
    assert "pids" in done.stdout


async def test_a_slow_reader_is_watched_and_killed() -> None:
    amount = slow.Amount(mib=64, rate=1.0, seconds=3.0)
    noticed = await slow.notice(amount, slow.POLICIES["block"])
    assert noticed.alone
    assert noticed.beside
    assert 0 < noticed.read < amount.mib * MIB
    assert set(noticed.memory) == {"client", "broker", "worker"}
    assert len(slow.told("block", noticed)) == 9


async def test_what_things_cost_is_counted() -> None:
    work = costs.Work(starts=4, trips=4, mib=1, sessions=2, seconds=0.1)
    found = await costs.measure(work)
    assert found.session_pids >= 1  # it may be told before a warm worker is replaced
    assert found.session_files > 0
    assert found.broker_session > 0
    assert costs.told(found).count("\n") == len(fields(found))


@pytest.mark.filterwarnings("ignore:.*was never closed:ResourceWarning")
async def test_mixed_load_is_done_and_nothing_is_left(tmp_path: Path) -> None:
    first, second = await mixed.run(2, tmp_path / "broker", minute=0.3)
    assert list(first) == list(second)
    assert all(first[name] for name in mixed.KINDS)
