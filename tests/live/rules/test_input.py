"""What a child reads from its stdin."""

import asyncio
from typing import Any

import pytest

import actors
from broker import link
from broker.wire import Kind
from tests.helpers import NOT_BLOCKED, tag
from tests.live.children import (
    COUNTS_INPUT,
    MIB,
    REPEATS_INPUT,
    REST,
    Opened,
    arrived,
    drained,
    program,
    until,
)

pytestmark = pytest.mark.live


async def test_s33_a_write_answers_when_its_bytes_are_in_the_pipe(
    opened: Opened,
) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(COUNTS_INPUT, tag()), stdin="pipe")
        assert await child.write(b"") == actors.WriteResult(0, "running")
        assert await child.write("é") == actors.WriteResult(2, "running")
        assert (await child.write(b"x" * 5 * MIB)).accepted == 5 * MIB
        await child.close_stdin()
        assert (await drained(child))[0] == b"total %d" % (5 * MIB + 2)
        await child.aclose()


async def test_s33_an_offset_makes_a_retried_write_harmless(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(REPEATS_INPUT, tag()), stdin="pipe")
        assert (await child.write(b"hello", at=0)).accepted == 5
        assert (await child.write(b"hello", at=0)).accepted == 5
        assert (await child.write(b"hello world", at=0)).accepted == 11
        with pytest.raises(actors.InvalidRequest) as refused:
            await child.write(b"!", at=12)
        assert refused.value.field == "at"
        await child.write(b"!", at=11)
        assert (await child.output()).stdout == b"hello world!"
        await child.aclose()


async def test_s33_a_full_pipe_makes_only_its_writer_wait(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(REST, tag()), stdin="pipe")
        writing = asyncio.ensure_future(child.write(b"x" * 4 * MIB))
        await until(child, b"ready\n")
        async with asyncio.timeout(NOT_BLOCKED):
            assert (await child.snapshot()).state == "running"
            assert (await engine.run(["cat"], input=b"i")).stdout == b"i"
        assert not writing.done()
        await child.kill()
        assert (await writing).state == "ended"
        await child.aclose()


async def test_s34_input_is_refused_where_there_is_no_stdin(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(REST, tag()))
        with pytest.raises(actors.StdinUnavailable):
            await child.write(b"x")
        with pytest.raises(actors.StdinUnavailable):
            await child.poll(b"x", wait=1)
        assert (await child.poll(mode="output")).stdout == b"ready\n"
        await child.kill()
        with pytest.raises(actors.StdinUnavailable):
            await child.write(b"x")
        await child.aclose()


LINE = b"x" * 5000 + b"\n"
"""Longer than a terminal takes in canonical mode."""


@pytest.mark.parametrize(
    ("options", "data", "wanted"),
    [
        ({}, b"x", actors.StdinUnavailable),
        ({"tty": True}, LINE, actors.InvalidRequest),
    ],
    ids=["no stdin", "too long a line"],
)
async def test_s34_a_poll_that_does_not_wait_tells_that_its_input_was_refused(
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    data: bytes,
    wanted: type[Exception],
) -> None:
    monkeypatch.setattr(link, "DRAIN", 1)  # no answer is there with the one before it
    now = asyncio.Event()
    now.set()
    async with opened() as engine:
        child = await engine.spawn(program(REST, tag()), **options)
        await child.expect("ready", timeout=NOT_BLOCKED)
        for how in ({"wait": 0}, {"yield_on": now}, {"wait": 1}):
            with pytest.raises(wanted):
                await child.poll(data, mode="output", **how)
        assert b"ready" in (await child.poll(wait=0)).stdout, "it consumed nothing"
        await child.kill()
        for how in ({"wait": 0}, {"yield_on": now}, {}):
            with pytest.raises(actors.StdinUnavailable):
                await child.poll(b"late", **how)
        assert (await child.poll()).status == child.status
        await child.aclose()


@pytest.mark.parametrize("size", [1, 200_000])
async def test_a_poll_that_overtakes_its_input_tells_that_it_was_refused(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()))
        post, queued = child._link.post, []

        def overtaken(kind: Kind, *words: Any, **named: Any) -> None:
            if kind is Kind.WRITE and words[-1]:
                queued.append((kind, *words))
                return
            if kind is Kind.WRITE:
                while queued:
                    post(*queued.pop(0))
            post(kind, *words, **named)

        monkeypatch.setattr(child._link, "post", overtaken)
        with pytest.raises(actors.StdinUnavailable):
            await child.poll(b"x" * size, wait=0)
        assert not queued


async def test_a_poll_does_not_wait_for_the_pipe_to_take_its_input(
    opened: Opened,
) -> None:
    size = 200_000
    async with opened() as engine:
        child = await engine.spawn(program("rest()", tag()), stdin="pipe")
        async with asyncio.timeout(NOT_BLOCKED):
            for _ in range(2):
                assert (await child.poll(b"x" * size, wait=0)).alive
        await child.aclose()
        child = await engine.spawn(program(COUNTS_INPUT, tag()), stdin="pipe")
        assert (await child.poll(b"x" * size, wait=0)).alive
        assert (await child.write(b"")).accepted == 0  # behind what came before it
        await child.close_stdin()
        assert (await drained(child))[0] == b"total %d" % size
        await child.aclose()


async def test_s34_a_write_cut_by_the_end_says_how_much_went_in(opened: Opened) -> None:
    leaves = "os.read(0, 1000); write(b'bye'); os._exit(0)"
    async with opened() as engine:
        for size in (200_000, 4 * MIB):
            child = await engine.spawn(program(leaves, tag()), stdin="pipe")
            written = await child.write(b"x" * size)
            assert written.state == "ended"
            assert 1000 <= written.accepted < 200_000
            assert (await drained(child))[0] == b"bye"
            with pytest.raises(actors.StdinUnavailable):
                await child.write(b"late")
            await child.aclose()


async def test_s35_closing_stdin_is_harmless_to_repeat_and_waits_for_nobody(
    opened: Opened,
) -> None:
    async with opened() as engine:
        child = await engine.spawn(
            program("write(b'up'); signal.pause()", tag()), stdin="pipe"
        )
        await until(child, b"up")
        writing = asyncio.ensure_future(child.write(b"x" * 4 * MIB))
        await arrived(child)
        async with asyncio.timeout(NOT_BLOCKED):
            await child.close_stdin()
            written = await writing
            await child.close_stdin()
        assert written.state == "running"
        assert 0 < written.accepted < MIB
        with pytest.raises(actors.StdinUnavailable):
            await child.write(b"more")
        await child.kill()
        await child.close_stdin()
        await child.aclose()
