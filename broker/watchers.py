"""Lifecycle streams: who watches sessions, and how much of it each has missed. Pure.

A watcher gets at most `WINDOW` events ahead of what it says it has taken (CREDIT). What
happens beyond that is counted, and the count goes out with the next event: a slow or
dead watcher costs a number, not memory.

Every session that was registered has exactly one terminal event: `failed` if its start
did, `lost` if its worker was, else `closed`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from broker import errors
from broker.registry import Ask, Client, Session
from broker.wire import Kind, Message

WINDOW: Final = 256
"""Events under way to one watcher."""
TERMINAL: Final = frozenset({"closed", "failed", "lost"})


@dataclass(slots=True)
class Watcher:
    """One stream of one client.

    Attributes:
        ask: the client, and its number of the stream.
        owner: the key whose sessions it sees; None: all.
        scope: the scope that it sees; None: all.
        sequence: events so far, sent or missed.
        sent: events sent.
        taken: events that the client has taken.
        missed: events since the last one that was sent.
    """

    ask: Ask
    owner: bytes | None
    scope: str | None
    sequence: int = 0
    sent: int = 0
    taken: int = 0
    missed: int = 0

    def sees(self, session: Session) -> bool:
        """Return whether events of a session are this watcher's."""
        return self.owner in (None, session.owner) and self.scope in (
            None,
            session.scope,
        )

    def take(self) -> bool:
        """Count an event; return whether it may be sent."""
        self.sequence += 1
        if self.sent - self.taken >= WINDOW:
            self.missed += 1
            return False
        self.sent += 1
        return True


class Watchers:
    """All lifecycle streams."""

    def __init__(self) -> None:
        self._all: dict[Ask, Watcher] = {}

    def __len__(self) -> int:
        return len(self._all)

    def open(self, client: Client, message: Message) -> None:
        """Begin a stream; one that is open already stays as it is."""
        ask = Ask(client.id, message.request)
        owner = None if client.operator else client.owner
        self._all.setdefault(ask, Watcher(ask, owner, message.body["scope"]))

    def credit(self, ask: Ask, taken: int) -> None:
        """Note what a watcher has taken; it never takes more than it was sent."""
        watcher = self._all.get(ask)
        if watcher is not None:
            watcher.taken = min(max(watcher.taken, taken), watcher.sent)

    def stop(self, ask: Ask) -> None:
        """End a stream; harmless to repeat."""
        self._all.pop(ask, None)

    def leave(self, client: int) -> None:
        """End the streams of a client that is gone."""
        for ask in [ask for ask in self._all if ask.client == client]:
            del self._all[ask]

    def tell(
        self,
        session: Session,
        kind: str,
        now: float,
        status: Any = None,
        error: errors.EngineError | None = None,
    ) -> Iterator[Message]:
        """Return what goes to whom, when something happens to a session.

        A second terminal event of a session is none.
        """
        if kind in TERMINAL:
            if session.concluded:
                return
            session.concluded = True
        for watcher in self._all.values():
            if watcher.sees(session) and watcher.take():
                body = {
                    "event": kind,
                    "scope": session.scope,
                    "sequence": watcher.sequence,
                    "time": now,
                    "status": status,
                    "error": None if error is None else list(errors.encode(error)),
                    "missed": watcher.missed,
                }
                watcher.missed = 0
                yield Message(Kind.LIFECYCLE, *watcher.ask, session.id, 0, 0.0, body)
