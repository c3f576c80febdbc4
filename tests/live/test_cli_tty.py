"""The command `creche` at a terminal: what a person types and sees."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors import blocking, ignition
from tests.helpers import FOREVER, eventually, go, python, stop
from tests.parts import serving
from tests.person import CRECHE, LONGEST, PATIENCE, Person

pytestmark = [pytest.mark.live, pytest.mark.timeout(LONGEST)]

BASH = ("bash", "--norc", "--noprofile")
RUN = ("run", "--tty", "--", *BASH)
RAW = python("import tty; tty.setraw(0); print('up', flush=True); input()")


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    where = f"ipc://{tmp_path}/shared/broker.sock"
    with serving(where):
        yield where


@pytest.fixture
def broker(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A broker that every command here finds."""
    monkeypatch.setenv("CRECHE_BROKER", endpoint)
    return endpoint


def creche(*words: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [*CRECHE, *words],
        env=ignition.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )


def left(*words: str) -> str:
    """Leave a command to the broker; return its number."""
    done = creche("run", "--detach", "--env", "PS1=$ ", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


def connected(endpoint: str) -> None:
    """Wait until somebody else is connected to the broker."""
    with blocking.Engine(endpoint) as engine:
        eventually(lambda: engine.info().counts["clients"] > 1)


# -- run --tty ----------------------------------------------------------------------


def test_a_shell_in_a_terminal_is_as_without_it() -> None:
    with Person.at(*RUN) as person:
        person.sees("$")
        assert person.raw
        person.types("stty size; tty -s && echo a terminal\r")
        person.sees("\na terminal\n$")
        person.types("exit 3\r")
        assert person.ended() == 3
        assert person.screen.lines[:5] == (
            "$ stty size; tty -s && echo a terminal",
            "10 50",
            "a terminal",
            "$ exit 3",
            "exit",
        )


def test_a_larger_window_is_a_larger_terminal() -> None:
    with Person.at(*RUN) as person:
        person.sees("$")
        person.resizes(20, 70)
        person.types("until stty size|grep 70; do sleep .1; done\r")
        # The shell may draw its line once more, where that comes.
        person.sees(lambda text: "\n20 70" in text and text.endswith("\n$"))
        person.types("exit\r")
        assert person.ended() == 0


def test_control_c_is_for_the_job_in_the_terminal() -> None:
    with Person.at(*RUN) as person:
        person.sees("$")
        person.types("echo up; cat\r")
        person.sees("\nup")
        person.types("x\r")
        person.sees(lambda text: text.endswith("x\nx"))
        person.types("\x03")
        person.sees("^C\n$")
        person.types("echo $?; exit\r")
        assert person.ended() == 0
        assert "\n130\n" in person.screen.text


def test_what_is_typed_ahead_is_not_lost() -> None:
    with Person.at("run", "--tty", "--", "cat") as person:
        person.types("early\n")
        person.sees(lambda text: text.count("early") >= 2)  # an echo and the answer
        person.types("\x04")
        assert person.ended() == 0
        assert person.screen.text.count("early") in (2, 3)  # ours may be raw by then


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_terminal_is_restored_when_a_signal_ends_the_run(
    number: signal.Signals,
) -> None:
    with Person.at("run", "--tty", "--", *RAW) as person:
        person.sees("up")
        assert person.raw
        person.signals(number)
        assert person.ended() == 128 + signal.SIGTERM


def test_what_ignores_being_asked_is_killed_after_the_grace() -> None:
    with Person.at("run", "--tty", "--grace", "0.1", "--", *BASH) as person:
        person.sees("$")
        person.signals(signal.SIGTERM)
        assert person.ended() == 128 + signal.SIGKILL


SAYS_MUCH_AT_ITS_END = python("""
import os
def told(*_):
    for _ in range(96):  # more than waits for whoever does not read it
        os.write(1, bytes(65536))
    os._exit(7)
signal.signal(signal.SIGTERM, told)
print("up", flush=True)
while True:
    signal.pause()
""")


def test_a_closed_terminal_leaves_the_command_its_grace() -> None:
    words = ("run", "--tty", "--grace", str(PATIENCE), "--", *SAYS_MUCH_AT_ITS_END)
    with Person.at(*words) as person:
        person.sees("up")
        person.hangs_up()
        assert person.process.wait(PATIENCE) == 7


def test_a_terminal_is_restored_when_the_command_is_not_found() -> None:
    with Person.at("run", "--tty", "--", "no-such-program") as person:
        assert person.ended() == 127
        assert "no-such-program" in person.screen.text


def test_a_terminal_is_restored_when_the_broker_is_lost(tmp_path: Path) -> None:
    where = f"ipc://{tmp_path}/shared/broker.sock"
    with (
        serving(where) as server,
        Person.at("run", "--tty", "--", *RAW, CRECHE_BROKER=where) as person,
    ):
        person.sees("up")
        server.signal(signal.SIGTERM)
        assert person.ended() == 125
        assert "creche: " in person.screen.text


def test_a_line_too_long_for_the_terminal_is_told() -> None:
    with Person.at("run", "--tty", "--", "cat") as person:
        person.types("one\r")
        person.sees("one\none")
        for _ in range(5):  # our own terminal takes as much at once
            person.types(b"x" * 1000)
        # Not on the screen: the echo may have moved it out.
        person.gets(lambda output: b"creche: " in output)
        # Not ^U: the kernel's echo of so many erasures may come twice.
        person.types("\rtwo\r")
        person.gets(lambda output: output.count(b"two") == 2)
        person.types("\x04")
        assert person.ended() == 0


def test_a_terminal_that_others_had_meanwhile_is_raw_again() -> None:
    with Person.at("run", "--tty", "--", *RAW) as person:
        person.sees("up")
        stop(person.process.pid)
        person.has_it_back()
        go(person.process.pid)
        eventually(lambda: person.raw)
        person.signals(signal.SIGTERM)
        assert person.ended() == 128 + signal.SIGTERM


SHELL = """
import os, signal, sys, termios

def modes(given):
    termios.tcsetattr(0, termios.TCSANOW, given)

signal.signal(signal.SIGTTOU, signal.SIG_IGN)
theirs, ours = termios.tcgetattr(0), termios.tcgetattr(0)
ours[3] &= ~termios.ICANON
modes(ours)
job = os.fork()
if not job:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
_, status = os.waitpid(job, os.WUNTRACED)
assert os.WIFSTOPPED(status)
modes(theirs)
os.tcsetpgrp(0, job)
os.killpg(job, signal.SIGCONT)
_, status = os.waitpid(job, 0)
os.tcsetpgrp(0, os.getpgrp())
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Runs a command behind itself, in modes of its own, until that wants the terminal."""


def test_behind_a_shell_the_modes_are_not_taken_for_those_to_restore() -> None:
    command = [sys.executable, "-c", SHELL, *CRECHE, "run", "--tty", "--", "true"]
    with Person.before(command, rows=10, cols=50) as person:
        assert person.ended() == 0


def test_control_c_ends_a_command_without_a_terminal_of_its_own() -> None:
    with Person.at("run", "--", "sh", "-c", "echo up; exec sleep 99") as person:
        person.sees("up")
        assert not person.raw
        person.types("\x03")
        assert person.ended() == 128 + signal.SIGINT


def has_line(word: bytes) -> Callable[[bytes], bool]:
    """Return what looks for a line in what a terminal was sent."""
    return lambda output: b"\r\n%b\r\n" % word in output


def test_behind_a_shell_what_is_typed_stops_nothing(tmp_path: Path) -> None:
    """The line is the shell's, until the command is in front."""
    told = {tmp_path / word: word.encode() for word in ("up", "ready", "running")}
    for place in told:
        os.mkfifo(place)
    script = f"cat {shlex.join(map(str, told))}; read code; exit $code"
    line = shlex.join([*CRECHE, "run", "--", "sh", "-c", script])
    shell = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
    with Person.before(shell, rows=20, cols=200) as person:
        person.types(f"{line} & wait\r")
        for place, word in told.items():
            place.write_bytes(word + b"\n")
            person.gets(has_line(word))
            person.types("a line\r")
        person.types("\x03")
        person.gets(lambda output: output.endswith(b"$ "))
        person.types("fg\r7\r")
        person.gets(
            lambda output: re.search(rb"fg\r\n.*7\r\n.*\$ $", output, re.DOTALL)
        )
        person.types("echo code $?; exit\r")
        person.gets(lambda output: b"\r\ncode 7\r\n" in output)
        assert person.ended() == 0


# -- attach -------------------------------------------------------------------------


def test_a_session_is_left_and_found_again(broker: str) -> None:
    left("-t", "--name", "shell", "--", *BASH)
    with Person.at("attach", "shell") as person:
        person.sees("$")
        person.types("n=1; echo n is $n; stty size\r")
        person.sees("10 50\n$")
        person.types("\x10\x11")
        assert person.ended() == 0
        assert "creche: detached from shell" in person.screen.text
    with Person.at("attach", "shell", rows=12, cols=60) as person:
        person.sees("n is 1")
        person.types("n=$((n + 1)); echo n is $n; stty size\r")
        person.sees("12 60\n$")
        assert person.screen.text == (
            "$ n=1; echo n is $n; stty size\n"
            "n is 1\n"
            "10 50\n"
            "$ n=$((n + 1)); echo n is $n; stty size\n"
            "n is 2\n"
            "12 60\n"
            "$"
        )
        person.types("exit 7\r")
        assert person.ended() == 7


def test_control_c_in_a_session_is_for_its_job(broker: str) -> None:
    number = left("-t", *BASH)
    with Person.at("attach", number) as person:
        person.sees("$")
        person.types("echo up; cat\r")
        person.sees("\nup")
        person.types("x\r")
        person.sees(lambda text: text.endswith("x\nx"))
        person.types("\x03")
        person.sees("^C\n$")
        person.types("\x10\x11")
        assert person.ended() == 0
    assert creche("wait", "--timeout", "0", number).returncode == 124


def test_one_types_and_the_others_watch(broker: str) -> None:
    number = left("-t", *BASH)
    with Person.at("attach", number) as writer:
        writer.sees("$")
        with Person.at("attach", number) as watcher:
            watcher.sees(f"{number} has its writer: watching only")
            watcher.sees("$")
            watcher.types("echo not this\r")
            writer.types("echo 'but that'\r")
            for person in (writer, watcher):
                person.sees("\nbut that\n")
                assert "not this" not in person.screen.text
            watcher.types("\x03")
            assert watcher.ended() == 0
            assert f"detached from {number}" in watcher.screen.text
        with Person.at("attach", "--watch", "--new", number) as watcher:
            eventually(lambda: watcher.raw)
            writer.types("exit 4\r")
            assert watcher.ended() == writer.ended() == 4
            assert "but that" not in watcher.screen.text


def test_whoever_comes_next_may_type_once_the_first_is_gone(broker: str) -> None:
    number = left("-t", *BASH)
    with Person.at("attach", number) as first:
        first.sees("$")
        first.signals(signal.SIGKILL)
        first.process.wait()
    with Person.at("attach", "--detach-keys", "^A d", number) as second:
        second.sees("$")
        second.types("echo I type\r")
        second.sees("\nI type\n")
        second.types("\x01x\x10\x11\x01d")
        assert second.ended() == 0


def test_a_session_that_reads_nothing_can_be_left(broker: str) -> None:
    deaf = "import tty; tty.setraw(0); print('up', flush=True); signal.pause()"
    number = left("-t", *python(deaf))
    with Person.at("attach", number) as person:
        person.sees("up")
        for _ in range(30):  # more than its terminal holds
            person.types(b"x" * 4000)
            eventually(lambda: not person.unread)
        person.types("\x10\x11")
        assert person.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_attachment_and_restores_the_terminal(
    broker: str, number: signal.Signals
) -> None:
    session = left("-t", *BASH)
    with Person.at("attach", session) as person:
        person.sees("$")
        assert person.raw
        person.signals(number)
        assert person.ended() == -number
    assert creche("wait", "--timeout", "0", session).returncode == 124


def test_old_questions_to_the_terminal_are_not_asked_again(broker: str) -> None:
    asks = r"printf 'where\033[6nam I'; stty -echo; read answer; echo $answer"
    number = left("-t", "sh", "-c", asks)
    eventually(lambda: creche("logs", number).stdout.endswith(b"am I"), PATIENCE)
    with Person.at("attach", number) as person:
        person.sees("wheream I")
        assert b"\x1b[6n" not in person.output
        person.types("here\r")
        person.sees("here")
        assert person.ended() == 0


def test_control_c_leaves_a_session_with_pipes(broker: str) -> None:
    number = left("-i", "sh", "-c", "echo up; while read a; do echo got $a; done")
    with Person.at("attach", number) as person:
        person.sees(f"creche: attached to {number}: Ctrl-C leaves it")
        person.sees("up")
        person.types("one\r")
        person.sees("got one")
        person.types("\x03")
        assert person.ended() == 128 + signal.SIGINT
    with Person.at("attach", number) as person:
        person.sees("up\ngot one")
        person.types("two\r")
        person.sees("got two")
        person.types("\x04")
        assert person.ended() == 0


# -- Ctrl-C elsewhere ---------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [("logs", "--follow"), ("wait",)], ids=lambda words: words[0]
)
def test_control_c_ends_a_look_and_nothing_else(
    broker: str, words: tuple[str, ...]
) -> None:
    number = left("sh", "-c", "echo up; exec sleep 99")
    with Person.at(*words, number) as person:
        if words[0] == "logs":
            person.sees("up")
        else:
            connected(broker)
        person.types("\x03")
        assert person.ended() == 128 + signal.SIGINT
        assert "Traceback" not in person.screen.text
    assert creche("wait", "--timeout", "0", number).returncode == 124


