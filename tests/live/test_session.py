"""The rules of a session, one by one, against real children."""

import ast
import asyncio
import itertools
import os
import resource
import signal
import time
from typing import Any

import pytest

import actors
from actors import OutputPolicy
from broker import cgroup
from tests.helpers import NOT_BLOCKED, alive, end, eventually, gone, parent, tag, tagged
from tests.live.children import (
    BURST,
    CLOSES_OUTPUT_AND_WORKS,
    DESCRIBES_ITSELF,
    FLOOD,
    HELPER_HOLDS_PIPES,
    LEAVES_POOL,
    NUMBERS,
    REST,
    arrived,
    burst,
    drained,
    engine_processes,
    numbers,
    program,
    until,
)

pytestmark = pytest.mark.live

MIB = 1024 * 1024
KIB = 1024

REPEATS_INPUT = """
while data := os.read(0, 65536):
    write(data)
"""

COUNTS_INPUT = """
total = 0
while data := os.read(0, 65536):
    total += len(data)
write(b"total %d" % total)
"""

STEP_BY_STEP = """
for line in sys.stdin.buffer:
    fd, _, word = line.rstrip(b"\\n").partition(b" ")
    write(word, int(fd))
"""


async def collected(stream: actors.EventStream) -> list[Any]:
    return [event async for event in stream]


def data_of(events: list[Any], stream: str = "stdout") -> bytes:
    return b"".join(
        event.data
        for event in events
        if isinstance(event, actors.Chunk) and event.stream == stream
    )


def kinds(events: list[Any]) -> list[str]:
    return [type(event).__name__ for event in events]


# -- identity, scopes ----------------------------------------------------------


async def test_s1_ids_count_up_from_a_thousand_and_are_never_used_again() -> None:
    async with actors.Engine() as engine:
        seen = []
        for _ in range(5):
            async with await engine.spawn(["true"]) as child:
                seen.append(child.id)
        assert seen[0] >= 1000
        assert seen == sorted(set(seen))


async def test_s1_sessions_of_another_engine_are_absent() -> None:
    async with actors.Engine() as engine, actors.Engine() as other:
        child = await engine.spawn(program(REST, tag()))
        assert await other.children() == []
        [refused] = await other.kill([child.id])
        assert isinstance(refused, actors.SessionNotFound)
        with pytest.raises(actors.InvalidRequest):
            await engine.kill([0])
        with pytest.raises(actors.InvalidRequest):
            await engine.kill([-4])
        assert child.returncode is None
        await child.aclose()


async def test_s2_an_interrupted_first_wait_leaves_the_child_alone() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()))
        for ask in (child.wait, child.poll):
            waiting = asyncio.ensure_future(ask())
            await arrived(child)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert alive(child.pid)
        assert (await child.poll(wait=0)).alive
        await child.aclose()


async def test_s3_children_lists_live_sessions_and_snapshots_consume_nothing() -> None:
    async with actors.Engine() as engine, engine.scope("some") as scope:
        started = [
            await scope.spawn(program(REST, tag()), metadata={"n": str(n)})
            for n in range(3)
        ]
        alone = await engine.spawn(["true"], authority="any")
        await alone.wait()
        for child in started:
            assert (await child.poll(mode="output", max_bytes=1)).stdout == b"r"
        found = await scope.children()
        assert [snapshot.id for snapshot in found] == [child.id for child in started]
        assert [snapshot.metadata["n"] for snapshot in found] == ["0", "1", "2"]
        for snapshot in found:
            assert (snapshot.state, snapshot.scope) == ("running", "some")
            assert snapshot.tail == b"ready\n"
            assert snapshot.status is None
        ended = await alone.snapshot()
        assert ended.status is not None
        assert (ended.status.code, ended.authority) == (0, "any")
        assert (await started[0].poll(mode="output")).stdout == b"eady\n"
        await alone.aclose()
        with pytest.raises(actors.SessionNotFound):
            await alone.snapshot()


