"""What becomes of the bytes that a child writes."""

import asyncio
import errno
import itertools
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import actors
from actors import Child, OutputPolicy
from tests.helpers import NOT_BLOCKED, gone, tag, tagged
from tests.live.children import (
    BURST,
    CLOSES_OUTPUT_AND_WORKS,
    FLOOD,
    HELPER_HOLDS_PIPES,
    KIB,
    MIB,
    NUMBERS,
    REPEATS_INPUT,
    REST,
    STEP_BY_STEP,
    Opened,
    arrived,
    burst,
    collected,
    data_of,
    drained,
    kinds,
    numbers,
    program,
    until,
)

pytestmark = pytest.mark.live


async def test_s18_readers_of_every_kind_take_nothing_from_each_other(
    opened: Opened,
) -> None:
    count = 20_000
    whole = numbers(count)
    kept = OutputPolicy("block", 131072)  # all: whoever is last misses nothing either
    async with opened() as engine:
        child = await engine.spawn(program(NUMBERS, tag(), str(count)), retention=kept)
        reader = child.reader()

        async def read() -> bytes:
            parts = []
            while True:
                piece = await reader.read(10_000)
                assert piece.gap == 0
                parts.append(piece.data)
                if piece.eof:
                    return b"".join(parts)

        polled, read_, events, done = await asyncio.gather(
            drained(child), read(), collected(child.events()), child.output()
        )
        assert polled[0] == read_ == data_of(events) == done.stdout == whole
        await reader.aclose()
        await child.aclose()


async def test_s18_two_pollers_queue_up(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(STEP_BY_STEP, tag()), stdin="pipe")
        first = asyncio.ensure_future(child.poll(mode="output", wait=NOT_BLOCKED))
        second = asyncio.ensure_future(child.poll(mode="output", wait=NOT_BLOCKED))
        await arrived(child)
        await child.write(b"1 one\n")
        assert (await first).stdout == b"one"
        assert not second.done()
        await child.write(b"1 two\n")
        assert (await second).stdout == b"two"
        await child.aclose()


@pytest.mark.parametrize("kind", ["tail", "head_tail", "block"])
async def test_s19_nothing_goes_missing_unsaid(opened: Opened, kind: Any) -> None:
    size, whole = 64 * KIB, burst(MIB)
    async with opened() as engine:
        child = await engine.spawn(
            program(BURST, tag(), str(MIB)), retention=OutputPolicy(kind, size)
        )
        if kind != "block":
            await child.wait()
        for attempt in range(2):
            events = await collected(child.events())
            position = 0
            for event in events:
                if isinstance(event, actors.Gap):
                    assert (event.stream, event.start) == ("stdout", position)
                    position = event.end
                elif isinstance(event, actors.Chunk):
                    assert event.offset == position
                    assert event.data == whole[position : position + len(event.data)]
                    position += len(event.data)
            assert position == MIB
            missing = MIB - len(data_of(events))
            lossless = kind == "block" and attempt == 0
            assert missing == (0 if lossless else MIB - size)
        seen = await child.poll()
        assert seen.dropped_bytes + len(seen.stdout) == MIB
        assert (await child.snapshot()).dropped == MIB - size
        await child.aclose()


async def test_s20_a_poll_and_a_reader_hold_the_child_back(opened: Opened) -> None:
    whole = burst(MIB)

    async def polled(child: actors.Child, _: actors.Reader) -> bytes:
        return (await child.poll(mode="output", max_bytes=1)).stdout

    async def read(_: actors.Child, reader: actors.Reader) -> bytes:
        return (await reader.read(1)).data

    async with opened() as engine:
        for take in (polled, read):
            child = await engine.spawn(
                program(BURST, tag(), str(MIB)), retention=OutputPolicy.block(64 * KIB)
            )
            reader = child.reader()
            assert await take(child, reader) == whole[:1]
            fast = asyncio.ensure_future(collected(child.events()))
            with pytest.raises(actors.TimedOut):
                await child.wait(0.15)
            assert not fast.done()
            if take is polled:
                assert (await drained(child))[0] == whole[1:]
            await reader.aclose()
            assert data_of(await fast) == whole
            await child.aclose()


async def test_s20_two_mebibytes_are_kept_unless_told(opened: Opened) -> None:
    assert OutputPolicy.tail().size == 2 * MIB
    assert OutputPolicy.head_tail().size == MIB
    async with opened() as engine:
        child = await engine.spawn(program(BURST, tag(), str(3 * MIB)))
        await child.wait()
        assert (await child.snapshot()).dropped == MIB
        assert (await drained(child))[0] == burst(3 * MIB)[MIB:]
        await child.aclose()


