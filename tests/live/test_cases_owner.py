"""Owners, workers and brokers that vanish: situations users reported."""

import asyncio
import os
import random
import select
import signal
import threading
from typing import Any

import pytest

import actors
from tests.helpers import (
    NOT_BLOCKED,
    alive,
    end,
    eventually,
    gone,
    parent,
    tag,
    tagged,
)
from tests.live.children import (
    REST,
    THREE_GENERATIONS,
    TICKS,
    arrived,
    client,
    command_line,
    drained,
    engine_processes,
    program,
    repeated,
    until,
)

pytestmark = pytest.mark.live

TOLD = 5.0
"""Seconds in which a loss must be told."""


def pause(seconds: float) -> None:
    """Let a random moment pass: there is no fact to wait for."""
    select.poll().poll(seconds * 1000)


async def three_generations(engine: actors.Engine, word: str) -> actors.Child:
    child = await engine.spawn(program(THREE_GENERATIONS, word))
    await until(child, b"up\n")
    assert len(tagged(word)) == 3
    return child


# -- owners --------------------------------------------------------------------


def test_children_outlive_the_thread_that_started_them() -> None:
    """Neither the engine nor a child is bound to the thread that made it."""
    loop = asyncio.new_event_loop()
    engine = actors.Engine()
    children: list[actors.Child] = []

    async def begin() -> None:
        await engine.__aenter__()
        started = [engine.spawn(program(TICKS, tag(), "20")) for _ in range(3)]
        children.extend(await asyncio.gather(*started))

    async def finish() -> None:
        for child in children:
            output, last = await drained(child)
            assert last.exit_code == 0
            assert output.count(b"tick ") == 20
            assert output.endswith(b"ticker-done\n")
            await child.aclose()
        await engine.aclose()

    starter = threading.Thread(target=lambda: loop.run_until_complete(begin()))
    starter.start()
    starter.join()
    try:
        loop.run_until_complete(finish())
    finally:
        loop.close()


async def test_children_outlive_the_task_that_started_them() -> None:
    async with actors.Engine() as engine, engine.scope() as scope:
        starting = asyncio.create_task(scope.spawn(program(TICKS, tag(), "10")))
        child = await starting
        output, last = await drained(child)
        assert output.endswith(b"ticker-done\n")
        assert last.exit_code == 0


SPAWNS_ONE = """
async def main():
    async with actors.Engine() as engine:
        os.write(1, b"up\\n")
        child = await engine.spawn(eval(sys.argv[1]))
        await child.wait()
asyncio.run(main())
"""


@repeated(8, 100)
def test_a_client_killed_while_it_spawns_leaves_nothing(runs: int) -> None:
    word = tag()
    chance = random.Random(11)
    for _ in range(runs):
        with client(SPAWNS_ONE, repr(program(REST, word))) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            pause(chance.random() * 0.04)
            process.kill()
    gone(word, 10)


@repeated(10, 50)
async def test_a_worker_killed_while_it_spawns_leaves_nothing(runs: int) -> None:
    word = tag()
    chance = random.Random(12)
    async with actors.Engine() as engine:
        for _ in range(runs):
            spawning = asyncio.ensure_future(engine.spawn(program(REST, word)))
            await asyncio.sleep(chance.random() * 0.01)
            busy = [parent(pid) for pid in tagged(word)]
            workers = engine_processes(engine)["worker"]
            victims = [pid for pid in busy if pid in workers] or workers[:1]
            end(victims)
            try:
                async with asyncio.timeout(TOLD):
                    child = await spawning
            except actors.WorkerLost:
                continue
            await child.aclose()
        await asyncio.to_thread(gone, word, 10)
        assert (await engine.run(["echo", "still here"])).stdout == b"still here\n"


