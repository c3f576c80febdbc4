"""The order to a worker: plain bytes and numbers. Pure.

A worker checks a launch from the wire by the same rules as a client its request,
because bytes that the system cannot carry must not get as far as exec.

On the wire it is a pair: the *terms*, a packed map of the fields that seldom differ
from one launch to the next, and a map of the others. The client packs equal terms once,
and the worker unpacks and checks equal bytes once: measured 9 us less in the client
and 27 us less in the worker for each launch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, Literal, Self

from actors import checks
from actors.checks import Check
from actors.settings import Leftover, Limits, OutputPolicy, Rlimits, TtySize, to_plain
from broker.errors import InvalidRequest
from broker.wire import Payload, pack, unpack

InputMode = Literal["null", "pipe"]
OutputMode = Literal["pipe", "null"]
ErrorMode = Literal["pipe", "stdout", "null"]


_OWN: Final[Mapping[str, Check]] = {
    "argv": checks.command,
    "executable": checks.optional(checks.plain_bytes),
    "cwd": checks.plain_bytes,
    "env": checks.block,
    "pass_fds": checks.descriptors,
    "stdin": checks.stdin,
    "metadata": checks.metadata,
    "authority": checks.optional(checks.text),
    "scope": checks.text,
    "paused": checks.flag,
    "observe": checks.each(checks.plain_bytes),
    "scratch": checks.optional(checks.plain_bytes),
    "mark": checks.mark,
}

_TERMS: Final[Mapping[str, Check]] = {
    "umask": checks.whole(0, 0o777),
    "rlimits": checks.rlimits,
    "nice": checks.nice,
    "oom_score_adj": checks.oom_score_adj,
    "stdout": checks.stdout,
    "stderr": checks.stderr,
    "tty": checks.optional(checks.instance(TtySize)),
    "retention": checks.instance(OutputPolicy),
    "post_exit_grace": checks.optional(checks.seconds),
    "leftover": checks.leftover,
    "leftover_delay": checks.seconds,
    "timeout": checks.optional(checks.some_seconds),
    "idle_timeout": checks.optional(checks.some_seconds),
    "limits": checks.instance(Limits),
    "terminate_grace": checks.seconds,
    "kill_timeout": checks.some_seconds,
    "kill_on_drop": checks.flag,
    "quiet": checks.some_seconds,
    "chunk": checks.chunk,
    "stdin_queue": checks.size,
}


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything a worker needs to start and keep one child.

    `Spec.launch` makes it of what it has checked; it is checked again where it arrives.

    Attributes:
        argv: The command; its first item is what the child sees as its own name.
        executable: The program, where it differs from `argv[0]`. Either is looked up
            in the PATH of `env` unless it holds a slash.
        cwd: Absolute working directory.
        env: The whole environment: `NAME=VALUE`, with a NUL between two of them.
        umask: File mode creation mask.
        rlimits: Rows of resource number, soft and hard limit; -1 is "no limit".
        nice: Absolute niceness.
        oom_score_adj: Preference of the out-of-memory killer.
        pass_fds: Numbers, in the child, of the descriptors that travel beside this.
        stdin: `null`, `pipe`, or bytes to feed before closing it.
        stdout: `pipe` or `null`.
        stderr: `pipe`, `null`, or `stdout`: wherever stdout goes.
        tty: Size of the terminal that takes the place of all three, or None.
        retention: What is kept of the output.
        post_exit_grace: Seconds for open pipes after the end; None is until EOF.
        leftover: What becomes of descendants after a normal end.
        leftover_delay: Seconds they get.
        timeout: Seconds until the tree is ended, or None.
        idle_timeout: Seconds without output until the tree is ended, or None.
        limits: What was asked for; only its watches are not yet in the fields above.
        terminate_grace: Seconds between SIGTERM and the kill.
        kill_timeout: Seconds for proving that a killed tree is gone.
        kill_on_drop: Whether a lost owner ends the tree, or only closes stdin.
        quiet: Seconds of silence that end a poll in mode `output`.
        chunk: Most bytes in one piece of output.
        stdin_queue: Most bytes waiting for the child to read.
        metadata: The caller's pairs, given back with every result.
        authority: The caller's note of what it allowed, or None.
        scope: Name of the scope.
        paused: Whether the clock of the scope is stopped as this is sent.
        observe: Absolute directories below which changes are recorded.
        scratch: Lock file to hold while the tree lives, or None.
        mark: What the tree carries in its environment; empty for nothing.

    Raises:
        InvalidRequest: A field is not valid; named after the field.
    """

    argv: tuple[bytes, ...]
    executable: bytes | None
    cwd: bytes
    env: bytes = field(repr=False)
    umask: int
    rlimits: Rlimits
    nice: int
    oom_score_adj: int
    pass_fds: tuple[int, ...]
    stdin: InputMode | bytes = field(repr=False)
    stdout: OutputMode
    stderr: ErrorMode
    tty: TtySize | None
    retention: OutputPolicy
    post_exit_grace: float | None
    leftover: Leftover
    leftover_delay: float
    timeout: float | None
    idle_timeout: float | None
    limits: Limits
    terminate_grace: float
    kill_timeout: float
    kill_on_drop: bool
    quiet: float
    chunk: int
    stdin_queue: int
    metadata: tuple[tuple[str, str], ...]
    authority: str | None
    scope: str
    paused: bool
    observe: tuple[bytes, ...]
    scratch: bytes | None = None
    mark: bytes = b""

    @property
    def variables(self) -> list[bytes]:
        """The environment, `NAME=VALUE` each."""
        return self.env.split(b"\0") if self.env else []

    def to_wire(self) -> bytes:
        """Return the document that a worker reads with `from_wire`.

        Raises:
            ProtocolError: It would be too large for the wire.
        """
        own = {name: getattr(self, name) for name in _OWN}
        return pack([_pack_terms(_terms_of(self)), own])

    @classmethod
    def from_wire(cls, wire: Payload) -> Self:
        """Return the order that `to_wire` gave.

        Raises:
            ProtocolError: The bytes are no document.
            InvalidRequest: A field is missing, unknown or of another type.
        """
        packed, given = checks.pair("launch", unpack(wire))
        if not isinstance(packed, bytes):
            raise InvalidRequest("terms", "must be bytes")
        own = checks.exactly("launch", given, _OWN)
        for name in ("argv", "pass_fds", "observe"):
            own[name] = checks.items(name, own[name])
        own["metadata"] = checks.rows("metadata", own["metadata"])
        for name, check in _OWN.items():
            check(name, own[name])
        return cls(**own, **_read_terms(packed))


_terms_of: Final = attrgetter(*_TERMS)


@lru_cache(maxsize=64)
def _pack_terms(values: tuple[Any, ...]) -> bytes:
    return pack(dict(zip(_TERMS, map(to_plain, values), strict=True)))


@lru_cache(maxsize=4)
def _read_terms(packed: bytes) -> Mapping[str, Any]:
    """Return the terms in their packed form, checked; not to be changed."""
    values = checks.exactly("launch", unpack(packed), _TERMS)
    values["rlimits"] = checks.rows("rlimits", values["rlimits"])
    values["retention"] = OutputPolicy.from_wire(values["retention"])
    values["limits"] = Limits.from_wire(values["limits"])
    if values["tty"] is not None:
        values["tty"] = TtySize.from_wire(values["tty"])
    for name, check in _TERMS.items():
        check(name, values[name])
    return values
