"""What clients wait for in one session: patterns, ports and files. Pure.

An EXPECT looks for a pattern from its client's cursor on, a READY for a pattern in all
output, for a listening port, or for a file. Each is answered once, with a REPLY whose
`outcome` is

==============  ==========================================  ===========================
outcome         when                                        payload
==============  ==========================================  ===========================
``match``       the pattern of an EXPECT was found          before, match, groups
``ready``       what a READY waits for is there             none
``timed-out``   `wait` seconds have passed                  last output of both streams
``ended``       the child has ended without, or the stream  last output of both streams
==============  ==========================================  ===========================

or with an ERROR when the session goes. What is there already counts, also after the
child's end and after the time. A stream mostly ends a moment before its child: that
moment is waited for, so that the answer can tell how the child ended.

While a pattern is looked for, nothing is dropped from the log that has not been looked
at. Under a `block` policy the cursor of a reader's EXPECTs holds the log from the first
one on, until the reader is stopped; when a search has seen all there is and the child
is held back, it moves on, as otherwise nothing could happen any more.

Ports and files are looked for on a timer, which runs only while somebody waits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from actors.buffer import Log
from actors.clock import Clock
from actors.outlet import DYING, Ask, Progress, Voice
from actors.search import Found, Search, compiled, tail
from broker import errors
from broker.wire import STREAMS, Kind, Payload, pack

FIRST_LOOK: Final = 0.02
"""Seconds between the first two looks for a port or a file."""
LAST_LOOK: Final = 0.25
"""Seconds between two looks at most."""
LAST_LINES: Final = 4096
"""Bytes of each stream that a failure carries."""


class Look(Protocol):
    """How ports and files are looked for."""

    def listens(self, port: int) -> bool:
        """Return whether a process of the child's tree listens on a TCP port."""

    def exists(self, path: bytes) -> bool:
        """Return whether there is such a file, as the child would name it."""


class LogHold(NamedTuple):
    """The cursor of a client's reader in a stream, as it holds a blocking log."""

    client: int
    reader: int
    stream: str

    def of(self, target: Ask) -> bool:
        """Return whether it goes with what is stopped: a reader, 0 or a request."""
        return self.client == target.client and target.request in (0, self.reader)


@dataclass(slots=True, eq=False)
class Wait:
    """One pending request.

    Attributes:
        ask: Who waits.
        ends: When it is given up.
        tells: Whether the match is told, as to an EXPECT.
        search: The pattern's, None when it is for a port or a file.
        look: For these.
        hold: What moves on with the search, None if nothing does.
        look_due: When to look again.
        interval: Seconds until the look after that.
        ended: When the stream was first seen to have ended.
    """

    ask: Ask
    ends: float
    tells: bool = False
    search: Search | None = None
    look: Callable[[], bool] | None = None
    hold: LogHold | None = None
    look_due: float = inf
    interval: float = FIRST_LOOK
    ended: float | None = None

    def next_look(self) -> float:
        """Return when it is to be served before its time is over; `inf`: never."""
        dead = inf if self.ended is None else self.ended + DYING
        return min(self.look_due, dead)


