"""The agent tools, used by the client of the official SDK."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

import actors
from actors import ignition
from actors.agents import server as mcp_server, toolbox, tools
from actors.outlet import MOST_PIECES
from tests.helpers import (
    FOREVER,
    NOT_BLOCKED,
    end,
    eventually,
    gone,
    parent,
    python,
    tag,
    tagged,
)
from tests.live.children import program
from tests.parts import daemons

pytestmark = pytest.mark.live

PATIENCE = 2 * NOT_BLOCKED
"""Seconds for a whole server, SDK and all, on a busy machine."""
CRECHE_MCP = [sys.executable, "-m", "actors", "mcp"]
QUICK = (
    "from actors.agents import tools; tools.YIELD_LEAST = tools.LOOK_LEAST = 0.05\n"
    "from actors.cli import main; main(['mcp'], 'creche')"
)
"""The same with times that are good for tests: the bounds are tested elsewhere."""
FIELDS = {"wall_time_seconds", "output", "chunk_id", "original_token_count"}
LONG = 30_000


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have short times, and no profile of this user: it may take a minute."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for bound in ("YIELD_LEAST", "LOOK_LEAST"):
        monkeypatch.setattr(tools, bound, 0.05)


class Tools:
    """The tools as a model has them."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._heard: dict[int, str] = {}

    async def answer(self, name: str, **arguments: Any) -> Any:
        return await self.client.call_tool(name, arguments)

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Return the result of a call that succeeds, twice told."""
        result = await self.answer(name, **arguments)
        texts = [block.text for block in result.content]
        assert not result.is_error, texts
        assert json.loads(texts[0]) == result.structured_content
        told: dict[str, Any] = result.structured_content
        return told

    async def refusal(self, name: str, **arguments: Any) -> str:
        """Return the sentence of a call that fails."""
        result = await self.answer(name, **arguments)
        assert result.is_error
        (block,) = result.content
        text: str = block.text
        return text

    async def session(self, command: list[str] | str, **options: Any) -> int:
        """Start what does not end by itself; return its number."""
        options = {"yield_time_ms": 0} | options
        told = await self.call("exec_command", cmd=line(command), **options)
        number: int = told["session_id"]
        self._heard[number] = told["output"]
        return number

    async def until(self, number: int, text: str, chars: str = "") -> str:
        """Write once, and look until a text is there; return all that came."""
        seen = self._heard.pop(number, "")
        async with asyncio.timeout(NOT_BLOCKED):
            while text not in seen:
                told = await self.call("write_stdin", session_id=number, chars=chars)
                seen += told["output"]
                chars = ""
        return seen


def line(command: list[str] | str) -> str:
    """Return a command line of which the shell makes these words, and no process."""
    if isinstance(command, str):
        return command
    words = ["'" + word.replace("'", "'\\''") + "'" for word in command]
    return "exec " + " ".join(words)


@asynccontextmanager
async def within() -> AsyncIterator[Tools]:
    """Connect a client within this process."""
    async with (
        actors.Engine(settings=toolbox.SETTINGS) as engine,
        engine.scope(capacity=tools.SESSIONS) as scope,
        Client(mcp_server.server(toolbox.Toolbox(scope))) as client,
    ):
        yield Tools(client)


@asynccontextmanager
async def connected() -> AsyncIterator[Tools]:
    """Connect a client to a server of its own, at the streams of that."""
    server = StdioServerParameters(
        command=sys.executable, args=["-c", QUICK], env=ignition.environment()
    )
    async with Client(server) as client:
        yield Tools(client)


# -- exec_command and its result --------------------------------------------------


async def test_agents_find_the_names_that_they_know() -> None:
    async with within() as tool:
        listed = {t.name: t for t in (await tool.client.list_tools()).tools}
    assert list(listed) == [
        "exec_command",
        "write_stdin",
        "list_sessions",
        "kill_session",
        "interrupt_session",
        "resize_session",
    ]
    given = {name: list(t.input_schema["properties"]) for name, t in listed.items()}
    bounds = ["yield_time_ms", "max_output_tokens"]
    assert given["exec_command"] == ["cmd", "workdir", "shell", "login", "tty", *bounds]
    assert given["write_stdin"] == ["session_id", "chars", *bounds]
    hints = {name: t.annotations for name, t in listed.items()}
    assert [n for n, hint in hints.items() if hint and hint.read_only_hint] == [
        "list_sessions"
    ]


async def test_a_command_that_ends_has_an_exit_code_and_no_session() -> None:
    async with within() as tool:
        told = await tool.call("exec_command", cmd="echo out; echo err >&2; exit 3")
        assert set(told) == FIELDS | {"exit_code"}
        assert (told["output"], told["exit_code"]) == ("out\nerr\n", 3)
        assert told["original_token_count"] == 2
        assert (await tool.call("list_sessions"))["sessions"] == []


async def test_a_command_that_runs_has_a_session_until_its_end_is_told() -> None:
    async with within() as tool:
        told = await tool.call("exec_command", cmd="cat", yield_time_ms=0)
        assert set(told) == FIELDS | {"session_id"}
        number = told["session_id"]
        assert await tool.until(number, "hello", "hello\n") == "hello\n"
        told = await tool.call("write_stdin", session_id=number, chars="\x04")
        while "exit_code" not in told:
            told = await tool.call("write_stdin", session_id=number)
        assert told["exit_code"] == 0
        assert f"no session {number}" in await tool.refusal(
            "write_stdin", session_id=number
        )


async def test_the_command_has_an_environment_for_agents_and_its_directory(
    tmp_path: Path,
) -> None:
    async with within() as tool:
        told = await tool.call("exec_command", cmd="pwd; env", workdir=str(tmp_path))
    lines = told["output"].splitlines()
    assert lines[0] == str(tmp_path)
    assert {f"{k}={v}" for k, v in actors.AGENT_ENV.items()} <= set(lines)


@pytest.mark.parametrize(("login", "said"), [(True, "login"), (False, "plain")])
async def test_the_shell_is_the_one_that_was_asked_for(login: bool, said: str) -> None:
    cmd = "echo ${BASH_VERSION:+bash}; shopt -q login_shell && echo login || echo plain"
    async with within() as tool:
        told = await tool.call("exec_command", cmd=cmd, shell="/bin/bash", login=login)
    assert told["output"].splitlines()[-2:] == ["bash", said]


def test_the_shell_is_the_users_if_it_runs_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")
    assert toolbox.users_shell() == "/bin/sh"
    monkeypatch.setenv("SHELL", "/usr/sbin/nologin")
    assert tools.is_shell(toolbox.users_shell())
    monkeypatch.setenv("SHELL", "/no/such/bash")
    assert os.access(toolbox.users_shell(), os.X_OK)


async def test_a_flood_is_cut_and_its_size_is_told() -> None:
    code = "import os\nfor _ in range(100): os.write(1, b'0123456789abcdef' * 4096)"
    async with within() as tool:
        told = await tool.call(
            "exec_command", cmd=line(python(code)), max_output_tokens=100
        )
    assert told["exit_code"] == 0
    assert told["output"].startswith("0123456789abcdef")
    assert len(told["output"]) < 1000
    assert "characters left out" in told["output"]
    assert "bytes from its middle were not kept" in told["output"]
    assert told["original_token_count"] == 100 * 16 * 4096 // 4


@pytest.mark.parametrize("size", [200_000, 9_000_000], ids=["exec", "wire"])
async def test_a_command_line_that_is_too_long_is_told_by_its_name(size: int) -> None:
    async with within() as tool:
        why = await tool.refusal("exec_command", cmd="true " + "#" * size)
    assert why.startswith("cmd: is longer than the system takes")


@pytest.mark.timeout(2 * FOREVER)
async def test_output_in_very_many_pieces_is_told_with_the_end() -> None:
    """A poll gives no more than a number of pieces, and a command may leave more."""
    lines = MOST_PIECES + 500
    code = (
        "import array, fcntl, os, termios\n"
        f"for n in range({lines}):\n"
        "    left = array.array('i', [1])\n"
        "    while left[0]:  # it was not read yet\n"
        "        fcntl.ioctl(2 - n % 2, termios.FIONREAD, left)\n"
        "        os.sched_yield()\n"
        "    os.write(1 + n % 2, b'%d\\n' % n)\n"
    )
    async with within() as tool:
        told = await tool.call(
            "exec_command",
            cmd=line(python(code)),
            yield_time_ms=LONG,
            max_output_tokens=1_000_000,
        )
        seen = told["output"]
        while "exit_code" not in told:  # a busy machine takes its time
            told = await tool.call(
                "write_stdin",
                session_id=told["session_id"],
                yield_time_ms=LONG,
                max_output_tokens=1_000_000,
            )
            seen += told["output"]
    assert (told["exit_code"], "session_id" in told) == (0, False)
    assert [int(n) for n in seen.splitlines()] == list(range(lines))


# -- sessions ---------------------------------------------------------------------


async def test_an_interactive_python_on_a_terminal() -> None:
    async with connected() as tool:
        number = await tool.session([sys.executable, "-i", "-q"], tty=True)
        await tool.until(number, ">>>")
        assert "42" in await tool.until(number, "42", "print(6 * 7)\n")
        await tool.until(number, "begun", "print('be' + 'gun'); input()\n")
        assert "KeyboardInterrupt" in await tool.until(number, ">>>", "\x03")
        rows = (await tool.call("list_sessions"))["sessions"]
        assert [row["session_id"] for row in rows] == [number]
        told = await tool.call("kill_session", session_id=number)
        assert (told["exit_code"], told["survivors"]) == (137, [])


async def test_a_long_build_is_looked_at_until_it_ends() -> None:
    build = program("write(b'one '); os.read(0, 9); write(b'two '); os.read(0, 9)")
    async with within() as tool:
        number = await tool.session(build)
        seen = await tool.until(number, "one")
        seen += await tool.until(number, "two", "on\n")
        told = await tool.call("write_stdin", session_id=number, chars="on\n")
        while "exit_code" not in told:
            told = await tool.call("write_stdin", session_id=number)
    assert (seen, told["exit_code"]) == ("one two ", 0)


@pytest.mark.parametrize("how", ["write_stdin", "interrupt_session"])
async def test_an_interrupt_reaches_a_command_without_a_terminal(how: str) -> None:
    code = (
        "import signal\n"
        "try:\n"
        "    print('up', flush=True); signal.pause()\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    async with within() as tool:
        number = await tool.session(python(code))
        await tool.until(number, "up")
        if how == "write_stdin":
            await tool.until(number, "interrupted", "\x03")
        else:
            told = await tool.call("interrupt_session", session_id=number)
            assert told == {"session_id": number, "interrupted": True}
            await tool.until(number, "interrupted")


async def test_what_comes_before_a_key_is_written_before() -> None:
    async with within() as tool:
        number = await tool.session("cat; echo over; exec sleep 99")
        told = await tool.call(
            "write_stdin", session_id=number, chars="a\x04", yield_time_ms=3000
        )
        seen = told["output"]
        if "over" not in seen:
            seen += await tool.until(number, "over")
        assert seen == "aover\n"
        why = await tool.refusal("write_stdin", session_id=number, chars="b")
        assert "stdin" in why


async def test_a_key_does_not_wait_for_ever_for_what_comes_before_it() -> None:
    async with within() as tool:
        number = await tool.session("exec sleep 99")
        why = await tool.refusal(
            "write_stdin", session_id=number, chars="x" * 2_000_000 + "\x03"
        )
        assert why.startswith("chars: ")


async def test_sessions_are_listed_until_their_end_is_told() -> None:
    async with within() as tool:
        number = await tool.session("read line; exit 5")
        (row,) = (await tool.call("list_sessions"))["sessions"]
        assert (row["session_id"], row["state"]) == (number, "running")
        assert (row["cmd"], row["tty"]) == ("read line; exit 5", False)
        assert row["workdir"] == os.getcwd()
        end([row["pid"]])
        async with asyncio.timeout(NOT_BLOCKED):
            while row["state"] == "running":
                (row,) = (await tool.call("list_sessions"))["sessions"]
        assert row["exit_code"] == 137
        told = await tool.call("write_stdin", session_id=number)
        assert told["exit_code"] == 137
        assert (await tool.call("list_sessions"))["sessions"] == []


async def test_a_directory_whose_name_is_no_text_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(directory)
    monkeypatch.chdir(os.fsdecode(directory))
    async with within() as tool:
        await tool.session("exec sleep 99")
        (row,) = (await tool.call("list_sessions"))["sessions"]
    assert row["workdir"] == f"{tmp_path}/\\xff"


async def test_a_terminal_is_resized_and_a_pipe_is_not() -> None:
    async with within() as tool:
        terminal = await tool.session("read line; stty size", tty=True)
        told = await tool.call("resize_session", session_id=terminal, rows=7, cols=99)
        assert told == {"session_id": terminal, "rows": 7, "cols": 99}
        assert "7 99" in await tool.until(terminal, "7 99", "\n")
        pipe = await tool.session("exec sleep 99")
        why = await tool.refusal("resize_session", session_id=pipe, rows=7, cols=99)
        assert why == f"session_id: {pipe} has no terminal: start it with tty"


async def test_a_kill_ends_the_whole_tree_and_gives_the_last_words() -> None:
    word = tag()
    async with within() as tool:
        number = await tool.session(daemons(word))
        async with asyncio.timeout(NOT_BLOCKED):
            while len(tagged(word)) < 4:
                await tool.call("list_sessions")
        told = await tool.call("kill_session", session_id=number)
        assert told["survivors"] == []
        assert not tagged(word)


async def test_a_later_call_ends_an_earlier_look_at_the_session() -> None:
    async with within() as tool:
        number = await tool.session("cat")
        looking = asyncio.ensure_future(
            tool.call("write_stdin", session_id=number, yield_time_ms=300_000)
        )
        async with asyncio.timeout(NOT_BLOCKED):
            told = await tool.call("write_stdin", session_id=number, chars="word\n")
            seen = told["output"]
            while not looking.done():  # it may have come after that one
                told = await tool.call("write_stdin", session_id=number)
                seen += told["output"]
        looked = await looking
        assert looked["session_id"] == number
        seen += looked["output"]
        if not seen:
            seen = await tool.until(number, "word")
        assert seen == "word\n"


async def test_a_kill_leaves_the_end_to_be_told_to_whoever_looks() -> None:
    async with within() as tool:
        number = await tool.session("exec sleep 99")
        looking = asyncio.ensure_future(
            tool.call("write_stdin", session_id=number, yield_time_ms=300_000)
        )
        killed = await tool.call("kill_session", session_id=number)
        looked = await asyncio.wait_for(looking, NOT_BLOCKED)
        assert killed["exit_code"] == 137
        assert looked.get("exit_code", 137) == 137


async def test_twenty_calls_at_once_do_not_wait_for_each_other() -> None:
    async with connected() as tool, asyncio.timeout(PATIENCE):
        numbers = await asyncio.gather(*(tool.session("cat") for _ in range(20)))
        assert len(set(numbers)) == 20
        words = [f"word{n}" for n in numbers]
        seen = await asyncio.gather(
            *map(tool.until, numbers, words, [f"{word}\n" for word in words])
        )
        assert seen == [f"{word}\n" for word in words]


async def test_cancelling_a_call_ends_the_look_and_not_the_command() -> None:
    code = "print('begun', flush=True); input(); print('done', flush=True)"
    async with connected() as tool:
        starting = asyncio.ensure_future(
            tool.call("exec_command", cmd=line(python(code)), yield_time_ms=LONG)
        )
        async with asyncio.timeout(NOT_BLOCKED):
            while not (await tool.call("list_sessions"))["sessions"]:
                pass
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        (row,) = (await tool.call("list_sessions"))["sessions"]
        seen = await tool.until(row["session_id"], "done", "\n")
        assert seen == "begun\ndone\n"


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("write_stdin", {"chars": "\x03"}),
        ("kill_session", {}),
        ("interrupt_session", {}),
        ("resize_session", {"rows": 7, "cols": 99}),
    ],
)
async def test_an_end_that_a_cancelled_call_did_not_tell_is_told_by_the_next(
    monkeypatch: pytest.MonkeyPatch, name: str, given: dict[str, Any]
) -> None:
    aclose, closed = actors.Child.aclose, asyncio.Event()

    async def held_up(child: actors.Child) -> None:
        await aclose(child)
        closed.set()
        await asyncio.Event().wait()

    async with (
        actors.Engine(settings=toolbox.SETTINGS) as engine,
        engine.scope(capacity=tools.SESSIONS) as scope,
    ):
        box = toolbox.Toolbox(scope)
        with monkeypatch.context() as patch:
            patch.setattr(actors.Child, "aclose", held_up)
            starts = {"cmd": "echo last words; exit 3", "yield_time_ms": LONG}
            call = asyncio.ensure_future(box.call("exec_command", starts))
            await closed.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        (row,) = (await box.call("list_sessions", None)).result["sessions"]
        assert (row["state"], row["exit_code"]) == ("ended", 3)
        which = {"session_id": row["session_id"]}
        told = (await box.call(name, which | given)).result
        if name in {"interrupt_session", "resize_session"}:  # no look at it
            assert not told.get("interrupted")
            told = (await box.call("write_stdin", which)).result
        assert (told["output"], told["exit_code"]) == ("last words\n", 3)
        assert told.get("survivors", []) == []
        assert (await box.call("list_sessions", None)).result["sessions"] == []


async def test_cancelling_a_call_does_not_take_back_what_it_is_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_go_on = asyncio.Event(), asyncio.Event()
    async with actors.Engine() as engine, engine.scope() as scope:
        spawn = scope.spawn

        async def slow(*words: Any, **options: Any) -> actors.Child:
            begun.set()
            await may_go_on.wait()
            return await spawn(*words, **options)

        monkeypatch.setattr(scope, "spawn", slow)
        box = toolbox.Toolbox(scope)
        call = asyncio.ensure_future(box.call("exec_command", {"cmd": "exec sleep 99"}))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        may_go_on.set()
        async with asyncio.timeout(NOT_BLOCKED):
            rows: list[Any] = []
            while not rows:
                await engine.children()
                rows = (await box.call("list_sessions", None)).result["sessions"]
        assert [row["cmd"] for row in rows] == ["exec sleep 99"]


async def test_a_65th_session_takes_the_place_of_the_one_used_last() -> None:
    async with within() as tool:
        numbers = [await tool.session("exec sleep 99") for _ in range(8)]
        rest = tools.SESSIONS - len(numbers)
        starts = (tool.session("exec sleep 99") for _ in range(rest))
        numbers += await asyncio.gather(*starts)
        crowded = await tool.answer("exec_command", cmd="true", yield_time_ms=0)
        assert "kill_session" in crowded.content[-1].text
        told = await tool.call("write_stdin", session_id=numbers[0])
        assert told["exit_code"] == 137
        assert "evicted" in told["output"]


async def test_a_command_whose_worker_died_is_told_as_lost() -> None:
    async with within() as tool:
        number = await tool.session("exec sleep 99")
        (row,) = (await tool.call("list_sessions"))["sessions"]
        end([parent(row["pid"])])
        assert "worker died" in await tool.refusal("write_stdin", session_id=number)
        assert (await tool.call("list_sessions"))["sessions"] == []


@pytest.mark.parametrize("name", ["write_stdin", "list_sessions"])
async def test_what_the_broker_let_go_of_cannot_be_named_any_more(name: str) -> None:
    async with actors.Engine() as engine, engine.scope() as scope:
        box = toolbox.Toolbox(scope)
        started = {"cmd": "exec sleep 99", "yield_time_ms": 0}
        number = (await box.call("exec_command", started)).result["session_id"]
        await engine._connection().end(number, None, NOT_BLOCKED, release=True)
        if name == "list_sessions":
            assert (await box.call(name, None)).result == {"sessions": []}
        else:
            with pytest.raises(actors.EngineError):
                await box.call(name, {"session_id": number})
        assert box._sessions == {}


# -- mistakes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool_name", "name", "given"),
    [
        ("exec_command", "cmd", 5),
        ("exec_command", "workdir", "/no/such/place"),
        ("exec_command", "shell", "/no/such/shell"),
        ("exec_command", "login", "yes"),
        ("exec_command", "tty", "yes"),
        ("exec_command", "yield_time_ms", "soon"),
        ("exec_command", "max_output_tokens", -1),
        ("exec_command", "sandbox", "no"),
        ("write_stdin", "session_id", 1),
        ("write_stdin", "session_id", "cat"),
        ("write_stdin", "chars", 5),
        ("write_stdin", "yield_time_ms", -1),
        ("write_stdin", "max_output_tokens", "many"),
        ("kill_session", "session_id", 0),
        ("kill_session", "max_output_tokens", 0.5),
        ("interrupt_session", "session_id", -1),
        ("resize_session", "session_id", None),
        ("resize_session", "rows", 0),
        ("resize_session", "cols", 70_000),
    ],
)
async def test_a_bad_argument_is_answered_with_a_sentence_that_names_it(
    tool_name: str, name: str, given: object
) -> None:
    async with within() as tool:
        fine = {"cmd": "true", "session_id": 1, "rows": 1, "cols": 1}
        known = tools.TOOLS[tool_name].schema["required"]
        arguments = {k: v for k, v in fine.items() if k in known}
        why = await tool.refusal(tool_name, **arguments | {name: given})
        assert why.startswith(f"{name}: ")


async def test_an_unknown_tool_is_answered_with_the_known_ones() -> None:
    async with within() as tool:
        assert "exec_command" in await tool.refusal("bash", command="ls")


# -- the end ----------------------------------------------------------------------


async def test_all_is_gone_with_the_client_that_closes() -> None:
    word = tag()
    async with connected() as tool:
        await tool.session(daemons(word))
        async with asyncio.timeout(NOT_BLOCKED):
            while len(tagged(word)) < 4:
                await tool.call("list_sessions")
    gone(word)


CLIENT = """
import asyncio, sys
from mcp import Client, StdioServerParameters

