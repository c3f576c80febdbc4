"""How many sessions there may be, who waits for room, and who asks for one twice."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

import actors
from tests.helpers import (
    FOREVER,
    NOT_BLOCKED,
    alive,
    eventually,
    go,
    gone,
    parent,
    stop,
    tag,
)
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


async def test_a_scope_closes_though_long_names_wait_for_room_in_it() -> None:
    async with actors.Engine() as engine:
        scope = engine.scope(capacity=1, queue=NOT_BLOCKED)
        first = await scope.spawn(program(REST))
        names = [125 * "\N{GRINNING FACE}" + f"{number:03}" for number in range(100)]
        waiting = [
            asyncio.ensure_future(scope.spawn(["true"], request_id=name))
            for name in names
        ]
        await arrived(first)
        assert await scope.aclose() == 1
        for spawn in waiting:
            with pytest.raises(actors.SessionNotFound):
                await spawn
        assert (await engine.info()).counts["waiting"] == 0


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


async def test_runs_of_one_request_id_at_a_time_all_get_the_output() -> None:
    command = ["sh", "-c", "echo out; echo err >&2; exit 3"]
    async with actors.Engine() as engine:
        runs = [engine.run(command, request_id="job") for _ in range(3)]
        for done in await asyncio.wait_for(asyncio.gather(*runs), NOT_BLOCKED):
            assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
            assert done.returncode == 3


@pytest.mark.parametrize("end", ["cancelled", "whole"])
async def test_who_shares_the_child_of_a_run_hears_of_its_end(
    end: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    script = f"until test -e {gate}; do sleep 0.01; done; head -c 300000 /dev/zero"
    command = ["sh", "-c", f"{script}; exit 3"]
    options: dict[str, Any] = {
        "request_id": "job",
        "retention": actors.OutputPolicy.tail(65536),
    }
    async with actors.Engine() as engine:
        run = asyncio.create_task(engine.run(command, **options))
        while not await engine.children():
            await asyncio.sleep(0.01)
        child = await engine.spawn(command, **options)
        if end == "cancelled":
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
        gate.touch()
        assert (await child.wait(NOT_BLOCKED)).code == 3
        if end == "whole":
            assert len((await run).stdout) == 300000
        await child.aclose()
        assert (await engine.info()).counts["sessions"] == 0


async def test_the_child_of_a_run_stays_readable_for_who_shares_it(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    script = f"until test -e {gate}; do sleep 0.01; done; echo out"
    command = ["sh", "-c", script]
    async with actors.Engine() as engine:
        run = asyncio.create_task(engine.run(command, request_id="job"))
        while not await engine.children():
            await asyncio.sleep(0.01)
        child = await engine.spawn(command, request_id="job")
        gate.touch()
        assert (await asyncio.wait_for(run, NOT_BLOCKED)).stdout == b"out\n"
        assert (await child.poll(wait=NOT_BLOCKED)).stdout == b"out\n"
        await child.aclose()


async def test_the_child_of_a_run_stays_for_who_comes_as_it_ends(
    tmp_path: Path,
) -> None:
    gate, begun = tmp_path / "gate", asyncio.Event()
    script = f"echo out; until test -e {gate}; do sleep 0.01; done"
    command = ["sh", "-c", script]
    async with actors.Engine() as engine:
        run = asyncio.create_task(
            engine.run(command, request_id="job", into=lambda *_: begun.set())
        )
        await asyncio.wait_for(begun.wait(), NOT_BLOCKED)
        [shown] = await engine.children()
        pid = shown.pid or 0
        worker = parent(pid)
        stop(worker)  # all that follows comes to it at once
        try:
            child = await engine.spawn(command, request_id="job")
            gate.touch()
            await asyncio.to_thread(eventually, lambda: not alive(pid))
        finally:
            go(worker)
        await asyncio.wait_for(run, NOT_BLOCKED)
        assert (await child.poll(wait=NOT_BLOCKED)).stdout == b"out\n"
        await child.aclose()


async def test_what_was_spawned_goes_with_the_run_that_had_it_last(
    tmp_path: Path,
) -> None:
    gate, word = tmp_path / "gate", tag()
    script = f"until test -e {gate}; do sleep 0.01; done"
    command = ["sh", "-c", f"sh -c 'sleep 150; : {word}' & echo out; {script}"]
    options: dict[str, Any] = {"request_id": "job", "leftover": "keep"}
    async with actors.Engine() as engine:
        child = await engine.spawn(command, **options)
        begun = asyncio.Event()
        run = asyncio.create_task(
            engine.run(command, into=lambda *_: begun.set(), **options)
        )
        await asyncio.wait_for(begun.wait(), NOT_BLOCKED)
        del child
        gate.touch()
        assert (await asyncio.wait_for(run, NOT_BLOCKED)).returncode == 0
        async with asyncio.timeout(NOT_BLOCKED):
            while (await engine.info()).counts["sessions"]:
                await asyncio.sleep(0.01)
        gone(word)


async def test_runs_of_one_request_id_that_wait_for_room_all_get_the_output() -> None:
    async with (
        actors.Engine() as engine,
        engine.scope(capacity=1, queue=NOT_BLOCKED) as scope,
    ):
        first = await scope.spawn(program(REST))
        runs = [
            asyncio.create_task(scope.run(["echo", "out"], request_id="job"))
            for _ in range(3)
        ]
        while (await engine.info()).counts["waiting"] != 1:
            await asyncio.sleep(0.01)
        await first.kill()
        for done in await asyncio.wait_for(asyncio.gather(*runs), NOT_BLOCKED):
            assert done.stdout == b"out\n"


async def test_a_run_of_what_was_spawned_before_gets_the_output(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = ["sh", "-c", f"echo out; until test -e {gate}; do sleep 0.01; done"]
    async with actors.Engine() as engine:
        child = await engine.spawn(command, request_id="job")
        await child.expect("out", timeout=NOT_BLOCKED)
        run = asyncio.create_task(engine.run(command, request_id="job"))
        gate.touch()
        done = await asyncio.wait_for(run, NOT_BLOCKED)
        assert (done.stdout, done.returncode) == (b"out\n", 0)


async def test_a_run_says_so_if_what_was_spawned_before_has_lost_output() -> None:
    command = ["sh", "-c", "head -c 65536 /dev/zero; echo over; read line"]
    kept = actors.OutputPolicy("tail", 4096)
    options: dict[str, Any] = {"stdin": "pipe", "retention": kept}
    async with actors.Engine() as engine:
        child = await engine.spawn(command, request_id="job", **options)
        await child.expect("over", timeout=NOT_BLOCKED)
        run = asyncio.create_task(engine.run(command, request_id="job", **options))
        await child.close_stdin()
        with pytest.raises(actors.OutputLost):
            await asyncio.wait_for(run, NOT_BLOCKED)


async def test_a_second_start_that_is_given_up_leaves_the_first_ones_child() -> None:
    command = program(REST)
    async with actors.Engine() as engine, engine.scope() as scope:
        owners: list[tuple[str, Any]] = [("engine", engine), ("scope", scope)]
        starts: list[Any] = [engine.spawn, scope.spawn, engine.run, scope.run]
        for name, owner in owners:
            child = await owner.spawn(command, request_id=name)
            for start in starts:
                again = asyncio.ensure_future(start(command, request_id=name))
                await asyncio.sleep(0)
                again.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await again
                await arrived(child)
                assert not child.ended
            await child.signal(signal.SIGKILL)
            assert (await child.wait(NOT_BLOCKED)).signal == signal.SIGKILL
            await child.aclose()


async def test_a_run_that_is_given_up_leaves_the_child_to_its_scope() -> None:
    command = program(REST)
    async with actors.Engine() as engine, engine.scope() as scope:
        child = await scope.spawn(command, request_id="job")
        begun = asyncio.Event()
        run = asyncio.ensure_future(
            scope.run(command, request_id="job", into=lambda *_: begun.set())
        )
        await begun.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await arrived(child)
        assert not child.ended


@pytest.mark.parametrize("first", ["run", "spawn"])
async def test_of_two_starts_of_one_child_the_first_can_be_given_up(first: str) -> None:
    command = program(REST)
    async with actors.Engine() as engine:
        starting = asyncio.ensure_future(
            getattr(engine, first)(command, request_id="x")
        )
        spawning = asyncio.ensure_future(engine.spawn(command, request_id="x"))
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        async with await spawning as child:
            await until(child, b"ready\n")
            await child.signal(signal.SIGKILL)
            assert (await child.wait(NOT_BLOCKED)).signal == signal.SIGKILL
            await child.aclose()


async def test_a_scope_takes_back_no_start_of_what_another_has() -> None:
    command = program(REST)
    async with actors.Engine() as engine:
        child = await engine.spawn(command, request_id="job")
        scope = engine.scope()
        again = asyncio.ensure_future(scope.spawn(command, request_id="job"))
        await asyncio.sleep(0)
        assert await scope.aclose() == 0
        with pytest.raises(actors.SessionNotFound, match="closed meanwhile"):
            await again
        await arrived(child)
        assert not child.ended
        await child.aclose()


@pytest.mark.parametrize("way", ["spawn", "run"])
async def test_a_scope_that_closes_leaves_a_start_of_its_own_to_the_others(
    way: str,
) -> None:
    command = program(REST)
    async with actors.Engine() as engine:
        scope = engine.scope()
        own = asyncio.ensure_future(getattr(scope, way)(command, request_id="job"))
        other = asyncio.ensure_future(engine.spawn(command, request_id="job"))
        await asyncio.sleep(0)
        await scope.aclose()
        with pytest.raises(actors.SessionNotFound, match="closed"):
            await own
        async with await other as child:
            await until(child, b"ready\n")
            await child.signal(signal.SIGKILL)
            assert (await child.wait(NOT_BLOCKED)).signal == signal.SIGKILL


async def test_starts_of_one_child_that_are_all_given_up_wait_no_longer() -> None:
    async with actors.Engine(settings=actors.Settings(capacity=1)) as engine:
        await_room: dict[str, Any] = {"request_id": "job", "queue": FOREVER}
        full = await engine.spawn(program(REST))
        first, second = engine.scope(), engine.scope()
        starts = [
            asyncio.ensure_future(scope.spawn(program(REST), **await_room))
            for scope in (first, second)
        ]
        while (await engine.info()).counts["waiting"] != 1:
            await asyncio.sleep(0.01)
        await first.aclose()
        await second.aclose()
        for start in starts:
            with pytest.raises(actors.SessionNotFound):
                await asyncio.wait_for(start, NOT_BLOCKED)
        await full.aclose()


async def test_a_scope_owns_what_was_started_for_a_run_that_is_given_up() -> None:
    command = program(REST)
    async with actors.Engine() as engine:
        scope = engine.scope()
        run = asyncio.ensure_future(engine.run(command, request_id="job"))
        spawning = asyncio.ensure_future(scope.spawn(command, request_id="job"))
        await asyncio.sleep(0)
        run.cancel()
        child = await spawning
        assert await scope.aclose() == 1
        assert (await child.wait(NOT_BLOCKED)).cause == "owner-drop"


@pytest.mark.parametrize("end", ["given up", "over"])
async def test_a_scope_keeps_what_a_run_of_its_engine_started(
    end: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    command = ["sh", "-c", f"until test -e {gate}; do sleep 0.01; done; echo out"]
    async with actors.Engine() as engine, engine.scope() as scope:
        run = asyncio.ensure_future(engine.run(command, request_id="job"))
        while not await engine.children():
            await asyncio.sleep(0.01)
        child = await scope.spawn(command, request_id="job")
        if end == "given up":
            run.cancel()
            await asyncio.wait([run])
        gate.touch()
        assert (await child.wait(NOT_BLOCKED)).code == 0
        await asyncio.wait([run])
        assert (await child.poll(wait=NOT_BLOCKED)).stdout == b"out\n"
        assert await scope.aclose() == 1


async def test_a_handle_keeps_what_a_run_of_a_scope_started() -> None:
    command = program(REST)
    async with actors.Engine() as engine, engine.scope() as scope:
        run = asyncio.ensure_future(scope.run(command, request_id="job"))
        spawning = asyncio.ensure_future(engine.spawn(command, request_id="job"))
        await asyncio.sleep(0)
        run.cancel()
        async with await spawning as child:
            assert await scope.aclose() == 0
            await arrived(child)
            assert not child.ended


async def test_a_start_keeps_the_child_of_a_handle_that_is_collected() -> None:
    command = program(REST)
    async with actors.Engine() as engine:
        child = await engine.spawn(command, request_id="job")
        spawning = asyncio.ensure_future(engine.spawn(command, request_id="job"))
        await asyncio.sleep(0)
        with pytest.warns(ResourceWarning, match="never closed"):
            del child
        async with await spawning as child:
            await arrived(child)
            assert not child.ended