@repeated(40, 200)
async def test_s56_a_cancelled_spawn_leaves_nothing(runs: int) -> None:
    word = tag()
    chance = random.Random(13)

    async def one(engine: actors.Engine) -> None:
        spawning = asyncio.ensure_future(engine.spawn(program(REST, word)))
        await asyncio.sleep(chance.random() * 0.02)
        spawning.cancel()
        try:
            child = await spawning
        except asyncio.CancelledError:
            return
        await child.aclose()

    async def in_time(engine: actors.Engine) -> None:
        try:
            async with asyncio.timeout(chance.random() * 0.02):
                child = await engine.spawn(program(REST, word))
        except TimeoutError:
            return
        await child.aclose()

    async with actors.Engine() as engine:
        for _ in range(0, runs, 20):
            await asyncio.gather(
                *(one(engine) if n % 2 else in_time(engine) for n in range(20))
            )
            await asyncio.to_thread(gone, word, 3)
            assert await engine.children() == []
        assert (await engine.run(["echo", "still here"])).stdout == b"still here\n"


async def test_closing_the_engine_during_a_spawn_leaves_nothing() -> None:
    word = tag()
    chance = random.Random(14)
    for _ in range(4):
        engine = actors.Engine()
        await engine.__aenter__()
        spawning = asyncio.ensure_future(engine.spawn(program(REST, word)))
        await asyncio.sleep(chance.random() * 0.02)
        await engine.aclose()
        async with asyncio.timeout(TOLD):
            [result] = await asyncio.gather(spawning, return_exceptions=True)
        assert isinstance(result, actors.Child | actors.BrokerLost)
    gone(word, 3)


# -- workers -------------------------------------------------------------------


async def test_a_killed_worker_takes_its_tree_along_and_is_told() -> None:
    word, other = tag(), tag()
    async with actors.Engine() as engine:
        bystander = await engine.spawn(program(REST, other))
        child = await three_generations(engine, word)
        waiting = asyncio.ensure_future(child.wait())
        polling = asyncio.ensure_future(child.poll(wait=30))
        events = child.events()
        capture = asyncio.ensure_future(child.output())
        await asyncio.sleep(0)
        end([parent(child.pid)])
        async with asyncio.timeout(TOLD):
            status = await waiting
            seen = await polling
            with pytest.raises(actors.WorkerLost):
                await capture
            told: list[Any] = [event async for event in events]
        assert (status.code, status.signal) == (None, None)
        assert (status.cause, status.ok) == ("worker-lost", False)
        assert (seen.state, seen.alive, seen.exit_code) == ("lost", False, None)
        assert (child.returncode, child.ended) == (None, True)
        kinds = [type(event).__name__ for event in told]
        assert kinds[-4:] == ["Exited", "StreamError", "StreamError", "Closed"]
        assert told[-4].status.cause == "worker-lost"
        await asyncio.to_thread(gone, word, TOLD)
        assert tagged(other) == [bystander.pid]
        assert (await bystander.poll(mode="output")).stdout == b"ready\n"
        assert (await engine.run(["echo", "new"])).stdout == b"new\n"
        assert (await child.kill()).survivors == ()
        await child.aclose()
        await bystander.aclose()


async def test_s39_a_run_whose_worker_is_killed_raises() -> None:
    word = tag()
    async with actors.Engine() as engine:
        running = asyncio.ensure_future(engine.run(program(REST, word)))
        await asyncio.to_thread(eventually, lambda: tagged(word))
        end([parent(tagged(word)[0])])
        async with asyncio.timeout(TOLD):
            with pytest.raises(actors.WorkerLost):
                await running


async def test_a_stopped_worker_that_is_killed_leaves_nothing() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await three_generations(engine, word)
        worker = parent(child.pid)
        os.kill(worker, signal.SIGSTOP)  # noqa: TID251 - a test's own misdeed
        end([worker])
        async with asyncio.timeout(TOLD):
            assert (await child.wait()).cause == "worker-lost"
        await asyncio.to_thread(gone, word, TOLD)
        await child.aclose()


# -- the broker ----------------------------------------------------------------


