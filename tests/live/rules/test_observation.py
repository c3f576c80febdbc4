"""Watching, cancelling, and the two faces."""

import asyncio

import pytest

import actors
from tests.helpers import NOT_BLOCKED, alive, gone, tag
from tests.live.children import REST, STEP_BY_STEP, Opened, arrived, program, until

pytestmark = pytest.mark.live


async def test_s56_cancelled_observers_consume_nothing(opened: Opened) -> None:
    async with opened() as engine:
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


async def test_s56_a_cancelled_kill_goes_on(opened: Opened) -> None:
    stubborn = "signal.signal(15, signal.SIG_IGN); write(b'up'); rest()"
    async with opened() as engine:
        child = await engine.spawn(program(stubborn, tag()))
        await until(child, b"up")
        ending = asyncio.ensure_future(child.terminate(0.2))
        await arrived(child)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert (await child.wait(NOT_BLOCKED)).signal == 9
        await child.aclose()


async def test_s56_a_wait_times_out_and_never_kills(opened: Opened) -> None:
    async with opened() as engine:
        child = await engine.spawn(program(REST, tag()))
        for timeout in (0, 0.1):
            with pytest.raises(actors.TimedOut) as late:
                await child.wait(timeout)
            assert isinstance(late.value, TimeoutError)
            assert late.value.timeout == timeout
        assert alive(child.pid)
        await child.aclose()


async def test_s56_a_run_times_out_with_the_output_so_far(opened: Opened) -> None:
    word = tag()
    async with opened() as engine:
        with pytest.raises(actors.TimedOut) as late:
            await engine.run(program(REST, word), timeout=1.0)
        assert late.value.stdout == b"ready\n"
        assert late.value.timeout == 1.0
        await asyncio.to_thread(gone, word)
        done = await engine.run(["echo", "in time"], timeout=NOT_BLOCKED)
        assert done.stdout == b"in time\n"


async def test_s56_check_raises_with_code_and_output(opened: Opened) -> None:
    async with opened() as engine:
        with pytest.raises(actors.CommandFailed) as failed:
            await engine.run("echo out; echo err >&2; exit 3", shell=True, check=True)
        assert failed.value.returncode == 3
        assert (failed.value.stdout, failed.value.stderr) == (b"out\n", b"err\n")
        with pytest.raises(actors.CommandFailed) as failed:
            await engine.run("kill -9 $$", shell=True, check=True)
        assert failed.value.returncode == -9
        assert (await engine.run(["true"], check=True)).returncode == 0
