"""Processes that stand still, of the engine or beside it, hold up neither an end nor a
child.

A worker that is stopped answers nothing; the pool kills it once it is late, and its
tree with it. Ends are asked with short timeouts, so that late is soon.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import actors
from tests.helpers import eventually, gone, python, stop, tag, tagged
from tests.parts import (
    Identities,
    Parts,
    Program,
    client,
    daemons,
    running,
)

pytestmark = pytest.mark.live

KEY = "c0ffee"
SOON = 0.3
KIB = 1024
SETTINGS = actors.Settings(kill_timeout=SOON, kill_many_timeout=SOON)
BLOCK = actors.OutputPolicy.block(64 * KIB)

BURST = """
import os, sys
for _ in range(int(sys.argv[2])):
    os.write(1, b"x" * 1024)
"""
"""python(BURST, tag, count): writes this many KiB and ends."""


async def up(child: actors.Child) -> None:
    """Wait until the child's daemons are started."""
    seen = b""
    while b"up\n" not in seen:
        seen += (await child.poll(wait=10, mode="output", max_bytes=4096)).stdout


def go(parts: Identities) -> None:
    """Let those that still live go on: a test that failed leaves nobody stopped."""
    for pid in parts.alive():
        os.kill(pid, signal.SIGCONT)  # noqa: TID251


@asynccontextmanager
async def hung(child: actors.Child) -> AsyncIterator[Identities]:
    """Stop the child's worker for a block, once its daemons run."""
    await up(child)
    worker = Parts.of(child.pid).worker
    known = Identities(worker)
    stop(worker)
    try:
        yield known
    finally:
        go(known)


@contextmanager
def serving(endpoint: str) -> Iterator[Program]:
    """Run a shared broker for a block."""
    command = [sys.executable, "-m", "broker", "--endpoint", endpoint, "--warm", "2"]
    if log := os.environ.get("CRECHE_LOG"):
        command += ["--log", log]
    with running(*command) as program:
        assert program.line() == f"creche broker ready {endpoint}"
        yield program
        program.signal(signal.SIGTERM)
        assert program.process.wait(15) == 0


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """Where a shared broker listens."""
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    with serving(endpoint):
        yield endpoint


# -- a worker ---------------------------------------------------------------------

ENDS: dict[str, Callable[[actors.Engine, actors.Child], Awaitable[Any]]] = {
    "kill": lambda _, child: child.kill(timeout=SOON),
    "terminate": lambda _, child: child.terminate(grace=SOON),
    "aclose": lambda _, child: child.aclose(),
    "engine.kill": lambda engine, child: engine.kill([child.id]),
}


@pytest.mark.parametrize("how", ENDS)
async def test_an_end_is_proven_although_the_worker_stands_still(how: str) -> None:
    word = tag()
    async with actors.Engine(settings=SETTINGS) as engine:
        child = await engine.spawn(daemons(word))
        async with hung(child) as worker, asyncio.timeout(10):
            receipts = await ENDS[how](engine, child)
            assert not tagged(word)
            assert not worker.alive()
        for receipt in receipts if isinstance(receipts, list) else [receipts]:
            assert receipt is None or receipt.survivors == ()
        assert (await child.wait(10)).cause == "worker-lost"
        assert (await engine.run(["echo", "on"])).stdout == b"on\n"


async def test_a_scope_can_be_left_although_a_worker_stands_still() -> None:
    word, other = tag(), tag()
    patient = actors.Settings(kill_timeout=2.0)  # the other one has to go within that
    async with actors.Engine(settings=patient) as engine:
        async with asyncio.timeout(15), engine.scope() as scope:
            child = await scope.spawn(daemons(word))
            await up(await scope.spawn(daemons(other)))
            await up(child)
            parts = Parts.of(child.pid)
            stop(parts.worker)
        assert not tagged(word)
        assert not tagged(other)
        assert (await engine.run(["echo", "on"])).stdout == b"on\n"


async def test_calls_of_a_worker_that_stands_still_are_answered_by_its_end() -> None:
    word = tag()
    async with actors.Engine(settings=SETTINGS) as engine:
        child = await engine.spawn(daemons(word), stdin="pipe")
        async with hung(child), asyncio.timeout(10):
            polled = asyncio.ensure_future(child.poll(wait=30))
            written = asyncio.ensure_future(child.write(b"x"))
            seen = asyncio.ensure_future(child.snapshot())
            await child.kill(timeout=SOON)
            assert (await polled).state == "lost"
            for call in (written, seen):
                with pytest.raises(actors.WorkerLost):
                    await call


OWNER = """
async def main():
    engine = actors.Engine({endpoint!r}, owner_key={key!r})
    await engine.__aenter__()
    child = await start(engine, {word!r})
    {then}
    say("now")
    await asyncio.sleep(150)

asyncio.run(main())
"""


@pytest.mark.soak
async def test_a_worker_of_a_dead_client_is_ended_although_it_stands_still(
    endpoint: str, tmp_path: Path
) -> None:
    word = tag()
    body = OWNER.format(endpoint=endpoint, key=KEY, word=word, then="pass")
    async with actors.Engine(endpoint, owner_key=KEY) as engine:
        with client(tmp_path, body) as program:
            worker = Parts.of(await asyncio.to_thread(program.number, "pid")).worker
            known = Identities(worker)
            program.said("now")
            stop(worker)
            try:
                program.kill()
                await asyncio.to_thread(gone, word)
                assert not known.alive()
            finally:
                go(known)
        assert (await engine.run(["echo", "on"])).stdout == b"on\n"
        assert await engine.children() == []


