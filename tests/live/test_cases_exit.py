"""When a child is over, and that all it wrote is there: situations users reported."""

import asyncio
import itertools
import os
import random
import time
from typing import Any

import pytest

import actors
from tests.helpers import NOT_BLOCKED, gone, parent, tag
from tests.live.children import (
    BURST,
    CLOSES_OUTPUT_AND_WORKS,
    FLOOD,
    HELPER_AND_LEADER_REST,
    HELPER_HOLDS_PIPES,
    LAST_WORDS,
    LEAVES_ON_CUE,
    LONG_LINE,
    NUMBERS,
    REST,
    burst,
    cpu_ticks,
    drained,
    engine_processes,
    numbers,
    program,
    repeated,
    resident,
    until,
)

pytestmark = pytest.mark.live

SOON = 1.0
"""Seconds in which an end must be told; three times as many on a loaded machine."""
LOADED = 3.0
MIB = 1024 * 1024


# -- an end, and pipes that stay open ------------------------------------------


async def test_a_silent_helper_that_holds_the_pipes_does_not_delay_the_exit() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(program(HELPER_HOLDS_PIPES, word))
        started = time.monotonic()
        status = await child.wait(5)
        output, last = await drained(child)
        assert time.monotonic() - started < SOON * LOADED
        assert (status.code, status.cause) == (3, "exited")
        assert output == b"main-done\n"
        assert last.exit_code == 3
        await child.aclose()
        gone(word, 2)


async def test_an_ended_child_is_told_from_a_closed_one() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(HELPER_HOLDS_PIPES, word), leftover="keep", post_exit_grace=None
        )
        assert (await child.wait(5)).code == 3
        seen = await child.poll(wait=0)
        assert (seen.state, seen.done, seen.stdout) == ("exited", False, b"main-done\n")
        assert seen.wall_time < SOON
        await child.aclose()
        gone(word, 2)


async def test_the_end_by_a_kill_is_told_while_a_helper_holds_the_pipes() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(HELPER_AND_LEADER_REST, word),
            leftover="keep",
            post_exit_grace=None,
        )
        await until(child, b"ready\n")
        assert await child.signal(9)
        killed = time.monotonic()
        status = await child.wait(3)
        assert time.monotonic() - killed < SOON * LOADED
        assert (status.code, status.signal) == (None, 9)
        for _ in range(3):
            seen = await child.poll(wait=0)
            assert (seen.state, seen.status) == ("exited", status)
        await child.aclose()
        gone(word, 2)


async def test_closed_output_is_no_exit_and_costs_no_processor_time() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(CLOSES_OUTPUT_AND_WORKS, tag()), stdin="pipe"
        )
        ended = set()
        async with child.events() as events:
            async for event in events:
                if isinstance(event, actors.StreamEof):
                    ended.add(event.stream)
                if ended == {"stdout", "stderr"}:
                    break
        worker = parent(child.pid)
        before = cpu_ticks(worker)
        with pytest.raises(actors.TimedOut):
            await child.wait(0.8)
        seen = await child.poll(wait=0)
        assert (seen.state, seen.alive, seen.done) == ("running", True, False)
        spent = (cpu_ticks(worker) - before) / os.sysconf("SC_CLK_TCK")
        assert spent < 0.1
        await child.close_stdin()
        assert (await child.wait(NOT_BLOCKED)).code == 23
        assert (await child.poll()).done
        await child.aclose()


# -- the last output -----------------------------------------------------------


@repeated(32, 500)
async def test_s24_the_last_bytes_before_an_exit_are_never_lost(runs: int) -> None:
    expected = burst(500_000)
    word = tag()
    left = iter(range(runs))

    async def client(engine: actors.Engine) -> None:
        for _ in left:
            child = await engine.spawn(program(BURST, word, "500000"))
            seen_exit_at = None
            size, parts = 0, []
            while True:
                seen = await child.poll(mode="output")
                size += len(seen.stdout)
                parts.append(seen.stdout)
                if seen_exit_at is None and not seen.alive and not seen.more:
                    seen_exit_at = size
                if seen.done:
                    break
            assert b"".join(parts) == expected
            assert seen.exit_code == 0
            assert seen_exit_at == size
            await child.aclose()

    async with actors.Engine() as engine:
        await asyncio.gather(*(client(engine) for _ in range(8)))