async def test_s7_a_scope_ends_all_its_children_and_says_how_many() -> None:
    word = tag()
    async with actors.Engine() as engine:
        scope = engine.scope("one")
        for _ in range(4):
            await scope.spawn(program(REST, word))
        with pytest.raises(actors.InvalidRequest):
            engine.scope("one")
        assert await scope.aclose() == 4
        assert not tagged(word)
        assert await scope.aclose() == 0
        with pytest.raises(actors.SessionNotFound):
            await scope.spawn(["true"])
        async with engine.scope("one"):
            pass


async def test_s7_a_scope_closes_when_what_it_is_bound_to_fires() -> None:
    word = tag()
    async with actors.Engine() as engine:
        for as_task in (False, True):
            event = asyncio.Event()
            task = asyncio.create_task(event.wait())
            scope = engine.scope(cancel=task if as_task else event)
            child = await scope.spawn(program(REST, word))
            event.set()
            async with asyncio.timeout(NOT_BLOCKED):
                assert (await child.wait()).cause == "owner-drop"
            await asyncio.to_thread(gone, word)
            await scope.aclose()


async def test_s7_a_scope_ends_what_it_runs_too() -> None:
    word = tag()
    async with actors.Engine() as engine:
        for kill_first in (False, True):
            async with engine.scope() as scope:
                running = asyncio.create_task(scope.run(program(REST, word)))
                async with asyncio.timeout(NOT_BLOCKED):
                    while not await scope.children():
                        await asyncio.sleep(0)
                if kill_first:
                    (receipt,) = await scope.kill()
                    assert isinstance(receipt, actors.KillReceipt)
                    assert (await running).status.cause == "killed"
            assert not tagged(word)
            if not kill_first:
                with pytest.raises(actors.SessionNotFound):
                    await running
        async with asyncio.timeout(NOT_BLOCKED):
            while (await engine.info()).counts["live"]:
                pass


async def test_s7_a_scope_that_closes_before_a_run_has_begun_starts_nothing() -> None:
    word = tag()
    async with actors.Engine() as engine:
        scope = engine.scope()
        running = asyncio.create_task(scope.run(program(REST, word)))
        await asyncio.sleep(0)  # the spawn is on its way, its answer is not
        assert await scope.aclose() == 0
        with pytest.raises(actors.SessionNotFound):
            await running
        await asyncio.to_thread(gone, word)


async def test_s7_a_scope_knows_no_children_that_were_closed() -> None:
    async with actors.Engine() as engine, engine.scope() as scope:
        for _ in range(3):
            async with await scope.spawn(["true"]) as child:
                await child.wait()
        assert await scope.kill() == []
        assert await scope.aclose() == 0


async def test_s7_an_exception_ends_the_scope_and_passes() -> None:
    word = tag()
    async with actors.Engine() as engine:

        async def fail() -> None:
            async with engine.scope() as scope:
                await scope.spawn(program(REST, word))
                raise KeyError("mine")

        with pytest.raises(KeyError):
            await fail()
        assert not tagged(word)


# -- the start -----------------------------------------------------------------


async def test_s10_texts_bytes_and_paths_make_a_command(tmp_path: Any) -> None:
    async with actors.Engine() as engine:
        done = await engine.run(["printf", b"%s|", tmp_path, "x"])
        assert done.stdout == f"{tmp_path}|x|".encode()
        done = await engine.run("echo $((6 * 7)); exit 4", shell=True)
        assert (done.stdout, done.returncode) == (b"42\n", 4)
        assert (await engine.run(["sh", "-c", "echo $0"], arg0="me")).text == "me\n"


async def test_s13_standard_streams_are_what_was_asked() -> None:
    says = "write(b'out'); write(b'err', 2); sys.exit(len(os.read(0, 9)))"
    async with actors.Engine() as engine:

        async def run(**options: Any) -> tuple[bytes, bytes, int | None]:
            done = await engine.run(program(says), **options)
            return done.stdout, done.stderr, done.returncode

        assert await run() == (b"out", b"err", 0)
        assert await run(stderr="stdout") == (b"outerr", b"", 0)
        assert await run(stderr="null") == (b"out", b"", 0)
        assert await run(stdout="null") == (b"", b"err", 0)
        assert await run(stdin=b"four") == (b"out", b"err", 4)
        assert await run(input="fünf") == (b"out", b"err", 5)
        assert await run(stdout="null", stderr="stdout") == (b"", b"", 0)


