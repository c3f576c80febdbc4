"""The operator, and handles that own nothing."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import actors
from tests.helpers import FOREVER, NOT_BLOCKED, alive, end, parent, tag
from tests.live.children import (
    ECHOES_LINES,
    KIB,
    LEAVES_ON_CUE,
    NUMBERS,
    REST,
    Opened,
    drained,
    numbers,
    program,
    until,
)
from tests.parts import serving

pytestmark = pytest.mark.live


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    where = f"ipc://{tmp_path}/shared/broker.sock"
    with serving(where):
        yield where


def operating(endpoint: str) -> actors.Engine:
    return actors.Engine(endpoint, operator=True)


async def test_s1_an_engine_with_the_operator_key_sees_and_commands_all(
    endpoint: str,
) -> None:
    async with actors.Engine(endpoint) as owner, operating(endpoint) as operator:
        child = await owner.spawn(program(ECHOES_LINES), stdin="pipe")
        assert [s.id for s in await operator.children()] == [child.id]
        async with await operator.visit(child.id) as visited:
            assert (visited.pid, visited.argv) == (child.pid, child.argv)
            await visited.write("one\n")
            assert await until(visited, b"E:one\n") == b"E:one\n"
            assert (await visited.stats()).processes == 1
        assert await until(child, b"E:one\n") == b"E:one\n"
        (receipt,) = await operator.kill([child.id])
        assert isinstance(receipt, actors.KillReceipt)
        assert receipt.survivors == ()


async def test_a_visitor_learns_the_end_with_the_owner(endpoint: str) -> None:
    async with actors.Engine(endpoint) as owner, operating(endpoint) as operator:
        child = await owner.spawn(program(LEAVES_ON_CUE), stdin="pipe")
        visited = await operator.visit(child.id)
        waiting = asyncio.ensure_future(visited.wait(NOT_BLOCKED))
        await child.write("go\n")
        assert (await waiting).code == 9
        assert await child.wait() == visited.status
        again = await operator.visit(child.id)
        assert again.returncode == 9
        assert (await again.output()).stdout == b"leaving\n"


async def test_a_visitor_learns_of_a_run_that_ends_in_another_engine(
    endpoint: str,
) -> None:
    async with actors.Engine(endpoint) as owner, operating(endpoint) as operator:
        events = operator.events()
        assert (
            await operator.children() == []
        )  # it watches, before the other one starts
        running = asyncio.ensure_future(owner.run(program(REST)))
        async for event in events:
            if event.kind == "running":
                break
        visited = await operator.visit(event.id)
        waiting = asyncio.ensure_future(visited.wait(NOT_BLOCKED))
        await visited.kill()
        assert (await waiting).cause == (await running).status.cause == "killed"


async def test_a_visitor_learns_of_the_end_of_a_run_that_is_dropped(
    tmp_path: Path,
) -> None:
    where = f"ipc://{tmp_path}/shared/broker.sock"
    with serving(where, grace=0):
        async with actors.Engine(where) as owner, operating(where) as operator:
            run = asyncio.create_task(owner.run(program(REST)))
            while not (found := await operator.children()):
                await asyncio.sleep(0.01)
            visited = await operator.visit(found[0].id)
            run.cancel()
            status = await visited.wait(NOT_BLOCKED)
            assert (status.cause, status.signal) == ("owner-drop", 9)


async def test_a_visitor_learns_that_the_worker_was_lost(endpoint: str) -> None:
    async with actors.Engine(endpoint) as owner, operating(endpoint) as operator:
        child = await owner.spawn(program(REST))
        visited = await operator.visit(child.id)
        waiting = asyncio.ensure_future(visited.wait(NOT_BLOCKED))
        end([parent(child.pid)])
        assert (await waiting).cause == "worker-lost"


async def test_the_end_of_a_visit_harms_nothing(endpoint: str) -> None:
    async with actors.Engine(endpoint) as owner:
        child = await owner.spawn(program(REST))
        async with operating(endpoint) as operator:
            first = await operator.visit(child.id)
            waiting = asyncio.ensure_future(first.wait())
            second = await operator.visit(child.id)
            await asyncio.sleep(0)
            await first.aclose()
            with pytest.raises(actors.SessionNotFound, match="visit"):
                await waiting
            assert (await second.snapshot()).owner_alive
            await first.aclose()
            third = asyncio.ensure_future(second.wait())
            await asyncio.sleep(0)
        with pytest.raises(actors.BrokerLost):
            await third
        assert alive(child.pid)


async def test_a_collected_visit_is_over(endpoint: str) -> None:
    async with actors.Engine(endpoint) as engine:
        child = await engine.spawn(program(REST))
        visited = await engine.visit(child.id)
        assert list(engine._connection()._visited) == [child.id]
        del visited
        await engine.info()
        assert not engine._connection()._visited
        assert alive(child.pid)


async def test_a_visit_ends_in_its_own_loop_alone(endpoint: str) -> None:
    async with actors.Engine(endpoint) as engine:
        child = await engine.spawn(program(REST))
        visited = await engine.visit(child.id)
        waiting = asyncio.ensure_future(visited.wait(NOT_BLOCKED))
        await asyncio.sleep(0)
        with pytest.raises(actors.RuntimeContext):
            await asyncio.to_thread(lambda: asyncio.run(visited.aclose()))
        await child.kill()
        assert (await waiting).cause == "killed"
    await asyncio.to_thread(lambda: asyncio.run(visited.aclose()))


async def test_a_visitor_cannot_give_up_what_is_its_owners(
    opened: Opened, endpoint: str
) -> None:
    async with opened(endpoint, owner_key=b"k") as owner:
        child = await owner.spawn(program(LEAVES_ON_CUE), stdin="pipe")
        async with opened(endpoint, owner_key=b"k") as other:
            for engine in (owner, other):
                visited = await engine.visit(child.id)
                with pytest.raises(actors.SessionOwned):
                    await visited.detach()
                with pytest.raises(actors.InvalidRequest, match="ttl"):
                    await visited.detach(ttl=-1)
                await visited.aclose()
        assert (await child.snapshot()).owner_alive
        waiting = asyncio.ensure_future(child.wait(NOT_BLOCKED))
        await child.write("go\n")
        assert (await waiting).code == 9
        await child.aclose()


async def test_what_was_given_up_is_tracked_as_it_is_owned_again(endpoint: str) -> None:
    async with actors.Engine(endpoint) as engine:
        child = await engine.spawn(program(LEAVES_ON_CUE), stdin="pipe")
        await child.detach()
        again = await engine.attach(child.id)
        engine._connection().forget(child._record)
        await again.write("go\n")
        assert (await again.wait(NOT_BLOCKED)).code == 9
        await again.aclose()


async def test_a_cancelled_visit_leaves_nothing(endpoint: str) -> None:
    async with actors.Engine(endpoint) as owner:
        child = await owner.spawn(program(REST))
        visiting = asyncio.ensure_future(owner.visit(child.id))
        await asyncio.sleep(0)
        visiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await visiting
        assert alive(child.pid)


async def test_an_engine_visits_its_own(endpoint: str) -> None:
    async with actors.Engine(endpoint) as engine, engine.scope("s") as scope:
        child = await scope.spawn(program(REST))
        async with await engine.visit(child.id):
            pass
        assert alive(child.pid)
        assert await scope.aclose() == 1


async def test_s3_what_has_ended_is_listed_on_demand(endpoint: str) -> None:
    async with actors.Engine(endpoint) as owner, operating(endpoint) as operator:
        child = await owner.spawn(["true"])
        async for _ in child.events():
            pass
        assert await operator.children() == []
        (ended,) = await operator.children(ended=True)
        assert (ended.id, ended.state) == (child.id, "closed")
        assert await operator.children("elsewhere", ended=True) == []


async def test_a_visit_is_refused_by_the_name_of_what_is_wrong(endpoint: str) -> None:
    with pytest.raises(actors.InvalidRequest, match="operator"):
        actors.Engine(operator=True)
    async with operating(endpoint) as operator, actors.Engine(endpoint) as other:
        with pytest.raises(actors.InvalidRequest, match="session_id"):
            await operator.visit(0)
        with pytest.raises(actors.SessionNotFound):
            await operator.visit(4711)
        child = await operator.spawn(program(REST))
        with pytest.raises(actors.SessionNotFound):
            await other.visit(child.id)


def test_s55_a_visit_of_the_blocking_face(endpoint: str) -> None:
    with actors.blocking.Engine(endpoint) as owner:
        child = owner.spawn(program(REST))
        with actors.blocking.Engine(endpoint, operator=True) as operator:
            visited = operator.visit(child.id)
            assert [s.id for s in operator.children(ended=True)] == [child.id]
            visited.aclose()
        assert alive(child.pid)


FILLS = "read -r line; head -c 1000000 /dev/zero; exit 3"
BLOCK = actors.OutputPolicy.block(16 * KIB)


async def poll(child: actors.Child) -> None:
    await child.poll(wait=0)


async def expect(child: actors.Child) -> None:
    with suppress(actors.TimedOut):
        await child.expect("never", timeout=0)


HOLDS = pytest.mark.parametrize("hold", [poll, expect])


@HOLDS
async def test_a_visit_that_is_over_holds_no_output_back(
    endpoint: str, hold: Callable[[actors.Child], Any]
) -> None:
    async with actors.Engine(endpoint) as owner:
        child = await owner.spawn(["sh", "-c", FILLS], stdin="pipe", retention=BLOCK)
        closed, collected = await owner.visit(child.id), await owner.visit(child.id)
        await hold(closed)
        await hold(collected)
        await closed.aclose()
        await closed.aclose()
        del collected
        events = child.events()
        await child.write("go\n")
        async with asyncio.timeout(NOT_BLOCKED):
            async for _ in events:
                pass
        assert child.returncode == 3


@HOLDS
@pytest.mark.parametrize("end", ["detach", "aclose"])
async def test_an_owner_that_leaves_its_child_to_itself_holds_no_output_back(
    endpoint: str, hold: Callable[[actors.Child], Any], end: str
) -> None:
    async with actors.Engine(endpoint) as owner:
        child = await owner.spawn(
            ["sh", "-c", FILLS], stdin="pipe", retention=BLOCK, detach_ttl=FOREVER
        )
        visited = await owner.visit(child.id)
        await hold(child)
        await getattr(child, end)()
        await visited.write("go\n")
        assert (await visited.wait(NOT_BLOCKED)).code == 3


async def test_s20_two_handles_of_one_engine_hold_what_each_has_not_polled(
    endpoint: str,
) -> None:
    async with actors.Engine(endpoint) as owner:
        child = await owner.spawn(program(NUMBERS, tag(), "50000"), retention=BLOCK)
        visited = await owner.visit(child.id)
        slow = (await visited.poll(wait=0)).stdout
        begun = (await child.poll(wait=0)).stdout  # from here on both hold the log
        quick = asyncio.ensure_future(drained(child, mode="output"))
        while True:
            seen = await visited.poll(mode="output", max_bytes=KIB)
            assert seen.dropped_bytes == 0
            slow += seen.stdout
            if seen.done:
                break
        assert slow == begun + (await quick)[0] == numbers(50_000)
