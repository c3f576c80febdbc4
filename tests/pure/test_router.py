"""The broker's rules: cell by cell, and laws under clients and workers that may die."""

from collections import Counter, deque
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar, assert_never

import pytest
from hypothesis import Phase, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from broker import admission, errors, keeper, registry, retention, watchers, wire
from broker.keeper import DROP_TIMEOUT, HUNG_MARGIN
from broker.outcomes import TimedOut
from broker.registry import (
    LIVE,
    Action,
    CallRoll,
    Capacity,
    ClientGone,
    Condemn,
    Event,
    Fork,
    Found,
    FromClient,
    FromWorker,
    Hello,
    LeaseRenewed,
    PoolGone,
    PoolReady,
    Retire,
    State,
    Tick,
    ToClient,
    ToWorker,
    WorkerGone,
)
from broker.retention import READABLE
from broker.router import (
    FIRST_SESSION,
    ROOM_TIMEOUT,
    START_TIMEOUT,
    Router,
)
from broker.watchers import TERMINAL
from broker.wire import Kind, Message, decode, encode, unpack
from tests.helpers import SPAWN

T = TypeVar("T")
EPOCH = 77
OWNER = b"owner"
OTHER = b"other"
A, B, OPERATOR = b"a", b"b", b"operator"

KILL = {"grace": None, "timeout": 5.0, "cause": "killed", "release": False}
RELEASE = KILL | {"release": True}
POLL = {
    "reader": 1,
    "stdout": 0,
    "stderr": 0,
    "wait": 1.0,
    "mode": "output",
    "limit": 1,
}
OPEN = {"after": None, "newest": False, "chunks": 8, "bytes": 4096, "capture": False}
READ = {"reader": 1, "stream": "stdout", "offset": 0, "wait": 1.0, "limit": 1}
COMMANDS: dict[Kind, dict[str, Any]] = {
    Kind.WRITE: {"at": None},
    Kind.CLOSE_STDIN: {},
    Kind.POLL: POLL,
    Kind.READ: READ,
    Kind.OPEN: OPEN,
    Kind.KILL: KILL,
    Kind.SIGNAL: {"number": 15, "group": False, "interrupt": False},
    Kind.SNAPSHOT: {},
    Kind.STATS: {},
    Kind.CLOCK: {"paused": True},
    Kind.EXPECT: {
        "reader": 1,
        "stream": "stdout",
        "offset": 0,
        "pattern": b"x",
        "flags": 0,
        "wait": None,
    },
    Kind.READY: {
        "port": 80,
        "file": None,
        "pattern": None,
        "flags": 0,
        "stream": "stdout",
        "wait": None,
    },
    Kind.APPEND: {},
    Kind.VISIT: {},
}
STATUS = {"status": [0]}
NOT_FOUND = {"code": errors.SessionNotFound.code, "values": []}
STAMPS = {"stamps": [50.5, 51.0, None, 53.0]}
PUSHED: dict[Kind, Any] = {
    Kind.EXITED: STATUS,
    Kind.CLOSED: STATUS,
    Kind.IDLE: STAMPS,
}


def frame(message: Message) -> bytes:
    return encode(message) + bytes(message.payload or b"")


class World:
    """A router, and hands to push what is around it."""

    def __init__(
        self,
        *,
        shared: bool = False,
        warm: int = 0,
        capacity: int = 19,
        grace: float = 0.0,
        numbers: list[int] | None = None,
    ) -> None:
        room = Capacity(capacity, "descriptors")
        self.router = Router(
            EPOCH,
            shared=shared,
            warm=warm,
            capacity=room,
            grace=grace,
            numbers=numbers,
            secret=b"secret",
        )
        self.now = 50.0
        self.last_request = 0
        self.clients: dict[bytes, int] = {}

    def happen(self, event: Event) -> list[Action]:
        if isinstance(event, FromClient | FromWorker):
            return self._unread_and_read(event)
        return self._handle(event)

    def _handle(self, event: Event) -> list[Action]:
        actions = self.router.handle(event, self.now)
        for action in actions:
            if isinstance(action, ToClient | ToWorker):  # it has to fit on the wire
                assert decode(frame(action.message)) == action.message
        return actions

    def _unread_and_read(self, event: FromClient | FromWorker) -> list[Action]:
        """Have a message passed on by its header, in a copy: that makes no difference.

        Where its header says too little it is not passed on.
        """
        head = wire.head(frame(event.message))
        if head is None:
            return self._handle(event)
        copy = deepcopy(self.router)
        unread: Action | None = None
        if isinstance(event, FromClient):
            worker = copy.worker_for(event.peer, head, self.now)
            if worker is not None:
                unread = ToWorker(worker, event.message)
        else:
            peer = copy.peer_for(event.worker, head)
            if peer is not None:
                unread = ToClient(peer, event.message)
        actions = self._handle(event)
        if unread is not None:
            assert actions == [unread]
            assert copy.sessions == self.router.sessions
        return actions

    def hello(
        self,
        peer: bytes = A,
        owner: bytes = OWNER,
        *,
        operator: bool = False,
        lease: float = 0.0,
        number: int = 0,
        proof: bytes | None = None,
    ) -> bytes:
        """A client's hello; returns the proof of its number."""
        self.last_request += 1
        request = self.last_request
        event = Hello(peer, owner, operator, lease, request, number, proof)
        (action,) = self.happen(event)
        assert isinstance(action, ToClient)
        assert action.message.kind is Kind.WELCOME
        assert action.message.request == self.last_request
        self.clients[peer] = action.message.client
        return bytes(action.message.body["proof"])

    def message(
        self, peer: bytes, kind: Kind, session: int = 0, body: Any = None, **more: Any
    ) -> Message:
        self.last_request += 1
        payload = b"" if kind in (Kind.SPAWN, Kind.WRITE, Kind.APPEND) else None
        body = COMMANDS.get(kind, {}) if body is None else body
        return Message(
            kind,
            self.clients[peer],
            self.last_request,
            session,
            EPOCH,
            0.0,
            body,
            payload,
        )._replace(**more)

    def ask(
        self, peer: bytes, kind: Kind, session: int = 0, body: Any = None, **more: Any
    ) -> list[Action]:
        """A client's command with a fresh number."""
        message = self.message(peer, kind, session, body, **more)
        return self.happen(FromClient(peer, message))

    def spawn(self, peer: bytes = A, **changes: Any) -> tuple[int, int, Message]:
        """An accepted spawn: session, worker, START."""
        actions = self.ask(peer, Kind.SPAWN, body=SPAWN | changes)
        (told,) = [a for a in actions if isinstance(a, ToWorker)]
        assert told.message.kind is Kind.START
        return told.message.session, told.worker, told.message

    def started(self, peer: bytes = A, **changes: Any) -> tuple[int, int]:
        """A session whose child runs, and its worker."""
        session, worker, start = self.spawn(peer, **changes)
        answer, *_ = self.say(worker, start.reply(Kind.REPLY, {"pid": 5}))
        assert isinstance(answer, ToClient)
        assert answer.message.session == session
        return session, worker

    def say(self, worker: int, message: Message) -> list[Action]:
        """Something that a worker says."""
        return self.happen(FromWorker(worker, message))

    def push(
        self, worker: int, kind: Kind, session: int, request: int = 0
    ) -> list[Action]:
        body = PUSHED.get(kind, {})
        client = self.clients[A] if request else 0
        return self.say(worker, Message(kind, client, request, session, EPOCH, 0, body))

    def idle(self, worker: int, session: int) -> list[Action]:
        return self.push(worker, Kind.IDLE, session)

    def state(self, session: int) -> State:
        return self.router.sessions[session].state


@pytest.fixture
def world() -> World:
    """A private broker with one client."""
    world = World()
    world.hello(A)
    return world


@pytest.fixture
def shared() -> World:
    """A shared broker: A and B have different owner keys, OPERATOR opens all."""
    world = World(shared=True)
    world.hello(A)
    world.hello(B, OTHER)
    world.hello(OPERATOR, b"third", operator=True)
    return world


def refusal(actions: list[Action]) -> errors.EngineError:
    """The error that is the only answer."""
    (action,) = actions
    assert isinstance(action, ToClient)
    assert action.message.kind is Kind.ERROR
    return errors.decode(action.message.body["code"], action.message.body["values"])


def told(actions: list[Action]) -> list[tuple[int, Kind]]:
    """What workers were told."""
    return [(a.worker, a.message.kind) for a in actions if isinstance(a, ToWorker)]


def answers(actions: list[Action]) -> list[tuple[bytes, Kind, int]]:
    """What clients were answered."""
    return [
        (a.peer, a.message.kind, a.message.request)
        for a in actions
        if isinstance(a, ToClient)
    ]


def released(actions: list[Action]) -> list[int]:
    """The workers that were told to end their tree and forget it."""
    return [
        a.worker
        for a in actions
        if isinstance(a, ToWorker)
        and a.message.kind is Kind.KILL
        and a.message.body["release"]
    ]


# Hello


def test_a_welcome_tells_number_epoch_and_clock() -> None:
    world = World()
    (action,) = world.happen(Hello(A, OWNER, False, 0.0, 9))
    assert isinstance(action, ToClient)
    body = {"clock": 50.0, "grace": 0.0, "proof": action.message.body["proof"]}
    message = Message(Kind.WELCOME, 1, 9, 0, EPOCH, 0.0, body)
    assert action == ToClient(A, message)


def test_a_second_hello_is_refused(world: World) -> None:
    error = refusal(world.happen(Hello(A, OTHER, True, 0.0, 9)))
    assert isinstance(error, errors.ProtocolError)
    assert world.router.clients[A].owner == OWNER
    assert not world.router.clients[A].operator


def test_nothing_is_done_before_a_hello(world: World) -> None:
    actions = world.happen(FromClient(B, Message(Kind.LIST, 1, 5, 0, EPOCH)))
    assert isinstance(refusal(actions), errors.ProtocolError)


def test_the_end_of_a_stranger_is_nothing(world: World) -> None:
    assert world.happen(ClientGone(B)) == []
    assert world.happen(LeaseRenewed(B)) == []


# What is refused before it is looked at


def test_another_clients_number_is_refused(shared: World) -> None:
    session, _ = shared.started()
    for kind in (Kind.KILL, Kind.LIST):
        actions = shared.ask(B, kind, session, client=shared.clients[A])
        assert isinstance(refusal(actions), errors.ProtocolError)


@pytest.mark.parametrize("kind", [Kind.LIST, Kind.KILL])
def test_a_command_for_another_broker_is_refused(world: World, kind: Kind) -> None:
    session, _ = world.started()
    actions = world.ask(A, kind, session, epoch=EPOCH + 1)
    assert isinstance(refusal(actions), errors.BrokerLost)


def test_a_late_command_is_refused_and_not_forwarded(world: World) -> None:
    session, worker = world.started()
    error = refusal(world.ask(A, Kind.SIGNAL, session, deadline=49.9))
    assert isinstance(error, TimedOut)
    assert told(world.ask(A, Kind.SIGNAL, session, deadline=50.1)) == [
        (worker, Kind.SIGNAL)
    ]


@pytest.mark.parametrize(
    "kind", [Kind.HELLO, Kind.START, Kind.REPLY, Kind.IDLE, Kind.FORK, Kind.GONE]
)
def test_what_only_others_may_say_is_refused(world: World, kind: Kind) -> None:
    error = refusal(world.ask(A, kind, world.started()[0]))
    assert isinstance(error, errors.ProtocolError)
    assert kind.name in str(error)


def test_a_refusal_that_nobody_wants_is_not_sent(world: World) -> None:
    assert world.ask(A, Kind.KILL, 4711, request=0) == []
    assert world.ask(A, Kind.LIST, request=0, epoch=EPOCH + 1) == []


# Spawn


def test_a_spawn_forks_a_worker_and_starts_on_it(world: World) -> None:
    fork, start = world.ask(A, Kind.SPAWN, body=SPAWN)
    assert fork == Fork(1)
    assert isinstance(start, ToWorker)
    assert start.worker == 1
    assert start.message == Message(
        Kind.START,
        world.clients[A],
        world.last_request,
        FIRST_SESSION,
        EPOCH,
        0.0,
        {"reader": None, "chunks": 8, "bytes": 4096, "release": False, "memo": b""},
        b"",
    )
    assert world.state(FIRST_SESSION) is State.STARTING


def test_a_spawn_takes_the_worker_that_was_used_last() -> None:
    world = World(warm=2)
    assert world.happen(PoolReady()) == [Fork(1), Fork(2)]
    world.hello(A)
    actions = world.ask(A, Kind.SPAWN, body=SPAWN)
    assert told(actions) == [(2, Kind.START)]
    assert actions[-1] == Fork(3)
    assert world.router.idle == [1, 3]


def forks_of(world: World, token: str) -> int:
    """How many workers are forked at a spawn."""
    actions = world.ask(A, Kind.SPAWN, body=SPAWN | {"token": token})
    return sum(isinstance(action, Fork) for action in actions)


def test_workers_are_forked_ahead_once_half_of_them_are_taken() -> None:
    world = World(warm=4)
    assert len(world.happen(PoolReady())) == 4
    world.hello(A)
    assert [forks_of(world, token) for token in "abcd"] == [0, 2, 0, 2]


def test_more_are_forked_ahead_while_there_are_ever_too_few() -> None:
    world = World(warm=4, capacity=99)
    world.happen(PoolReady())
    world.hello(A)
    forks = []
    for token in "abcd":
        world.router.idle.clear()  # as if many had come at once
        forks.append(forks_of(world, token))
    assert forks == [1 + 8, 1 + 16, 1 + 16, 1 + 16]


def test_once_they_are_idle_again_no_more_are_forked_ahead_than_before() -> None:
    world = World(warm=1)
    world.happen(PoolReady())
    world.hello(A)
    started = [world.started(token=token) for token in "abcd"]
    world.router.idle.clear()
    started.append(world.started(token="e"))
    assert world.router.ahead == 2
    for session, worker in started:
        world.idle(worker, session)
    assert world.router.ahead == 1


def test_as_many_are_forked_ahead_until_so_many_are_idle() -> None:
    world = World(warm=4)
    world.hello(A)
    session, worker = world.started(A)
    world.router.idle.clear()
    assert world.router.ahead == 8
    world.idle(worker, session)
    assert world.router.ahead == 8


def test_the_next_deadline_stays_until_something_happens(world: World) -> None:
    world.spawn()
    due = world.router.next_deadline()
    assert due == world.router.next_deadline() == world.now + START_TIMEOUT
    world.hello(b"another")
    assert world.router.next_deadline() == due


def test_a_start_that_succeeds_runs(world: World) -> None:
    session, worker, start = world.spawn()
    asked = world.last_request
    actions = world.say(worker, start.reply(Kind.REPLY, {"pid": 5}))
    assert answers(actions) == [(A, Kind.REPLY, asked)]
    assert world.state(session) is State.RUNNING


def test_a_start_that_fails_leaves_no_session(world: World) -> None:
    session, worker, start = world.spawn()
    code, values = errors.encode(errors.SpawnFailed(2, "exec", "/x"))
    body = {"code": code, "values": values}
    error = refusal(world.say(worker, start.reply(Kind.ERROR, body)))
    assert isinstance(error, errors.SpawnFailed)
    assert world.router.sessions == {}
    assert world.idle(worker, session) == []
    assert world.router.idle == [worker]


def test_a_start_that_fails_answers_whatever_else_was_asked(shared: World) -> None:
    session, worker, start = shared.spawn()
    asked = shared.last_request
    shared.ask(OPERATOR, Kind.SNAPSHOT, session)
    error = start.reply(Kind.ERROR, {"code": "spawn-failed", "values": [2, "exec", ""]})
    assert sorted(answers(shared.say(worker, error))) == [
        (A, Kind.ERROR, asked),
        (OPERATOR, Kind.ERROR, shared.last_request),
    ]


def test_a_worker_that_cannot_be_forked_fails_the_start(world: World) -> None:
    _, worker, _ = world.spawn()
    retire, answer = world.happen(WorkerGone(worker, 11, True))
    assert retire == Retire(worker)
    error = refusal([answer])
    assert isinstance(error, errors.SpawnFailed)
    assert error.errno == 11
    assert world.router.sessions == {}


def test_a_worker_that_dies_while_starting_fails_the_start(world: World) -> None:
    _, worker, _ = world.spawn()
    _, answer = world.happen(WorkerGone(worker, 0, True))
    assert isinstance(refusal([answer]), errors.WorkerLost)
    assert world.router.sessions == {}


def test_a_kill_while_starting_is_proven_by_the_workers_end(shared: World) -> None:
    session, worker, _ = shared.spawn()
    shared.ask(OPERATOR, Kind.KILL, session)
    actions = shared.happen(WorkerGone(worker, 0, True))
    assert (OPERATOR, Kind.REPLY, shared.last_request) in answers(actions)


def test_a_broker_that_is_full_says_so() -> None:
    world = World(capacity=1)
    world.hello(A)
    world.spawn()
    error = refusal(world.ask(A, Kind.SPAWN, body=SPAWN | {"token": "u"}))
    assert isinstance(error, errors.CapacityExceeded)
    assert error.retry_after == 1.0


def test_children_that_stay_need_a_shared_broker(world: World, shared: World) -> None:
    body = SPAWN | {"kill_on_drop": False}
    error = refusal(world.ask(A, Kind.SPAWN, body=body))
    assert isinstance(error, errors.InvalidRequest)
    assert error.field == "kill_on_drop"
    assert told(shared.ask(A, Kind.SPAWN, body=body)) == [(1, Kind.START)]


# Room


def spawning(world: World, peer: bytes = A, **changes: Any) -> tuple[int, list[int]]:
    """Ask for a spawn; its request, and the sessions that were started by it."""
    changes = {"token": str(world.last_request)} | changes
    actions = world.ask(peer, Kind.SPAWN, body=SPAWN | changes)
    return world.last_request, starts(actions)


def starts(actions: list[Action]) -> list[int]:
    """The requests whose START left for a worker."""
    return [
        a.message.request
        for a in actions
        if isinstance(a, ToWorker) and a.message.kind is Kind.START
    ]


def full(actions: list[Action]) -> errors.CapacityExceeded:
    error = refusal(actions)
    assert isinstance(error, errors.CapacityExceeded)
    return error


SCOPE: dict[str, Any] = {"scope": "x", "scope_capacity": 1}


@pytest.mark.parametrize("limit", [SCOPE, {"client_capacity": 1}])
def test_s5_a_full_scope_or_client_refuses_and_others_do_not_care(
    shared: World, limit: dict[str, Any]
) -> None:
    shared.started(A, **limit)
    body = SPAWN | limit | {"token": "u"}
    assert full(shared.ask(A, Kind.SPAWN, body=body)).retry_after == 1.0
    shared.started(A, token="v", scope="y")
    shared.started(B, **limit)


