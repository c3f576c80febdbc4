"""Policies, limits and every default of an engine, checked when made. Pure."""

import resource
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Final, Literal, Self

from actors import checks
from actors.checks import Check, Native
from broker.errors import InvalidRequest

MIB = 1024 * 1024

PolicyKind = Literal["tail", "head_tail", "block"]
Action = Literal["terminate", "notify"]
WatchName = Literal["output", "tree_memory", "tree_processes"]
Leftover = Literal["kill", "keep", "report"]

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
        "rows": checks.cell_count,
        "cols": checks.cell_count,
    }

    def __post_init__(self) -> None:
        checks.check_all(self._CHECKS, self, "tty.")

    def to_wire(self) -> list[Any]:
        """Return `[rows, cols]`."""
        return [self.rows, self.cols]

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Return the size that `to_wire` gave.

        Raises:
            InvalidRequest: It is something else.
        """
        return cls(*checks.pair("tty", wire))


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
        "kind": checks.policy,
        "size": checks.size,
    }

    def __post_init__(self) -> None:
        checks.check_all(self._CHECKS, self, "retention.")

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
        return cls(*checks.pair("retention", wire))


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
        "value": checks.size,
        "action": checks.action,
    }

    def __post_init__(self) -> None:
        checks.check_all(self._CHECKS, self, "watch.")


RLIMITS: Final = tuple(
    sorted({getattr(resource, n) for n in dir(resource) if n.startswith("RLIMIT_")})
)
"""The numbers of all limits that the system knows: a child inherits each."""
# Names of ours, numbers of this machine's kernel.
_RLIMITS: Mapping[str, int] = {
    "nofile": resource.RLIMIT_NOFILE,
    "core": resource.RLIMIT_CORE,
    "address_space": resource.RLIMIT_AS,
    "cpu": resource.RLIMIT_CPU,
    "file_size": resource.RLIMIT_FSIZE,
    "processes": resource.RLIMIT_NPROC,
}
_rlimits_of: Final = attrgetter(*_RLIMITS)
WATCHES: tuple[WatchName, ...] = ("output", "tree_memory", "tree_processes")

Rlimits = tuple[tuple[int, int, int], ...]
"""Rows of resource number, soft limit, hard limit; -1 is "no limit"."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may use; `None` leaves what the client's process has.

    A shared broker may have less, and no right to more: then `None` is what it has, and
    a number above that fails the start.

    The system enforces the first eight; soft and hard limit become the same value, but
    the hard one of `cpu` is a second more, so that SIGXCPU comes first. The last three
    are watched by the engine: give a `Watch`, or a number that stands for
    `Watch(number)`. They are over when more than that is used.

    Attributes:
        nofile: One more than the highest descriptor number.
        core: Size of a core file, bytes.
        address_space: Address space of one process, bytes.
        cpu: Processor time of one process, whole seconds.
        file_size: Size of a file that is written, bytes.
        processes: Processes of this user.
        nice: Niceness, -20 to 19, as an absolute value.
        oom_score_adj: Preference of the out-of-memory killer, -1000 to 1000.
        output: Bytes written to both streams. A child that is ended for it is read no
            further, but for what its pipes hold at its end (64 KiB each).
        tree_memory: Resident bytes of the whole tree, looked at two to four times a
            second; what processes share is counted for each.
        tree_processes: Processes of the whole tree, looked at as often.

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
        **dict.fromkeys(_RLIMITS, checks.optional(checks.whole(0))),
        "nice": checks.optional(checks.nice),
        "oom_score_adj": checks.optional(checks.oom_score_adj),
    }

    def __post_init__(self) -> None:
        checks.check_all(self._CHECKS, self, "limits.")
        for name in WATCHES:
            value = getattr(self, name)
            if value is not None and not isinstance(value, Watch):
                checks.size(f"limits.{name}", value)
                object.__setattr__(self, name, Watch(value))

    def watch(self, name: WatchName) -> Watch | None:
        """Return the watched budget of that name, or None."""
        value = getattr(self, name)
        return value if isinstance(value, Watch) else None

    def rlimits(self, ambient: Rlimits) -> Rlimits:
        """Return `ambient` with these limits laid over it."""
        asked = _rlimits_of(self)
        if asked.count(None) == len(asked):
            return ambient
        merged = {number: (soft, hard) for number, soft, hard in ambient}
        for number, value in zip(_RLIMITS.values(), asked, strict=True):
            if value is not None:
                _, most = merged.get(number, (-1, -1))
                merged[number] = (value, _hard_limit(number, value, most))
        return tuple((number, *pair) for number, pair in merged.items())

    def named(self) -> frozenset[int]:
        """Return the numbers of the resources whose limit is set."""
        asked = zip(_RLIMITS.values(), _rlimits_of(self), strict=True)
        return frozenset(number for number, value in asked if value is not None)

    def to_wire(self) -> dict[str, Any]:
        """Return what is set: numbers, and `[value, action]` for a watch."""
        numbers = {name: getattr(self, name) for name in self._CHECKS}
        watches = {
            name: [watch.value, watch.action]
            for name in WATCHES
            if (watch := self.watch(name))
        }
        return {k: v for k, v in numbers.items() if v is not None} | watches

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Return the limits that `to_wire` gave.

        Raises:
            InvalidRequest: It is something else.
        """
        unset = dict.fromkeys((*cls._CHECKS, *WATCHES))
        known = unset | wire if isinstance(wire, dict) else wire
        values = checks.exactly("limits", known, unset)
        for name in WATCHES:
            if values[name] is not None:
                values[name] = Watch(*checks.pair(f"limits.{name}", values[name]))
        return cls(**values)


def _hard_limit(number: int, soft: int, most: int) -> int:
    """Return the hard limit that goes with a soft one; `most` is the present one."""
    # SIGXCPU comes at the soft limit, SIGKILL at the hard one, and only that where they
    # are the same: then nothing would tell why the child was killed.
    return soft + 1 if number == resource.RLIMIT_CPU and most != soft else soft


# --- defaults ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """Every default of an engine, checked together. Times in seconds, sizes in bytes.

    Attributes:
        retention: What is kept of a session's output.
        tty: Size of a new terminal.
        leftover: What becomes of descendants after the child's normal end.
        chunk: Most bytes in one piece of output on the wire; at most 8 MiB.
        window_chunks: Pieces of output under way to one reader.
        window_bytes: Bytes of output under way to one reader; at least one `chunk`.
        stdin_queue: Bytes waiting for a child that does not read.
        post_exit_grace: Wait for pipes left open by an ended child; None is until EOF.
        leftover_delay: Time that descendants get after the child's end.
        terminate_grace: Time between SIGTERM and the kill.
        kill_timeout: Time for proving that a killed tree is gone.
        kill_many_timeout: The same for a kill of many sessions at once.
        start_timeout: Time for the engine's own processes to start.
        service_start: Time for a service to say that it is ready.
        service_stop: Time for a service's stop command.
        quiet: Silence that ends a poll in mode `output`.
        poll_wait: How long a poll waits unless told.
        poll_wait_max: Most that a first poll, or one with input, waits.
        poll_empty_wait_max: Most that a later poll without input waits.
        capacity: Sessions that this client may have at once; None is no limit of its
            own. Those count whose end it was not yet told; the stop command of a
            service runs beyond it.
        warm: Idle workers kept ready: forked again once half of them are taken. With
            1 or 0 a private broker starts sooner, and its workers take more memory.
        lease: A remote or hung client is given up after this silence.
        lease_renewal: Time between renewals; shorter than `lease`.
        on_hung: Whether a stopped local client keeps its sessions.
        containment: How a private broker's trees are held together: `subreaper`, by
            walks of /proc; `cgroup`, by a cgroup for each worker as well; `auto`, that
            where one can be written.
        scratch_root: Where `Scope.scratch` makes directories: one of this user alone,
            made if missing; None is `scratch` in the runtime directory.

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
    start_timeout: float = 30.0
    service_start: float = 30.0
    service_stop: float = 30.0
    quiet: float = 0.05
    poll_wait: float = 10.0
    poll_wait_max: float = 30.0
    poll_empty_wait_max: float = 300.0
    capacity: int | None = None
    warm: int = 4
    lease: float = 10.0
    lease_renewal: float = 3.0
    on_hung: Literal["keep", "kill"] = "keep"
    containment: Literal["auto", "cgroup", "subreaper"] = "auto"
    scratch_root: Native | None = None

    # Zero is allowed where it means "at once" or "none", never as a size or deadline.
    _CHECKS: ClassVar[Mapping[str, Check]] = {
        "retention": checks.instance(OutputPolicy),
        "tty": checks.instance(TtySize),
        "leftover": checks.leftover,
        "chunk": checks.chunk,
        "window_chunks": checks.size,
        "window_bytes": checks.size,
        "stdin_queue": checks.size,
        "post_exit_grace": checks.optional(checks.seconds),
        "leftover_delay": checks.seconds,
        "terminate_grace": checks.seconds,
        "kill_timeout": checks.some_seconds,
        "kill_many_timeout": checks.some_seconds,
        "start_timeout": checks.some_seconds,
        "service_start": checks.some_seconds,
        "service_stop": checks.some_seconds,
        "quiet": checks.some_seconds,
        "poll_wait": checks.some_seconds,
        "poll_wait_max": checks.some_seconds,
        "poll_empty_wait_max": checks.some_seconds,
        "capacity": checks.optional(checks.size),
        "warm": checks.whole(0),
        "lease": checks.some_seconds,
        "lease_renewal": checks.some_seconds,
        "on_hung": checks.choice("keep", "kill"),
        "containment": checks.choice("auto", "cgroup", "subreaper"),
        "scratch_root": checks.optional(checks.path),
    }

    def __post_init__(self) -> None:
        checks.check_all(self._CHECKS, self, "settings.")
        if self.window_bytes < self.chunk:
            raise InvalidRequest("settings.window_bytes", "must hold one chunk")
        if self.lease_renewal >= self.lease:
            raise InvalidRequest(
                "settings.lease_renewal", "must be less than the lease"
            )


def to_plain(value: object) -> object:
    """Return the wire form of a field of a launch."""
    if isinstance(value, TtySize | OutputPolicy | Limits):
        return value.to_wire()
    return value