async def test_s14_a_child_leads_a_session_with_three_descriptors(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    umask = os.umask(0o027)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        async with actors.Engine() as engine:

            async def told(**options: Any) -> dict[str, Any]:
                done = await engine.run(program(DESCRIBES_ITSELF), **options)
                found: dict[str, Any] = ast.literal_eval(done.text)
                return found

            state = await told()
            assert state["sid"] == state["pgid"] == state["pid"]
            assert state["fds"] == [0, 1, 2]
            assert int(state["blocked"], 16) == 0
            assert state["umask"] == "0027"
            assert state["cwd"] == str(tmp_path)
            assert tuple(state["nofile"]) == (soft, hard)
            assert state["nice"] == os.getpriority(os.PRIO_PROCESS, 0)
            os.umask(0o077)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 10, hard))
            state = await told(cwd="below", limits=actors.Limits(nice=5))
            assert state["umask"] == "0077"
            assert state["cwd"] == str(tmp_path / "below")
            assert tuple(state["nofile"]) == (soft - 10, hard)
            assert state["nice"] == 5
    finally:
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_s16_a_retried_start_gives_the_same_child() -> None:
    word = tag()
    async with actors.Engine() as engine, engine.scope() as scope:
        command = program(REST, word)
        first, second = await asyncio.gather(
            scope.spawn(command, request_id="once"),
            scope.spawn(command, request_id="once"),
        )
        third = await scope.spawn(command, request_id="once")
        assert first.id == second.id == third.id
        assert tagged(word) == [first.pid]


async def test_s16_a_retry_of_a_cancelled_start_never_starts_anything() -> None:
    word = tag()
    async with actors.Engine() as engine:
        command = program(REST, word)
        spawning = asyncio.ensure_future(engine.spawn(command, request_id="once"))
        await asyncio.sleep(0)
        spawning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await spawning
        with pytest.raises(actors.InvalidRequest) as refused:
            await engine.spawn(command, request_id="once")
        assert refused.value.field == "request_id"
        await asyncio.to_thread(gone, word)


# -- output --------------------------------------------------------------------


async def test_s18_readers_of_every_kind_take_nothing_from_each_other() -> None:
    count = 20_000
    whole = numbers(count)
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(NUMBERS, tag(), str(count)), retention=OutputPolicy("block", 65536)
        )
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


async def test_s18_two_pollers_queue_up() -> None:
    async with actors.Engine() as engine:
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
async def test_s19_nothing_goes_missing_unsaid(kind: Any) -> None:
    size, whole = 64 * KIB, burst(MIB)
    async with actors.Engine() as engine:
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


async def test_s20_tail_keeps_the_newest_and_head_tail_both_ends() -> None:
    whole, size = burst(MIB), 64 * KIB + 1
    async with actors.Engine() as engine:
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


async def test_s20_block_holds_the_child_until_its_slowest_reader_has_read() -> None:
    size = 64 * KIB
    async with actors.Engine() as engine:
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


async def test_s20_output_is_drained_when_the_last_reader_goes_away() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(BURST, tag(), str(MIB)), retention=OutputPolicy("block", 64 * KIB)
        )
        async with child.events() as events:
            async for _ in events:
                break
        assert (await child.wait(NOT_BLOCKED)).code == 0
        await child.aclose()


async def test_s21_events_come_in_order_and_closed_is_last() -> None:
    async with actors.Engine() as engine:
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


async def test_s21_a_slow_reader_stalls_nobody_else() -> None:
    async with actors.Engine() as engine:
        flood = await engine.spawn(program(FLOOD, tag()))
        stalled = flood.events(window=KIB)
        await anext(stalled)
        other = flood.events()
        size = 0
        async for event in other:
            size += len(getattr(event, "data", b""))
            if size > 4 * MIB:
                break
        async with asyncio.timeout(2):
            assert (await engine.run(["echo", "quick"])).stdout == b"quick\n"
            assert (await flood.kill()).survivors == ()
        told = await collected(stalled)
        assert "Gap" in kinds(told)
        assert kinds(told)[-1] == "Closed"
        await other.aclose()
        await flood.aclose()


