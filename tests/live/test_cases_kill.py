"""Killing whole trees, and how a child's end is told: situations users reported."""

import asyncio
import os
import signal

import pytest

import actors
from tests.helpers import (
    NOT_BLOCKED,
    alive,
    end,
    eventually,
    gone,
    parent,
    state,
    tag,
    tagged,
)
from tests.live.children import (
    DIES_BY,
    ESCAPES_GROUP,
    LEAVES_POOL,
    REST,
    STOPS_ITSELF,
    client,
    drained,
    engine_processes,
    program,
    repeated,
    resident,
    until,
)

pytestmark = pytest.mark.live

MIB = 1024 * 1024


# -- whole trees ---------------------------------------------------------------


@pytest.mark.parametrize("way", ["terminate", "kill", "close", "collect", "leave"])
async def test_s36_descendants_in_other_sessions_end_too(way: str) -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(program(ESCAPES_GROUP, word))
        await until(child, b"ready\n")
        assert len(tagged(word)) == 2
        if way == "terminate":
            assert (await child.terminate(1.0)).survivors == ()
            assert (await child.wait()).signal == signal.SIGTERM
        elif way == "kill":
            assert await child.kill() == actors.KillReceipt(2, 2, ())
            assert (await child.wait()).signal == signal.SIGKILL
        elif way == "close":
            await child.aclose()
        elif way == "collect":
            with pytest.warns(ResourceWarning):
                del child
        else:
            await engine.aclose()
        await asyncio.to_thread(gone, word)


async def test_descendants_end_when_the_client_returns_from_main() -> None:
    word = tag()
    body = """
async def main():
    engine = actors.Engine()
    await engine.__aenter__()
    child = await engine.spawn(eval(sys.argv[1]))
    await child.poll(mode="output")
    os.write(1, b"up\\n")
    os._exit(5)
asyncio.run(main())
"""
    with client(body, repr(program(ESCAPES_GROUP, word))) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert process.wait(NOT_BLOCKED) == 5
    gone(word)


@repeated(6, 30)
async def test_helpers_of_a_command_that_ended_well_do_not_pile_up(runs: int) -> None:
    word = tag()
    async with actors.Engine() as engine:
        for _ in range(runs):
            child = await engine.spawn(program(LEAVES_POOL, word))
            status = await child.wait(NOT_BLOCKED)
            assert (status.code, status.cause) == (0, "exited")
            assert len(status.leftovers) == 3
            await child.aclose()
            assert not tagged(word)


async def test_s40_helpers_end_soon_after_their_command_also_without_a_drop() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(program(LEAVES_POOL, word))
        assert (await child.wait(NOT_BLOCKED)).ok
        gone(word)
        await child.aclose()


async def test_s36_a_kill_ends_the_helpers_of_an_ended_command() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(program(LEAVES_POOL, word), leftover="keep")
        assert (await child.wait(NOT_BLOCKED)).ok
        assert len(tagged(word)) == 3
        assert (await child.kill()).survivors == ()
        assert not tagged(word)
        assert (await child.wait()).cause == "exited"
        await child.aclose()


async def test_a_forgotten_sibling_is_not_touched_by_a_kill() -> None:
    word, other = tag(), tag()
    async with actors.Engine() as engine:
        bystander = await engine.spawn(program(REST, other))
        victim = await engine.spawn(program(REST, word))
        await until(bystander, b"ready\n")
        await victim.kill()
        assert tagged(other) == [bystander.pid]
        assert bystander.returncode is None
        await victim.aclose()
        await bystander.aclose()


# -- polite first --------------------------------------------------------------


async def test_s36_a_stopped_child_is_asked_politely_and_can_answer() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(program(STOPS_ITSELF, word))
        await until(child, b"ready\n")
        eventually(lambda: state(child.pid) == "T")
        seen = await child.poll(wait=0)
        assert (seen.state, seen.alive) == ("running", True)
        receipt = await child.terminate(2.0)
        assert receipt.survivors == ()
        status = await child.wait()
        assert (status.code, status.cause) == (17, "killed")
        output, _ = await drained(child)
        assert output == b"term-handled\n"
        await child.aclose()
    gone(word)


async def test_a_stopped_child_can_be_killed() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(STOPS_ITSELF, tag()))
        await until(child, b"ready\n")
        eventually(lambda: state(child.pid) == "T")
        assert (await child.kill()).survivors == ()
        assert (await child.wait()).signal == 9
        await child.aclose()


# -- a kill in the first moments -----------------------------------------------


