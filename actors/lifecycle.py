"""One child's life as rules: what follows from its exit, its streams, a kill, a timer.

Pure: `Lifecycle.handle(event, now)` returns the actions that the session carries out,
`next_deadline()` when a `Tick` is wanted. Three facts are kept apart: the end of the
leader, the end of each stream, and the end of the whole tree.

===========  ==========================  ==========================  ==================
event        RUNNING                     EXITED                      CLOSED
===========  ==========================  ==========================  ==================
LeaderExited Report; EXITED              (impossible)                (impossible)
TreeEmpty    (impossible)                answer kills, stop sweep    the same
StreamDone   noted                       last one: Close             (impossible)
Held         idle timer stands still     grace stands still          ignored
Output       idle timer restarts         ignored                     ignored
Kill         TERM+CONT, or Sweep         Sweep; empty: Answer        the same
Interrupted  noted for the cause         ignored                     ignored
Paused       timeouts stand still        grace stands still          ignored
Reaped       sweep at once               sweep at once               sweep at once
Tick         timeout, escalation, sweep  grace: Abandon; leftovers   sweep
===========  ==========================  ==========================  ==================

A pause pushes back what patience is measured by: the timeouts and the grace. Kills go
on: their escalation, their deadlines, and the end of what the leader left behind.

After the leader's end its group may be empty and its number used again, so nothing is
sent to the group any more: what is left of the tree is swept.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, assert_never

from actors.clock import Clock

SWEEP_FIRST: Final = 0.02
"""Seconds between two walks of a tree that is being killed.

