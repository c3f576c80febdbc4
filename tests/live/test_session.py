"""What an engine keeps for itself of a session, and does not do."""

import asyncio

import pytest

import actors
from actors.connection import Connection
from broker import cgroup, errors
from broker.wire import Kind, Message
from tests.helpers import tag
from tests.live.children import REST, program

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


async def test_the_stages_of_what_is_over_are_measured() -> None:
    async with actors.Engine() as engine:
        assert not any((await engine.info()).latency.values())
        await engine.run(["echo", "x"])
        await engine.run(["sleep", "0.2"])
        latency = (await engine.info()).latency
        while sum(n for _, n in latency["leased"]) < 2:  # a last word follows a result
            latency = (await engine.info()).latency
    counts = {stage: sum(n for _, n in rows) for stage, rows in latency.items()}
    assert counts == {
        "queued": 2,
        "leased": 2,
        "spawned": 2,
        "first_byte": 1,
        "exit_seen": 2,
        "reported": 2,
    }
    assert max(bound for bound, _ in latency["exit_seen"]) > 0.2


async def test_asking_for_information_does_not_move_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A probe for cgroups does, and this program may fork at any time."""
    monkeypatch.setattr(cgroup, "probe", lambda: pytest.fail("probed"))
    async with actors.Engine() as engine:
        info = await engine.info()
        assert info.versions["creche"] == actors.__version__
        assert info.versions.keys() > {"wire", "kernel", "python", "zmq"}


async def test_a_run_that_its_engine_ends_gives_no_result() -> None:
    async with actors.Engine() as engine:
        running = asyncio.ensure_future(engine.run(program(REST, tag())))
        await one_lives(engine)
        await engine.aclose()
        with pytest.raises((actors.SessionNotFound, actors.BrokerLost), match="closed"):
            await running


async def one_lives(engine: actors.Engine) -> None:
    """Wait until a session of the engine lives."""
    while not await engine.children():
        await asyncio.sleep(0)


async def test_a_terminal_has_one_stream_in_statistics() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program("write(b'12345')", tag()), tty=True)
        await child.wait()
        stats = await child.stats()
        assert (stats.stdout.produced, stats.stderr) == (5, None)
        await child.aclose()


def let_go(
    connection: Connection,
    number: int,
    error: errors.EngineError,
) -> None:
    """Have an engine hear that its broker has let go of a session."""
    code, values = errors.encode(error)
    body = {"code": code, "values": values}
    connection._on_push(Message(Kind.ERROR, session=number, body=body))


async def test_what_its_broker_let_go_of_is_forgotten_and_its_status_stays() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(["true"])
        status = await child.wait()
        let_go(engine._connection(), child.id, errors.SessionNotFound())
        assert not engine._connection().records
        assert await child.wait() == status
        await child.aclose()


async def test_a_run_that_its_broker_let_go_of_has_its_result() -> None:
    async with actors.Engine() as engine:
        running = asyncio.ensure_future(engine.run(program(REST, tag())))
        await one_lives(engine)
        (number,) = engine._connection().records
        let_go(engine._connection(), number, errors.SessionNotFound())
        await engine.kill([number])
        assert (await running).status.cause == "killed"


async def test_a_run_that_is_its_engines_no_more_says_so() -> None:
    async with actors.Engine() as engine:
        running = asyncio.ensure_future(engine.run(program(REST, tag())))
        await one_lives(engine)
        (number,) = engine._connection().records
        let_go(engine._connection(), number, errors.SessionOwned("for a test"))
        await engine.kill([number])
        with pytest.raises(errors.SessionOwned, match="for a test"):
            await running