# -- top ----------------------------------------------------------------------------


BUSY = python("print('y' * 9999, flush=True)\nwhile True: pass")
TOP = re.compile(
    r"""2 sessions, CPU \d+%, memory [\d.]+M, processes 2, output .+/s

SCOPE +SESSIONS +CPU +MEMORY +PROCS +OUTPUT
build +1 +\d+% +[\d.]+M +1 +0/s

ID +NAME +STATE +TIME +CPU +MEMORY +PROCS +OUTPUT +COMMAND
(\d+) +busy +running +[\dms.]+ +\d+% +[\d.]+M +1 +\S+/s +(\S+).*
(\d+) +- +running +[\dms.]+ +0% +[\d.]+M +1 +0/s +cat"""
)


GIVEN_BACK = b"\x1b[?25h\x1b[?1049l"
"""The cursor is shown again, and the other screen left."""


def test_top_shows_what_sessions_use_until_control_c(broker: str) -> None:
    busy = left("--name", "busy", "--", *BUSY)
    with blocking.Engine(broker) as engine, engine.scope("build") as scope:
        idle = scope.spawn(["cat"], stdin="pipe")
        words = ("top", "--interval", "0.2")
        with Person.at(*words, rows=12, cols=90) as person:
            shown = person.sees(TOP.fullmatch)
            found = TOP.fullmatch(shown)
            assert found is not None
            number, program, other = found.groups()
            assert (number, other) == (busy, str(idle.id))
            assert sys.executable.startswith(program)  # as far as the screen is wide
            idle.kill()
            person.sees("1 session,")
            person.types("\x03")
            assert person.ended() == 128 + signal.SIGINT
            assert person.output.removesuffix(b"^C").endswith(GIVEN_BACK)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_top_gives_the_screen_back_when_it_is_told_to_end(
    broker: str, number: signal.Signals
) -> None:
    with Person.at("top") as person:
        person.sees("0 sessions")
        person.signals(number)
        assert person.ended() == 128 + number
        assert person.output.removesuffix(b"^C").endswith(GIVEN_BACK)


def test_the_last_of_a_number_of_tables_stays_on_the_screen(broker: str) -> None:
    with Person.at("top", "--count", "2", "--interval", "0.1") as person:
        assert person.ended() == 0
        assert person.screen.text.count("0 sessions") == 1
        assert b"\x1b[?1049" not in person.output


def test_on_a_dumb_terminal_top_is_plain_lines(broker: str) -> None:
    with Person.at("top", "--count", "2", "--interval", "0.1", TERM="dumb") as person:
        assert person.ended() == 0
        assert person.screen.text.count("0 sessions") == 2


# -- batch --------------------------------------------------------------------------


def test_a_batch_that_is_quit_shows_the_cursor_again() -> None:
    def is_shown(output: bytes) -> bool:
        return output.rfind(b"\x1b[?25h") > output.rfind(b"\x1b[?25l")

    with Person.at("batch", ":::", f"sleep {FOREVER}", cols=100) as person:
        person.sees("0/1 done")
        assert not is_shown(person.output)
        person.types("\x1c")
        person.gets(is_shown)
        assert person.ended() == 128 + signal.SIGQUIT