async def test_s22_a_reader_that_goes_away_does_not_stop_the_child() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(BURST, tag(), str(4 * MIB)))
        events = child.events()
        await anext(events)
        await events.aclose()
        assert (await child.wait(NOT_BLOCKED)).code == 0
        await child.aclose()


async def test_s23_open_pipes_are_left_after_the_grace() -> None:
    async with actors.Engine() as engine:
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


async def test_s23_without_a_grace_the_end_of_the_pipes_is_awaited() -> None:
    async with actors.Engine() as engine:
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


async def test_s24_everything_written_before_the_end_is_there() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program("write(b'o' * 65536); write(b'e' * 65536, 2); os._exit(1)", tag())
        )
        told = await collected(child.events())
        position = kinds(told).index("Exited")
        assert len(data_of(told[:position])) == 65536
        assert len(data_of(told[:position], "stderr")) == 65536
        await child.aclose()


async def test_s25_output_is_whole_or_says_what_it_lacks() -> None:
    async with actors.Engine() as engine:
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


async def test_s25_over_its_limit_a_child_is_still_drained_to_its_end() -> None:
    word = tag()
    async with actors.Engine() as engine:
        with pytest.raises(actors.OutputLimitExceeded) as over:
            await engine.run(program(BURST, word, str(4 * MIB)), limit=1000)
        assert over.value.stdout == burst(1000)
        whole = await engine.run(program(BURST, word, str(4 * MIB)), limit=4 * MIB)
        assert whole.stdout == burst(4 * MIB)
        await asyncio.to_thread(gone, word)


@pytest.mark.parametrize("kind", ["tail", "head_tail", "block"])
@pytest.mark.parametrize("size", [8 * KIB, 256 * KIB])
async def test_s25_a_capture_runs_beside_everything_else(kind: Any, size: int) -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(BURST, tag(), str(2 * MIB)), retention=OutputPolicy(kind, size)
        )
        done, events, status = await asyncio.gather(
            child.output(), collected(child.events()), child.wait()
        )
        assert done.stdout == burst(2 * MIB)
        assert done.status == status
        assert kinds(events)[-1] == "Closed"
        await child.aclose()


async def test_s26_a_character_split_over_polls_stays_whole() -> None:
    text = "aé漢😀z" * 50
    async with actors.Engine() as engine:
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


async def test_s26_bytes_that_are_no_text_are_counted() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REPEATS_INPUT, tag()), stdin=b"a\xffb\xc3")
        seen = await child.poll()
        assert (seen.text, seen.undecodable) == ("a\ufffdb\ufffd", 2)
        assert seen.stdout == b"a\xffb\xc3"
        await child.aclose()


async def test_s26_the_transcript_has_both_streams_in_their_order() -> None:
    async with actors.Engine() as engine:
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


# -- polls ---------------------------------------------------------------------


async def test_s27_a_poll_with_input_returns_what_came_back() -> None:
    async with actors.Engine() as engine:
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


async def test_s27_output_mode_waits_for_a_moment_of_quiet() -> None:
    drips = "\nfor _ in range(5):\n    write(b'.'); time.sleep(0.01)\nrest()"
    async with actors.Engine() as engine:
        child = await engine.spawn(program(drips, tag()))
        assert (await child.poll(mode="output", wait=5)).stdout == b"....."
        await child.aclose()


async def test_s27_completion_waits_for_the_end_or_the_deadline() -> None:
    async with actors.Engine() as engine:
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


async def test_s29_a_yield_ends_a_poll_early_and_leaves_the_child_alone() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()))
        events = child.events()
        await anext(events)
        stop = asyncio.Event()
        waiting = asyncio.ensure_future(child.poll(wait=30, yield_on=stop))
        await arrived(child)
        assert not waiting.done()
        stop.set()
        async with asyncio.timeout(2):
            seen = await waiting
        assert (seen.stdout, seen.alive, seen.done) == (b"ready\n", True, False)
        assert (await child.poll(wait=0)).stdout == b""
        await events.aclose()
        await child.aclose()


