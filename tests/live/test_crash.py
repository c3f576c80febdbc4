"""Parts of the engine are killed: trees end, every call is answered, the rest goes on.

`worker` is the parent of the child, `pool` the worker's, `supervisor` the pool's; the
supervisor's other child is the `broker`.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import actors
from broker import tree
from tests.helpers import end, eventually, go, gone, python, stop, tag, tagged
from tests.parts import (
    COUNTING_TREE,
    DAEMONS,
    FLOODING_TREE,
    Identities,
    Parts,
    daemons,
)

pytestmark = pytest.mark.live

Call = Coroutine[Any, Any, Any]


async def up(child: actors.Child) -> None:
    """Wait until the child's daemons are started, and take what it said of that."""
    seen = b""
    while b"up\n" not in seen:
        result = await child.poll(wait=10, mode="output", max_bytes=4096)
        assert not result.done
        seen += result.stdout


async def went(word: str) -> None:
    """Wait until no process with this word lives, and let the loop run meanwhile."""
    await asyncio.to_thread(gone, word)


async def answer(call: Call) -> Any:
    """Return the result of a call, or the error that it raised; it must not hang."""
    async with asyncio.timeout(10):
        try:
            return await call
        except actors.EngineError as error:
            return error


async def every_event(child: actors.Child) -> list[actors.Event]:
    return [event async for event in child.events()]


def waiting_on(
    engine: actors.Engine, child: actors.Child, other: actors.Child, word: str
) -> dict[str, Call]:
    """Return a call of each kind that waits for the child (or `other`) to do something.

    The child has an open stdin that it never reads, and says nothing more.
    """
    return {
        "wait": child.wait(),
        "wait again": child.wait(),
        "poll": child.poll(wait=30),
        "poll for output": other.poll(wait=30, mode="output"),
        "write": child.write(bytes(8 << 20)),
        "events": every_event(child),
        "newest events": anext(aiter(child.events("newest"))),
        "read": child.reader(after="newest").read(wait=30),
        "output": other.output(),
        "run": engine.run(daemons(word)),
    }


@asynccontextmanager
async def pending(calls: dict[str, Call]) -> AsyncIterator[dict[str, Any]]:
    """Have these calls wait during the block; after it the dict has their answers."""
    answers: dict[str, Any] = {}
    tasks = {name: asyncio.ensure_future(answer(call)) for name, call in calls.items()}
    yield answers
    for name, task in tasks.items():
        with suppress(TimeoutError):
            answers[name] = await task
    hanging = [name for name in tasks if name not in answers]
    assert not hanging, hanging


async def started(engine: actors.Engine, count: int) -> None:
    """Wait until the broker has this many sessions."""
    async with asyncio.timeout(15):
        while (await engine.info()).counts["sessions"] < count:
            pass


def check_lost(status: actors.ExitStatus) -> None:
    assert status.cause == "worker-lost"
    assert (status.code, status.signal, status.returncode) == (None, None, None)
    assert not status.ok


class Counter:
    """A child that counts without end, and a check that no number is missing."""

    def __init__(self, child: actors.Child) -> None:
        self.child = child
        self.stream = child.events()
        self.tail = b""
        self.next = 0

    @classmethod
    async def start(cls, engine: actors.Engine, word: str) -> "Counter":
        retention = actors.OutputPolicy.block(65536)
        command = daemons(word, COUNTING_TREE)
        return cls(await engine.spawn(command, retention=retention))

    async def go_on(self, numbers: int = 200) -> None:
        """Read this many more numbers, each one more than the one before."""
        goal = self.next + numbers
        async with asyncio.timeout(15):
            while self.next < goal:
                event = await anext(self.stream)
                assert isinstance(event, actors.Chunk), event
                *lines, self.tail = (self.tail + event.data).split(b"\n")
                for line in lines:
                    if line != b"up":
                        assert int(line) == self.next
                        self.next += 1


# -- the worker -----------------------------------------------------------------


async def forked(engine: actors.Engine, pool: int) -> None:
    """Wait until a pool has forked every worker that the broker counts with."""
    workers = (await engine.info()).counts["workers"]
    await asyncio.to_thread(eventually, lambda: len(tree.children(pool)) == workers)