async def test_s20_tail_keeps_the_newest_and_head_tail_both_ends(
    opened: Opened,
) -> None:
    whole, size = burst(MIB), 64 * KIB + 1
    async with opened() as engine:
        for kind, kept in (
            ("tail", whole[-size:]),
            ("head_tail", whole[: size - size // 2] + whole[-(size // 2) :]),
        ):
            policy = OutputPolicy(kind, size)  # type: ignore[arg-type]
            child = await engine.spawn(
                program(BURST, tag(), str(MIB)), retention=policy
            )
            await child.wait()
            assert (await child.poll()).stdout == kept
            with pytest.raises(actors.OutputLost) as lost:
                await child.output()
            assert lost.value.dropped == MIB - size
            assert lost.value.stdout == kept
            await child.aclose()
    with pytest.raises(actors.InvalidRequest):
        OutputPolicy("tail", 0)


async def test_s20_block_holds_the_child_until_its_slowest_reader_has_read(
    opened: Opened,
) -> None:
    size = 64 * KIB
    async with opened() as engine:
        child = await engine.spawn(
            program(BURST, tag(), str(MIB)), retention=OutputPolicy("block", size)
        )
        with pytest.raises(actors.TimedOut):
            await child.wait(0.3)
        slow, fast = child.events(window=4 * KIB), child.events()
        reading = asyncio.ensure_future(collected(fast))
        with pytest.raises(actors.TimedOut):
            await child.wait(0.3)
        assert not reading.done()
        assert data_of(await collected(slow)) == burst(MIB)
        assert data_of(await reading) == burst(MIB)
        await child.aclose()


async def test_s20_output_is_drained_when_the_last_reader_goes_away(
    opened: Opened,
) -> None:
    async with opened() as engine:
        child = await engine.spawn(
            program(BURST, tag(), str(MIB)), retention=OutputPolicy("block", 64 * KIB)
        )
        async with child.events() as events:
            async for _ in events:
                break
        assert (await child.wait(NOT_BLOCKED)).code == 0
        await child.aclose()


async def test_a_reader_that_is_closed_in_its_first_read_holds_nothing() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(BURST, tag(), str(MIB)), retention=OutputPolicy("block", 64 * KIB)
        )
        reader = child.reader(after="newest")
        reading = asyncio.ensure_future(reader.read())
        await asyncio.sleep(0)
        await reader.aclose()
        with pytest.raises(actors.InvalidRequest, match="is closed"):
            await reading
        assert (await child.wait(NOT_BLOCKED)).code == 0
        await child.aclose()


async def test_s21_events_come_in_order_and_closed_is_last(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(STEP_BY_STEP, tag()), stdin="pipe")
        stream = child.events()
        for line in (b"1 a\n", b"2 b\n", b"1 c\n"):
            await child.write(line)
            event = await anext(stream)
            assert isinstance(event, actors.Chunk)
            assert event.data == line[2:-1]
        await child.close_stdin()
        told = kinds(await collected(stream))
        assert sorted(told[:-1]) == ["Exited", "StreamEof", "StreamEof"]
        assert told[-1] == "Closed"
        late = await collected(child.events())
        assert data_of(late) == b"ac"
        assert data_of(late, "stderr") == b"b"
        sequences = [e.sequence for e in late if isinstance(e, actors.Chunk)]
        assert sequences == [0, 1, 2]
        newest = await collected(child.events("newest"))
        assert data_of(newest) == b""
        middle = await collected(child.events(2))
        assert data_of(middle) == b"c"
        assert kinds(newest)[-1] == "Closed"
        await child.aclose()


async def test_s21_the_end_is_told_before_streams_that_stay_open(
    opened: Opened,
) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(HELPER_HOLDS_PIPES, tag()), leftover="keep")
        told = kinds(await collected(child.events()))
        assert told == [
            "Chunk",
            "Exited",
            "StreamAbandoned",
            "StreamAbandoned",
            "Closed",
        ]
        await child.aclose()


async def test_s21_a_window_of_nothing_or_of_too_much_is_refused(
    opened: Opened,
) -> None:
    async with opened() as engine:
        child = await engine.spawn(["true"])
        for window in (0, -1, 1 << 64):
            with pytest.raises(actors.InvalidRequest) as refused:
                child.events(window=window)
            assert refused.value.field == "window"
        await child.aclose()
    for name in ("window_chunks", "window_bytes"):
        for value in (0, 1 << 64):
            wrong: Any = {name: value}
            with pytest.raises(actors.InvalidRequest) as refused:
                actors.Settings(**wrong)
            assert refused.value.field == f"settings.{name}"