@repeated(32, 500)
async def test_a_whole_capture_has_the_last_bytes(runs: int) -> None:
    expected = burst(500_000)
    word = tag()
    gate = asyncio.Semaphore(8)

    async def one(engine: actors.Engine) -> None:
        async with gate:
            done = await engine.run(program(BURST, word, "500000"))
        assert done.stdout == expected
        assert done.returncode == 0

    async with actors.Engine() as engine:
        await asyncio.gather(*(one(engine) for _ in range(runs)))


@repeated(16, 100)
async def test_output_is_there_when_the_exit_is(runs: int) -> None:
    expected = b"A" * 5000 + b"B" * 5000
    gate = asyncio.Semaphore(8)
    word = tag()

    async def one(engine: actors.Engine) -> None:
        async with gate:
            child = await engine.spawn(program(LAST_WORDS, word))
            output = b""
            while True:
                seen = await child.poll(wait=0.1)
                output += seen.stdout
                if not seen.alive:
                    break
            assert output == expected
            assert seen.exit_code == 6
            again = [await child.poll(wait=0.1) for _ in range(3)]
            assert [p.stdout + p.stderr for p in again] == [b""] * 3
            assert {(p.exit_code, p.alive) for p in again} == {(6, False)}
            status = await child.wait()
            assert status.ended is not None
            assert time.monotonic() - status.ended < SOON * LOADED
            await child.aclose()

    async with actors.Engine() as engine:
        await asyncio.gather(*(one(engine) for _ in range(runs)))


@repeated(8, 50)
async def test_asking_for_the_state_takes_the_end_from_nobody(runs: int) -> None:
    word = tag()

    async def waiter(child: actors.Child) -> list[int | None]:
        first = await child.wait(10)
        return [first.code, (await child.wait(0)).code, (await child.wait(0)).code]

    async def poller(child: actors.Child) -> tuple[bytes, int | None]:
        output = b""
        while True:
            seen = await child.poll(wait=0.02)
            output += seen.stdout
            if not seen.alive:
                code = (await child.wait(0)).code
                assert code == (await child.wait(0)).code == seen.exit_code
                return output, code

    async def one(engine: actors.Engine) -> None:
        child = await engine.spawn(program(LAST_WORDS, word))
        codes, *polls = await asyncio.gather(
            waiter(child), poller(child), poller(child)
        )
        assert codes == [6, 6, 6]
        assert [code for _, code in polls] == [6, 6]
        assert len(b"".join(output for output, _ in polls)) == 10_000
        await child.aclose()

    async with actors.Engine() as engine:
        for _ in range(runs // 4):
            await asyncio.gather(*(one(engine) for _ in range(4)))


@repeated(100, 2000)
async def test_an_end_right_behind_the_start_is_told(runs: int) -> None:
    async with actors.Engine() as engine:
        for code in range(runs):
            child = await engine.spawn(["sh", "-c", f"exit {code % 256}"])
            assert (await child.wait(NOT_BLOCKED)).code == code % 256
            await child.aclose()


# -- input and the end ---------------------------------------------------------


async def test_an_exit_is_told_while_stdin_is_open_and_full() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(LEAVES_ON_CUE, tag()), stdin="pipe")
        worker = parent(child.pid)
        written = await child.write(b"go\n" + b"x" * MIB)
        assert written.state == "ended"
        assert 3 <= written.accepted < MIB
        assert (await child.wait(5)).code == 9
        output, _ = await drained(child)
        assert output == b"leaving\n"
        assert not [fd for fd in open_files(worker) if "pipe:" in fd[1] and fd[2]]
        with pytest.raises(actors.StdinUnavailable):
            await child.write(b"more")
        await child.aclose()


