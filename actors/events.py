"""What the engine tells: events, results and reports, all of them frozen values.

Times are float seconds; stamps are of the monotonic clock of the machine that the child
runs on, so only their differences mean anything. Sizes, offsets and memory are bytes.

The values that cross the wire turn into lists in the order of their fields (`Snapshot`,
which several parts put together, into a map by name) and back. A peer that sends
something else gets `ProtocolError`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, get_args

from actors.facts import (
    BYTES,
    FLAG,
    INT,
    INT_OR_NONE,
    ITEMS,
    ITEMS_OR_NONE,
    MAP,
    NUMBER,
    TEXT,
    TEXT_OR_NONE,
    Cause,
    ExitStatus,
    Shape,
    Stats,
    Survivor,
    Usage,
    check_word,
    fit,
    listed,
)
from actors.settings import TtySize
from broker import errors
from broker.errors import InvalidRequest, ProtocolError

__all__ = [
    "Cause",
    "Change",
    "Chunk",
    "Closed",
    "Completed",
    "Event",
    "ExitStatus",
    "Exited",
    "Gap",
    "Info",
    "KillReceipt",
    "Lifecycle",
    "Match",
    "Piece",
    "PollResult",
    "Snapshot",
    "State",
    "Stats",
    "Stream",
    "StreamAbandoned",
    "StreamEof",
    "StreamError",
    "Survivor",
    "Usage",
    "WriteResult",
]

Stream = Literal["stdout", "stderr"]
State = Literal["starting", "running", "exited", "closed", "lost"]


def _from_native(what: str, raw: object) -> str:
    if not isinstance(raw, bytes):
        raise ProtocolError(f"malformed {what}: not bytes")
    return raw.decode("utf-8", "surrogateescape")


def _to_native(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# --- what a kill did ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KillReceipt:
    """What a kill did, told once the tree is proven gone or the time is over.

    Attributes:
        signalled: Processes sent SIGKILL, each counted once; 0 if SIGTERM was enough,
            or nothing was left.
        reaped: Processes proven gone.
        survivors: Processes that are not.
    """

    signalled: int
    reaped: int
    survivors: tuple[Survivor, ...] = ()

    def to_wire(self) -> list[Any]:
        """Return the fields in order."""
        return [self.signalled, self.reaped, [s.to_wire() for s in self.survivors]]

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Return what `to_wire` was called on.

        Raises:
            ProtocolError: It is something else.
        """
        signalled, reaped, survivors = listed("kill receipt", wire, INT, INT, ITEMS)
        return cls(signalled, reaped, tuple(map(Survivor.from_wire, survivors)))


# --- events of one session, in the order in which they happen ------------------------


@dataclass(frozen=True, slots=True)
class Chunk:
    """Output.

    Attributes:
        stream: Where it was written.
        offset: Bytes of this stream before it.
        sequence: Bytes of both streams before it.
        data: The bytes, at least one.
    """

    stream: Stream
    offset: int
    sequence: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Gap:
    """Output that was dropped before this reader came to it.

    Attributes:
        stream: Where it was written.
        start: Offset of the first missing byte.
        end: Offset of the first byte after it.
    """

    stream: Stream
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StreamEof:
    """The stream ended: nobody can write to it any more.

    Attributes:
        stream: Which one.
    """

    stream: Stream


@dataclass(frozen=True, slots=True)
class StreamAbandoned:
    """The stream was left while some descendant of the ended child still held it.

    Attributes:
        stream: Which one.
    """

    stream: Stream


@dataclass(frozen=True, slots=True)
class StreamError:
    """The stream broke; what came after is unknown.

    Attributes:
        stream: Which one.
        kind: What happened, in one word.
        message: The same for people.
        errno: The system's number, or None when it was not the system.
    """

    stream: Stream
    kind: str
    message: str
    errno: int | None = None


@dataclass(frozen=True, slots=True)
class Exited:
    """The child has been reaped, and what its pipes held then has been told.

    Attributes:
        status: How it ended.
    """

    status: ExitStatus


@dataclass(frozen=True, slots=True)
class Closed:
    """The last event of a session."""


Event = Chunk | Gap | StreamEof | StreamAbandoned | StreamError | Exited | Closed


