"""The verbs of `creche` that work on a running broker."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import actors
from actors import blocking, ignition
from actors.console import attaching, operating, stdio
from broker import auth
from tests.helpers import alive, eventually, gone, is_full, python, tag, tagged
from tests.live.children import REST, STEP_BY_STEP, program, until
from tests.parts import serving
from tests.person import CRECHE, LONGEST, PATIENCE

pytestmark = [pytest.mark.live, pytest.mark.timeout(LONGEST)]


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A broker that every command here finds."""
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    monkeypatch.setenv("CRECHE_BROKER", endpoint)
    with serving(endpoint):
        yield endpoint


def creche(*words: str | bytes, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    plain: dict[str, Any] = {} if "input" in options else {"stdin": subprocess.DEVNULL}
    return subprocess.run(
        [*CRECHE, *words],
        env=ignition.environment() | options.pop("env", {}),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
        **plain | options,
    )


def said(*words: str, **options: Any) -> str:
    """What a command says that succeeds."""
    done = creche(*words, **options)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def left(*words: str) -> str:
    """Leave a command to the broker; return its number."""
    return said("run", "--detach", *words).strip()


def soon(fact: Callable[[], bool]) -> None:
    """Wait until a fact is true that takes a command to look at."""
    eventually(fact, PATIENCE)


def refused(*words: str, code: int = 1, **options: Any) -> str:
    """The one sentence of a command that fails."""
    done = creche(*words, **options)
    assert (done.returncode, done.stdout) == (code, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("creche: ")
    return line


# -- run --detach -------------------------------------------------------------------


def test_what_is_left_lives_on_and_is_found_from_anywhere(broker: str) -> None:
    word = tag()
    number = left("--name", "job", "--", *python(SAYS_AND_STAYS, word))
    eventually(lambda: tagged(word))
    soon(lambda: said("logs", "job") == "one\n")
    (found,) = json.loads(said("ps", "--json"))
    assert (found["id"], found["name"], found["state"]) == (
        int(number),
        "job",
        "running",
    )
    assert found["owner_alive"] is False
    assert said("kill", "job") == "job: 1 process ended\n"
    assert not tagged(word)
    assert creche("wait", "job").returncode == 128 + signal.SIGKILL
    assert said("logs", number) == "one\n"


SAYS_AND_STAYS = "print('one', flush=True); signal.pause()"


def test_its_start_is_told_to_programs(broker: str) -> None:
    done = said("run", "-d", "--json", "--name", "n", "--", "sleep", "99")
    started = json.loads(done)
    assert (started["id"], started["name"]) == (1000, "n")
    assert alive(started["pid"])


def test_a_name_is_one_living_sessions(broker: str) -> None:
    first = left("--name", "same", "--", "sleep", "99")
    taken = refused("run", "-d", "--name", "same", "--", "true", code=125)
    assert f"session {first}" in taken
    creche("kill", first)
    second = left("--name", "same", "--", "sh", "-c", "echo second")
    assert creche("wait", "same").returncode == 0
    assert said("logs", "same") == said("logs", second) == "second\n"
    for name in ("", "12"):
        assert "name" in refused("run", "-d", "--name", name, "--", "true", code=125)


async def test_a_name_that_two_ask_for_at_once_is_given_to_one(broker: str) -> None:
    start = partial(
        operating.detach, broker, tuple(program(REST)), {}, ttl=None, grace=1.0
    )
    both = await asyncio.gather(
        start(name="one"), start(name="one"), return_exceptions=True
    )
    (taken,) = (one for one in both if isinstance(one, actors.InvalidRequest))
    (started,) = (one for one in both if isinstance(one, dict))
    assert f"'one' is the name of session {started['id']}" in str(taken)


def test_two_living_ones_of_a_name_are_told_apart_by_number(broker: str) -> None:
    with blocking.Engine(broker) as engine:
        twins = [
            engine.spawn(program(REST), metadata={"name": "twin"}) for _ in range(2)
        ]
        sentence = refused("stats", "twin")
        assert all(str(twin.id) in sentence for twin in twins)


def test_its_ttl_ends_it(broker: str) -> None:
    word = tag()
    left("--ttl", "0.2", "--", *python(SAYS_AND_STAYS, word))
    gone(word)


def test_its_input_is_empty_unless_it_is_to_be_written_to(broker: str) -> None:
    assert creche("wait", left("--", "cat")).returncode == 0
    number = left("--interactive", "--", "cat")
    assert said("write", number, "a line", "--keys", "Enter") == ""
    soon(lambda: said("logs", number) == "a line\n")
    assert said("write", number, input=b"from stdin\n") == ""
    assert said("write", number, "--eof") == ""
    assert creche("wait", number).returncode == 0
    assert said("logs", number) == "a line\nfrom stdin\n"
    assert "ended" in refused("write", number, "more")


def test_input_that_cannot_be_read_is_not_taken_for_none(broker: str) -> None:
    number = left("--interactive", "--", "cat")
    for held in (lambda: os.close(0), lambda: os.dup2(os.open("/dev/null", 1), 0)):
        line = refused("write", number, stdin=None, preexec_fn=held)
        assert line == "creche: stdin: Bad file descriptor"


def test_input_that_breaks_off_is_not_taken_for_its_end(broker: str) -> None:
    number = left("--interactive", "--", "cat")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.send(b"never read: so the other side is reset")
        theirs.send(b"first\n")
        theirs.close()
        line = refused("write", number, stdin=ours)
    assert line == "creche: stdin: Connection reset by peer"
    soon(lambda: said("logs", number) == "first\n")


@pytest.mark.parametrize("words", [("--name", "x"), ("--ttl", "5s")])
def test_what_belongs_to_a_detached_one_needs_it(words: tuple[str, str]) -> None:
    done = creche("run", *words, "--", "true")
    assert done.returncode == 125
    assert b"need --detach" in done.stderr


def test_a_command_that_cannot_start_is_told_at_once(broker: str) -> None:
    assert "no-such" in refused("run", "-d", "--", "no-such-program", code=127)


def test_the_usual_broker_is_the_one_that_serve_starts() -> None:
    endpoint = auth.usual_endpoint(os.environ, os.geteuid())
    assert "creche serve" in refused("ps")
    with serving(endpoint):
        number = left("--", "sh", "-c", "exit 5")
        assert creche("wait", number).returncode == 5


# -- ps -----------------------------------------------------------------------------


def test_a_table_of_sessions(broker: str) -> None:
    with blocking.Engine(broker) as engine, engine.scope("build") as scope:
        child = scope.spawn(["sh", "-c", "sleep 99 # a\n# b"])
        ended = left("--name", "done", "--", "sh", "-c", "exit 3")
        assert creche("wait", ended).returncode == 3
        rows = [re.split(r"  +", line) for line in said("ps").splitlines()]
        assert rows[0] == ["ID", "NAME", "STATE", "PID", "TIME", "SCOPE", "COMMAND"]
        (row,) = rows[1:]
        assert row[:4] == [str(child.id), "-", "running", str(child.pid)]
        assert row[5:] == ["build", "sh -c 'sleep 99 # a # b'"]
        everything = said("ps", "--all").splitlines()
        assert len(everything) == 3
        assert "done  exited 3" in everything[2]
        assert len(said("ps", "-a", "--scope", "build").splitlines()) == 2


@pytest.mark.parametrize("look", [("ps",), ("top", "--count", "1")])
def test_an_argument_that_is_no_text_is_shown_by_its_bytes(
    look: tuple[str, ...], broker: str
) -> None:
    """Also where stdout refuses what the locale cannot say, as most do."""
    with blocking.Engine(broker) as engine:
        with engine.spawn([*program(REST), b"\xff"]):
            shown = said(*look, env={"PYTHONIOENCODING": "utf-8:strict"})
            assert shown.rstrip().endswith(" '\\xff'")
        with engine.spawn([*program(REST), "\u20ac"]):
            shown = said(*look, env={"PYTHONIOENCODING": "latin-1:strict"})
            assert shown.rstrip().endswith(" '\\u20ac'")


@pytest.mark.parametrize("look", [("ps",), ("top", "--count", "1")])
def test_nothing_that_is_shown_does_something_to_the_terminal(
    look: tuple[str, ...], broker: str
) -> None:
    name = {"name": "n\x1b[2J\nn"}
    with blocking.Engine(broker) as engine, engine.scope("s\x1b[1m") as scope:
        scope.spawn([*program(REST), "a\x1b[3m"], metadata=name)
        shown = said(*look)
        assert "\x1b" not in shown
        for word in ("s\\x1b[1m", "n\\x1b[2J\\nn", "a\\x1b[3m"):
            assert word in shown


def test_what_happens_is_told_line_by_line(broker: str) -> None:
    began = time.time()  # noqa: TID251 - a date
    number = left("--", "sleep", "99")
    with subprocess.Popen(
        [*CRECHE, "ps", "--watch", "--json"],
        env=ignition.environment(),
        stdout=subprocess.PIPE,
    ) as watching:
        assert watching.stdout is not None
        there = json.loads(watching.stdout.readline())
        assert (there["id"], there["argv"]) == (int(number), ["sleep", "99"])
        assert began <= there["started"] <= time.time()  # noqa: TID251
        creche("kill", number)
        event = json.loads(watching.stdout.readline())
        assert (event["event"], event["id"]) == ("exited", int(number))
        assert (event["code"], event["signal"], event["cause"]) == (None, 9, "killed")
        assert (event["error"], event["message"]) == (None, None)
        assert began <= event["time"] <= time.time()  # noqa: TID251 - a date
        watching.send_signal(signal.SIGINT)
        assert watching.wait(PATIENCE) == 128 + signal.SIGINT


# -- logs ---------------------------------------------------------------------------


def test_each_stream_is_written_to_ours(broker: str) -> None:
    number = left("--", "sh", "-c", "echo out; echo err >&2")
    creche("wait", number)
    done = creche("logs", number)
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")


def test_logs_are_followed_to_the_end(broker: str) -> None:
    number = left("-i", "--", "sh", "-c", "echo one; read x; echo two")
    with subprocess.Popen(
        [*CRECHE, "logs", "-f", number],
        env=ignition.environment(),
        stdout=subprocess.PIPE,
    ) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == b"one\n"
        creche("write", number, "--keys", "Enter")
        assert following.stdout.read() == b"two\n"
        assert following.wait(PATIENCE) == 0


def test_logs_end_quietly_with_their_reader(broker: str) -> None:
    number = left("--", *python("while True: print('y' * 999)"))
    with subprocess.Popen(
        [*CRECHE, "logs", "-f", number],
        env=ignition.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        following.stdout.readline()
        following.stdout.close()
        assert following.wait(PATIENCE) == 128 + signal.SIGPIPE
        assert b"Traceback" not in following.stderr.read()


@pytest.mark.parametrize("verb", [("logs", "-f"), ("attach",)], ids=" ".join)
def test_an_interrupt_gets_through_while_nobody_reads(
    broker: str, verb: tuple[str, ...]
) -> None:
    number = left("--", *python("while True: print('y' * 999)"))
    with subprocess.Popen(
        [*CRECHE, *verb, number],
        env=ignition.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as looking:
        eventually(lambda: is_full(looking.pid), PATIENCE)
        looking.send_signal(signal.SIGINT)
        assert looking.wait(PATIENCE) == 128 + signal.SIGINT


def test_logs_begin_where_one_left_off(broker: str) -> None:
    number = left("--", "printf", "abcdef")
    creche("wait", number)
    assert said("logs", "--since", "4", number) == "ef"
    assert said("logs", "--since", "1K", number) == ""
    assert json.loads(said("stats", "--json", number))["stdout"]["produced"] == 6


@pytest.mark.parametrize("since", ["0", "10"])
def test_what_is_not_kept_is_told(broker: str, since: str) -> None:
    with blocking.Engine(broker) as engine:
        keep = actors.OutputPolicy.tail(3)
        child = engine.spawn(["printf", "%030d", "7"], retention=keep)
        child.wait()
        done = creche("logs", "--since", since, str(child.id))
        assert done.stdout == b"007"
        missing = 27 - int(since)
        assert done.stderr.startswith(f"creche: {missing} bytes of output".encode())


def test_words_that_nobody_can_hear_keep_no_output_back(broker: str) -> None:
    with blocking.Engine(broker) as engine:
        keep = actors.OutputPolicy.tail(3)
        child = engine.spawn(["printf", "%030d", "7"], retention=keep)
        child.wait()
        # So that attach has something to say.
        with closing(operating.Claim(broker, child.id)):
            for verb in ("logs", "attach"):
                done = creche(verb, str(child.id), preexec_fn=lambda: os.close(2))
                assert (done.returncode, done.stdout) == (0, b"007")


async def test_s19_what_went_between_the_replay_and_the_rest_is_told(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = operating.kept
    written: list[tuple[int, bytes]] = []

    async def put(fd: int, data: bytes) -> None:
        written.append((fd, data))

    async def more_came(child: actors.Child) -> Any:
        found = await kept(child)
        await child.write(b"1 second\n1 third\n")
        await child.close_stdin()
        await child.wait()
        return found

    monkeypatch.setattr(stdio, "put", put)
    monkeypatch.setattr(operating, "kept", more_came)
    async with actors.Engine(broker) as engine:
        child = await engine.spawn(
            program(STEP_BY_STEP), stdin="pipe", retention=actors.OutputPolicy.tail(3)
        )
        await child.write(b"1 one\n")
        await until(child, b"one")
        attached = attaching.Attached(child, b"", types=False)
        assert (await attached._show(replay=True)).code == 0
    told = b"creche: 8 bytes of output are not kept any more\r\n"
    assert [one for one in written if one[1]] == [(1, b"one"), (2, told), (1, b"ird")]


# -- write, resize, screen, stats ---------------------------------------------------


def test_a_terminal_is_typed_into_resized_and_looked_at(broker: str) -> None:
    number = left("-t", "--env", "PS1=$ ", "--", "bash", "--norc", "--noprofile")
    assert said("resize", number, "5", "40") == ""
    soon(lambda: said("screen", number) == "$\n")
    said("write", number, "stty size; cat", "--keys", "Enter")
    soon(lambda: said("screen", number) == "$ stty size; cat\n5 40\n")
    said("write", number, "--keys", "x Enter")
    soon(lambda: said("screen", number).endswith("x\nx\n"))
    said("write", number, "--keys", "C-c")
    soon(lambda: said("screen", number).endswith("x\nx\n^C\n$\n"))
    facts = json.loads(said("screen", "--json", number))
    assert (facts["rows"], facts["cols"], facts["missed"]) == (5, 40, 0)
    assert facts["cursor"] == [4, 2]
    plain = left("--", "sleep", "99")
    none = f"creche: session {plain} has no terminal: start it with `creche run --tty`"
    assert refused("screen", plain) == refused("resize", plain, "5", "40") == none
    assert "`creche run --interactive`" in refused("write", plain, "x")


def test_a_picture_of_a_terminal_has_its_text_and_colours(
    broker: str, tmp_path: Path
) -> None:
    number = left("-t", "--", "printf", r"plain \033[38;2;1;2;3mcoloured\033[0m")
    creche("wait", number)
    path = tmp_path / "screen.svg"
    assert said("screen", "--svg", str(path), number) == ""
    picture = path.read_text()
    assert "coloured" in picture
    assert "#010203" in picture
    nowhere = str(tmp_path / "no" / "such.svg")
    assert "No such file" in refused("screen", "--svg", nowhere, number)


def test_keys_do_in_a_pipe_what_they_do_in_a_terminal(broker: str) -> None:
    codes = {"C-c": 130, "C-d": 0, "C-\\": 131}
    for keys, code in codes.items():
        number = left("-i", "--", "cat")
        assert said("write", number, "--keys", keys) == ""
        assert creche("wait", number).returncode == code
    done = creche("write", "1000", "--keys", "Entr")
    assert done.returncode == 2
    assert b"'Entr' is no key" in done.stderr


def test_what_is_written_is_the_bytes_given(latin: dict[str, str], broker: str) -> None:
    number = left("-i", "--", "cat")
    for way in ([], ["--keys"]):
        done = creche("write", number, *way, "ü".encode(), env=latin)
        assert (done.returncode, done.stderr) == (0, b"")
    assert said("write", number, "--eof") == ""
    assert creche("wait", number).returncode == 0
    assert said("logs", number) == "üü"


def test_keys_are_typed_and_nothing_else_is(broker: str) -> None:
    number = left("-i", "--", "cat")
    assert said("write", number, "--keys", ",", "--eof", input=b"not this") == ""
    assert creche("wait", number).returncode == 0
    assert said("logs", number) == ","
    for empty in ("", " "):
        done = creche("write", number, "--keys", empty, input=b"nor this")
        assert done.returncode == 2
        assert b"names no key" in done.stderr


def test_what_a_session_uses_is_told(broker: str) -> None:
    number = left("--", "sh", "-c", "echo 12345; sleep 99 & wait")
    soon(lambda: "processes  2\n" in said("stats", number))
    assert "stdout     6 bytes, 6 kept, 0 not" in said("stats", number)


# -- kill and wait ------------------------------------------------------------------


def test_a_kill_answers_for_each(broker: str) -> None:
    one, two = left("--", "sleep", "99"), left("--", "true")
    creche("wait", two)
    done = creche("kill", one, two, "4711", "nosuch", "--json")
    assert done.returncode == 1
    answers = {answer["given"]: answer for answer in json.loads(done.stdout)}
    assert answers[one] == {
        "id": int(one),
        "given": one,
        "signalled": 1,
        "reaped": 1,
        "survivors": [],
        "error": None,
        "message": None,
    }
    assert (answers[two]["signalled"], answers[two]["error"]) == (0, None)
    assert (answers["4711"]["id"], answers["nosuch"]["id"]) == (4711, None)
    assert answers["4711"]["error"] == "session-not-found"
    assert "4711" in answers["4711"]["message"]


@pytest.mark.parametrize("digits", [15, 16, 5000])
def test_a_number_of_any_length_is_that_of_no_session(broker: str, digits: int) -> None:
    assert "session" in refused("stats", "9" * digits)
    done = creche("kill", "--json", "9" * digits)
    (answer,) = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1, b"")
    assert answer["error"] == "session-not-found"


def test_a_kill_may_be_of_a_scope_or_of_all(broker: str) -> None:
    with blocking.Engine(broker) as engine, engine.scope("build") as scope:
        inside, outside = scope.spawn(program(REST)), engine.spawn(program(REST))
        assert said("kill", "--scope", "build") == f"{inside.id}: 1 process ended\n"
        assert alive(outside.pid)
        assert said("kill", "--all") == f"{outside.id}: 1 process ended\n"
        assert said("kill", "--all") == ""


def test_what_is_to_be_killed_is_said_in_one_way(broker: str) -> None:
    number = left("--", "sleep", "99")
    for words in ((), ("--all", "--scope", "x"), (number, "--all")):
        done = creche("kill", *words)
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"in one way: ID..., --scope or --all" in done.stderr
    assert said("kill", number) == f"{number}: 1 process ended\n"


def test_a_kill_of_a_scope_without_sessions_is_told_like_one_of_nobody(
    broker: str,
) -> None:
    assert "nosuch" in refused("kill", "nosuch")
    assert "no session is in a scope" in refused("kill", "--scope", "nosuch")
    done = creche("kill", "--scope", "nosuch")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1)


def test_a_variable_kills_nothing(broker: str) -> None:
    one, other = left("--", "sleep", "99"), left("--", "sleep", "99")
    wide = {"CRECHE_KILL_ALL": "1", "CRECHE_KILL_SCOPE": ""}
    done = creche("kill", one, env=wide)
    assert done.stdout.decode() == f"{one}: 1 process ended\n"
    assert said("kill", other) == f"{other}: 1 process ended\n"


def test_a_kill_ends_a_session_once_whatever_it_is_called(broker: str) -> None:
    number = left("--name", "x", "--", "sleep", "99")
    assert said("kill", "x", number, "x") == "x: 1 process ended\n"


def test_a_kill_with_grace_asks_first(broker: str) -> None:
    number = left("--", "sh", "-c", "trap 'echo bye; exit 4' TERM; echo up; read x")
    polite = left("--interactive", "--", "sh", "-c", POLITE)
    soon(lambda: said("logs", polite) == "up\n")
    told = said("kill", "--grace", "10s", number, polite).splitlines()
    assert told[1] == f"{polite}: 1 process ended"
    assert creche("wait", polite).returncode == 4
    assert said("kill", polite) == f"{polite}: nothing was left of it\n"


POLITE = "trap 'exit 4' TERM; echo up; while :; do sleep 1; done"


def test_a_wait_ends_with_the_childs_code(broker: str) -> None:
    assert creche("wait", left("--", "sh", "-c", "exit 42")).returncode == 42
    ended = left("--timeout", "0.1", "--", "sleep", "99")
    done = creche("wait", "--json", ended)
    assert done.returncode == 124
    status = json.loads(done.stdout)
    assert (status["exit_code"], status["cause"]) == (124, "timeout")
    runs = left("--", "sleep", "99")
    assert "still runs" in refused("wait", "--timeout", "0.1", runs, code=124)
    assert "4711" in refused("wait", "4711", code=125)


# -- the frame ----------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell: str) -> None:
    script = creche("completion", shell)
    assert b"_CRECHE_COMPLETE" in script.stdout


def test_bash_completes_the_verbs(tmp_path: Path) -> None:
    command = tmp_path / "creche"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m actors "$@"\n')
    command.chmod(0o755)
    line = (
        'eval "$(creche completion bash)"; COMP_WORDS=(creche at); COMP_CWORD=1; '
        '_creche_completion creche; echo "${COMPREPLY[@]}"'
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line],
        env=ignition.environment() | {"PATH": path},
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout == b"attach\n"


@pytest.mark.parametrize("verb", ["ps", "logs", "attach", "write", "wait", "kill"])
def test_without_a_broker_one_sentence_says_so(verb: str) -> None:
    code = 125 if verb in ("attach", "wait") else 1
    words = () if verb == "ps" else ("1000",)
    assert "creche serve" in refused(verb, *words, code=code)


def test_what_is_wrong_with_an_endpoint_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert "0755" in refused("ps", "--endpoint", f"ipc://{tmp_path}/broker.sock")
    for endpoint, says in (
        ("broker.sock", b"ABSOLUTE"),
        ("tcp://localhost:7", b"tcp:// is not in this version"),
    ):
        for verb, code in (("ps", 2), ("mcp", 2), ("wait", 125)):
            words = ("7",) if verb == "wait" else ()
            done = creche(verb, "--endpoint", endpoint, *words)
            assert (done.returncode, b"keys" in done.stderr) == (code, False)
            assert says in done.stderr
    tmp_path.chmod(0o700)
    for place in ("", "/absent", "/absent/too"):
        endpoint = f"ipc://{tmp_path}{place}/broker.sock"
        assert "creche serve" in refused("ps", "--endpoint", endpoint)


@pytest.mark.parametrize(
    ("modules", "words"),
    [(["pyghostty", "pyte"], ()), (["rich"], ("--svg", "/dev/null"))],
    ids=["screen", "ui"],
)
def test_without_an_extra_it_says_what_to_install(
    broker: str, modules: list[str], words: tuple[str, ...]
) -> None:
    number = left("-t", "--", "true")
    creche("wait", number)
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({modules}))\n"
        "from actors.cli import main; main(sys.argv[1:], 'creche')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "screen", *words, number],
        env=ignition.environment(),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"creche: ")
    assert b": pip install " in done.stderr


# -- top ----------------------------------------------------------------------------


def test_off_a_terminal_top_is_a_table_for_each_look(broker: str) -> None:
    number = left("--", "sleep", "99")
    assert b"less than 0.05" in creche("top", "--interval", "0").stderr
    looks = said("top", "--interval", "0.1", "--count", "2").split("1 session, ")
    assert len(looks) == 3
    for look in looks[1:]:
        assert re.search(rf"^{number}  -     running .* sleep 99$", look, re.MULTILINE)


def test_top_speaks_to_programs(broker: str) -> None:
    with blocking.Engine(broker) as engine, engine.scope("build") as scope:
        child = scope.spawn(program(REST))
        (line,) = said("top", "--json", "--count", "1").splitlines()
        found = json.loads(line)
        (session,) = found["sessions"]
        assert (session["id"], session["scope"]) == (child.id, "build")
        assert session["argv"] == list(child.argv)
        assert session["wall_time"] > 0
        assert session["memory"] > 0
        (build,) = found["scopes"]
        assert (build["scope"], build["sessions"]) == ("build", 1)
        assert (build["memory"], build["cpu"]) == (session["memory"], session["cpu"])