async def test_s39_a_lost_worker_answers_every_call_and_ends_its_tree() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word), stdin="pipe")
        other = await engine.spawn(daemons(word))
        await up(child)
        await up(other)
        pool = Parts.of(child.pid).pool
        async with pending(waiting_on(engine, child, other, word)) as answers:
            await started(engine, 3)
            await child.snapshot()
            await forked(engine, pool)
            end(tree.children(pool))
        await went(word)
        check_lost(answers["wait"])
        assert answers["wait again"] == answers["wait"]
        assert answers["poll"].state == "lost"
        assert answers["poll"].done
        check_lost(answers["poll"].status)
        assert answers["poll for output"].state == "lost"
        for name in ("write", "read", "output", "run"):
            assert isinstance(answers[name], actors.WorkerLost), name
        assert isinstance(answers["newest events"], actors.Exited)
        assert child.ended
        assert child.returncode is None


async def test_s21_a_lost_worker_ends_an_event_stream_with_all_that_is_known() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word))
        stream = child.events()
        assert isinstance(await anext(stream), actors.Chunk)
        end([Parts.of(child.pid).worker])
        events = [event async for event in stream]
        exited, *broken, closed = events
        assert isinstance(exited, actors.Exited)
        check_lost(exited.status)
        assert isinstance(closed, actors.Closed)
        assert {event.stream for event in broken} == {"stdout", "stderr"}  # type: ignore[union-attr]
        assert all(isinstance(event, actors.StreamError) for event in broken)
        assert {event.errno for event in broken} == {None}  # type: ignore[union-attr]
        assert (exited.status.execed, exited.status.ended) == (None, None)
        await went(word)


async def test_a_stream_that_had_ended_is_not_broken_by_a_lost_worker() -> None:
    code = "import os\nos.close(1)\nsignal.pause()\n"
    async with actors.Engine() as engine:
        child = await engine.spawn(python(code))
        stream = child.events()
        assert await anext(stream) == actors.StreamEof("stdout")
        end([Parts.of(child.pid).worker])
        rest = [type(event) for event in [event async for event in stream]]
        assert rest == [actors.Exited, actors.StreamError, actors.Closed]


async def test_a_session_whose_worker_is_lost_can_still_be_asked_and_closed() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word), stdin="pipe")
        await up(child)
        end([Parts.of(child.pid).worker])
        check_lost(await child.wait(15))
        await went(word)
        check_lost(await child.wait())
        result = await child.poll(wait=10)
        assert (result.state, result.done) == ("lost", True)
        assert (await child.poll(b"x")).state == "lost"
        receipt = await child.kill()
        assert (receipt.signalled, receipt.survivors) == (0, ())
        assert await child.signal(signal.SIGINT) is False
        await child.close_stdin()
        for call in (child.write(b"x"), child.output(), child.snapshot()):
            assert isinstance(await answer(call), actors.WorkerLost)
        events = [event async for event in child.events()]
        assert isinstance(events[-1], actors.Closed)
        assert await engine.children() == []
        await child.aclose()
        assert isinstance(await answer(child.poll()), actors.SessionNotFound)
        assert (await engine.info()).counts["sessions"] == 0


async def test_a_kill_under_way_when_the_worker_is_lost_still_proves_the_end() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word))
        await up(child)
        worker = Parts.of(child.pid).worker
        stop(worker)
        killing = asyncio.ensure_future(answer(child.kill()))
        await engine.info()
        end([worker])
        receipt = await killing
        assert receipt.survivors == ()
        assert not tagged(word)


async def test_a_spawn_whose_worker_is_lost_is_refused_and_leaves_nothing() -> None:
    word = tag()
    settings = actors.Settings(warm=1)
    async with actors.Engine(settings=settings) as engine:
        first = await engine.spawn(daemons(word))
        await up(first)
        parts = Parts.of(first.pid)
        await forked(engine, parts.pool)
        idle = idle_workers(parts.pool, {parts.worker})
        for worker in idle:
            stop(worker)
        spawning = asyncio.ensure_future(answer(engine.spawn(daemons(word))))
        await started(engine, 2)
        end(idle)
        assert isinstance(await spawning, actors.WorkerLost)
        assert (await engine.info()).counts["sessions"] == 1
        done = await engine.run(["echo", "on"])
        assert done.stdout == b"on\n"
        await first.aclose()
        assert not tagged(word)


