"""Asking for what is new, for a while."""

import asyncio
import time

import pytest

import actors
from tests.helpers import NOT_BLOCKED, tag
from tests.live.children import FLOOD, REPEATS_INPUT, REST, Opened, arrived, program

pytestmark = pytest.mark.live


async def test_s27_a_poll_with_input_returns_what_came_back(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(REPEATS_INPUT, tag()), stdin="pipe")
        for word in (b"one", b"two"):
            seen = await child.poll(word, wait=NOT_BLOCKED)
            assert (seen.stdout, seen.alive) == (word, True)
            assert seen.wall_time < 5
        nothing = await child.poll(b"", wait=0, mode="output")
        assert (nothing.stdout, nothing.alive) == (b"", True)
        with pytest.raises(actors.InvalidRequest):
            await child.poll(wait=-1)
        with pytest.raises(actors.InvalidRequest):
            await child.poll(mode="other")  # type: ignore[arg-type]
        with pytest.raises(actors.InvalidRequest):
            await child.poll(max_bytes=0)
        await child.aclose()


async def test_s27_output_mode_waits_for_a_moment_of_quiet(opened: Opened) -> None:
    drips = "\nfor _ in range(5):\n    write(b'.'); time.sleep(0.01)\nrest()"
    settings = actors.Settings(quiet=1.0)  # a busy machine may hold a child up
    async with opened(settings=settings) as engine:
        child = await engine.spawn(program(drips, tag()))
        assert (await child.poll(mode="output", wait=30)).stdout == b"....."
        await child.aclose()


async def test_s27_completion_waits_for_the_end_or_the_deadline(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(REPEATS_INPUT, tag()), stdin="pipe")
        await child.write(b"early")
        started = time.monotonic()
        seen = await child.poll(wait=0.3)
        assert 0.3 <= time.monotonic() - started < 3
        assert (seen.stdout, seen.done) == (b"early", False)
        waiting = asyncio.ensure_future(child.poll(wait=NOT_BLOCKED))
        await child.write(b"late")
        await child.close_stdin()
        seen = await waiting
        assert (seen.stdout, seen.done, seen.exit_code) == (b"late", True, 0)
        await child.aclose()


async def test_s28_a_wait_has_an_upper_bound(opened: Opened) -> None:
    standard = actors.Settings()
    assert (standard.poll_wait_max, standard.poll_empty_wait_max) == (30, 300)
    settings = actors.Settings(poll_wait_max=0.1, poll_empty_wait_max=0.3)
    async with opened(settings=settings) as engine:
        child = await engine.spawn(program("rest()", tag()), stdin="pipe")
        first = await child.poll(wait=1000)
        empty = await child.poll(wait=1000)
        given = [await child.poll("in", wait=1000) for _ in range(3)]
        for seen, least in ((first, 0.1), (empty, 0.3), (given[0], 0.1)):
            assert least <= seen.wall_time < NOT_BLOCKED
            assert (seen.stdout, seen.alive) == (b"", True)
        assert min(seen.wall_time for seen in given) < 0.3
        await child.aclose()


async def test_s29_a_yield_ends_a_poll_early_and_leaves_the_child_alone(
    opened: Opened,
) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(REST, tag()))
        events = child.events()
        await anext(events)
        stop = asyncio.Event()
        waiting = asyncio.ensure_future(child.poll(wait=30, yield_on=stop))
        await arrived(child)
        assert not waiting.done()
        stop.set()
        async with asyncio.timeout(NOT_BLOCKED):
            seen = await waiting
        assert (seen.stdout, seen.alive, seen.done) == (b"ready\n", True, False)
        assert (await child.poll(wait=0)).stdout == b""
        await events.aclose()
        await child.aclose()


async def test_s29_a_cancelled_poll_consumes_nothing(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(REST, tag()))
        events = child.events()
        await anext(events)
        waiting = asyncio.ensure_future(child.poll(wait=30))
        await arrived(child)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await child.poll(wait=0)).stdout == b"ready\n"
        await events.aclose()
        await child.aclose()


async def test_s30_the_deadline_holds_under_a_flood(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(FLOOD, tag()))
        for _ in range(3):
            started = time.monotonic()
            seen = await child.poll(wait=0.3)
            assert 0.25 < time.monotonic() - started < 2
            assert seen.stdout
            assert seen.alive
        await child.aclose()


async def test_s30_a_poll_is_done_once_all_is_read(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(["printf", "abcde"])
        await child.wait()
        told = []
        for _ in range(3):
            seen = await child.poll(max_bytes=2)
            told.append((seen.stdout, seen.more, seen.done))
        assert told == [
            (b"ab", True, False),
            (b"cd", True, False),
            (b"e", False, True),
        ]
        await child.aclose()


async def test_s32_an_end_between_two_polls_is_told_by_the_second(
    opened: Opened,
) -> None:
    async with opened() as engine:
        child = await engine.spawn(
            program(REPEATS_INPUT + "os._exit(7)", tag()), stdin="pipe"
        )
        assert (await child.poll(b"first", wait=NOT_BLOCKED)).stdout == b"first"
        await child.write(b"last")
        await child.close_stdin()
        status = await child.wait()
        seen = await child.poll(mode="completion")
        assert (seen.stdout, seen.exit_code, seen.done) == (b"last", 7, True)
        again = await child.poll()
        assert (again.stdout, again.status, again.done) == (b"", status, True)
        await child.aclose()
