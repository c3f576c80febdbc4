"""Mistakes that programs of this kind have made before, one test each.

Those that another module tests already are in `ELSEWHERE`; the rest is tested here.
"""

import asyncio
import os
from pathlib import Path

import pytest

import actors
from tests.helpers import NOT_BLOCKED, eventually, gone, parent, tag
from tests.live.children import arrived, burst, drained, program, until

pytestmark = pytest.mark.live

KIB = 1024
MIB = 1024 * KIB

ELSEWHERE = {
    "tail output lost after exit": (
        "test_cases_exit.py::test_s24_the_last_bytes_before_an_exit_are_never_lost"
    ),
    "kill waiting behind a blocked stdin write": (
        "test_cases_kill.py::test_a_kill_does_not_wait_for_a_blocked_write"
    ),
    "signal death reported as -1": (
        "test_cases_kill.py::test_s39_a_signal_is_told_as_a_signal"
    ),
    "UTF-8 broken at poll boundaries": (
        "rules/test_output.py::test_s26_a_character_split_over_polls_stays_whole"
    ),
    "two pollers stealing each other's bytes": (
        "rules/test_output.py::"
        "test_s18_readers_of_every_kind_take_nothing_from_each_other"
    ),
    "stop reporting success before death": (
        "test_owner_drop.py::"
        "test_a_closed_handle_has_ended_its_tree_when_aclose_returns"
    ),
    "a launch failure without a terminal event": (
        "test_lifecycle_events.py::test_s52_every_spawn_has_one_end_however_it_comes"
    ),
    "descendants forked by other threads missed by the tree walk": (
        "test_tree.py::test_a_child_that_a_thread_forked_belongs_to_the_tree"
    ),
}


def test_what_is_tested_elsewhere_is() -> None:
    for where in ELSEWHERE.values():
        module, _, name = where.partition("::")
        assert f"def {name}(" in (Path(__file__).parent / module).read_text()


async def test_an_interrupt_is_no_kill() -> None:
    """Mistake: "interrupt" that is SIGKILL."""
    polite = """
signal.signal(signal.SIGINT, lambda *_: write(b"caught\\n"))
write(b"ready\\n")
rest()
"""
    async with actors.Engine() as engine:
        child = await engine.spawn(program(polite, tag()))
        await until(child, b"ready\n")
        assert await child.interrupt()
        assert await until(child, b"caught\n") == b"caught\n"
        assert (await child.poll(wait=0)).state == "running"
        await child.aclose()


async def test_reading_does_not_reset_what_is_known_to_be_dropped() -> None:
    """Mistake: dropped counts reset by a drain."""
    body = """
write(b"x" * 100_000)
while data := os.read(0, 9):
    write(b"y" * 100_000)
"""
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(body, tag()), stdin="pipe", retention=actors.OutputPolicy.tail(KIB)
        )
        polled = kept = 0
        for turn in range(1, 4):
            produced = 100_000 * turn
            while polled + kept < produced:
                seen = await child.poll(mode="output", wait=5)
                polled, kept = polled + seen.dropped_bytes, kept + len(seen.stdout)
            assert polled + kept == produced
            assert (await child.snapshot()).dropped == produced - KIB
            assert (await child.snapshot()).dropped == produced - KIB
            await child.write(b"more")
        await child.aclose()


async def test_what_is_in_the_pipe_when_a_child_is_terminated_is_read(
    tmp_path: Path,
) -> None:
    """Mistake: output in the pipe thrown away by terminate."""
    written = tmp_path / "written"
    body = "write(eval(sys.argv[2])); open(sys.argv[3], 'w').close(); rest()"
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(body, tag(), repr(burst(50_000)), str(written)),
            retention=actors.OutputPolicy.block(4 * KIB),
        )
        first = await child.poll(mode="output", max_bytes=1)  # now it holds the pipe
        await asyncio.to_thread(eventually, written.exists)
        await child.terminate(5)
        rest, last = await drained(child)
        assert first.stdout + rest == burst(50_000)
        assert last.exit_code == -15
        await child.aclose()


async def test_nothing_that_lives_is_ended_for_its_number() -> None:
    """Mistake: live work killed at a fixed count without being asked."""
    count = 70
    async with actors.Engine() as engine, engine.scope() as scope:
        starting = [scope.spawn(["sleep", "100"]) for _ in range(count)]
        children = await asyncio.gather(*starting)
        assert len(await scope.children()) == count
        assert [child.returncode for child in children] == [None] * count


async def test_a_start_that_failed_is_over_for_everybody() -> None:
    """Mistake: a launch failure that those who ask again are never told of."""
    async with actors.Engine() as engine, engine.scope() as scope:
        tries = [
            scope.spawn(["/nowhere/program"], request_id="the one") for _ in range(3)
        ]
        async with asyncio.timeout(NOT_BLOCKED):
            told = await asyncio.gather(*tries, return_exceptions=True)
        assert {type(one) for one in told} <= {
            actors.SpawnFailed,
            actors.InvalidRequest,  # a retry of what has failed already
        }
        assert actors.SpawnFailed in map(type, told)
        assert await scope.children() == []
        assert (await engine.info()).counts["sessions"] == 0
        assert await scope.aclose() == 0


def pipes_of(pid: int) -> set[str]:
    """Return the pipes that a process holds; none if it is gone."""
    try:
        place = f"/proc/{pid}/fd"
        held = {os.readlink(f"{place}/{fd}") for fd in os.listdir(place)}
    except (FileNotFoundError, ProcessLookupError):
        return set()
    return {target for target in held if target.startswith("pipe:")}


async def test_full_queues_do_not_outlive_the_owner() -> None:
    """Mistake: a full queue that outlives its dropped owner."""
    word = tag()
    body = "write(b'up'); write(b'x' * (1 << 24)); rest()"
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(body, word),
            stdin="pipe",
            retention=actors.OutputPolicy.block(4 * KIB),
        )
        stalled = child.events(window=KIB)
        await anext(stalled)
        worker, pipes = parent(child.pid), pipes_of(child.pid)
        assert len(pipes) == 3
        assert pipes <= pipes_of(worker)
        writing = asyncio.ensure_future(child.write(b"x" * 4 * MIB))
        await arrived(child)
        writing.cancel()
        await asyncio.wait([writing])
        del stalled, writing
        with pytest.warns(ResourceWarning):
            del child
        await asyncio.to_thread(gone, word, 5)
        await asyncio.to_thread(eventually, lambda: not pipes & pipes_of(worker))
        while (await engine.info()).counts["sessions"]:
            await asyncio.sleep(0)  # its worker says so a moment later


async def test_what_a_program_says_before_it_fails_is_kept() -> None:
    """Mistake: start diagnostics discarded."""
    why = "sh: cannot find my library\n"
    script = f"printf %s '{why}' >&2; exit 127"
    async with actors.Engine() as engine:
        with pytest.raises(actors.SpawnFailed) as failed:
            await engine.spawn(["/nowhere/program"])
        assert (failed.value.step, failed.value.path) == ("exec", "/nowhere/program")
        with pytest.raises(actors.CommandFailed) as bad:
            await engine.run(script, shell=True, check=True)
        assert (bad.value.returncode, bad.value.stderr) == (127, why.encode())
        child = await engine.spawn(script, shell=True)
        assert (await child.wait()).code == 127
        assert (await child.snapshot()).tail == why.encode()
        assert (await child.poll()).stderr == why.encode()
        await child.aclose()
