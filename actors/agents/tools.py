"""What agents say and hear: the tools they have, as parameters and results. Pure.

An agent's client shows a model the schema of each tool, and hands over whatever the
model makes of it. `TOOLS` says both in one place: what the schema tells, and what is
held against it. A mistake is answered with a sentence that begins with the parameter's
name, for the model to act on.

How long a call may take is bounded, in both directions: a model that asks at once,
again and again, learns nothing and pays for each answer. What exceeds a bound is not
refused but cut to it.

A result is a document with the names that agents know. `session_id` is there while the
command runs, `exit_code` once it has ended: never both.
"""

import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from actors import exit_codes
from actors.events import ExitStatus, PollResult
from actors.text import BYTES_PER_TOKEN, abridge
from broker.errors import (
    EngineError,
    InvalidRequest,
    NotATerminal,
    SessionNotFound,
    SpawnFailed,
)

YIELD_LEAST: Final = 0.25
"""Seconds that a call observes a command at least."""
YIELD_MOST: Final = 30.0
"""Seconds that a call which starts a command, or writes to it, observes it at most."""
LOOK_LEAST: Final = 5.0
"""Seconds that a call which writes nothing observes a command at least."""
LOOK_MOST: Final = 300.0
"""Seconds that a call which writes nothing observes a command at most."""
SESSIONS: Final = 64
"""Sessions that one client may have at once."""
CROWDED: Final = 60
"""Sessions from which on a client is told that there will soon be too many."""

INTERRUPT: Final = "\x03"
END_OF_INPUT: Final = "\x04"
CONTROLS: Final = (INTERRUPT, END_OF_INPUT)
_KEYS: Final = re.compile(f"([{INTERRUPT}{END_OF_INPUT}])")
_SHELLS: Final = frozenset(("sh", "ash", "bash", "dash", "fish", "ksh", "zsh"))
_STEPS: Final = {"cwd": "workdir", "exec": "shell", "pty": "tty"}
"""Which parameter a start failed by."""
_LARGEST: Final = 2**53
"""From there on, whole numbers in JSON are not certain to mean themselves."""

Schema = Mapping[str, Any]


# --- what a parameter may be ---------------------------------------------------------


def _text(name: str, given: object) -> str:
    if not isinstance(given, str):
        raise InvalidRequest(name, f"must be a string, not {_shown(given)}")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(name, "holds half a character") from None
    return given


def _word(name: str, given: object) -> str:
    """Check a text that the system takes: for a command, or a path."""
    text = _text(name, given)
    if not text.strip():
        raise InvalidRequest(name, "must not be empty")
    if "\0" in text:
        raise InvalidRequest(name, "must not hold a NUL character")
    return text


def _flag(name: str, given: object) -> bool:
    if not isinstance(given, bool):
        raise InvalidRequest(name, f"must be true or false, not {_shown(given)}")
    return given


def _count(name: str, given: object) -> int:
    whole = isinstance(given, float) and given.is_integer()
    if isinstance(given, bool) or not (whole or isinstance(given, int)):
        raise InvalidRequest(name, f"must be a whole number, not {_shown(given)}")
    number = int(given)  # type: ignore[call-overload]  # one of the two, as of above
    if not 0 <= number <= _LARGEST:
        raise InvalidRequest(name, f"must be from 0 to {_LARGEST}, not {number}")
    return int(number)


def _cells(name: str, given: object) -> int:
    number = _count(name, given)
    if not 1 <= number <= 65535:
        raise InvalidRequest(name, f"must be from 1 to 65535, not {number}")
    return number


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 40 else f"{text[:40]}..."


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a tool.

    Attributes:
        name: Its name.
        type: Its type in JSON's words.
        says: What it means, for the model.
        check: Returns its value, or raises `InvalidRequest`.
        required: Whether it has no default.
        default: What it is when it is left out, or null.
    """

    name: str
    type: str
    says: str
    check: Callable[[str, object], Any]
    required: bool = False
    default: Any = None

    @property
    def schema(self) -> dict[str, Any]:
        """What a client is told of it."""
        told = {"type": self.type, "description": self.says}
        return told if self.default is None else {**told, "default": self.default}

    def read(self, arguments: Mapping[str, object]) -> Any:
        """Return its value in a call.

        Raises:
            InvalidRequest: It is missing, or not as it must be.
        """
        given = arguments.get(self.name)
        if given is not None:
            return self.check(self.name, given)
        if self.required:
            raise InvalidRequest(self.name, "is missing")
        return self.default


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, as a client is told of it.

    Attributes:
        name: Its name.
        says: What it does, for the model.
        parameters: In order.
        result: The schema of what it returns.
        harmless: Whether it changes nothing.
    """

    name: str
    says: str
    parameters: tuple[Parameter, ...]
    result: Schema
    harmless: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """What a client is told of its parameters."""
        return {
            "type": "object",
            "properties": {p.name: p.schema for p in self.parameters},
            "required": [p.name for p in self.parameters if p.required],
            "additionalProperties": False,
        }

    def read(self, arguments: Mapping[str, object] | None) -> dict[str, Any]:
        """Return the values of all its parameters in a call.

        Raises:
            InvalidRequest: One is missing or not as it must be, or there is one that
                this tool does not have.
        """
        given = arguments or {}
        names = [p.name for p in self.parameters]
        for name in given:
            if name not in names:
                known = ", ".join(names) or "none"
                raise InvalidRequest(name, f"is no parameter of {self.name}: {known}")
        return {p.name: p.read(given) for p in self.parameters}


