"""The command `creche`, as a shell sees it."""

import configparser
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from actors import __version__, ignition
from broker import auth, places, tree
from tests.helpers import (
    NOT_BLOCKED,
    alive,
    eventually,
    gone,
    is_full,
    python,
    tag,
    tagged,
)
from tests.live.children import peak
from tests.parts import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.live

CRECHE = [sys.executable, "-m", "actors"]
RUN = [*CRECHE, "run"]
PATIENCE = 2 * NOT_BLOCKED
"""Seconds for a whole command, engine and all, on a busy machine."""


def creche(*words: str | bytes, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    plain: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if "input" not in options:
        plain["stdin"] = subprocess.DEVNULL
    env = ignition.environment() | options.pop("env", {})
    done: subprocess.CompletedProcess[bytes] = subprocess.run(
        [*CRECHE, *words], env=env, timeout=PATIENCE, check=False, **(plain | options)
    )
    return done


@contextmanager
def started(*words: str, **options: Any) -> "Iterator[subprocess.Popen[bytes]]":
    with subprocess.Popen(
        [*CRECHE, *words],
        env=ignition.environment() | options.pop("env", {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def end_of(process: "subprocess.Popen[bytes]") -> int:
    return process.wait(PATIENCE)


# -- what it imports --------------------------------------------------------------


def test_help_imports_nothing_heavy() -> None:
    heavy = {"asyncio", "zmq", "psutil", "multiprocess", "msgpack"}
    code = (
        "import sys; from actors.cli import main; main(['--help'], 'creche', "
        f"standalone_mode=False); print(*({heavy!r} & set(sys.modules)), 'loaded')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=ignition.environment(),
        capture_output=True,
        check=True,
    )
    assert b"run" in done.stdout
    assert done.stdout.splitlines()[-1].strip() == b"loaded"


def test_a_run_imports_no_tls_and_leaves_it_to_be_imported() -> None:
    code = (
        "import sys; from actors.cli import main\n"
        "try: main(['run', 'true'], 'creche')\n"
        "except SystemExit as end: print(end.code, 'asyncio' in sys.modules)\n"
        "print('_ssl' in sys.modules); import ssl; print(bool(ssl.OPENSSL_VERSION))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=ignition.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stdout.split() == [b"0", b"True", b"False", b"True"], done.stderr


def test_the_manual_is_what_the_commands_say() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "cli.py"
    done = subprocess.run(
        [sys.executable, page, "--check"],
        env=ignition.environment(),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "\\b" not in page.with_suffix(".md").read_text()


def test_its_version_is_the_packages() -> None:
    assert creche("--version").stdout.split()[-1] == __version__.encode()


# -- run: exit codes --------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["sh", "-c", "exit 0"], 0),
        (["sh", "-c", "exit 42"], 42),
        (["sh", "-c", "exit 255"], 255),
        (["sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL),
        (["sh", "-c", "kill -SEGV $$"], 128 + signal.SIGSEGV),
        (["no-such-program"], 127),
        (["/etc/passwd"], 126),
        (["/"], 126),
    ],
)
def test_the_exit_code_is_the_commands(command: list[str], code: int) -> None:
    assert creche("run", "--", *command).returncode == code


@pytest.mark.parametrize("option", ["--timeout", "--idle-timeout"])
def test_a_timeout_is_124_and_ends_the_tree(option: str) -> None:
    word = tag()
    done = creche(
        "run", option, "0.2", "--", *python("import time; time.sleep(99)", word)
    )
    assert done.returncode == 124
    assert not tagged(word)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--timeout", "soon", "true"], b"'soon'"),
        (["--timeout", "-1", "true"], b"timeout"),
        (["--timeout", "9" * 400, "true"], b"is no time like"),
        (["--limit", f"cpu={'9' * 400}", "true"], b"is no time like"),
        (["--limit", f"core={'9' * 400}", "true"], b"is no size like"),
        (["--env", "=1", "true"], b"NAME=VALUE"),
        (["--cwd", "/no/such/place", "true"], b"/no/such/place"),
        (["--endpoint", "ipc:///no/such/broker", "true"], b"endpoint"),
        ([], b"COMMAND"),
    ],
)
def test_trouble_of_its_own_is_125_and_a_sentence(
    words: list[str], said: bytes
) -> None:
    done = creche("run", *words)
    assert done.returncode == 125
    assert said in done.stderr
    assert b"Traceback" not in done.stderr


def test_options_behind_the_command_are_the_commands() -> None:
    done = creche("run", "sh", "-c", 'echo "$@"', "sh", "--timeout", "--help")
    assert done.stdout == b"--timeout --help\n"


def test_variables_and_directory_reach_the_command(tmp_path: Path) -> None:
    words = ["--env", "A=b=c", "--env", "E=", "--cwd", str(tmp_path)]
    done = creche("run", *words, "sh", "-c", 'echo "$A[$E]" && pwd')
    assert done.stdout.split() == [b"b=c[]", os.fsencode(tmp_path)]


def test_variables_come_from_files_and_from_a_preset(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("# a comment\n\nA=1\n B='two words' \nPAGER=more\n")
    second.write_text("A=3\nC=\n")
    files = ["--env-file", str(first), "--env-file", str(second)]
    words = [*files, "--agent-env", "--env", "PAGER=less"]
    show = 'echo "$A,$B,$C,$PAGER,$TERM,$NO_COLOR"'
    done = creche("run", *words, "sh", "-c", show)
    assert done.stdout == b"3,'two words' ,,less,dumb,1\n"


def test_nothing_but_a_line_feed_ends_a_variable_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "variables"
    value = "one\x0btwo\x0cthree\x1cfour\x85five\u2028six".encode()
    path.write_bytes(b"A=" + value + b"\nB=b\r\n")
    done = creche("run", "--env-file", str(path), "sh", "-c", 'printf %s "$A$B"')
    assert (done.stdout, done.stderr) == (value + b"b", b"")


def test_words_reach_the_command_as_the_bytes_they_are(
    latin: dict[str, str], tmp_path: Path
) -> None:
    """Also where Python takes them for other text than the engine does."""
    word = "ü".encode()
    directory = os.fsencode(tmp_path) + b"/" + word
    os.mkdir(directory)
    (tmp_path / "variables").write_bytes(b"B=b" + word)
    show = 'printf "%s," "$1" "$A" "$B"; pwd'
    variables = b"--env", b"A=a" + word, "--env-file", str(tmp_path / "variables")
    script = "--", "sh", "-c", show, "sh", word + b"\xff"
    done = creche("run", "--cwd", directory, *variables, *script, env=latin)
    assert done.stderr == b""
    assert done.stdout == b"%b\xff,a%b,b%b,%b\n" % (word, word, word, directory)


@pytest.mark.parametrize(
    ("text", "said"), [(None, "No such file"), ("A=1\nnothing\n", "line 2")]
)
def test_a_file_of_variables_that_is_none_is_told(
    tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "variables"
    if text is not None:
        path.write_text(text)
    done = creche("run", "--env-file", str(path), "true")
    assert done.returncode == 125
    assert said in " ".join(done.stderr.decode().split())


def test_limits_are_the_commands() -> None:
    words = ["--limit", "nofile=64", "--limit", "file_size=8K", "--limit", "nice=5"]
    done = creche("run", *words, "sh", "-c", "ulimit -n; ulimit -f; nice")
    assert done.stdout.split() == [b"64", b"16", b"5"]
    done = creche("run", "--limit", "cpu=1.5s", "sh", "-c", "ulimit -t")
    assert done.stdout == b"2\n"


def test_an_unknown_verb_is_answered_by_the_nearest() -> None:
    done = creche("logss", "1")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"No such command 'logss'. Did you mean 'logs'?" in done.stderr
    assert b"Did you mean" not in creche("entirely").stderr


def test_a_tree_that_used_up_a_limit_is_ended() -> None:
    done = creche("run", "--limit", "output=1K", "yes")
    assert done.stderr == b"creche: the command was ended: it had used up a limit\n"
    done = creche("run", "--json", "--limit", "output=1K", "yes")
    report = json.loads(done.stderr)
    assert (report["cause"], done.returncode) == ("limit", report["exit_code"])
    assert report["written"]["stdout"] == len(done.stdout) >= 1024


@pytest.mark.parametrize(
    ("limit", "said"),
    [("files=3", "nofile"), ("nofile=3K", "3K"), ("output=0", "limits.output")],
)
def test_a_limit_that_is_none_is_told(limit: str, said: str) -> None:
    done = creche("run", "--limit", limit, "true")
    assert done.returncode == 125
    assert said in done.stderr.decode()


def test_an_option_that_is_a_habit_is_a_variable_too() -> None:
    done = creche("run", "sleep", "99", env={"CRECHE_RUN_TIMEOUT": "100ms"})
    assert done.returncode == 124


@pytest.mark.parametrize("verb", ["recover", "ps"])
def test_a_refused_runtime_directory_is_a_sentence(verb: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    done = creche(verb, env={"XDG_RUNTIME_DIR": str(tmp_path / "run")})
    assert done.returncode == 1
    assert done.stderr.startswith(b"creche: ")
    assert done.stderr.count(b"\n") == 1


def test_a_variable_whose_option_does_not_apply_counts_for_nothing() -> None:
    habits = {"CRECHE_RUN_TTL": "5s", "CRECHE_BATCH_RESUME": "1"}
    habits |= {"CRECHE_BATCH_JSON": "1", "CRECHE_BATCH_RESUME_FAILED": "1"}
    assert creche("run", "echo", "on", env=habits).stdout == b"on\n"
    done = creche("batch", "--jsonl", ":::", "true", env=habits)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)
    both = habits | {"CRECHE_BATCH_JSONL": "1"}
    done = creche("batch", ":::", "true", env=both)
    assert json.loads(done.stdout)["summary"]["done"] == 1


def test_a_variable_has_the_name_of_its_flag() -> None:
    done = creche("run", "sleep", "99", env={"CRECHE_RUN_TIMEOUT": "soon"})
    assert b"'soon'" in done.stderr
    options = {"CRECHE_RUN_AGENT_ENV": "1", "CRECHE_RUN_JSON": "1"}
    done = creche("run", "sh", "-c", "echo $TERM", env=options)
    assert done.stdout == b"dumb\n"
    assert json.loads(done.stderr)["exit_code"] == 0


def test_what_is_meant_for_one_call_or_may_be_repeated_is_no_variable() -> None:
    once = {"CRECHE_RUN_DETACH": "1", "CRECHE_RUN_NAME": "x", "CRECHE_RUN_ENV": "A=b"}
    done = creche("run", "sh", "-c", "echo here $A", env=once)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"here\n", b"")


def test_json_tells_how_it_ended() -> None:
    began = time.time()  # noqa: TID251 - a date
    done = creche("run", "--json", "sh", "-c", "echo 12345; echo 1 >&2; exit 3")
    report = json.loads(done.stderr.partition(b"\n")[2])
    assert report["written"] == {"stdout": 6, "stderr": 2}
    assert (report["exit_code"], report["code"], report["cause"]) == (3, 3, "exited")
    assert report["usage"]["max_rss"] > 0
    stamps = [report[name] for name in ("started", "execed", "ended")]
    now = time.time()  # noqa: TID251
    assert [began, *stamps, now] == sorted([began, *stamps, now])


def test_json_tells_why_it_did_not_start() -> None:
    done = creche("run", "--json", "no-such-program")
    report = json.loads(done.stderr)
    assert (report["exit_code"], report["error"]) == (127, "spawn-failed")


# -- run: streams -----------------------------------------------------------------


def test_both_streams_come_out_where_they_went_in() -> None:
    done = creche("run", "sh", "-c", "echo out; echo err >&2")
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")


def test_bytes_pass_both_ways_unchanged() -> None:
    data = os.urandom(3_000_001)
    assert creche("run", "cat", input=data).stdout == data


def test_input_comes_from_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(os.urandom(200_000))
    with path.open("rb") as file:
        assert creche("run", "cat", stdin=file).stdout == path.read_bytes()


def test_output_goes_into_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "output"
    with path.open("ab") as file:
        file.write(b"before\n")
        file.flush()
        creche("run", "echo", "after", stdout=file)
    assert path.read_bytes() == b"before\nafter\n"


def test_a_dialogue_is_not_held_back() -> None:
    with started("run", "cat") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in (b"one\n", b"two\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == line
        process.stdin.close()
        assert end_of(process) == 0


def test_an_open_but_silent_stdin_does_not_outlive_the_command() -> None:
    with started("run", "echo", "done") as process:
        assert end_of(process) == 0


def test_endless_input_ends_with_the_command() -> None:
    with Path("/dev/zero").open("rb") as zeros:
        assert creche("run", "head", "-c", "9", stdin=zeros).stdout == bytes(9)


def without(closed: str, *words: str) -> "subprocess.CompletedProcess[bytes]":
    """Run a verb as a shell does that was told to close some of its streams."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *CRECHE, *words],
        env=ignition.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_that_nobody_needs_are_no_trouble(closed: str) -> None:
    done = without(closed, "run", "sh", "-c", "cat; exit 5")
    assert (done.returncode, done.stdout, done.stderr) == (5, b"", b"")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "echo", "out"), 125),
        (("batch", ":::", "echo out"), 125),
        (("batch", "--json", ":::", "true"), 125),
        (("doctor",), 1),
        (("doctor", "--json"), 1),
        (("completion", "bash"), 1),
        (("--version",), 1),
        (("ps", "--help"), 1),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
def test_output_for_a_closed_stdout_is_not_lost_unseen(
    words: tuple[str, ...], code: int
) -> None:
    done = without(">&-", *words)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == b"creche: stdout: Bad file descriptor"
    assert b"Traceback" not in done.stderr


def test_output_for_a_closed_stderr_is_not_lost_unseen() -> None:
    done = without("2>&-", "run", "sh", "-c", "echo err >&2; sleep 99")
    assert done.returncode == 125


def test_words_that_nobody_can_hear_change_nothing() -> None:
    with Path("/dev/full").open("wb") as full:
        done = creche("run", "nosuch", stderr=full)
        assert done.returncode == 127
        assert creche("batch", ":::", "true", stderr=full).returncode == 0
        done = creche("run", "--json", "true", stderr=full)
    assert done.returncode == 125  # a report is more than words
    assert without("2>&-", "batch", ":::", "true").returncode == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "echo", "x"), 125),
        (("doctor",), 1),
        (("doctor", "--json"), 1),
        (("--help",), 1),
    ],
)
def test_a_full_disk_is_told_without_a_traceback(
    words: tuple[str, ...], code: int
) -> None:
    with Path("/dev/full").open("wb") as full:
        done = creche(*words, stdout=full, stderr=subprocess.PIPE, capture_output=False)
    said = b"creche: stdout: No space left on device\n"
    assert (done.returncode, done.stderr) == (code, said)


def test_every_command_is_listed_with_a_whole_sentence() -> None:
    assert b"..." not in creche("--help").stdout.partition(b"Commands:")[2]


def test_it_ends_quietly_with_the_reader_of_its_output() -> None:
    word = tag()
    endless = python("while True: print('y' * 999)", word)
    with started("run", *endless) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert end_of(process) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""
        assert not tagged(word)


def test_long_output_passes_without_being_collected() -> None:
    total = 96 << 20
    code = (
        "import os, sys\n"
        "left = int(sys.argv[1])\n"
        "while left:\n"
        "    left -= os.write(1, bytes(min(left, 1 << 20)))\n"
        "sys.stdin.read()"
    )
    with started("run", *python(code, str(total))) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        seen = 0
        while seen < total:
            seen += len(os.read(process.stdout.fileno(), 1 << 20))
        assert peak(process.pid) < 88 << 20
        process.stdin.close()
        assert end_of(process) == 0


# -- run: its start ---------------------------------------------------------------


def test_the_engine_that_came_up_meanwhile_is_the_one_it_uses() -> None:
    with started("run", "sh", "-c", "echo up; read line") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert len(tree.children(process.pid)) == 1
        process.communicate(b"\n")


def test_a_mistake_that_is_found_while_the_engine_comes_up_ends_it(
    tmp_path: Path,
) -> None:
    log = f"{tmp_path}/log"  # which is in the supervisor's command line
    done = creche("run", "--limit", "nice=99", "true", env={"CRECHE_LOG": log})
    assert not tagged(log)
    assert done.returncode == 125
    (line,) = done.stderr.splitlines()
    assert line.startswith(b"creche: ")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_whatever_ends_it_while_the_engine_comes_up_ends_that(
    number: signal.Signals,
) -> None:
    with started("run", "sleep", "99") as process:
        eventually(lambda: tree.children(process.pid))
        (supervisor,) = tree.children(process.pid)
        process.send_signal(number)
        assert end_of(process) in (-number, 128 + number)
        eventually(lambda: not alive(supervisor))
        assert process.stderr is not None
        assert process.stderr.read() == b""


# -- run: signals -----------------------------------------------------------------


TRAPS = """
import os, signal, sys
def told(number, frame):
    os.write(1, b"told %d" % number)
    os._exit(7)
signal.signal(getattr(signal, sys.argv[1]), told)
os.write(1, b"up\\n")
while True:
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on(number: signal.Signals) -> None:
    with started(
        "run", "--grace", str(PATIENCE), *python(TRAPS, number.name)
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(number)
        assert process.stdout.read() == b"told %d" % number
        assert end_of(process) == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_dies_of_a_signal_says_so(number: signal.Signals) -> None:
    with started("run", "sh", "-c", "echo up; exec sleep 99") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(number)
        assert end_of(process) == 128 + number


def test_a_command_that_ignores_being_asked_is_killed_after_the_grace() -> None:
    body = "signal.signal(15, signal.SIG_IGN); print('up', flush=True); input()"
    with started("run", "--grace", "100ms", *python(body)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.terminate()
        assert end_of(process) == 128 + signal.SIGKILL


def test_an_ignored_interrupt_stays_ignored() -> None:
    """A shell starts what runs behind it that way, for ^C is not meant for it."""
    line = "trap '' INT; exec \"$@\""
    with subprocess.Popen(
        ["sh", "-c", line, "sh", *RUN, "cat"],
        env=ignition.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"up\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        process.stdin.write(b"still\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"still\n"
        process.stdin.close()
        assert end_of(process) == 0


FLOOD = "import os\nwhile True: os.write(1, bytes(1 << 16))"
"""Fills its pipe with each write."""
PAGE = resource.getpagesize()


def stand_still(process: "subprocess.Popen[bytes]") -> None:
    """Have a `run` of `FLOOD` wait for a reader of its stdout, with a rest in hand.

    A pipe may be full with all there was so far: then nothing waits, and a lost broker
    ends it there and then. Here the first piece does not go into one page.
    """
    eventually(lambda: is_full(process.pid), PATIENCE)


def test_signals_get_through_while_nobody_reads() -> None:
    word = tag()
    with started("run", *python(FLOOD, word), pipesize=PAGE) as process:
        stand_still(process)
        process.send_signal(signal.SIGTERM)
        eventually(lambda: tagged(word) == [process.pid])
        # Now it only waits for a reader; that can be ended as well.
        # It may not have heard yet that the child is gone: then the signal is lost.
        eventually(lambda: end_again(process))
        assert process.returncode == -signal.SIGTERM


def end_again(process: "subprocess.Popen[bytes]") -> bool:
    process.terminate()
    return process.poll() is not None


def test_signals_get_through_while_nobody_reads_and_the_broker_is_lost(
    tmp_path: Path,
) -> None:
    word, endpoint = tag(), f"ipc://{tmp_path}/shared/broker.sock"
    flood = python(FLOOD, word)
    with (
        serving(endpoint) as server,
        started("run", "--endpoint", endpoint, *flood, pipesize=PAGE) as process,
    ):
        stand_still(process)
        server.signal(signal.SIGTERM)
        eventually(lambda: tagged(word) == [process.pid])
        # It may not have heard yet that the broker is gone: then the signal is lost.
        eventually(lambda: end_again(process))
        assert process.returncode == -signal.SIGTERM


def test_killing_it_ends_the_tree() -> None:
    word = tag()
    with started("run", *python("print('up', flush=True); input()", word)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.kill()
        gone(word)


# -- serve ------------------------------------------------------------------------


def test_a_shared_broker_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    with started("serve", "--endpoint", endpoint) as server:
        assert server.stdout is not None
        ready = server.stdout.readline()
        assert ready == f"creche broker ready {endpoint}\n".encode()
        by_option = creche("run", "--endpoint", endpoint, "echo", "one")
        by_variable = creche("run", "echo", "two", env={"CRECHE_BROKER": endpoint})
        assert (by_option.stdout, by_variable.stdout) == (b"one\n", b"two\n")
        second = creche("serve", "--endpoint", endpoint)
        assert second.returncode == 1
        assert b"already running" in second.stderr
        server.terminate()
        assert end_of(server) == 0


def test_a_shared_broker_tells_its_place_beforehand() -> None:
    text = " ".join(creche("serve", "--help").stdout.decode().split())
    for uid in (0, 5):
        place = places.runtime_root({}, uid).decode().replace("-5", "-UID")
        assert f"{place}/{auth.BROKER_SOCKET.decode()}" in text
    assert "XDG_RUNTIME_DIR" in text
    assert "directory that is private" in text
    assert "creche broker ready ipc://PATH" in text


def test_a_shared_broker_tells_its_service_manager(tmp_path: Path) -> None:
    address = str(tmp_path / "manager")
    told: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(PATIENCE)

        def hear(fact: bytes) -> None:
            while fact not in told:
                told.extend(manager.recv(4096).split(b"\n"))

        wanted = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "2000000"}
        endpoint = f"ipc://{tmp_path}/shared/broker.sock"
        with started("serve", "--endpoint", endpoint, env=wanted) as server:
            hear(b"READY=1")
            assert f"STATUS=Serving at {endpoint}".encode() in told
            told.clear()
            hear(b"WATCHDOG=1")
            told.clear()
            hear(b"WATCHDOG=1")
            server.terminate()
            hear(b"STOPPING=1")
            assert end_of(server) == 0


def test_a_shared_broker_tells_a_descriptor(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    reading, writing = os.pipe()
    words = ["--print-endpoint", "--endpoint", endpoint, "--ready-fd", str(writing)]
    with started("serve", *words, pass_fds=(writing,)) as server:
        os.close(writing)
        with open(reading, "rb") as told:
            # To its end: neither broker nor pool may hold a copy.
            assert told.read() == f"{endpoint}\n".encode()
        assert server.stdout is not None
        assert server.stdout.readline() == f"{endpoint}\n".encode()
        server.terminate()
        assert end_of(server) == 0


def test_a_shared_broker_needs_no_stream(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    reading, writing = os.pipe()
    words = ["serve", "--endpoint", endpoint, "--ready-fd", str(writing)]
    with subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *CRECHE, *words],
        env=ignition.environment(),
        pass_fds=(writing,),
    ) as server:
        os.close(writing)
        with open(reading, "rb") as told:
            assert told.read() == f"{endpoint}\n".encode()
        streams = [os.readlink(f"/proc/{server.pid}/fd/{fd}") for fd in range(3)]
        assert streams == [os.devnull] * 3
        done = creche("run", "--endpoint", endpoint, "echo", "on")
        server.terminate()
        assert end_of(server) == 0
    assert (done.returncode, done.stdout) == (0, b"on\n")


def test_a_grace_that_is_too_long_is_told_as_a_mistake_in_the_words() -> None:
    done = creche("serve", "--grace", "2h")
    assert done.returncode == 2
    assert b"creche serve" in done.stderr
    assert b"'--grace'" in done.stderr


def test_a_descriptor_that_is_not_open_is_refused(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    done = creche("serve", "--endpoint", endpoint, "--ready-fd", "999")
    assert done.returncode == 1
    assert done.stderr == b"creche: ready-fd: 999 is no open descriptor\n"


def test_the_unit_for_systemd_starts_what_there_is() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names are as written
    unit.read(Path(__file__).resolve().parents[2] / "docs" / "creche-broker.service")
    service = unit["Service"]
    assert service["Type"] == "notify"
    program, *words = service["ExecStart"].split()
    assert os.path.basename(program) == "creche"
    assert creche(*words, "--help").returncode == 0


# -- doctor -----------------------------------------------------------------------


def test_doctor_says_what_the_machine_offers() -> None:
    done = creche("doctor")
    assert done.returncode == 0
    assert b"containment" in done.stdout
    assert re.search(rb"memory_total +[\d.]+[KMGT]\n", done.stdout)


def test_doctor_speaks_to_programs() -> None:
    found = json.loads(creche("doctor", "--json").stdout)
    assert found["containment"] in ("cgroup", "subreaper", "pgroup")
    assert found["creche"] == __version__
    assert all(sentence.endswith(".") for sentence in found["degraded"])
    assert len(found["degraded"]) == list(found["capabilities"].values()).count(False)


def test_doctor_says_what_each_field_is() -> None:
    explained = creche("doctor", "--help").stdout.decode()
    fields = json.loads(creche("doctor", "--json").stdout)
    assert [name for name in fields if name not in explained] == []


def test_doctor_names_what_is_worse_than_it_could_be() -> None:
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    done = creche("doctor", preexec_fn=few_files)
    assert b"- Few descriptors" in done.stdout
