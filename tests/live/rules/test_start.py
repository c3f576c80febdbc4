"""What a child begins with, or why it does not begin."""

import ast
import asyncio
import errno
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import actors
from tests.helpers import NOT_BLOCKED, gone, parent, tag, tagged
from tests.live.children import DESCRIBES_ITSELF, REST, ROOT, Opened, drained, program

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


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"argv": []}, "argv"),
    ({"argv": [""]}, "argv"),
    ({"argv": "true"}, "argv"),
    ({"argv": ["true", 5]}, "argv"),
    ({"argv": ["true\0"]}, "argv"),
    ({"argv": ["true", "a\0b"]}, "argv"),
    ({"argv": ["true", "\ud800"]}, "argv"),
    ({"cwd": "/tmp\0"}, "cwd"),
    ({"cwd": ""}, "cwd"),
    ({"env": {"A": "\0"}}, "env"),
    ({"env": {"A\0": ""}}, "env"),
    ({"env": {"A=B": ""}}, "env"),
    ({"env": {"": "x"}}, "env"),
    ({"extra_env": {"A=B": None}}, "extra_env"),
    ({"arg0": "a\0"}, "arg0"),
    ({"stdin": "file"}, "stdin"),
    ({"stdout": "file"}, "stdout"),
    ({"stderr": "file"}, "stderr"),
    ({"timeout": -1}, "timeout"),
    ({"post_exit_grace": -1}, "post_exit_grace"),
]


async def test_s10_what_no_system_could_start_is_refused_by_name(
    opened: Opened,
) -> None:
    async with opened() as engine:
        for case, field in REFUSED:
            options = {"argv": ["true"], **case}
            with pytest.raises(actors.InvalidRequest) as refused:
                await engine.spawn(options.pop("argv"), **options)
            assert refused.value.field == field
        assert await engine.children() == []
        assert (await engine.run(["true"])).returncode == 0


async def test_s11_a_program_that_is_still_being_written_is_tried_for_a_moment(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program"
    shutil.copy("/bin/true", program)
    async with actors.Engine() as engine:
        with program.open("r+b"):
            began = time.monotonic()
            with pytest.raises(actors.SpawnFailed) as failed:
                await engine.run([program])
            assert failed.value.errno == errno.ETXTBSY
            assert time.monotonic() - began >= 0.2
        assert (await engine.run([program])).returncode == 0


async def test_s12_a_program_may_read_instead_of_a_person(opened: Opened) -> None:
    async with opened() as engine:
        done = await engine.run(
            ["/usr/bin/env"], env={}, extra_env=actors.AGENT_ENV, marker=False
        )
        assert set(done.text.splitlines()) == {
            "NO_COLOR=1",
            "TERM=dumb",
            "LANG=C.UTF-8",
            "LC_CTYPE=C.UTF-8",
            "LC_ALL=C.UTF-8",
            "COLORTERM=",
            "PAGER=cat",
            "GIT_PAGER=cat",
            "GH_PAGER=cat",
            "CRECHE_AGENT=1",
        }


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


def test_s14_the_niceness_of_a_program_is_not_that_of_its_engines_thread() -> None:
    script = """
import os
from actors import blocking
with blocking.Engine() as engine:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.nice(5)
    print(int(engine.run(["nice"]).text) - before)
"""
    command = [sys.executable, "-"]
    done = subprocess.run(
        command, input=script, capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.stdout, done.stderr) == ("5\n", "")


async def test_s14_the_engine_keeps_its_own_preferences_to_itself(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes itself harder to kill, and its processes are out of reach."""
    monkeypatch.delenv("CRECHE_LOG")  # else their stderr is that file
    mine = Path("/proc/self/oom_score_adj")
    before = mine.read_text()
    look = ["cat", "/proc/self/oom_score_adj"]
    async with opened() as engine:
        assert (await engine.run(look)).text == before
        limits = actors.Limits(oom_score_adj=int(before) + 7)
        assert (await engine.run(look, limits=limits)).text == f"{int(before) + 7}\n"
        child = await engine.spawn(program(REST, tag()))
        worker = parent(child.pid)
        for pid in (worker, parent(worker), parent(parent(worker))):
            assert os.getsid(pid) not in (os.getsid(0), child.pid)
            assert {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)} == {
                "/dev/null"
            }
        await child.aclose()
    assert mine.read_text() == before


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


async def test_s16_a_retry_of_a_cancelled_start_never_starts_anything() -> None:
    word = tag()
    async with actors.Engine() as engine:  # of the other face no call is half begun
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


async def test_s17_limits_hold_for_the_child_alone(opened: Opened) -> None:
    names = {
        "nofile": resource.RLIMIT_NOFILE,
        "core": resource.RLIMIT_CORE,
        "address_space": resource.RLIMIT_AS,
        "cpu": resource.RLIMIT_CPU,
        "file_size": resource.RLIMIT_FSIZE,
        "processes": resource.RLIMIT_NPROC,
    }
    asked = {name: 100 + number for number, name in enumerate(names)}
    asked["address_space"] = 1 << 30
    held = {
        n: (most, most + (n == "cpu")) for n, most in asked.items()
    }  # first SIGXCPU
    tells = f"""
import resource
write(repr([resource.getrlimit(n) for n in {list(names.values())}]).encode())
"""
    before = [resource.getrlimit(number) for number in names.values()]
    async with opened() as engine:
        limits = actors.Limits(**asked, nice=7)
        told = await engine.run(program(tells, tag()), limits=limits)
        assert ast.literal_eval(told.text) == list(held.values())
        told = await engine.run(program(tells, tag()))
        assert ast.literal_eval(told.text) == before
        assert (await engine.run(["nice"], limits=actors.Limits(nice=7))).text == "7\n"
        with pytest.raises(actors.InvalidRequest) as refused:
            actors.Limits(nice=20)
        assert refused.value.field == "limits.nice"
    assert [resource.getrlimit(number) for number in names.values()] == before


async def test_s17_what_outlasts_its_time_is_asked_and_then_killed(
    opened: Opened,
) -> None:
    stubborn = (
        "trap 'printf asked' TERM; printf up; while :; do sleep 9 & wait $!; done"
    )
    async with opened(settings=actors.Settings(terminate_grace=0.15)) as engine:

        async def outlast(**limit: Any) -> None:
            child = await engine.spawn(stubborn, shell=True, **limit)
            assert (await drained(child))[0] == b"upasked"
            status = await child.wait(NOT_BLOCKED)
            assert (status.cause, status.signal) == ("timeout", 9)
            assert status.wall_time >= 0.55
            await child.aclose()

        await asyncio.gather(outlast(timeout=0.4), outlast(idle_timeout=0.4))


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