# --- answers -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """A file that is not as it was when the child started.

    Attributes:
        path: The file.
        kind: What became of it.
    """

    path: str
    kind: Literal["created", "modified", "deleted"]


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished command and its captured output.

    Attributes:
        argv: The command; bytes that are not UTF-8 as in file names of Python.
        stdout: Bytes of standard output, or of the terminal.
        stderr: Bytes of standard error; empty when merged.
        status: How it ended.
        dropped_bytes: Bytes written, but no longer kept.
        metadata: The caller's pairs.
        changes: Files changed below the observed directories.
        changes_truncated: Whether there were more changes than are listed.
    """

    argv: tuple[str, ...]
    stdout: bytes
    stderr: bytes
    status: ExitStatus
    dropped_bytes: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    changes_truncated: bool = False

    @property
    def returncode(self) -> int | None:
        """The code, or the negative signal, as in `subprocess`."""
        return self.status.returncode

    @property
    def text(self) -> str:
        """Standard output as UTF-8, with a mark in place of what is not."""
        return self.stdout.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class PollResult:
    """What came since the previous poll, and how the session is.

    Attributes:
        stdout: New bytes of standard output, or of the terminal.
        stderr: New bytes of standard error.
        transcript: The same bytes of both in the order in which they came.
        text: The transcript as UTF-8; a character that is not yet complete comes with
            the next poll.
        undecodable: Bytes that have a mark in `text` because they are not UTF-8.
        dropped_bytes: Bytes since the previous poll that were no longer kept.
        status: How the child ended, None while it runs.
        state: The session's state.
        more: Whether there is output already that did not fit.
        done: Whether the child ended and nothing more will come.
        wall_time: How long this poll took, seconds.
        chunk_id: A short random name of this answer.
    """

    stdout: bytes
    stderr: bytes
    transcript: bytes
    text: str
    undecodable: int
    dropped_bytes: int
    status: ExitStatus | None
    state: State
    more: bool
    done: bool
    wall_time: float
    chunk_id: str

    @property
    def alive(self) -> bool:
        """Whether the child has not ended."""
        return self.status is None

    @property
    def exit_code(self) -> int | None:
        """The code, or the negative signal; None while it runs, and when lost."""
        return None if self.status is None else self.status.returncode


@dataclass(frozen=True, slots=True)
class Piece:
    """One read of one stream.

    Attributes:
        stream: Which one.
        offset: Bytes of this stream before `data`, whether kept or not.
        data: The bytes; may be none.
        gap: Bytes lost just before `data`.
        eof: Whether nothing comes after `data`.
    """

    stream: Stream
    offset: int
    data: bytes
    gap: int
    eof: bool


@dataclass(frozen=True, slots=True)
class Match:
    """Where a pattern was found in a stream.

    Attributes:
        offset: Bytes of the stream before the match.
        matched: The bytes that match.
        groups: What the pattern's groups took, None for one that took no part.
        before: The bytes just before the match that came since the last one: the newest
            64 KiB, and none from before a gap.
        gap: Bytes since the last match that were dropped unseen; they may have matched.
    """

    offset: int
    matched: bytes
    groups: tuple[bytes | None, ...]
    before: bytes
    gap: int = 0


WriteState = Literal["running", "ended"]


@dataclass(frozen=True, slots=True)
class WriteResult:
    """How much of a write went in.

    Attributes:
        accepted: Bytes that are in the pipe or terminal.
        state: `ended` when the child ended before the rest was.
    """

    accepted: int
    state: WriteState


