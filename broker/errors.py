"""The error tree: every way a request can fail, each with a stable wire code.

::

    EngineError
    ├── InvalidRequest (ValueError)        the caller asked for something impossible
    ├── SessionNotFound (LookupError)      absent, foreign or released
    ├── SessionOwned                       attach without steal while its owner lives
    ├── SpawnFailed (OSError)              the system refused to start the program
    ├── StdinUnavailable                   stdin is null, closed, or the child has ended
    ├── NotATerminal                       resize of a session without a terminal
    ├── OutputLimitExceeded                more output than `limit`
    ├── OutputLost                         `output()` called after bytes were dropped
    ├── OutputEnded                        the output ended before it came up
    ├── CommandFailed (CalledProcessError) `check=True` and a failure status (outcomes)
    ├── TimedOut (TimeoutExpired, TimeoutError) (outcomes)
    ├── CapacityExceeded                   no room for another session now
    ├── WorkerLost                         the worker that owned the child died
    ├── BrokerLost                         the broker is gone, or was replaced
    ├── AlreadyRunning                     another broker has this runtime directory
    ├── ShellEnded                         a command ended its persistent shell
    ├── ServiceFailed                      a service did not start or stop
    ├── WrongProcess                       a forked copy used its parent's engine
    ├── RuntimeContext                     wrong loop, or blocking inside a loop
    └── ProtocolError                      a peer broke the wire's rules

Caller's misuse, the world's failure, a peer's fault and "it is gone" are separate
classes, because callers react to them differently. `encode` and `decode` carry each
of them over the wire; both are total: whatever the texts hold, an answer gets through.

The two that are kinds of subprocess's own are in `outcomes`, which no worker imports.
"""

import os
from collections.abc import Sequence
from typing import Any, ClassVar

__all__ = [
    "AlreadyRunning",
    "BrokerLost",
    "CapacityExceeded",
    "EngineError",
    "InvalidRequest",
    "NotATerminal",
    "OutputEnded",
    "OutputLimitExceeded",
    "OutputLost",
    "ProtocolError",
    "RuntimeContext",
    "ServiceFailed",
    "SessionNotFound",
    "SessionOwned",
    "ShellEnded",
    "SpawnFailed",
    "StdinUnavailable",
    "WorkerLost",
    "WrongProcess",
    "decode",
    "encode",
    "last_output",
]

SHOWN = 100
"""Bytes of each stream's output that a message shows at most."""

Word = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Command = Word | Sequence[Word]


CLASSES: dict[str, "type[EngineError]"] = {}
"""Wire code → class, of all that were defined so far."""


class EngineError(Exception):
    """Base of everything the engine raises on purpose.

    `fields` names the constructor's arguments in order: they are the attributes that
    survive pickling. `local_fields` are those among them that never cross the wire
    (captured output, statuses: the client adds them itself), `number_fields` those that
    cross it as numbers; the others cross it as text.
    """

    code: ClassVar[str] = "engine"
    fields: ClassVar[tuple[str, ...]] = ("message",)
    local_fields: ClassVar[tuple[str, ...]] = ()
    number_fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" in vars(cls):
            CLASSES[cls.code] = cls

    def __init__(self, message: str = "") -> None:
        self.message = message or _first_line(type(self))
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.fields)
        return f"{type(self).__name__}({values})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in self.fields)


CLASSES[EngineError.code] = EngineError


def _first_line(cls: type) -> str:
    return (cls.__doc__ or cls.__name__).splitlines()[0].rstrip(".")


class InvalidRequest(EngineError, ValueError):
    """The request is not possible as asked; `field` names the parameter."""

    code = "invalid-request"
    fields = ("field", "message")

    def __init__(self, field: str, message: str = "is not valid") -> None:
        super().__init__(message)
        self.field = field

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class SessionNotFound(EngineError, LookupError):
    """No such session here (never started, released, or another owner's)."""

    code = "session-not-found"


class SessionOwned(EngineError):
    """The session has a living owner; pass `steal=True` to take it."""

    code = "session-owned"


