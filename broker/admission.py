"""Room for sessions: limits, and the line of spawns that wait for room. Pure.

A spawn has up to three limits: what its scope may hold, what its client may, and what
the broker can. Of scope and client count the sessions that take room, which a session
does until its owner was told of its end; the broker's own limit is about descriptors,
so everything that still has a worker counts there.

Whoever waits is served first come first served *at each limit*: a spawn waits behind
one that came before it exactly if both want the same limit, and that one waits for it.
Two scopes do not hold each other up, and nobody is overtaken at what it waits for.

A spawn that may evict has one session of its own key ended for each limit that is full,
and waits for that: the least recently used of those that have ended, else of those that
live, but never one of the `PROTECTED` most recently used.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker.registry import Capacity, Session, State
from broker.wire import Message

BROKER: Final = "broker"
WARN_BEFORE: Final = 16
"""A warning comes one sixteenth before a limit: at 60 of 64."""

PROTECTED: Final = 8
"""Sessions that no eviction touches: the most recently used ones."""

Token = tuple[bytes, str]


class Limit(NamedTuple):
    """How many sessions there may be of those that `key` stands for."""

    key: Hashable
    most: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} holds its limit of {self.most} sessions"

    @property
    def warns_at(self) -> int:
        """The number of sessions at which whoever watches is warned."""
        return self.most - self.most // WARN_BEFORE


@dataclass(slots=True)
class Applicant:
    """A spawn that has no session yet.

    Attributes:
        token: names it, together with its owner key.
        asked: the SPAWNs that ask for it, first of all the one that is carried out.
        limits: which have to have room.
        came: when it came (seconds, monotonic).
        ends: when it is refused (seconds, monotonic).
        stuck: which of the limits had no room when that was last looked at.
    """

    token: Token
    asked: list[Message]
    limits: list[Limit]
    came: float = 0.0
    ends: float = 0.0
    stuck: list[Limit] = field(default_factory=list)

    @property
    def message(self) -> Message:
        """The SPAWN that is carried out."""
        return self.asked[0]

    @property
    def clients(self) -> set[int]:
        """Those who ask for it: it dies with the last of them."""
        return {spawn.client for spawn in self.asked}


def limits(owner: bytes, message: Message, capacity: Capacity) -> list[Limit]:
    """Return the limits that a SPAWN is under, the broker's own last."""
    body = message.body
    found = []
    if body["scope_capacity"] is not None:
        name = f"the scope {body['scope']!r}"
        key: Hashable = (owner, body["scope"])
        found.append(Limit(key, body["scope_capacity"], name))
    if body["client_capacity"] is not None:
        found.append(Limit(message.client, body["client_capacity"], "this client"))
    name = f"this broker, for want of {capacity.resource},"
    return [*found, Limit(BROKER, capacity.sessions, name)]


def keys(session: Session) -> list[Hashable]:
    """Return what a session counts for: nothing, once its worker is lost."""
    if session.state is State.LOST:
        return []
    if session.takes_room:
        return [BROKER, (session.owner, session.scope), session.client]
    return [BROKER]


def victim(sessions: Iterable[Session]) -> Session | None:
    """Return which of some sessions goes to make room, None if none may."""
    by_use = sorted(sessions, key=lambda session: (session.used, session.id))
    may_go = by_use[:-PROTECTED]
    ended = [session for session in may_go if session.ended is not None]
    return next(iter(ended or may_go), None)


def victims(
    applicant: Applicant, sessions: Iterable[Session], retained: Session | None
) -> list[Session]:
    """Return who goes for a spawn that is stuck, none if that would not be enough.

    Args:
        applicant: it gives up others only of its own key, and if it may evict.
        sessions: all that there are.
        retained: one that goes for anybody when the broker is full.
    """
    evicts = applicant.message.body["on_full"] == "evict"
    owner = applicant.token[0]
    own = [s for s in sessions if evicts and s.owner == owner and not _goes(s)]
    found: list[Session] = []
    for limit in applicant.stuck:
        counted = [session for session in own if limit.key in keys(session)]
        if any(session in found for session in counted):
            continue
        choice = retained if limit.key == BROKER else None
        choice = choice or victim(counted)
        if choice is None:
            return []
        found.append(choice)
    return found


def _goes(session: Session) -> bool:
    """Return whether it is on its way out already."""
    return session.evicted or session.state in (State.LEAVING, State.LOST)


class Load:
    """How many sessions there are of each limit; counted once, when first asked.

    Args:
        sessions: all that there are.
        busy: how many of them have a worker.
    """

    def __init__(self, sessions: dict[int, Session], busy: int) -> None:
        self._sessions = sessions
        self._busy = busy
        self._counted: Counter[Hashable] | None = None

    def of(self, limit: Limit) -> int:
        """Return how many sessions count for a limit."""
        if limit.key == BROKER:  # the only one of most spawns
            return self._busy
        if self._counted is None:
            self._counted = Counter(k for s in self._sessions.values() for k in keys(s))
        return self._counted[limit.key]

    def add(self, session: Session) -> None:
        """Count a session that was made meanwhile."""
        self._busy += 1
        if self._counted is not None:
            self._counted.update(keys(session))


class Line:
    """The spawns that wait, in the order in which they came."""

    def __init__(self) -> None:
        self.waiting: dict[Token, Applicant] = {}

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, applicant: Applicant) -> None:
        """Put a spawn at the end of the line."""
        self.waiting[applicant.token] = applicant

    def admitted(self, load: Load) -> Iterator[Applicant]:
        """Take out whoever has room now, one after the other.

        The caller makes its session, and adds it to `load`, before asking for the next.
        """
        wanted: set[Hashable] = set()
        for applicant in list(self.waiting.values()):
            applicant.stuck = [
                limit
                for limit in applicant.limits
                if limit.key in wanted or load.of(limit) >= limit.most
            ]
            wanted.update(limit.key for limit in applicant.stuck)
            if not applicant.stuck:
                del self.waiting[applicant.token]
                yield applicant

    def of_client(self, client: int) -> list[Applicant]:
        """Return what a client asks for."""
        return [a for a in self.waiting.values() if client in a.clients]

    def late(self, now: float) -> list[Applicant]:
        """Take out whoever has waited long enough."""
        taken = [a for a in self.waiting.values() if a.ends <= now]
        for applicant in taken:
            del self.waiting[applicant.token]
        return taken

    def next_deadline(self) -> float | None:
        """Return when the first of them has waited long enough."""
        return min((a.ends for a in self.waiting.values()), default=None)
