"""What a child reads from its stdin."""

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import actors
from actors.worker import ANSWERS
from actors.writing import MOST_UNDER_WAY, WRITE_PIECE, Writing
from broker import link
from broker.wire import Kind
from tests.helpers import NOT_BLOCKED, tag
from tests.live.children import (
    COUNTS_INPUT,
    KIB,
    MIB,
    REPEATS_INPUT,
    REST,
    Opened,
    arrived,
    drained,
    program,
    until,
)
from tests.parts import serving

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


ON_CUE = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
write(b"ready\\n")
signal.sigwait({signal.SIGUSR1})
"""


async def test_handles_of_one_engine_write_one_after_the_other(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(
            program(ON_CUE + REPEATS_INPUT), stdin="pipe", retention=KEPT
        )
        reader = child.reader()
        assert (await reader.read()).data == b"ready\n"
        handles = [child, *[await engine.visit(child.id) for _ in range(3)]]
        words = [b"%d" % number * MIB for number in range(4)]
        writers = [
            asyncio.ensure_future(handle.write(word))
            for handle, word in zip(handles, words, strict=True)
        ]
        await arrived(child)
        assert not any(writer.done() for writer in writers)
        await child.signal(signal.SIGUSR1)
        assert await until_written(child, reader, writers) == b"".join(words)
        await child.aclose()


async def until_written(
    child: actors.Child,
    reader: actors.Reader,
    writers: "list[asyncio.Task[actors.WriteResult]]",
) -> bytes:
    """Read to the end, which comes once all of that is written."""
    parts = []
    closing = asyncio.ensure_future(closed_behind(child, writers))
    ended = False
    while not ended:
        piece = await reader.read()
        parts.append(piece.data)
        ended = piece.eof
    await closing
    return b"".join(parts)


async def closed_behind(
    child: actors.Child, writers: "list[asyncio.Task[actors.WriteResult]]"
) -> None:
    for written in await asyncio.gather(*writers):
        assert written == actors.WriteResult(MIB, "running")
    await child.close_stdin()


async def test_s33_a_full_queue_makes_the_writers_of_other_engines_wait(
    tmp_path: Path,
) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    with serving(endpoint):
        async with AsyncExitStack() as stack:
            engines = [
                await stack.enter_async_context(actors.Engine(endpoint, owner_key=b"k"))
                for _ in range(4)
            ]
            child = await engines[0].spawn(
                program(ON_CUE + REPEATS_INPUT), stdin="pipe", retention=KEPT
            )
            reader = child.reader()
            assert (await reader.read()).data == b"ready\n"
            handles = [child, *[await e.visit(child.id) for e in engines[1:]]]
            words = [b"".join(b"%d%07d" % (n, k) for k in RECORDS) for n in range(4)]
            writers = [
                asyncio.ensure_future(handle.write(word))
                for handle, word in zip(handles, words, strict=True)
            ]
            await asyncio.gather(*map(arrived, handles))
            async with asyncio.timeout(NOT_BLOCKED):
                while under_way(handles) > MIB // WRITE_PIECE + 1:
                    await asyncio.sleep(0.01)
            await child.signal(signal.SIGUSR1)
            written = await until_written(child, reader, writers)
            records = [written[at : at + 8] for at in range(0, len(written), 8)]
            for number, word in enumerate(words):
                mine = [r for r in records if r.startswith(b"%d" % number)]
                assert b"".join(mine) == word
            await child.aclose()


def under_way(handles: list[actors.Child]) -> int:
    """Return how many pieces of input were sent, and neither taken nor refused."""
    return sum(len(handle._writing._inflow.under_way) for handle in handles)


async def test_a_long_queue_has_no_more_under_way_than_its_worker_remembers() -> None:
    settings = actors.Settings(stdin_queue=16 * MIB)
    async with actors.Engine(settings=settings) as engine:
        child = await engine.spawn(program(REST, tag()), stdin="pipe")
        writing = asyncio.ensure_future(child.write(bytes(16 * MIB)))
        await until(child, b"ready\n")
        await arrived(child)
        assert 0 < under_way([child]) <= MOST_UNDER_WAY < ANSWERS
        await child.kill()
        assert (await writing).state == "ended"
        await child.aclose()


RECORDS = range(MIB // 8)
KEPT = actors.OutputPolicy.block(MIB)


async def test_a_writer_that_waits_for_room_hears_of_the_childs_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, over = asyncio.Event(), asyncio.Event()

    async def until_over(self: Writing, pause: float) -> None:
        refused.set()
        await over.wait()

    monkeypatch.setattr(Writing, "_wait_for_room", until_over)
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    settings = actors.Settings(stdin_queue=KIB)
    with serving(endpoint):
        async with (
            actors.Engine(endpoint, owner_key=b"k", settings=settings) as engine,
            actors.Engine(endpoint, owner_key=b"k") as other,
        ):
            child = await engine.spawn(program(REST), stdin="pipe")
            await child.poll(b"x" * 200 * KIB, wait=0)
            visited = await other.visit(child.id)
            given_up, writing = (
                asyncio.ensure_future(visited.write(data))
                for data in (b"y", b"y" * MIB)
            )
            async with asyncio.timeout(NOT_BLOCKED):
                await refused.wait()
                given_up.cancel()
                await asyncio.wait([given_up])
                refused.clear()
                await refused.wait()
            await child.kill()
            over.set()
            assert await writing == actors.WriteResult(0, "ended")


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