async def test_s29_a_cancelled_poll_consumes_nothing() -> None:
    async with actors.Engine() as engine:
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


async def test_s30_the_deadline_holds_under_a_flood() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(FLOOD, tag()))
        for _ in range(3):
            started = time.monotonic()
            seen = await child.poll(wait=0.3)
            assert 0.25 < time.monotonic() - started < 2
            assert seen.stdout
            assert seen.alive
        await child.aclose()


# -- input ---------------------------------------------------------------------


async def test_s33_a_write_answers_when_its_bytes_are_in_the_pipe() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(COUNTS_INPUT, tag()), stdin="pipe")
        assert await child.write(b"") == actors.WriteResult(0, "running")
        assert await child.write("é") == actors.WriteResult(2, "running")
        assert (await child.write(b"x" * 5 * MIB)).accepted == 5 * MIB
        await child.close_stdin()
        assert (await drained(child))[0] == b"total %d" % (5 * MIB + 2)
        await child.aclose()


async def test_s33_an_offset_makes_a_retried_write_harmless() -> None:
    async with actors.Engine() as engine:
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


async def test_s33_a_full_pipe_makes_only_its_writer_wait() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()), stdin="pipe")
        writing = asyncio.ensure_future(child.write(b"x" * 4 * MIB))
        await until(child, b"ready\n")
        async with asyncio.timeout(2):
            assert (await child.snapshot()).state == "running"
            assert (await engine.run(["cat"], input=b"i")).stdout == b"i"
        assert not writing.done()
        await child.kill()
        assert (await writing).state == "ended"
        await child.aclose()


async def test_s34_input_is_refused_where_there_is_no_stdin() -> None:
    async with actors.Engine() as engine:
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


async def test_s34_a_write_cut_by_the_end_says_how_much_went_in() -> None:
    leaves = "os.read(0, 1000); write(b'bye'); os._exit(0)"
    async with actors.Engine() as engine:
        for size in (200_000, 4 * MIB):
            child = await engine.spawn(program(leaves, tag()), stdin="pipe")
            written = await child.write(b"x" * size)
            assert written.state == "ended"
            assert 1000 <= written.accepted < 200_000
            assert (await drained(child))[0] == b"bye"
            await child.aclose()


async def test_s35_closing_stdin_is_harmless_to_repeat_and_waits_for_nobody() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program("write(b'up'); signal.pause()", tag()), stdin="pipe"
        )
        await until(child, b"up")
        writing = asyncio.ensure_future(child.write(b"x" * 4 * MIB))
        await arrived(child)
        async with asyncio.timeout(2):
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


# -- ending --------------------------------------------------------------------


async def test_s36_a_receipt_counts_what_was_killed() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, word))
        assert await child.kill() == actors.KillReceipt(1, 1, ())
        assert (await child.kill()).signalled == 0
        assert (await child.wait()).cause == "killed"
        await child.aclose()
        with pytest.raises(actors.SessionNotFound):
            await child.kill()
        done = await engine.spawn(["true"])
        await done.wait()
        assert (await done.kill()).signalled == 0
        await done.aclose()


async def test_s36_terminate_is_polite_and_then_kills() -> None:
    polite = "signal.signal(15, lambda *_: os._exit(3)); write(b'up'); rest()"
    stubborn = "signal.signal(15, signal.SIG_IGN); write(b'up'); rest()"
    async with actors.Engine() as engine:
        child = await engine.spawn(program(polite, tag()))
        await until(child, b"up")
        await child.terminate(NOT_BLOCKED)
        assert (await child.wait()).code == 3
        await child.aclose()
        child = await engine.spawn(program(stubborn, tag()))
        await until(child, b"up")
        started = time.monotonic()
        await child.terminate(0.3)
        assert 0.3 <= time.monotonic() - started < 3
        status = await child.wait()
        assert (status.signal, status.cause) == (9, "killed")
        await child.aclose()


