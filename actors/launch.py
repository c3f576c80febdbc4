"""The order to a worker: plain bytes and numbers. Pure.

A worker checks a launch from the wire by the same rules as a client its request,
because bytes that the system cannot carry must not get as far as exec.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from actors import checks
from actors.checks import Check
from actors.settings import Leftover, Limits, OutputPolicy, Rlimits, TtySize, to_plain

InputMode = Literal["null", "pipe"]
OutputMode = Literal["pipe", "null"]
ErrorMode = Literal["pipe", "stdout", "null"]


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything a worker needs to start and keep one child.

    `Spec.launch` makes it of what it has checked; it is checked again where it arrives,
    which takes 50 us with 60 variables.

    Attributes:
        argv: The command; its first item is what the child sees as its own name.
        executable: The program, where it differs from `argv[0]`. Either is looked up
            in the PATH of `env` unless it holds a slash.
        cwd: Absolute working directory.
        env: The whole environment, as pairs.
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
        scratch: Lock file to hold while the tree lives, or None.

    Raises:
        InvalidRequest: A field is not valid; named after the field.
    """

    argv: tuple[bytes, ...]
    executable: bytes | None
    cwd: bytes
    env: tuple[tuple[bytes, bytes], ...] = field(repr=False)
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
    scratch: bytes | None = None

    _CHECKS: ClassVar[Mapping[str, Check]] = {
        "argv": checks.command,
        "executable": checks.optional(checks.plain_bytes),
        "cwd": checks.plain_bytes,
        "env": checks.variables,
        "umask": checks.whole(0, 0o777),
        "rlimits": checks.rlimits,
        "nice": checks.nice,
        "oom_score_adj": checks.oom_score_adj,
        "pass_fds": checks.descriptors,
        "stdin": checks.stdin,
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
        "chunk": checks.size,
        "stdin_queue": checks.size,
        "metadata": checks.metadata,
        "authority": checks.optional(checks.text),
        "scope": checks.text,
        "scratch": checks.optional(checks.plain_bytes),
    }

    def to_wire(self) -> dict[str, Any]:
        """Return a map of plain values, one for each field."""
        return {name: to_plain(getattr(self, name)) for name in self._CHECKS}

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Return the order that `to_wire` gave.

        Raises:
            InvalidRequest: A field is missing, unknown or of another type.
        """
        values = checks.exactly("launch", wire, cls._CHECKS)
        for name in ("argv", "pass_fds"):
            values[name] = checks.items(name, values[name])
        for name in ("env", "rlimits", "metadata"):
            values[name] = checks.rows(name, values[name])
        values["retention"] = OutputPolicy.from_wire(values["retention"])
        values["limits"] = Limits.from_wire(values["limits"])
        if values["tty"] is not None:
            values["tty"] = TtySize.from_wire(values["tty"])
        launch = cls(**values)
        checks.check_all(cls._CHECKS, launch)
        return launch