# --- reports -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session as it is now. Taking one consumes nothing.

    Attributes:
        id: The session's number.
        scope: Name of its scope.
        argv: The command; bytes that are not UTF-8 as in file names of Python.
        cwd: Working directory at the start.
        pid: Process id of the child, None before it runs.
        tty: Size of its terminal, None without one.
        state: The session's state.
        started: Stamp of its start.
        last_used: Stamp of the last write, poll, resize or signal.
        wall_time: Seconds from start to end, or until now.
        status: How it ended, None while it runs.
        tail: The newest bytes of its output, 4096 at most.
        dropped: Bytes of output no longer kept.
        metadata: The caller's pairs.
        authority: The caller's note of what it allowed.
        owner_alive: Whether somebody owns it.
    """

    id: int
    scope: str
    argv: tuple[str, ...]
    cwd: str
    pid: int | None
    tty: TtySize | None
    state: State
    started: float
    last_used: float
    wall_time: float
    status: ExitStatus | None
    tail: bytes
    dropped: int
    metadata: Mapping[str, str]
    authority: str | None
    owner_alive: bool

    _SHAPES: ClassVar[Mapping[str, Shape]] = {
        "id": INT,
        "scope": TEXT,
        "argv": ITEMS,
        "cwd": BYTES,
        "pid": INT_OR_NONE,
        "tty": ITEMS_OR_NONE,
        "state": TEXT,
        "started": NUMBER,
        "last_used": NUMBER,
        "wall_time": NUMBER,
        "status": ITEMS_OR_NONE,
        "tail": BYTES,
        "dropped": INT,
        "metadata": MAP,
        "authority": TEXT_OR_NONE,
        "owner_alive": FLAG,
    }

    def to_wire(self) -> dict[str, Any]:
        """Return a map of plain values, one for each field."""
        plain = {name: getattr(self, name) for name in self._SHAPES}
        return plain | {
            "argv": [_to_native(word) for word in self.argv],
            "cwd": _to_native(self.cwd),
            "tty": None if self.tty is None else self.tty.to_wire(),
            "status": None if self.status is None else self.status.to_wire(),
            "metadata": dict(self.metadata),
        }

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Return what `to_wire` was called on.

        Raises:
            ProtocolError: It is something else.
        """
        what = "snapshot"
        if not isinstance(wire, dict) or wire.keys() != cls._SHAPES.keys():
            raise ProtocolError(f"malformed {what}: missing or unknown fields")
        fit(what, [wire[name] for name in cls._SHAPES], list(cls._SHAPES.values()))
        tty, status, metadata = wire["tty"], wire["status"], wire["metadata"]
        fit(what, [*metadata, *metadata.values()], [TEXT] * (2 * len(metadata)))
        check_word(what, wire["state"], get_args(State))
        parts = {
            "argv": tuple(_from_native(what, word) for word in wire["argv"]),
            "cwd": _from_native(what, wire["cwd"]),
            "tty": None if tty is None else _tty(what, tty),
            "status": None if status is None else ExitStatus.from_wire(status),
            "metadata": dict(metadata),
        }
        return cls(**wire | parts)


def _tty(what: str, wire: object) -> TtySize:
    try:
        return TtySize.from_wire(wire)
    except InvalidRequest as misfit:
        raise ProtocolError(f"malformed {what}: {misfit}") from misfit


LifecycleKind = Literal[
    "starting", "running", "exited", "closed", "lost", "evicted", "warning", "failed"
]


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """Something that happened to a session, for whoever watches.

    Every session has exactly one of `closed`, `failed` (its start did) and `lost` (its
    worker was), and none after it.

    Attributes:
        kind: What happened.
        id: The session's number; 0 if it is about the broker.
        scope: Name of its scope, empty without one.
        sequence: Number of this event in its stream; those missed have theirs too.
        time: Stamp of the event.
        status: How the child ended, with `exited` and `closed`; None if it is unknown.
        error: Why, with `failed` and `lost`; with `warning` it names the limit, or is
            `BrokerLost`: a shared broker was replaced.
        missed: Events that were dropped since the one before, because this stream was
            256 behind; 1 for all that happened while the broker was replaced. What is
            there now is in the snapshots of `children`.
    """

    kind: LifecycleKind
    id: int
    scope: str
    sequence: int
    time: float
    status: ExitStatus | None
    error: errors.EngineError | None
    missed: int

    @classmethod
    def from_wire(cls, session: int, body: Mapping[str, Any]) -> Self:
        """Return the event in a checked body of the wire.

        Raises:
            ProtocolError: its status or its error is none.
        """
        status, error = body["status"], body["error"]
        if error is not None:
            code, values = listed("error", error, TEXT, ITEMS)
            error = errors.decode(code, values)
        return cls(
            kind=body["event"],
            id=session,
            scope=body["scope"],
            sequence=body["sequence"],
            time=body["time"],
            status=None if status is None else ExitStatus.from_wire(status),
            error=error,
            missed=body["missed"],
        )


Containment = Literal["pidns", "cgroup", "subreaper", "pgroup"]


@dataclass(frozen=True, slots=True)
class Info:
    """What an engine and its broker are.

    Attributes:
        versions: Of the program, the protocol and the libraries, by name.
        endpoint: Where the broker listens.
        containment: What holds a tree together on this machine.
        limits: How many sessions the broker takes, and how many ids fit into one kill
            on the wire; by name.
        counts: Of the broker, by name: sessions, those that live, clients, workers,
            idle ones, spawns that wait, retained sessions, watchers; and whether it is
            shared, as 0 or 1.
        latency: By stage of a session, rows of an upper bound in seconds and the number
            of sessions that took less than that and not less than half of it. The
            stages, each counted once the session is over: `queued` for room, `leased`
            until its worker began, `spawned`, then from the start of the program until
            `first_byte` and `exit_seen`, and from there until that was `reported`.
    """

    versions: Mapping[str, str]
    endpoint: str
    containment: Containment
    limits: Mapping[str, float]
    counts: Mapping[str, int]
    latency: Mapping[str, tuple[tuple[float, int], ...]]