async def test_s21_a_narrow_window_passes_everything(opened: Opened) -> None:
    whole = numbers(5000)
    settings = actors.Settings(window_chunks=1, chunk=512, window_bytes=512)
    async with opened(settings=settings) as engine:
        child = await engine.spawn(program(NUMBERS, tag(), "5000"))
        assert data_of(await collected(child.events())) == whole
        await child.aclose()


async def test_s21_a_slow_reader_stalls_nobody_else(opened: Opened) -> None:
    async with opened() as engine:
        flood = await engine.spawn(program(FLOOD, tag()))
        stalled = flood.events(window=KIB)
        await anext(stalled)
        other = flood.events()
        size = 0
        async for event in other:
            size += len(getattr(event, "data", b""))
            if size > 4 * MIB:
                break
        async with asyncio.timeout(NOT_BLOCKED):
            assert (await engine.run(["echo", "quick"])).stdout == b"quick\n"
            assert (await flood.kill()).survivors == ()
        told = await collected(stalled)
        assert "Gap" in kinds(told)
        assert kinds(told)[-1] == "Closed"
        await other.aclose()
        await flood.aclose()


async def test_s21_closed_streams_do_not_end_a_child(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(
            program(CLOSES_OUTPUT_AND_WORKS, tag()), stdin="pipe"
        )
        stream = child.events()
        assert {kinds([await anext(stream)])[0] for _ in range(2)} == {"StreamEof"}
        assert child.returncode is None
        await child.close_stdin()
        assert kinds(await collected(stream)) == ["Exited", "Closed"]
        await child.aclose()


async def sent(_: Child) -> None:
    """Let a task that was made just now ask."""
    await asyncio.sleep(0)


@pytest.mark.parametrize("moment", [sent, arrived])
async def test_a_cancelled_first_read_of_the_newest_consumes_nothing(
    opened: Opened, moment: Callable[[Child], Awaitable[None]]
) -> None:
    async with opened() as engine:
        child = await engine.spawn(["cat"], stdin="pipe")
        await child.write(b"old")
        await until(child, b"old")
        reader = child.reader(after="newest")
        reading = asyncio.ensure_future(reader.read())
        await moment(child)
        reading.cancel()
        await asyncio.wait([reading])
        await child.write(b"new")
        await until(child, b"new")
        assert (await reader.read()).data == b"new"


async def test_s22_a_reader_that_goes_away_does_not_stop_the_child(
    opened: Opened,
) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(BURST, tag(), str(4 * MIB)))
        events = child.events()
        await anext(events)
        await events.aclose()
        assert (await child.wait(NOT_BLOCKED)).code == 0
        await child.aclose()


async def test_s23_open_pipes_are_left_after_the_grace(opened: Opened) -> None:
    async with opened() as engine:
        for grace, least in ((0, 0.0), (0.4, 0.4), ("default", 0.25)):
            options: Any = {"post_exit_grace": grace, "leftover": "keep"}
            child = await engine.spawn(program(HELPER_HOLDS_PIPES, tag()), **options)
            told = await collected(child.events())
            assert kinds(told).count("StreamAbandoned") == 2
            assert data_of(told) == b"main-done\n"
            status = await child.wait()
            assert status.ended is not None
            passed = time.monotonic() - status.ended
            assert least <= passed < least + 2
            await child.aclose()


async def test_s23_without_a_grace_the_end_of_the_pipes_is_awaited(
    opened: Opened,
) -> None:
    async with opened() as engine:
        child = await engine.spawn(
            program(HELPER_HOLDS_PIPES, tag()), post_exit_grace=None, leftover="keep"
        )
        await child.wait()
        reading = asyncio.ensure_future(collected(child.events()))
        seen = await child.poll(wait=0.4)
        assert (seen.done, seen.state, reading.done()) == (False, "exited", False)
        assert (await child.kill()).survivors == ()
        assert kinds(await reading).count("StreamEof") == 2
        await child.aclose()


