"""What the router deals in: events it takes, actions it gives, its records. Pure."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol

from broker.wire import Kind, Message, Payload, pack, unpack

CLIENT, SESSION, WORKER = range(3)
"""Where the last number of each stands among the numbers that a broker has given."""


class Numbers(Protocol):
    """The last numbers given: a list, or memory that another broker left."""

    def __getitem__(self, index: int, /) -> int:
        """Return the last number of a kind."""

    def __setitem__(self, index: int, value: int, /) -> None:
        """Note the last number of a kind."""


class Hello(NamedTuple):
    """A peer proved which process it is and gave its keys.

    One that knew an earlier broker has the number from there, and a proof of it.
    """

    peer: bytes
    owner: bytes
    operator: bool
    lease: float
    request: int
    number: int = 0
    proof: bytes | None = None


class FromClient(NamedTuple):
    """A checked message came from a client's connection."""

    peer: bytes
    message: Message


class ClientGone(NamedTuple):
    """The client's process ended, or its lifeline was closed."""

    peer: bytes


class LeaseRenewed(NamedTuple):
    """A client with a lease showed that its program still runs."""

    peer: bytes


class FromWorker(NamedTuple):
    """A checked message came over a worker's leg."""

    worker: int
    message: Message


class WorkerGone(NamedTuple):
    """The worker is reaped; `proven` says that its orphans are too.

    `errno` is not 0 when the worker could not even be forked.
    """

    worker: int
    errno: int
    proven: bool


class PoolGone(NamedTuple):
    """The pool died; `proven` says that its workers and their trees are gone."""

    proven: bool


class PoolReady(NamedTuple):
    """A pool takes FORK requests."""


class CallRoll(NamedTuple):
    """This broker follows a lost one, whose workers are awaited until `ends`.

    `whole`: the pool that had them lives.
    """

    ends: float
    whole: bool


class Found(NamedTuple):
    """Workers of the lost broker live, and have a leg to this one.

    `whole`: none was lost of which that one may not have told.
    """

    workers: list[int]
    last: bool
    whole: bool


class Tick(NamedTuple):
    """`next_deadline` has passed."""


Event = (
    Hello
    | FromClient
    | ClientGone
    | LeaseRenewed
    | FromWorker
    | WorkerGone
    | PoolGone
    | PoolReady
    | CallRoll
    | Found
    | Tick
)


class ToClient(NamedTuple):
    """Send `message` to a client's connection."""

    peer: bytes
    message: Message


class ToWorker(NamedTuple):
    """Send `message` over a worker's leg."""

    worker: int
    message: Message


class Fork(NamedTuple):
    """Make a leg, and have the pool fork this worker onto it."""

    worker: int


class Retire(NamedTuple):
    """Close the worker's leg: it ends by itself."""

    worker: int


class Condemn(NamedTuple):
    """Have the pool kill this worker: it stands still."""

    worker: int


Action = ToClient | ToWorker | Fork | Retire | Condemn


class Capacity(NamedTuple):
    """How many sessions a broker takes, and which resource would end with more."""

    sessions: int
    resource: str


class State(Enum):
    """Where a session stands; see the table of `broker.router`."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"
    CLOSED = "closed"
    LEAVING = "leaving"
    LOST = "lost"


LIVE: Final = frozenset({State.STARTING, State.RUNNING, State.EXITED})
THERE: Final = LIVE | {State.CLOSED}
"""States in which a session answers: it lives, or can still be read."""


class Ask(NamedTuple):
    """A pending request: who asked, under which number."""

    client: int
    request: int


@dataclass(slots=True)
class Client:
    """A connection that said hello."""

    id: int
    peer: bytes
    owner: bytes
    operator: bool
    lease: float
    lease_ends: float | None


class Attach(NamedTuple):
    """How an owner came to a session that it has not spawned; it may take that back.

    Attributes:
        request: the owner's number of its ATTACH.
        ends: when the session was to end without an owner; None: never.
        robbed: whether it had another owner.
    """

    request: int
    ends: float | None
    robbed: bool


@dataclass(slots=True)
class Session:
    """One child, from the broker's side."""

    id: int
    client: int
    owner: bytes
    scope: str
    token: str
    worker: int
    kill_on_drop: bool
    detach_ttl: float | None = None
    state: State = State.STARTING
    pending: dict[Ask, Kind] = field(default_factory=dict)
    answer: Message | None = None
    deadlines: dict[Ask, float] = field(default_factory=dict)
    """When its worker is late with the answers to KILLs that it has not given."""
    attach: Attach | None = None
    """How its owner came to it, unless by its spawn."""
    holders: set[int] = field(default_factory=set)
    """Clients that read it without owning it: what they hold ends with them."""
    visits: set[Ask] = field(default_factory=set)
    """VISITs of clients that want to be told of its end without owning it."""
    runs: bool = False
    """Whether it releases itself, and only the end of a capture tells of its own."""
    used: float = 0.0
    """When it was last written to, polled, resized or signalled."""
    evicted: bool = False
    """Whether it is on its way out for another one."""
    let_go: bool = False
    """Whether the broker ends it of its own accord: its owner is to be told."""
    ended: float | None = None
    """When the child's end was told."""
    status: object = None
    """The status that it ended with, as it came."""
    concluded: bool = False
    """Whether its terminal event was told to whoever watches."""
    reported: bool = False
    """Whether an owner was told of it."""
    proven: bool = False
    """Of a lost one: nothing of its tree is left."""
    told: float | None = None
    """When START was sent, unless an earlier broker did."""

    def memo(self, ends: float | None) -> bytes:
        """Return what another broker has to know of it; it lives till `ends` at most.

        That is a time if it lives on without an owner, and not for ever.
        """
        facts = [self.client, self.owner, self.scope, self.token]
        return pack([*facts, self.kill_on_drop, self.detach_ttl, ends, self.attach])

    @classmethod
    def remembered(
        cls, number: int, worker: int, memo: Payload
    ) -> "tuple[Session, float | None]":
        """Return the session of a memo, and when it ends without an owner."""
        client, owner, scope, token, kill_on_drop, ttl, ends, attach = unpack(memo)
        names = number, client, owner, scope, token, worker
        attach = None if attach is None else Attach(*attach)
        return cls(*names, kill_on_drop, ttl, attach=attach), ends

    @property
    def stays(self) -> bool:
        """Whether it outlives its owner, at least for some time."""
        return not self.kill_on_drop or self.detach_ttl is not None

    @property
    def visitors(self) -> set[int]:
        """The clients that visit it."""
        return {visit.client for visit in self.visits}

    def attached_by(self, ask: Ask) -> bool:
        """Return whether it has its owner by this ATTACH."""
        if self.attach is None or not ask.request:
            return False
        return ask == (self.client, self.attach.request)

    @property
    def takes_room(self) -> bool:
        """Whether it counts against the limits of its scope and its client.

        It does until its owner was told of its end, or it was given up and ended.
        """
        if self.ended is None:
            return True
        return self.state is not State.LEAVING and not self.reported
