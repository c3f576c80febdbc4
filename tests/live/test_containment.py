"""Trees in cgroups, and engines that do without."""

import os
import sys
from pathlib import Path

import pytest

import actors
from broker import cgroup
from tests.helpers import eventually, tag, tagged
from tests.parts import Parts

pytestmark = pytest.mark.live

STORM = """
import os, signal, sys, time
signal.alarm(20)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
ends = time.monotonic() + 10
os.write(1, b"up")
while time.monotonic() < ends:
    if len(os.listdir("/proc")) > 1500:
        time.sleep(0.02)
    elif os.fork() == 0:
        signal.alarm(20)
        if os.getpid() % 2 and os.getpid() != os.getpgrp():
            os.setsid()
time.sleep(10)
"""


@pytest.mark.alone
async def test_a_storm_of_forks_ends_with_its_cgroup() -> None:
    word = tag()
    async with actors.Engine() as engine:
        assert (await engine.info()).containment == "cgroup"
        child = await engine.spawn([sys.executable, "-S", "-c", STORM, word])
        assert (await child.poll(wait=5, mode="output")).stdout == b"up"
        eventually(lambda: len(tagged(word)) > 150)
        receipt = await child.kill()
        assert receipt.survivors == ()
        assert tagged(word) == []
        await child.aclose()


async def test_a_lost_worker_leaves_nothing_in_its_cgroup() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(["sleep", "150"])
        parts = Parts.of(child.pid)
        home = Path(f"/proc/{child.pid}/cgroup").read_text().splitlines()
        place = next(line.split(":", 2)[2] for line in home if line.startswith("0::"))
        assert Path(place).parent.name == f"{cgroup.PREFIX}{parts.supervisor}"
        os.kill(parts.worker, 9)  # noqa: TID251 - a test kills what it must survive
        assert (await child.wait()).cause == "worker-lost"
        root = cgroup.own_directory()
        assert root is not None
        gone = Path(root) / Path(place).parent.name / Path(place).name
        eventually(lambda: not gone.exists())


async def test_an_engine_leaves_no_cgroup() -> None:
    root = cgroup.own_directory()
    assert root is not None
    async with actors.Engine() as engine:
        child = await engine.spawn(["sleep", "150"])
        name = f"{cgroup.PREFIX}{Parts.of(child.pid).supervisor}"
        assert name in os.listdir(root)
        await child.aclose()
    assert name not in os.listdir(root)


async def test_an_engine_can_do_without_cgroups() -> None:
    settings = actors.Settings(containment="subreaper")
    async with actors.Engine(settings=settings) as engine:
        assert (await engine.info()).containment == "subreaper"
        script = "sleep 150 & setsid sleep 150 & echo up; wait"
        child = await engine.spawn(script, shell=True)
        await child.poll(wait=5, mode="output")
        receipt = await child.kill()
        assert (receipt.signalled, receipt.survivors) == (3, ())
        await child.aclose()


async def test_a_cgroup_that_cannot_be_had_is_refused_when_insisted_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The supervisor is another process: it is given a table of mounts without cgroups.
    code = "from broker import cgroup; cgroup.MOUNTS = '/dev/null'"
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with actors.Engine() as engine:
        assert (await engine.info()).containment == "subreaper"
        assert (await engine.run(["true"])).returncode == 0
    insist = actors.Settings(containment="cgroup")
    with pytest.raises(actors.InvalidRequest, match="no writable cgroup") as refused:
        await actors.Engine(settings=insist).__aenter__()
    assert refused.value.field == "settings.containment"
