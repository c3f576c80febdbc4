"""Who a session belongs to, what it is called, and what groups it."""

import asyncio
import os
import signal

import pytest

import actors
from tests.helpers import NOT_BLOCKED, alive, end, gone, tag, tagged
from tests.live.children import REST, Opened, arrived, client, program

pytestmark = pytest.mark.live


async def test_s1_ids_count_up_from_a_thousand_and_are_never_used_again(
    opened: Opened,
) -> None:
    async with opened() as engine:
        seen = []
        for _ in range(5):
            async with await engine.spawn(["true"]) as child:
                seen.append(child.id)
        assert seen[0] >= 1000
        assert seen == sorted(set(seen))


async def test_s1_sessions_of_another_engine_are_absent(opened: Opened) -> None:
    async with opened() as engine, opened() as other:
        child = await engine.spawn(program(REST, tag()))
        assert await other.children() == []
        [refused] = await other.kill([child.id])
        assert isinstance(refused, actors.SessionNotFound)
        with pytest.raises(actors.InvalidRequest):
            await engine.kill([0])
        with pytest.raises(actors.InvalidRequest):
            await engine.kill([-4])
        assert child.returncode is None
        await child.aclose()


async def test_s1_an_id_is_taken_back_when_the_start_fails(opened: Opened) -> None:
    async with opened() as engine:
        first = await engine.spawn(program(REST, tag()))
        with pytest.raises(actors.SpawnFailed):
            await engine.spawn(["/nowhere/program"])
        with pytest.raises(actors.InvalidRequest):
            await engine.spawn([])
        second = await engine.spawn(program(REST, tag()))
        assert [s.id for s in await engine.children()] == [first.id, second.id]
        for answer in await engine.kill(range(first.id + 1, second.id)):
            assert isinstance(answer, actors.SessionNotFound)
        assert (await engine.info()).counts["sessions"] == 2
        await first.aclose()
        await second.aclose()


async def test_s2_an_interrupted_first_wait_leaves_the_child_alone(
    opened: Opened,
) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(REST, tag()))
        for ask in (child.wait, child.poll):
            waiting = asyncio.ensure_future(ask())
            await arrived(child)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert alive(child.pid)
        assert (await child.poll(wait=0)).alive
        await child.aclose()


async def test_s3_children_lists_live_sessions_and_snapshots_consume_nothing(
    opened: Opened,
) -> None:
    async with opened() as engine, engine.scope("some") as scope:
        started = [
            await scope.spawn(program(REST, tag()), metadata={"n": str(n)})
            for n in range(3)
        ]
        alone = await engine.spawn(["true"], authority="any")
        await alone.wait()
        for child in started:
            assert (await child.poll(mode="output", max_bytes=1)).stdout == b"r"
        found = await scope.children()
        assert [snapshot.id for snapshot in found] == [child.id for child in started]
        assert [snapshot.metadata["n"] for snapshot in found] == ["0", "1", "2"]
        for snapshot in found:
            assert (snapshot.state, snapshot.scope) == ("running", "some")
            assert snapshot.tail == b"ready\n"
            assert snapshot.status is None
        ended = await alone.snapshot()
        assert ended.status is not None
        assert (ended.status.code, ended.authority) == (0, "any")
        assert (await started[0].poll(mode="output")).stdout == b"eady\n"
        await alone.aclose()
        with pytest.raises(actors.SessionNotFound):
            await alone.snapshot()


async def test_s4_what_ended_is_read_until_it_is_closed_and_its_status_for_ever(
    opened: Opened,
) -> None:
    async with opened() as engine:
        child = await engine.spawn(["echo", "last"])
        status = await child.wait()
        assert (await child.poll()).stdout == b"last\n"
        assert (await child.snapshot()).tail == b"last\n"
        assert (await child.output()).stdout == b"last\n"
        await child.aclose()
        assert await child.wait() == status
        assert child.returncode == 0
        for call in (child.snapshot, child.poll, child.output):
            with pytest.raises(actors.SessionNotFound):
                await call()
        [answer] = await engine.kill([child.id])
        assert isinstance(answer, actors.SessionNotFound)


async def test_s6_the_eight_used_last_are_never_evicted() -> None:
    async with actors.Engine() as engine, engine.scope(capacity=8) as scope:
        for _ in range(8):
            await scope.spawn(["sleep", "100"])
        with pytest.raises(actors.CapacityExceeded):
            await scope.spawn(["true"], on_full="evict")
        assert len(await scope.children()) == 8


async def test_s6_writes_polls_resizes_and_signals_are_uses_and_looks_are_none() -> (
    None
):
    async with actors.Engine() as engine, engine.scope(capacity=12) as scope:
        stream = scope.events()
        made = [await scope.spawn(["sleep", "100"], tty=True) for _ in range(12)]
        await made[4].snapshot()
        await made[4].stats()
        await made[0].write(b"x")
        await made[1].poll(wait=0)
        await made[2].resize(30, 90)
        await made[3].signal(signal.SIGCONT)
        await scope.spawn(["sleep", "100"], on_full="evict")
        assert (await made[4].wait(NOT_BLOCKED)).cause == "evicted"
        assert [child.id for child in made if child.ended] == [made[4].id]
        told = []
        while "exited" not in told:
            event = await anext(stream)
            told += [event.kind] if event.id == made[4].id else []
        assert told == ["starting", "running", "evicted", "exited"]