# -- a broker ---------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(60)
async def test_a_broker_that_stands_still_for_a_lease_loses_every_tree(
    tmp_path: Path,
) -> None:
    words = [tag(), tag()]
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    with serving(endpoint):
        async with (
            actors.Engine(endpoint) as one,
            actors.Engine(endpoint) as two,
        ):
            children = [
                await engine.spawn(daemons(word))
                for engine, word in zip((one, two), words, strict=True)
            ]
            for child in children:
                await up(child)
            broker = Parts.of(children[0].pid).broker
            known = Identities(broker)
            stop(broker)
            try:
                for word in words:
                    await asyncio.to_thread(gone, word, 25)
            finally:
                go(known)
            for child in children:
                assert (await child.wait(15)).cause == "worker-lost"
            assert (await one.run(["echo", "on"])).stdout == b"on\n"


# -- readers ----------------------------------------------------------------------


async def test_a_late_stream_of_a_tail_begins_with_what_it_missed() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(
            python(BURST, tag(), "64"), retention=actors.OutputPolicy.tail(KIB)
        )
        await child.wait(10)
        gap, chunk, *others = [event async for event in child.events()]
        assert isinstance(gap, actors.Gap)
        assert (gap.stream, gap.start, gap.end) == ("stdout", 0, 63 * KIB)
        assert isinstance(chunk, actors.Chunk)
        assert (chunk.offset, chunk.data) == (63 * KIB, b"x" * KIB)
        assert isinstance(others[-1], actors.Closed)
        await child.aclose()


async def test_a_reader_of_one_stream_is_not_held_up_by_the_other() -> None:
    code = BURST + "os.write(2, b'done')"
    async with actors.Engine() as engine:
        child = await engine.spawn(python(code, tag(), "256"), retention=BLOCK)
        piece = await child.reader("stderr").read(wait=10)
        assert piece.data == b"done"
        assert (await child.wait(10)).ok
        await child.aclose()


async def test_a_capture_goes_on_through_the_narrowest_window() -> None:
    code = """
import os
for _ in range(20):
    for fd in (1, 2):
        os.write(fd, b"x")
        os.read(0, 1)
"""
    settings = actors.Settings(window_chunks=1)
    async with actors.Engine(settings=settings) as engine:
        child = await engine.spawn(python(code, tag()), stdin="pipe")
        captured = asyncio.ensure_future(child.communicate(b"y" * 40))
        async with asyncio.timeout(10):
            assert await captured == (b"x" * 20, b"x" * 20)
        await child.aclose()


HOLDER = """
async def main():
    engine = actors.Engine({endpoint!r}, owner_key={key!r})
    await engine.__aenter__()
    link = engine._connection().link
    body = {body!r}
    await link.ask(Kind.POLL, {session}, body)
    say("polled")
    await asyncio.sleep(150)

from broker.wire import Kind
asyncio.run(main())
"""


async def test_a_holder_that_polled_and_died_does_not_hold_the_child(
    endpoint: str, tmp_path: Path
) -> None:
    async with actors.Engine(endpoint, owner_key=KEY) as engine:
        child = await engine.spawn(python(BURST, tag(), "256"), retention=BLOCK)
        cursor = {"reader": 1, "stdout": 0, "stderr": 0}
        poll = {**cursor, "wait": 0.0, "mode": "output", "limit": 9}
        body = HOLDER.format(endpoint=endpoint, key=KEY, session=child.id, body=poll)
        with client(tmp_path, body) as program:
            await asyncio.to_thread(program.said, "polled")
            with pytest.raises(actors.TimedOut):
                await child.wait(0.2)
            program.kill()
        assert (await child.wait(10)).ok
        await child.aclose()


async def test_an_owner_that_read_and_died_does_not_hold_a_child_that_stays(
    endpoint: str, tmp_path: Path
) -> None:
    word, proof = tag(), tmp_path / "through"
    code = BURST + f"open({str(proof)!r}, 'w').close()\nsignal.pause()"
    body = f"""
async def main():
    engine = actors.Engine({endpoint!r}, owner_key={KEY!r})
    await engine.__aenter__()
    child = await engine.spawn(
        python({code!r}, {word!r}, "256"),
        retention=actors.OutputPolicy.block(65536),
        kill_on_drop=False,
    )
    stream = child.events()
    await anext(stream)
    say("read")
    await asyncio.sleep(150)

asyncio.run(main())
"""
    with client(tmp_path, body) as program:
        await asyncio.to_thread(program.said, "read")
        assert not proof.exists()
        program.kill()
    await asyncio.to_thread(eventually, proof.exists)
    async with actors.Engine(endpoint, owner_key=KEY) as engine:
        [left] = await engine.children()
        await engine.kill([left.id])
    assert not tagged(word)


@pytest.mark.soak
@pytest.mark.timeout(60)
async def test_a_broker_that_hangs_is_given_up_by_whoever_waits() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word))
        await up(child)
        broker = Parts.of(child.pid).broker
        stop(broker)
        calls = [child.wait(), child.poll(wait=30), engine.spawn(["true"])]
        said = await asyncio.wait_for(
            asyncio.gather(*calls, return_exceptions=True), 30
        )
        assert [str(answer) for answer in said] == ["the broker does not answer"] * 3
        assert all(isinstance(answer, actors.BrokerLost) for answer in said)
        await asyncio.to_thread(gone, word)
