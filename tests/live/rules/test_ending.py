"""How a child ends, and how that is told."""

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import actors
from actors import OutputPolicy
from actors.connection import Connection
from tests.helpers import NOT_BLOCKED, alive, eventually, gone, tag, tagged
from tests.live.children import (
    FLOOD,
    KIB,
    LEAVES_POOL,
    MIB,
    REST,
    Opened,
    arrived,
    collected,
    drained,
    kinds,
    program,
    until,
)

pytestmark = pytest.mark.live


async def test_s36_a_receipt_counts_what_was_killed(opened: Opened) -> None:
    word = tag()
    async with opened() as engine:
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


async def test_s36_terminate_is_polite_and_then_kills(opened: Opened) -> None:
    polite = "signal.signal(15, lambda *_: os._exit(3)); write(b'up'); rest()"
    stubborn = "signal.signal(15, signal.SIG_IGN); write(b'up'); rest()"
    async with opened() as engine:
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


async def test_s36_signals_go_to_the_child_or_to_its_group(opened: Opened) -> None:
    pair = """
signal.signal(signal.SIGUSR1, lambda *_: write(b"u"))
forked(lambda: (write(b"up"), rest()))
rest()
"""
    async with opened() as engine:
        child = await engine.spawn(program(pair, tag()))
        await until(child, b"up")
        assert await child.signal(signal.SIGUSR1)
        await until(child, b"u")
        assert await child.signal(signal.SIGUSR1, group=True)
        assert await until(child, b"uu") == b"uu"
        odds: tuple[Any, ...] = (999, True, "TERM", [15])
        for odd in odds:
            with pytest.raises(actors.InvalidRequest, match="number"):
                await child.signal(odd)
        await child.kill()
        assert not await child.signal(signal.SIGUSR1)
        assert not await child.interrupt()
        await child.aclose()


async def test_s36_a_pending_poll_of_a_killed_child_has_its_tail(
    opened: Opened,
) -> None:
    async with opened() as engine:
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


async def test_s36_a_pending_poll_of_a_closed_child_is_refused(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(REST, tag()))
        waiting = asyncio.ensure_future(child.poll(wait=30))
        await arrived(child)
        await child.aclose()
        with pytest.raises(actors.SessionNotFound):
            await waiting


async def test_s37_nothing_blocks_a_kill(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(
            program(FLOOD, tag()), stdin="pipe", retention=OutputPolicy("block", KIB)
        )
        stalled = child.events(window=KIB)
        writing = asyncio.ensure_future(child.write(b"x" * 4 * MIB))
        await anext(stalled)
        async with asyncio.timeout(NOT_BLOCKED):
            assert (await child.kill()).survivors == ()
        assert (await writing).state == "ended"
        assert kinds(await collected(stalled))[-1] == "Closed"
        await child.aclose()


async def test_s37_nothing_blocks_what_steers_a_child(opened: Opened) -> None:
    """Not a full stdin, a flood, a stalled reader, nor a capture that runs."""
    floods = """
signal.signal(signal.SIGUSR1, lambda *_: os._exit(5))
while True:
    write(b"f" * 65536)
"""
    async with opened() as engine, engine.scope() as scope:
        child = await scope.spawn(
            program(floods, tag()), stdin="pipe", retention=OutputPolicy.block(KIB)
        )
        stalled = child.events(window=KIB)
        writing = asyncio.ensure_future(child.write(b"x" * 4 * MIB))
        await anext(stalled)
        async with asyncio.timeout(NOT_BLOCKED):
            assert (await child.snapshot()).state == "running"
            assert not writing.done()
            capturing = asyncio.ensure_future(child.output(limit=10))
            assert (await writing).accepted < 4 * MIB  # a capture closes stdin first
            await child.close_stdin()
            assert await child.signal(signal.SIGUSR1)
            assert (await child.wait()).code == 5
            assert await scope.aclose() == 1
        with pytest.raises(actors.SessionNotFound):
            await capturing
        await stalled.aclose()


async def test_s37_nothing_blocks_a_resize() -> None:
    floods = "signal.signal(signal.SIGWINCH, lambda *_: os._exit(6))\n" + FLOOD
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(floods, tag()), tty=True, retention=OutputPolicy.block(KIB)
        )
        stalled = child.events(window=KIB)
        await anext(stalled)
        writing = asyncio.ensure_future(child.write(b"a line\n" * 100_000))
        await arrived(child)
        assert not writing.done()
        async with asyncio.timeout(NOT_BLOCKED):
            await child.resize(50, 100)
            assert (await writing).state == "ended"
            assert (await child.wait()).code == 6
        await stalled.aclose()
        await child.aclose()


async def test_s38_what_a_killed_child_wrote_is_still_drained(
    opened: Opened, tmp_path: Path
) -> None:
    written = tmp_path / "written"
    writes = f"write(b'x' * 50000); open({str(written)!r}, 'w'); rest()"
    async with opened() as engine:
        child = await engine.spawn(
            program(writes, tag()), retention=OutputPolicy.block(KIB)
        )
        first = await child.poll(mode="output", max_bytes=1, wait=NOT_BLOCKED)
        await asyncio.to_thread(eventually, written.exists)
        assert (await child.kill()).survivors == ()
        rest, last = await drained(child)
        assert first.stdout + rest == b"x" * 50000
        assert last.exit_code == -9
        await child.aclose()


