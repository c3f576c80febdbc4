"""What an engine keeps for itself of a session, and does not do."""

import pytest

import actors
from broker import cgroup

pytestmark = pytest.mark.live


async def test_s42_a_collected_child_is_forgotten_by_its_engine() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(["true"])
        await child.wait()
        connection = engine._opened
        assert connection is not None
        assert list(connection.records) == [child.id]
        with pytest.warns(ResourceWarning, match="never closed"):
            del child
        await engine.info()
        assert not connection.records


async def test_asking_for_information_does_not_move_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A probe for cgroups does, and this program may fork at any time."""
    monkeypatch.setattr(cgroup, "probe", lambda: pytest.fail("probed"))
    async with actors.Engine() as engine:
        info = await engine.info()
        assert info.versions["creche"] == actors.__version__
        assert info.versions.keys() > {"wire", "kernel", "python", "zmq"}
