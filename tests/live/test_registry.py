"""How many sessions there may be, and who waits for room."""

import asyncio

import pytest

import actors
from tests.helpers import NOT_BLOCKED
from tests.live.children import REST, arrived, program, until

pytestmark = pytest.mark.live


async def test_s5_a_full_scope_refuses_until_somebody_ends() -> None:
    async with actors.Engine() as engine, engine.scope("x", capacity=1) as scope:
        first = await scope.spawn(program(REST))
        with pytest.raises(actors.CapacityExceeded, match="the scope 'x'") as full:
            await scope.spawn(["true"])
        assert full.value.retry_after > 0
        async with engine.scope("y", capacity=1) as other:
            await other.run(["true"])
        await first.kill()
        assert (await scope.run(["echo", "on"])).stdout == b"on\n"
        assert (await scope.run(["echo", "on"])).stdout == b"on\n"


async def test_s5_a_full_client_refuses() -> None:
    settings = actors.Settings(capacity=1)
    async with actors.Engine(settings=settings) as engine:
        child = await engine.spawn(program(REST))
        with pytest.raises(actors.CapacityExceeded, match="this client"):
            await engine.spawn(["true"])
        await child.aclose()
        await engine.run(["true"])


async def test_s5_spawns_wait_for_room_in_their_order() -> None:
    async with actors.Engine() as engine:
        served: list[str] = []
        async with engine.scope(capacity=1, queue=NOT_BLOCKED) as scope:

            async def serve(word: str) -> None:
                served.append((await scope.run(["echo", word])).text)

            await asyncio.gather(*(serve(str(number)) for number in range(8)))
        assert served == [f"{number}\n" for number in range(8)]
        assert (await engine.info()).counts["waiting"] == 0


async def test_s5_waiting_for_room_ends_in_time() -> None:
    async with actors.Engine() as engine, engine.scope(capacity=1) as scope:
        await scope.spawn(program(REST))
        with pytest.raises(actors.CapacityExceeded):
            await scope.spawn(["true"], queue=0.05)


async def test_s5_what_waits_for_room_never_outlives_its_scope() -> None:
    async with actors.Engine() as engine:
        scope = engine.scope(capacity=1, queue=NOT_BLOCKED)
        first = await scope.spawn(program(REST))
        waiting = asyncio.ensure_future(scope.spawn(program(REST)))
        await arrived(first)
        assert (await engine.info()).counts["waiting"] == 1
        assert await scope.aclose() == 1
        with pytest.raises(actors.SessionNotFound):
            await waiting
        assert (await engine.info()).counts["waiting"] == 0
        assert await engine.children() == []


async def test_s56_a_cancelled_spawn_gives_its_place_up() -> None:
    async with actors.Engine() as engine, engine.scope(capacity=1) as scope:
        first = await scope.spawn(program(REST))
        waiting = asyncio.ensure_future(scope.spawn(["true"], queue=NOT_BLOCKED))
        await arrived(first)
        waiting.cancel()
        await arrived(first)
        assert (await engine.info()).counts["waiting"] == 0
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_s5_limits_that_are_none_are_refused() -> None:
    async with actors.Engine() as engine:
        for name in ("capacity", "queue"):
            with pytest.raises(actors.InvalidRequest) as refused:
                engine.scope(**{name: -1})  # type: ignore[arg-type]
            assert refused.value.field == name


async def test_s6_an_evicted_child_is_readable_and_says_why() -> None:
    async with actors.Engine() as engine, engine.scope(capacity=9) as scope:
        talks = "write(b'hello\\n'); rest()"
        old = [await scope.spawn(program(talks)) for _ in range(2)]
        for child in old:
            await until(child, b"hello\n")
        await old[0].poll(wait=0)
        await asyncio.gather(*(scope.spawn(program(REST)) for _ in range(7)))
        with pytest.raises(actors.CapacityExceeded):
            await scope.spawn(program(REST))
        await scope.spawn(program(REST), on_full="evict")
        assert not old[0].ended
        status = await old[1].wait()
        assert (status.cause, status.signal) == ("evicted", 9)
        last = await old[1].poll()
        assert last.stderr == b"[creche: evicted to make room for another session]\n"
        assert last.done