class Awaited:
    """The pending EXPECTs and READYs of one session."""

    def __init__(
        self, log: Log, progress: Progress, voice: Voice, look: Look, *, blocking: bool
    ) -> None:
        self.log = log
        self.progress = progress
        self.voice = voice
        self.look = look
        self.blocking = blocking
        self.clock = Clock()
        self.waits: list[Wait] = []
        self.holds: set[LogHold] = set()

    # -- asked ------------------------------------------------------------------

    def expect(self, ask: Ask, body: Any, now: float) -> None:
        """Take an EXPECT; `serve` answers it.

        Raises:
            InvalidRequest: The pattern is none, or the cursor lies in the future.
        """
        stream, offset = body["stream"], body["offset"]
        produced = self.log.stats(stream).produced
        if offset > produced:
            raise errors.InvalidRequest("offset", f"is beyond the {produced} bytes yet")
        search = self._search(body, offset)
        wait = Wait(ask, self._ends(ask, body, now), tells=True, search=search)
        self._forget(ask)
        if self.blocking:
            wait.hold = LogHold(ask.client, body["reader"], stream)
            self.holds.add(wait.hold)
            self.log.hold(wait.hold, self.log.seek(stream, offset))
        self.waits.append(wait)

    def ready(self, ask: Ask, body: Any, now: float) -> None:
        """Take a READY; `serve` answers it.

        Raises:
            InvalidRequest: The pattern is none, or not one thing is waited for.
        """
        port, file, look = body["port"], body["file"], self.look
        if [port, file, body["pattern"]].count(None) != 2:
            raise errors.InvalidRequest("ready", "is for one of port, file and pattern")
        wait = Wait(ask, self._ends(ask, body, now))
        if port is not None:
            wait.look, wait.look_due = (lambda: look.listens(port)), now
        elif file is not None:
            wait.look, wait.look_due = (lambda: look.exists(file)), now
        else:
            wait.search = self._search(body, 0)
        self._forget(ask)
        self.waits.append(wait)

    def _forget(self, ask: Ask) -> None:
        """Forget a request that is asked again; what it holds is held on."""
        self.waits = [wait for wait in self.waits if wait.ask != ask]

    @property
    def clients(self) -> set[int]:
        """Those who wait for something, or hold something back."""
        waiting = {wait.ask.client for wait in self.waits}
        return waiting | {hold.client for hold in self.holds}

    def _ends(self, ask: Ask, body: Any, now: float) -> float:
        """Return when a request is given up; one that is asked again, as before."""
        for wait in self.waits:
            if wait.ask == ask:
                return wait.ends
        patience = body["wait"]
        return inf if patience is None else self.clock.read(now) + float(patience)

    def _search(self, body: Any, start: int) -> Search:
        pattern = compiled(body["pattern"], body["flags"])
        return Search(self.log, body["stream"], pattern, start)

    def stop(self, target: Ask) -> None:
        """Forget a pending request, or a reader; request 0: all of this client's."""
        for wait in list(self.waits):
            if target in (wait.ask, (wait.ask.client, 0)):
                self._remove(wait)
        for hold in [hold for hold in self.holds if hold.of(target)]:
            self.holds.discard(hold)
            self.log.release(hold)

    def refuse(self, error: errors.EngineError) -> None:
        """Answer everything that is pending with an error."""
        for wait in list(self.waits):
            self._refuse(wait, error)

    def _refuse(self, wait: Wait, error: errors.EngineError) -> None:
        code, values = errors.encode(error)
        self._answer(wait, Kind.ERROR, {"code": code, "values": values})

    def _answer(
        self,
        wait: Wait,
        kind: Kind,
        body: dict[str, Any],
        payload: Payload | None = None,
    ) -> None:
        self._remove(wait)
        self.voice.say(kind, wait.ask, body, payload)

    def _remove(self, wait: Wait) -> None:
        self.waits.remove(wait)
        self.log.release(wait.ask)

    # -- served -----------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when `serve` is wanted, None while nothing is due."""
        due = [wait.next_look() for wait in self.waits]
        ends = (self.clock.when(wait.ends) for wait in self.waits)
        due += [end for end in ends if end is not None]
        first = min(due, default=inf)
        return None if first == inf else first

    def pause(self, now: float, *, paused: bool) -> None:
        """Stop the clock of what waits, or let it go on."""
        if paused:
            self.clock.stop(now)
            return
        shift = self.clock.go(now)
        for wait in self.waits:
            wait.ends += shift

    def serve(self, now: float, *, held: bool) -> None:
        """Answer whatever can be answered.

        Args:
            now: The time.
            held: Whether the child is held back because a reader is behind.
        """
        for wait in list(self.waits):
            try:
                self._serve(wait, now, held=held)
            except errors.InvalidRequest as error:
                self._refuse(wait, error)

    def _serve(self, wait: Wait, now: float, *, held: bool) -> None:
        if wait.search is not None:
            found = wait.search.step()
            if found is not None:
                self._found(wait, found)
                return
            self._move_on(wait, held=held)
        elif self._there(wait, now):
            self._answer(wait, Kind.REPLY, {"outcome": "ready"})
            return
        if self._has_ended(wait, now):
            self._fail(wait, "ended")
        elif self.clock.read(now) >= wait.ends:
            self._fail(wait, "timed-out")

    def _found(self, wait: Wait, found: Found) -> None:
        if not wait.tells:
            self._answer(wait, Kind.REPLY, {"outcome": "ready"})
            return
        body = {"outcome": "match", "offset": found.offset, "gap": found.gap}
        document = [found.before, found.matched, list(found.groups)]
        self._answer(wait, Kind.REPLY, body, pack(document))

    def _move_on(self, wait: Wait, *, held: bool) -> None:
        """Hold the log at its end: everything before has been looked at."""
        if not self.blocking:
            self.log.hold(wait.ask, self.log.end)
        elif held and wait.hold in self.holds:
            self.log.hold(wait.hold, self.log.end)

    def _there(self, wait: Wait, now: float) -> bool:
        """Look for a port or a file if it is time, or the last chance."""
        assert wait.look is not None
        early = now < wait.look_due and self.clock.read(now) < wait.ends
        if early and not self.progress.exit_seen:
            return False
        wait.look_due = now + wait.interval
        wait.interval = min(wait.interval * 1.5, LAST_LOOK)
        return wait.look()

    def _has_ended(self, wait: Wait, now: float) -> bool:
        if self.progress.exit_seen:
            return True
        if wait.search is None or wait.search.stream in self.progress.streams:
            return False
        if wait.ended is None:
            wait.ended = now
        return now >= wait.ended + DYING

    def _fail(self, wait: Wait, outcome: str) -> None:
        status = self.progress.status
        body = {"outcome": outcome, "status": status.to_wire() if status else None}
        lines = [tail(self.log, stream, LAST_LINES) for stream in STREAMS]
        self._answer(wait, Kind.REPLY, body, pack(lines))