async def test_s36_signals_go_to_the_child_or_to_its_group() -> None:
    pair = """
signal.signal(signal.SIGUSR1, lambda *_: write(b"u"))
forked(lambda: (write(b"up"), rest()))
rest()
"""
    async with actors.Engine() as engine:
        child = await engine.spawn(program(pair, tag()))
        await until(child, b"up")
        assert await child.signal(signal.SIGUSR1)
        await until(child, b"u")
        assert await child.signal(signal.SIGUSR1, group=True)
        assert await until(child, b"uu") == b"uu"
        with pytest.raises(actors.InvalidRequest):
            await child.signal(999)
        await child.kill()
        assert not await child.signal(signal.SIGUSR1)
        assert not await child.interrupt()
        await child.aclose()


async def test_s36_a_pending_poll_of_a_killed_child_has_its_tail() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()))
        waiting = asyncio.ensure_future(child.poll(wait=30))
        await asyncio.to_thread(eventually, lambda: alive(child.pid))
        reader = child.reader()
        await reader.read()
        await child.kill()
        seen = await waiting
        assert (seen.stdout, seen.done, seen.exit_code) == (b"ready\n", True, -9)
        await reader.aclose()
        await child.aclose()


async def test_s36_a_pending_poll_of_a_closed_child_is_refused() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()))
        waiting = asyncio.ensure_future(child.poll(wait=30))
        await arrived(child)
        await child.aclose()
        with pytest.raises(actors.SessionNotFound):
            await waiting


async def test_s37_nothing_blocks_a_kill() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(FLOOD, tag()), stdin="pipe", retention=OutputPolicy("block", KIB)
        )
        stalled = child.events(window=KIB)
        writing = asyncio.ensure_future(child.write(b"x" * 4 * MIB))
        await anext(stalled)
        async with asyncio.timeout(2):
            assert (await child.kill()).survivors == ()
        assert (await writing).state == "ended"
        assert kinds(await collected(stalled))[-1] == "Closed"
        await child.aclose()


async def test_s39_a_status_says_how_and_when_a_child_ended() -> None:
    burns = "\nwhile time.process_time() < 0.1: pass\nrest() if sys.argv[2:] else 0"
    async with actors.Engine() as engine:
        before = time.monotonic()
        child = await engine.spawn(program(burns, tag()))
        early = [asyncio.ensure_future(child.wait()) for _ in range(5)]
        statuses = await asyncio.gather(*early)
        statuses += [await child.wait(), await child.wait(0)]
        assert len(set(statuses)) == 1
        status = statuses[0]
        assert (status.code, status.signal, status.core) == (0, None, False)
        assert (status.cause, status.ok, status.returncode) == ("exited", True, 0)
        assert 0.09 < status.usage.user + status.usage.sys < 5
        assert MIB < status.usage.max_rss < 200 * MIB
        assert status.started is not None
        assert status.execed is not None
        assert status.ended is not None
        assert before <= status.started <= status.execed <= status.ended
        assert status.ended <= time.monotonic()
        assert status.wall_time == pytest.approx(status.ended - status.started)
        assert status.leftovers == ()
        await child.aclose()
        assert (await child.wait()) == status


async def test_s39_an_interrupt_is_told_from_a_kill() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(["sleep", "100"])
        assert await child.interrupt()
        status = await child.wait(NOT_BLOCKED)
        assert (status.signal, status.cause) == (signal.SIGINT, "interrupted")
        await child.kill()
        assert (await child.wait()).cause == "interrupted"
        await child.aclose()


async def test_s39_a_timeout_is_told_as_the_cause() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()), timeout=0.3)
        status = await child.wait(NOT_BLOCKED)
        assert (status.cause, status.signal) == ("timeout", 15)
        await child.aclose()
        drips = "for _ in range(5):\n    time.sleep(0.2); write(b'.')\nrest()"
        child = await engine.spawn(program(drips, tag()), idle_timeout=0.7)
        status = await child.wait(NOT_BLOCKED)
        assert (status.cause, status.signal) == ("timeout", 15)
        assert status.wall_time > 1.5
        assert (await drained(child))[0] == b"....."
        await child.aclose()


