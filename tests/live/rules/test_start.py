"""What a child begins with, or why it does not begin."""

import ast
import asyncio
import os
import resource
from typing import Any

import pytest

import actors
from tests.helpers import gone, tag, tagged
from tests.live.children import DESCRIBES_ITSELF, REST, Opened, program

pytestmark = pytest.mark.live


async def test_s10_texts_bytes_and_paths_make_a_command(
    opened: Opened, tmp_path: Any
) -> None:
    async with opened() as engine:
        done = await engine.run(["printf", b"%s|", tmp_path, "x"])
        assert done.stdout == f"{tmp_path}|x|".encode()
        done = await engine.run("echo $((6 * 7)); exit 4", shell=True)
        assert (done.stdout, done.returncode) == (b"42\n", 4)
        assert (await engine.run(["sh", "-c", "echo $0"], arg0="me")).text == "me\n"


async def test_s10_arguments_of_calls_are_refused_by_their_names(
    opened: Opened,
) -> None:
    async with opened() as engine:
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


async def test_s13_standard_streams_are_what_was_asked(opened: Opened) -> None:
    says = "write(b'out'); write(b'err', 2); sys.exit(len(os.read(0, 9)))"
    async with opened() as engine:

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
    opened: Opened, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    umask = os.umask(0o027)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        async with opened() as engine:

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


async def test_s16_a_retried_start_gives_the_same_child(opened: Opened) -> None:
    word = tag()
    async with opened() as engine, engine.scope() as scope:
        command = program(REST, word)
        first, second = await asyncio.gather(
            scope.spawn(command, request_id="once"),
            scope.spawn(command, request_id="once"),
        )
        third = await scope.spawn(command, request_id="once")
        assert first.id == second.id == third.id
        assert tagged(word) == [first.pid]


async def test_s16_a_retry_of_a_cancelled_start_never_starts_anything(
    opened: Opened,
) -> None:
    word = tag()
    async with opened() as engine:
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


async def test_s17_a_timeout_of_months_is_as_good_as_one_of_seconds(
    opened: Opened,
) -> None:
    async with opened() as engine:
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
