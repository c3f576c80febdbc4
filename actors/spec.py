"""What a client asks for: specs, policies, limits and settings, checked when made.

A `Spec` is a request in the caller's words. `Spec.launch` joins it with what the
client's process has at that moment (`Ambient`) and with the engine's `Settings` into a
`Launch`: plain bytes and numbers, which is all that a worker needs to start and keep
one child. Whatever can be judged without the operating system is refused here, with
`InvalidRequest` naming the parameter; a worker checks a `Launch` from the wire by the
same rules, because bytes that the system cannot carry must not get as far as exec.

Error texts never repeat a value: it may be a secret.
"""

import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

from broker.errors import InvalidRequest

__all__ = [
    "AGENT_ENV",
    "Ambient",
    "Launch",
    "Limits",
    "OutputPolicy",
    "Settings",
    "Spec",
    "TtySize",
    "Watch",
]

MIB = 1024 * 1024
# Up to here a float holds every whole number. Anything larger is a mistake, and would
# change as soon as some peer computes with it.
MOST = 2**53
# What setrlimit and the wire can carry; -1 is "no limit", as in `resource`.
RLIMIT_MOST = 2**63 - 1
# The kernel puts no more descriptors than this into one message (SCM_MAX_FD).
PASS_FDS_MOST = 253
MARK = b"CRECHE_MARK"
MARK_DIGITS = 32

AGENT_ENV: Mapping[str, str] = {
    "NO_COLOR": "1",
    "TERM": "dumb",
    "LANG": "C.UTF-8",
    "LC_CTYPE": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "COLORTERM": "",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GH_PAGER": "cat",
    "CRECHE_AGENT": "1",
}
"""An `extra_env` for children whose reader is a program: no colours, no pager."""


class PathLike(Protocol):
    """Anything that names a file, as `os.PathLike` does."""

    def __fspath__(self) -> str | bytes:
        """Return the path."""


Native = str | bytes | PathLike
"""Text or bytes that the operating system will see; text is UTF-8."""

Environment = Mapping[str, Native] | Mapping[bytes, Native] | Mapping[Native, Native]
Overlay = (
    Mapping[str, Native | None]
    | Mapping[bytes, Native | None]
    | Mapping[Native, Native | None]
)
PolicyKind = Literal["tail", "head_tail", "block"]
Action = Literal["terminate", "notify"]
WatchName = Literal["output", "tree_memory", "tree_processes"]
Leftover = Literal["kill", "keep", "report"]
InputMode = Literal["null", "pipe"]
OutputMode = Literal["pipe", "null"]
ErrorMode = Literal["pipe", "stdout", "null"]
T = TypeVar("T")

# --- checks: each takes the parameter's name and a value, and raises or returns -----

Check = Callable[[str, object], None]


def _whole(low: int, high: int = MOST) -> Check:
    def check(name: str, value: object) -> None:
        # True and False are ints to Python; nobody means them as a size.
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidRequest(name, "must be a whole number")
        if not low <= value <= high:
            raise InvalidRequest(name, f"must be between {low} and {high}")

    return check


