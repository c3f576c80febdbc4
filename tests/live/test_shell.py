"""A shell that stays, with both faces."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from actors import (
    Child,
    Engine,
    EngineError,
    InvalidRequest,
    KillReceipt,
    OutputLimitExceeded,
    SessionNotFound,
    Settings,
    ShellEnded,
    Survivor,
    TimedOut,
)
from tests.helpers import NOT_BLOCKED, gone, parent, stop, tag, tagged
from tests.live.children import repeated

pytestmark = pytest.mark.live


@asynccontextmanager
async def shell(opened: Any, **settings: Any) -> AsyncIterator[Any]:
    async with (
        opened(settings=Settings(**settings)) as engine,
        engine.scope("s") as scope,
        await scope.shell() as started,
    ):
        yield started


async def test_s57_each_command_has_its_output_and_status(opened: Any) -> None:
    async with shell(opened) as sh:
        done = await sh.run("echo out; echo err >&2; (exit 3)")
        assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 3)
        done = await sh.run("printf 'no newline'")
        assert (done.stdout, done.stderr, done.returncode) == (b"no newline", b"", 0)


async def test_s57_the_state_is_kept(opened: Any) -> None:
    async with shell(opened) as sh:
        await sh.run("cd /usr; x='a b'; f() { echo f$1; }; declare -A m=([k]=v)")
        done = await sh.run('pwd; echo "$x"; f 3; echo ${m[k]}')
        assert done.stdout == b"/usr\na b\nf3\nv\n"


async def test_s57_a_command_that_reads_stdin_ends_at_once(opened: Any) -> None:
    async with shell(opened) as sh:
        assert (await sh.run("cat; read line || echo none")).stdout == b"none\n"
        await sh.run("exec </etc/passwd; exec 5<&0")
        assert (await sh.run("cat; echo kept")).stdout == b"kept\n"


ODD = {
    "if": 2,
    "echo 'unclosed": 2,
    "echo $(ls": 2,
    "}": 2,
    "echo $((1/0)); echo no": 1,
    "return 4": 4,
    "break": 0,
    "": 0,
    "# nothing": 0,
    "true \\": 0,
    "cat <<'E' >/dev/null\nunfinished": 0,
    "sh -c 'kill -9 $$'": 137,
    "exit() { return 9; }; exit": 9,
}


async def test_s57_an_odd_command_is_its_own_trouble() -> None:
    async with shell(Engine) as sh:
        for command, code in ODD.items():
            done = await sh.run(command)
            assert (command, done.returncode, done.stdout) == (command, code, b"")
        assert (await sh.run("echo fine")).stdout == b"fine\n"


async def test_s57_traced_and_redirected_shells_still_report(opened: Any) -> None:
    async with shell(opened) as sh:
        await sh.run("set -xv")
        done = await sh.run("echo one")
        assert (done.stdout, done.returncode) == (b"one\n", 0)
        assert b"++ echo one\n" in done.stderr
        await sh.run("set +xv; exec >/dev/null")
        assert (await sh.run("echo hidden; false")).returncode == 1
        assert (await sh.run("exec >&2; echo seen")).stderr == b"seen\n"


async def test_s57_an_imitated_report_is_output(opened: Any) -> None:
    async with shell(opened) as sh:
        await sh.run("set -v")
        done = await sh.run("true")
        first, second = re.findall(rb" ([0-9a-f]{16}) ([0-9a-f]{16}) ", done.stderr)[0]
        forged = (first + second + b" 0.").decode()
        assert (await sh.run(f"echo {forged}; false")).stdout == f"{forged}\n".encode()


async def test_s57_binary_and_large_output_comes_whole(opened: Any) -> None:
    every = "\\\\" + "\\\\".join(f"x{n:02x}" for n in range(256))
    async with shell(opened) as sh:
        done = await sh.run(f"printf {every}")
        assert done.stdout == bytes(range(256))
        done = await sh.run("head -c 4000000 /dev/zero; echo end >&2")
        assert (len(done.stdout), done.stderr) == (4_000_000, b"end\n")
        with pytest.raises(OutputLimitExceeded) as over:
            await sh.run("echo kept; head -c 100000 /dev/zero", limit=5)
        assert over.value.stdout == b"kept\n"
        assert (await sh.run("echo fine")).stdout == b"fine\n"


async def test_s57_jobs_in_the_background_write_into_the_next_command(
    opened: Any,
) -> None:
    async with shell(opened) as sh:
        first = await sh.run("{ read; echo job; } < <(sleep 0.02) &")
        assert first.returncode == 0
        seen = first.stdout  # it may have come before the command was over
        while seen != b"job\n":
            seen += (await sh.run("wait")).stdout


async def test_s57_a_command_that_ends_the_shell_tells_its_status(opened: Any) -> None:
    async with shell(opened) as sh:
        with pytest.raises(ShellEnded) as ended:
            await sh.run("echo bye; exit 7")
        assert (ended.value.status.code, ended.value.stdout) == (7, b"bye\n")
        with pytest.raises(ShellEnded) as again:
            await sh.run("echo never")
        assert (again.value.status.code, again.value.stdout) == (7, b"")


async def test_s57_a_killed_and_a_replaced_shell_have_ended(opened: Any) -> None:
    async with opened() as engine, engine.scope("s") as scope:
        killed, replaced = await scope.shell(), await scope.shell()
        with pytest.raises(ShellEnded) as ended:
            await killed.run("kill -9 $$")
        assert ended.value.status.signal == 9
        with pytest.raises(ShellEnded) as ended:
            await replaced.run("exec sh -c 'exit 5'")
        assert ended.value.status.code == 5


HANGING = [
    "echo begun; sleep 150; echo never",
    "echo begun; while :; do :; done",
    "f() { sleep 150; echo never; }; echo begun; while f; do f; done; echo never",
    "echo begun; sleep 150 | cat; echo never",
]


async def test_s57_a_command_that_hangs_is_interrupted_and_the_shell_kept(
    opened: Any,
) -> None:
    async with shell(opened, terminate_grace=NOT_BLOCKED) as sh:
        await sh.run("x=kept")
        for command in HANGING:
            with pytest.raises(TimedOut) as late:
                await sh.run(command, timeout=1.0)
            assert late.value.output == b"begun\n"
        assert (await sh.run("echo $x")).stdout == b"kept\n"


async def test_s57_a_command_that_resists_is_killed_with_the_shell(opened: Any) -> None:
    word = tag()
    async with shell(opened, terminate_grace=0.05) as sh:
        await sh.run("trap '' INT")
        with pytest.raises(TimedOut):
            await sh.run(f": {word}; sleep 150", timeout=0.05)
        with pytest.raises(ShellEnded) as ended:
            await sh.run("echo never")
        assert ended.value.status.cause == "killed"


async def test_a_command_that_cannot_be_killed_is_given_up_with_the_shell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def resisted(self: Child, timeout: float = 5.0) -> KillReceipt:
        return KillReceipt(1, 0, (Survivor(self.pid, 0.0, 0, "D"),))

    monkeypatch.setattr(Child, "kill", resisted)
    async with shell(Engine, terminate_grace=0.05) as sh:
        await sh.run("trap '' INT")
        run = sh.run("sleep 150", timeout=0.05)
        with pytest.raises(TimedOut):
            await asyncio.wait_for(run, NOT_BLOCKED)
        with pytest.raises(ShellEnded):
            await sh.run("echo never")


async def test_a_command_that_may_not_be_interrupted_is_killed_with_the_shell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refused(_: Child) -> bool:
        raise EngineError("it runs as another user")

    monkeypatch.setattr(Child, "interrupt", refused)
    async with shell(Engine, terminate_grace=NOT_BLOCKED) as sh:
        with pytest.raises(TimedOut):
            await asyncio.wait_for(sh.run("sleep 150", timeout=0.05), NOT_BLOCKED)
        with pytest.raises(ShellEnded) as ended:
            await sh.run("echo never")
        assert ended.value.status.cause == "killed"


async def test_a_command_whose_worker_stands_still_is_given_up() -> None:
    async with shell(Engine, terminate_grace=0.05, kill_timeout=0.5) as sh:
        stop(parent(sh.pid))
        with pytest.raises(TimedOut):
            await asyncio.wait_for(sh.run("sleep 150", timeout=0.05), NOT_BLOCKED)
        with pytest.raises(ShellEnded):
            await sh.run("echo never")


async def test_s56_a_cancelled_command_is_interrupted_before_the_next(
    opened: Any,
) -> None:
    word = tag()
    async with shell(opened, terminate_grace=NOT_BLOCKED) as sh:
        first = asyncio.create_task(sh.run(f"bash -c 'sleep 150; : {word}'"))
        while not tagged(word):
            await asyncio.sleep(0)
        second = asyncio.create_task(sh.run("echo second"))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await second).stdout == b"second\n"
        gone(word)


async def test_s57_commands_asked_for_at_once_queue_up(opened: Any) -> None:
    async with shell(opened) as sh:
        commands = (sh.run(f"x=$((x + 1)); echo {n} $x") for n in range(5))
        outputs = [done.text for done in await asyncio.gather(*commands)]
        assert sorted(o.split()[0] for o in outputs) == [str(n) for n in range(5)]
        assert sorted(o.split()[1] for o in outputs) == [str(n + 1) for n in range(5)]


async def test_s57_the_scope_ends_its_shells(opened: Any) -> None:
    word = tag()
    async with opened() as engine:
        scope = engine.scope("s")
        sh = await scope.shell()
        run = asyncio.ensure_future(sh.run(f"bash -c 'sleep 150; : {word}'"))
        while not tagged(word):
            await asyncio.sleep(0)
        await scope.aclose()
        with pytest.raises((ShellEnded, SessionNotFound)):
            await run
        gone(word)


async def test_a_shell_decides_its_streams() -> None:
    wrong: dict[str, Any] = {"argv": "bash", "stdin": "null", "retention": None}
    async with Engine() as engine, engine.scope() as scope:
        for field, value in wrong.items():
            with pytest.raises(InvalidRequest) as refused:
                await scope.shell(**{field: value})
            assert refused.value.field == field


async def test_what_is_no_shell_is_told_at_once(opened: Any) -> None:
    async with opened() as engine, engine.scope() as scope:
        with pytest.raises(ShellEnded) as ended:
            await scope.shell(["false"])
        assert ended.value.status.code == 1
        assert await scope.children() == []


async def test_a_bad_command_is_refused(opened: Any) -> None:
    async with shell(opened) as sh:
        with pytest.raises(InvalidRequest, match="command"):
            await sh.run("a\0b")
        with pytest.raises(InvalidRequest, match="timeout"):
            await sh.run("true", timeout=0)


@repeated(30, 1000)
async def test_s57_one_shell_runs_many_commands(runs: int) -> None:
    async with shell(Engine) as sh:
        for number in range(runs):
            done = await sh.run(f"echo {number}; (exit {number % 256})")
            assert (done.text, done.returncode) == (f"{number}\n", number % 256)