# --- the tools -----------------------------------------------------------------------


def _document(properties: dict[str, Any], *optional: str) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _told(kind: str, says: str) -> Schema:
    return {"type": kind, "description": says}


_OBSERVED: Final = {
    "wall_time_seconds": _told("number", "How long this call took."),
    "output": _told(
        "string",
        "What the command wrote since the last call, both streams in order; without "
        "its middle if that is too long.",
    ),
    "exit_code": _told(
        "integer",
        "The command's exit code, 128 + N if it died of signal N; absent while it "
        "runs.",
    ),
    "session_id": _told(
        "integer", "Names the session for other calls; absent once it has ended."
    ),
    "chunk_id": _told("string", "A short random name of this output."),
    "original_token_count": _told(
        "integer", "Tokens of the whole output, approximately, before it was cut."
    ),
}
OBSERVATION: Final = _document(_OBSERVED, "exit_code", "session_id")
"""The schema of what `observation` returns."""

_SURVIVORS: Final = {
    "type": "array",
    "description": "Processes that are not proven gone; usually none.",
    "items": _document(
        {"pid": _told("integer", "Its number."), "state": _told("string", "As in ps.")}
    ),
}
_LISTED: Final = _document(
    {
        "session_id": _told("integer", "Names it for other calls."),
        "cmd": _told("string", "The command."),
        "workdir": _told("string", "Where it was started."),
        "tty": _told("boolean", "Whether it has a terminal."),
        "pid": _told("integer", "The number of its process."),
        "state": _told("string", "running, or ended."),
        "wall_time_seconds": _told("number", "How long it runs, or ran."),
        "exit_code": _told("integer", "Absent while it runs."),
    },
    "exit_code",
)
_SESSION: Final = Parameter(
    "session_id",
    "integer",
    "The session, as exec_command gave it.",
    _count,
    required=True,
)
_TOKENS: Final = Parameter(
    "max_output_tokens",
    "integer",
    "How much output to return; of more, the middle is left out.",
    _count,
    default=10000,
)


def _yield(default: int, says: str) -> Parameter:
    return Parameter("yield_time_ms", "integer", says, _count, default=default)


_EVERY: Final = (
    Tool(
        "exec_command",
        "Run a shell command. Returns when it has ended, or when yield_time_ms is "
        "over: then it goes on as a session, for write_stdin to talk to and to look "
        "at. A session's background processes end with it: to keep a server running, "
        "run it in the foreground.",
        (
            Parameter("cmd", "string", "The command line.", _word, required=True),
            Parameter(
                "workdir",
                "string",
                "The directory to run it in; by default the one of this tool server.",
                _word,
            ),
            Parameter(
                "shell", "string", "The shell to run it; by default the user's.", _word
            ),
            Parameter(
                "login", "boolean", "Whether it is a login shell.", _flag, default=True
            ),
            Parameter(
                "tty",
                "boolean",
                "Whether it gets a terminal, as interactive programs want; else its "
                "standard input is a pipe that stays open.",
                _flag,
                default=False,
            ),
            _yield(
                10000,
                "How long to wait for its end, in milliseconds: from 250 to 30000.",
            ),
            _TOKENS,
        ),
        OBSERVATION,
    ),
    Tool(
        "write_stdin",
        "Write to a session, or just look at it, and return what it wrote since the "
        "last call. Returns when the command has ended, or when yield_time_ms is over.",
        (
            _SESSION,
            Parameter(
                "chars",
                "string",
                "What to write, as it is: end a line with a newline. ^C (\\u0003) "
                "interrupts the command; ^D (\\u0004) is the end of its input. Empty "
                "just looks.",
                _text,
                default="",
            ),
            _yield(
                250,
                "How long to wait for its end, in milliseconds: from 250 to 30000; "
                "with empty chars from 5000 to 300000.",
            ),
            _TOKENS,
        ),
        OBSERVATION,
    ),
    Tool(
        "list_sessions",
        "List the sessions: those that run, and those whose end was not told yet.",
        (),
        _document({"sessions": {"type": "array", "items": _LISTED}}),
        harmless=True,
    ),
    Tool(
        "kill_session",
        "End a session, and everything that it started, at once; returns the rest of "
        "what it wrote.",
        (_SESSION, _TOKENS),
        _document({**_OBSERVED, "survivors": _SURVIVORS}, "exit_code", "session_id"),
    ),
    Tool(
        "interrupt_session",
        "Interrupt what a session runs in the foreground, as ^C does.",
        (_SESSION,),
        _document(
            {
                "session_id": _told("integer", "The session."),
                "interrupted": _told("boolean", "False when it had ended already."),
            }
        ),
    ),
    Tool(
        "resize_session",
        "Set the size of a session's terminal.",
        (
            _SESSION,
            Parameter("rows", "integer", "From 1 to 65535.", _cells, required=True),
            Parameter("cols", "integer", "From 1 to 65535.", _cells, required=True),
        ),
        _document(
            {
                name: _told("integer", "As asked.")
                for name in ("session_id", "rows", "cols")
            }
        ),
    ),
)
TOOLS: Final[Mapping[str, Tool]] = {tool.name: tool for tool in _EVERY}
"""Every tool by its name, in the order in which clients are told of them."""


