"""What agents say is judged, and what they hear has the names that they know."""

from dataclasses import replace

import pytest

from actors.agents import tools
from actors.events import PollResult
from actors.facts import ExitStatus
from broker.errors import (
    BrokerLost,
    EngineError,
    InvalidRequest,
    NotATerminal,
    SessionNotFound,
    SpawnFailed,
)

EXEC = tools.TOOLS["exec_command"]
WRITE = tools.TOOLS["write_stdin"]
RESIZE = tools.TOOLS["resize_session"]


def ended(code: int | None, signal: int | None = None) -> ExitStatus:
    return ExitStatus(code, signal)


def seen(
    text: str = "", status: ExitStatus | None = None, dropped: int = 0
) -> PollResult:
    return PollResult(
        stdout=text.encode(),
        stderr=b"",
        transcript=text.encode(),
        text=text,
        undecodable=0,
        dropped_bytes=dropped,
        status=status,
        state="running" if status is None else "closed",
        more=False,
        done=status is not None,
        wall_time=0.5,
        chunk_id="abc123",
    )


# -- parameters -------------------------------------------------------------------


def test_what_is_left_out_has_its_default() -> None:
    assert EXEC.read({"cmd": "true"}) == {
        "cmd": "true",
        "workdir": None,
        "shell": None,
        "login": True,
        "tty": False,
        "yield_time_ms": 10000,
        "max_output_tokens": 10000,
    }
    assert WRITE.read({"session_id": 1000}) == {
        "session_id": 1000,
        "chars": "",
        "yield_time_ms": 250,
        "max_output_tokens": 10000,
    }
    assert tools.TOOLS["list_sessions"].read(None) == {}


def test_null_is_as_good_as_left_out() -> None:
    assert EXEC.read({"cmd": "true", "workdir": None, "tty": None}) == EXEC.read(
        {"cmd": "true"}
    )


def test_what_is_given_is_taken() -> None:
    given = {"cmd": "ls", "workdir": "/", "shell": "/bin/sh", "login": False}
    given |= {"tty": True, "yield_time_ms": 1, "max_output_tokens": 0}
    assert EXEC.read(given) == given
    sizes = {"session_id": 1000, "rows": 1, "cols": 65535}
    assert RESIZE.read(sizes) == sizes


def test_whole_numbers_may_be_written_with_a_point() -> None:
    values = EXEC.read({"cmd": "true", "yield_time_ms": 500.0})
    assert values["yield_time_ms"] == 500
    assert isinstance(values["yield_time_ms"], int)


@pytest.mark.parametrize(
    ("tool", "name", "given", "why"),
    [
        (EXEC, "cmd", 5, "must be a string, not 5"),
        (EXEC, "cmd", " ", "must not be empty"),
        (EXEC, "cmd", "a\0b", "must not hold a NUL character"),
        (EXEC, "cmd", "\ud800", "holds half a character"),
        (EXEC, "cmd", None, "is missing"),
        (EXEC, "workdir", ["/"], "must be a string, not ['/']"),
        (EXEC, "workdir", "", "must not be empty"),
        (EXEC, "shell", True, "must be a string, not True"),
        (EXEC, "login", "yes", "must be true or false, not 'yes'"),
        (EXEC, "tty", 1, "must be true or false, not 1"),
        (EXEC, "yield_time_ms", "soon", "must be a whole number, not 'soon'"),
        (EXEC, "yield_time_ms", True, "must be a whole number, not True"),
        (EXEC, "yield_time_ms", 0.5, "must be a whole number, not 0.5"),
        (EXEC, "yield_time_ms", float("nan"), "must be a whole number, not nan"),
        (EXEC, "yield_time_ms", -1, "must be from 0 to 9007199254740992, not -1"),
        (EXEC, "max_output_tokens", 2**60, "must be from 0 to 9007199254740992"),
        (EXEC, "max_output_tokens", [1] * 99, "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1"),
        (WRITE, "session_id", "1000", "must be a whole number, not '1000'"),
        (WRITE, "session_id", None, "is missing"),
        (WRITE, "chars", {}, "must be a string, not {}"),
        (RESIZE, "rows", 0, "must be from 1 to 65535, not 0"),
        (RESIZE, "cols", 65536, "must be from 1 to 65535, not 65536"),
    ],
)
def test_a_bad_argument_is_refused_by_its_name(
    tool: tools.Tool, name: str, given: object, why: str
) -> None:
    fine = {"cmd": "true"} if tool is EXEC else {"session_id": 1, "rows": 1, "cols": 1}
    known = {p.name for p in tool.parameters}
    arguments = {k: v for k, v in fine.items() if k in known} | {name: given}
    with pytest.raises(InvalidRequest) as refused:
        tool.read(arguments)
    assert str(refused.value).startswith(f"{name}: ")
    assert why in str(refused.value)


@pytest.mark.parametrize("tool", tools.TOOLS.values(), ids=lambda tool: tool.name)
def test_an_unknown_parameter_is_refused_and_the_known_ones_are_told(
    tool: tools.Tool,
) -> None:
    with pytest.raises(
        InvalidRequest, match=f"command: is no parameter of {tool.name}"
    ):
        tool.read({"command": "ls"})