Exits trigger one as well, so this is for what no exit tells of: a child that was born
during a walk, below somebody who cannot be killed. Many that are killed at once take
their time to exit, and a walk in each of their workers (41 us warm) makes it longer.
"""
SWEEP_LAST: Final = 1.0
"""Seconds between walks once survivors do not go (D state, another user's)."""
SIGINT: Final = 2
SIGKILL: Final = 9
SIGTERM: Final = 15
SIGCONT: Final = 18


class State(Enum):
    """Where the child stands."""

    RUNNING = "running"
    EXITED = "exited"
    CLOSED = "closed"


class LeaderExited(NamedTuple):
    """The leader was reaped.

    Attributes:
        signal: what it died of, 0: it exited.
        empty: whether it left nothing behind.
        oom: whether the kernel says that it killed here for want of memory.
        spared: whether the kernel let none of our kills reach it.
    """

    signal: int
    empty: bool
    oom: bool = False
    spared: bool = False


class TreeEmpty(NamedTuple):
    """Nothing below the worker is left: proven by the kernel."""


class StreamDone(NamedTuple):
    """A stream reached its end, broke, or was abandoned."""

    stream: str


class Held(NamedTuple):
    """Reading is held back (or no longer) because a lossless reader is behind."""

    held: bool


class Output(NamedTuple):
    """The child wrote something."""


class Kill(NamedTuple):
    """End the tree: politely first when `grace` (seconds) is given.

    `key` is answered once the tree is gone, or after `timeout` seconds.
    """

    key: Hashable | None
    grace: float | None
    timeout: float
    cause: str


class Interrupted(NamedTuple):
    """SIGINT was sent on request."""


class Paused(NamedTuple):
    """The clock of the session's scope was stopped (or goes on)."""

    paused: bool


class Reaped(NamedTuple):
    """Some process of the tree was reaped, and there are others left."""


class Tick(NamedTuple):
    """Time has passed."""


Event = (
    LeaderExited
    | TreeEmpty
    | StreamDone
    | Held
    | Output
    | Kill
    | Interrupted
    | Paused
    | Reaped
    | Tick
)


AFTER: Final[Mapping[tuple[State, type[Event]], State]] = {
    (State.RUNNING, LeaderExited): State.EXITED,
    (State.EXITED, StreamDone): State.CLOSED,
}
"""Where the child stands after what has happened: the last of its streams, of those."""


class SignalGroup(NamedTuple):
    """Send a signal to the leader's group."""

    number: int


class Sweep(NamedTuple):
    """Kill whatever is below the worker, once, top down."""


class Abandon(NamedTuple):
    """Take what is in the pipes at this moment, then stop reading them."""


class Report(NamedTuple):
    """The leader's end is final, with this cause."""

    cause: str


class Close(NamedTuple):
    """Leader and streams have ended."""


class Answer(NamedTuple):
    """Answer the kill with this key; `proven`: the tree is gone."""

    key: Hashable
    proven: bool


Action = SignalGroup | Sweep | Abandon | Report | Close | Answer


@dataclass(frozen=True, slots=True)
class Terms:
    """The times of one session, in seconds; None: never."""

    post_exit_grace: float | None = 0.25
    leftover: str = "kill"
    leftover_delay: float = 0.25
    timeout: float | None = None
    idle_timeout: float | None = None
    terminate_grace: float = 2.0
    kill_timeout: float = 5.0


class Lifecycle:
    """The state machine of one child, from its start at time `now` on."""

    def __init__(self, terms: Terms, streams: frozenset[str], now: float) -> None:
        self.terms = terms
        self.state = State.RUNNING
        self.empty = False
        self.sweeping = False
        self._open = set(streams)
        self._now = now
        self._clock = Clock()
        self._out: list[Action] = []
        self._cause: str | None = None
        self._interrupted = False
        self._kills: list[tuple[Hashable, float]] = []
        self._held = False
        self._grace_ends: float | None = None
        self._grace_left: float | None = None
        self._escalate: float | None = None
        self._leftovers_end: float | None = None
        self._interval = SWEEP_FIRST
        self._sweep_due: float | None = None
        self._times_out = _after(now, terms.timeout)
        self._idles_out = _after(now, terms.idle_timeout)
        self._due: float | None = None
        self._due_known = False

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event at time `now` (seconds, monotonic) and return what to do."""
        if self.terms.idle_timeout is None and isinstance(event, Output):
            return []  # by far the commonest
        self._now = now
        self._out = []
        self._due_known = False
        match event:
            case LeaderExited():
                self._leader_exited(event)
            case TreeEmpty():
                self._tree_empty()
            case StreamDone(stream):
                self._open.discard(stream)
                self._close_when_done()
            case Held(held):
                self._hold(held=held)
            case Output():
                self._start_idling()
            case Kill():
                self._kill(event)
            case Interrupted():
                self._interrupted = self.state is State.RUNNING
            case Paused(paused):
                self._pause(paused=paused)
            case Reaped():
                self._reaped()
            case Tick():
                self._tick()
            case _:
                assert_never(event)
        return self._out

    def next_deadline(self) -> float | None:
        """Return when a `Tick` is wanted, None while nothing is due."""
        if not self._due_known:  # asked in each turn of the worker
            self._due = self._find_deadline()
            self._due_known = True
        return self._due

    def _find_deadline(self) -> float | None:
        ends = [*self._timers(), *(end for _, end in self._kills)]
        return min([end for end in ends if end is not None], default=None)

    def _timers(self) -> tuple[float | None, ...]:
        when = self._clock.when
        kept = (self._escalate, self._sweep_due, self._leftovers_end)
        if self.state is State.RUNNING:
            return (*kept, when(self._times_out), when(self._idles_out))
        return (*kept, when(self._grace_ends))

    # -- endings ----------------------------------------------------------------

    def _leader_exited(self, event: LeaderExited) -> None:
        self.state = AFTER[self.state, LeaderExited]
        self._out.append(Report(self._final_cause(event)))
        self._escalate = None
        if event.empty:
            self._tree_empty()
        elif self._cause is not None:
            self._start_sweep()
        elif self.terms.leftover == "kill":
            self._leftovers_end = self._now + self.terms.leftover_delay
        self._start_grace()
        self._close_when_done()

    def _final_cause(self, event: LeaderExited) -> str:
        if self._cause is not None and not event.spared:
            return self._cause
        if self._interrupted and event.signal == SIGINT:
            return "interrupted"
        if event.oom and event.signal == SIGKILL:
            return "oom"
        return "exited"

    def _start_grace(self) -> None:
        grace = self.terms.post_exit_grace
        if grace is None or not self._open:
            return
        if self._held:
            self._grace_left = grace
        else:
            self._grace_ends = self._clock.read(self._now) + grace

    def _hold(self, *, held: bool) -> None:
        if held is self._held:
            return
        self._held = held
        self._start_idling()
        if held and self._grace_ends is not None:
            here = self._clock.read(self._now)
            self._grace_left = max(0.0, self._grace_ends - here)
            self._grace_ends = None
        elif not held and self._grace_left is not None:
            self._grace_ends = self._clock.read(self._now) + self._grace_left
            self._grace_left = None

    def _pause(self, *, paused: bool) -> None:
        if paused:
            self._clock.stop(self._now)
            return
        shift = self._clock.go(self._now)
        self._grace_ends = _after(shift, self._grace_ends)
        self._times_out = _after(shift, self._times_out)
        self._idles_out = _after(shift, self._idles_out)

    def _start_idling(self) -> None:
        """Count silence anew; a child that is held back is not silent of its own."""
        silence = None if self._held else self.terms.idle_timeout
        self._idles_out = _after(self._clock.read(self._now), silence)

    def _close_when_done(self) -> None:
        if self.state is State.EXITED and not self._open:
            self.state = AFTER[self.state, StreamDone]
            self._grace_ends = self._grace_left = None
            self._out.append(Close())

    def _tree_empty(self) -> None:
        self.empty = True
        self.sweeping = False
        self._sweep_due = self._leftovers_end = self._escalate = None
        self._out.extend(Answer(key, proven=True) for key, _ in self._kills)
        self._kills.clear()

    # -- killing ----------------------------------------------------------------

    def _kill(self, kill: Kill) -> None:
        if self.empty:
            if kill.key is not None:
                self._out.append(Answer(kill.key, proven=True))
            return
        if self._cause is None:
            self._cause = kill.cause
        if kill.key is not None:
            patience = kill.timeout + (kill.grace or 0.0)
            self._kills.append((kill.key, self._now + patience))
        if self.sweeping:
            return
        if kill.grace is None or self.state is not State.RUNNING:
            self._start_sweep()
        elif self._escalate is None:
            self._out += [SignalGroup(SIGTERM), SignalGroup(SIGCONT)]
            self._escalate = self._now + kill.grace
        else:
            self._escalate = min(self._escalate, self._now + kill.grace)

    def _start_sweep(self) -> None:
        self.sweeping = True
        self._escalate = self._leftovers_end = None
        self._interval = SWEEP_FIRST
        self._sweep()

    def _sweep(self) -> None:
        self._out.append(Sweep())
        self._sweep_due = self._now + self._interval
        self._interval = min(self._interval * 2, SWEEP_LAST)

    def _reaped(self) -> None:
        if self.sweeping:
            self._interval = SWEEP_FIRST
            self._sweep()

    # -- timers -----------------------------------------------------------------

    def _tick(self) -> None:
        if self.state is State.RUNNING:
            self._check_timeouts()
        if _past(self._escalate, self._now) or _past(self._leftovers_end, self._now):
            self._start_sweep()
        elif self.sweeping and _past(self._sweep_due, self._now):
            self._sweep()
        if _past(self._grace_ends, self._clock.read(self._now)):
            self._grace_ends = None
            self._out.append(Abandon())
        self._give_up_on_kills()

    def _check_timeouts(self) -> None:
        here = self._clock.read(self._now)
        if _past(self._times_out, here) or _past(self._idles_out, here):
            self._times_out = self._idles_out = None
            grace = self.terms.terminate_grace
            self._kill(Kill(None, grace, self.terms.kill_timeout, "timeout"))

    def _give_up_on_kills(self) -> None:
        late = [key for key, end in self._kills if end <= self._now]
        self._kills = [(key, end) for key, end in self._kills if end > self._now]
        self._out.extend(Answer(key, proven=False) for key in late)


def _after(now: float, delay: float | None) -> float | None:
    return None if delay is None else now + delay


def _past(end: float | None, now: float) -> bool:
    return end is not None and end <= now