def open_files(pid: int) -> list[tuple[int, str, bool]]:
    """Return descriptors whose file is open once: number, target, written to."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{name}")
        with open(f"/proc/{pid}/fdinfo/{name}") as file:
            flags = int(next(line for line in file if "flags" in line).split()[1], 8)
        found.append((int(name), target, bool(flags & os.O_WRONLY)))
    ends = [target for _, target, _ in found]
    return [item for item in found if ends.count(item[1]) == 1]


# -- amounts -------------------------------------------------------------------


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 5_000_000])
@pytest.mark.parametrize("stderr", ["pipe", "stdout"])
async def test_one_long_line_is_only_bytes(size: int, stderr: str) -> None:
    retention = actors.OutputPolicy("block", MIB)
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(LONG_LINE, tag(), str(size)), stderr=stderr, retention=retention
        )
        output, last = await drained(child)
        assert output == b"x" * size + b"\nafter-long-line\n"
        assert last.exit_code == 0
        await child.aclose()
        assert (await engine.run(["echo", "next"])).stdout == b"next\n"


async def test_a_client_that_reads_late_is_told_of_every_missing_byte() -> None:
    count, children = 20_000, 8
    whole = numbers(count)
    async with actors.Engine() as engine, engine.scope() as scope:
        started = [
            await scope.spawn(
                program(NUMBERS, tag(), str(count)),
                retention=actors.OutputPolicy("tail", 65536),
            )
            for _ in range(children)
        ]
        for child in started:
            assert (await child.wait(NOT_BLOCKED)).code == 0
        for child in started:
            seen = await child.poll(wait=5)
            assert seen.done
            assert seen.dropped_bytes + len(seen.stdout) == len(whole)
            assert whole.endswith(seen.stdout)
            assert len(seen.stdout) == 65536


async def test_polls_that_are_given_up_lose_and_repeat_nothing() -> None:
    count = 20_000
    chance = random.Random(7)
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(NUMBERS, tag(), str(count)),
            retention=actors.OutputPolicy("block", 65536),
        )
        output = b""
        for turn in itertools.count():
            asked = asyncio.ensure_future(child.poll(wait=0.05, max_bytes=4096))
            if turn % 3 == 2:
                await asyncio.wait([asked], timeout=chance.random() / 500)
                if asked.cancel():
                    continue
            seen = await asked
            output += seen.stdout
            if seen.done:
                break
        assert output == numbers(count)
        assert child.returncode == 0
        await child.aclose()


async def test_two_pollers_share_one_child_without_a_hole_or_a_repetition() -> None:
    count = 20_000
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(NUMBERS, tag(), str(count)),
            retention=actors.OutputPolicy("block", 65536),
        )
        parts: list[bytes] = []

        async def poller() -> None:
            while True:
                seen = await child.poll(wait=5, mode="output")
                parts.append(seen.stdout)
                if seen.done:
                    return

        await asyncio.gather(poller(), poller())
        assert b"".join(parts) == numbers(count)
        await child.aclose()


async def test_each_stream_of_events_sees_every_byte() -> None:
    count = 20_000
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(NUMBERS, tag(), str(count)),
            retention=actors.OutputPolicy("block", 65536),
        )

        async def listener(stream: actors.EventStream) -> bytes:
            output = b""
            async for event in stream:
                assert not isinstance(event, actors.Gap)
                if isinstance(event, actors.Chunk):
                    assert event.offset == len(output)
                    output += event.data
            return output

        streams = [child.events(), child.events()]
        both = await asyncio.gather(*map(listener, streams))
        assert both == [numbers(count)] * 2
        await child.aclose()


@pytest.mark.parametrize("reading", [False, True])
async def test_endless_output_neither_fills_memory_nor_stops_the_clock(
    reading: bool,
) -> None:
    limit = 2.0
    async with actors.Engine() as engine:
        other = await engine.spawn(
            program("write(os.read(0, 99)); rest()", tag()), stdin="pipe"
        )
        child = await engine.spawn(program(FLOOD, tag()), timeout=limit)
        started = time.monotonic()
        here = [parent(child.pid), *engine_processes(engine)["broker"], os.getpid()]
        await child.poll(wait=0, max_bytes=1)
        before = resident(here)
        answered = await other.poll(b"hello", wait=5)
        assert answered.stdout == b"hello"
        assert answered.wall_time < 0.5 * LOADED
        while child.returncode is None and time.monotonic() - started < NOT_BLOCKED:
            if reading:
                await child.poll(wait=0, max_bytes=65536)
            with_limit = asyncio.timeout(0.25)
            try:
                async with with_limit:
                    await child.wait()
            except TimeoutError:
                grown = growth(before, here)
                assert max(grown.values()) < 66 * MIB, grown
        status = await child.wait(0)
        assert (status.cause, status.signal) == ("timeout", 15)
        assert status.wall_time < limit + SOON * LOADED
        seen: Any = await child.poll(wait=0)
        assert seen.dropped_bytes > 0
        await child.aclose()
        await other.aclose()


def growth(before: dict[int, int], pids: list[int]) -> dict[int, int]:
    now = resident(pids)
    return {pid: now[pid] - before[pid] for pid in pids}


async def test_a_child_that_rests_costs_its_worker_nothing() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()))
        await until(child, b"ready\n")
        before = cpu_ticks(parent(child.pid))
        with pytest.raises(actors.TimedOut):
            await child.wait(0.5)
        assert cpu_ticks(parent(child.pid)) - before <= 2
        await child.aclose()