def test_every_parameter_is_in_the_schema_as_it_is_judged() -> None:
    for tool in tools.TOOLS.values():
        assert tool.says.endswith(".")
        for parameter in tool.parameters:
            told = tool.schema["properties"][parameter.name]
            assert told["description"].endswith(".")
            assert told.get("default") == parameter.default
            assert (parameter.name in tool.schema["required"]) is parameter.required
            wrong = 5 if told["type"] in ("string", "boolean") else "5"
            with pytest.raises(InvalidRequest):
                parameter.check(parameter.name, wrong)


# -- bounds -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "looks", "given"),
    [
        (0, False, 0.25),
        (249, False, 0.25),
        (251, False, 0.251),
        (30_000, False, 30.0),
        (30_001, False, 30.0),
        (0, True, 5.0),
        (6_000, True, 6.0),
        (300_001, True, 300.0),
    ],
)
def test_s28_times_of_agents_are_cut_to_their_bounds(
    asked: int, looks: bool, given: float
) -> None:
    assert tools.patience(asked, looks=looks) == given


def test_it_gets_crowded_before_it_is_full() -> None:
    assert tools.crowding(tools.CROWDED - 1) is None
    told = tools.crowding(tools.CROWDED) or ""
    assert "60 sessions" in told
    assert "kill_session" in told


# -- commands and keys ------------------------------------------------------------


def test_a_shell_runs_the_command() -> None:
    assert tools.command("ls", "/bin/zsh", login=True) == ["/bin/zsh", "-lc", "ls"]
    assert tools.command("ls", "/bin/zsh", login=False) == ["/bin/zsh", "-c", "ls"]


@pytest.mark.parametrize(
    ("path", "fits"),
    [
        ("/bin/bash", True),
        ("/usr/bin/zsh", True),
        ("bash", False),
        ("", False),
        ("/usr/sbin/nologin", False),
    ],
)
def test_not_everything_in_a_users_record_runs_commands(path: str, fits: bool) -> None:
    assert tools.is_shell(path) is fits


def test_keys_are_pieces_of_their_own() -> None:
    assert tools.keys("a\x03b\nc\x04") == ["a", "\x03", "b\nc", "\x04"]
    assert tools.keys("\x03\x03") == ["\x03", "\x03"]
    assert tools.keys("") == []


# -- results ----------------------------------------------------------------------


def test_what_runs_has_a_session_and_no_exit_code() -> None:
    assert tools.observation(seen("hallo"), 1.23456, 1000, 99) == {
        "wall_time_seconds": 1.2346,
        "output": "hallo",
        "session_id": 1000,
        "chunk_id": "abc123",
        "original_token_count": 2,
    }


def test_what_ended_has_an_exit_code_and_no_session() -> None:
    told = tools.observation(seen("", ended(3)), 0.1, 1000, 99)
    assert told["exit_code"] == 3
    assert "session_id" not in told


def test_what_left_pipes_open_runs_on() -> None:
    """Its end was noticed, but there may be more to read."""
    early = replace(seen("", ended(3)), done=False)
    told = tools.observation(early, 0.1, 1000, 99)
    assert (told["session_id"], "exit_code" in told) == (1000, False)


def test_death_by_a_signal_is_told_as_shells_do() -> None:
    assert tools.exit_code(ended(None, 9)) == {"exit_code": 137}


def test_of_what_runs_or_was_lost_no_exit_code_is_made_up() -> None:
    assert tools.exit_code(None) == {}
    assert tools.exit_code(ended(None)) == {}


def test_long_output_loses_its_middle_and_is_counted_whole() -> None:
    told = tools.observation(seen("a" * 500 + "b" * 500), 0.1, 1000, 10)
    assert told["original_token_count"] == 250
    assert told["output"] == ("a" * 20 + "[... 960 characters left out ...]" + "b" * 20)


def test_output_that_was_not_kept_is_told_and_counted() -> None:
    told = tools.observation(seen("ab", dropped=41), 0.1, 1000, 10)
    assert told["output"] == "ab\n[41 bytes from its middle were not kept]\n"
    assert told["original_token_count"] == 1 + 11


def test_a_directory_is_told_as_text_whatever_its_bytes() -> None:
    assert tools.directory("/ä/\udcff") == "/ä/\\xff"


# -- errors -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SessionNotFound(), "session_id: there is no session 7"),
        (NotATerminal(), "session_id: 7 has no terminal"),
        (InvalidRequest("input", "a line is too long"), "chars: a line is too long"),
        (SpawnFailed(2, "cwd", "/no"), "workdir: cannot use working directory '/no'"),
        (SpawnFailed(2, "exec", "/no"), "shell: cannot execute '/no'"),
        (SpawnFailed(7, "exec", "/bin/sh"), "cmd: is longer than the system takes"),
        (
            InvalidRequest("argv", "is too large"),
            "cmd: is longer than the system takes",
        ),
        (SpawnFailed(11, "fork", "/no"), "fork: cannot start a process"),
        (BrokerLost(), "The broker is gone"),
    ],
)
def test_an_error_is_a_sentence_that_names_what_to_change(
    error: EngineError, told: str
) -> None:
    assert tools.sentence(error, 7).startswith(told)
