"""What holds for both faces: names, results, and what an interruption leaves."""

import asyncio
import inspect
from contextlib import suppress
from typing import Any

import pytest

import actors
from actors import Chunk, Closed, Exited, InvalidRequest, TimedOut, blocking
from tests.helpers import FOREVER, NOT_BLOCKED, gone, tag
from tests.live.children import LEAVES_ON_CUE, REST, drained, program, until

pytestmark = pytest.mark.live

TWINS = ["Engine", "Scope", "Child", "EventStream", "Reader", "Results", "Shell"]
OF_THE_ENGINE = {"feed", "opened"}
"""Methods that only other modules of the package call."""


def methods(cls: type) -> dict[str, list[str]]:
    """The public methods and properties of a class, with their parameters' names."""
    return {
        name: list(inspect.signature(member).parameters) if callable(member) else []
        for name, member in vars(cls).items()
        if not name.startswith("_") and name not in OF_THE_ENGINE
    }


@pytest.mark.parametrize("name", TWINS)
def test_s55_both_faces_have_the_same_names_and_parameters(name: str) -> None:
    assert methods(getattr(blocking, name)) == methods(getattr(actors, name))


async def test_s55_a_run_gives_the_same_result(opened: Any) -> None:
    async with opened() as engine:
        done = await engine.run(["cat"], input="plum")
        assert (done.stdout, done.returncode) == (b"plum", 0)
        with pytest.raises(InvalidRequest, match="argv"):
            await engine.run("no shell")


async def test_s55_a_child_is_polled_and_written_to(opened: Any) -> None:
    async with opened() as engine, engine.scope("s") as scope:
        child = await scope.spawn(program(LEAVES_ON_CUE), stdin="pipe")
        assert [c.id for c in await scope.children()] == [child.id]
        await child.write("go\n")
        output, last = await drained(child)
        assert (output, last.exit_code) == (b"leaving\n", 9)
        assert (await child.wait()).code == child.returncode == 9
        assert await scope.aclose() == 1


async def test_s55_events_come_in_order(opened: Any) -> None:
    async with opened() as engine:
        async with await engine.spawn(["echo", "one"]) as child:
            events = [event async for event in child.events()]
        assert events[0] == Chunk("stdout", 0, 0, b"one\n")
        assert isinstance(events[-1], Closed)
        assert any(isinstance(event, Exited) for event in events)


async def test_s55_a_reader_gives_pieces(opened: Any) -> None:
    async with opened() as engine, await engine.spawn(["echo", "one"]) as child:
        reader = child.reader()
        assert (await reader.read()).data == b"one\n"
        assert (await reader.read()).eof
        await reader.aclose()


async def test_s29_a_yield_ends_a_poll_and_leaves_the_child(opened: Any) -> None:
    async with opened() as engine, engine.scope() as scope:
        child = await scope.spawn(program(REST))
        await until(child, b"ready\n")
        now = asyncio.Event()
        poll = asyncio.create_task(child.poll(wait=NOT_BLOCKED, yield_on=now))
        await child.snapshot()
        now.set()
        assert (await poll).alive


async def test_s7_an_event_closes_the_scope(opened: Any) -> None:
    word, cancel = tag(), asyncio.Event()
    async with opened() as engine:
        scope = engine.scope("bound", cancel=cancel)
        child = await scope.spawn(program(REST, word))
        cancel.set()
        await until_refused(scope)
        gone(word)
        assert await scope.aclose() == 0
        assert child.scope == "bound"


async def until_refused(scope: Any) -> None:
    with suppress(actors.SessionNotFound):
        while True:
            await scope.children()


async def test_s56_a_cancelled_run_leaves_no_child(opened: Any) -> None:
    word = tag()
    async with opened() as engine:
        run = asyncio.create_task(engine.run(program(REST, word)))
        while not await engine.children():
            pass
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        gone(word)


async def test_s56_a_cancelled_poll_consumes_nothing(opened: Any) -> None:
    async with opened() as engine, engine.scope() as scope:
        child = await scope.spawn(program("write(b'kept'); rest()"))
        poll = asyncio.create_task(child.poll(wait=FOREVER, mode="completion"))
        assert (await child.reader().read()).data == b"kept"
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll
        assert (await child.poll(mode="output")).stdout == b"kept"


async def test_s56_cancelled_readers_and_iterators_consume_nothing(opened: Any) -> None:
    async with opened() as engine, engine.scope() as scope:
        child = await scope.spawn(["cat"], stdin="pipe")
        events, reader = child.events(), child.reader()
        waits = [
            asyncio.create_task(anext(events)),
            asyncio.create_task(reader.read(wait=FOREVER)),
            asyncio.create_task(child.wait()),
        ]
        await child.snapshot()
        for wait in waits:
            wait.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wait
        await child.write("kept")
        assert (await anext(events)).data == b"kept"
        assert (await reader.read()).data == b"kept"


async def test_s56_a_wait_that_timed_out_leaves_the_child(opened: Any) -> None:
    async with opened() as engine, engine.scope() as scope:
        child = await scope.spawn(["cat"], stdin="pipe")
        with pytest.raises(TimedOut):
            await child.wait(timeout=0.01)
        await child.close_stdin()
        assert (await child.wait(NOT_BLOCKED)).ok


async def test_s55_many_calls_at_once(opened: Any) -> None:
    async with opened() as engine:
        calls = (engine.run(["echo", str(number)]) for number in range(20))
        done = await asyncio.gather(*calls)
        assert [d.stdout for d in done] == [b"%d\n" % n for n in range(20)]