async def main():
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "actors", "mcp"], env=dict(os.environ)
    )
    async with Client(server) as client:
        await client.call_tool("exec_command", {"cmd": sys.argv[1], "yield_time_ms": 0})
        print("begun", flush=True)
        await client.call_tool(
            "exec_command", {"cmd": "exec sleep 99", "yield_time_ms": 30000}
        )

import os
asyncio.run(main())
"""


def test_all_is_gone_with_the_client_that_is_killed_in_the_middle() -> None:
    word = tag()
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, line(daemons(word))],
        env=ignition.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as client:
        assert client.stdout is not None
        assert client.stderr is not None
        assert client.stdout.readline() == b"begun\n"
        eventually(lambda: len(tagged(word)) >= 4, PATIENCE)
        client.kill()
        gone(word)
        said = client.stderr.read().decode()
        assert "Traceback" not in said, said


@pytest.mark.parametrize("how", ["closes", "terminates", "interrupts"])
def test_all_is_gone_with_the_server_whose_client_reads_no_more(how: str) -> None:
    word = tag()
    call = {"name": "exec_command"}
    words: list[dict[str, Any]] = [
        request(1, "initialize", **HELLO),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        request(2, "tools/call", **call, arguments={"cmd": line(daemons(word))}),
        # More than a pipe takes.
        *(request(n, "tools/list") for n in range(3, 40)),
    ]
    with subprocess.Popen(
        CRECHE_MCP,
        env=ignition.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as server:
        assert server.stdin is not None
        assert server.stderr is not None
        for message in words:
            server.stdin.write(json.dumps(message).encode() + b"\n")
        server.stdin.flush()
        eventually(lambda: len(tagged(word)) >= 4, PATIENCE)
        if how == "closes":
            server.stdin.close()
            gone(word)
        server.send_signal(2 if how == "interrupts" else 15)
        gone(word)
        assert b"Traceback" not in server.stderr.read()


HELLO: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


def request(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


# -- trouble ----------------------------------------------------------------------


def test_without_the_sdk_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['mcp'] = None\n"
        "from actors.cli import main; main(['mcp'], 'creche')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=ignition.environment(),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"creche: ")
    assert b": pip install 'mcp" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("closed", "said"),
    [("<&-", "stdin cannot be read"), (">&-", "stdout cannot be written to")],
)
def test_without_a_client_it_says_so_in_one_sentence(closed: str, said: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *CRECHE_MCP],
        env=ignition.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    (line,) = done.stderr.decode().splitlines()
    assert (done.returncode, line.partition(":")[2].split(":")[0]) == (1, f" {said}")


def test_without_an_engine_it_says_why() -> None:
    done = subprocess.run(
        [*CRECHE_MCP, "--endpoint", "ipc:///no/such/broker"],
        env=ignition.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"creche: endpoint")
    assert b"Traceback" not in done.stderr
