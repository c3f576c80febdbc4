"""What holds for both faces: names, results, and what an interruption leaves."""

import asyncio
import inspect
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import actors
from actors import Chunk, Closed, Exited, InvalidRequest, TimedOut, blocking
from tests.helpers import FOREVER, NOT_BLOCKED, eventually, gone, tag, tagged
from tests.live.children import LEAVES_ON_CUE, REST, drained, program, until
from tests.parts import serving

pytestmark = pytest.mark.live

TWINS = [name for name in blocking.__all__ if name != "run"]
KEY = "c0ffee"
OF_THE_ENGINE = {"deadline", "feed", "opened", "finish", "take", "unexpect"}
"""Methods that only other modules of the package call."""


def methods(cls: type) -> dict[str, list[str]]:
    """The public methods and properties of a class, with their parameters' names."""
    return {
        name: list(inspect.signature(member).parameters) if callable(member) else []
        for name, member in inspect.getmembers(cls)
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


async def test_s52_a_lifecycle_is_told_also_after_the_end(opened: Any) -> None:
    async with opened() as engine:
        told = engine.events()
        async with engine.scope("s", capacity=1, queue=NOT_BLOCKED) as scope:
            told_of_s = scope.events()
            await asyncio.gather(scope.run(["true"]), scope.run(["true"]))
            assert (await anext(told_of_s)).scope == "s"
        await told_of_s.aclose()
        waiting = asyncio.create_task(kinds(engine.events("other")))
        await engine.info()
    expected = ["starting", "running", "exited", "closed"]
    assert [kind for kind in await kinds(told) if kind != "warning"] == 2 * expected
    assert await waiting == []


async def kinds(stream: Any) -> list[str]:
    return [event.kind async for event in stream]


async def test_s43_a_detached_child_is_taken_over(opened: Any, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    with serving(endpoint):
        async with opened(endpoint, owner_key=KEY) as engine:
            child = await engine.spawn(["cat"], stdin="pipe")
            await child.detach(ttl=NOT_BLOCKED)
        async with opened(endpoint, owner_key=KEY) as engine:
            again = await engine.attach(child.id)
            with pytest.raises(InvalidRequest, match="steal"):
                await engine.attach(child.id, steal="yes")
            assert await again.communicate("plum") == (b"plum", b"")
            await again.aclose()


async def test_s31_a_pause_stops_the_clock_of_a_scope(opened: Any) -> None:
    async with opened() as engine, engine.scope("s") as scope:
        with scope.paused():
            child = await scope.spawn(["cat"], stdin="pipe", timeout=0.01)
            with pytest.raises(TimedOut):
                await child.wait(0.1)
        assert (await child.wait(NOT_BLOCKED)).cause == "timeout"
        scope.pause()
        scope.resume()
        with pytest.raises(InvalidRequest, match="resume"):
            scope.resume()


async def test_a_scope_has_a_directory_of_its_own(opened: Any) -> None:
    async with opened() as engine, engine.scope("s") as scope:
        path = await scope.scratch()
        assert await scope.scratch() == path
        assert path.is_dir()
    assert not path.exists()


async def test_s54_a_child_is_awaited_and_measured(opened: Any) -> None:
    async with opened() as engine, engine.scope() as scope:
        child = await scope.spawn(["cat"], tty=True)
        await child.resize(40, 120)
        await child.write("plum 1\n")
        await child.ready(pattern="plum", timeout=NOT_BLOCKED)
        assert (await child.expect(r"plum (\d)", timeout=NOT_BLOCKED)).groups == (b"1",)
        await child.append("a line")
        await child.expect("a line\r?\n", timeout=NOT_BLOCKED)
        with pytest.raises(TimedOut):
            await child.expect("pear", timeout=0.01)
        stats = await child.stats()
        assert stats.processes == 1
        assert stats.stdout.produced >= len("plum 1\r\n")


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


async def test_s56_a_cancelled_close_of_a_scope_goes_on(opened: Any) -> None:
    word = tag()
    async with opened() as engine:
        scope = engine.scope("s")
        path = await scope.scratch()
        await scope.spawn(program(REST, word))
        closing = asyncio.create_task(scope.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await asyncio.to_thread(eventually, lambda: not (tagged(word) or path.exists()))


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
