"""Children that outlive their owner, and clients that take them over."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import actors
from actors.writing import Inflow
from broker.wire import Kind
from tests.helpers import NOT_BLOCKED, alive, eventually, gone, tag, tagged
from tests.live.children import (
    HELPER_HOLDS_PIPES,
    REST,
    arrived,
    drained,
    program,
    until,
)
from tests.live.driven import READER, Driven
from tests.parts import client, serving

pytestmark = pytest.mark.live

KEY = "c0ffee"
ANSWERS = """
write(b"first\\n")
while line := os.read(0, 100):
    write(b"got " + line)
write(b"no more input\\n")
os._exit(7)
"""


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    where = f"ipc://{tmp_path}/shared/broker.sock"
    with serving(where):
        yield where


def engine_at(endpoint: str) -> actors.Engine:
    return actors.Engine(endpoint, owner_key=KEY)


@pytest.mark.parametrize("option", ["detach_ttl=100.0", "kill_on_drop=False"])
async def test_s43_a_killed_clients_child_is_taken_over_with_all_its_output(
    endpoint: str, tmp_path: Path, option: str
) -> None:
    body = f"""
from tests.live.children import program
async def main():
    engine = actors.Engine({endpoint!r}, owner_key={KEY!r})
    await engine.__aenter__()
    child = await engine.spawn(
        program({ANSWERS!r}), stdin="pipe", metadata={{"a": "b"}}, {option}
    )
    await child.write("one\\n")
    say("id", child.id)
    await asyncio.sleep(150)