async def test_s39_a_killed_broker_takes_everything_along_and_is_told() -> None:
    word = tag()
    async with actors.Engine() as engine, actors.Engine() as bystander:
        children = [await three_generations(engine, word) for word in [word]]
        children.append(await engine.spawn(program(REST, word)))
        idle = await bystander.spawn(program(REST, tag()))
        processes = engine_processes(engine)
        waiting = asyncio.ensure_future(children[0].wait())
        polling = asyncio.ensure_future(children[0].poll(wait=30))
        writing = asyncio.ensure_future(engine.run(program(REST, word)))
        await arrived(children[0])
        end(processes["broker"])
        async with asyncio.timeout(TOLD):
            for asked in (waiting, polling, writing):
                with pytest.raises(actors.BrokerLost):
                    await asked
            for call in (children[1].poll(), children[1].wait(), children[1].kill()):
                with pytest.raises(actors.BrokerLost):
                    await call
            with pytest.raises(actors.BrokerLost):
                await engine.spawn(["true"])
        await asyncio.to_thread(gone, word, 10)
        left = [pid for kind in processes.values() for pid in kind]
        await asyncio.to_thread(eventually, lambda: not any(map(alive, left)))
        assert idle.returncode is None
        async with asyncio.timeout(3):
            await engine.aclose()
        await idle.aclose()


@pytest.mark.parametrize("kind", ["supervisor", "pool"])
async def test_a_killed_engine_process_leaves_no_child(kind: str) -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await three_generations(engine, word)
        end(engine_processes(engine)[kind])
        async with asyncio.timeout(2 * TOLD):
            try:
                status = await child.wait()
            except actors.BrokerLost:
                assert kind == "supervisor"
            else:
                assert status.cause == "worker-lost"
        await asyncio.to_thread(gone, word, 10)
        if kind == "pool":
            assert (await engine.run(["echo", "new"])).stdout == b"new\n"
            await child.aclose()
    async with actors.Engine():
        pass  # the next engine removes what a killed supervisor had to leave


ENDS_WITHOUT_BROKER = """
from tests.live.children import *
async def main():
    how, word, sign = sys.argv[1], sys.argv[2], int(sys.argv[3])
    engine = actors.Engine()
    await engine.__aenter__()
    child = await engine.spawn(program(REST, word), stdin="pipe")
    writing = asyncio.ensure_future(child.write(b"x" * 1024 * 1024))
    await child.poll(mode="output")
    [broker] = engine_processes(engine)["broker"]
    os.kill(broker, sign)
    asked = [asyncio.ensure_future(c) for c in (child.snapshot(), child.poll())]
    await asyncio.wait(asked, timeout=0.1)
    os.write(1, b"ready\\n")
    if how == "close":
        await engine.aclose()
    if how == "raise":
        raise KeyError("mine")
    if how in ("SIGINT", "SIGTERM"):
        await asyncio.sleep(100)
asyncio.run(main())
"""


@pytest.mark.parametrize("broken", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("how", ["close", "return", "raise", "SIGINT", "SIGTERM"])
def test_a_client_ends_at_once_although_its_broker_is_gone(
    how: str, broken: signal.Signals
) -> None:
    word = tag()
    quiet = {"stderr": -3}
    words = [how, word, str(int(broken))]
    with client(ENDS_WITHOUT_BROKER, *words, **quiet) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        if how.startswith("SIG"):
            process.send_signal(signal.Signals[how])
        code = process.wait(NOT_BLOCKED)
    # asyncio turns SIGINT into KeyboardInterrupt, which Python ends by.
    expected = {"raise": 1, "SIGINT": -signal.SIGINT, "SIGTERM": -signal.SIGTERM}
    assert code == expected.get(how, 0)
    gone(word, 10)


def test_no_secret_is_in_a_command_line() -> None:
    async def look() -> list[bytes]:
        async with actors.Engine(owner_key=b"\x01" * 31 + b"\x02") as engine:
            child = await engine.spawn(program(REST, tag()))
            every = [pid for kind in engine_processes(engine).values() for pid in kind]
            lines = [command_line(pid) for pid in every]
            await child.aclose()
            return lines

    for line in asyncio.run(look()):
        assert b"01" * 31 not in line
        assert b"\x01" * 31 not in line
