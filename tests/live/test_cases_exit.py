"""When a child is over, and that all it wrote is there: situations users reported."""

import asyncio
import itertools
import os
import random
import time
from contextlib import nullcontext

import pytest

import actors
from broker import tree
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
    peak,
    program,
    repeated,
    resident,
    stopped,
    until,
)

pytestmark = pytest.mark.live

SOON = 1.0
"""Seconds in which an end must be told; ten times as many on a loaded machine."""
LOADED = 10.0
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
        gone(word)


async def test_an_ended_child_is_told_from_a_closed_one() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(HELPER_HOLDS_PIPES, word), leftover="keep", post_exit_grace=None
        )
        assert (await child.wait(5)).code == 3
        seen = await child.poll(wait=0)
        assert (seen.state, seen.done, seen.stdout) == ("exited", False, b"main-done\n")
        assert seen.wall_time < SOON * LOADED
        await child.aclose()
        gone(word)


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
        gone(word)


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
        cue = time.monotonic()
        writing = asyncio.ensure_future(child.write(b"go\n" + b"x" * MIB))
        assert (await child.wait(5)).code == 9
        assert time.monotonic() - cue < SOON * LOADED
        written = await writing
        assert written.state in ("ended", "running")  # if its death takes longer
        assert 3 <= written.accepted < MIB
        output, last = await drained(child)
        assert (output, last.exit_code) == (b"leaving\n", 9)
        with pytest.raises(actors.StdinUnavailable):
            await child.write(b"more")
        # Nobody closed it, and the worker holds no end of it any more.
        assert not [fd for fd in open_files(worker) if "pipe:" in fd[1] and fd[2]]
        assert tree.children(worker) == []
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
    whole = b"x" * size + b"\nafter-long-line\n"
    async with actors.Engine() as engine, asyncio.timeout(2 * LOADED):
        child = await engine.spawn(
            program(LONG_LINE, tag(), str(size)), stderr=stderr, retention=retention
        )
        here = [pid for pids in engine_processes(engine).values() for pid in pids]
        before = resident(here)
        longest = asyncio.ensure_future(longest_chunk(child.events()))
        output, last = await drained(child)
        assert output == whole
        assert last.exit_code == 0
        assert await longest <= actors.Settings().chunk
        grown = {pid: peak(pid) - before[pid] for pid in here}
        assert max(grown.values()) < 64 * MIB, grown
        await child.aclose()
        assert (await engine.run(["echo", "next"])).stdout == b"next\n"


async def longest_chunk(stream: actors.EventStream) -> int:
    async with stream:
        return max(
            [
                len(event.data)
                async for event in stream
                if isinstance(event, actors.Chunk)
            ]
        )


@repeated(12_000, 20_000)
async def test_polls_that_are_given_up_lose_and_repeat_nothing(runs: int) -> None:
    """Some are abandoned at a random moment, some while the broker stands still."""
    chance = random.Random(7)
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(NUMBERS, tag(), str(runs)),
            retention=actors.OutputPolicy("block", 16384),
        )
        [broker] = engine_processes(engine)["broker"]
        output, given_up = b"", 0
        for turn in itertools.count():
            asked = asyncio.ensure_future(child.poll(wait=0.05, max_bytes=4096))
            if turn % 3 == 2:
                with stopped(broker) if turn % 4 == 0 else nullcontext():
                    await asyncio.wait([asked], timeout=chance.random() / 500)
                if asked.cancel():
                    given_up += 1
                    continue
            seen = await asked
            output += seen.stdout
            if seen.done:
                break
        assert output == numbers(runs)
        assert given_up
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


ECHO = """
while data := os.read(0, 99):
    write(data)
"""


@pytest.mark.parametrize("reading", [False, True])
@pytest.mark.parametrize("limit", [1.0, pytest.param(5.0, marks=pytest.mark.soak)])
async def test_endless_output_neither_fills_memory_nor_stops_the_clock(
    reading: bool, limit: float
) -> None:
    async with actors.Engine() as engine:
        other = await engine.spawn(program(ECHO, tag()), stdin="pipe")
        child = await engine.spawn(program(FLOOD, tag()), timeout=limit)
        here = [parent(child.pid), *engine_processes(engine)["broker"], os.getpid()]
        await child.poll(wait=0, max_bytes=1)
        before, slowest, dropped = resident(here), 0.0, 0
        while child.returncode is None:
            if reading:  # about 64 KiB in a second
                dropped += (await child.poll(wait=0, max_bytes=16384)).dropped_bytes
            answered = await other.poll(b"hello", wait=5)
            assert answered.stdout == b"hello"
            slowest = max(slowest, answered.wall_time)
            grown = growth(before, here)
            assert max(grown.values()) < 66 * MIB, grown
            await asyncio.wait([asyncio.ensure_future(child.wait())], timeout=0.2)
        assert slowest < 0.5 * LOADED
        status = await child.wait(0)
        assert (status.cause, status.signal) == ("timeout", 15)
        assert limit <= status.wall_time < limit + SOON * LOADED
        dropped += (await child.poll(wait=0)).dropped_bytes
        assert dropped > 16 * MIB
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
