"""Owners, workers and brokers that vanish: situations users reported."""

import asyncio
import os
import random
import select
import signal
import subprocess
import threading
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
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
    ECHOES_LINES,
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
    stopped,
    until,
)
from tests.parts import Parts, serving

pytestmark = pytest.mark.live

TOLD = 10.0
"""Seconds in which a loss must be told."""
LOADED = 10
"""How many times longer things may take on a loaded machine."""


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
    gone(word)


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
        await asyncio.to_thread(gone, word)
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
            await asyncio.to_thread(gone, word)
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
    gone(word)


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
        await asyncio.to_thread(gone, word)
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
        await asyncio.to_thread(gone, word)
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
        await asyncio.to_thread(gone, word)
        left = [pid for kind in processes.values() for pid in kind]
        await asyncio.to_thread(eventually, lambda: not any(map(alive, left)))
        assert idle.returncode is None
        async with asyncio.timeout(NOT_BLOCKED):
            await engine.aclose()
        await idle.aclose()


@pytest.mark.parametrize("kind", ["supervisor", "pool"])
async def test_a_killed_engine_process_leaves_no_child(
    kind: str, runtime_dir: Path
) -> None:
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
        await asyncio.to_thread(gone, word)
        if kind == "pool":
            assert (await engine.run(["echo", "new"])).stdout == b"new\n"
            await child.aclose()
    await asyncio.to_thread(gone, str(runtime_dir))  # none is about to write a record
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
    words = [how, word, str(int(broken))]
    with client(ENDS_WITHOUT_BROKER, *words, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        ending = time.monotonic()
        if how.startswith("SIG"):
            process.send_signal(signal.Signals[how])
        _, told = process.communicate(timeout=NOT_BLOCKED)
        assert time.monotonic() - ending < 3 * LOADED
    # asyncio turns SIGINT into KeyboardInterrupt, which Python ends by.
    expected = {"raise": 1, "SIGINT": -signal.SIGINT, "SIGTERM": -signal.SIGTERM}
    assert process.returncode == expected.get(how, 0)
    if how in ("raise", "SIGINT"):
        own = {"raise": b"KeyError: 'mine'", "SIGINT": b"KeyboardInterrupt"}
        assert own[how] in told.splitlines()
    gone(word)


# -- clients of one broker -----------------------------------------------------

KEY = "c1c1"
ONE_LIFE = """
async def main():
    engine = actors.Engine(sys.argv[1], owner_key=sys.argv[2])
    await engine.__aenter__()
    child = await engine.spawn(eval(sys.argv[3]))
    await child.poll(mode="output")
    os.write(1, b"%d\\n" % child.pid)
    await asyncio.sleep(100)
asyncio.run(main())
"""


async def echoes(engine: actors.Engine) -> None:
    """Use the engine for a short dialogue."""
    child = await engine.spawn(program(ECHOES_LINES, tag()), stdin="pipe")
    for line in ("one\n", "two\n", "three\n"):
        await child.write(line)
    await child.close_stdin()
    output, last = await drained(child)
    assert output == b"E:one\nE:two\nE:three\ntotal 3\n"
    assert last.exit_code == 0
    await child.aclose()


@pytest.mark.parametrize("still", [False, True], ids=["serving", "stopped"])
@repeated(1, 20)
async def test_a_client_that_comes_again_under_its_name_is_answered(
    runs: int, still: bool, tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    with serving(endpoint):
        for _ in range(runs):
            word = tag()
            words = [endpoint, KEY, repr(program(THREE_GENERATIONS, word))]
            with client(ONE_LIFE, *words) as process:
                assert process.stdout is not None
                pid = int(await asyncio.to_thread(process.stdout.readline))
                broker = Parts.of(pid).broker
                with stopped(broker) if still else nullcontext():
                    process.kill()
                    again = actors.Engine(endpoint, owner_key=KEY)
                    arriving = asyncio.ensure_future(again.__aenter__())
                    await asyncio.wait([arriving], timeout=0.2 if still else 0)
            async with asyncio.timeout(NOT_BLOCKED):
                await arriving
                await echoes(again)
            await asyncio.to_thread(gone, word)
            assert await again.children() == []
            await again.aclose()


async def test_two_living_clients_of_one_name_both_work(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    with serving(endpoint):
        async with (
            actors.Engine(endpoint, owner_key=KEY) as first,
            actors.Engine(endpoint, owner_key=KEY) as second,
            asyncio.timeout(NOT_BLOCKED),
        ):
            await asyncio.gather(echoes(first), echoes(second), echoes(first))


LINES = """
for n in range(int(sys.argv[2])):
    os.write(1, b"%08d %s\\n" % (n, b"." * 90))
"""
READS_LATE = f"""
from tests.live.children import *
LINES = {LINES!r}
endpoint, word, count, children, idle = sys.argv[1:]
whole = b"".join(b"%08d %s\\n" % (n, b"." * 90) for n in range(int(count)))
half = asyncio.Event()

async def read(child):
    at = lost = 0
    while True:
        seen = await asyncio.wait_for(child.poll(max_bytes=65536), 60)
        at, lost = at + seen.dropped_bytes, lost + seen.dropped_bytes
        assert seen.stdout == whole[at:at + len(seen.stdout)]
        at += len(seen.stdout)
        if at > len(whole) // 2 and not half.is_set():
            half.set()
            os.write(1, b"half\\n")
        if seen.done:
            assert at == len(whole), (at, len(whole))
            assert (await child.wait()).code == 0
            return lost

async def main():
    policies = [actors.OutputPolicy.block(100_000), actors.OutputPolicy.tail(100_000)]
    async with actors.Engine(endpoint) as engine, engine.scope() as scope:
        started = [
            await scope.spawn(program(LINES, word, count), retention=policies[n % 2])
            for n in range(int(children))
        ]
        await asyncio.gather(*(child.wait() for child in started[1::2]))
        await asyncio.sleep(float(idle))
        lost = await asyncio.gather(*map(read, started))
        assert not any(lost[::2]), lost
        assert all(lost[1::2]), lost
    os.write(1, b"all\\n")
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("count", "children", "idle"),
    [
        (10_000, 4, 0.2),
        pytest.param(
            50_000, 20, 10.0, marks=[pytest.mark.soak, pytest.mark.timeout(300)]
        ),
    ],
)
async def test_a_client_that_reads_late_or_stands_still_misses_nothing_unsaid(
    count: int, children: int, idle: float, tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    words = [endpoint, tag(), str(count), str(children), str(idle)]
    with serving(endpoint):
        async with actors.Engine(endpoint) as engine:
            with client(READS_LATE, *words) as process:
                assert process.stdout is not None
                line = await asyncio.to_thread(process.stdout.readline)
                assert line == b"half\n"
                with stopped(process.pid):
                    ends = time.monotonic() + idle
                    while time.monotonic() < ends:
                        async with asyncio.timeout(NOT_BLOCKED):
                            await echoes(engine)
                output, _ = await asyncio.to_thread(process.communicate)
                assert (output, process.returncode) == (b"all\n", 0)


# -- secrets -------------------------------------------------------------------


SHOWS_SECRETS = """
for name in os.environ:
    write(f"ENV {name}\\n".encode())
for fd in os.listdir("/proc/self/fd"):
    if os.path.exists(f"/proc/self/fd/{fd}"):
        write(f"FD {fd}\\n".encode())
"""


BY_PYTHON = {"ENV LC_CTYPE"}
"""Python sets it for itself where no locale is set."""


async def shown(engine: actors.Engine, **options: Any) -> set[str]:
    done = await engine.run(program(SHOWS_SECRETS, tag()), **options)
    assert done.returncode == 0
    names = set(done.text.splitlines())
    assert {name for name in names if name.startswith("FD")} == {"FD 0", "FD 1", "FD 2"}
    return {name for name in names if name.startswith("ENV")} - BY_PYTHON


async def test_no_secret_of_the_engine_is_seen_by_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    key = "0123456789abcdef" * 4
    with monkeypatch.context() as patch, ExitStack() as stack:
        patch.setenv("BUGSECRET_TOKEN", "x")
        stack.enter_context(serving(endpoint))
        patch.undo()
        async with actors.Engine(endpoint, owner_key=key) as engine:
            mine = {f"ENV {name}" for name in os.environ} - BY_PYTHON
            mark = {"ENV CRECHE_MARK"}
            assert await shown(engine) == mine | mark
            assert await shown(engine, env={"A": "1"}) == {"ENV A"} | mark
            assert await shown(engine, env={}) == mark
            assert await shown(engine, env={}, marker=False) == set()
            child = await engine.spawn(program(REST, tag()))
            parts = Parts.of(child.pid)
            assert b"BUGSECRET" in Path(f"/proc/{parts.broker}/environ").read_bytes()
            operator = (tmp_path / "shared" / "operator.key").read_bytes()
            for pid in (*parts, child.pid):
                line = command_line(pid)
                for secret in (key.encode(), bytes.fromhex(key), operator, b"BUGSEC"):
                    assert secret not in line
            await child.aclose()
