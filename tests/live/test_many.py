"""Many commands, a few at a time, with both faces."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors import (
    BrokerLost,
    Completed,
    Engine,
    InvalidRequest,
    SessionNotFound,
    SpawnFailed,
    Spec,
)
from tests.helpers import FOREVER, NOT_BLOCKED, gone, tag
from tests.live.children import REST, program

pytestmark = pytest.mark.live


def echoes(count: int) -> list[list[str]]:
    return [["echo", str(number)] for number in range(count)]


async def test_s57_a_spec_is_run_as_it_is(opened: Any) -> None:
    spec = Spec("cat; exit 3", shell=True, stdin=b"plum", timeout=30)
    async with opened() as engine:
        done = await engine.run(spec)
        assert (done.stdout, done.returncode) == (b"plum", 3)
        for more in ({"input": "x"}, {"cwd": "/"}):
            with pytest.raises(InvalidRequest) as refused:
                await engine.run(spec, **more)
            assert refused.value.field == "argv"


async def test_s57_every_spec_gives_one_result(opened: Any) -> None:
    async with opened() as engine:
        specs = [Spec("echo 0", shell=True, metadata={"number": "0"}), *echoes(5)[1:]]
        results = [done async for done in engine.map(specs, concurrency=2)]
        assert sorted(done.stdout for done in results) == [
            b"%d\n" % n for n in range(5)
        ]
        assert [d.metadata for d in results if d.stdout == b"0\n"] == [{"number": "0"}]


async def test_s57_results_come_in_order_when_asked(opened: Any) -> None:
    slow = ["sh", "-c", "sleep 0.1; echo 0"]
    async with opened() as engine:
        given = [slow, *echoes(5)[1:]]
        results = [d async for d in engine.map(given, concurrency=3, ordered=True)]
        assert [done.stdout for done in results] == [b"%d\n" % n for n in range(5)]


async def test_s57_an_error_stands_in_its_place_and_names_its_spec(opened: Any) -> None:
    specs = [["echo", "0"], ["/no/such/program"], [], ["echo", "3"]]
    async with opened() as engine:
        first, second, third, fourth = [
            item async for item in engine.map(specs, ordered=True)
        ]
    assert isinstance(first, Completed)
    assert isinstance(second, SpawnFailed)
    assert second.__notes__ == ["spec 1 (from 0)"]
    assert isinstance(third, InvalidRequest)
    assert fourth.stdout == b"3\n"


@pytest.mark.parametrize("ordered", [False, True])
async def test_s57_endless_specs_are_pulled_as_results_are_taken(
    opened: Any, ordered: bool
) -> None:
    pulled = 0

    def endless() -> Iterator[list[str]]:
        nonlocal pulled
        for pulled in itertools.count(1):  # noqa: B007 - it is what is looked at
            yield ["true"]

    async with opened() as engine:
        results = engine.map(endless(), concurrency=2, ordered=ordered)
        for taken in range(1, 6):
            assert (await anext(results)).returncode == 0
            while await engine.children():
                pass  # whatever was started has ended, and waits
            assert pulled <= taken + (4 if ordered else 2)
        await results.aclose()


async def test_s57_no_more_than_the_concurrency_run_at_once(
    opened: Any, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    waits = Spec(f"until [ -e '{go}' ]; do sleep 0.01; done", shell=True)
    async with opened() as engine:
        results = engine.map([waits] * 6, concurrency=2)
        first = asyncio.ensure_future(anext(results))
        while len(await engine.children()) < 2:
            assert not first.done()
        assert {len(await engine.children()) for _ in range(20)} == {2}
        go.touch()
        most = 0
        while not first.done():
            most = max(most, len(await engine.children()))
        assert most <= 2
        assert len([await first, *[d async for d in results]]) == 6


async def test_s57_leaving_the_loop_ends_what_runs(opened: Any) -> None:
    word = tag()
    async with opened() as engine:
        async with engine.map([["true"], *[program(REST, word)] * 2]) as results:
            async for _ in results:
                break
        gone(word)
        assert [d async for d in results] == []


async def test_s57_a_collected_iterator_ends_what_runs(opened: Any) -> None:
    word = tag()
    async with opened() as engine:
        results = engine.map([["true"], program(REST, word)], concurrency=2)
        await anext(results)
        del results
        await engine.info()
        while await engine.children():
            pass
        gone(word)


async def test_s57_a_failure_of_the_specs_is_raised_after_the_results(
    opened: Any,
) -> None:
    def broken() -> Iterator[list[str]]:
        yield ["true"]
        raise KeyError("mine")

    async with opened() as engine:
        results = engine.map(broken(), concurrency=2)
        assert (await anext(results)).returncode == 0
        with pytest.raises(KeyError, match="mine"):
            await anext(results)


async def test_s57_specs_that_wait_for_what_is_cancelled_have_failed() -> None:
    job = asyncio.ensure_future(asyncio.sleep(FOREVER, ["true"]))

    async def given() -> AsyncIterator[list[str]]:
        yield ["true"]
        yield await job

    async with Engine() as engine:
        results = engine.map(given(), concurrency=2)
        assert isinstance(await anext(results), Completed)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(anext(results), NOT_BLOCKED)
        with pytest.raises(StopAsyncIteration):
            await anext(results)


async def test_s57_a_closed_scope_ends_its_map(opened: Any) -> None:
    word = tag()
    async with opened() as engine:
        scope = engine.scope("s")
        results = scope.map(itertools.repeat(program(REST, word)), concurrency=2)
        taking = asyncio.ensure_future(anext(results))
        while not await scope.children():
            pass
        await scope.aclose()
        with pytest.raises(SessionNotFound):
            await taking
        await results.aclose()
    gone(word)


async def test_s57_a_closed_engine_ends_its_map(opened: Any) -> None:
    async with opened() as engine:
        results = engine.map(itertools.repeat(["true"]), concurrency=2)
        await anext(results)
    with pytest.raises(BrokerLost):
        async for _ in results:
            pass


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("concurrency", {"specs": [], "concurrency": 0}),
    ("ordered", {"specs": [], "ordered": 1}),
    ("specs", {"specs": "ls"}),
    ("specs", {"specs": 5}),
]


async def test_a_bad_argument_is_refused(opened: Any) -> None:
    async with opened() as engine:
        for field, options in WRONG:
            with pytest.raises(InvalidRequest) as refused:
                engine.map(**options)
            assert refused.value.field == field


async def test_specs_may_come_asynchronously() -> None:
    async def given() -> AsyncIterator[list[str]]:
        for argv in echoes(3):
            await asyncio.sleep(0)
            yield argv

    async with Engine() as engine:
        results = [d async for d in engine.map(given(), ordered=True)]
    assert [d.stdout for d in results if isinstance(d, Completed)] == [
        b"0\n",
        b"1\n",
        b"2\n",
    ]