def _seconds(name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidRequest(name, "must be a number of seconds")
    # Not a number compares false with everything, so it ends here too.
    if not 0 <= value <= MOST:
        raise InvalidRequest(name, "must be a finite time, not negative")


def _some_seconds(name: str, value: object) -> None:
    _seconds(name, value)
    if value == 0:
        raise InvalidRequest(name, "must be longer than nothing")


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidRequest(name, "must be True or False")


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidRequest(name, "must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        # Without its cause, which would carry the text along.
        raise InvalidRequest(name, "holds half a character") from None


def _choice(*choices: str) -> Check:
    def check(name: str, value: object) -> None:
        if not isinstance(value, str) or value not in choices:
            raise InvalidRequest(name, f"must be one of {', '.join(choices)}")

    return check


def _instance(kind: type) -> Check:
    def check(name: str, value: object) -> None:
        if not isinstance(value, kind):
            raise InvalidRequest(name, f"must be {kind.__name__}")

    return check


def _optional(check: Check) -> Check:
    def check_unless_none(name: str, value: object) -> None:
        if value is not None:
            check(name, value)

    return check_unless_none


def _each(check: Check) -> Check:
    def check_each(name: str, value: object) -> None:
        for item in _items(name, value):
            check(name, item)

    return check_each


def _items(name: str, value: object) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidRequest(name, "must be a sequence")
    return tuple(value)


def _pair(name: str, value: object) -> tuple[Any, Any]:
    items = _items(name, value)
    if len(items) != 2:
        raise InvalidRequest(name, "must be a pair")
    return items[0], items[1]


def _rows(name: str, value: object) -> tuple[tuple[Any, ...], ...]:
    return tuple(_items(name, row) for row in _items(name, value))


def _plain_bytes(name: str, value: object) -> None:
    if not isinstance(value, bytes):
        raise InvalidRequest(name, "must be bytes")
    if b"\0" in value:
        raise InvalidRequest(name, "must not hold a NUL byte")


def _command(name: str, value: object) -> None:
    _each(_plain_bytes)(name, value)
    if not value:
        raise InvalidRequest(name, "must not be empty")


def _cells(name: str, value: object, width: int, kind: type) -> list[Any]:
    # Not one check per cell: environments are long, and each start reads one twice.
    rows = _items(name, value)
    cells = [cell for row in rows for cell in _items(name, row)]
    if any(len(row) != width for row in rows):
        raise InvalidRequest(name, f"must hold rows of {width}")
    if not all(isinstance(cell, kind) for cell in cells):
        raise InvalidRequest(name, f"must hold {kind.__name__} alone")
    return cells


def _variables(name: str, value: object) -> None:
    cells = _cells(name, value, 2, bytes)
    _plain_bytes(name, b"".join(cells))
    _variable_names(name, cells[::2])


def _variable_names(name: str, variables: Iterable[bytes]) -> None:
    if not all(variables) or b"=" in b"".join(variables):
        raise InvalidRequest(name, "has a variable with no name, or with = in it")


def _stdin(name: str, value: object) -> None:
    if not isinstance(value, bytes):
        _choice("null", "pipe")(name, value)


def _metadata(name: str, value: object) -> None:
    for cell in _cells(name, value, 2, str):
        _text(name, cell)


def _rlimits(name: str, value: object) -> None:
    for cell in _cells(name, value, 3, int):
        _limit(name, cell)


def _descriptors(name: str, value: object) -> None:
    # 0, 1 and 2 are the child's own streams.
    _each(_whole(3, 2**31 - 1))(name, value)
    numbers = _items(name, value)
    if len(set(numbers)) != len(numbers) or len(numbers) > PASS_FDS_MOST:
        raise InvalidRequest(name, f"must be at most {PASS_FDS_MOST} different numbers")


_limit = _whole(-1, RLIMIT_MOST)
_cell_count = _whole(1, 65535)
_size = _whole(1)
_nice = _whole(-20, 19)
_oom_score_adj = _whole(-1000, 1000)
_policy = _choice("tail", "head_tail", "block")
_action = _choice("terminate", "notify")
_leftover = _choice("kill", "keep", "report")
_stdout = _choice("pipe", "null")
_stderr = _choice("pipe", "stdout", "null")


def _check_all(checks: Mapping[str, Check], values: object, prefix: str = "") -> None:
    for name, check in checks.items():
        check(prefix + name, getattr(values, name))


def _exactly(what: str, wire: object, names: Iterable[str]) -> dict[str, Any]:
    if not isinstance(wire, dict):
        raise InvalidRequest(what, "must be a map")
    wanted = set(names)
    if missing := wanted - wire.keys():
        raise InvalidRequest(what, f"lacks {', '.join(sorted(missing))}")
    if len(wire) > len(wanted):
        raise InvalidRequest(what, "has unknown fields")
    return dict(wire)


# --- what a child gets ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TtySize:
    """The size of a terminal, in character cells; each from 1 to 65535.

    Raises:
        InvalidRequest: `tty.rows` or `tty.cols` is out of range.
    """

    rows: int = 24
    cols: int = 80

    _CHECKS: ClassVar[Mapping[str, Check]] = {
        "rows": _cell_count,
        "cols": _cell_count,
    }

    def __post_init__(self) -> None:
        _check_all(self._CHECKS, self, "tty.")

    def to_wire(self) -> list[Any]:
        """Return `[rows, cols]`."""
        return [self.rows, self.cols]

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Return the size that `to_wire` gave.

        Raises:
            InvalidRequest: It is something else.
        """
        return cls(*_pair("tty", wire))


@dataclass(frozen=True, slots=True)
class OutputPolicy:
    """What is kept of a session's output, over both streams together.

    Use `tail`, `head_tail` or `block` to make one.

    Attributes:
        kind: The policy's name.
        size: Bytes kept; at least 1.

    Raises:
        InvalidRequest: `retention.kind` or `retention.size` is not valid.
    """

    kind: PolicyKind
    size: int

    _CHECKS: ClassVar[Mapping[str, Check]] = {
        "kind": _policy,
        "size": _size,
    }

    def __post_init__(self) -> None:
        _check_all(self._CHECKS, self, "retention.")

    @classmethod
    def tail(cls, size: int = 2 * MIB) -> Self:
        """Keep the newest `size` bytes; the oldest are dropped and counted."""
        return cls("tail", size)

    @classmethod
    def head_tail(cls, size: int = MIB) -> Self:
        """Keep the first and the last half of `size` bytes; the middle is dropped."""
        return cls("head_tail", size)

    @classmethod
    def block(cls, size: int) -> Self:
        """Drop nothing: the child waits when its slowest reader is `size` bytes behind.

        Before the first reader the log holds `size` bytes, then the child waits, so
        that `wait()` alone may wait for ever.
        """
        return cls("block", size)

    def to_wire(self) -> list[Any]:
        """Return `[kind, size]`."""
        return [self.kind, self.size]

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Return the policy that `to_wire` gave.

        Raises:
            InvalidRequest: It is something else.
        """
        return cls(*_pair("retention", wire))


@dataclass(frozen=True, slots=True)
class Watch:
    """A budget that the engine watches, and what to do when it is used up.

    Attributes:
        value: The budget, in bytes or processes; at least 1.
        action: `terminate` ends the tree with cause `limit`; `notify` only tells.

    Raises:
        InvalidRequest: `watch.value` or `watch.action` is not valid.
    """

    value: int
    action: Action = "terminate"

    _CHECKS: ClassVar[Mapping[str, Check]] = {
        "value": _size,
        "action": _action,
    }

    def __post_init__(self) -> None:
        _check_all(self._CHECKS, self, "watch.")


# Names of ours, numbers of this machine's kernel.
_RLIMITS: Mapping[str, int] = {
    "nofile": resource.RLIMIT_NOFILE,
    "core": resource.RLIMIT_CORE,
    "address_space": resource.RLIMIT_AS,
    "cpu": resource.RLIMIT_CPU,
    "file_size": resource.RLIMIT_FSIZE,
    "processes": resource.RLIMIT_NPROC,
}
_WATCHES: tuple[WatchName, ...] = ("output", "tree_memory", "tree_processes")

Rlimits = tuple[tuple[int, int, int], ...]
"""Rows of resource number, soft limit, hard limit; -1 is "no limit"."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may use; `None` leaves what the client's process has.

    The system enforces the first eight; soft and hard limit become the same value. The
    last three are watched by the engine: give a `Watch`, or a number that stands for
    `Watch(number)`.

    Attributes:
        nofile: One more than the highest descriptor number.
        core: Size of a core file, bytes.
        address_space: Address space of one process, bytes.
        cpu: Processor time of one process, whole seconds.
        file_size: Size of a file that is written, bytes.
        processes: Processes of this user.
        nice: Niceness, -20 to 19, as an absolute value.
        oom_score_adj: Preference of the out-of-memory killer, -1000 to 1000.
        output: Bytes written to both streams.
        tree_memory: Resident bytes of the whole tree.
        tree_processes: Processes of the whole tree.

    Raises:
        InvalidRequest: `limits.NAME` is out of range or of the wrong type.
    """

    nofile: int | None = None
    core: int | None = None
    address_space: int | None = None
    cpu: int | None = None
    file_size: int | None = None
    processes: int | None = None
    nice: int | None = None
    oom_score_adj: int | None = None
    output: Watch | int | None = None
    tree_memory: Watch | int | None = None
    tree_processes: Watch | int | None = None

    _CHECKS: ClassVar[Mapping[str, Check]] = {
        **dict.fromkeys(_RLIMITS, _optional(_whole(0))),
        "nice": _optional(_nice),
        "oom_score_adj": _optional(_oom_score_adj),
    }

    def __post_init__(self) -> None:
        _check_all(self._CHECKS, self, "limits.")
        for name in _WATCHES:
            value = getattr(self, name)
            if value is not None and not isinstance(value, Watch):
                _size(f"limits.{name}", value)
                object.__setattr__(self, name, Watch(value))

    def watch(self, name: WatchName) -> Watch | None:
        """Return the watched budget of that name, or None."""
        value = getattr(self, name)
        return value if isinstance(value, Watch) else None

    def rlimits(self, ambient: Rlimits) -> Rlimits:
        """Return `ambient` with these limits laid over it."""
        merged = {number: (soft, hard) for number, soft, hard in ambient}
        for name, number in _RLIMITS.items():
            value = getattr(self, name)
            if value is not None:
                merged[number] = (value, value)
        return tuple((number, *pair) for number, pair in merged.items())

    def to_wire(self) -> dict[str, Any]:
        """Return what is set: numbers, and `[value, action]` for a watch."""
        numbers = {name: getattr(self, name) for name in self._CHECKS}
        watches = {
            name: [watch.value, watch.action]
            for name in _WATCHES
            if (watch := self.watch(name))
        }
        return {k: v for k, v in numbers.items() if v is not None} | watches

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Return the limits that `to_wire` gave.

        Raises:
            InvalidRequest: It is something else.
        """
        unset = dict.fromkeys((*cls._CHECKS, *_WATCHES))
        known = unset | wire if isinstance(wire, dict) else wire
        values = _exactly("limits", known, unset)
        for name in _WATCHES:
            if values[name] is not None:
                values[name] = Watch(*_pair(f"limits.{name}", values[name]))
        return cls(**values)


# --- defaults ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """Every default of an engine, checked together. Times in seconds, sizes in bytes.

    Attributes:
        retention: What is kept of a session's output.
        tty: Size of a new terminal.
        leftover: What becomes of descendants after the child's normal end.
        chunk: Most bytes in one piece of output on the wire.
        window_chunks: Pieces of output under way to one reader.
        window_bytes: Bytes of output under way to one reader; at least one `chunk`.
        stdin_queue: Bytes waiting for a child that does not read.
        post_exit_grace: Wait for pipes left open by an ended child; None is until EOF.
        leftover_delay: Time that descendants get after the child's end.
        terminate_grace: Time between SIGTERM and the kill.
        kill_timeout: Time for proving that a killed tree is gone.
        kill_many_timeout: The same for a kill of many sessions at once.
        start_timeout: Time for the engine's own processes to start.
        quiet: Silence that ends a poll in mode `output`.
        poll_wait: How long a poll waits unless told.
        poll_wait_max: Most that a first poll, or one with input, waits.
        poll_empty_wait_max: Most that a later poll without input waits.
        retain_seconds: How long an ended session stays although nobody asks for it.
        retain_count: Ended and reported sessions kept for each owner.
        lifecycle_backlog: Lifecycle events kept for a slow listener.
        capacity: Live sessions of one client; None leaves it to the broker.
        protected: Most recently used sessions that are never evicted.
        warm: Idle workers kept ready.
        lease: A remote or hung client is given up after this silence.
        lease_renewal: Time between renewals; shorter than `lease`.
        reconnect_grace: How long workers and calls wait for a lost broker.
        on_hung: Whether a stopped local client keeps its sessions.
        containment: How trees are held together; `auto` is the best there is.
        service_start_timeout: Time for a service to become ready.
        service_stop_timeout: Time for a service's stop command.
        service_tail: Bytes of output kept of a service that did not start.
        scratch_root: Directory of scratch directories; None is the runtime directory.

    Raises:
        InvalidRequest: `settings.NAME` is not valid, alone or beside the others.
    """

    retention: OutputPolicy = OutputPolicy("tail", 2 * MIB)
    tty: TtySize = TtySize()
    leftover: Leftover = "kill"
    chunk: int = 65536
    window_chunks: int = 256
    window_bytes: int = 256 * 65536
    stdin_queue: int = MIB
    post_exit_grace: float | None = 0.25
    leftover_delay: float = 0.25
    terminate_grace: float = 2.0
    kill_timeout: float = 5.0
    kill_many_timeout: float = 3.0
    start_timeout: float = 10.0
    quiet: float = 0.05
    poll_wait: float = 10.0
    poll_wait_max: float = 30.0
    poll_empty_wait_max: float = 300.0
    retain_seconds: float = 30.0
    retain_count: int = 256
    lifecycle_backlog: int = 256
    capacity: int | None = None
    protected: int = 8
    warm: int = 4
    lease: float = 10.0
    lease_renewal: float = 3.0
    reconnect_grace: float = 3.0
    on_hung: Literal["keep", "kill"] = "keep"
    containment: Literal["auto", "cgroup", "subreaper"] = "auto"
    service_start_timeout: float = 30.0
    service_stop_timeout: float = 30.0
    service_tail: int = 65536
    scratch_root: str | None = None

    # Zero is allowed where it means "at once" or "none", never as a size or deadline.
    _CHECKS: ClassVar[Mapping[str, Check]] = {
        "retention": _instance(OutputPolicy),
        "tty": _instance(TtySize),
        "leftover": _leftover,
        "chunk": _size,
        "window_chunks": _size,
        "window_bytes": _size,
        "stdin_queue": _size,
        "post_exit_grace": _optional(_seconds),
        "leftover_delay": _seconds,
        "terminate_grace": _seconds,
        "kill_timeout": _some_seconds,
        "kill_many_timeout": _some_seconds,
        "start_timeout": _some_seconds,
        "quiet": _some_seconds,
        "poll_wait": _some_seconds,
        "poll_wait_max": _some_seconds,
        "poll_empty_wait_max": _some_seconds,
        "retain_seconds": _seconds,
        "retain_count": _whole(0),
        "lifecycle_backlog": _size,
        "capacity": _optional(_size),
        "protected": _whole(0),
        "warm": _whole(0),
        "lease": _some_seconds,
        "lease_renewal": _some_seconds,
        "reconnect_grace": _seconds,
        "on_hung": _choice("keep", "kill"),
        "containment": _choice("auto", "cgroup", "subreaper"),
        "service_start_timeout": _some_seconds,
        "service_stop_timeout": _some_seconds,
        "service_tail": _size,
        "scratch_root": _optional(_text),
    }

    def __post_init__(self) -> None:
        _check_all(self._CHECKS, self, "settings.")
        if self.window_bytes < self.chunk:
            raise InvalidRequest("settings.window_bytes", "must hold one chunk")
        if self.lease_renewal >= self.lease:
            raise InvalidRequest(
                "settings.lease_renewal", "must be less than the lease"
            )

    def to_wire(self) -> dict[str, Any]:
        """Return a map of plain values, one for each field."""
        return {name: _to_plain(getattr(self, name)) for name in self._CHECKS}

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Return the settings that `to_wire` gave.

        Raises:
            InvalidRequest: It is something else.
        """
        values = _exactly("settings", wire, cls._CHECKS)
        values["retention"] = OutputPolicy.from_wire(values["retention"])
        values["tty"] = TtySize.from_wire(values["tty"])
        return cls(**values)


def _to_plain(value: object) -> object:
    if isinstance(value, TtySize | OutputPolicy | Limits):
        return value.to_wire()
    if isinstance(value, tuple):
        return [list(row) if isinstance(row, tuple) else row for row in value]
    return value


# --- the order to a worker -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything a worker needs to start and keep one child.

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

    _CHECKS: ClassVar[Mapping[str, Check]] = {
        "argv": _command,
        "executable": _optional(_plain_bytes),
        "cwd": _plain_bytes,
        "env": _variables,
        "umask": _whole(0, 0o777),
        "rlimits": _rlimits,
        "nice": _nice,
        "oom_score_adj": _oom_score_adj,
        "pass_fds": _descriptors,
        "stdin": _stdin,
        "stdout": _stdout,
        "stderr": _stderr,
        "tty": _optional(_instance(TtySize)),
        "retention": _instance(OutputPolicy),
        "post_exit_grace": _optional(_seconds),
        "leftover": _leftover,
        "leftover_delay": _seconds,
        "timeout": _optional(_some_seconds),
        "idle_timeout": _optional(_some_seconds),
        "limits": _instance(Limits),
        "terminate_grace": _seconds,
        "kill_timeout": _some_seconds,
        "kill_on_drop": _flag,
        "quiet": _some_seconds,
        "chunk": _size,
        "stdin_queue": _size,
        "metadata": _metadata,
        "authority": _optional(_text),
        "scope": _text,
    }

    def __post_init__(self) -> None:
        _check_all(self._CHECKS, self)

    def to_wire(self) -> dict[str, Any]:
        """Return a map of plain values, one for each field."""
        return {name: _to_plain(getattr(self, name)) for name in self._CHECKS}

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Return the order that `to_wire` gave.

        Raises:
            InvalidRequest: A field is missing, unknown or of another type.
        """
        values = _exactly("launch", wire, cls._CHECKS)
        for name in ("argv", "pass_fds"):
            values[name] = _items(name, values[name])
        for name in ("env", "rlimits", "metadata"):
            values[name] = _rows(name, values[name])
        values["retention"] = OutputPolicy.from_wire(values["retention"])
        values["limits"] = Limits.from_wire(values["limits"])
        if values["tty"] is not None:
            values["tty"] = TtySize.from_wire(values["tty"])
        return cls(**values)


# --- the request ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ambient:
    """What the client's process has at the moment of a spawn.

    Attributes:
        cwd: Absolute working directory.
        env: Environment.
        umask: File mode creation mask.
        rlimits: Rows of resource number, soft and hard limit; -1 is "no limit".
        nice: Absolute niceness.
        oom_score_adj: Preference of the out-of-memory killer.
    """

    cwd: bytes
    env: Mapping[bytes, bytes] = field(repr=False)
    umask: int
    rlimits: Rlimits
    nice: int
    oom_score_adj: int


@dataclass(frozen=True, slots=True)
class _Words:
    """A request's texts as the operating system will see them."""

    argv: tuple[bytes, ...]
    arg0: bytes | None
    cwd: bytes | None
    env: dict[bytes, bytes] | None
    extra_env: dict[bytes, bytes | None]
    metadata: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Spec:
    """A request for one child. Times in seconds, sizes in bytes.

    Texts, mappings and sequences are read once, here: changing them later changes
    nothing. `kill_on_drop=False` and `detach_ttl` need a shared broker, which is for
    the engine to check.

    Attributes:
        argv: The command, a sequence of `str`, `bytes` or paths; with `shell=True` one
            `str` or `bytes` for `/bin/sh -c`. Text is UTF-8.
        shell: Whether `argv` is a command line.
        cwd: Working directory; None is the client's, a relative one starts there.
        env: The whole environment; None is the client's.
        extra_env: Laid over `env`; a value of None removes the variable.
        arg0: What the child sees as its name, instead of the program's.
        marker: Whether to add the variable by which recovery knows descendants.
        pass_fds: Descriptors that the child gets under the same numbers.
        stdin: `null`, `pipe`, or bytes that are fed, then closed.
        stdout: `pipe` or `null`.
        stderr: `pipe`, `null`, or `stdout`: wherever stdout goes, also to `null`.
        tty: A terminal instead of the three; True is one of the default size.
        kill_on_drop: Whether a lost owner ends the tree, or only closes stdin.
        detach_ttl: Seconds that it may live without an owner.
        retention: What is kept of the output; None is the engine's setting.
        post_exit_grace: Seconds for pipes left open after the end; None is until EOF,
            `"default"` the engine's setting.
        leftover: What becomes of descendants after a normal end; None is the setting.
        limits: What the child may use.
        timeout: Seconds until the tree is ended.
        idle_timeout: Seconds without output until the tree is ended.
        metadata: Pairs given back, copied, with every result.
        authority: A note given back with every snapshot.
        observe: Directories below which changes are recorded.
        request_id: Name of this request, for retrying it.
        on_full: Whether a full engine refuses or evicts another session.
        queue: Seconds to wait for room; None does not wait.

    Raises:
        InvalidRequest: A parameter is not valid; `field` names it.
    """

    argv: Sequence[Native] | str | bytes
    _: KW_ONLY
    shell: bool = False
    cwd: Native | None = None
    env: Environment | None = field(default=None, repr=False)
    extra_env: Overlay | None = field(default=None, repr=False)
    arg0: Native | None = None
    marker: bool = True
    pass_fds: Sequence[int] = ()
    stdin: InputMode | bytes = field(default="null", repr=False)
    stdout: OutputMode = "pipe"
    stderr: ErrorMode = "pipe"
    tty: bool | TtySize = False
    kill_on_drop: bool = True
    detach_ttl: float | None = None
    retention: OutputPolicy | None = None
    post_exit_grace: float | Literal["default"] | None = "default"
    leftover: Leftover | None = None
    limits: Limits = Limits()
    timeout: float | None = None
    idle_timeout: float | None = None
    metadata: Mapping[str, str] | None = None
    authority: str | None = None
    observe: Sequence[Native] = ()
    request_id: str | None = None
    on_full: Literal["refuse", "evict"] = "refuse"
    queue: float | None = None
    _words: _Words = field(init=False, repr=False, compare=False)

    _CHECKS: ClassVar[Mapping[str, Check]] = {
        "shell": _flag,
        "marker": _flag,
        "pass_fds": _descriptors,
        "stdin": _stdin,
        "stdout": _stdout,
        "stderr": _stderr,
        "kill_on_drop": _flag,
        "detach_ttl": _optional(_seconds),
        "retention": _optional(_instance(OutputPolicy)),
        "leftover": _optional(_leftover),
        "limits": _instance(Limits),
        "timeout": _optional(_some_seconds),
        "idle_timeout": _optional(_some_seconds),
        "authority": _optional(_text),
        "request_id": _optional(_text),
        "on_full": _choice("refuse", "evict"),
        "queue": _optional(_seconds),
    }

    def __post_init__(self) -> None:
        _check_all(self._CHECKS, self)
        if self.post_exit_grace != "default":
            _optional(_seconds)("post_exit_grace", self.post_exit_grace)
        self._check_terminal()
        keep = object.__setattr__
        keep(self, "_words", self._read_words())
        watched = _items("observe", self.observe)
        keep(self, "observe", tuple(_directory("observe", path) for path in watched))
        keep(self, "pass_fds", tuple(self.pass_fds))

    def _check_terminal(self) -> None:
        if not isinstance(self.tty, TtySize):
            _flag("tty", self.tty)
        if self.tty is False:
            return
        if self.stdout != "pipe" or self.stderr != "pipe":
            name = "stdout" if self.stdout != "pipe" else "stderr"
            raise InvalidRequest(name, "cannot be chosen: a terminal is one stream")
        if isinstance(self.stdin, bytes):
            raise InvalidRequest("stdin", "of a terminal cannot be fed and closed")

    def launch(
        self, ambient: Ambient, settings: Settings, scope: str, mark: str
    ) -> Launch:
        """Return the order to a worker.

        Args:
            ambient: What the client's process has now.
            settings: The engine's defaults.
            scope: Name of the scope.
            mark: 32 hexadecimal digits that the whole tree can be known by.

        Raises:
            InvalidRequest: `scope` or `mark` is not valid.
        """
        _mark("mark", mark)
        words, limits = self._words, self.limits
        program, arg0 = words.argv[0], words.arg0
        return Launch(
            argv=words.argv if arg0 is None else (arg0, *words.argv[1:]),
            executable=None if arg0 is None else program,
            cwd=_absolute(words.cwd, ambient.cwd),
            env=self._environment(ambient, mark),
            umask=ambient.umask,
            rlimits=limits.rlimits(ambient.rlimits),
            nice=_or(limits.nice, ambient.nice),
            oom_score_adj=_or(limits.oom_score_adj, ambient.oom_score_adj),
            pass_fds=tuple(self.pass_fds),
            stdin=self.stdin,
            stdout=self.stdout,
            stderr=self.stderr,
            tty=self._tty_size(settings),
            retention=_or(self.retention, settings.retention),
            post_exit_grace=(
                settings.post_exit_grace
                if self.post_exit_grace == "default"
                else self.post_exit_grace
            ),
            leftover=_or(self.leftover, settings.leftover),
            leftover_delay=settings.leftover_delay,
            timeout=self.timeout,
            idle_timeout=self.idle_timeout,
            limits=limits,
            terminate_grace=settings.terminate_grace,
            kill_timeout=settings.kill_timeout,
            kill_on_drop=self.kill_on_drop,
            quiet=settings.quiet,
            chunk=settings.chunk,
            stdin_queue=settings.stdin_queue,
            metadata=words.metadata,
            authority=self.authority,
            scope=scope,
        )

    def _read_words(self) -> _Words:
        return _Words(
            argv=_command_line(self.argv, shell=self.shell),
            arg0=None if self.arg0 is None else _native("arg0", self.arg0),
            cwd=None if self.cwd is None else _directory("cwd", self.cwd),
            env=None if self.env is None else _environment("env", self.env),
            extra_env=_overlay("extra_env", self.extra_env),
            metadata=_pairs("metadata", self.metadata),
        )

    def _tty_size(self, settings: Settings) -> TtySize | None:
        if isinstance(self.tty, TtySize):
            return self.tty
        return settings.tty if self.tty else None

    def _environment(
        self, ambient: Ambient, mark: str
    ) -> tuple[tuple[bytes, bytes], ...]:
        env = self._words.env
        if env is None:
            # A process may have inherited a variable without a name. No program can
            # look it up, and no child can be started with it.
            env = {name: value for name, value in ambient.env.items() if name}
        merged: dict[bytes, bytes | None] = {**env, **self._words.extra_env}
        if self.marker:
            merged[MARK] = mark.encode()
        return tuple((k, v) for k, v in merged.items() if v is not None)


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _absolute(path: bytes | None, start: bytes) -> bytes:
    if path is None:
        return start
    if path.startswith(b"/"):
        return path
    return start.rstrip(b"/") + b"/" + path


def _mark(name: str, value: str) -> None:
    if len(value) != MARK_DIGITS or not set(value) <= set("0123456789abcdef"):
        raise InvalidRequest(name, f"must be {MARK_DIGITS} hexadecimal digits")


def _native(name: str, value: object) -> bytes:
    fspath = getattr(type(value), "__fspath__", None)
    plain = value if fspath is None else fspath(value)
    if isinstance(plain, str):
        try:
            # The inverse of how Python reads names that are not UTF-8.
            plain = plain.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            # Without its cause, which would carry the text along.
            raise InvalidRequest(name, "holds half a character") from None
    if not isinstance(plain, bytes):
        raise InvalidRequest(name, "must be text, bytes or a path")
    _plain_bytes(name, plain)
    return plain


def _directory(name: str, value: object) -> bytes:
    path = _native(name, value)
    if not path:
        raise InvalidRequest(name, "must not be empty")
    return path


def _command_line(argv: object, *, shell: bool) -> tuple[bytes, ...]:
    if shell:
        if not isinstance(argv, str | bytes):
            raise InvalidRequest("argv", "must be one text with shell=True")
        return b"/bin/sh", b"-c", _native("argv", argv)
    if not isinstance(argv, list | tuple):
        raise InvalidRequest("argv", "must be a sequence; one text needs shell=True")
    words = tuple(_native("argv", item) for item in argv)
    if not words or not words[0]:
        raise InvalidRequest("argv", "must name a program")
    return words


def _mapping(name: str, value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(name, "must be a mapping")
    return value


def _environment(name: str, value: object) -> dict[bytes, bytes]:
    items = _mapping(name, value).items()
    env = {_native(name, key): _native(name, text) for key, text in items}
    _variable_names(name, env)
    return env


def _overlay(name: str, value: object) -> dict[bytes, bytes | None]:
    if value is None:
        return {}
    overlay = {
        _native(name, key): None if text is None else _native(name, text)
        for key, text in _mapping(name, value).items()
    }
    _variable_names(name, overlay)
    return overlay


def _pairs(name: str, value: object) -> tuple[tuple[str, str], ...]:
    pairs = () if value is None else tuple(_mapping(name, value).items())
    _metadata(name, pairs)
    return pairs