async def test_s39_the_return_code_turns_without_a_call() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(["sh", "-c", "exit 5"])
        async with asyncio.timeout(NOT_BLOCKED):
            while child.returncode is None:
                await asyncio.sleep(0.01)
        assert (child.returncode, child.ended) == (5, True)
        await child.aclose()


async def test_s41_a_scope_and_a_list_are_killed_at_once() -> None:
    word = tag()
    async with actors.Engine() as engine, engine.scope() as scope:
        children = [await scope.spawn(program(REST, word)) for _ in range(5)]
        ids = [child.id for child in children]
        async with asyncio.timeout(5):
            receipts = await engine.kill([*ids[:2], 999_999])
        assert receipts[:2] == [actors.KillReceipt(1, 1, ())] * 2
        assert isinstance(receipts[2], actors.SessionNotFound)
        receipts = await scope.kill()
        assert receipts[-3:] == [actors.KillReceipt(1, 1, ())] * 3
        assert not tagged(word)
        assert {(await child.wait()).cause for child in children} == {"killed"}


# -- cancellation and time -----------------------------------------------------


async def test_s56_cancelled_observers_consume_nothing() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(STEP_BY_STEP, tag()), stdin="pipe")
        reader, events = child.reader(), child.events()
        for ask in (reader.read, child.wait, child.poll, lambda: anext(events)):
            waiting = asyncio.ensure_future(ask())
            await arrived(child)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await child.write(b"1 kept\n")
        assert (await reader.read()).data == b"kept"
        event = await anext(events)
        assert isinstance(event, actors.Chunk)
        assert event.data == b"kept"
        assert (await child.poll(wait=0)).stdout == b"kept"
        assert child.returncode is None
        await reader.aclose()
        await events.aclose()
        await child.aclose()


async def test_s56_a_cancelled_kill_goes_on() -> None:
    stubborn = "signal.signal(15, signal.SIG_IGN); write(b'up'); rest()"
    async with actors.Engine() as engine:
        child = await engine.spawn(program(stubborn, tag()))
        await until(child, b"up")
        ending = asyncio.ensure_future(child.terminate(0.2))
        await arrived(child)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert (await child.wait(NOT_BLOCKED)).signal == 9
        await child.aclose()


async def test_s56_a_wait_times_out_and_never_kills() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()))
        for timeout in (0, 0.1):
            with pytest.raises(actors.TimedOut) as late:
                await child.wait(timeout)
            assert isinstance(late.value, TimeoutError)
            assert late.value.timeout == timeout
        assert alive(child.pid)
        await child.aclose()


async def test_s56_a_run_times_out_with_the_output_so_far() -> None:
    word = tag()
    async with actors.Engine() as engine:
        with pytest.raises(actors.TimedOut) as late:
            await engine.run(program(REST, word), timeout=1.0)
        assert late.value.stdout == b"ready\n"
        assert late.value.timeout == 1.0
        await asyncio.to_thread(gone, word)
        done = await engine.run(["echo", "in time"], timeout=NOT_BLOCKED)
        assert done.stdout == b"in time\n"


async def test_s56_check_raises_with_code_and_output() -> None:
    async with actors.Engine() as engine:
        with pytest.raises(actors.CommandFailed) as failed:
            await engine.run("echo out; echo err >&2; exit 3", shell=True, check=True)
        assert failed.value.returncode == 3
        assert (failed.value.stdout, failed.value.stderr) == (b"out\n", b"err\n")
        with pytest.raises(actors.CommandFailed) as failed:
            await engine.run("kill -9 $$", shell=True, check=True)
        assert failed.value.returncode == -9
        assert (await engine.run(["true"], check=True)).returncode == 0


async def test_s45_other_sessions_go_on_streaming_when_a_worker_is_lost() -> None:
    count = 20_000
    async with actors.Engine() as engine:
        victim = await engine.spawn(program(REST, tag()))
        child = await engine.spawn(
            program(NUMBERS, tag(), str(count)), retention=OutputPolicy("block", 65536)
        )
        reading = asyncio.ensure_future(collected(child.events()))
        end([parent(victim.pid)])
        assert (await victim.wait(NOT_BLOCKED)).cause == "worker-lost"
        assert data_of(await reading) == numbers(count)
        await victim.aclose()
        await child.aclose()