async def test_s7_a_scope_ends_all_its_children_and_says_how_many(
    opened: Opened,
) -> None:
    word = tag()
    async with opened() as engine:
        scope = engine.scope("one")
        for _ in range(4):
            await scope.spawn(program(REST, word))
        with pytest.raises(actors.InvalidRequest):
            engine.scope("one")
        assert await scope.aclose() == 4
        assert not tagged(word)
        assert await scope.aclose() == 0
        with pytest.raises(actors.SessionNotFound):
            await scope.spawn(["true"])
        async with engine.scope("one"):
            pass


async def test_s7_a_scope_closes_when_what_it_is_bound_to_fires(opened: Opened) -> None:
    word, event = tag(), asyncio.Event()
    async with opened() as engine:
        scope = engine.scope(cancel=event)
        child = await scope.spawn(program(REST, word))
        event.set()
        async with asyncio.timeout(NOT_BLOCKED):
            assert (await child.wait()).cause == "owner-drop"
        await asyncio.to_thread(gone, word)
        await scope.aclose()


async def test_s7_a_scope_ends_what_it_runs_too(opened: Opened) -> None:
    word = tag()
    async with opened() as engine:
        for kill_first in (False, True):
            async with engine.scope() as scope:
                running = asyncio.create_task(scope.run(program(REST, word)))
                async with asyncio.timeout(NOT_BLOCKED):
                    while not await scope.children():
                        await asyncio.sleep(0)
                if kill_first:
                    (receipt,) = await scope.kill()
                    assert isinstance(receipt, actors.KillReceipt)
                    assert (await running).status.cause == "killed"
            assert not tagged(word)
            if not kill_first:
                with pytest.raises(actors.SessionNotFound):
                    await running
        async with asyncio.timeout(NOT_BLOCKED):
            while (await engine.info()).counts["live"]:
                pass


async def test_s7_a_scope_that_closes_before_a_run_has_begun_starts_nothing(
    opened: Opened,
) -> None:
    word = tag()
    async with opened() as engine:
        scope = engine.scope()
        running = asyncio.create_task(scope.run(program(REST, word)))
        await asyncio.sleep(0)  # the spawn is on its way, its answer is not
        assert await scope.aclose() == 0
        with pytest.raises(actors.SessionNotFound):
            await running
        await asyncio.to_thread(gone, word)


async def test_s7_a_scope_knows_no_children_that_were_closed(opened: Opened) -> None:
    async with opened() as engine, engine.scope() as scope:
        for _ in range(3):
            async with await scope.spawn(["true"]) as child:
                await child.wait()
        assert await scope.kill() == []
        assert await scope.aclose() == 0


async def test_s7_an_exception_ends_the_scope_and_passes(opened: Opened) -> None:
    word = tag()
    async with opened() as engine:

        async def fail() -> None:
            async with engine.scope() as scope:
                await scope.spawn(program(REST, word))
                raise KeyError("mine")

        with pytest.raises(KeyError):
            await fail()
        assert not tagged(word)


FOREIGNERS = '''
import ctypes
if len(sys.argv) == 1:
    assert ctypes.CDLL(None).prctl(24, 5, 0, 0, 0) == 0  # CAP_KILL, from the next exec
    os.execv(sys.executable, [*sys.orig_argv, "again"])

FOREIGN = """
import os, signal
os.setuid(12345)
signal.alarm(50)
os.write(1, b"up")
signal.pause()
"""

async def main():
    settings = actors.Settings(containment="subreaper", kill_timeout=0.2)
    async with actors.Engine(settings=settings) as engine:
        scope = engine.scope("mixed")
        mine = await scope.spawn(["sleep", "100"])
        others = [await scope.spawn([sys.executable, "-Sc", FOREIGN]) for _ in "ab"]
        for other in others:
            await other.poll(mode="output")
        try:
            await scope.aclose()
        except ExceptionGroup as group:
            failed = group.exceptions
            assert len(failed) == 2
            for error, other in zip(failed, others):
                assert str(other.pid) in str(error)
                assert f"session {other.id} " in error.__notes__[0]
        assert mine.returncode == -9
        print(*(other.pid for other in others), flush=True)
        os._exit(0)
asyncio.run(main())
'''


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user of a child")
def test_s7_closing_a_scope_tells_of_each_that_resists() -> None:
    with client(FOREIGNERS) as process:
        output, _ = process.communicate(timeout=NOT_BLOCKED)
    assert process.returncode == 0
    foreign = [int(word) for word in output.split()]
    assert len(foreign) == 2
    end(foreign)


async def test_s9_notes_come_back_copied_with_everything(opened: Opened) -> None:
    notes = {"who": "mine", "ünï": "cödé"}
    whole = dict(notes)
    async with opened() as engine, engine.scope() as scope:
        child = await scope.spawn(
            program(REST, tag()), metadata=notes, authority="may write"
        )
        notes["who"] = "changed later"
        for _ in range(2):
            found = await child.snapshot()
            assert (found.metadata, found.authority) == (whole, "may write")
            dict(found.metadata).clear()
        [listed] = await scope.children()
        assert (listed.metadata, listed.authority) == (whole, "may write")
        await child.kill()
        assert (await child.output()).metadata == whole
        assert (await engine.run(["true"], metadata=whole)).metadata == whole
        assert (await engine.run(["true"])).metadata == {}
        for wrong in ({"a": 1}, {1: "a"}, ["a"]):
            with pytest.raises(actors.InvalidRequest) as refused:
                await engine.spawn(["true"], metadata=wrong)
            assert refused.value.field == "metadata"