asyncio.run(main())
"""
    with client(tmp_path, body) as owner:
        number = await asyncio.to_thread(owner.number, "id")
        owner.kill()
    async with engine_at(endpoint) as engine:
        child = await attached(engine, number)
        assert child.argv == tuple(program(ANSWERS))
        if option.startswith("detach_ttl"):  # its stdin stayed open
            assert await until(child, b"one\n") == b"first\ngot one\n"
            await child.write("two\n")
            await child.close_stdin()
            lines = b"first\ngot one\ngot two\nno more input\n"
        else:
            lines = b"first\ngot one\nno more input\n"
        done = await child.output()
        assert done.stdout == lines
        assert done.metadata == {"a": "b"}
        assert (await child.wait()).code == child.returncode == 7
        await child.aclose()
        assert [s.id for s in await engine.children() if s.id == number] == []


async def attached(engine: actors.Engine, number: int) -> actors.Child:
    """Attach as soon as the broker noticed that the owner is gone."""
    while True:
        try:
            return await engine.attach(number)
        except actors.SessionOwned:
            await engine.info()


async def test_s43_a_detached_child_runs_on_and_its_end_waits_for_an_owner(
    endpoint: str,
) -> None:
    async with engine_at(endpoint) as engine:
        child = await engine.spawn(program(ANSWERS), stdin="pipe")
        await child.detach()
        with pytest.raises(actors.SessionNotFound, match="detached"):
            await child.wait()
        await child.aclose()
    async with engine_at(endpoint) as engine:
        again = await engine.attach(child.id)
        await again.close_stdin()
        await again.wait()
        await again.detach()
    async with engine_at(endpoint) as engine:
        last = await engine.attach(child.id)
        assert last.ended
        assert (await last.wait()).code == 7
        out, seen = await drained(last)
        assert out == b"first\nno more input\n"
        assert seen.exit_code == 7
        await last.aclose()
        with pytest.raises(actors.SessionNotFound):
            await engine.attach(child.id)


async def test_s43_a_child_that_nobody_takes_over_is_killed_in_time(
    endpoint: str,
) -> None:
    word = tag()
    async with engine_at(endpoint) as engine:
        child = await engine.spawn(program(REST, word))
        await child.detach(ttl=0.1)
        await asyncio.to_thread(eventually, lambda: not tagged(word))
        with pytest.raises(actors.SessionNotFound):
            await engine.attach(child.id)


async def test_s43_a_living_owner_is_robbed_only_by_those_who_say_so(
    endpoint: str,
) -> None:
    async with engine_at(endpoint) as one, engine_at(endpoint) as two:
        child = await one.spawn(program(ANSWERS), stdin="pipe")
        await until(child, b"first\n")
        with pytest.raises(actors.SessionOwned):
            await two.attach(child.id)
        events = child.events("newest")
        waiting = [
            asyncio.ensure_future(child.wait()),
            asyncio.ensure_future(child.poll(wait=30)),
            asyncio.ensure_future(anext(events)),
        ]
        await arrived(child)
        stolen = await two.attach(child.id, steal=True)
        for waits in waiting:
            with pytest.raises(actors.SessionOwned):
                await waits
        with pytest.raises(actors.SessionOwned):
            await child.write("x")
        await child.aclose()  # no harm is done
        await stolen.write("two\n")
        assert await until(stolen, b"two\n") == b"first\ngot two\n"
        await one.aclose()
        assert alive(stolen.pid)
        await stolen.aclose()


async def test_what_waits_for_its_turn_does_nothing_to_a_child_that_is_taken_over(
    endpoint: str,
) -> None:
    block = actors.OutputPolicy.block(1024)
    async with engine_at(endpoint) as one, engine_at(endpoint) as two:
        child = await one.spawn(program(ANSWERS), stdin="pipe", retention=block)
        await until(child, b"first\n")
        waiting = [
            asyncio.ensure_future(call)
            for call in (
                child.poll(wait=30),
                child.poll(b"one\n"),
                child.poll(wait=0),
                child.expect("never", timeout=30),
                child.expect("first", timeout=30),
            )
        ]
        await arrived(child)
        stolen = await two.attach(child.id, steal=True)
        for waits in waiting:
            with pytest.raises(actors.SessionOwned):
                await waits
        await stolen.write("two\n")
        assert await until(stolen, b"two\n") == b"first\ngot two\n"
        await stolen.aclose()


async def test_a_write_that_waits_for_its_turn_goes_into_no_child_that_is_taken_over(
    endpoint: str,
) -> None:
    async with engine_at(endpoint) as one, engine_at(endpoint) as two:
        child = await one.spawn(program(ANSWERS), stdin="pipe")
        await until(child, b"first\n")
        inflow = one._connection().inflows.setdefault(child.id, Inflow())
        async with inflow.turn:
            waiting = [
                asyncio.ensure_future(child.write("one\n")),
                asyncio.ensure_future(child.poll("one\n", wait=30)),
            ]
            await arrived(child)
            stolen = await two.attach(child.id, steal=True)
            with pytest.raises(actors.SessionOwned):
                await child.wait()
        for waits in waiting:
            with pytest.raises(actors.SessionOwned):
                await waits
        await stolen.write("two\n")
        assert await until(stolen, b"two\n") == b"first\ngot two\n"
        await stolen.aclose()


async def test_whoever_takes_a_run_over_is_told_of_its_end(tmp_path: Path) -> None:
    where = f"ipc://{tmp_path}/brief/broker.sock"
    with serving(where, grace=0.0):
        async with engine_at(where) as one, engine_at(where) as two:
            running = asyncio.ensure_future(one.run(program(REST)))
            while not (found := await two.children()):
                await asyncio.sleep(0)
            stolen = await two.attach(found[0].id, steal=True)
            with pytest.raises(actors.SessionOwned):
                await running
            await until(stolen, b"ready\n")
            await stolen.signal(signal.SIGKILL)
            status = await asyncio.wait_for(stolen.wait(), NOT_BLOCKED)
            assert status.signal == signal.SIGKILL
            await stolen.aclose()


def test_the_broker_hears_of_an_end_once_no_capture_will_tell_it() -> None:
    terms = {"reader": READER, "release": True}
    argv = program(HELPER_HOLDS_PIPES, tag())
    driven = Driven(argv, terms, post_exit_grace=None, leftover="keep")
    child = Path(f"/proc/{driven.pid}")
    eventually(lambda: not child.exists())
    driven.ask(Kind.ATTACH, {"steal": True})
    assert [said.kind for said in driven.until(Kind.REPLY)][-2:] == [
        Kind.EXITED,
        Kind.REPLY,
    ]
    driven.close()


async def test_s43_an_engine_may_rob_its_own_handle(endpoint: str) -> None:
    async with engine_at(endpoint) as engine, engine.scope() as scope:
        child = await scope.spawn(program(REST))
        with pytest.raises(actors.SessionOwned):
            await engine.attach(child.id)
        mine = await engine.attach(child.id, steal=True)
        assert await scope.aclose() == 0
        assert alive(mine.pid)
        await mine.aclose()


async def test_an_engine_that_robs_a_run_of_its_own_keeps_the_child(
    endpoint: str,
) -> None:
    async with engine_at(endpoint) as engine:
        running = asyncio.ensure_future(engine.run(program(REST)))
        while not (found := await engine.children()):
            await asyncio.sleep(0)
        mine = await engine.attach(found[0].id, steal=True)
        with pytest.raises(actors.SessionOwned):
            await running
        assert (await mine.snapshot()).status is None
        await until(mine, b"ready\n")
        await mine.aclose()


FLOODS_ON_CUE = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
write(b"ready\\n")
signal.sigwait({signal.SIGUSR1})
write(bytes(4 * 1024 * 1024))
"""


