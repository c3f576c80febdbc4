"""Waiting for what a child says or does, against real children."""

import asyncio
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

import actors
from actors import OutputPolicy
from tests.helpers import NOT_BLOCKED, gone, tag
from tests.live.children import REST, arrived, drained, program

pytestmark = pytest.mark.live

KIB = 1024
SOON = 0.05

TALKS = """
for line in sys.stdin.buffer:
    word = line.rstrip(b"\\n")
    if word == b"bye":
        os._exit(3)
    write(b"<" + word + b">")
"""
"""Puts every line of its input between brackets, without a newline."""

LISTENS = """
import socket
ours = socket.socket(socket.AF_INET6 if sys.argv[2] == "6" else socket.AF_INET)
ours.bind(("", int(sys.argv[3])))
write(b"bound\\n")
os.read(0, 1)
def serve():
    ours.listen()
    rest()
forked(serve)
ours.close()
rest()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


async def talker(engine: actors.Engine, **options: Any) -> actors.Child:
    return await engine.spawn(program(TALKS, tag()), stdin="pipe", **options)


# -- patterns ------------------------------------------------------------------


async def test_expect_goes_from_match_to_match() -> None:
    async with actors.Engine() as engine, await talker(engine) as child:
        await child.write("one\ntwo\n")
        first = await child.expect(r"<(\w+)>", timeout=NOT_BLOCKED)
        assert first == actors.Match(0, b"<one>", (b"one",), b"", 0)
        second = await child.expect(re.compile(b">"), timeout=NOT_BLOCKED)
        assert (second.offset, second.before) == (9, b"<two")
        await child.write("grün\n")
        third = await child.expect("ü+", timeout=NOT_BLOCKED)
        assert (third.offset, third.before) == (13, b"<gr")


async def test_expect_takes_nothing_from_other_readers() -> None:
    async with actors.Engine() as engine, await talker(engine) as child:
        await child.write("one\n")
        await child.expect(">", timeout=NOT_BLOCKED)
        assert (await child.poll(wait=NOT_BLOCKED, mode="output")).stdout == b"<one>"
        await child.write("two\n")
        assert (await child.poll(wait=NOT_BLOCKED, mode="output")).stdout == b"<two>"
        assert (await child.expect("two", timeout=0)).before == b"<"
        await child.write("bye\n")
        assert (await child.output()).stdout == b"<one><two>"


async def test_a_timeout_carries_the_last_output_and_consumes_nothing() -> None:
    async with actors.Engine() as engine, await talker(engine) as child:
        await child.write("one\n")
        await child.expect("<", timeout=NOT_BLOCKED)
        with pytest.raises(actors.TimedOut, match=r"pattern 'two'; .*<one>") as caught:
            await child.expect("two", timeout=SOON)
        assert (caught.value.stdout, caught.value.timeout) == (b"<one>", SOON)
        assert child.returncode is None
        assert (await child.expect("one>", timeout=NOT_BLOCKED)).before == b""


async def test_s56_a_cancelled_expect_consumes_nothing() -> None:
    async with actors.Engine() as engine, await talker(engine) as child:
        waiting = asyncio.ensure_future(child.expect("one", timeout=None))
        await arrived(child)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await child.write("one\n")
        match = await child.expect("one", timeout=NOT_BLOCKED)
        assert (match.offset, match.before) == (1, b"<")


async def test_s56_a_cancelled_expect_is_not_looked_for_any_more() -> None:
    async with actors.Engine() as engine, await talker(engine) as child:
        hopeless = asyncio.ensure_future(child.expect("(0|00)*1$", timeout=None))
        await arrived(child)
        hopeless.cancel()
        await asyncio.wait([hopeless])  # until then it is not taken back
        await child.write("0" * 60 + "\n")
        await child.expect("0{60}", timeout=NOT_BLOCKED)


async def test_several_expects_take_turns_and_keep_their_times() -> None:
    async with actors.Engine() as engine, await talker(engine) as child:
        first = asyncio.ensure_future(child.expect(">", timeout=NOT_BLOCKED))
        second = asyncio.ensure_future(child.expect(">", timeout=NOT_BLOCKED))
        with pytest.raises(actors.TimedOut):
            await child.expect(">", timeout=SOON)
        await child.write("one\ntwo\n")
        assert [m.before for m in await asyncio.gather(first, second)] == [
            b"<one",
            b"<two",
        ]


async def test_the_childs_end_is_told_with_its_status_and_last_words() -> None:
    # A helper keeps stdout open: that it ends tells nothing of how the child did.
    command = program("forked(rest)\n" + TALKS, tag())
    async with (
        actors.Engine() as engine,
        await engine.spawn(command, stdin="pipe") as child,
    ):
        await child.write("one\nbye\n")
        told = r"pattern 'two': the child exited with code 3; stdout ends with b'<one>'"
        with pytest.raises(actors.OutputEnded, match=told) as caught:
            await child.expect("two", timeout=NOT_BLOCKED)
        assert caught.value.stdout == b"<one>"
        assert caught.value.status is not None
        assert caught.value.status.code == 3
        assert (await child.expect("one", timeout=0)).offset == 1
        with pytest.raises(actors.OutputEnded, match="before file '/no/such': "):
            await child.ready(file="/no/such", timeout=NOT_BLOCKED)


async def test_the_streams_end_is_told_while_the_child_goes_on() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program("os.close(1); rest()", tag()))
        with pytest.raises(actors.OutputEnded) as caught:
            await child.expect("x", timeout=NOT_BLOCKED)
        assert caught.value.status is None
        await child.aclose()


async def test_a_killed_childs_expect_ends_and_a_closed_ones_is_refused() -> None:
    async with actors.Engine() as engine:
        for close in (False, True):
            child = await engine.spawn(program(REST, tag()))
            waiting = asyncio.ensure_future(child.expect("x", timeout=None))
            await arrived(child)
            await (child.aclose() if close else child.kill())
            kind = actors.SessionNotFound if close else actors.OutputEnded
            with pytest.raises(kind):
                await waiting
            await child.aclose()


async def test_what_cannot_be_expected_is_refused() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()), stderr="null")
        calls: dict[str, Any] = {
            "pattern": lambda: child.expect("(", timeout=1),
            "stream": lambda: child.expect("x", timeout=1, stream="stderr"),
            "timeout": lambda: child.expect("x", timeout=-1),
            "ready": lambda: child.ready(timeout=1),
            "port": lambda: child.ready(port=70000, timeout=1),
            "file": lambda: child.ready(file="", timeout=1),
        }
        for field, call in calls.items():
            with pytest.raises(actors.InvalidRequest) as caught:
                await call()
            assert caught.value.field == field
        for odd in ("a\0", 5, "x" * 5000, "\ud800"):
            with pytest.raises(actors.InvalidRequest, match="file"):
                await child.ready(file=odd, timeout=1)  # type: ignore[arg-type]
        await child.aclose()


async def test_nothing_escapes_a_pending_expect_however_little_is_kept() -> None:
    flood = "os.read(0, 1)\nfor n in range(3000): write(b'%07d.' % n)"
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(flood, tag()),
            stdin="pipe",
            retention=OutputPolicy.tail(100),
        )
        waiting = asyncio.ensure_future(child.expect(r"0002876\.", timeout=NOT_BLOCKED))
        await arrived(child)
        await child.write("x")
        match = await waiting
        assert (match.offset, match.gap) == (8 * 2876, 0)
        late = await child.expect(r"2999\.$", timeout=NOT_BLOCKED)
        assert late.offset == 8 * 3000 - 5
        await child.aclose()


async def test_an_expect_that_was_overtaken_tells_the_gap() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program("write(b'a' * 5000 + b'b')", tag()),
            retention=OutputPolicy.tail(100),
        )
        await child.wait()
        match = await child.expect("b", timeout=NOT_BLOCKED)
        assert (match.offset, match.gap, match.before) == (5000, 4901, b"a" * 99)
        await child.aclose()


async def test_s20_an_expect_never_stops_a_child_for_good() -> None:
    flood = f"write(b'a' * {200 * KIB} + b'b'); rest()"
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(flood, tag()), retention=OutputPolicy.block(4 * KIB)
        )
        match = await child.expect("b", timeout=NOT_BLOCKED)
        assert (match.offset, match.gap) == (200 * KIB, 0)
        await child.aclose()


async def test_a_pattern_without_end_hangs_its_own_worker_alone() -> None:
    word = tag()
    settings = actors.Settings(kill_timeout=0.3)
    async with actors.Engine(settings=settings) as engine:
        child = await engine.spawn(program("write(b'0' * 40 + b'\\n'); rest()", word))
        await child.ready(pattern="0\n", timeout=NOT_BLOCKED)
        hopeless = asyncio.ensure_future(child.expect("(0|00)*1$", timeout=None))
        await asyncio.sleep(0)
        assert (await engine.run(["echo", "on"])).stdout == b"on\n"
        assert not hopeless.done()
        await child.kill(timeout=0.2)
        with pytest.raises(actors.WorkerLost):
            await hopeless
        assert (await child.wait(NOT_BLOCKED)).cause == "worker-lost"
        await asyncio.to_thread(gone, word)
        await child.aclose()


# -- readiness -----------------------------------------------------------------


@pytest.mark.parametrize("family", ["4", "6"])
async def test_a_port_is_ready_once_the_tree_listens(family: str) -> None:
    port = free_port()
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(LISTENS, tag(), family, str(port)), stdin="pipe"
        )
        await child.expect("bound", timeout=NOT_BLOCKED)
        with pytest.raises(actors.TimedOut, match=f"port {port}; .*bound") as caught:
            await child.ready(port=port, timeout=SOON)
        assert caught.value.stdout == b"bound\n"
        waiting = asyncio.ensure_future(child.ready(port=port, timeout=NOT_BLOCKED))
        await child.write("x")
        await waiting  # it is a grandchild that listens
        await child.aclose()


async def test_another_programs_server_does_not_count() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()))
        with socket.socket() as other:
            other.bind(("", 0))
            other.listen()
            with pytest.raises(actors.TimedOut):
                await child.ready(port=other.getsockname()[1], timeout=SOON)
        await child.aclose()


async def test_a_file_is_looked_for_where_the_child_started(tmp_path: Path) -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()), cwd=tmp_path)
        waiting = [
            asyncio.ensure_future(child.ready(file=file, timeout=NOT_BLOCKED))
            for file in ("up", tmp_path / "up", os.fsencode(tmp_path / "up"))
        ]
        await arrived(child)
        assert not any(wait.done() for wait in waiting)
        (tmp_path / "up").touch()
        await asyncio.gather(*waiting)
        await child.aclose()


async def test_a_ready_pattern_moves_no_cursor() -> None:
    async with actors.Engine() as engine, await talker(engine) as child:
        await child.write("one\n")
        await child.expect("one", timeout=NOT_BLOCKED)
        await child.ready(pattern="^<one", timeout=NOT_BLOCKED)
        assert (await child.expect(">", timeout=NOT_BLOCKED)).before == b""


# -- appended lines ------------------------------------------------------------


async def test_s53_a_line_is_appended_in_its_place_for_every_reader() -> None:
    async with actors.Engine() as engine, await talker(engine) as child:
        await child.write("one\n")
        await child.expect(">", timeout=NOT_BLOCKED)
        await child.append("note: ü")
        await child.append(b"and more\n")
        await child.write("bye\n")
        events = [event async for event in child.events()]
        chunks = [e for e in events if isinstance(e, actors.Chunk)]
        assert b"".join(e.data for e in chunks if e.stream == "stderr") == (
            "note: ü\nand more\n".encode()
        )
        _, last = await drained(child)
        assert last.stderr == "note: ü\nand more\n".encode()
        assert last.transcript.startswith(b"<one>note")
        for text in ("late", "x" * (65 * KIB)):
            with pytest.raises(actors.InvalidRequest, match="text"):
                await child.append(text)


@pytest.mark.parametrize("options", [{"stderr": "stdout"}, {"stderr": "null"}])
async def test_s53_without_stderr_a_line_goes_to_stdout(options: Any) -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()), **options)
        await child.expect("ready\n", timeout=NOT_BLOCKED)
        await child.append("note")
        assert (await child.expect("note\n", timeout=NOT_BLOCKED)).offset == 6
        await child.aclose()


async def test_s53_a_line_without_any_output_is_refused() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()), stdout="null", stderr="null")
        with pytest.raises(actors.InvalidRequest, match="text"):
            await child.append("note")
        await child.aclose()