def test_s5_an_end_that_was_told_makes_room_before_its_session_goes(
    world: World,
) -> None:
    session, worker = world.started(A, **SCOPE)
    asked, started = spawning(world, queue=5.0, **SCOPE)
    assert started == []
    assert starts(world.push(worker, Kind.EXITED, session)) == [asked]


def test_s5_an_end_that_nobody_was_told_of_takes_room(shared: World) -> None:
    session, worker = shared.started(A, kill_on_drop=False, **SCOPE)
    shared.happen(ClientGone(A))
    shared.push(worker, Kind.EXITED, session)
    shared.hello(b"again")
    full(shared.ask(b"again", Kind.SPAWN, body=SPAWN | SCOPE | {"token": "u"}))
    asked, started = spawning(shared, b"again", queue=5.0, **SCOPE)
    assert started == []
    assert starts(shared.ask(b"again", Kind.KILL, session, RELEASE)) == [asked]


@pytest.mark.parametrize("how", ["released and ended", "released", "lost", "captured"])
def test_s5_what_is_over_makes_room(world: World, how: str) -> None:
    reader = 500 if how == "captured" else None
    session, worker = world.started(A, reader=reader, release=bool(reader), **SCOPE)
    asked, _ = spawning(world, queue=5.0, **SCOPE)
    if how == "captured":
        actions = world.push(worker, Kind.CLOSED, session, 500)
    elif how == "lost":
        actions = world.happen(WorkerGone(worker, 0, True))
    else:
        assert starts(world.ask(A, Kind.KILL, session, RELEASE)) == []
        kind = Kind.IDLE if how == "released" else Kind.EXITED
        actions = world.push(worker, kind, session)
    assert starts(actions) == [asked]


def test_s5_the_brokers_room_is_what_has_a_worker() -> None:
    world = World(capacity=1)
    world.hello(A)
    session, worker = world.started(A)
    asked, _ = spawning(world, queue=5.0)
    world.ask(A, Kind.KILL, session, RELEASE)
    assert starts(world.push(worker, Kind.EXITED, session)) == []
    assert starts(world.idle(worker, session)) == [asked]


def test_what_is_lost_takes_no_room_in_the_broker() -> None:
    world = World(capacity=2)
    world.hello(A)
    first, _ = world.started(A)
    second, _ = world.started(A, token="u")
    full(world.ask(A, Kind.SPAWN, body=SPAWN | {"token": "v"}))
    asked, _ = spawning(world, queue=5.0)
    assert starts(world.happen(PoolGone(proven=True))) == [asked]
    third, _ = world.started(A, token="w")
    full(world.ask(A, Kind.SPAWN, body=SPAWN | {"token": "x"}))
    assert [world.state(n) for n in (first, second)] == [State.LOST, State.LOST]
    assert world.state(third) is State.RUNNING


def test_s5_whoever_waits_is_served_in_order_at_each_limit(world: World) -> None:
    session, worker = world.started(A, **SCOPE)
    other, second = world.started(A, token="o", scope="y", scope_capacity=1)
    first, _ = spawning(world, queue=5.0, **SCOPE)
    third, _ = spawning(world, queue=5.0, **SCOPE)
    y, _ = spawning(world, queue=5.0, scope="y", scope_capacity=1)
    assert starts(world.push(second, Kind.EXITED, other)) == [y]
    assert starts(world.push(worker, Kind.EXITED, session)) == [first]
    assert len(world.router.line) == 1
    worker = world.router.sessions[FIRST_SESSION + 3].worker
    assert starts(world.push(worker, Kind.EXITED, FIRST_SESSION + 3)) == [third]


def test_s5_who_is_content_with_a_fuller_scope_overtakes_nobody(two: World) -> None:
    session, worker = two.started(A, **SCOPE)
    first, _ = spawning(two, A, queue=5.0, **SCOPE)
    wider = SCOPE | {"scope_capacity": 5}
    second, started = spawning(two, AGAIN, queue=5.0, **wider)
    assert started == []
    assert starts(two.push(worker, Kind.EXITED, session)) == [first, second]


def test_s5_a_large_wish_is_not_starved_by_small_ones() -> None:
    """Whoever waits for its scope, then for the broker, is the next of the broker."""
    world = World(capacity=2)
    world.hello(A)
    session, worker = world.started(A, **SCOPE)
    other, second = world.started(A, token="o")
    large, _ = spawning(world, queue=5.0, **SCOPE)
    small, _ = spawning(world, queue=5.0)
    assert starts(world.push(worker, Kind.EXITED, session)) == []
    world.ask(A, Kind.KILL, other, RELEASE)
    assert starts(world.idle(second, other)) == [large]
    assert next(iter(world.router.line.waiting.values())).message.request == small


def test_s5_a_spawn_that_waited_long_enough_is_refused(world: World) -> None:
    world.started(A, **SCOPE)
    asked, _ = spawning(world, queue=5.0, **SCOPE)
    assert world.router.next_deadline() == 55.0
    world.now = 54.9
    assert world.happen(Tick()) == []
    world.now = 55.0
    actions = world.happen(Tick())
    assert answers(actions) == [(A, Kind.ERROR, asked)]
    assert "the scope 'x'" in str(full(actions))
    assert world.router.next_deadline() is None


def test_s5_a_refused_spawn_may_be_asked_again(world: World) -> None:
    session, worker = world.started(A, **SCOPE)
    body = SPAWN | SCOPE | {"token": "u"}
    full(world.ask(A, Kind.SPAWN, body=body))
    world.push(worker, Kind.EXITED, session)
    assert starts(world.ask(A, Kind.SPAWN, body=body)) == [world.last_request]


def test_s5_a_waiting_spawn_dies_with_its_client(shared: World) -> None:
    shared.hello(b"again")
    session, worker = shared.started(A, kill_on_drop=False, **SCOPE)
    spawning(shared, b"again", queue=5.0, **SCOPE)
    shared.happen(ClientGone(b"again"))
    assert len(shared.router.line) == 0
    assert starts(shared.push(worker, Kind.EXITED, session)) == []


def test_s5_a_waiting_spawn_dies_with_its_clients_lease() -> None:
    world = World()
    world.hello(A, lease=10.0)
    world.started(A, **SCOPE)
    asked, _ = spawning(world, queue=50.0, **SCOPE)
    world.now += 10.0
    assert (A, Kind.ERROR, asked) in answers(world.happen(Tick()))
    assert len(world.router.line) == 0


def test_s5_a_waiting_spawn_that_is_cancelled_never_starts(world: World) -> None:
    session, worker = world.started(A, **SCOPE)
    asked, _ = spawning(world, queue=5.0, token="u", **SCOPE)
    body = {"sessions": [], "tokens": ["u"]}
    drop = world.ask(A, Kind.DROP, body=body)
    assert answers(drop) == [
        (A, Kind.ERROR, asked),
        (A, Kind.REPLY, world.last_request),
    ]
    assert starts(world.push(worker, Kind.EXITED, session)) == []
    again = refusal(world.ask(A, Kind.SPAWN, body=SPAWN | {"token": "u"}))
    assert isinstance(again, errors.InvalidRequest)


def test_s5_one_that_goes_from_the_middle_of_the_line_lets_others_pass() -> None:
    world = World(capacity=2)
    world.hello(A)
    world.started(A, **SCOPE)
    other, worker = world.started(A, token="o")
    spawning(world, queue=5.0, token="u", **SCOPE)
    world.ask(A, Kind.KILL, other, RELEASE)
    world.idle(worker, other)
    behind, started = spawning(world, queue=5.0)
    assert started == [behind]  # the first one waits for its scope, not for the broker


def test_s16_a_waiting_spawn_asked_twice_starts_once_and_answers_both(
    world: World,
) -> None:
    session, worker = world.started(A, **SCOPE)
    first, _ = spawning(world, queue=5.0, token="u", **SCOPE)
    second, _ = spawning(world, queue=5.0, token="u", **SCOPE)
    actions = world.push(worker, Kind.EXITED, session)
    (start,) = [a for a in actions if isinstance(a, ToWorker)]
    answered = world.say(start.worker, start.message.reply(Kind.REPLY, {"pid": 5}))
    assert sorted(answers(answered)) == [
        (A, Kind.REPLY, first),
        (A, Kind.REPLY, second),
    ]


# Eviction

EVICT: dict[str, Any] = {"on_full": "evict"}
TEN: dict[str, Any] = {"scope": "x", "scope_capacity": 10} | EVICT


def ten(world: World, peer: bytes = A, **changes: Any) -> list[tuple[int, int]]:
    """Ten sessions, used one after the other."""
    made = []
    for number in range(10):
        world.now += 1.0
        made.append(world.started(peer, token=f"ten {number}", **TEN | changes))
    return made


def test_s6_the_least_recently_used_one_goes_and_its_log_stays(world: World) -> None:
    stream = watch(world)
    made = ten(world)
    (first, _), (second, two) = made[:2]
    world.now += 1.0
    world.ask(A, Kind.SNAPSHOT, second)  # to look at it is no use
    world.ask(A, Kind.WRITE, first)
    said = world.ask(A, Kind.SPAWN, body=SPAWN | TEN)
    asked = world.last_request
    assert events(said, stream) == ["evicted"]
    kill = kills(said)[two]
    assert kill.body == KILL | {"cause": "evicted", "timeout": DROP_TIMEOUT}
    done = world.push(two, Kind.EXITED, second)
    assert (A, Kind.EXITED, 0) in answers(done)
    assert starts(done) == [asked]
    assert world.say(two, kill.reply(Kind.REPLY, {"receipt": [1, 1, []]})) == []
    assert world.state(second) is State.EXITED
    assert second not in world.router.due


def test_s6_the_most_recently_used_ones_stay(world: World) -> None:
    limit = TEN | {"scope_capacity": 8}
    for number in range(8):
        world.started(token=str(number), **limit)
    full(world.ask(A, Kind.SPAWN, body=SPAWN | limit))
    asked = world.ask(A, Kind.SPAWN, body=SPAWN | limit | {"queue": 5.0})
    assert asked == []
    assert world.router.next_deadline() == world.now + 5.0


def test_s6_two_spawns_evict_two(world: World) -> None:
    made = ten(world)
    for number in range(2):
        said = world.ask(A, Kind.SPAWN, body=SPAWN | TEN | {"token": str(number)})
        assert told(said) == [(made[number][1], Kind.KILL)]
    full(world.ask(A, Kind.SPAWN, body=SPAWN | TEN | {"token": "3"}))
    assert world.router.next_deadline() == world.now + DROP_TIMEOUT + HUNG_MARGIN
    world.now += ROOM_TIMEOUT
    late = [k for _, k, request in answers(world.happen(Tick())) if request]
    assert late == [Kind.ERROR, Kind.ERROR]


def test_s6_what_ended_goes_before_what_lives() -> None:
    world = World(shared=True, capacity=20)
    world.hello(A)
    world.hello(AGAIN)
    made = ten(world, AGAIN, kill_on_drop=False)
    world.happen(ClientGone(AGAIN))
    ended, worker = made[1]
    world.push(worker, Kind.EXITED, ended)  # nobody was told: it takes room
    said = world.ask(A, Kind.SPAWN, body=SPAWN | TEN)
    assert released(said) == [worker]
    assert starts(said) == [world.last_request]


def test_s6_a_full_broker_evicts_of_the_same_key_and_frees_a_worker() -> None:
    world = World(capacity=10)
    world.hello(A)
    world.hello(B, OTHER)
    unlimited = {"scope_capacity": None}
    (first, one), *_ = ten(world, B, **unlimited)
    full(world.ask(A, Kind.SPAWN, body=SPAWN | EVICT))
    said = world.ask(B, Kind.SPAWN, body=SPAWN | EVICT)
    asked = world.last_request
    assert released(said) == [one]
    (kill,) = kills(said).values()
    assert kill.body["cause"] == "evicted"
    assert starts(world.push(one, Kind.EXITED, first)) == []
    gone = world.idle(one, first)
    assert answers(gone) == [(B, Kind.ERROR, 0)]  # behind its end
    assert starts(gone) == [asked]


def test_s6_one_session_may_make_room_at_several_limits(world: World) -> None:
    limits = TEN | {"client_capacity": 10}
    world.router.capacity = Capacity(20, "descriptors")
    made = ten(world, client_capacity=10)
    said = world.ask(A, Kind.SPAWN, body=SPAWN | limits)
    assert told(said) == [(made[0][1], Kind.KILL)]


# Retention


def test_s4_an_ended_session_is_retained_after_30_seconds(world: World) -> None:
    session, worker = world.started()
    world.push(worker, Kind.EXITED, session)
    assert world.router.next_deadline() == world.now + READABLE
    world.now += READABLE
    assert world.happen(Tick()) == []
    assert len(world.router.retention) == 1
    assert world.router.next_deadline() is None
    world.ask(A, Kind.KILL, session, RELEASE)
    assert len(world.router.retention) == 0


def test_s4_the_oldest_goes_when_too_many_are_retained(
    shared: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "RETAINED", 2)
    made = []
    for number in range(3):
        session, worker = shared.started(token=str(number))
        shared.push(worker, Kind.EXITED, session)
        made.append(worker)
        shared.now += 1.0
    other, foreign = shared.started(B)
    shared.push(foreign, Kind.EXITED, other)
    shared.now += READABLE - 2.0
    assert released(shared.happen(Tick())) == []
    shared.now += 2.0
    assert released(shared.happen(Tick())) == made[:1]
    assert len(shared.router.retention) == 3


def test_an_owner_is_told_when_its_session_had_to_go(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "RETAINED", 0)
    session, worker = world.started()
    world.push(worker, Kind.EXITED, session)
    world.now += READABLE
    assert released(world.happen(Tick())) == [worker]
    (gone,) = world.idle(worker, session)
    assert isinstance(gone, ToClient)
    assert (gone.message.session, gone.message.request) == (session, 0)
    assert isinstance(refusal([gone]), errors.SessionNotFound)


def test_an_owner_is_not_told_of_what_it_has_given_up_itself(world: World) -> None:
    session, worker = world.started()
    body = {"sessions": [session], "tokens": []}
    world.ask(A, Kind.DROP, body=body, request=0)
    assert world.idle(worker, session) == []


def test_s4_an_end_that_nobody_was_told_of_is_retained_once_it_was(
    two: World,
) -> None:
    session, worker = two.started(A, kill_on_drop=False)
    two.happen(ClientGone(A))
    two.push(worker, Kind.EXITED, session)
    two.now += READABLE
    two.happen(Tick())
    assert len(two.router.retention) == 0
    attach(two, AGAIN, session)
    assert len(two.router.retention) == 1


def test_s5_what_is_retained_makes_room_when_the_broker_is_full() -> None:
    world = World(capacity=1)
    world.hello(A)
    session, worker = world.started()
    world.push(worker, Kind.EXITED, session)
    body = SPAWN | {"token": "u"}
    full(world.ask(A, Kind.SPAWN, body=body))
    world.now += READABLE
    world.happen(Tick())
    assert released(world.ask(A, Kind.SPAWN, body=body)) == [worker]
    assert starts(world.idle(worker, session)) == [world.last_request]


# Spawn again


def test_a_spawn_asked_twice_starts_once_and_answers_both(world: World) -> None:
    _, worker, start = world.spawn()
    first = world.last_request
    assert world.ask(A, Kind.SPAWN, body=SPAWN) == []
    actions = world.say(worker, start.reply(Kind.REPLY, {"pid": 5}))
    assert sorted(answers(actions)) == [
        (A, Kind.REPLY, first),
        (A, Kind.REPLY, world.last_request),
    ]


def test_a_spawn_asked_again_is_answered_as_before(world: World) -> None:
    session, _ = world.started()
    (action,) = world.ask(A, Kind.SPAWN, body=SPAWN)
    assert isinstance(action, ToClient)
    assert action.message.request == world.last_request
    assert action.message.session == session
    assert action.message.body == {"pid": 5}
    assert world.ask(A, Kind.SPAWN, body=SPAWN, request=0) == []


def opened(actions: list[Action]) -> list[tuple[int, int]]:
    """The readers for which a capture was opened, each with its client."""
    wanted = OPEN | {"capture": True}
    found = [a.message for a in actions if isinstance(a, ToWorker)]
    found = [message for message in found if message.kind is Kind.OPEN]
    assert all(message.body == wanted for message in found)
    return [(message.client, message.request) for message in found]


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("first", [None, 500])
def test_a_run_asked_again_gets_its_output_too(
    world: World, first: int | None, answered: bool
) -> None:
    release = first is not None
    session, worker, start = world.spawn(reader=first, release=release)
    number = world.clients[A]
    if answered:
        world.say(worker, start.reply(Kind.REPLY, {"pid": 5}))
    again = world.ask(A, Kind.SPAWN, body=SPAWN | {"reader": 600, "release": True})
    assert opened(again) == [(number, 600)]
    assert told(again) == [(worker, Kind.OPEN)]
    for reader in filter(None, [first, 600]):
        closed = world.push(worker, Kind.CLOSED, session, reader)
        assert answers(closed) == [(A, Kind.CLOSED, reader)]
    assert answers(world.push(worker, Kind.CLOSED, session, 600)) == []


def test_a_capture_that_is_open_is_not_opened_again(world: World) -> None:
    world.spawn(reader=500)
    assert world.ask(A, Kind.SPAWN, body=SPAWN | {"reader": 500}) == []


def test_a_run_of_a_client_that_is_gone_gives_the_next_one_all_its_output() -> None:
    world = World(shared=True)
    world.hello(A)
    world.hello(B)
    world.started(A, reader=500, detach_ttl=60.0)
    assert owned(refusal(world.ask(B, Kind.SPAWN, body=SPAWN | {"reader": 600})))
    world.happen(ClientGone(A))
    actions = world.ask(B, Kind.SPAWN, body=SPAWN | {"reader": 600})
    assert opened(actions) == [(world.clients[B], 600)]


@pytest.mark.parametrize("first", [None, 500])
def test_each_run_that_waits_under_one_token_gets_the_output(
    two: World, first: int | None
) -> None:
    session, worker = two.started(A, **SCOPE)
    waits = {"token": "u", "queue": 5.0, **SCOPE}
    spawning(two, A, reader=first, **waits)
    spawning(two, A, reader=600, **waits)
    spawning(two, A, **waits)
    spawning(two, AGAIN, reader=700, **waits)  # it will not be the owner
    actions = two.push(worker, Kind.EXITED, session)
    (started,) = {a.worker for a in actions if isinstance(a, ToWorker)}
    assert told(actions) == [(started, Kind.START), (started, Kind.OPEN)]
    assert opened(actions) == [(two.clients[A], 600)]