async def test_a_cancelled_run_does_not_hold_back_a_child_that_stays(
    endpoint: str,
) -> None:
    begun = asyncio.Event()
    async with engine_at(endpoint) as engine:
        running = asyncio.ensure_future(
            engine.run(
                program(FLOODS_ON_CUE),
                into=lambda *_: begun.set(),
                detach_ttl=100.0,
            )
        )
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        (left,) = await engine.children()
        child = await engine.attach(left.id)
        await child.signal(signal.SIGUSR1)
        assert (await child.wait(NOT_BLOCKED)).code == 0
        await child.aclose()


async def test_s43_a_foreign_child_cannot_be_attached(endpoint: str) -> None:
    async with engine_at(endpoint) as engine, actors.Engine(endpoint) as foreign:
        child = await engine.spawn(program(REST), detach_ttl=100.0)
        for number in (child.id, 4711):
            with pytest.raises(actors.SessionNotFound):
                await foreign.attach(number, steal=True)
        await child.kill()


async def test_s42_closing_the_owner_of_what_stays_ends_nothing(endpoint: str) -> None:
    async with engine_at(endpoint) as engine:
        async with engine.scope() as scope:
            child = await scope.spawn(program(REST), detach_ttl=100.0)
            await scope.spawn(program(REST))
            assert await scope.aclose() == 1
        own = await engine.spawn(program(REST), detach_ttl=100.0)
    async with engine_at(endpoint) as engine:
        for number in (child.id, own.id):
            left = await engine.attach(number)
            assert alive(left.pid)
            await left.kill()
            await left.aclose()


async def cancelled_attach(engine: actors.Engine, number: int, **how: bool) -> None:
    """Attach, and give that up before its answer."""
    attaching = asyncio.ensure_future(engine.attach(number, **how))
    await asyncio.sleep(0)
    attaching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attaching


async def test_s56_a_cancelled_attach_leaves_the_child_without_an_owner(
    endpoint: str,
) -> None:
    async with engine_at(endpoint) as engine:
        child = await engine.spawn(program(REST))
        await child.detach()
        await cancelled_attach(engine, child.id)
        again = await engine.attach(child.id)
        await again.kill()


async def test_a_cancelled_attach_takes_nothing_from_an_owner(endpoint: str) -> None:
    async with engine_at(endpoint) as engine, engine_at(endpoint) as other:
        child = await engine.spawn(program(ANSWERS), stdin="pipe")
        for one in (engine, other):
            await cancelled_attach(one, child.id)
        await other.info()
        assert (await child.snapshot()).owner_alive
        await child.close_stdin()
        assert (await child.wait(NOT_BLOCKED)).code == 7


async def test_a_cancelled_theft_ends_what_does_not_stay(endpoint: str) -> None:
    word = tag()
    async with engine_at(endpoint) as engine, engine_at(endpoint) as other:
        child = await engine.spawn(program(REST, word))
        await cancelled_attach(other, child.id, steal=True)
        await asyncio.to_thread(gone, word)
        with pytest.raises(actors.SessionOwned):
            await child.wait(NOT_BLOCKED)


async def test_s43_a_private_broker_lets_nothing_stay() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST))
        for field, call in [
            ("ttl", child.detach()),
            ("ttl", child.detach(ttl=-1)),
            ("detach_ttl", engine.spawn(["true"], detach_ttl=5.0)),
            ("kill_on_drop", engine.spawn(["true"], kill_on_drop=False)),
            ("session_id", engine.attach(0)),
            ("steal", engine.attach(child.id, steal=1)),  # type: ignore[arg-type]
        ]:
            with pytest.raises(actors.InvalidRequest) as refused:
                await call
            assert refused.value.field == field


async def test_s43_a_detach_goes_on_when_it_is_cancelled(endpoint: str) -> None:
    async with engine_at(endpoint) as one, engine_at(endpoint) as two:
        child = await one.spawn(program(ANSWERS), stdin="pipe")
        detaching = asyncio.ensure_future(child.detach(ttl=30))
        await asyncio.sleep(0)
        detaching.cancel()
        async with asyncio.timeout(NOT_BLOCKED):
            with pytest.raises(actors.SessionNotFound, match="detached"):
                await child.wait()
        again = await two.attach(child.id)
        await again.aclose()