@repeated(24, 200)
async def test_a_kill_right_after_the_start_hits_the_child_alone(runs: int) -> None:
    word = tag()
    async with actors.Engine() as engine:
        keeper = await engine.spawn(program(REST, tag()))
        before = engine_processes(engine)

        async def one() -> None:
            child = await engine.spawn(["sleep", "100"], arg0=word)
            async with asyncio.timeout(NOT_BLOCKED):
                receipt = await child.kill()
            assert receipt.survivors == ()
            assert (await child.wait()).cause == "killed"
            assert (await child.wait()).signal == 9
            await child.aclose()

        async def impatient() -> None:
            """End it as soon as the request is sent."""
            task = asyncio.ensure_future(engine.spawn(["sleep", "100"], arg0=word))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        for _ in range(runs // 4):
            await asyncio.gather(one(), impatient(), one(), impatient())
        gone(word)
        after = engine_processes(engine)
        for kind in ("supervisor", "broker", "pool"):
            assert before[kind] == after[kind]
        assert parent(keeper.pid) in after["worker"]
        assert keeper.returncode is None
        assert alive(keeper.pid)
        await keeper.aclose()


# -- how it ended --------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 137, 143, 255])
async def test_s39_a_code_is_told_as_a_code(code: int) -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(["sh", "-c", f"exit {code}"])
        status = await child.wait(NOT_BLOCKED)
        assert (status.code, status.signal, status.ok) == (code, None, code == 0)
        assert status.returncode == child.returncode == code
        assert (await child.poll()).exit_code == code
        await child.aclose()
        assert (await engine.run(["sh", "-c", f"exit {code}"])).returncode == code


@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV", "ABRT", "USR1"])
async def test_s39_a_signal_is_told_as_a_signal(name: str) -> None:
    number = signal.Signals[f"SIG{name}"]
    async with actors.Engine() as engine:
        command = program(DIES_BY, tag(), str(int(number)))
        child = await engine.spawn(command)
        status = await child.wait(NOT_BLOCKED)
        assert (status.code, status.signal, status.ok) == (None, number, False)
        assert (status.cause, status.core) == ("exited", False)
        assert status.returncode == child.returncode == -number
        assert (await child.poll()).exit_code == -number
        await child.aclose()


async def test_s39_a_kill_from_outside_is_told_as_a_signal() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()))
        await until(child, b"ready\n")
        end([child.pid])
        status = await child.wait(NOT_BLOCKED)
        assert (status.signal, status.cause, status.ok) == (9, "exited", False)
        await child.aclose()


# -- a kill while input is pending ---------------------------------------------


@pytest.mark.parametrize("way", ["kill", "terminate"])
async def test_a_kill_does_not_wait_for_a_blocked_write(way: str) -> None:
    bound = actors.Settings().stdin_queue
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()), stdin="pipe")
        await until(child, b"ready\n")
        here = [parent(child.pid), *engine_processes(engine)["broker"]]
        before = resident(here)
        writing = asyncio.ensure_future(child.write(b"w" * 8 * MIB))
        await asyncio.wait([writing], timeout=0.3)
        assert not writing.done()
        now = resident(here)
        grown = {pid: now[pid] - before[pid] for pid in here}
        assert max(grown.values()) < bound + 16 * MIB, grown
        async with asyncio.timeout(NOT_BLOCKED):
            ending = child.kill() if way == "kill" else child.terminate(0.5)
            assert (await ending).survivors == ()
        number = signal.SIGKILL if way == "kill" else signal.SIGTERM
        status = await child.wait()
        assert (status.signal, status.cause) == (number, "killed")
        written = await writing
        assert written.state in ("ended", "running")  # if its death takes longer
        assert 0 < written.accepted < MIB
        with pytest.raises(actors.StdinUnavailable):
            await child.write(b"0123456789")
        await child.close_stdin()
        await child.close_stdin()
        await child.aclose()


async def test_s41_many_kills_at_once_are_all_answered() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(program(ESCAPES_GROUP, word))
        await until(child, b"ready\n")
        receipts = await asyncio.gather(
            child.kill(), child.terminate(0.1), child.kill(), engine.kill([child.id])
        )
        assert not receipts[0].survivors
        assert not tagged(word)
        again = await child.kill()
        assert again.survivors == ()
        await child.aclose()


async def test_s14_engine_processes_are_not_in_the_session_of_a_child_or_client() -> (
    None
):
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()))
        sessions = {
            os.getsid(pid) for kind in engine_processes(engine).values() for pid in kind
        }
        assert os.getsid(0) not in sessions
        assert os.getsid(child.pid) not in sessions
        await child.aclose()
