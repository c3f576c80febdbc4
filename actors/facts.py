"""What a worker tells of its child: how it ended, and what it used.

Apart from the other `events`, which are the client's: to define their classes takes
9 ms of a pool's start.
"""

from dataclasses import dataclass
from types import NoneType
from typing import Any, Final, Literal, Self, get_args

from actors.buffer import Counts
from broker.errors import ProtocolError

__all__ = [
    "Cause",
    "ExitStatus",
    "Stats",
    "Survivor",
    "Usage",
]

Cause = Literal[
    "exited",
    "killed",
    "interrupted",
    "owner-drop",
    "timeout",
    "limit",
    "evicted",
    "oom",
    "worker-lost",
    "broker-lost",
    "lost",
]
CAUSES: Final = get_args(Cause)

# --- the wire: which types each place of a list may hold -----------------------------

Shape = tuple[type, ...]

INT: Shape = (int,)
NUMBER: Shape = (float, int)
FLAG: Shape = (bool,)
TEXT: Shape = (str,)
BYTES: Shape = (bytes,)
NUMBER_OR_NONE: Shape = (float, int, NoneType)
ITEMS: Shape = (list, tuple)
MAP: Shape = (dict,)
INT_OR_NONE: Shape = (int, NoneType)
TEXT_OR_NONE: Shape = (str, NoneType)
ITEMS_OR_NONE: Shape = (list, tuple, NoneType)


def fit(what: str, values: list[Any], shapes: list[Shape]) -> list[Any]:
    """Return the values if each has one of the types of its place.

    Raises:
        ProtocolError: They do not fit.
    """
    if len(values) != len(shapes):
        raise ProtocolError(f"malformed {what}")
    for value, shape in zip(values, shapes, strict=True):
        if type(value) not in shape:  # to isinstance, True is a number
            raise ProtocolError(f"malformed {what}")
    return values


def listed(what: str, wire: object, *shapes: Shape) -> list[Any]:
    """Return a list from the wire whose items fit.

    Raises:
        ProtocolError: It is something else.
    """
    if not isinstance(wire, list | tuple):
        raise ProtocolError(f"malformed {what}: not a list")
    return fit(what, list(wire), list(shapes))


def check_word(what: str, value: object, words: tuple[str, ...]) -> None:
    """Refuse what is not one of some words.

    Raises:
        ProtocolError: It is not.
    """
    if value not in words:
        raise ProtocolError(f"malformed {what}: unknown word")


# --- how a child ended ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """What a child and those of its descendants that it waited for have used.

    Attributes:
        user: Processor time in user mode, seconds.
        sys: Processor time in the kernel, seconds.
        max_rss: Largest resident memory of one process, bytes.
        voluntary: Context switches because it waited.
        involuntary: Context switches because its turn was over.
        tree_peak: Largest resident memory of the whole tree that was seen, bytes: by a
            watch of the tree, or by `stats`. None when nobody looked.
    """

    user: float = 0.0
    sys: float = 0.0
    max_rss: int = 0
    voluntary: int = 0
    involuntary: int = 0
    tree_peak: int | None = None

    def to_wire(self) -> list[Any]:
        """Return the fields in order."""
        return [
            self.user,
            self.sys,
            self.max_rss,
            self.voluntary,
            self.involuntary,
            self.tree_peak,
        ]

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Return what `to_wire` was called on.

        Raises:
            ProtocolError: It is something else.
        """
        return cls(*listed("usage", wire, NUMBER, NUMBER, INT, INT, INT, INT_OR_NONE))