async def test_s45_one_lost_worker_is_nobody_elses_trouble() -> None:
    word, counting = tag(), tag()
    async with actors.Engine() as engine:
        counter = await Counter.start(engine, counting)
        await counter.go_on()
        for _ in range(3):
            child = await engine.spawn(daemons(word))
            await up(child)
            parts = Parts.of(child.pid)
            others = Identities(parts.pool, parts.supervisor, parts.broker)
            end([parts.worker])
            await counter.go_on()
            check_lost(await child.wait(15))
            await went(word)
            assert len(others.alive()) == 3
            await child.aclose()
        done = await engine.run(["echo", "on"])
        assert done.stdout == b"on\n"
        await counter.child.aclose()


async def test_idle_workers_that_die_are_replaced_unnoticed() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word))
        await up(child)
        parts = Parts.of(child.pid)
        end(idle_workers(parts.pool, {parts.worker}))
        async with asyncio.timeout(10):
            while (await engine.info()).counts["workers"] > 1:
                pass
        done = await asyncio.gather(*(engine.run(["echo", "on"]) for _ in range(8)))
        assert {one.stdout for one in done} == {b"on\n"}
        assert len(tagged(word)) == DAEMONS + 1
        await child.aclose()


@pytest.mark.parametrize("code", [FLOODING_TREE, COUNTING_TREE])
async def test_a_worker_lost_under_load_ends_its_tree(code: str) -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word, code), stdin="pipe")
        stalled = child.events()
        await anext(stalled)
        writing = asyncio.ensure_future(answer(child.write(bytes(8 << 20))))
        async with asyncio.timeout(10):
            events = child.events()
            for _ in range(50):
                await anext(events)
        end([Parts.of(child.pid).worker])
        check_lost(await child.wait(15))
        assert isinstance(await writing, actors.WorkerLost)
        await went(word)
        assert isinstance([event async for event in stalled][-1], actors.Closed)


# -- the pool -------------------------------------------------------------------


@pytest.mark.parametrize("victims", [["pool"], ["worker", "pool"], ["pool", "worker"]])
async def test_a_lost_pool_loses_its_sessions_and_is_replaced(
    victims: list[str],
) -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word), stdin="pipe")
        other = await engine.spawn(daemons(word))
        await up(child)
        await up(other)
        parts = Parts.of(child.pid)
        kept = Identities(parts.supervisor, parts.broker)
        async with pending(waiting_on(engine, child, other, word)) as answers:
            await started(engine, 3)
            end(getattr(parts, name) for name in victims)
        await went(word)
        check_lost(answers["wait"])
        assert answers["poll"].state == "lost"
        for name in ("write", "read", "output", "run"):
            assert isinstance(answers[name], actors.WorkerLost), name
        assert isinstance(answers["newest events"], actors.Exited)
        check_lost(await other.wait(10))
        done = await engine.run(["echo", "on"])
        assert done.stdout == b"on\n"
        again = await engine.spawn(daemons(word))
        await up(again)
        await again.aclose()
        assert not tagged(word)
        assert len(kept.alive()) == 2


async def test_a_pool_can_be_lost_again_and_again() -> None:
    word = tag()
    async with actors.Engine() as engine:
        for _ in range(3):
            child = await engine.spawn(daemons(word))
            await up(child)
            end([Parts.of(child.pid).pool])
            check_lost(await child.wait(15))
            await child.aclose()
        await went(word)
        counts = (await engine.info()).counts
        assert counts["sessions"] == 0
        assert (await engine.run(["true"])).returncode == 0