def test_a_run_whose_first_capture_was_stopped_ends_with_another(world: World) -> None:
    stream = watch(world)
    session, worker = world.started(reader=500, release=True)
    world.ask(A, Kind.SPAWN, body=SPAWN | {"reader": 600, "release": True})
    world.ask(A, Kind.STOP, session, {"target": 500})
    said = world.push(worker, Kind.CLOSED, session, 600)
    assert events(said, stream) == ["exited", "closed"]


def test_tokens_of_other_owners_are_other_tokens(shared: World) -> None:
    first, _ = shared.started(A)
    second, _ = shared.started(B)
    assert first != second


def test_a_spawn_whose_client_is_gone_is_answered_to_the_next_one() -> None:
    world = World(shared=True)
    world.hello(A)
    world.hello(B)
    session, worker, start = world.spawn(A, kill_on_drop=False)
    world.happen(ClientGone(A))
    world.ask(B, Kind.SPAWN, body=SPAWN)
    first = world.last_request
    actions = world.say(worker, start.reply(Kind.REPLY, {"pid": 5}))
    assert answers(actions) == [(B, Kind.REPLY, first)]
    assert answers(world.ask(B, Kind.SPAWN, body=SPAWN)) == [
        (B, Kind.REPLY, world.last_request)
    ]
    assert world.state(session) is State.RUNNING


def test_s16_whoever_gets_the_answer_to_a_spawn_is_its_owner() -> None:
    world = World(shared=True)
    world.hello(A)
    world.hello(B)
    session, worker, start = world.spawn(A, detach_ttl=10.0)
    world.happen(ClientGone(A))
    world.ask(B, Kind.SPAWN, body=SPAWN)
    assert world.router.next_deadline() == world.router.due[session]  # no ttl runs
    world.say(worker, start.reply(Kind.REPLY, {"pid": 5}))
    pushed = answers(world.push(worker, Kind.EXITED, session))
    assert pushed == [(B, Kind.EXITED, 0)]


def test_s16_who_asks_again_when_it_is_over_hears_how_it_ended() -> None:
    world = World(shared=True)
    world.hello(A)
    world.hello(B)
    session, worker = world.started(A, detach_ttl=10.0)
    world.happen(ClientGone(A))
    world.push(worker, Kind.EXITED, session)
    assert answers(world.ask(B, Kind.SPAWN, body=SPAWN)) == [
        (B, Kind.REPLY, world.last_request),
        (B, Kind.EXITED, 0),
    ]
    assert world.router.sessions[session].reported


def test_s16_what_a_living_client_has_started_is_not_anothers_by_asking_again() -> None:
    world = World(shared=True)
    world.hello(A)
    world.hello(B)
    world.started(A)
    assert owned(refusal(world.ask(B, Kind.SPAWN, body=SPAWN)))


@pytest.mark.parametrize("how", ["dropped", "over", "lost", "never seen"])
def test_a_token_that_is_over_starts_nothing(world: World, how: str) -> None:
    if how == "never seen":
        world.ask(A, Kind.DROP, body={"sessions": [], "tokens": ["t"]})
    else:
        session, worker = world.started()
        if how == "lost":
            world.happen(WorkerGone(worker, 0, True))
        else:
            world.ask(A, Kind.DROP, body={"sessions": [session], "tokens": []})
        if how == "over":
            world.idle(worker, session)
    error = refusal(world.ask(A, Kind.SPAWN, body=SPAWN))
    assert isinstance(error, errors.InvalidRequest)
    assert error.field == "request_id"


def test_tombstones_are_bounded_and_living_tokens_stay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "TOMBSTONES", 10)
    world.started(token="living")
    for number in range(50):
        body = {"sessions": [], "tokens": [f"dead-{number}"]}
        world.ask(A, Kind.DROP, body=body)
    assert len(world.router.tokens) == 11
    assert told(world.ask(A, Kind.SPAWN, body=SPAWN | {"token": "living"})) == []
    assert told(world.ask(A, Kind.SPAWN, body=SPAWN | {"token": "dead-49"})) == []


# Commands of a session


@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize("state", ["starting", "running", "exited", "closed"])
def test_commands_go_to_the_worker_as_they_are(
    world: World, state: str, kind: Kind
) -> None:
    session, worker, start = world.spawn()
    if state != "starting":
        world.say(worker, start.reply(Kind.REPLY, {"pid": 5}))
    if state in ("exited", "closed"):
        world.push(worker, Kind.EXITED, session)
    if state == "closed":
        world.push(worker, Kind.CLOSED, session)
    assert world.state(session).value == state
    message = world.message(A, kind, session)
    assert world.happen(FromClient(A, message)) == [ToWorker(worker, message)]
    (passed,) = world.say(worker, message.reply(Kind.REPLY))
    assert answers([passed]) == [(A, Kind.REPLY, world.last_request)]
    assert world.router.sessions[session].pending.keys() == (
        {(1, start.request)} if state == "starting" else set()
    )


@pytest.mark.parametrize("kind", [*COMMANDS, Kind.STOP])
def test_a_leaving_session_is_not_found(world: World, kind: Kind) -> None:
    session, worker = world.started()
    assert told(world.ask(A, Kind.KILL, session, RELEASE)) == [(worker, Kind.KILL)]
    assert world.state(session) is State.LEAVING
    body = {"target": 1} if kind is Kind.STOP else None
    error = refusal(world.ask(A, kind, session, body))
    assert isinstance(error, errors.SessionNotFound)


def test_a_leaving_session_is_released_by_its_owner_until_that_is_proven(
    shared: World,
) -> None:
    session, worker = shared.started()
    shared.ask(A, Kind.KILL, session, RELEASE)
    again = shared.message(A, Kind.KILL, session, RELEASE)
    assert told(shared.happen(FromClient(A, again))) == [(worker, Kind.KILL)]
    error = refusal(shared.ask(OPERATOR, Kind.KILL, session, RELEASE))
    assert isinstance(error, errors.SessionNotFound)
    proof = again.reply(Kind.REPLY, {"receipt": [1, 1, []]})
    assert answers(shared.say(worker, proof)) == [(A, Kind.REPLY, again.request)]
    assert shared.state(session) is State.LEAVING
    shared.idle(worker, session)
    assert shared.router.sessions == {}


@pytest.mark.parametrize("kind", [k for k in COMMANDS if k is not Kind.KILL])
def test_a_lost_session_says_so(world: World, kind: Kind) -> None:
    session, worker = world.started()
    world.happen(WorkerGone(worker, 0, True))
    assert world.state(session) is State.LOST
    assert isinstance(refusal(world.ask(A, kind, session)), errors.WorkerLost)


def test_a_lost_session_is_killed_and_can_be_released(world: World) -> None:
    session, worker = world.started()
    world.happen(WorkerGone(worker, 0, True))
    for body in (KILL, RELEASE):
        (action,) = world.ask(A, Kind.KILL, session, body)
        assert isinstance(action, ToClient)
        assert action.message.body == {"receipt": [0, 0, []]}
    assert world.router.sessions == {}


def test_a_lost_session_with_survivors_is_not_called_killed(world: World) -> None:
    session, worker = world.started()
    world.happen(WorkerGone(worker, 0, False))
    for body in (KILL, RELEASE):
        error = refusal(world.ask(A, Kind.KILL, session, body))
        assert isinstance(error, errors.WorkerLost)
    assert world.router.sessions == {}


def test_the_loss_of_a_worker_answers_all_that_wait_and_tells_the_owner(
    world: World,
) -> None:
    session, worker = world.started()
    world.ask(A, Kind.POLL, session)
    poll = world.last_request
    world.ask(A, Kind.KILL, session)
    kill = world.last_request
    world.ask(A, Kind.WRITE, session, request=0)
    actions = world.happen(WorkerGone(worker, 0, True))
    assert actions[0] == Retire(worker)
    assert sorted(answers(actions)) == [
        (A, Kind.REPLY, kill),
        (A, Kind.ERROR, 0),
        (A, Kind.ERROR, poll),
    ]


def test_a_kill_whose_worker_leaves_survivors_is_an_error(world: World) -> None:
    session, worker = world.started()
    world.ask(A, Kind.KILL, session, RELEASE)
    actions = world.happen(WorkerGone(worker, 0, False))
    # The loss comes first: whoever has its answer listens no more.
    assert answers(actions) == [
        (A, Kind.ERROR, 0),
        (A, Kind.ERROR, world.last_request),
    ]
    assert world.router.sessions == {}


def test_a_lost_pool_is_the_loss_of_all_workers(world: World) -> None:
    session, worker = world.started()
    starting, other, _ = world.spawn(token="u")
    actions = world.happen(PoolGone(proven=True))
    assert {a for a in actions if isinstance(a, Retire)} == {
        Retire(worker),
        Retire(other),
    }
    assert world.router.slots == {}
    assert world.state(session) is State.LOST
    assert starting not in world.router.sessions


@pytest.mark.parametrize("kind", [*COMMANDS, Kind.STOP])
def test_a_foreign_session_is_not_there(shared: World, kind: Kind) -> None:
    session, _ = shared.started(A)
    body = {"target": 1} if kind is Kind.STOP else None
    answered = []
    for number in (session, 4711):
        message = shared.message(B, kind, number, body, request=7)
        (action,) = shared.happen(FromClient(B, message))
        assert isinstance(action, ToClient)
        answered.append(action.message._replace(session=0))
    assert answered[0] == answered[1]
    assert answered[0].body["code"] == errors.SessionNotFound.code


def test_a_credit_is_never_answered_not_even_with_an_error(shared: World) -> None:
    session, _ = shared.started(A)
    for number in (session, 4711):
        credit = shared.message(B, Kind.CREDIT, number, taken(1), request=7)
        assert shared.happen(FromClient(B, credit)) == []


def test_the_operator_reaches_every_session(shared: World) -> None:
    session, worker = shared.started(A)
    assert told(shared.ask(OPERATOR, Kind.KILL, session)) == [(worker, Kind.KILL)]
    (listed,) = shared.ask(OPERATOR, Kind.LIST, body={"scope": None, "readable": False})
    assert isinstance(listed, ToClient)
    assert unpack(listed.message.payload or b"") == [session]


def test_a_credit_waits_for_no_answer(world: World) -> None:
    session, worker = world.started()
    asked = world.ask(A, Kind.CREDIT, session, taken(1))
    assert told(asked) == [(worker, Kind.CREDIT)]
    assert world.router.sessions[session].pending == {}