async def test_s23_time_with_a_slow_reader_is_no_time_of_grace(opened: Opened) -> None:
    """Neither is what was in the pipe lost, nor is the stream left meanwhile."""
    fills = "forked(rest); write(b'x' * 60000); os._exit(3)"
    async with opened() as engine:
        child = await engine.spawn(
            program(fills, tag()),
            retention=OutputPolicy.block(4 * KIB),
            post_exit_grace=0.1,
            leftover="keep",
        )
        assert (await child.wait(NOT_BLOCKED)).code == 3
        stream = child.events(window=KIB)
        first = await anext(stream)
        assert isinstance(first, actors.Chunk)
        await engine.run(["sleep", "0.4"])  # four times the grace
        told = [first, *await collected(stream)]
        assert data_of(told) == b"x" * 60000
        assert kinds(told)[-3:] == ["StreamAbandoned", "StreamAbandoned", "Closed"]
        await child.aclose()


async def test_s24_everything_written_before_the_end_is_there(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(
            program("write(b'o' * 65536); write(b'e' * 65536, 2); os._exit(1)", tag())
        )
        told = await collected(child.events())
        position = kinds(told).index("Exited")
        assert len(data_of(told[:position])) == 65536
        assert len(data_of(told[:position], "stderr")) == 65536
        await child.aclose()


async def test_s25_output_is_whole_or_says_what_it_lacks(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(
            program(REPEATS_INPUT + "write(b'x' * 8)", tag()), stdin="pipe"
        )
        await child.write(b"before")
        done, again = await asyncio.gather(child.output(), child.output())
        assert done.stdout == again.stdout == b"beforexxxxxxxx"
        assert (await child.output(limit=14)).returncode == 0
        with pytest.raises(actors.OutputLimitExceeded) as over:
            await child.output(limit=13)
        assert (over.value.limit, over.value.stdout) == (13, b"beforexxxxxxx")
        await child.aclose()


async def test_s25_over_its_limit_a_child_is_still_drained_to_its_end(
    opened: Opened,
) -> None:
    word = tag()
    async with opened() as engine:
        with pytest.raises(actors.OutputLimitExceeded) as over:
            await engine.run(program(BURST, word, str(4 * MIB)), limit=1000)
        assert over.value.stdout == burst(1000)
        whole = await engine.run(program(BURST, word, str(4 * MIB)), limit=4 * MIB)
        assert whole.stdout == burst(4 * MIB)
        await asyncio.to_thread(gone, word)


async def test_s25_output_of_a_run_goes_as_it_comes_where_it_is_wanted(
    opened: Opened, tmp_path: Path
) -> None:
    answered, got = tmp_path / "answered", []
    waits = f"""
write(b"out")
while not os.path.exists({str(answered)!r}):
    time.sleep(0.01)
os.write(2, b"err")
"""

    def take(stream: str, data: bytes) -> None:
        got.append((stream, data))
        answered.touch()

    async with opened() as engine:
        done = await engine.run(program(waits, tag()), into=take)
        assert got == [("stdout", b"out"), ("stderr", b"err")]
        assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 0)
        got.clear()
        with pytest.raises(actors.OutputLimitExceeded):
            await engine.run(program(BURST, tag(), str(MIB)), into=take, limit=1000)
        assert b"".join(data for _, data in got) == burst(1000)


@pytest.mark.parametrize("timeout", [None, 30])
@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (OSError(errno.ENOSPC, "full"), OSError),
        (StopIteration(), RuntimeError),  # as out of any coroutine
        (asyncio.CancelledError(), (asyncio.CancelledError, actors.BrokerLost)),
        (GeneratorExit(), GeneratorExit),
    ],
)
async def test_s25_who_refuses_output_of_a_run_ends_it(
    opened: Opened, raised: BaseException, seen: Any, timeout: float | None
) -> None:
    word, asked = tag(), []

    def refuse(stream: str, _: bytes) -> None:
        asked.append(stream)
        raise raised

    async with opened() as engine:
        with pytest.raises(seen):
            await engine.run(program(FLOOD, word), into=refuse, timeout=timeout)
        assert not tagged(word)
        assert (await engine.run(["echo", "on"])).stdout == b"on\n"
    assert asked == ["stdout"]


async def test_s25_what_cannot_take_output_is_refused_at_once(
    opened: Opened, tmp_path: Path
) -> None:
    async def late(_stream: str, _data: bytes) -> None: ...

    wrong: list[Any] = [5, [], False, late]
    async with opened() as engine:
        for into in wrong:
            with pytest.raises(actors.InvalidRequest) as refused:
                await engine.run(["touch", str(tmp_path / "ran")], into=into)
            assert refused.value.field == "into"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["tail", "head_tail", "block"])
