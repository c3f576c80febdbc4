"""A scope whose clock is stopped: what waits for it, and what does not."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import actors
from actors import dialogue
from tests.helpers import NOT_BLOCKED, gone, tag
from tests.live.children import (
    HELPER_HOLDS_PIPES,
    REST,
    arrived,
    drained,
    program,
    until,
)
from tests.parts import serving

pytestmark = pytest.mark.live

SHORT = 0.2
LONGER = 0.4
"""Seconds of a pause: twice what would have been over without it."""


async def test_s31_timeouts_do_not_fire_during_a_pause_but_after_it() -> None:
    command = program(REST, tag())
    async with actors.Engine() as engine, engine.scope() as scope:
        scope.pause()
        wall = await scope.spawn(command, timeout=SHORT)
        idle = await scope.spawn(command, idle_timeout=SHORT)
        endings = [asyncio.ensure_future(child.wait()) for child in (wall, idle)]
        done, _ = await asyncio.wait(endings, timeout=LONGER)
        assert not done
        scope.resume()
        for ending in endings:
            assert (await asyncio.wait_for(ending, NOT_BLOCKED)).cause == "timeout"


async def test_s31_a_child_that_runs_already_is_paused() -> None:
    async with actors.Engine() as engine, engine.scope() as scope:
        child = await scope.spawn(["sleep", "100"], timeout=3.0)
        with scope.paused():
            ending = asyncio.ensure_future(child.wait())
            await asyncio.wait([ending], timeout=3.2)
            assert not ending.done()
        assert (await asyncio.wait_for(ending, NOT_BLOCKED)).cause == "timeout"


async def test_s31_a_child_follows_a_pause_that_changes_while_it_starts() -> None:
    async with actors.Engine() as engine, engine.scope() as scope:
        scope.pause()
        starting = asyncio.ensure_future(scope.spawn(["sleep", "100"], timeout=SHORT))
        await asyncio.sleep(0)
        scope.resume()
        assert (await (await starting).wait(NOT_BLOCKED)).cause == "timeout"


async def test_s31_a_run_may_take_as_long_as_a_pause() -> None:
    async with actors.Engine() as engine, engine.scope() as scope:
        scope.pause()
        slow = asyncio.ensure_future(
            scope.run(program(REST, tag()), timeout=SHORT, metadata={"a": "slow"})
        )
        quick = await scope.run(["true"], timeout=SHORT)
        assert quick.returncode == 0
        await asyncio.wait([slow], timeout=LONGER)
        assert not slow.done()
        while not any(shown.tail for shown in await scope.children()):
            await asyncio.sleep(0.01)
        scope.resume()
        with pytest.raises(actors.TimedOut) as late:
            await asyncio.wait_for(slow, NOT_BLOCKED)
        assert late.value.stdout == b"ready\n"


async def test_s31_pauses_nest_and_other_scopes_go_on() -> None:
    async with actors.Engine() as engine, engine.scope() as scope:
        with scope.paused():
            with scope.paused():
                child = await scope.spawn(["sleep", "100"], timeout=SHORT)
            ending = asyncio.ensure_future(child.wait())
            async with engine.scope() as other:
                for _ in range(2):
                    brief = await other.spawn(["sleep", "100"], timeout=SHORT)
                    assert (await brief.wait(NOT_BLOCKED)).cause == "timeout"
            await arrived(child)
            assert not ending.done()
        assert (await asyncio.wait_for(ending, NOT_BLOCKED)).cause == "timeout"
        with pytest.raises(actors.InvalidRequest) as refused:
            scope.resume()
        assert refused.value.field == "resume"


async def test_s31_a_poll_waits_longer_and_still_gives_what_is_there() -> None:
    async with actors.Engine() as engine, engine.scope() as scope:
        child = await scope.spawn(program(REST, tag()), stdin="pipe")
        scope.pause()
        assert (await until(child, b"ready\n")) == b"ready\n"
        assert (await child.poll(wait=0)).stdout == b""
        polling = asyncio.ensure_future(child.poll(wait=SHORT, mode="output"))
        reading = asyncio.ensure_future(child.reader(after="newest").read(wait=SHORT))
        await asyncio.wait([polling, reading], timeout=LONGER)
        assert not polling.done()
        assert not reading.done()
        scope.resume()
        assert (await asyncio.wait_for(polling, NOT_BLOCKED)).alive
        assert (await asyncio.wait_for(reading, NOT_BLOCKED)).data == b""


AWAITS: list[Callable[[actors.Child], Any]] = [
    lambda child: child.expect("never", timeout=SHORT),
    lambda child: child.ready(pattern="never", timeout=SHORT),
    lambda child: actors.Screen().follow(child, until="never", timeout=SHORT),
]


@pytest.mark.parametrize("wait", AWAITS)
async def test_s31_what_is_waited_for_may_take_as_long_as_a_pause(
    wait: Callable[[actors.Child], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialogue, "LATE", 0.0)
    async with actors.Engine() as engine, engine.scope() as scope:
        child = await scope.spawn(["cat"], tty=True)
        scope.pause()
        waiting = asyncio.ensure_future(wait(child))
        await asyncio.wait([waiting], timeout=LONGER)
        assert not waiting.done()
        scope.resume()
        with pytest.raises(actors.TimedOut):
            await asyncio.wait_for(waiting, NOT_BLOCKED)


async def test_s31_time_in_which_an_expect_waits_for_its_turn_stands_still() -> None:
    async with actors.Engine() as engine, engine.scope() as scope:
        child = await scope.spawn(["cat"], stdin="pipe")
        first = asyncio.ensure_future(child.expect("one", timeout=None))
        with scope.paused():
            second = asyncio.ensure_future(child.expect("two", timeout=SHORT))
            await asyncio.wait([second], timeout=LONGER)
            assert not second.done()
            await child.write("one")
            await asyncio.wait_for(first, NOT_BLOCKED)
            await arrived(child)
            assert not second.done()
            await child.write("two")
            assert (await asyncio.wait_for(second, NOT_BLOCKED)).matched == b"two"


async def test_s31_a_command_of_a_shell_may_take_as_long_as_a_pause() -> None:
    async with actors.Engine() as engine, engine.scope() as scope:
        shell = await scope.shell()
        with scope.paused():
            running = asyncio.ensure_future(shell.run("sleep 150", timeout=SHORT))
            await asyncio.wait([running], timeout=LONGER)
            assert not running.done()
        with pytest.raises(actors.TimedOut):
            await asyncio.wait_for(running, NOT_BLOCKED)


async def test_s31_pipes_that_stay_open_are_read_as_long_as_a_pause() -> None:
    async with actors.Engine() as engine, engine.scope() as scope:
        scope.pause()
        child = await scope.spawn(
            program(HELPER_HOLDS_PIPES, tag()), leftover="keep", post_exit_grace=SHORT
        )
        assert (await child.wait(NOT_BLOCKED)).code == 3
        draining = asyncio.ensure_future(drained(child))
        await asyncio.wait([draining], timeout=LONGER)
        assert not draining.done()
        assert (await child.snapshot()).state == "exited"
        scope.resume()
        seen, _ = await asyncio.wait_for(draining, NOT_BLOCKED)
        assert seen == b"main-done\n"


IGNORES_TERM = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"

ENDS: list[Callable[[actors.Scope, actors.Child], Any]] = [
    lambda _, child: child.kill(),
    lambda _, child: child.terminate(0.1),
    lambda scope, _: scope.aclose(),
    lambda scope, _: scope.kill(),
]


async def test_s31_kills_and_drops_do_not_wait_for_a_pause() -> None:
    word = tag()
    async with actors.Engine() as engine:
        for end in ENDS:
            async with engine.scope() as scope:
                child = await scope.spawn(program(IGNORES_TERM + REST, word))
                await until(child, b"ready\n")
                with scope.paused():  # also around a scope that closes meanwhile
                    await arrived(child)
                    await asyncio.wait_for(end(scope, child), NOT_BLOCKED)
                    await asyncio.to_thread(gone, word)


async def test_s31_a_closed_scope_has_no_clock() -> None:
    async with actors.Engine() as engine:
        scope = engine.scope()
        await scope.aclose()
        with pytest.raises(actors.SessionNotFound):
            scope.pause()


async def test_s31_the_clock_goes_on_when_who_stopped_it_is_gone(
    tmp_path: Path,
) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    word = tag()
    with serving(endpoint):
        async with actors.Engine(endpoint, owner_key="c0ffee") as witness:
            async with actors.Engine(endpoint, owner_key="c0ffee") as engine:
                scope = engine.scope()
                scope.pause()
                child = await scope.spawn(
                    program(REST, word), timeout=SHORT, kill_on_drop=False
                )
                await arrived(child)
                assert engine._opened is not None
                engine._opened.link.close()  # as when the program is killed
            async with await witness.visit(child.id) as visited:
                assert (await visited.wait(NOT_BLOCKED)).cause == "timeout"
            await asyncio.to_thread(gone, word)
            await witness.kill([child.id])


GIVEN_UP: list[Callable[[actors.Scope, actors.Child], Any]] = [
    lambda _, child: child.detach(),
    lambda _, child: child.aclose(),
    lambda scope, _: scope.aclose(),
]


@pytest.mark.parametrize("give_up", GIVEN_UP)
async def test_s31_the_clock_of_a_child_that_is_given_up_goes_on(
    give_up: Callable[[actors.Scope, actors.Child], Any], tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    with serving(endpoint):
        async with (
            actors.Engine(endpoint, owner_key="c0ffee") as engine,
            actors.Engine(endpoint, owner_key="c0ffee") as other,
        ):
            scope = engine.scope()
            with scope.paused():  # also around what closes meanwhile
                child = await scope.spawn(
                    program(REST, tag()), timeout=SHORT, detach_ttl=100.0
                )
                await give_up(scope, child)
                await engine.info()  # it has been carried out
                taken = await other.attach(child.id)
                assert (await taken.wait(NOT_BLOCKED)).cause == "timeout"
                await taken.aclose()