async def test_s40_leftovers_are_killed_kept_or_reported() -> None:
    async with actors.Engine() as engine:
        for leftover, left in (("kill", 0), ("keep", 3), ("report", 3)):
            word = tag()
            options: Any = {"leftover": leftover}
            child = await engine.spawn(program(LEAVES_POOL, word), **options)
            status = await child.wait(NOT_BLOCKED)
            assert len(status.leftovers) == 3
            if left == 0:
                await asyncio.to_thread(gone, word)
            else:
                with pytest.raises(AssertionError):
                    await asyncio.to_thread(gone, word, 0.6)
            await child.aclose()
            assert not tagged(word)


async def test_closed_streams_do_not_end_a_child() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(CLOSES_OUTPUT_AND_WORKS, tag()), stdin="pipe"
        )
        stream = child.events()
        assert {kinds([await anext(stream)])[0] for _ in range(2)} == {"StreamEof"}
        assert child.returncode is None
        assert len(engine_processes(engine)["broker"]) == 1
        await child.close_stdin()
        assert kinds(await collected(stream)) == ["Exited", "Closed"]
        await child.aclose()


async def test_s42_a_collected_child_is_forgotten_by_its_engine() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(["true"])
        await child.wait()
        connection = engine._opened
        assert connection is not None
        assert list(connection.records) == [child.id]
        with pytest.warns(ResourceWarning, match="never closed"):
            del child
        await engine.info()
        assert not connection.records


async def test_s17_a_timeout_of_months_is_as_good_as_one_of_seconds() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(REST, tag()), stdin="pipe", timeout=1e7, idle_timeout=1e9
        )
        assert (await child.poll(mode="output")).stdout == b"ready\n"
        reading = asyncio.ensure_future(child.reader(after="newest").read(wait=1e8))
        assert (await child.snapshot()).state == "running"
        assert (await child.kill()).survivors == ()
        assert (await reading).eof
        assert (await child.wait()).cause == "killed"
        await child.aclose()


async def test_asking_for_information_does_not_move_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A probe for cgroups does, and this program may fork at any time."""
    monkeypatch.setattr(cgroup, "probe", lambda: pytest.fail("probed"))
    async with actors.Engine() as engine:
        info = await engine.info()
        assert info.versions["creche"] == actors.__version__
        assert info.versions.keys() > {"wire", "kernel", "python", "zmq"}


async def test_s10_arguments_of_calls_are_refused_by_their_names() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(["cat"], stdin="pipe")
        reader = child.reader()
        word: Any = "1"
        nothing: Any = None
        calls: list[tuple[str, Any]] = [
            ("wait", lambda: child.poll(wait=word)),
            ("wait", lambda: child.poll(wait=float("nan"))),
            ("max_bytes", lambda: child.poll(max_bytes=0)),
            ("window", lambda: child.events(window=-1)),
            ("after", lambda: child.events(after=nothing)),
            ("after", lambda: child.events(after=-1)),
            ("after", lambda: child.reader(after=True)),
            ("limit", lambda: child.output(limit=-1)),
            ("at", lambda: child.write("x", at=word)),
            ("timeout", lambda: child.wait(timeout=-1)),
            ("timeout", lambda: child.kill(timeout=word)),
            ("timeout", lambda: child.kill(timeout=float("inf"))),
            ("grace", lambda: child.terminate(grace=-1)),
            ("max_bytes", lambda: reader.read(max_bytes=0)),
            ("wait", lambda: reader.read(wait=float("inf"))),
            ("timeout", lambda: engine.run(["true"], timeout=word)),
            ("limit", lambda: engine.run(["true"], limit=word)),
            ("request_id", lambda: engine.spawn(["true"], request_id="x" * 129)),
            ("request_id", lambda: engine.spawn(["true"], request_id="")),
        ]
        for field, call in calls:
            with pytest.raises(actors.InvalidRequest) as refused:
                await call()
            assert refused.value.field == field
        assert (await child.poll("x", wait=float("inf"))).stdout == b"x"
        await child.aclose()