class SpawnFailed(EngineError, OSError):
    """The system refused to start the program.

    `errno` is the system's number, `step` one of `cwd exec pty limits fork pipe
    journal`, `path` the program or directory it was about.
    """

    code = "spawn-failed"
    fields = ("errno", "step", "path")
    number_fields = ("errno",)

    def __init__(self, errno: int, step: str, path: str = "") -> None:
        OSError.__init__(self, errno, os.strerror(errno), path or None)
        self.step = step
        self.path = path
        self.message = str(self)

    def __str__(self) -> str:
        what = {
            "cwd": "cannot use working directory",
            "exec": "cannot execute",
            "pty": "cannot open a terminal for",
            "limits": "cannot set the limits of",
            "fork": "cannot start a process for",
            "pipe": "cannot make pipes for",
            "journal": "cannot write the record of",
        }.get(self.step, self.step)
        return f"{what} {self.path!r}: {self.strerror}"


class StdinUnavailable(EngineError):
    """The child's stdin is null, closed, or the child has ended."""

    code = "stdin-unavailable"


class NotATerminal(EngineError):
    """The session has no terminal."""

    code = "not-a-terminal"


class _WithOutput(EngineError):
    """An error that carries what was captured so far, in bytes."""

    local_fields: ClassVar[tuple[str, ...]] = ("stdout", "stderr")
    stdout: bytes
    stderr: bytes


class OutputLimitExceeded(_WithOutput):
    """The child wrote more than `limit` bytes; the first of them are kept."""

    code = "output-limit-exceeded"
    fields = ("limit", "stdout", "stderr")
    number_fields = ("limit",)

    def __init__(self, limit: int, stdout: bytes = b"", stderr: bytes = b"") -> None:
        super().__init__(f"the child wrote more than {limit} bytes")
        self.limit = limit
        self.stdout = stdout
        self.stderr = stderr


class OutputLost(_WithOutput):
    """`dropped` bytes of output were no longer retained when they were asked for."""

    code = "output-lost"
    fields = ("dropped", "stdout", "stderr")
    number_fields = ("dropped",)

    def __init__(self, dropped: int, stdout: bytes = b"", stderr: bytes = b"") -> None:
        super().__init__(f"{dropped} bytes of output were dropped before this call")
        self.dropped = dropped
        self.stdout = stdout
        self.stderr = stderr


class OutputEnded(_WithOutput):
    """The output ended before what was waited for.

    `status` is how the child ended, None while it has not; `stdout` and `stderr` are
    the last lines of output. `awaited` says what was waited for; with it the message
    shows the ends of the output, too.
    """

    code = "output-ended"
    fields = ("status", "stdout", "stderr", "awaited")
    local_fields = ("status", "stdout", "stderr", "awaited")

    # An exit status; its class belongs to the floors above.
    status: Any

    def __init__(
        self,
        status: Any = None,
        stdout: bytes = b"",
        stderr: bytes = b"",
        awaited: str = "",
    ) -> None:
        end, last = _how_it_ended(status), last_output(stdout, stderr)
        what = f"the output ended before {awaited}: {end}; {last}"
        super().__init__(what if awaited else "")
        self.status = status
        self.stdout = stdout
        self.stderr = stderr
        self.awaited = awaited


def _how_it_ended(status: Any) -> str:
    if status is None:
        return "the child has not ended"
    if status.signal is not None:
        return f"the child died of signal {status.signal} ({status.cause})"
    if status.code is None:
        return f"nobody knows how the child ended ({status.cause})"
    return f"the child exited with code {status.code}"


def last_output(stdout: bytes | None, stderr: bytes | None) -> str:
    """Return the ends of output as words for a message."""
    streams = (("stdout", stdout), ("stderr", stderr))
    ends = [f"{name} ends with {text[-SHOWN:]!r}" for name, text in streams if text]
    return ", ".join(ends) or "there was no output"