@pytest.mark.parametrize("size", [8 * KIB, 256 * KIB])
async def test_s25_a_capture_runs_beside_everything_else(
    opened: Opened, kind: Any, size: int
) -> None:
    async with opened() as engine:
        child = await engine.spawn(
            program("sys.stdin.read()" + BURST, tag(), str(2 * MIB)),
            stdin="pipe",
            retention=OutputPolicy(kind, size),
        )
        events, done, status = await asyncio.gather(
            collected(child.events()),
            child.output(),  # closes stdin, with which the output begins
            child.wait(),
        )
        assert done.stdout == burst(2 * MIB)
        assert done.status == status
        assert kinds(events)[-1] == "Closed"
        await child.aclose()


async def test_s25_what_answers_the_end_of_its_input_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = program("sys.stdin.read()" + BURST, tag(), str(MIB))
    close = actors.Child.close_stdin

    async def close_and_let_it_answer(child: actors.Child) -> None:
        await close(child)
        while (await child.stats()).stdout.produced < MIB:
            await asyncio.sleep(0.01)

    monkeypatch.setattr(actors.Child, "close_stdin", close_and_let_it_answer)
    async with actors.Engine() as engine:
        child = await engine.spawn(
            answers, stdin="pipe", retention=OutputPolicy.tail(1000)
        )
        assert (await child.output()).stdout == burst(MIB)
        await child.aclose()


async def test_s25_a_run_closes_a_pipe_that_nobody_else_can_write_to(
    opened: Opened,
) -> None:
    async with opened() as engine:
        done = await asyncio.wait_for(
            engine.run(["cat"], stdin="pipe"), timeout=NOT_BLOCKED
        )
        assert (done.stdout, done.returncode) == (b"", 0)
        specs = [actors.Spec(["sort"], stdin="pipe"), actors.Spec(["cat"], tty=True)]
        async with engine.map(specs, ordered=True) as results:
            for _ in specs:
                item = await asyncio.wait_for(anext(results), timeout=NOT_BLOCKED)
                assert isinstance(item, actors.Completed)
                assert item.returncode == 0


async def test_s25_a_run_that_is_over_before_its_pipe_is_closed_has_its_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def too_late(_: actors.Child) -> None:
        raise actors.SessionNotFound

    monkeypatch.setattr(actors.Child, "close_stdin", too_late)
    async with actors.Engine() as engine:
        done = await engine.run(["echo", "one"], stdin="pipe")
        assert done.stdout == b"one\n"


async def test_s25_a_kill_ends_a_capture_with_what_there_was(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(REST, tag()), stdin="pipe")
        capturing = asyncio.ensure_future(child.output())
        await until(child, b"ready\n")
        await child.kill()
        done = await capturing
        assert (done.stdout, done.returncode, done.status.cause) == (
            b"ready\n",
            -9,
            "killed",
        )
        await child.aclose()


async def test_s26_a_character_split_over_polls_stays_whole(opened: Opened) -> None:
    text = "aé漢😀z" * 50
    async with opened() as engine:
        for size in (1, 2, 3, 7):
            child = await engine.spawn(
                program(REPEATS_INPUT, tag()), stdin=text.encode()
            )
            await child.wait()
            parts, raw = [], b""
            for _ in itertools.count():
                seen = await child.poll(max_bytes=size)
                assert len(seen.stdout) <= size
                parts.append(seen.text)
                raw += seen.stdout
                if seen.done:
                    break
            assert "".join(parts) == text
            assert raw == text.encode()
            await child.aclose()


async def test_s26_bytes_that_are_no_text_are_counted(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(REPEATS_INPUT, tag()), stdin=b"a\xffb\xc3")
        seen = await child.poll()
        assert (seen.text, seen.undecodable) == ("a\ufffdb\ufffd", 2)
        assert seen.stdout == b"a\xffb\xc3"
        assert seen.chunk_id != (await child.poll()).chunk_id
        await child.aclose()


async def test_s26_the_transcript_has_both_streams_in_their_order(
    opened: Opened,
) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(STEP_BY_STEP, tag()), stdin="pipe")
        stream = child.events()
        for line in (b"1 one\n", b"2 two\n", b"1 three\n"):
            await child.write(line)
            await anext(stream)
        seen = await child.poll(wait=0)
        assert seen.transcript == b"onetwothree"
        assert (seen.stdout, seen.stderr) == (b"onethree", b"two")
        await stream.aclose()
        await child.aclose()