async def test_s39_a_status_says_how_and_when_a_child_ended(opened: Opened) -> None:
    burns = "\nwhile time.process_time() < 0.1: pass\nrest() if sys.argv[2:] else 0"
    async with opened() as engine:
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
        assert status.usage.voluntary + status.usage.involuntary > 0
        assert status.started is not None
        assert status.execed is not None
        assert status.ended is not None
        assert before <= status.started <= status.execed <= status.ended
        assert status.ended <= time.monotonic()
        assert status.wall_time == pytest.approx(status.ended - status.started)
        assert status.leftovers == ()
        await child.aclose()
        assert (await child.wait()) == status


async def test_s39_an_interrupt_is_told_from_a_kill(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(["sleep", "100"])
        assert await child.interrupt()
        status = await child.wait(NOT_BLOCKED)
        assert (status.signal, status.cause) == (signal.SIGINT, "interrupted")
        await child.kill()
        assert (await child.wait()).cause == "interrupted"
        await child.aclose()


async def test_s39_a_timeout_is_told_as_the_cause(opened: Opened) -> None:
    async with opened() as engine:
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


async def test_a_run_is_ended_within_the_times_of_its_settings(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float | None, float]] = []
    end = Connection.end

    def noted(
        self: Connection, number: int, grace: float | None, timeout: float, **how: bool
    ) -> Any:
        asked.append((grace, timeout))
        return end(self, number, grace, timeout, **how)

    def refuse(stream: str, data: bytes) -> None:
        raise LookupError

    monkeypatch.setattr(Connection, "end", noted)
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " + REST
    settings = actors.Settings(terminate_grace=0.25, kill_timeout=NOT_BLOCKED)
    async with opened(settings=settings) as engine:
        with pytest.raises(actors.TimedOut):
            await engine.run(program(stubborn, tag()), timeout=0.1)
        assert asked.pop() == (0.25, NOT_BLOCKED)
        with pytest.raises(LookupError):
            await engine.run(program(REST, tag()), into=refuse)
        assert asked.pop() == (None, NOT_BLOCKED)


async def test_s39_the_return_code_turns_without_a_call(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(["sh", "-c", "exit 5"])
        async with asyncio.timeout(NOT_BLOCKED):
            while child.returncode is None:
                await asyncio.sleep(0.01)
        assert (child.returncode, child.ended) == (5, True)
        await child.aclose()


async def test_s39_only_a_death_by_an_asked_interrupt_is_one(opened: Opened) -> None:
    handles = "signal.signal(2, lambda *_: os._exit(4)); write(b'up'); rest()"
    async with opened() as engine:
        child = await engine.spawn(program(handles, tag()))
        await until(child, b"up")
        await child.interrupt()
        status = await child.wait(NOT_BLOCKED)
        assert (status.code, status.cause) == (4, "exited")
        await child.aclose()
        child = await engine.spawn(["sleep", "100"])
        await child.signal(signal.SIGINT)
        status = await child.wait(NOT_BLOCKED)
        assert (status.signal, status.cause) == (signal.SIGINT, "exited")
        await child.aclose()


async def test_s40_leftovers_are_killed_kept_or_reported(opened: Opened) -> None:
    async with opened() as engine:

        async def leave(leftover: Any, left: int) -> None:
            word = tag()
            child = await engine.spawn(program(LEAVES_POOL, word), leftover=leftover)
            status = await child.wait(NOT_BLOCKED)
            assert len(status.leftovers) == 3
            if left == 0:
                await asyncio.to_thread(gone, word)
            else:
                with pytest.raises(AssertionError):
                    await asyncio.to_thread(gone, word, 0.6)
                assert len(tagged(word)) == left
            await child.aclose()
            assert not tagged(word)

        await asyncio.gather(leave("kill", 0), leave("keep", 3), leave("report", 3))


async def test_s41_a_scope_and_a_list_are_killed_at_once(opened: Opened) -> None:
    word = tag()
    async with opened() as engine, engine.scope() as scope:
        children = [await scope.spawn(program(REST, word)) for _ in range(5)]
        ids = [child.id for child in children]
        async with asyncio.timeout(NOT_BLOCKED):
            receipts = await engine.kill([*ids[:2], 999_999])
        assert receipts[:2] == [actors.KillReceipt(1, 1, ())] * 2
        assert isinstance(receipts[2], actors.SessionNotFound)
        receipts = await scope.kill()
        assert receipts[-3:] == [actors.KillReceipt(1, 1, ())] * 3
        assert not tagged(word)
        assert {(await child.wait()).cause for child in children} == {"killed"}
        with pytest.raises(actors.InvalidRequest, match="ids"):
            await engine.kill(ids[0])  # type: ignore[arg-type]