@pytest.mark.parametrize(
    "change",
    [
        {"client": 99},
        {"epoch": EPOCH - 1},
        {"deadline": 1.0},
        {"session": 99},
        {"kind": Kind.REPLY, "body": {}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_input_is_passed_on_unread_to_whom_it_may_concern_alone(
    world: World, change: dict[str, Any]
) -> None:
    session, worker = world.started()
    message = world.message(A, Kind.WRITE, session)
    head = wire.head(frame(message))
    other = wire.head(frame(message._replace(**change)))
    assert head is not None
    assert other is not None
    assert world.router.worker_for(A, head, 0.0) == worker
    assert world.router.worker_for(A, other, 0.0) is None
    assert world.router.worker_for(b"nobody", head, 0.0) is None


def test_output_is_passed_on_unread_of_the_workers_own_session_alone(
    world: World,
) -> None:
    mine, worker = world.started()
    _, other = world.started(A, token="other")
    body = {"stream": "stdout", "offset": 0, "sequence": 0}
    chunk = Message(Kind.CHUNK, world.clients[A], 7, mine, EPOCH, 0.0, body, b"x")
    head, unknown = wire.head(frame(chunk)), wire.head(frame(chunk._replace(client=99)))
    assert head is not None
    assert unknown is not None
    assert world.router.peer_for(worker, head) == A
    assert world.router.peer_for(other, head) is None
    assert world.router.peer_for(worker, unknown) is None


@pytest.mark.parametrize(
    "kind", [Kind.POLL, Kind.READ, Kind.OPEN, Kind.EXPECT, Kind.READY]
)
def test_what_is_stopped_is_not_waited_for(world: World, kind: Kind) -> None:
    session, worker = world.started()
    world.ask(A, kind, session)
    target = {"target": world.last_request}
    assert told(world.ask(A, Kind.STOP, session, target, request=0)) == [
        (worker, Kind.STOP)
    ]
    assert world.router.sessions[session].pending == {}


def test_only_what_may_take_long_can_be_stopped(world: World) -> None:
    session, _ = world.started()
    world.ask(A, Kind.KILL, session)
    target = {"target": world.last_request}
    world.ask(A, Kind.STOP, session, target, request=0)
    assert list(world.router.sessions[session].pending.values()) == [Kind.KILL]


def test_a_reader_is_pending_until_it_is_closed(world: World) -> None:
    session, worker = world.started(reader=500)
    assert list(world.router.sessions[session].pending.values()) == [Kind.OPEN]
    for kind in (Kind.EXITED, Kind.CLOSED):
        assert answers(world.push(worker, kind, session, 500)) == [(A, kind, 500)]
    assert world.router.sessions[session].pending == {}
    assert world.state(session) is State.RUNNING


def test_a_snapshot_tells_whether_an_owner_is_there(shared: World) -> None:
    session, worker = shared.started(A, kill_on_drop=False)
    seen = []
    for gone in (False, True):
        if gone:
            shared.happen(ClientGone(A))
        asked = shared.message(OPERATOR, Kind.SNAPSHOT, session)
        shared.happen(FromClient(OPERATOR, asked))
        (action,) = shared.say(worker, asked.reply(Kind.REPLY, {}, b"doc"))
        assert isinstance(action, ToClient)
        seen.append((action.message.body, action.message.payload))
    assert seen == [({"owner_alive": True}, b"doc"), ({"owner_alive": False}, b"doc")]


def test_a_snapshot_that_fails_stays_an_error(world: World) -> None:
    session, worker = world.started()
    asked = world.message(A, Kind.SNAPSHOT, session)
    world.happen(FromClient(A, asked))
    error = asked.reply(Kind.ERROR, {"code": "engine", "values": []})
    assert world.say(worker, error) == [ToClient(A, error)]


# Many kills at once


def many(*sessions: int) -> dict[str, Any]:
    return {"sessions": list(sessions), "timeout": 3.0}


def outcome(actions: list[Action]) -> Any:
    """What the only answer, to a KILL_MANY, says of each session."""
    (action,) = [a for a in actions if isinstance(a, ToClient)]
    assert action.message.kind is Kind.REPLY
    return unpack(action.message.payload or b"")


def kills(actions: list[Action]) -> dict[int, Message]:
    """The KILL that each worker was told."""
    found = {a.worker: a.message for a in actions if isinstance(a, ToWorker)}
    assert all(message.kind is Kind.KILL for message in found.values())
    return found


def test_many_kills_are_answered_once_in_the_order_asked(world: World) -> None:
    first, one = world.started(token="1")
    second, two = world.started(token="2")
    asked = kills(world.ask(A, Kind.KILL_MANY, body=many(second, first)))
    assert asked.keys() == {one, two}
    assert asked[one].body == KILL | {"timeout": 3.0}
    assert world.say(one, asked[one].reply(Kind.REPLY, {"receipt": [1, 1, []]})) == []
    done = world.say(two, asked[two].reply(Kind.REPLY, {"receipt": [2, 2, []]}))
    assert answers(done) == [(A, Kind.REPLY, world.last_request)]
    assert outcome(done) == [[[2, 2, []]], [[1, 1, []]]]
    assert world.router.batches == {}


def test_a_session_named_twice_is_killed_once_and_told_of_twice(world: World) -> None:
    session, worker = world.started()
    actions = world.ask(A, Kind.KILL_MANY, body=many(session, 4711, session, 4711))
    assert told(actions) == [(worker, Kind.KILL)]
    kill = kills(actions)[worker]
    done = world.say(worker, kill.reply(Kind.REPLY, {"receipt": [1, 1, []]}))
    receipt, absent, same_receipt, still_absent = outcome(done)
    assert receipt == same_receipt == [[1, 1, []]]
    assert absent == still_absent
    assert absent[0] == errors.SessionNotFound.code


def test_no_kills_are_answered_too(world: World) -> None:
    assert outcome(world.ask(A, Kind.KILL_MANY, body=many())) == []


def test_many_kills_reach_no_foreign_leaving_or_lost_session(shared: World) -> None:
    foreign, _ = shared.started(B)
    leaving, _ = shared.started(A, token="1")
    shared.ask(A, Kind.KILL, leaving, RELEASE)
    lost, worker = shared.started(A, token="2")
    shared.happen(WorkerGone(worker, 0, True))
    body = many(foreign, leaving, lost, 4711)
    actions = shared.ask(A, Kind.KILL_MANY, body=body)
    assert told(actions) == []
    first, second, third, fourth = outcome(actions)
    assert first == second == fourth
    assert first[0] == errors.SessionNotFound.code
    assert third == [[0, 0, []]]


@pytest.mark.parametrize("proven", [True, False])
def test_many_kills_are_answered_when_workers_die(world: World, proven: bool) -> None:
    session, worker = world.started()
    world.ask(A, Kind.KILL_MANY, body=many(session))
    asked = world.last_request
    actions = world.happen(WorkerGone(worker, 0, proven))
    assert sorted(answers(actions)) == [(A, Kind.REPLY, asked), (A, Kind.ERROR, 0)]
    (reply,) = [a for a in actions if answers([a]) == [(A, Kind.REPLY, asked)]]
    (said,) = outcome([reply])
    assert said == [[0, 0, []]] if proven else said[0] == errors.WorkerLost.code


def test_many_kills_go_on_without_their_client(world: World) -> None:
    world.hello(B)
    session, worker = world.started(B)
    kill = kills(world.ask(A, Kind.KILL_MANY, body=many(session)))[worker]
    assert world.happen(ClientGone(A)) == []
    assert world.say(worker, kill.reply(Kind.REPLY, {"receipt": [1, 1, []]})) == []
    assert world.router.batches == {}
    late = kill.reply(Kind.REPLY, {"receipt": [1, 1, []]})
    assert world.say(worker, late) == []


# Lists and numbers


def test_a_list_names_living_sessions_of_the_owner_and_scope(shared: World) -> None:
    first, worker = shared.started(A, token="1", scope="x")
    second, _ = shared.started(A, token="2", scope="y")
    third, _, _ = shared.spawn(A, token="3", scope="x")
    shared.started(B)

    def listed(peer: bytes, scope: str | None) -> Any:
        (action,) = shared.ask(
            peer, Kind.LIST, body={"scope": scope, "readable": False}
        )
        assert isinstance(action, ToClient)
        return unpack(action.message.payload or b"")

    assert listed(A, None) == [first, second, third]
    assert listed(A, "x") == [first, third]
    shared.push(worker, Kind.EXITED, first)
    assert listed(A, "x") == [first, third]
    shared.push(worker, Kind.CLOSED, first)
    assert listed(A, "x") == [third]
    assert listed(B, "x") == []


def test_info_has_the_stages_of_the_sessions_that_are_over(world: World) -> None:
    session, worker = world.started()
    world.now = 55.0
    world.push(worker, Kind.EXITED, session)
    world.idle(worker, session)
    (action,) = world.ask(A, Kind.INFO)
    assert isinstance(action, ToClient)
    assert unpack(action.message.payload or b"") == {
        "queued": [[1e-6, 1]],
        "leased": [[0.524288, 1]],  # from 50.0 to 50.5
        "spawned": [[0.524288, 1]],
        "first_byte": [],
        "exit_seen": [[2.097152, 1]],
        "reported": [[2.097152, 1]],
    }


def test_info_counts(shared: World) -> None:
    session, worker = shared.started(A)
    shared.started(B)
    shared.push(worker, Kind.CLOSED, session)
    (action,) = shared.ask(A, Kind.INFO)
    assert isinstance(action, ToClient)
    assert action.message.body == {
        "sessions": 2,
        "live": 1,
        "clients": 3,
        "workers": 2,
        "idle": 0,
        "waiting": 0,
        "retained": 0,
        "watchers": 0,
        "capacity": 19,
        "shared": True,
        "containment": "subreaper",
    }


# Drops


def test_the_end_of_a_client_releases_its_sessions(world: World) -> None:
    session, worker = world.started()
    other, starting, _ = world.spawn(token="u")
    assert released(world.happen(ClientGone(A))) == [worker, starting]
    assert world.state(session) is world.state(other) is State.LEAVING
    assert world.idle(worker, session) == []
    assert world.idle(starting, other) == []
    assert world.router.sessions == {}
    assert world.router.slots == {worker: None, starting: None}


def test_a_drop_is_carried_out_once(world: World) -> None:
    session, worker = world.started()
    body = {"sessions": [session, 4711], "tokens": ["t"]}
    actions = world.ask(A, Kind.DROP, body=body)
    assert released(actions) == [worker]
    assert answers(actions) == [(A, Kind.REPLY, world.last_request)]
    assert released(world.happen(ClientGone(A))) == []


def test_a_drop_by_token_ends_what_it_started(world: World) -> None:
    _, worker, _ = world.spawn()
    body = {"sessions": [], "tokens": ["t"]}
    assert released(world.ask(A, Kind.DROP, body=body, request=0)) == [worker]


def test_a_drop_of_others_sessions_and_tokens_does_nothing(shared: World) -> None:
    session, _ = shared.started(A)
    for peer in (B, OPERATOR):
        body = {"sessions": [session], "tokens": ["t"]}
        assert told(shared.ask(peer, Kind.DROP, body=body)) == []
    assert shared.state(session) is State.RUNNING


def cancel(world: World, peer: bytes, token: str = "t") -> list[Action]:
    """Drop a spawn by its token."""
    return world.ask(peer, Kind.DROP, body={"sessions": [], "tokens": [token]})


@pytest.mark.parametrize("running", [False, True])
def test_a_cancelled_spawn_ends_nothing_of_another_client(
    two: World, running: bool
) -> None:
    start = two.started if running else two.spawn
    session, worker, *_ = start(A)
    two.ask(AGAIN, Kind.SPAWN, body=SPAWN)
    assert told(cancel(two, AGAIN)) == []
    assert two.state(session) is not State.LEAVING
    two.ask(AGAIN, Kind.ATTACH, session, {"steal": True})
    assert told(cancel(two, A)) == []  # it was robbed
    assert released(cancel(two, AGAIN)) == [worker]


def test_a_cancelled_spawn_ends_what_has_no_owner(two: World) -> None:
    _, worker = two.started(A, kill_on_drop=False)
    two.happen(ClientGone(A))
    assert released(cancel(two, AGAIN)) == [worker]


def joined(two: World) -> tuple[int, int, int, int]:
    """A session and its worker, and a spawn of two clients that waits for its room."""
    session, worker = two.started(B, detach_ttl=90.0)
    two.router.capacity = Capacity(1, "descriptors")
    first, _ = spawning(two, A, queue=5.0, token="u")
    second, _ = spawning(two, AGAIN, queue=5.0, token="u")
    return session, worker, first, second


def freed(two: World, session: int, worker: int) -> list[Action]:
    two.ask(B, Kind.KILL, session, RELEASE)
    return two.idle(worker, session)


def test_a_cancelled_spawn_takes_no_other_client_out_of_the_line(two: World) -> None:
    session, worker, first, second = joined(two)
    assert answers(cancel(two, AGAIN, "u")) == [
        (AGAIN, Kind.ERROR, second),
        (AGAIN, Kind.REPLY, two.last_request),
    ]
    assert answers(cancel(two, AGAIN, "u")) == [(AGAIN, Kind.REPLY, two.last_request)]
    assert starts(freed(two, session, worker)) == [first]


@pytest.mark.parametrize("how", ["cancelled", "gone", "late"])
def test_a_waiting_spawn_goes_on_for_whoever_asked_next(two: World, how: str) -> None:
    session, worker, first, second = joined(two)
    if how == "cancelled":
        actions = cancel(two, A, "u")
        assert (A, Kind.ERROR, first) in answers(actions)
    elif how == "gone":
        assert answers(two.happen(ClientGone(A))) == []
    else:
        two.router.clients[A].lease_ends = two.now
        assert answers(two.happen(Tick())) == [(A, Kind.ERROR, first)]
    actions = freed(two, session, worker)
    assert starts(actions) == [second]
    (started,) = [s for s in two.router.sessions.values() if s.token == "u"]
    assert started.client == two.clients[AGAIN]


def test_a_waiting_spawn_is_under_the_limits_of_whom_it_goes_on_for(two: World) -> None:
    limit = {"client_capacity": 1}
    session, worker = two.started(AGAIN, **limit)
    two.started(A, token="a", **limit)
    spawning(two, A, queue=5.0, token="u", **limit)
    second, _ = spawning(two, AGAIN, queue=5.0, token="u", **limit)
    assert starts(two.happen(ClientGone(A))) == []
    assert starts(two.push(worker, Kind.EXITED, session)) == [second]


@pytest.mark.parametrize("how", ["cancelled", "late"])
def test_who_came_behind_one_that_waits_no_more_has_its_room(
    world: World, how: str
) -> None:
    world.started(A, **SCOPE)
    spawning(world, queue=5.0, token="u", **SCOPE)
    wider = SCOPE | {"scope_capacity": 2}
    behind, started = spawning(world, queue=50.0, **wider)
    assert started == []
    world.now += 5.0
    actions = cancel(world, A, "u") if how == "cancelled" else world.happen(Tick())
    assert starts(actions) == [behind]


def test_a_lost_session_is_forgotten_with_its_owner(world: World) -> None:
    _, worker = world.started()
    world.happen(WorkerGone(worker, 0, True))
    assert world.happen(ClientGone(A)) == []
    assert world.router.sessions == {}


def test_a_leaving_session_is_forgotten_with_its_worker(world: World) -> None:
    session, worker = world.started()
    world.ask(A, Kind.DROP, body={"sessions": [session], "tokens": []}, request=0)
    actions = world.happen(WorkerGone(worker, 0, True))
    assert answers(actions) == [(A, Kind.ERROR, 0)]
    assert world.router.sessions == {}


def test_a_child_that_may_stay_loses_only_its_stdin(shared: World) -> None:
    session, worker = shared.started(A, kill_on_drop=False)
    said = told(shared.happen(ClientGone(A)))
    assert said == [(worker, Kind.CLOSE_STDIN), (worker, Kind.STOP)]
    assert shared.state(session) is State.RUNNING
    assert shared.push(worker, Kind.EXITED, session) == []


def test_a_lost_session_that_nobody_owns_is_forgotten(shared: World) -> None:
    _, worker = shared.started(A, kill_on_drop=False)
    shared.happen(ClientGone(A))
    assert shared.happen(WorkerGone(worker, 0, True)) == [Retire(worker)]
    assert shared.router.sessions == {}
    assert shared.router.due == {}


@pytest.mark.parametrize("running", [False, True])
def test_a_cancelled_spawn_is_killed_although_it_may_stay(
    shared: World, running: bool
) -> None:
    start = shared.started if running else shared.spawn
    session, worker, *_ = start(A, kill_on_drop=False)
    body = {"sessions": [], "tokens": ["t"]}
    assert released(shared.ask(A, Kind.DROP, body=body, request=0)) == [worker]
    assert shared.state(session) is State.LEAVING


def test_readers_of_others_end_with_their_client(shared: World) -> None:
    session, worker = shared.started(A)
    shared.ask(OPERATOR, Kind.OPEN, session)
    shared.ask(OPERATOR, Kind.POLL, session)
    shared.ask(A, Kind.POLL, session)
    assert told(shared.happen(ClientGone(OPERATOR))) == [(worker, Kind.STOP)]
    assert list(shared.router.sessions[session].pending.values()) == [Kind.POLL]


def stops(actions: list[Action]) -> list[Message]:
    return [
        action.message
        for action in actions
        if isinstance(action, ToWorker) and action.message.kind is Kind.STOP
    ]


@pytest.mark.parametrize("kind", [Kind.POLL, Kind.READ, Kind.OPEN])
def test_what_a_holder_holds_ends_with_it_although_it_was_answered(
    shared: World, kind: Kind
) -> None:
    session, worker = shared.started(A)
    asked = shared.message(OPERATOR, kind, session)
    shared.happen(FromClient(OPERATOR, asked))
    shared.say(worker, asked.reply(Kind.ERROR, NOT_FOUND))
    (stop,) = stops(shared.happen(ClientGone(OPERATOR)))
    assert (stop.client, stop.request) == (shared.clients[OPERATOR], 0)
    assert (stop.session, stop.body) == (session, {"target": 0})
    assert shared.router.sessions[session].holders == set()


def test_s31_a_clock_that_a_holder_stopped_goes_on_without_it(two: World) -> None:
    session, _ = two.started(A)
    two.ask(AGAIN, Kind.CLOCK, session, {"paused": True}, request=0)
    assert two.happen(ClientGone(AGAIN)) == stopped(two, AGAIN, session)


def test_a_lost_worker_is_told_nothing_of_a_holders_end(shared: World) -> None:
    session, worker = shared.started(A)
    shared.ask(OPERATOR, Kind.OPEN, session)
    shared.happen(WorkerGone(worker, 0, True))
    assert shared.happen(ClientGone(OPERATOR)) == []


def test_whoever_only_wrote_or_looked_is_no_holder(shared: World) -> None:
    session, _ = shared.started(A)
    for kind in (Kind.WRITE, Kind.SNAPSHOT, Kind.SIGNAL, Kind.KILL):
        shared.ask(OPERATOR, kind, session)
    shared.ask(A, Kind.POLL, session)
    assert shared.happen(ClientGone(OPERATOR)) == []


def test_what_an_owner_reads_ends_with_it_also_where_the_child_stays(
    shared: World,
) -> None:
    session, _ = shared.started(A, kill_on_drop=False)
    owner = shared.clients[A]
    shared.ask(A, Kind.OPEN, session)
    (stop,) = stops(shared.happen(ClientGone(A)))
    assert (stop.client, stop.body) == (owner, {"target": 0})


# Owners that come and go


NO_TTL = {"ttl": None}
ATTACH = {"steal": False}
STEAL = {"steal": True}
AGAIN = b"again"


@pytest.fixture
def two(shared: World) -> World:
    """A shared broker; A and AGAIN have one key."""
    shared.hello(AGAIN)
    return shared


def attach(world: World, peer: bytes, session: int, body: Any = ATTACH) -> list[Action]:
    """Attach, and have the worker answer."""
    worker = world.router.sessions[session].worker
    asked = world.message(peer, Kind.ATTACH, session, body)
    first = world.happen(FromClient(peer, asked))
    return [*first, *world.say(worker, asked.reply(Kind.REPLY, {"pid": 5}, b"doc"))]


def owned(error: errors.EngineError) -> bool:
    return isinstance(error, errors.SessionOwned)


def test_s43_a_detached_session_waits_for_a_new_owner(two: World) -> None:
    session, worker = two.started(A)
    assert answers(two.ask(A, Kind.DETACH, session, NO_TTL)) == [
        (A, Kind.REPLY, two.last_request)
    ]
    assert two.happen(ClientGone(A)) == stopped(two, A, session)
    assert two.router.next_deadline() is None
    assert two.state(session) is State.RUNNING
    forwarded, answer = attach(two, AGAIN, session)
    assert told([forwarded]) == [(worker, Kind.ATTACH)]
    assert isinstance(answer, ToClient)
    assert answer.message.body == {"pid": 5, "stays": False}
    assert answers(two.push(worker, Kind.EXITED, session)) == [(AGAIN, Kind.EXITED, 0)]
    assert released(two.happen(ClientGone(AGAIN))) == [worker]


def test_s43_who_is_robbed_of_what_only_starts_is_told_in_place_of_the_answer(
    two: World,
) -> None:
    session, worker, start = two.spawn(A)
    two.ask(AGAIN, Kind.ATTACH, session, STEAL)
    actions = two.say(worker, start.reply(Kind.REPLY, {"pid": 5}))
    assert owned(refusal(actions))
    assert two.router.sessions[session].client == two.clients[AGAIN]


def test_s43_who_is_robbed_while_attaching_is_told_in_place_of_the_answer(
    two: World,
) -> None:
    session, worker = two.started(A)
    asked = two.message(AGAIN, Kind.ATTACH, session, STEAL)
    two.happen(FromClient(AGAIN, asked))
    two.ask(A, Kind.ATTACH, session, STEAL)
    actions = two.say(worker, asked.reply(Kind.REPLY, {"pid": 5}, b"doc"))
    assert owned(refusal(actions))
    assert two.router.sessions[session].client == two.clients[A]


def test_s43_a_readers_end_that_crosses_a_theft_is_no_second_answer(
    two: World,
) -> None:
    session, worker = two.started(A)
    opened = two.message(A, Kind.OPEN, session)
    two.happen(FromClient(A, opened))
    two.ask(AGAIN, Kind.ATTACH, session, STEAL)
    assert two.say(worker, opened.reply(Kind.CLOSED, STATUS)) == []


def stopped(world: World, peer: bytes, session: int) -> list[Action]:
    """What ends the reading of a client."""
    worker, client = world.router.sessions[session].worker, world.clients[peer]
    body = {"target": 0}
    return [ToWorker(worker, Message(Kind.STOP, client, 0, session, EPOCH, 0.0, body))]


def test_s43_a_detach_can_be_repeated_and_its_ttl_counts_anew(two: World) -> None:
    session, _ = two.started(A)
    for ttl in (10.0, 20.0):
        (action,) = two.ask(A, Kind.DETACH, session, {"ttl": ttl})
        assert answers([action]) == [(A, Kind.REPLY, two.last_request)]
        assert two.router.next_deadline() == two.now + ttl


def test_s43_nobody_detaches_what_another_one_owns(two: World) -> None:
    session, _ = two.started(A)
    assert owned(refusal(two.ask(AGAIN, Kind.DETACH, session, NO_TTL)))
    foreign = refusal(two.ask(B, Kind.DETACH, session, NO_TTL))
    assert isinstance(foreign, errors.SessionNotFound)


def test_s43_a_private_broker_detaches_nothing(world: World) -> None:
    session, _ = world.started()
    error = refusal(world.ask(A, Kind.DETACH, session, NO_TTL))
    assert isinstance(error, errors.InvalidRequest)
    assert error.field == "ttl"
    error = refusal(world.ask(A, Kind.SPAWN, body=SPAWN | {"token": "u", **TTL}))
    assert isinstance(error, errors.InvalidRequest)
    assert error.field == "detach_ttl"


TTL = {"detach_ttl": 10.0}


@pytest.mark.parametrize("kill_on_drop", [True, False])
def test_s43_a_drop_detaches_what_has_a_ttl(two: World, kill_on_drop: bool) -> None:
    session, worker = two.started(A, kill_on_drop=kill_on_drop, **TTL)
    said = two.happen(ClientGone(A))
    closes = [] if kill_on_drop else [(worker, Kind.CLOSE_STDIN)]
    assert told(said) == [*closes, (worker, Kind.STOP)]
    two.now += 10.0
    assert released(two.happen(Tick())) == [worker]
    assert two.state(session) is State.LEAVING
    gone = refusal(two.ask(AGAIN, Kind.ATTACH, session, ATTACH))
    assert isinstance(gone, errors.SessionNotFound)


def test_s43_a_detach_without_a_ttl_has_that_of_the_spawn(two: World) -> None:
    session, _ = two.started(A, **TTL)
    two.ask(A, Kind.DETACH, session, NO_TTL)
    assert two.router.next_deadline() == two.now + 10.0


def test_s43_an_owner_stops_the_clock(two: World) -> None:
    session, _ = two.started(A, **TTL)
    two.happen(ClientGone(A))
    attach(two, AGAIN, session)
    assert two.router.next_deadline() is None


def test_s4_what_ended_without_an_owner_stays_readable_past_its_ttl(
    two: World,
) -> None:
    session, worker = two.started(A, **TTL)
    two.happen(ClientGone(A))
    two.now += 9.0
    two.push(worker, Kind.EXITED, session)
    two.now += 1.0
    assert two.happen(Tick()) == []
    assert two.router.next_deadline() == two.now - 1.0 + READABLE
    two.now += READABLE
    assert released(two.happen(Tick())) == [worker]


def test_s43_a_living_owner_keeps_its_session(two: World) -> None:
    session, worker = two.started(A)
    for peer in (A, AGAIN, OPERATOR):
        assert owned(refusal(two.ask(peer, Kind.ATTACH, session, ATTACH)))
    assert two.router.sessions[session].client == two.clients[A]
    assert answers(two.push(worker, Kind.EXITED, session)) == [(A, Kind.EXITED, 0)]


@pytest.mark.parametrize("how", ["foreign", "absent", "leaving"])
@pytest.mark.parametrize("body", [ATTACH, STEAL])
def test_s43_what_is_not_there_cannot_be_attached(
    two: World, how: str, body: Any
) -> None:
    session, _ = two.started(A)
    if how == "leaving":
        two.ask(A, Kind.KILL, session, RELEASE)
    peer = B if how == "foreign" else AGAIN
    number = 4711 if how == "absent" else session
    error = refusal(two.ask(peer, Kind.ATTACH, number, body))
    assert isinstance(error, errors.SessionNotFound)


def test_s43_a_lost_session_cannot_be_attached(two: World) -> None:
    session, worker = two.started(A)
    two.happen(WorkerGone(worker, 0, True))
    error = refusal(two.ask(AGAIN, Kind.ATTACH, session, STEAL))
    assert isinstance(error, errors.WorkerLost)


def test_s43_a_robbed_owner_is_told_and_what_it_reads_is_answered(two: World) -> None:
    session, worker = two.started(A)
    two.ask(A, Kind.OPEN, session)
    reader = two.last_request
    two.ask(A, Kind.KILL, session)
    kill = two.message(A, Kind.KILL, session)
    two.happen(FromClient(A, kill))
    actions = attach(two, AGAIN, session, STEAL)
    assert answers(actions) == [
        (A, Kind.ERROR, 0),
        (A, Kind.ERROR, reader),
        (AGAIN, Kind.REPLY, two.last_request),
    ]
    assert told(actions) == [(worker, Kind.STOP), (worker, Kind.ATTACH)]
    for action in actions[:2]:
        assert owned(refusal([action]))
    # What it had asked beside its reading is answered as ever.
    assert answers(two.say(worker, kill.reply(Kind.REPLY))) == [
        (A, Kind.REPLY, kill.request)
    ]
    assert two.happen(ClientGone(A)) == []
    assert two.state(session) is State.RUNNING


def test_s43_a_robbed_owner_that_does_not_know_yet_ends_nothing(two: World) -> None:
    session, _ = two.started(A)
    attach(two, AGAIN, session, STEAL)
    assert owned(refusal(two.ask(A, Kind.KILL, session, RELEASE)))
    two.ask(A, Kind.DROP, body={"sessions": [session], "tokens": []})
    assert two.state(session) is State.RUNNING
    assert released(two.ask(AGAIN, Kind.KILL, session, RELEASE)) != []


def test_s43_an_owner_may_rob_itself(two: World) -> None:
    session, _ = two.started(A)
    said = attach(two, A, session, STEAL)
    assert answers(said) == [(A, Kind.ERROR, 0), (A, Kind.REPLY, two.last_request)]


def test_s43_the_operator_may_take_over(two: World) -> None:
    session, worker = two.started(A)
    attach(two, OPERATOR, session, STEAL)
    assert released(two.happen(ClientGone(OPERATOR))) == [worker]


def take_back(world: World, peer: bytes, session: int, attach: int) -> list[Action]:
    """Stop an ATTACH by its number."""
    return world.ask(peer, Kind.STOP, session, {"target": attach}, request=0)


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("ttl", [None, 60.0])
def test_an_attach_that_is_taken_back_leaves_a_session_as_it_was(
    two: World, answered: bool, ttl: float | None
) -> None:
    session, worker = two.started(A)
    two.ask(A, Kind.DETACH, session, {"ttl": ttl})
    ends = None if ttl is None else two.now + ttl
    two.now += 1.0
    asked = two.message(AGAIN, Kind.ATTACH, session, ATTACH)
    two.happen(FromClient(AGAIN, asked))
    answer = asked.reply(Kind.REPLY, {"pid": 5}, b"doc")
    if answered:
        two.say(worker, answer)
    assert two.router.next_deadline() is None
    said = take_back(two, AGAIN, session, asked.request)
    assert told(said) == [(worker, Kind.STOP)]
    assert two.router.next_deadline() == ends
    assert two.router.sessions[session].client == 0
    assert two.say(worker, answer) == []
    assert answers(attach(two, A, session)) == [(A, Kind.REPLY, two.last_request)]


def test_an_attach_that_was_refused_takes_nothing_back(two: World) -> None:
    session, worker = two.started(A)
    assert owned(refusal(two.ask(A, Kind.ATTACH, session, ATTACH)))
    take_back(two, A, session, two.last_request)
    assert two.router.sessions[session].client == two.clients[A]
    attach(two, A, session, STEAL)
    take_back(two, A, session, 0)  # what it reads, not what it owns
    assert two.router.sessions[session].client == two.clients[A]
    assert released(two.happen(ClientGone(A))) == [worker]


def test_an_attach_without_a_number_cannot_be_taken_back(two: World) -> None:
    session, _ = two.started(A)
    two.ask(AGAIN, Kind.ATTACH, session, STEAL, request=0)
    take_back(two, AGAIN, session, 0)
    assert two.router.sessions[session].client == two.clients[AGAIN]


@pytest.mark.parametrize("stays", [True, False])
def test_a_theft_that_is_taken_back_drops_what_does_not_stay(
    two: World, stays: bool
) -> None:
    session, worker = two.started(A, detach_ttl=10.0 if stays else None)
    attach(two, AGAIN, session, STEAL)
    said = take_back(two, AGAIN, session, two.last_request)
    assert released(said) == ([] if stays else [worker])
    if stays:
        assert two.router.ttls == {session: two.now + 10.0}
        assert two.router.sessions[session].client == 0


def test_what_was_taken_over_since_is_not_taken_back(two: World) -> None:
    session, _ = two.started(A)
    two.ask(A, Kind.DETACH, session, NO_TTL)
    attach(two, AGAIN, session)
    request = two.last_request
    attach(two, A, session, STEAL)
    take_back(two, AGAIN, session, request)
    assert two.router.sessions[session].client == two.clients[A]


# Those who visit


def visit(world: World, peer: bytes, session: int) -> list[Action]:
    """Visit, and have the worker answer."""
    worker = world.router.sessions[session].worker
    asked = world.message(peer, Kind.VISIT, session)
    (first,) = world.happen(FromClient(peer, asked))
    assert told([first]) == [(worker, Kind.VISIT)]
    return world.say(worker, asked.reply(Kind.REPLY, {"pid": 5}, b"doc"))


def test_a_visitor_is_told_of_the_end_and_ends_nothing(two: World) -> None:
    session, worker = two.started(A)
    for peer in (AGAIN, OPERATOR):
        assert answers(visit(two, peer, session)) == [
            (peer, Kind.REPLY, two.last_request)
        ]
    assert two.happen(ClientGone(OPERATOR)) == []
    assert two.router.sessions[session].client == two.clients[A]
    said = two.push(worker, Kind.EXITED, session)
    assert answers(said) == [(AGAIN, Kind.EXITED, 0), (A, Kind.EXITED, 0)]
    assert [a.message.body for a in said if isinstance(a, ToClient)] == [STATUS] * 2


def test_a_visitor_of_what_it_owns_is_told_once(two: World) -> None:
    session, worker = two.started(A)
    visit(two, A, session)
    assert answers(two.push(worker, Kind.EXITED, session)) == [(A, Kind.EXITED, 0)]


def test_a_visitor_is_told_of_the_end_of_a_run(two: World) -> None:
    reader = two.last_request + 100
    session, worker = two.started(A, reader=reader, release=True)
    visit(two, AGAIN, session)
    said = two.push(worker, Kind.CLOSED, session, reader)
    assert answers(said) == [(AGAIN, Kind.EXITED, 0), (A, Kind.CLOSED, reader)]


def test_a_visitor_is_told_of_a_loss(two: World) -> None:
    session, worker = two.started(A)
    visit(two, AGAIN, session)
    said = two.happen(WorkerGone(worker, 0, True))
    assert answers(said) == [(A, Kind.ERROR, 0), (AGAIN, Kind.ERROR, 0)]


def test_a_visitor_that_has_left_is_told_of_nothing(two: World) -> None:
    session, worker = two.started(A)
    two.ask(A, Kind.DETACH, session, NO_TTL)
    visit(two, AGAIN, session)
    first = two.last_request
    visit(two, AGAIN, session)
    second = two.last_request
    take_back(two, AGAIN, session, first)
    assert two.router.sessions[session].visitors == {two.clients[AGAIN]}
    take_back(two, AGAIN, session, second)
    assert two.push(worker, Kind.EXITED, session) == []
    assert not two.router.sessions[session].reported


def test_a_visit_that_is_stopped_before_its_answer_tells_nothing(two: World) -> None:
    session, worker = two.started(A)
    two.ask(A, Kind.DETACH, session, NO_TTL)
    two.push(worker, Kind.EXITED, session)
    asked = two.message(AGAIN, Kind.VISIT, session)
    two.happen(FromClient(AGAIN, asked))
    take_back(two, AGAIN, session, asked.request)
    assert two.say(worker, asked.reply(Kind.REPLY, {"pid": 5}, b"doc")) == []
    assert not two.router.sessions[session].reported


def test_a_foreign_session_cannot_be_visited(two: World) -> None:
    session, _ = two.started(A)
    error = refusal(two.ask(B, Kind.VISIT, session))
    assert isinstance(error, errors.SessionNotFound)


@pytest.mark.parametrize("comes", ["before", "after"])
def test_s4_an_end_without_an_owner_is_told_to_whoever_visits(
    two: World, comes: str
) -> None:
    session, worker = two.started(A)
    two.ask(A, Kind.DETACH, session, NO_TTL)
    if comes == "before":
        visit(two, AGAIN, session)
    two.push(worker, Kind.EXITED, session)
    two.push(worker, Kind.CLOSED, session)
    assert two.router.sessions[session].reported is (comes == "before")
    visit(two, AGAIN, session)
    assert two.router.sessions[session].reported


def test_s4_a_visit_does_not_stand_for_the_owner(two: World) -> None:
    session, worker = two.started(A)
    two.happen(ClientGone(B))
    visit(two, AGAIN, session)
    two.push(worker, Kind.EXITED, session)
    two.router.sessions[session].reported = False
    visit(two, AGAIN, session)
    assert not two.router.sessions[session].reported


def test_what_has_ended_is_listed_to_those_who_ask_for_it(two: World) -> None:
    session, worker = two.started(A)
    two.push(worker, Kind.EXITED, session)
    two.push(worker, Kind.CLOSED, session)
    for ended, ids in ((False, []), (True, [session])):
        body = {"scope": None, "readable": ended}
        (action,) = two.ask(A, Kind.LIST, body=body)
        assert isinstance(action, ToClient)
        assert unpack(action.message.payload or b"") == ids


@pytest.mark.parametrize("first", ["steal", "drop"])
def test_s43_a_theft_and_a_drop_have_one_winner(two: World, first: str) -> None:
    session, worker = two.started(A)
    if first == "steal":
        attach(two, AGAIN, session, STEAL)
        assert released(two.happen(ClientGone(A))) == []
        assert two.router.sessions[session].client == two.clients[AGAIN]
    else:
        assert released(two.happen(ClientGone(A))) == [worker]
        error = refusal(two.ask(AGAIN, Kind.ATTACH, session, STEAL))
        assert isinstance(error, errors.SessionNotFound)


def test_s43_an_exit_that_crosses_a_detach_is_reported_by_the_attach(
    two: World,
) -> None:
    session, worker = two.started(A, **SCOPE)
    two.ask(A, Kind.DETACH, session, NO_TTL)
    assert two.push(worker, Kind.EXITED, session) == []
    assert not two.router.sessions[session].reported
    waiting, _ = spawning(two, AGAIN, queue=5.0, **SCOPE)
    assert starts(attach(two, AGAIN, session)) == [waiting]
    assert two.router.sessions[session].reported


def test_s43_an_attach_whose_client_goes_reports_nothing(two: World) -> None:
    session, worker = two.started(A, kill_on_drop=False)
    two.happen(ClientGone(A))
    two.push(worker, Kind.EXITED, session)
    asked = two.message(AGAIN, Kind.ATTACH, session, ATTACH)
    two.happen(FromClient(AGAIN, asked))
    two.ask(AGAIN, Kind.DETACH, session, NO_TTL)
    two.say(worker, asked.reply(Kind.REPLY, {"pid": 5}, b"doc"))
    assert not two.router.sessions[session].reported


# Whoever watches


def watch(world: World, peer: bytes = A, scope: str | None = None) -> int:
    assert world.ask(peer, Kind.WATCH, body={"scope": scope}) == []
    return world.last_request


def seen(actions: list[Action], request: int) -> list[Any]:
    """The lifecycle events that one stream got."""
    return [
        a.message
        for a in actions
        if isinstance(a, ToClient)
        and a.message.kind is Kind.LIFECYCLE
        and a.message.request == request
    ]


def events(actions: list[Action], request: int) -> list[str]:
    return [message.body["event"] for message in seen(actions, request)]


def test_s52_a_session_is_watched_from_its_start_to_its_release(world: World) -> None:
    stream = watch(world)
    said = world.ask(A, Kind.SPAWN, body=SPAWN | {"scope": "x"})
    (told,) = [a.message for a in said if isinstance(a, ToWorker)]
    worker, session = 1, told.session
    (starting,) = seen(said, stream)
    assert (starting.client, starting.session) == (world.clients[A], session)
    assert starting.body == {
        "event": "starting",
        "scope": "x",
        "sequence": 1,
        "time": 50.0,
        "status": None,
        "error": None,
        "missed": 0,
    }
    running = world.say(worker, told.reply(Kind.REPLY, {"pid": 5}))
    assert events(running, stream) == ["running"]
    (exited,) = seen(world.push(worker, Kind.EXITED, session), stream)
    assert exited.body["event"] == "exited"
    assert exited.body["status"] == STATUS["status"]
    (closed,) = seen(world.push(worker, Kind.CLOSED, session), stream)
    assert closed.body["event"] == "closed"
    assert closed.body["status"] == STATUS["status"]
    world.ask(A, Kind.KILL, session, RELEASE)
    assert events(world.idle(worker, session), stream) == []


def test_s52_a_run_is_over_with_its_capture(world: World) -> None:
    stream = watch(world)
    session, worker = world.started(reader=500, release=True)
    said = world.push(worker, Kind.CLOSED, session, 500)
    assert events(said, stream) == ["exited", "closed"]
    assert events(world.idle(worker, session), stream) == []


@pytest.mark.parametrize("how", ["refused", "unforked"])
def test_s52_a_failed_start_has_its_one_end(world: World, how: str) -> None:
    stream = watch(world)
    session, worker, start = world.spawn()
    if how == "refused":
        code, values = errors.encode(errors.SpawnFailed(2, "exec", "/x"))
        said = world.say(
            worker, start.reply(Kind.ERROR, {"code": code, "values": values})
        )
        assert events(world.idle(worker, session), stream) == []
    else:
        said = world.happen(WorkerGone(worker, 11, True))
    (failed,) = seen(said, stream)
    assert failed.body["event"] == "failed"
    assert isinstance(errors.decode(*failed.body["error"]), errors.SpawnFailed)


def test_s52_a_dropped_session_ends_closed(world: World) -> None:
    stream = watch(world)
    session, worker = world.started()
    world.ask(A, Kind.DROP, body={"sessions": [session], "tokens": []})
    assert events(world.push(worker, Kind.EXITED, session), stream) == ["exited"]
    assert events(world.idle(worker, session), stream) == ["closed"]


def test_s52_a_lost_session_is_lost_unless_it_was_over(world: World) -> None:
    stream = watch(world)
    _, worker = world.started(token="1")
    (lost,) = seen(world.happen(WorkerGone(worker, 0, True)), stream)
    assert lost.body["event"] == "lost"
    assert isinstance(errors.decode(*lost.body["error"]), errors.WorkerLost)
    session, worker = world.started(token="2")
    world.push(worker, Kind.CLOSED, session)
    assert events(world.happen(WorkerGone(worker, 0, True)), stream) == []


def test_s52_a_stream_sees_its_own_key_and_scope(shared: World) -> None:
    mine = watch(shared, A)
    scoped = watch(shared, A, "x")
    foreign = watch(shared, B)
    operator = watch(shared, OPERATOR)
    said = shared.ask(A, Kind.SPAWN, body=SPAWN)
    assert [len(seen(said, s)) for s in (mine, scoped, foreign, operator)] == [
        1,
        0,
        0,
        1,
    ]
    said = shared.ask(A, Kind.SPAWN, body=SPAWN | {"token": "u", "scope": "x"})
    assert len(seen(said, scoped)) == 1


def test_s52_a_slow_watcher_is_told_how_much_it_missed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchers, "WINDOW", 2)
    stream = watch(world)
    session, worker = world.started()
    for _ in range(3):
        notice = Message(Kind.NOTICE, 0, 0, session, EPOCH, 0.0, {"limit": "output"})
        assert world.say(worker, notice) == []
    assert world.ask(A, Kind.CREDIT, body=taken(99), request=stream) == []
    (exited,) = seen(world.push(worker, Kind.EXITED, session), stream)
    assert (exited.body["missed"], exited.body["sequence"]) == (3, 6)
    (closed,) = seen(world.push(worker, Kind.CLOSED, session), stream)
    assert (closed.body["missed"], closed.body["sequence"]) == (0, 7)
    world.ask(A, Kind.CREDIT, body=taken(1), request=stream)  # an old one
    world.ask(A, Kind.WATCH, body={"scope": None}, request=stream)  # and again
    assert len(world.router.watchers) == 1


def taken(count: int) -> dict[str, Any]:
    return {"chunks": count, "sequence": 0, "local": True}


@pytest.mark.parametrize("how", ["stopped", "gone"])
def test_s52_nobody_watches_on_behalf_of_whoever_left(shared: World, how: str) -> None:
    stream = watch(shared, A)
    other = watch(shared, OPERATOR)
    if how == "gone":
        shared.happen(ClientGone(A))
    else:
        body = {"target": stream}
        (reply,) = shared.ask(A, Kind.STOP, body=body)
        assert answers([reply]) == [(A, Kind.REPLY, shared.last_request)]
        shared.ask(A, Kind.STOP, body=body, request=0)
    assert shared.ask(A, Kind.CREDIT, body=taken(1), request=stream)[1:] == []
    shared.hello(AGAIN)
    said = shared.ask(AGAIN, Kind.SPAWN, body=SPAWN)
    assert (seen(said, stream), events(said, other)) == ([], ["starting"])
    assert len(shared.router.watchers) == 1


def test_s5_a_warning_comes_shortly_before_a_limit(world: World) -> None:
    stream = watch(world)
    limit: dict[str, Any] = {"scope": "x", "scope_capacity": 3}
    world.started(token="1", **limit)
    world.started(token="2", **limit)
    said = world.ask(A, Kind.SPAWN, body=SPAWN | limit | {"token": "3"})
    _, warning = seen(said, stream)
    assert warning.body["event"] == "warning"
    text = str(errors.decode(*warning.body["error"]))
    assert text == "the scope 'x' holds 3 of 3 sessions"
    assert admission.Limit("x", 64, "").warns_at == 60


def test_s17_a_workers_notice_is_a_warning(world: World) -> None:
    stream = watch(world)
    session, worker = world.started()
    notice = Message(Kind.NOTICE, 0, 0, session, EPOCH, 0.0, {"limit": "output"})
    (warning,) = seen(world.say(worker, notice), stream)
    assert warning.body["event"] == "warning"
    assert "output" in str(errors.decode(*warning.body["error"]))


# Leases


def test_a_lease_that_runs_out_drops_everything() -> None:
    world = World()
    world.hello(A, lease=10.0)
    world.hello(B)
    _, worker = world.started(A)
    world.started(B, token="u")
    assert world.router.next_deadline() == 60.0
    world.now = 59.0
    assert world.happen(Tick()) == []
    assert world.happen(LeaseRenewed(A)) == []
    world.now = 60.0
    assert world.happen(Tick()) == []
    world.now = 69.0
    assert released(world.happen(Tick())) == [worker]


@pytest.mark.parametrize("stays", [{"kill_on_drop": False}, {"detach_ttl": 90.0}])
def test_whose_lease_runs_out_is_told_of_what_it_owns_no_more(stays: Any) -> None:
    world = World(shared=True)
    world.hello(A, lease=10.0)
    session, _ = world.started(A, **stays)
    ended, worker = world.started(A, token="u")
    world.now += 10.0
    (loss,) = [a for a in world.happen(Tick()) if isinstance(a, ToClient)]
    assert owned(refusal([loss]))
    assert (loss.message.session, loss.message.request) == (session, 0)
    assert answers(world.idle(worker, ended)) == [(A, Kind.ERROR, 0)]
    world.now += 10.0
    assert answers(world.happen(Tick())) == []


def test_whose_lease_runs_out_holds_nothing_of_what_it_owns_no_more() -> None:
    world = World(shared=True)
    world.hello(A, lease=10.0)
    session, _ = world.started(A, reader=500, detach_ttl=90.0)
    world.ask(A, Kind.CLOCK, session)
    world.ask(A, Kind.POLL, session)
    poll = world.last_request
    world.now += 10.0
    said = world.happen(Tick())
    assert answers(said) == [(A, Kind.ERROR, request) for request in (0, 500, poll)]
    assert all(owned(refusal([action])) for action in said[:3])
    assert said[3:] == stopped(world, A, session)
    assert world.happen(ClientGone(A)) == []


def test_what_a_dead_lease_starts_from_its_queue_is_dropped_too() -> None:
    world = World()
    world.hello(A, lease=10.0)
    world.now = 60.0
    assert world.happen(Tick()) == []
    _, worker = world.started(A)
    world.now = 70.0
    assert released(world.happen(Tick())) == [worker]


def test_without_leases_nothing_is_due(world: World) -> None:
    world.happen(LeaseRenewed(A))
    assert world.router.next_deadline() is None


# Workers that stand still


def test_a_worker_that_does_not_start_is_condemned() -> None:
    world = World()
    world.hello(A)
    _, worker, _ = world.spawn()
    assert world.router.next_deadline() == 50.0 + START_TIMEOUT
    world.now += START_TIMEOUT
    assert world.happen(Tick()) == [Condemn(worker)]
    assert world.happen(Tick()) == []
    (_, answer) = world.happen(WorkerGone(worker, 0, True))
    assert isinstance(refusal([answer]), errors.WorkerLost)


def test_a_worker_that_does_not_answer_a_kill_is_condemned(world: World) -> None:
    session, worker = world.started()
    assert world.router.next_deadline() is None
    world.ask(A, Kind.KILL, session, KILL | {"grace": 2.0, "timeout": 3.0})
    assert world.router.next_deadline() == 55.0 + HUNG_MARGIN
    world.ask(A, Kind.KILL, session, KILL | {"timeout": 9.0})
    world.now = 55.0 + HUNG_MARGIN
    assert world.happen(Tick()) == [Condemn(worker)]
    assert world.router.next_deadline() is None


def test_each_kill_is_to_be_answered_in_its_own_time(world: World) -> None:
    session, worker = world.started()
    patient = world.message(A, Kind.KILL, session, KILL | {"grace": 3600.0})
    world.happen(FromClient(A, patient))
    hasty = world.message(A, Kind.KILL, session, KILL | {"timeout": 1.0})
    world.happen(FromClient(A, hasty))
    assert world.router.next_deadline() == 51.0 + HUNG_MARGIN
    survivor = {"receipt": [1, 0, [[5, "D"]]]}
    world.say(worker, hasty.reply(Kind.REPLY, survivor))
    assert world.router.next_deadline() == 3655.0 + HUNG_MARGIN
    world.happen(ClientGone(A))
    assert world.router.next_deadline() == 55.0 + HUNG_MARGIN


def test_the_time_of_a_kill_begins_when_its_worker_has_started(world: World) -> None:
    session, worker, start = world.spawn()
    kill = world.message(A, Kind.KILL, session)
    world.happen(FromClient(A, kill))
    assert world.router.next_deadline() == 50.0 + START_TIMEOUT
    world.now += 20.0
    world.say(worker, start.reply(Kind.REPLY, {"pid": 5}))
    assert world.router.next_deadline() == 75.0 + HUNG_MARGIN
    world.say(worker, kill.reply(Kind.REPLY, {"receipt": [1, 1, []]}))
    assert world.router.next_deadline() is None


def test_a_worker_that_answers_its_last_kill_is_not_waited_for(world: World) -> None:
    session, worker = world.started()
    asked = [world.message(A, Kind.KILL, session) for _ in range(2)]
    for message in asked:
        world.happen(FromClient(A, message))
    for message in asked:
        assert world.router.next_deadline() is not None
        world.say(worker, message.reply(Kind.REPLY, {"receipt": [1, 1, []]}))
    assert world.router.next_deadline() is None


def killed_by_one_that_is_gone(two: World, session: int) -> Message:
    """Have a kill be asked by a client that is gone before the answer."""
    kill = two.message(AGAIN, Kind.KILL, session, KILL | {"grace": 9.0})
    two.happen(FromClient(AGAIN, kill))
    two.happen(ClientGone(AGAIN))
    return kill


def test_a_worker_that_answers_a_kill_of_one_that_is_gone_is_not_waited_for(
    two: World,
) -> None:
    session, worker = two.started(A)
    kill = killed_by_one_that_is_gone(two, session)
    two.push(worker, Kind.EXITED, session)
    assert two.router.due.keys() == {session}
    assert two.say(worker, kill.reply(Kind.REPLY, {"receipt": [1, 1, []]})) == []
    assert two.router.due == {}


def test_a_worker_that_starts_and_then_stands_still_is_late_for_one_that_is_gone(
    two: World,
) -> None:
    session, worker, start = two.spawn(A)
    killed_by_one_that_is_gone(two, session)
    two.say(worker, start.reply(Kind.REPLY, {"pid": 5}))
    assert two.router.due.keys() == {session}


def test_a_kill_that_wants_no_answer_is_not_waited_for(world: World) -> None:
    session, worker = world.started()
    assert told(world.ask(A, Kind.KILL, session, request=0)) == [(worker, Kind.KILL)]
    assert world.router.next_deadline() is None
    world.ask(A, Kind.KILL, session, RELEASE, request=0)
    assert world.router.next_deadline() == 55.0 + HUNG_MARGIN


def test_a_worker_that_does_not_go_idle_is_condemned(world: World) -> None:
    session, worker = world.started()
    release = world.message(A, Kind.KILL, session, RELEASE)
    world.happen(FromClient(A, release))
    world.say(worker, release.reply(Kind.REPLY, {"receipt": [1, 1, []]}))
    assert world.router.next_deadline() == 55.0 + HUNG_MARGIN
    world.idle(worker, session)
    assert world.router.next_deadline() is None


def test_a_worker_that_does_not_end_what_was_dropped_is_condemned(world: World) -> None:
    _, worker = world.started()
    world.happen(ClientGone(A))
    world.now += DROP_TIMEOUT + HUNG_MARGIN
    assert world.happen(Tick()) == [Condemn(worker)]


def test_a_lost_worker_is_not_waited_for(world: World) -> None:
    session, worker = world.started()
    world.ask(A, Kind.KILL, session)
    world.happen(WorkerGone(worker, 0, True))
    assert world.router.next_deadline() is None


# Workers


def test_an_idle_worker_is_used_again(world: World) -> None:
    session, worker = world.started()
    world.ask(A, Kind.KILL, session, RELEASE)
    world.idle(worker, session)
    again, same, _ = world.spawn(token="u")
    assert same == worker
    assert again == session + 1


def test_more_idle_workers_than_wanted_are_retired(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "IDLE_WORKERS", 1)
    first, one = world.started(token="1")
    second, two = world.started(token="2")
    assert world.idle(one, first) == []
    said = ToWorker(two, Message(Kind.RETIRE))
    assert world.idle(two, second) == [said, Retire(two)]
    assert world.router.slots == {one: None}
    assert world.happen(WorkerGone(two, 0, True)) == [Retire(two)]


def test_an_idle_worker_that_dies_is_not_used(world: World) -> None:
    session, worker = world.started()
    world.idle(worker, session)
    assert world.happen(WorkerGone(worker, 0, True)) == [Retire(worker)]
    assert world.spawn(token="u")[1] != worker


def test_going_idle_answers_what_waits(world: World) -> None:
    session, worker = world.started()
    world.ask(A, Kind.POLL, session)
    poll = world.last_request
    world.ask(A, Kind.KILL, session, RELEASE)
    assert sorted(answers(world.idle(worker, session))) == [
        (A, Kind.ERROR, poll),
        (A, Kind.ERROR, world.last_request),
    ]


def test_a_worker_speaks_for_its_own_session_only(world: World) -> None:
    first, one = world.started(token="1")
    second, two = world.started(token="2")
    for kind in (Kind.EXITED, Kind.IDLE):
        assert world.push(one, kind, second) == []
        assert world.push(one, kind, 0) == []
        assert world.push(99, kind, first) == []
    assert world.router.slots == {one: first, two: second}
    assert world.state(first) is world.state(second) is State.RUNNING


def test_an_idle_worker_has_nothing_to_say(world: World) -> None:
    session, worker = world.started()
    world.idle(worker, session)
    for kind in (Kind.EXITED, Kind.IDLE):
        assert world.push(worker, kind, session) == []
    assert world.router.idle == [worker]


def test_an_answer_that_nobody_waits_for_goes_nowhere(world: World) -> None:
    session, worker = world.started()
    asked = world.message(A, Kind.POLL, session)
    for answer in (asked.reply(Kind.REPLY), asked.reply(Kind.ERROR, NOT_FOUND)):
        world.happen(FromClient(A, asked))
        assert world.say(worker, answer) == [ToClient(A, answer)]
        assert world.say(worker, answer) == []


def test_a_spawn_that_wants_no_answer_gets_none(world: World) -> None:
    (start,) = [
        a.message
        for a in world.ask(A, Kind.SPAWN, body=SPAWN, request=0)
        if isinstance(a, ToWorker)
    ]
    assert world.say(1, start.reply(Kind.REPLY, {"pid": 5})) == []
    assert world.state(start.session) is State.RUNNING


def test_a_worker_cannot_say_what_a_broker_says(world: World) -> None:
    session, worker = world.started()
    message = Message(Kind.WELCOME, 0, 0, session, EPOCH, 0.0, {"clock": 0.0})
    assert world.say(worker, message) == []


@pytest.mark.parametrize("request_id", [9, 0])
def test_output_goes_to_the_client_that_reads(shared: World, request_id: int) -> None:
    session, worker = shared.started(A)
    body = {"stream": "stdout", "offset": 0, "sequence": 0}
    chunk = Message(Kind.CHUNK, 3, request_id, session, EPOCH, 0.0, body, b"data")
    assert shared.clients[OPERATOR] == 3
    assert shared.say(worker, chunk) == [ToClient(OPERATOR, chunk)]


def test_the_exit_is_pushed_to_the_owner_the_close_is_only_noted(world: World) -> None:
    session, worker = world.started()
    assert answers(world.push(worker, Kind.EXITED, session)) == [(A, Kind.EXITED, 0)]
    assert world.state(session) is State.EXITED
    assert answers(world.push(worker, Kind.CLOSED, session)) == []
    assert world.state(session) is State.CLOSED


def test_an_end_does_not_bring_a_leaving_session_back(world: World) -> None:
    session, worker, start = world.spawn()
    world.ask(A, Kind.DROP, body={"sessions": [session], "tokens": []}, request=0)
    world.say(worker, start.reply(Kind.REPLY, {"pid": 5}))
    world.push(worker, Kind.EXITED, session)
    assert world.state(session) is State.LEAVING


def test_an_early_end_is_not_undone_by_the_answer_to_the_start(world: World) -> None:
    session, worker, start = world.spawn()
    world.push(worker, Kind.EXITED, session)
    world.say(worker, start.reply(Kind.REPLY, {"pid": 5}))
    assert world.state(session) is State.EXITED


# Whatever happens


@dataclass
class FakeWorker:
    """A worker as the router may expect it: in order, one session at a time."""

    inbox: deque[Message] = field(default_factory=deque)
    forked: bool = False
    session: int = 0
    released: bool = False
    asked: list[Message] = field(default_factory=list)


WATCHER = b"watcher"
LONG = (Kind.POLL, Kind.READ, Kind.OPEN)
OWNERS = {A: OWNER, B: OTHER, b"c": OWNER, OPERATOR: b"third"}

anyone = st.integers(0, 99)
"""Which of those that there are: clients, sessions, workers, requests."""


def one_of(things: Iterable[T], which: int) -> T:
    choice = list(things)
    return choice[which % len(choice)]


class Traffic(RuleBasedStateMachine):
    """Clients, workers and a pool around a router; anybody may die at any moment."""

    @initialize(
        shared=st.booleans(),
        warm=st.integers(0, 2),
        capacity=st.integers(1, 5),
        leases=st.tuples(*[st.sampled_from([0.0, 5.0])] * len(OWNERS)),
    )
    def start(
        self, shared: bool, warm: int, capacity: int, leases: tuple[float, ...]
    ) -> None:
        self.world = World(shared=shared, warm=warm, capacity=capacity)
        self.router = self.world.router
        self.clients = self.world.clients
        self.workers: dict[int, FakeWorker] = {}
        self.pool = False
        self.open: dict[tuple[int, int], Kind] = {}
        self.captures: dict[tuple[int, int], tuple[int, int]] = {}
        self.unopened: set[tuple[int, int]] = set()
        self.answered: Counter[tuple[int, int]] = Counter()
        self.excused: set[tuple[int, int]] = set()
        self.starts: Counter[tuple[bytes, str]] = Counter()
        self.spawns: dict[tuple[int, int], tuple[bytes, str]] = {}
        self.buried: set[tuple[bytes, str]] = set()
        self.released: set[int] = set()
        self.orphans: set[int] = set()
        self.begun: set[int] = set()
        self.concluded: Counter[int] = Counter()
        self.pool_comes()
        self.world.hello(WATCHER, b"all", operator=True)
        watching = Message(
            Kind.WATCH, self.clients.pop(WATCHER), 1, 0, EPOCH, 0.0, {"scope": None}
        )
        self.happen(FromClient(WATCHER, watching))
        for peer, lease in zip(OWNERS, leases, strict=True):
            self.connect(peer, lease)

    # -- carrying out ------------------------------------------------------------

    def happen(self, event: Event) -> list[Action]:
        actions = self.world.happen(event)
        for action in actions:
            self.carry_out(action)
        for action in actions:  # later: what was said besides comes to it first
            if isinstance(action, Condemn):
                self.happen(WorkerGone(action.worker, 0, True))
        return actions

    def carry_out(self, action: Action) -> None:
        match action:
            case Fork(worker):
                assert worker not in self.workers
                self.workers[worker] = FakeWorker(forked=self.pool)
            case Retire(worker):
                self.workers.pop(worker, None)
            case Condemn(worker):
                assert worker in self.workers
            case ToWorker(worker, message):
                self.deliver(worker, message)
            case ToClient(peer, message) if peer == WATCHER:
                self.note(message)
            case ToClient(peer, message):
                assert message.client == self.clients[peer] or not message.request
                self.receive(message)
            case _:
                assert_never(action)

    def deliver(self, worker: int, message: Message) -> None:
        self.workers[worker].inbox.append(message)
        if message.kind is Kind.START:
            token = self.spawns[message.client, message.request]
            assert token not in self.buried, "a spawn that is over was started"
            self.starts[token] += 1
        elif message.kind is Kind.KILL and message.body["release"]:
            self.released.add(message.session)

    def note(self, message: Message) -> None:
        event = message.body["event"]
        if event == "starting":
            self.begun.add(message.session)
        elif event in TERMINAL:
            self.concluded[message.session] += 1
        credit = Message(
            Kind.CREDIT, message.client, message.request, 0, EPOCH, 0.0, taken(10**6)
        )
        self.happen(FromClient(WATCHER, credit))

    def receive(self, message: Message) -> None:
        key = message.client, message.request
        final = {Kind.REPLY, Kind.ERROR}
        if self.open.get(key) is Kind.OPEN:
            final |= {Kind.CLOSED}
        if key in self.open and message.kind in final:
            self.answered[key] += 1
        if message.kind is Kind.REPLY and key in self.captures:
            self.unopened.discard(self.captures[key])

    def ask(self, peer: bytes, kind: Kind, session: int = 0, body: Any = None) -> None:
        message = self.world.message(peer, kind, session, body)
        key = message.client, message.request
        self.open[key] = kind
        if kind is Kind.SPAWN:
            self.spawns[key] = (OWNERS[peer], message.body["token"])
        self.happen(FromClient(peer, message))

    # -- clients -----------------------------------------------------------------

    def connect(self, peer: bytes, lease: float) -> None:
        operator = peer == OPERATOR
        self.world.hello(peer, OWNERS[peer], operator=operator, lease=lease)

    @precondition(lambda self: len(self.clients) < len(OWNERS))
    @rule(which=anyone, lease=st.sampled_from([0.0, 5.0]))
    def client_comes(self, which: int, lease: float) -> None:
        self.connect(one_of(sorted(OWNERS.keys() - self.clients.keys()), which), lease)

    @precondition(lambda self: self.clients)
    @rule(
        which=anyone,
        token=st.sampled_from("123456"),
        reads=st.booleans(),
        stays=st.booleans(),
        limits=st.fixed_dictionaries(
            {
                "queue": st.sampled_from([None, 5.0]),
                "scope_capacity": st.sampled_from([None, 1, 2]),
                "client_capacity": st.sampled_from([None, 2]),
                "detach_ttl": st.sampled_from([None, None, 5.0]),
                "on_full": st.sampled_from(["refuse", "evict"]),
            }
        ),
    )
    def client_spawns(
        self,
        which: int,
        token: str,
        reads: bool,
        stays: bool,
        limits: dict[str, Any],
    ) -> None:
        peer = one_of(self.clients, which)
        reader = None
        if reads:
            self.world.last_request = reader = self.world.last_request + 1
            capture = self.clients[peer], reader
            self.open[capture] = Kind.OPEN
            # It is a request only once the start is answered.
            self.unopened.add(capture)
            self.captures[self.clients[peer], reader + 1] = capture
        body = {"token": token, "reader": reader, "kill_on_drop": not stays}
        self.ask(peer, Kind.SPAWN, body=SPAWN | body | limits)

    @precondition(lambda self: self.clients and self.router.sessions)
    @rule(which=anyone, kind=st.sampled_from(list(COMMANDS)), session=anyone)
    def client_commands(self, which: int, kind: Kind, session: int) -> None:
        peer = one_of(self.clients, which)
        self.ask(peer, kind, one_of(self.router.sessions, session))

    @precondition(lambda self: self.clients and self.router.sessions)
    @rule(which=anyone, session=anyone)
    def client_releases(self, which: int, session: int) -> None:
        peer = one_of(self.clients, which)
        self.ask(peer, Kind.KILL, one_of(self.router.sessions, session), RELEASE)

    def stoppable(self) -> list[tuple[int, registry.Ask]]:
        return [
            (session.id, ask)
            for session in self.router.sessions.values()
            for ask, kind in session.pending.items()
            if kind in LONG
        ]

    @precondition(lambda self: self.stoppable())
    @rule(which=anyone)
    def client_stops(self, which: int) -> None:
        session, target = one_of(self.stoppable(), which)
        if self.router.sessions[session].state is not State.LEAVING:
            self.excused.add(target)
        peer = self.router.peers[target.client]
        self.ask(peer, Kind.STOP, session, {"target": target.request})

    @precondition(lambda self: self.clients and self.router.sessions)
    @rule(which=anyone, session=anyone, steal=st.booleans())
    def client_attaches(self, which: int, session: int, steal: bool) -> None:
        peer = one_of(self.clients, which)
        number = one_of(self.router.sessions, session)
        self.ask(peer, Kind.ATTACH, number, {"steal": steal})

    def attached(self) -> list[tuple[int, registry.Ask]]:
        return [
            (session.id, registry.Ask(session.client, session.attach.request))
            for session in self.router.sessions.values()
            if session.attach is not None and session.client in self.router.peers
        ]

    @precondition(lambda self: self.attached())
    @rule(which=anyone)
    def client_takes_an_attach_back(self, which: int) -> None:
        number, target = one_of(self.attached(), which)
        self.excused.add(target)
        peer = self.router.peers[target.client]
        self.ask(peer, Kind.STOP, number, {"target": target.request})
        session = self.router.sessions.get(number)
        if session is not None and not session.client:
            self.orphans.add(number)

    @precondition(lambda self: self.clients and self.router.sessions)
    @rule(which=anyone, session=anyone, ttl=st.sampled_from([None, 5.0]))
    def client_detaches(self, which: int, session: int, ttl: float | None) -> None:
        peer = one_of(self.clients, which)
        number = one_of(self.router.sessions, session)
        self.ask(peer, Kind.DETACH, number, {"ttl": ttl})
        if not self.router.sessions[number].client:
            self.orphans.add(number)

    @precondition(lambda self: self.clients)
    @rule(
        which=anyone,
        token=st.sampled_from("123456"),
        what=st.sampled_from(["token", "sessions"]),
    )
    def client_drops(self, which: int, token: str, what: str) -> None:
        peer = one_of(self.clients, which)
        if what == "sessions":
            sessions = list(self.router.sessions)
            self.ask(peer, Kind.DROP, body={"sessions": sessions, "tokens": []})
            return
        key = OWNERS[peer], token
        session = self.router.sessions.get(self.router.tokens.get(key) or 0)
        waiting = self.router.line.waiting.get(key)
        others = waiting.clients - {self.clients[peer]} if waiting else set()
        if session is None and not others:
            self.buried.add(key)
        before = deepcopy(session)
        self.ask(peer, Kind.DROP, body={"sessions": [], "tokens": [token]})
        if before is not None and before.client not in (0, self.clients[peer]):
            assert session == before, "it is another client's"

    @precondition(lambda self: self.clients and self.router.sessions)
    @rule(which=anyone, sessions=st.lists(anyone, max_size=4))
    def client_kills_many(self, which: int, sessions: list[int]) -> None:
        ids = [one_of(self.router.sessions, session) for session in sessions]
        self.ask(one_of(self.clients, which), Kind.KILL_MANY, body=many(*ids))

    @precondition(lambda self: self.clients)
    @rule(which=anyone)
    def client_asks_the_broker(self, which: int) -> None:
        self.ask(
            one_of(self.clients, which),
            Kind.LIST,
            body={"scope": None, "readable": False},
        )
        self.ask(one_of(self.clients, which), Kind.INFO)

    def foreign(self) -> list[tuple[bytes, int]]:
        return [
            (peer, session.id)
            for peer in self.clients
            for session in self.router.sessions.values()
            if peer != OPERATOR and session.owner != OWNERS[peer]
        ]

    @precondition(lambda self: self.foreign())
    @rule(which=anyone, kind=st.sampled_from(list(COMMANDS)))
    def a_foreign_session_is_as_if_absent(self, which: int, kind: Kind) -> None:
        peer, session = one_of(self.foreign(), which)
        seen = []
        for number in (session, 1):
            message = self.world.message(peer, kind, number)
            (action,) = self.happen(FromClient(peer, message))
            assert isinstance(action, ToClient)
            seen.append(action.message._replace(request=0, session=0))
        assert seen[0] == seen[1]
        assert seen[0].body["code"] == errors.SessionNotFound.code

    @rule(
        seconds=st.sampled_from([1.0, 6.0, 40.0]),
        renew=st.sets(st.sampled_from([A, B])),
    )
    def time_passes(self, seconds: float, renew: set[bytes]) -> None:
        self.world.now += seconds
        for peer in sorted(renew):
            self.happen(LeaseRenewed(peer))
        self.happen(Tick())
        due = self.router.next_deadline()
        assert due is None or due > self.world.now, "the loop would spin"

    # -- workers and their pool --------------------------------------------------

    def ready(self) -> list[int]:
        return [
            n for n, worker in self.workers.items() if worker.forked and worker.inbox
        ]

    @precondition(lambda self: self.ready())
    @rule(which=anyone, commands=st.integers(1, 9), works=st.sampled_from([1, 1, 0]))
    def worker_takes_commands(self, which: int, commands: int, works: int) -> None:
        number = one_of(self.ready(), which)
        for _ in range(commands):
            if number in self.workers and self.workers[number].inbox:
                self.work(number, works=bool(works))

    def with_session(self) -> list[int]:
        return [number for number, worker in self.workers.items() if worker.session]

    @precondition(lambda self: self.with_session())
    @rule(which=anyone, what=st.sampled_from(["exited", "closed", "idle", "answer"]))
    def worker_says_something(self, which: int, what: str) -> None:
        number = one_of(self.with_session(), which)
        worker = self.workers[number]
        if what == "answer" and worker.asked:
            self.answer_late(number, worker.asked.pop(0))
        elif worker.released:
            self.finish(number)
        else:
            kind = Kind.EXITED if what == "exited" else Kind.CLOSED
            end = Message(kind, 0, 0, worker.session, EPOCH, 0.0, STATUS)
            self.say(number, end)

    def answer_late(self, number: int, message: Message) -> None:
        if message.kind is Kind.OPEN:
            self.say(number, message.reply(Kind.CLOSED, STATUS))
        else:
            self.say(number, message.reply(Kind.REPLY))

    @rule(
        which=anyone,
        what=st.sampled_from(["client", "worker", "fork", "pool", "nothing"]),
        proven=st.booleans(),
    )
    def disaster(self, which: int, what: str, proven: bool) -> None:
        fresh = [n for n, w in self.workers.items() if not (w.session or w.released)]
        if what == "client" and self.clients:
            self.client_goes(one_of(self.clients, which))
        elif what == "worker" and self.workers:
            self.happen(WorkerGone(one_of(self.workers, which), 0, proven))
        elif what == "fork" and fresh:
            self.happen(WorkerGone(one_of(fresh, which), 11, True))
        elif what == "pool":
            self.pool = False
            before = set(self.router.slots)
            self.happen(PoolGone(proven=True))
            assert not before & self.router.slots.keys()

    def client_goes(self, peer: bytes) -> None:
        number = self.clients.pop(peer)
        self.excused |= {key for key in self.open if key[0] == number}
        self.happen(ClientGone(peer))

    @precondition(lambda self: not self.pool)
    @rule()
    def pool_comes(self) -> None:
        self.pool = True
        for worker in self.workers.values():
            worker.forked = True
        self.happen(PoolReady())

    def say(self, worker: int, message: Message) -> None:
        self.happen(FromWorker(worker, message))

    def work(self, number: int, *, works: bool = True) -> None:
        """Let a worker take its next command, as a real one would."""
        worker = self.workers[number]
        message = worker.inbox.popleft()
        if message.kind is Kind.START:
            self.begin(number, message, works=works)
        elif message.session != worker.session:
            if message.request:
                self.say(number, message.reply(Kind.ERROR, NOT_FOUND))
        elif message.kind is Kind.KILL:
            worker.released |= message.body["release"]
            if message.request:
                self.say(number, message.reply(Kind.REPLY, {"receipt": [1, 1, []]}))
        elif message.kind is Kind.STOP:
            target = message.client, message.body["target"]
            worker.asked = [m for m in worker.asked if (m.client, m.request) != target]
            if message.request:
                self.say(number, message.reply(Kind.REPLY))
        elif message.request and (message.kind in LONG or not works):
            worker.asked.append(message)
        elif message.request:
            self.say(number, message.reply(Kind.REPLY))

    def begin(self, number: int, message: Message, *, works: bool) -> None:
        worker = self.workers[number]
        assert worker.session == 0, "it has a session already"
        if not works:
            body = {"code": errors.SpawnFailed.code, "values": [2, "exec", ""]}
            self.say(number, message.reply(Kind.ERROR, body))
            self.say(
                number, Message(Kind.IDLE, 0, 0, message.session, EPOCH, 0.0, STAMPS)
            )
            return
        worker.session = message.session
        reader = message.body["reader"]
        if reader is not None:
            opened = message._replace(kind=Kind.OPEN, request=reader, payload=None)
            worker.asked.append(opened)
        self.say(number, message.reply(Kind.REPLY, {"pid": 5}))

    def finish(self, number: int) -> None:
        """Let a worker whose session was released go idle."""
        worker = self.workers[number]
        for message in worker.asked:
            self.say(number, message.reply(Kind.ERROR, NOT_FOUND))
        session, worker.session = worker.session, 0
        worker.released = False
        worker.asked = []
        self.say(number, Message(Kind.IDLE, 0, 0, session, EPOCH, 0.0, STAMPS))

    # -- laws --------------------------------------------------------------------

    @invariant()
    def a_session_that_is_gone_had_one_terminal_event(self) -> None:
        living = {n for n, s in self.router.sessions.items() if not s.concluded}
        assert self.begun - living == self.concluded.keys()
        assert all(count == 1 for count in self.concluded.values())

    @invariant()
    def a_request_is_answered_at_most_once(self) -> None:
        assert all(count == 1 for count in self.answered.values())

    @invariant()
    def a_token_starts_at_most_once(self) -> None:
        assert all(count == 1 for count in self.starts.values())

    @invariant()
    def a_token_lives_as_long_as_its_session(self) -> None:
        living = [number for number in self.router.tokens.values() if number]
        assert sorted(living) == sorted(self.router.sessions)

    @invariant()
    def what_a_worker_runs_is_known_and_its_own(self) -> None:
        for number, worker in self.workers.items():
            if worker.session:
                assert self.router.sessions[worker.session].worker == number
                assert self.router.slots[number] == worker.session

    @invariant()
    def a_worker_has_one_session_and_a_session_one_worker(self) -> None:
        bound = [number for number in self.router.slots.values() if number]
        assert len(bound) == len(set(bound))
        for session in self.router.sessions.values():
            if session.state is State.LOST:
                assert session.worker not in self.router.slots
            else:
                assert self.router.slots[session.worker] == session.id
        idle = self.router.idle
        assert len(idle) == len(set(idle))
        assert {n for n, bound in self.router.slots.items() if bound is None} == set(
            idle
        )

    @invariant()
    def the_router_knows_the_workers_that_there_are(self) -> None:
        assert self.router.slots.keys() == self.workers.keys()

    @invariant()
    def whoever_lost_its_owner_is_being_killed(self) -> None:
        owners = set(self.router.peers)
        for session in self.router.sessions.values():
            if session.state is State.LEAVING:
                assert session.id in self.released
            elif session.client:
                assert session.client in owners
            else:
                assert session.stays or session.id in self.orphans
                assert self.router.shared

    @invariant()
    def pending_requests_have_somebody_who_waits(self) -> None:
        for session in self.router.sessions.values():
            for ask, kind in session.pending.items():
                if ask.client == 0:
                    assert session.id in self.router.batches[ask.request].missing
                    continue
                lasts = kind in (Kind.SPAWN, Kind.KILL)
                assert ask.client in self.router.peers or lasts
                assert self.answered[ask] == 0

    @invariant()
    def whoever_must_answer_has_a_deadline_and_nobody_else(self) -> None:
        must = {
            session.id
            for session in self.router.sessions.values()
            if {Kind.SPAWN, Kind.KILL} & set(session.pending.values())
            or session.state is State.LEAVING
        }
        assert self.router.due.keys() == must

    @invariant()
    def whoever_waits_has_a_client_a_deadline_and_no_room(self) -> None:
        line = self.router.line
        load = admission.Load(self.router.sessions, self.router.busy)
        assert not list(line.admitted(load))
        for applicant in line.waiting.values():
            assert applicant.clients <= self.router.peers.keys()
            assert applicant.token not in self.router.tokens
            assert applicant.ends >= (self.router.next_deadline() or 0.0)

    @invariant()
    def there_are_no_more_sessions_than_there_may_be(self) -> None:
        states = [session.state for session in self.router.sessions.values()]
        there = len(states) - states.count(State.LOST)
        assert self.router.busy == there <= self.router.capacity.sessions

    def teardown(self) -> None:
        """Let everything come to rest: then every request has its answer."""
        if not hasattr(self, "world"):
            return
        self.pool_comes()
        while self.with_session() or self.ready():  # room lets more of them start
            self.come_to_rest()
        self.world.now += 10.0
        self.happen(Tick())
        excused = self.excused | self.unopened
        waiting = self.open.keys() - self.answered.keys() - excused
        assert not waiting, {self.open[key] for key in waiting}
        self.every_invariant_once_more()
        for peer in list(self.clients):
            self.client_goes(peer)
        assert not [s for s in self.router.sessions.values() if s.client]
        assert not [s for s in self.router.sessions.values() if s.state in LIVE]

    def come_to_rest(self) -> None:
        while busy := self.ready():
            self.work(busy[0])
        for number, worker in list(self.workers.items()):
            if worker.released:
                self.finish(number)
            elif worker.session:
                self.happen(WorkerGone(number, 0, True))

    def every_invariant_once_more(self) -> None:
        self.a_request_is_answered_at_most_once()
        self.a_worker_has_one_session_and_a_session_one_worker()
        self.whoever_lost_its_owner_is_being_killed()
        self.pending_requests_have_somebody_who_waits()


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(
    stateful_step_count=60,
    deadline=None,
    # Shrinking takes minutes: a failure is told as it was found.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


# After a lost broker

GRACE = 3.0
FACTS: dict[str, Any] = {
    "pid": 5,
    "started": 49.0,
    "stdin": True,
    "status": None,
    "closed": False,
    "released": False,
    "clients": [],
    "used": 49.0,
}


class Lost(World):
    """A shared broker with a grace and one client, and those that come after it."""

    def __init__(self, warm: int = 0) -> None:
        self.numbers = [0, 0, 0]
        super().__init__(shared=True, warm=warm, grace=GRACE, numbers=self.numbers)
        self.proofs = {A: self.hello(A)}
        self.memos: dict[int, bytes] = {}

    def _handle(self, event: Event) -> list[Action]:
        actions = super()._handle(event)
        for action in actions:
            if isinstance(action, ToWorker) and "memo" in action.message.body:
                message = action.message
                self.memos[message.session] = message.body["memo"]
        return actions

    def next(
        self,
        *workers: int,
        last: bool = True,
        whole: bool = True,
        pool: bool = True,
    ) -> list[Action]:
        """Another broker takes the place of this one; these workers live."""
        old = self.router
        self.router = Router(
            EPOCH,
            shared=True,
            warm=old.warm,
            capacity=old.capacity,
            grace=GRACE,
            numbers=self.numbers,
            secret=b"secret",
        )
        assert self.happen(CallRoll(self.now + GRACE, pool)) == []
        assert self.happen(PoolReady()) == []
        return self.happen(Found(list(workers), last, whole))

    def register(self, worker: int, session: int, **facts: Any) -> list[Action]:
        body, memo = FACTS | facts, self.memos[session]
        ids = 0, 0, session, EPOCH
        return self.say(worker, Message(Kind.REGISTER, *ids, 0.0, body, memo))

    def back(self, peer: bytes = A, owner: bytes = OWNER) -> bytes:
        number = self.clients[peer]
        return self.hello(peer, owner, number=number, proof=self.proofs[peer])

    def taken_over(self, **facts: Any) -> tuple[int, int]:
        """A session whose worker has registered with another broker."""
        session, worker = self.started()
        self.next(worker)
        self.register(worker, session, **facts)
        return session, worker

    def claim(self, *sessions: int, peer: bytes = A) -> list[Action]:
        body = {"sessions": list(sessions), "visits": []}
        return self.ask(peer, Kind.CLAIM, body=body, request=0)

    def visits(self, *sessions: int, peer: bytes) -> list[Action]:
        """Claim visits, each of which had the number 501."""
        pairs = [number for session in sessions for number in (session, 501)]
        body = {"sessions": [], "visits": pairs}
        return self.ask(peer, Kind.CLAIM, body=body, request=0)


@pytest.fixture
def lost() -> Lost:
    return Lost()


def resumed() -> dict[str, Any]:
    window = {"chunks": 8, "bytes": 4096, "capture": False}
    place = dict.fromkeys(("stdout", "stderr", "received", "taken", "sequence"), 0)
    return place | window | {"local": False, "ended": [], "exited": False}


def test_s46_nobody_is_heard_before_every_living_worker_has_spoken(lost: Lost) -> None:
    first, second = lost.started(), lost.started(token="u")
    lost.next(first[1], second[1], last=False)
    assert lost.router.calling_roll
    lost.register(first[1], first[0])
    lost.register(second[1], second[0])
    assert lost.router.calling_roll  # there may be more
    lost.happen(Found([], True, True))
    assert lost.router.rollcall is None
    assert lost.router.sessions.keys() == {first[0], second[0]}


def test_s46_a_worker_that_is_gone_is_not_waited_for(lost: Lost) -> None:
    session, worker = lost.started()
    lost.next(worker)
    lost.happen(WorkerGone(worker, 0, True))
    assert not lost.router.calling_roll
    lost.back()
    (loss,) = lost.claim(session)
    assert isinstance(loss, ToClient)
    assert loss.message.body["code"] == errors.WorkerLost.code


def test_s46_a_pool_that_is_gone_has_no_workers(lost: Lost) -> None:
    _, worker = lost.started()
    lost.next(worker, last=False)
    lost.happen(PoolGone(True))
    assert not lost.router.calling_roll


def test_a_pool_may_be_lost_without_a_broker(lost: Lost) -> None:
    lost.started()
    lost.happen(PoolGone(True))
    assert lost.happen(Found([], True, True)) == []


def test_s46_a_worker_that_stands_still_is_condemned_after_the_grace(
    lost: Lost,
) -> None:
    session, worker = lost.started()
    lost.next(worker)
    assert lost.router.next_deadline() == lost.now + GRACE
    lost.now += GRACE
    assert lost.happen(Tick()) == [Condemn(worker)]
    assert not lost.router.calling_roll
    assert lost.register(worker, session) == []  # too late
    assert lost.router.sessions == {}


def test_whoever_spoke_is_heard_however_late_that_is_looked_at(lost: Lost) -> None:
    session, worker = lost.started()
    lost.next(pool=True, last=False)
    lost.now += 2 * GRACE  # it is the broker that stood still
    assert lost.happen(Found([worker], False, True)) == []
    assert lost.register(worker, session) == []
    assert lost.router.calling_roll
    assert lost.happen(Found([], True, True)) == []
    assert lost.router.rollcall is None
    assert lost.router.sessions.keys() == {session}
    assert not lost.router.doubt


def test_workers_that_are_told_of_after_the_roll_call_are_condemned(lost: Lost) -> None:
    session, worker = lost.started()
    lost.next(last=False)
    lost.now += GRACE
    assert lost.happen(Tick()) == []
    assert lost.happen(Found([worker], True, True)) == [Condemn(worker)]
    assert lost.register(worker, session) == []
    lost.back()
    again = lost.ask(A, Kind.SPAWN, body=SPAWN | {"again": True})
    assert isinstance(refusal(again), errors.WorkerLost)


def test_s46_idle_workers_are_used_again() -> None:
    lost = Lost(warm=1)
    lost.happen(PoolReady())
    lost.next(1)
    assert lost.say(1, Message(Kind.IDLE, body={"stamps": []})) == []
    lost.back()
    _, worker, _ = lost.spawn()
    assert worker == 1


def test_s46_a_broker_forks_what_it_did_not_find() -> None:
    lost = Lost(warm=1)
    lost.happen(PoolReady())
    assert lost.next() == [Fork(2)]  # no number is given twice


def test_s46_a_client_comes_back_as_the_one_it_was(lost: Lost) -> None:
    session, worker = lost.taken_over()
    number = lost.clients[A]
    assert lost.back() == lost.proofs[A]
    assert lost.clients[A] == number
    assert lost.claim(session) == []
    assert told(lost.ask(A, Kind.POLL, session)) == [(worker, Kind.POLL)]
    lost.hello(B)
    assert lost.clients[B] == number + 1


def test_s46_nobody_comes_back_as_somebody_else(lost: Lost) -> None:
    proof = lost.proofs[A]
    lost.next()
    for event in (
        Hello(B, OTHER, False, 0.0, 7, 1, proof),
        Hello(B, OWNER, False, 0.0, 7, 2, proof),
        Hello(B, OWNER, False, 0.0, 7, 1, b"guessed"),
    ):
        assert isinstance(refusal(lost.happen(event)), errors.ProtocolError)
    lost.back()
    twice = Hello(B, OWNER, False, 0.0, 7, 1, proof)
    assert isinstance(refusal(lost.happen(twice)), errors.ProtocolError)


def test_s46_a_spawn_without_an_answer_is_not_started_again(lost: Lost) -> None:
    session, worker, _ = lost.spawn(token="t")
    lost.next(worker)
    lost.register(worker, session)
    lost.back()
    (answer,) = lost.ask(A, Kind.SPAWN, body=SPAWN | {"token": "t"})
    assert isinstance(answer, ToClient)
    assert answer.message.session == session
    assert answer.message.epoch == EPOCH
    assert answer.message.body == {"pid": 5, "started": 49.0, "stdin": True}


def test_s46_its_capture_begins_again(lost: Lost) -> None:
    session, worker, _ = lost.spawn(token="t", reader=70)
    lost.next(worker)
    lost.register(worker, session)
    lost.back()
    actions = lost.ask(A, Kind.SPAWN, body=SPAWN | {"token": "t", "reader": 70})
    assert told(actions) == [(worker, Kind.OPEN)]
    assert actions[-1].message.body == OPEN | {"capture": True}  # type: ignore[union-attr]
    pushed = Message(Kind.CLOSED, lost.clients[A], 70, session, EPOCH, 0, STATUS)
    assert answers(lost.say(worker, pushed)) == [(A, Kind.CLOSED, 70)]


def test_s46_a_spawn_that_never_arrived_is_started(lost: Lost) -> None:
    lost.next()
    lost.back()
    session, _, _ = lost.spawn(token="t")
    assert session == FIRST_SESSION


def never_spoke(lost: Lost, how: str) -> None:
    """Let another broker come that cannot know what a worker had started."""
    _, worker = lost.started(token="u")
    if how == "worker lost before":
        lost.next(whole=False)
    elif how == "pool lost before":
        lost.next(pool=False)
    elif how == "worker lost now":
        lost.next(worker)
        lost.happen(WorkerGone(worker, 0, proven=True))
    elif how == "pool lost now":
        lost.next(worker)
        lost.happen(PoolGone(proven=True))
    else:
        told_of = [worker] if how == "worker stands still" else []
        lost.next(*told_of, last=how != "pool stands still")
        lost.now += GRACE
        lost.happen(Tick())
    lost.back()


@pytest.mark.parametrize(
    "how",
    [
        "worker lost before",
        "pool lost before",
        "worker lost now",
        "pool lost now",
        "worker stands still",
        "pool stands still",
    ],
)
def test_s46_what_may_have_run_is_not_started_again(lost: Lost, how: str) -> None:
    never_spoke(lost, how)
    again = lost.ask(A, Kind.SPAWN, body=SPAWN | {"token": "u", "again": True})
    assert isinstance(refusal(again), errors.WorkerLost)
    assert starts(lost.ask(A, Kind.SPAWN, body=SPAWN | {"token": "v"})) != []


def test_s46_a_client_that_comes_back_too_late_finds_nothing_lost(lost: Lost) -> None:
    session, worker = lost.taken_over()
    lost.now += GRACE
    assert released(lost.happen(Tick())) == [worker]
    lost.back()
    again = SPAWN | {"token": "t", "again": True}
    assert isinstance(
        refusal(lost.ask(A, Kind.SPAWN, body=again)), errors.SessionNotFound
    )
    lost.idle(worker, session)
    assert isinstance(
        refusal(lost.ask(A, Kind.SPAWN, body=again)), errors.SessionNotFound
    )
    known = refusal(lost.ask(A, Kind.SPAWN, body=again | {"again": False}))
    assert isinstance(known, errors.InvalidRequest)
    for claimed in (lost.claim(session), lost.visits(session, peer=A)):
        (told_,) = claimed
        assert isinstance(told_, ToClient)
        assert told_.message.body["code"] == errors.SessionNotFound.code
    assert session not in lost.router.sessions


def test_s46_a_spawn_asked_again_hears_of_a_worker_that_is_lost(lost: Lost) -> None:
    _, worker = lost.taken_over()
    lost.back()
    lost.happen(WorkerGone(worker, 0, True))
    again = lost.ask(A, Kind.SPAWN, body=SPAWN | {"token": "t", "again": True})
    assert isinstance(refusal(again), errors.WorkerLost)


def test_s46_sessions_of_a_client_that_does_not_come_back_end(lost: Lost) -> None:
    session, worker = lost.started()
    stays, other = lost.started(kill_on_drop=False, token="u")
    lost.next(worker, other)
    lost.register(worker, session)
    lost.register(other, stays)
    lost.hello(B, OTHER)
    lost.now += GRACE - 0.1
    assert lost.happen(Tick()) == []
    lost.now += 0.1
    actions = lost.happen(Tick())
    assert released(actions) == [worker]
    assert (other, Kind.CLOSE_STDIN) in told(actions)
    assert (other, Kind.STOP) in told(actions)  # what it read is let go
    assert lost.router.sessions[stays].client == 0
    lost.back()  # late
    assert told(lost.claim(stays)) == [(other, Kind.MEMO)]
    assert lost.router.sessions[stays].client == lost.clients[A]


def test_s46_a_session_lost_before_its_owner_is_back_is_forgotten(lost: Lost) -> None:
    session, worker = lost.taken_over()
    lost.happen(WorkerGone(worker, 0, True))
    assert lost.state(session) is State.LOST
    lost.now += GRACE
    lost.happen(Tick())
    assert session not in lost.router.sessions


def test_s46_what_a_holder_holds_is_let_go_unless_it_is_back(lost: Lost) -> None:
    lost.proofs[B] = lost.hello(B)
    holder = lost.clients[B]
    session, worker = lost.taken_over(clients=[holder, 99])
    lost.back()
    lost.back(B)
    lost.now += GRACE
    actions = lost.happen(Tick())
    assert told(actions) == [(worker, Kind.STOP)]
    assert actions[0].message.client == 99  # type: ignore[union-attr]
    assert lost.router.sessions[session].holders == {holder}


def test_s46_a_stream_goes_on_where_its_client_says(lost: Lost) -> None:
    session, worker = lost.taken_over()
    lost.back()
    asked = lost.ask(A, Kind.RESUME, session, resumed(), request=70)
    assert told(asked) == [(worker, Kind.RESUME)]
    pushed = Message(Kind.CLOSED, lost.clients[A], 70, session, EPOCH, 0, STATUS)
    assert answers(lost.say(worker, pushed)) == [(A, Kind.CLOSED, 70)]


def test_s46_an_owner_that_is_back_hears_of_the_end_that_it_missed(lost: Lost) -> None:
    session, _ = lost.taken_over(status=[0], closed=True)
    assert lost.state(session) is State.CLOSED
    lost.back()
    assert answers(lost.claim(session)) == [(A, Kind.EXITED, 0)]
    assert lost.router.sessions[session].reported


def test_info_has_no_stage_of_what_a_lost_broker_did(lost: Lost) -> None:
    session, worker = lost.taken_over(status=[0])
    lost.back()
    lost.idle(worker, session)
    (action,) = lost.ask(A, Kind.INFO)
    assert isinstance(action, ToClient)
    stages = unpack(action.message.payload or b"")
    assert [stage for stage, rows in stages.items() if rows] == ["spawned", "exit_seen"]


def test_s46_a_child_that_ended_may_still_be_written_by_others(lost: Lost) -> None:
    session, worker = lost.taken_over(status=[0])
    assert lost.state(session) is State.EXITED
    lost.push(worker, Kind.CLOSED, session)
    assert lost.state(session) is State.CLOSED


def test_s46_what_is_on_its_way_out_stays_so(lost: Lost) -> None:
    session, worker = lost.taken_over(released=True)
    assert lost.state(session) is State.LEAVING
    lost.back()
    assert lost.claim(session) == []
    assert isinstance(refusal(lost.ask(A, Kind.POLL, session)), errors.SessionNotFound)
    lost.idle(worker, session)
    assert lost.router.sessions == {}
    assert lost.router.idle == [worker]


def test_a_release_that_is_asked_again_waits_for_its_proof(lost: Lost) -> None:
    session, worker = lost.taken_over(released=True)
    lost.back()
    kill = lost.message(A, Kind.KILL, session, RELEASE)
    assert told(lost.happen(FromClient(A, kill))) == [(worker, Kind.KILL)]
    proof = kill.reply(Kind.REPLY, {"receipt": [1, 1, []]})
    assert answers(lost.say(worker, proof)) == [(A, Kind.REPLY, kill.request)]


def test_s46_only_what_was_given_once_can_be_claimed(lost: Lost) -> None:
    lost.next()
    lost.back()
    never = FIRST_SESSION
    assert answers(lost.claim(never)) == [(A, Kind.ERROR, 0)]
    assert lost.router.sessions == {}


def test_s46_a_claim_of_anothers_session_is_told_as_a_loss(lost: Lost) -> None:
    session, _ = lost.taken_over()
    lost.hello(B, OTHER)
    assert answers(lost.claim(session, peer=B)) == [(B, Kind.ERROR, 0)]
    lost.back()
    assert lost.claim(session) == []


def test_s46_a_visitor_that_is_back_hears_of_the_end(lost: Lost) -> None:
    session, worker = lost.taken_over()
    lost.hello(B)
    assert lost.visits(session, peer=B) == []
    lost.back()
    told = lost.push(worker, Kind.EXITED, session)
    assert answers(told) == [(B, Kind.EXITED, 0), (A, Kind.EXITED, 0)]


def test_a_visitor_that_was_back_and_has_left_is_told_of_nothing(lost: Lost) -> None:
    session, worker = lost.taken_over()
    lost.hello(B)
    lost.visits(session, peer=B)
    take_back(lost, B, session, 501)
    assert lost.push(worker, Kind.EXITED, session) == []


def test_s46_a_visitor_that_is_back_hears_of_what_it_missed(lost: Lost) -> None:
    session, _ = lost.taken_over(status=[0])
    lost.hello(B)
    assert answers(lost.visits(session, peer=B)) == [(B, Kind.EXITED, 0)]
    assert not lost.router.sessions[session].reported  # its owner may come yet
    (told,) = lost.visits(session + 1, peer=B)
    assert answers([told]) == [(B, Kind.ERROR, 0)]
    lost.hello(AGAIN, OTHER)
    assert answers(lost.visits(session, peer=AGAIN)) == [(AGAIN, Kind.ERROR, 0)]


def test_whoever_is_back_hears_of_a_worker_that_was_lost_meanwhile(lost: Lost) -> None:
    session, worker = lost.taken_over()
    assert answers(lost.happen(WorkerGone(worker, 0, True))) == []
    lost.back()
    lost.hello(B)
    for said in (lost.claim(session), lost.visits(session, peer=B)):
        assert isinstance(refusal(said), errors.WorkerLost)


@pytest.mark.parametrize("how", ["lost", "leaving"])
def test_an_end_told_late_retains_nothing_that_is_not_there(
    lost: Lost, how: str
) -> None:
    facts = {"status": [0], "released": how == "leaving"}
    session, worker = lost.taken_over(**facts)
    if how == "lost":
        lost.happen(WorkerGone(worker, 0, True))
    lost.back()
    assert answers(lost.claim(session)) == [(A, Kind.EXITED, 0)]
    assert len(lost.router.retention) == 0


def test_s46_a_lost_session_answers_as_one_and_can_be_closed(lost: Lost) -> None:
    session, _ = lost.started()
    lost.next()
    lost.back()
    lost.claim(session)
    assert isinstance(refusal(lost.ask(A, Kind.POLL, session)), errors.WorkerLost)
    assert isinstance(
        refusal(lost.ask(A, Kind.KILL, session, RELEASE)), errors.WorkerLost
    )
    assert lost.router.sessions == {}


def test_s46_an_owner_may_be_robbed_before_it_is_back(lost: Lost) -> None:
    session, worker = lost.taken_over()
    lost.hello(B)
    attach = lost.ask(B, Kind.ATTACH, session, {"steal": True})
    assert told(attach) == [
        (worker, Kind.STOP),
        (worker, Kind.MEMO),
        (worker, Kind.ATTACH),
    ]
    lost.back()
    (robbed,) = lost.claim(session)
    assert isinstance(robbed, ToClient)
    assert robbed.message.body["code"] == errors.SessionOwned.code


def test_an_attach_may_be_taken_back_at_the_next_broker(lost: Lost) -> None:
    session, worker = lost.started()
    lost.ask(A, Kind.DETACH, session, {"ttl": 60.0})
    ends = lost.now + 60.0
    lost.ask(A, Kind.ATTACH, session, ATTACH)
    request = lost.last_request
    lost.next(worker)
    lost.register(worker, session)
    assert lost.router.ttls == {}
    lost.back()
    take_back(lost, A, session, request)
    assert lost.router.ttls == {session: ends}
    assert lost.router.sessions[session].client == 0


def test_an_attach_whose_answer_was_lost_with_a_broker_is_granted_again(
    lost: Lost,
) -> None:
    session, worker = lost.started()
    lost.ask(A, Kind.DETACH, session, NO_TTL)
    lost.ask(A, Kind.ATTACH, session, ATTACH)
    request = lost.last_request
    lost.next(worker)
    lost.register(worker, session)
    lost.back()
    asked = lost.ask(A, Kind.ATTACH, session, ATTACH, request=request)
    assert told(asked) == [(worker, Kind.ATTACH)]
    other = lost.ask(A, Kind.ATTACH, session, ATTACH)
    assert owned(refusal(other))


def test_the_next_broker_knows_when_a_session_was_used_last(lost: Lost) -> None:
    session, _ = lost.taken_over(used=49.5)
    assert lost.router.sessions[session].used == 49.5


def test_s46_the_worker_remembers_who_owns_its_session(lost: Lost) -> None:
    session, worker = lost.started(detach_ttl=9.0)
    assert told(lost.ask(A, Kind.DETACH, session, {"ttl": None})) == [
        (worker, Kind.MEMO)
    ]
    lost.next(worker)
    lost.register(worker, session)
    assert lost.router.sessions[session].client == 0
    assert lost.router.ttls == {session: lost.now + 9.0}
    lost.back()
    lost.ask(A, Kind.ATTACH, session, {"steal": False})
    lost.next(worker)
    lost.register(worker, session)
    assert lost.router.sessions[session].client == lost.clients[A]
    assert lost.router.ttls == {}