@dataclass(frozen=True, slots=True)
class Survivor:
    """A process that a kill could not be proven to have ended.

    Attributes:
        pid: Process id.
        started: Its start, seconds after boot; with `pid` it names one process. 0 where
            /proc hides it (`hidepid`).
        uid: User it runs as; -1 where /proc hides it.
        state: The kernel's letter for what it does, such as `D`: deep in a wait; `?`
            where /proc hides it.
    """

    pid: int
    started: float
    uid: int
    state: str

    def to_wire(self) -> list[Any]:
        """Return the fields in order."""
        return [self.pid, self.started, self.uid, self.state]

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Return what `to_wire` was called on.

        Raises:
            ProtocolError: It is something else.
        """
        return cls(*listed("survivor", wire, INT, NUMBER, INT, TEXT))


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a child ended: with a code, by a signal, or nobody knows how.

    Attributes:
        code: Exit code, None unless it exited.
        signal: Number of the signal it died of, else None.
        core: Whether it left a core file.
        cause: Why it ended. `exited` stands for a signal, too, that nobody here sent.
        usage: What it used; zeros when its worker was lost.
        started: Stamp of the request's arrival at the worker, None if unknown.
        execed: Stamp of the program's start, None when lost.
        ended: Stamp of the end, None when lost.
        wall_time: Seconds from start to end, 0 when lost.
        leftovers: Descendants that were still there at the end; what becomes of them is
            `leftover`'s matter, or that of whoever ended the tree.

    Raises:
        ValueError: There is a code and a signal.
    """

    code: int | None
    signal: int | None = None
    core: bool = False
    cause: Cause = "exited"
    usage: Usage = Usage()
    started: float | None = None
    execed: float | None = None
    ended: float | None = None
    wall_time: float = 0.0
    leftovers: tuple[Survivor, ...] = ()

    def __post_init__(self) -> None:
        if self.code is not None and self.signal is not None:
            raise ValueError("a child ends with a code or by a signal, not both")

    @property
    def ok(self) -> bool:
        """Whether it exited with code 0."""
        return self.code == 0

    @property
    def returncode(self) -> int | None:
        """The code, or the negative signal, as in `subprocess`; None when lost."""
        return self.code if self.signal is None else -self.signal

    def to_wire(self) -> list[Any]:
        """Return the fields in order."""
        return [
            self.code,
            self.signal,
            self.core,
            self.cause,
            self.usage.to_wire(),
            self.started,
            self.execed,
            self.ended,
            self.wall_time,
            [survivor.to_wire() for survivor in self.leftovers],
        ]

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Return what `to_wire` was called on.

        Raises:
            ProtocolError: It is something else.
        """
        what = "exit status"
        ends = (INT_OR_NONE, INT_OR_NONE, FLAG, TEXT)
        stamps = (NUMBER_OR_NONE, NUMBER_OR_NONE, NUMBER_OR_NONE, NUMBER)
        values = listed(what, wire, *ends, ITEMS, *stamps, ITEMS)
        if values[0] is not None and values[1] is not None:
            raise ProtocolError(f"malformed {what}: a code and a signal")
        check_word(what, values[3], CAUSES)
        values[4] = Usage.from_wire(values[4])
        values[9] = tuple(map(Survivor.from_wire, values[9]))
        return cls(*values)


@dataclass(frozen=True, slots=True)
class Stats:
    """What a session has written and what its tree uses. Taking it consumes nothing.

    Attributes:
        stdout: Bytes produced, retained and dropped of standard output, or of the
            terminal; zeros where it is null.
        stderr: The same of standard error; None where it is merged or null.
        cpu_time: Seconds that the tree, and what ended of it, was on a processor.
        memory: Resident bytes of the tree now; what processes share is counted for
            each.
        processes: Living processes of the tree.
    """

    stdout: Counts
    stderr: Counts | None
    cpu_time: float
    memory: int
    processes: int

    def to_wire(self) -> dict[str, Any]:
        """Return a map of plain values, one for each field."""
        return {
            "stdout": list(self.stdout),
            "stderr": None if self.stderr is None else list(self.stderr),
            "cpu_time": self.cpu_time,
            "memory": self.memory,
            "processes": self.processes,
        }

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Return what `to_wire` was called on.

        Raises:
            ProtocolError: It is something else.
        """
        what, shapes = "stats", (ITEMS, ITEMS_OR_NONE, NUMBER, INT, INT)
        names = ("stdout", "stderr", "cpu_time", "memory", "processes")
        if not isinstance(wire, dict) or wire.keys() != set(names):
            raise ProtocolError(f"malformed {what}: missing or unknown fields")
        values = fit(what, [wire[name] for name in names], list(shapes))
        for place in (0, 1):
            if values[place] is not None:
                values[place] = Counts(*listed("counts", values[place], INT, INT, INT))
        return cls(*values)