async def test_spawns_under_way_when_the_pool_is_lost_are_all_answered() -> None:
    word = tag()
    async with actors.Engine() as engine:
        first = await engine.spawn(daemons(word))
        await up(first)
        pool = Parts.of(first.pid).pool
        calls = [engine.spawn(daemons(word)) for _ in range(16)]
        spawning = [asyncio.ensure_future(answer(call)) for call in calls]
        await asyncio.sleep(0)
        end([pool])
        for result in await asyncio.gather(*spawning):
            if isinstance(result, actors.Child):
                await result.aclose()
            else:
                assert isinstance(result, actors.WorkerLost), result
        await first.aclose()
        assert not tagged(word)
        assert (await engine.run(["true"])).returncode == 0


# -- broker and supervisor: the engine is over ----------------------------------


@pytest.mark.parametrize(
    "victims",
    [
        ["broker"],
        ["supervisor"],
        ["broker", "pool"],
        ["broker", "pool", "worker"],
        ["worker", "broker"],
        ["supervisor", "broker"],
    ],
    ids=" ".join,
)
async def test_an_engine_that_lost_a_vital_part_ends_and_answers_everybody(
    victims: list[str], runtime_dir: Path
) -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word), stdin="pipe")
        other = await engine.spawn(daemons(word))
        await up(child)
        await up(other)
        parts = Parts.of(child.pid)
        everybody = Identities(*parts)
        async with pending(waiting_on(engine, child, other, word)) as answers:
            await started(engine, 3)
            end(getattr(parts, name) for name in victims)
        await went(word)
        await asyncio.to_thread(everybody.gone)
        if "worker" in victims:  # it may have been told before the broker went
            answers = {n: a for n, a in answers.items() if n in ("output", "run")}
        wrong = {
            name: found
            for name, found in answers.items()
            if not isinstance(found, actors.BrokerLost)
        }
        assert not wrong
        await check_refusals(engine, child)
    await leave_nothing(runtime_dir)


async def test_a_supervisor_that_is_the_last_sees_everything_off() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word))
        await up(child)
        parts = Parts.of(child.pid)
        everybody = Identities(*parts)
        stop(*parts)  # so that nobody else can end an orphan
        try:
            end([parts.pool, parts.worker, parts.broker])
            tree_of_it = set(tagged(word))
            await asyncio.to_thread(
                eventually,
                lambda: tree_of_it <= set(tree.children(parts.supervisor)),
            )
        finally:
            go(parts.supervisor)
        await went(word)
        await asyncio.to_thread(everybody.gone)


async def check_refusals(engine: actors.Engine, child: actors.Child) -> None:
    calls = [
        child.kill(),
        child.poll(),
        child.write(b"x"),
        child.snapshot(),
        engine.spawn(["true"]),
        engine.run(["true"]),
        engine.children(),
        engine.kill([child.id]),
        engine.info(),
    ]
    for call in calls:
        assert isinstance(await answer(call), actors.BrokerLost), call


async def leave_nothing(runtime_dir: Path) -> None:
    """Start another engine: it removes the files of the one that could not."""
    await asyncio.to_thread(gone, str(runtime_dir))  # no worker is about to write one
    async with actors.Engine() as engine:
        assert (await engine.run(["true"])).returncode == 0
    assert not list(runtime_dir.rglob("run-*"))


async def test_calls_that_the_lost_broker_was_to_answer_are_answered() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word))
        await up(child)
        parts = Parts.of(child.pid)
        stop(parts.broker)
        calls: dict[str, Call] = {
            "kill": child.kill(),
            "terminate": child.terminate(),
            "signal": child.signal(signal.SIGINT),
            "close_stdin": child.close_stdin(),
            "snapshot": child.snapshot(),
            "close": child.aclose(),
            "spawn": engine.spawn(daemons(word)),
            "run": engine.run(daemons(word)),
            "children": engine.children(),
            "kill ids": engine.kill([child.id]),
            "info": engine.info(),
        }
        async with pending(calls) as answers:
            await asyncio.sleep(0)
            end([parts.broker])
        wrong = {
            name: found
            for name, found in answers.items()
            if not isinstance(found, actors.BrokerLost)
        }
        assert not wrong
        await went(word)


