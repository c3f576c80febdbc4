"""What those are told who watch what happens to sessions."""

import asyncio

import pytest

import actors
from tests.helpers import end, parent
from tests.live.children import REST, program

pytestmark = pytest.mark.live


async def ends(
    stream: actors.LifecycleStream, count: int
) -> dict[int, list[actors.Lifecycle]]:
    """Return the events by session, once so many sessions have come to their end."""
    found: dict[int, list[actors.Lifecycle]] = {}
    async for event in stream:
        found.setdefault(event.id, []).append(event)
        count -= event.kind in ("closed", "failed", "lost")
        if not count:
            return found
    raise AssertionError(found)


def kinds(events: list[actors.Lifecycle]) -> list[str]:
    return [event.kind for event in events]


async def test_s52_every_spawn_has_one_end_however_it_comes() -> None:
    async with actors.Engine() as engine:
        async with engine.events() as stream, engine.scope("x") as scope:
            only_x = scope.events()
            await engine.run(["true"])
            with pytest.raises(actors.SpawnFailed):
                await engine.spawn(["/does/not/exist"])
            ended = await engine.spawn(["sh", "-c", "exit 3"])
            await ended.wait()
            lost = await scope.spawn(program(REST))
            end([parent(lost.pid)])
            await lost.wait()
            closed = await scope.spawn(program(REST))
            await closed.aclose()
            run, failed, *_, dropped = (await ends(stream, 5)).values()
            assert kinds(run) == ["starting", "running", "exited", "closed"]
            assert kinds(failed) == ["starting", "failed"]
            assert isinstance(failed[-1].error, actors.SpawnFailed)
            assert kinds(dropped) == ["starting", "running", "exited", "closed"]
            status = dropped[-1].status
            assert status is not None
            assert status.cause == "owner-drop"
            in_x = await ends(only_x, 2)
            assert in_x.keys() == {lost.id, closed.id}
            assert kinds(in_x[lost.id]) == ["starting", "running", "lost"]
            assert {event.scope for event in in_x[lost.id]} == {"x"}
            times = [event.time for events in in_x.values() for event in events]
            assert times == sorted(times)
            await ended.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_s52_a_stream_ends_with_its_engine() -> None:
    async with actors.Engine() as engine:
        stream = engine.events()
        await engine.run(["true"])
        waiting = asyncio.ensure_future(ends(stream, 99))
    with pytest.raises(AssertionError):
        await waiting


async def test_s52_who_does_not_listen_is_told_how_much_was_missed() -> None:
    async with actors.Engine() as engine:
        stream = engine.events()
        for _ in range(70):
            await engine.run(["true"])
        assert (await engine.info()).counts["watchers"] == 1
        first = [await anext(stream) for _ in range(256)]
        assert [event.missed for event in first] == [0] * 256
        await engine.run(["true"])
        event = await anext(stream)
        assert event.missed == event.sequence - 256 - 1 == 70 * 4 - 256
        del stream
        await engine.run(["true"])
        assert (await engine.info()).counts["watchers"] == 0


async def test_s5_a_warning_comes_before_a_scope_is_full() -> None:
    async with actors.Engine() as engine, engine.scope("x", capacity=1) as scope:
        stream = scope.events()
        await scope.run(["true"])
        events = (await ends(stream, 1)).popitem()[1]
        (warning,) = [event for event in events if event.kind == "warning"]
        assert "the scope 'x' holds 1 of 1" in str(warning.error)
