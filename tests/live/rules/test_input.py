"""What a child reads from its stdin."""

import asyncio

import pytest

import actors
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
