"""Watching, cancelling, and the two faces."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import actors
from actors import connection, embedded
from broker.link import Link
from broker.wire import Kind
from tests.helpers import NOT_BLOCKED, alive, eventually, gone, tag, tagged
from tests.live.children import (
    CLIENT,
    COUNTS_INPUT,
    MIB,
    REST,
    ROOT,
    STEP_BY_STEP,
    Opened,
    arrived,
    drained,
    program,
    until,
)

pytestmark = pytest.mark.live


def elsewhere(call: Callable[[], Coroutine[Any, Any, object]]) -> None:
    asyncio.run(asyncio.wait_for(call(), 5))


async def test_s55_an_engine_belongs_to_the_loop_that_entered_it() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()))
        for call in (child.poll, child.wait, engine.children):
            with pytest.raises(actors.RuntimeContext):
                await asyncio.to_thread(elsewhere, call)
        assert (await child.poll(mode="output")).stdout == b"ready\n"
        await child.aclose()
        with pytest.raises(actors.RuntimeContext):
            await engine.__aenter__()
    with pytest.raises(actors.RuntimeContext):
        await actors.Engine().children()


async def test_what_is_called_outside_of_the_engines_loop_is_refused() -> None:
    async with actors.Engine() as engine:
        scope = engine.scope()
        child = await scope.spawn(program(REST, tag()))
        elsewhere_too = (engine.aclose, scope.aclose)
        for call in elsewhere_too:
            with pytest.raises(actors.RuntimeContext, match="another event loop"):
                await asyncio.to_thread(elsewhere, call)
        for plain in (
            engine.scope,
            engine.events,
            lambda: engine.map([["true"]]),
            scope.pause,
            scope.resume,
            scope.events,
            child.events,
            child.reader,
        ):
            with pytest.raises(actors.RuntimeContext, match="another event loop"):
                await asyncio.to_thread(plain)
        assert (await engine.run(["echo", "on"])).text == "on\n"
    await asyncio.to_thread(elsewhere, engine.aclose)  # nothing is left to do


LOOP_CLOSED_FIRST = (
    CLIENT
    + """
import gc
async def main():
    settings = actors.Settings(on_hung="kill")
    engine = await actors.Engine(settings=settings).__aenter__()
    await engine.scope().spawn(["sleep", "150"], arg0=input())
    return engine
engine = asyncio.run(main())
try:
    asyncio.run(engine.aclose())
except actors.RuntimeContext as refused:
    print(refused, flush=True)
del engine
gc.collect()
print("collected", flush=True)
sys.stdin.read()
"""
)


def test_an_engine_whose_loop_was_closed_ends_as_it_is_collected() -> None:
    word = tag()
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", LOOP_CLOSED_FIRST],
        env={**os.environ, "PYTHONPATH": ROOT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as left:
        assert left.stdin is not None
        assert left.stdout is not None
        left.stdin.write(f"{word}\n".encode())
        left.stdin.flush()
        assert b"closed before" in left.stdout.readline()
        assert left.stdout.readline() == b"collected\n"
        gone(word)


async def test_whoever_closes_an_engine_returns_once_all_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop, held, go = embedded.Embedded.stop, asyncio.Event(), asyncio.Event()
    happened = []

    async def held_up(self: embedded.Embedded) -> None:
        held.set()
        await go.wait()
        await stop(self)
        happened.append("ended")

    async def close() -> None:
        await engine.aclose()
        happened.append("returned")

    monkeypatch.setattr(embedded.Embedded, "stop", held_up)
    engine = await actors.Engine().__aenter__()
    given_up = asyncio.create_task(close())
    await held.wait()
    given_up.cancel()
    others = [asyncio.create_task(close()) for _ in range(2)]
    asyncio.get_running_loop().call_soon(go.set)
    await asyncio.gather(*others)
    assert given_up.cancelled()
    assert happened == ["ended", "returned", "returned"]
    await engine.aclose()


async def test_an_engine_that_closes_waits_for_a_scope_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask, asked = Link.ask, asyncio.Event()

    def tell(self: Link, kind: Kind, *args: Any, **options: Any) -> Any:
        if kind is Kind.KILL:
            asked.set()
        return ask(self, kind, *args, **options)

    monkeypatch.setattr(Link, "ask", tell)
    monkeypatch.setattr(connection, "CLOSE_MARGIN", NOT_BLOCKED)
    async with actors.Engine() as engine:
        scope = engine.scope()
        await scope.spawn(["sleep", "150"])
        closing = asyncio.create_task(scope.aclose())
        await asked.wait()
    assert await closing == 1


async def test_an_engine_given_up_before_it_is_there_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def given_up() -> None:
        raise asyncio.CancelledError

    without_key = tmp_path / "without"
    without_key.mkdir(0o700)
    operator = actors.Engine(f"ipc://{without_key}/broker.sock", operator=True)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(actors.InvalidRequest, match="is missing"):
        await operator.__aenter__()
    monkeypatch.setattr("actors.engine.end_left", given_up)
    with pytest.raises(asyncio.CancelledError):
        await actors.Engine().__aenter__()
    assert os.listdir("/proc/self/fd") == before


async def test_an_engine_that_is_closed_leaves_no_task() -> None:
    never = asyncio.Event()
    async with actors.Engine() as engine:
        await engine.scope(cancel=never).spawn(["sleep", "150"])
        assert len(asyncio.all_tasks()) > 1
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_s55_what_an_engine_gave_is_iterated_in_its_loop_alone() -> None:
    async with actors.Engine() as engine:
        happens = engine.events()
        results = engine.map([["true"]])
        child = await engine.spawn(program(REST, tag()))
        events, reader = child.events(), child.reader()
        steps = [it.__anext__ for it in (happens, results, events)]
        for step in (*steps, reader.read):
            with pytest.raises(actors.RuntimeContext):
                await asyncio.to_thread(elsewhere, step)
            with pytest.raises(actors.RuntimeContext):
                await asyncio.to_thread(step().send, None)
        assert (await anext(happens)).kind == "starting"
        assert isinstance(await anext(results), actors.Completed)
        assert await anext(events) == actors.Chunk("stdout", 0, 0, b"ready\n")
        assert (await reader.read()).data == b"ready\n"
        await child.aclose()


def test_s55_a_program_may_come_from_stdin() -> None:
    script = (
        CLIENT
        + """
