"""Ended sessions: how long they can be read, and which go when there are many. Pure.

An ended session stays readable until its end was told to an owner, and for `READABLE`
seconds at least. From then on it is *retained*: at most `RETAINED` of each owner key
are, and the oldest goes first. One whose end was told to nobody is not among them: it
still counts against the limits of its scope.
"""

from typing import Final

from broker.registry import Session

READABLE: Final = 30.0
"""Seconds from its end on that a session stays readable at least."""
RETAINED: Final = 256
"""Sessions retained for each owner key; each has a worker and a log."""


class Retention:
    """The ended sessions, by when they may go."""

    def __init__(self) -> None:
        self._fresh: dict[int, float] = {}
        self._retained: dict[bytes, dict[int, Session]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._retained.values()))

    def ended(self, session: Session, now: float) -> None:
        """Take a session whose child ended at `now`."""
        self._fresh[session.id] = now + READABLE

    def reported(self, session: Session) -> None:
        """Retain a session whose end was told late."""
        if session.id not in self._fresh:
            self._retained.setdefault(session.owner, {})[session.id] = session

    def next_deadline(self) -> float | None:
        """Return when `ripen` is wanted; ends come in the order of time."""
        return next(iter(self._fresh.values()), None)

    def ripen(self, sessions: dict[int, Session], now: float) -> None:
        """Retain what was readable for long enough, and was told."""
        for number, ends in list(self._fresh.items()):
            if ends > now:
                return
            del self._fresh[number]
            if sessions[number].reported:
                self.reported(sessions[number])

    def surplus(self) -> list[Session]:
        """Return what has to go: the oldest of those that are too many."""
        found = []
        for kept in self._retained.values():
            found += list(kept.values())[: max(0, len(kept) - RETAINED)]
        return found

    def oldest(self) -> Session | None:
        """Return what goes first if the broker is full: of the key with the most."""
        most = max(self._retained.values(), key=len, default={})
        return next(iter(most.values()), None)

    def forget(self, session: Session) -> None:
        """Forget a session that goes; harmless to repeat."""
        self._fresh.pop(session.id, None)
        kept = self._retained.get(session.owner, {})
        kept.pop(session.id, None)
        if not kept:
            self._retained.pop(session.owner, None)