async def test_a_loss_under_load_ends_every_tree() -> None:
    word = tag()
    async with actors.Engine() as engine:
        flood = await engine.spawn(daemons(word, FLOODING_TREE), stdin="pipe")
        stream = flood.events()
        await anext(stream)
        writing = asyncio.ensure_future(answer(flood.write(bytes(8 << 20))))
        counter = await Counter.start(engine, word)
        await counter.go_on(10)
        end([Parts.of(flood.pid).broker])
        assert isinstance(await writing, actors.BrokerLost)
        assert isinstance(await answer(flood.wait()), actors.BrokerLost)
        await went(word)


# -- stopped, not dead ----------------------------------------------------------


def idle_workers(pool: int, busy: set[int]) -> list[int]:
    return [pid for pid in tree.children(pool) if pid not in busy]


def hold_still(pid: int, seconds: float, fact: Callable[[], bool]) -> None:
    """Stop a process for some seconds, in which `fact` must stay true."""
    stop(pid)
    ends = time.monotonic() + seconds
    try:
        eventually(lambda: not fact() or time.monotonic() > ends, seconds + 5)
    finally:
        go(pid)
    assert fact()


async def test_a_broker_that_stands_still_for_a_while_loses_nothing() -> None:
    word = tag()
    async with actors.Engine() as engine:
        counter = await Counter.start(engine, word)
        await counter.go_on()
        broker = Parts.of(counter.child.pid).broker
        hold_still(broker, 3.0, lambda: len(tagged(word)) == DAEMONS + 1)
        await counter.go_on(500)
        await counter.child.aclose()
        assert not tagged(word)


async def test_a_worker_that_stands_still_holds_up_nobody_else() -> None:
    word, counting = tag(), tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word))
        await up(child)
        counter = await Counter.start(engine, counting)
        worker = Parts.of(child.pid).worker
        stop(worker)
        try:
            await counter.go_on()
            assert (await engine.run(["echo", "on"])).stdout == b"on\n"
            await counter.child.aclose()
        finally:
            go(worker)
        await child.aclose()
        assert not tagged(word)


async def test_leaving_an_engine_ends_also_a_broker_that_stands_still() -> None:
    word = tag()
    async with actors.Engine(settings=actors.Settings(kill_timeout=0.5)) as engine:
        child = await engine.spawn(daemons(word))
        await up(child)
        parts = Parts.of(child.pid)
        everybody = Identities(*parts)
        stop(parts.broker)
    assert not tagged(word)
    assert not everybody.alive()


@pytest.mark.soak
async def test_leaving_an_engine_ends_also_a_worker_that_stands_still() -> None:
    word = tag()
    async with actors.Engine(settings=actors.Settings(kill_timeout=0.5)) as engine:
        child = await engine.spawn(daemons(word))
        await up(child)
        parts = Parts.of(child.pid)
        everybody = Identities(*parts)
        stop(parts.worker)
    assert not tagged(word)
    assert not everybody.alive()


@pytest.mark.soak
@pytest.mark.timeout(60)
async def test_a_broker_that_stands_still_for_a_whole_lease_counts_as_dead() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word))
        await up(child)
        broker = Parts.of(child.pid).broker
        stop(broker)
        try:
            stopped = time.monotonic()
            gone(word, 25)
            assert time.monotonic() - stopped > 6
        finally:
            go(broker)
        check_lost(await child.wait(15))
        assert (await engine.run(["echo", "on"])).stdout == b"on\n"


@pytest.mark.soak
@pytest.mark.timeout(60)
async def test_an_engine_that_stood_still_as_a_whole_goes_on() -> None:
    word = tag()
    async with actors.Engine() as engine:
        counter = await Counter.start(engine, word)
        await counter.go_on()
        parts = Parts.of(counter.child.pid)
        stop(parts.broker)
        stop(parts.pool)
        try:
            hold_still(parts.worker, 12.0, lambda: len(tagged(word)) == DAEMONS + 1)
        finally:
            go(parts.pool)  # it finds a stamp that is older than a lease
            go(parts.broker)
        await counter.go_on()
        await counter.child.aclose()