# --- from words to what is done ------------------------------------------------------


def patience(yield_time_ms: int, *, looks: bool) -> float:
    """Return how long a call observes, in seconds.

    Args:
        yield_time_ms: what was asked for, in milliseconds.
        looks: whether it writes nothing, to a command that was seen before.
    """
    least, most = (LOOK_LEAST, LOOK_MOST) if looks else (YIELD_LEAST, YIELD_MOST)
    return min(max(yield_time_ms / 1000, least), most)


def command(cmd: str, shell: str, *, login: bool) -> list[str]:
    """Return the argv that has a shell run a command line."""
    return [shell, "-lc" if login else "-c", cmd]


def is_shell(path: str) -> bool:
    """Return whether this is the name of a shell that runs a command line.

    What is in a user's record may as well be a program that refuses everybody.
    """
    return path.startswith("/") and path.rpartition("/")[2] in _SHELLS


def keys(chars: str) -> list[str]:
    """Return what is typed, in pieces: each ^C and ^D is one by itself."""
    return [piece for piece in _KEYS.split(chars) if piece]


# --- from what happened to words -----------------------------------------------------


def observation(
    seen: PollResult, wall_time: float, session_id: int, max_tokens: int
) -> dict[str, Any]:
    """Return what an agent is told of a command.

    Args:
        seen: what a poll gave.
        wall_time: seconds that the call took.
        session_id: of the session.
        max_tokens: how much of the output to tell.
    """
    text, tokens, _ = abridge(seen.text, max_tokens)
    if seen.dropped_bytes:
        text += f"\n[{seen.dropped_bytes} bytes from its middle were not kept]\n"
        tokens += -(-seen.dropped_bytes // BYTES_PER_TOKEN)
    told = {
        "wall_time_seconds": round(wall_time, 4),
        "output": text,
        "chunk_id": seen.chunk_id,
        "original_token_count": tokens,
    }
    if not seen.done:
        return {**told, "session_id": session_id}
    return {**told, **exit_code(seen.status)}


def directory(path: str) -> str:
    """Return a path as a text that JSON can carry: odd bytes of it as escapes."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


def exit_code(status: ExitStatus | None) -> dict[str, int]:
    """Return the part of a result that tells a command's end.

    Empty while it runs, and when nobody knows how it ended.
    """
    if status is None or status.returncode is None:
        return {}
    return {"exit_code": exit_codes.of_status(status)}


def crowding(sessions: int) -> str | None:
    """Return what to tell who has so many sessions; None: there is room."""
    if sessions < CROWDED:
        return None
    return (
        f"There are {sessions} sessions; beyond {SESSIONS}, the ones used least "
        "recently are ended. Use kill_session on those that you do not need."
    )


def sentence(error: EngineError, session_id: int | None) -> str:
    """Return what to tell an agent whose call failed.

    Args:
        error: why.
        session_id: what the call was about, if it was about a session.
    """
    match error:
        case SessionNotFound():
            return (
                f"session_id: there is no session {session_id}: it never was, or its "
                "end was told already; list_sessions tells which there are"
            )
        case NotATerminal():
            return f"session_id: {session_id} has no terminal: start it with tty"
        case InvalidRequest(field="input"):
            return f"chars: {error.message}"
        case SpawnFailed(errno=errno.E2BIG) | InvalidRequest(field="argv"):
            return (
                "cmd: is longer than the system takes as one argument: write it to a "
                "file in parts, and run that"
            )
        case SpawnFailed():
            return f"{_STEPS.get(error.step, error.step)}: {error}"
        case _:
            return str(error)