class CapacityExceeded(EngineError):
    """There is no room for another session; try again in `retry_after` seconds."""

    code = "capacity-exceeded"
    fields = ("retry_after", "message")
    number_fields = ("retry_after",)

    def __init__(self, retry_after: float, message: str = "") -> None:
        super().__init__(message)
        self.retry_after = retry_after


class WorkerLost(EngineError):
    """The worker that owned the child died; the child's tree was ended."""

    code = "worker-lost"


class BrokerLost(EngineError):
    """The broker is gone."""

    code = "broker-lost"


class AlreadyRunning(EngineError):
    """A broker is already running there."""

    code = "already-running"


class ShellEnded(_WithOutput):
    """The persistent shell itself has ended.

    `status` is its exit status; `stdout` and `stderr` are what its last command wrote,
    for that command's caller.
    """

    code = "shell-ended"
    fields = ("status", "message", "stdout", "stderr")
    local_fields = ("status", "stdout", "stderr")

    # An exit status; its class belongs to the floors above.
    status: Any

    def __init__(
        self,
        status: object = None,
        message: str = "",
        stdout: bytes = b"",
        stderr: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.stdout = stdout
        self.stderr = stderr


class ServiceFailed(_WithOutput):
    """The service did not start or stop, or has ended.

    `reason` is one of `cancelled dropped exited timed-out`. `status` is how the command
    it is about ended, None if it has not; `stdout` and `stderr` are the last of its
    output, 64 KiB in sum.
    """

    code = "service-failed"
    fields = ("reason", "message", "status", "stdout", "stderr")
    local_fields = ("status", "stdout", "stderr")

    # An exit status; its class belongs to the floors above.
    status: Any

    def __init__(
        self,
        reason: str,
        message: str = "",
        status: object = None,
        stdout: bytes = b"",
        stderr: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.stdout = stdout
        self.stderr = stderr


class WrongProcess(EngineError):
    """This is a forked copy: only the process that made the engine may use it."""

    code = "wrong-process"


class RuntimeContext(EngineError):
    """The call was made from the wrong event loop or thread."""

    code = "runtime-context"


class ProtocolError(EngineError):
    """A peer broke the rules of the wire."""

    code = "protocol-error"


# The wire takes no longer text in a control frame; any path fits (PATH_MAX).
TEXT_BYTES = 4096
# What is left of a longer one, at up to four bytes each.
TEXT_CUT = 1000


def encode(error: EngineError) -> tuple[str, list[Any]]:
    """Return the wire form of `error`: its code and its fields that may travel.

    Long texts are cut. A text that is not UTF-8 (a path may be anything) is bytes.
    """
    values = [
        getattr(error, name)
        if name in error.number_fields
        else _text_to_wire(str(getattr(error, name)))
        for name in _wire_fields(type(error))
    ]
    return error.code, values


def decode(code: str, values: list[Any]) -> EngineError:
    """Return the error that `encode` was given.

    An unknown code, or fields that do not fit, become `ProtocolError`: a request is
    always answered with an exception of this tree.
    """
    cls = CLASSES.get(code)
    if cls is None:
        return ProtocolError(f"unknown error code {code!r}")
    names = _wire_fields(cls)
    try:
        fields: dict[str, Any] = {
            name: _number(value) if name in cls.number_fields else _text(value)
            for name, value in zip(names, values, strict=True)
        }
        return cls(**fields)
    except (TypeError, ValueError, OverflowError) as misfit:
        return ProtocolError(f"malformed {code!r} error: {misfit}")


def _wire_fields(cls: type[EngineError]) -> list[str]:
    return [name for name in cls.fields if name not in cls.local_fields]


def _text_to_wire(text: str) -> str | bytes:
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) > TEXT_BYTES:
        return _text_to_wire(text[:TEXT_CUT])
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogatepass")
    if not isinstance(value, str):
        raise TypeError("a text is missing")
    return value


def _number(value: object) -> int | float:
    if not isinstance(value, int | float):
        raise TypeError("a number is missing")
    return value