async def main():
    async with actors.Engine() as engine:
        print((await engine.run(["echo", "works"])).text)
asyncio.run(main())
"""
    )
    done = subprocess.run(
        [sys.executable],
        input=script.encode(),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": ROOT},
        check=True,
    )
    assert done.stdout == b"works\n\n"


IN_A_REPL = {
    "plain": (
        ["-iq"],
        """
import actors
engine = actors.blocking.Engine().__enter__()
child = engine.spawn(["cat"], stdin="pipe")
print(child.poll("plum", wait=5).text)
engine.__exit__(None, None, None)
""",
    ),
    "with a loop, like a notebook": (
        ["-m", "asyncio"],
        """
import actors
engine = await actors.Engine().__aenter__()
child = await engine.spawn(["cat"], stdin="pipe")
print((await child.poll("plum", wait=5)).text)
await engine.__aexit__(None, None, None)
""",
    ),
}


@pytest.mark.parametrize(("words", "typed"), IN_A_REPL.values(), ids=IN_A_REPL)
def test_s55_an_engine_works_line_by_line_in_a_repl(
    words: list[str], typed: str
) -> None:
    done = subprocess.run(
        [sys.executable, *words],
        input=typed.encode(),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": ROOT},
        check=True,
    )
    assert b"plum\n" in done.stdout, done.stderr
    assert b"Error" not in done.stderr


async def test_s56_a_cancelled_run_leaves_nothing(opened: Opened) -> None:
    word = tag()
    async with opened() as engine:
        running = asyncio.ensure_future(engine.run(program(REST, word)))
        await asyncio.to_thread(eventually, lambda: tagged(word))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.to_thread(gone, word, 3)


async def test_s56_a_cancelled_write_is_repeated_by_its_offset(opened: Opened) -> None:
    reads_late = "signal.sigwait({10}); " + COUNTS_INPUT.strip().replace("\n", "\n")
    data = b"x" * (MIB // 2)
    async with opened() as engine:
        child = await engine.spawn(
            program(
                "signal.pthread_sigmask(0, {10}); write(b'up')\n" + reads_late, tag()
            ),
            stdin="pipe",
        )
        await until(child, b"up")
        writing = asyncio.ensure_future(child.write(data, at=0))
        await arrived(child)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await child.signal(signal.SIGUSR1)
        assert (await child.write(data, at=0)).accepted == len(data)
        await child.close_stdin()
        assert (await drained(child))[0] == b"total %d" % len(data)
        await child.aclose()


async def test_s56_a_cancelled_close_goes_on(opened: Opened) -> None:
    word = tag()
    async with opened() as engine:
        child = await engine.spawn(program(REST, word))
        await until(child, b"ready\n")
        closing = asyncio.ensure_future(child.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await asyncio.to_thread(gone, word)


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
        script = "echo ready; sleep 150; :"
        with pytest.raises(actors.TimedOut) as late:
            await engine.run(["sh", "-c", script, word], timeout=2.0)
        assert late.value.stdout == b"ready\n"
        assert late.value.timeout == 2.0
        await asyncio.to_thread(gone, word)
        done = await engine.run(["echo", "in time"], timeout=NOT_BLOCKED)
        assert done.stdout == b"in time\n"


async def test_s56_a_run_that_ends_as_its_time_passes_has_its_result(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cue = tmp_path / "cue"
    os.mkfifo(cue)
    terminate = actors.Child.terminate

    async def too_late(child: actors.Child, grace: float = 2.0) -> Any:
        await asyncio.to_thread(cue.write_text, "go\n")
        with suppress(actors.SessionNotFound):
            while True:  # until it has released itself
                await child.snapshot()
                await asyncio.sleep(0.005)
        return await terminate(child, grace)

    monkeypatch.setattr(actors.Child, "terminate", too_late)
    async with opened() as engine:
        script = 'read -r word < "$1"; echo "$word"; exit 3'
        done = await engine.run(["sh", "-c", script, "sh", str(cue)], timeout=0.1)
        assert (done.stdout, done.returncode) == (b"go\n", 3)


async def test_a_run_whose_command_survives_its_time_is_not_waited_for(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def survived(child: actors.Child, grace: float = 2.0) -> actors.KillReceipt:
        stuck = actors.Survivor(child.pid, 0.0, 0, "D")
        return actors.KillReceipt(signalled=1, reaped=0, survivors=(stuck,))

    monkeypatch.setattr(actors.Child, "terminate", survived)
    word = tag()
    async with opened() as engine:
        running = engine.run(program(REST, word), timeout=0.1)
        with pytest.raises(actors.TimedOut):
            await asyncio.wait_for(running, NOT_BLOCKED)
        await asyncio.to_thread(gone, word)


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
