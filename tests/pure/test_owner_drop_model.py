"""A model of owner-drop, searched whole: with every mechanism nothing goes wrong.

The model is the protocol without its mechanics: a client that wants one child and gives
it up again, a broker, workers, and the pool behind them. Each of them may die once, the
broker may instead hang (its sockets stay open, nothing moves), one message between
client and broker may be lost and one may come twice. A leg between broker and worker
loses nothing while both ends live: the kernel keeps it in order.

The search is breadth first over all states, so a trace is a shortest one. A state is
wrong when the child was started twice, or when nobody wants the child, something of it
runs, and nothing that the engine does by itself will ever change that.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import pytest

from broker.wire import Kind

MECHANISMS: Final = frozenset(
    {
        "client watch",  # the broker notices that the client's process is gone
        "broker watch",  # the worker sees the end of its leg
        "lease",  # the pool sees that the broker stamps the page no more
        "sweep",  # the pool kills what a dead worker leaves behind
        "dedupe",  # a spawn with a known token is answered, not started
        "tombstones",  # a spawn with a token that is over is refused
    }
)
Mechanisms = frozenset[str]
Queue = tuple[Kind, ...]
Answers = tuple[tuple[Kind, Kind], ...]
"""Answers on their way, each with the kind of the request that it answers."""


@dataclass(frozen=True, slots=True)
class State:
    """Everything that is the case. What faults may still happen is part of it."""

    client: Literal["up", "dead"] = "up"
    wants: Literal["nothing yet", "child", "no child"] = "nothing yet"
    waiting: frozenset[Kind] = frozenset()
    to_broker: Queue = ()
    to_client: Answers = ()

    broker: Literal["up", "hung", "dead"] = "up"
    token: Literal["unknown", "known", "over"] = "unknown"
    noticed: bool = False

    to_worker: Queue = ()
    worker: Literal["up", "dead", "ended"] = "up"
    children: int = 0
    orphans: int = 0
    starts: int = 0

    faults: frozenset[str] = frozenset(
        {"client dies", "broker fails", "worker dies", "loss", "duplicate"}
    )

    def spend(self, fault: str) -> "State":
        return replace(self, faults=self.faults - {fault})


Step = tuple[str, State]
Rule = Callable[[State, Mechanisms], Iterator[Step]]


# What the client may do, and what may go wrong


def client_decides(s: State, _: Mechanisms) -> Iterator[Step]:
    if s.client == "up" and s.broker == "up":
        if s.wants == "nothing yet":
            yield "client spawns", asks(replace(s, wants="child"), Kind.SPAWN)
        elif s.wants == "child":
            yield "client drops", asks(replace(s, wants="no child"), Kind.DROP)


def client_dies(s: State, _: Mechanisms) -> Iterator[Step]:
    if s.client == "up" and "client dies" in s.faults:
        yield "CLIENT DIES", replace(s.spend("client dies"), client="dead")


def broker_fails(s: State, _: Mechanisms) -> Iterator[Step]:
    if s.broker == "up" and "broker fails" in s.faults:
        yield "BROKER DIES", replace(s.spend("broker fails"), broker="dead")
        # What it had queued for its workers never leaves it.
        hung = replace(s.spend("broker fails"), broker="hung", to_worker=())
        yield "BROKER HANGS", hung


def worker_dies(s: State, _: Mechanisms) -> Iterator[Step]:
    if s.worker == "up" and "worker dies" in s.faults:
        left = replace(s, worker="dead", to_worker=(), children=0)
        left = replace(left, orphans=s.orphans + s.children)
        yield "WORKER DIES", left.spend("worker dies")


def message_is_lost(s: State, _: Mechanisms) -> Iterator[Step]:
    if "loss" in s.faults:
        if s.to_broker:
            lost = replace(s, to_broker=s.to_broker[1:])
            yield f"{s.to_broker[0].name} IS LOST", lost.spend("loss")
        if s.to_client:
            lost = replace(s, to_client=s.to_client[1:])
            yield f"{s.to_client[0][1].name} IS LOST", lost.spend("loss")


def message_comes_twice(s: State, _: Mechanisms) -> Iterator[Step]:
    """The copy may come late: behind what was sent after it."""
    if s.to_broker and "duplicate" in s.faults:
        twice = replace(s, to_broker=(*s.to_broker, s.to_broker[0]))
        yield f"{s.to_broker[0].name} COMES TWICE", twice.spend("duplicate")


# What the engine does by itself


def client_asks_again(s: State, _: Mechanisms) -> Iterator[Step]:
    """A request that nothing on its way will answer is repeated; not one given up."""
    quiet = not (s.to_broker or s.to_worker or s.to_client)
    kind = Kind.SPAWN if s.wants == "child" else Kind.DROP
    if s.client == "up" and s.broker == "up" and quiet and kind in s.waiting:
        yield f"client asks again: {kind.name}", asks(s, kind)


def client_takes(s: State, _: Mechanisms) -> Iterator[Step]:
    if s.to_client and s.client == "up":
        asked, answer = s.to_client[0]
        took = replace(s, to_client=s.to_client[1:], waiting=s.waiting - {asked})
        yield f"client takes {answer.name}", took


def broker_takes(s: State, on: Mechanisms) -> Iterator[Step]:
    if s.broker != "up" or not s.to_broker:
        return
    kind, rest = s.to_broker[0], replace(s, to_broker=s.to_broker[1:])
    if s.noticed:
        yield f"broker ignores {kind.name} of a dead client", rest
    elif kind is Kind.DROP:
        yield "broker takes DROP", answers(buries(rest), Kind.DROP, Kind.REPLY)
    elif s.token == "over" and "tombstones" in on:
        yield "broker refuses SPAWN", answers(rest, Kind.SPAWN, Kind.ERROR)
    elif s.token == "known" and "dedupe" in on:
        yield "broker answers SPAWN again", answers(rest, Kind.SPAWN, Kind.REPLY)
    else:
        start = replace(rest, token="known")
        yield "broker forwards START", tells(start, Kind.START)


def broker_notices(s: State, on: Mechanisms) -> Iterator[Step]:
    unnoticed = s.client == "dead" and not s.noticed
    if "client watch" in on and s.broker == "up" and unnoticed:
        yield "broker notices the client's end", buries(replace(s, noticed=True))


def worker_takes(s: State, _: Mechanisms) -> Iterator[Step]:
    """What a dead broker wrote can still be read: the end of the leg comes after it."""
    if s.worker != "up" or not s.to_worker:
        return
    kind, rest = s.to_worker[0], replace(s, to_worker=s.to_worker[1:])
    if kind is Kind.START:
        more = replace(rest, children=s.children + 1, starts=s.starts + 1)
        yield "worker starts the child", answers(more, Kind.SPAWN, Kind.REPLY)
    else:
        yield "worker kills the tree", replace(rest, children=0)


def worker_sees_its_leg_end(s: State, on: Mechanisms) -> Iterator[Step]:
    leg_ends = s.broker == "dead" and not s.to_worker
    if "broker watch" in on and s.worker == "up" and leg_ends:
        yield "worker sees its leg end", replace(s, worker="ended", children=0)


def lease_runs_out(s: State, on: Mechanisms) -> Iterator[Step]:
    if "lease" in on and s.broker != "up" and s.worker == "up":
        ended = replace(s, worker="ended", children=0, to_worker=())
        yield "the broker's lease runs out", ended


def pool_reaps(s: State, on: Mechanisms) -> Iterator[Step]:
    """It tells of a dead worker once its orphans are swept; a fresh one takes over."""
    if s.worker == "dead":
        fresh = replace(s, worker="up")
        if "sweep" in on:
            fresh = replace(fresh, orphans=0)
        if s.broker == "up" and s.token == "known":
            fresh = answers(replace(fresh, token="over"), Kind.SPAWN, Kind.ERROR)
        yield "pool reaps the worker", fresh


def asks(s: State, kind: Kind) -> State:
    return replace(s, to_broker=(*s.to_broker, kind), waiting=s.waiting | {kind})


def answers(s: State, asked: Kind, answer: Kind) -> State:
    """An answer passes through the broker, and concerns the living only."""
    if s.broker != "up" or s.client != "up":
        return s
    return replace(s, to_client=(*s.to_client, (asked, answer)))


def tells(s: State, kind: Kind) -> State:
    """A leg of a dead worker swallows everything until its successor is there."""
    return s if s.worker == "dead" else replace(s, to_worker=(*s.to_worker, kind))


def buries(s: State) -> State:
    """End what the token started, if it did, and never start it again."""
    ended = tells(s, Kind.KILL) if s.token == "known" else s
    return replace(ended, token="over")


ENVIRONMENT: Final[tuple[Rule, ...]] = (
    client_decides,
    client_dies,
    broker_fails,
    worker_dies,
    message_is_lost,
    message_comes_twice,
)
ENGINE: Final[tuple[Rule, ...]] = (
    client_asks_again,
    client_takes,
    broker_takes,
    broker_notices,
    worker_takes,
    worker_sees_its_leg_end,
    lease_runs_out,
    pool_reaps,
)


# The search


@dataclass(frozen=True, slots=True)
class Finding:
    """What can go wrong, and the shortest way there."""

    what: str
    trace: tuple[str, ...]


def search(on: Mechanisms) -> tuple[Finding | None, int]:
    """Return the first wrong state if there is one, and how many were looked at."""
    ways: dict[State, tuple[State, str] | None] = {State(): None}
    waiting = deque(ways)
    while waiting:
        state = waiting.popleft()
        by_itself = [step for rule in ENGINE for step in rule(state, on)]
        wrong = judge(state, resting=not by_itself)
        if wrong is not None:
            return Finding(wrong, trace(ways, state)), len(ways)
        from_outside = [step for rule in ENVIRONMENT for step in rule(state, on)]
        for label, following in by_itself + from_outside:
            if following not in ways:
                ways[following] = (state, label)
                waiting.append(following)
    return None, len(ways)


def judge(s: State, *, resting: bool) -> str | None:
    if s.starts > 1:
        return "double start"
    unwanted = s.client == "dead" or s.wants == "no child"
    if resting and unwanted and (s.children or s.orphans):
        return "orphan for ever"
    return None


def trace(ways: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    labels = []
    while (way := ways[state]) is not None:
        state, label = way
        labels.append(label)
    return tuple(reversed(labels))


# Findings


def test_with_every_mechanism_no_child_is_orphaned_or_started_twice() -> None:
    finding, states = search(MECHANISMS)
    assert finding is None, finding
    assert states > 1000, "the model has lost most of its behaviour"


@pytest.mark.parametrize(
    ("missing", "what"),
    [
        ("lease", "orphan for ever"),
        ("sweep", "orphan for ever"),
        ("dedupe", "double start"),
        ("tombstones", "double start"),
        ("client watch", "orphan for ever"),
    ],
)
def test_without_one_mechanism_a_child_is_orphaned_or_started_twice(
    missing: str, what: str
) -> None:
    finding, _ = search(MECHANISMS - {missing})
    assert finding is not None
    assert finding.what == what
    assert len(finding.trace) <= 8, finding


def test_the_broker_watch_is_only_the_faster_lease() -> None:
    assert search(MECHANISMS - {"broker watch"})[0] is None
    finding, _ = search(MECHANISMS - {"broker watch", "lease"})
    assert finding is not None
    assert finding.what == "orphan for ever"


def test_a_counter_example_tells_what_the_missing_mechanism_is_for() -> None:
    finding, _ = search(MECHANISMS - {"sweep"})
    assert finding is not None
    assert finding.trace[0] == "client spawns"
    assert {"CLIENT DIES", "WORKER DIES"} <= set(finding.trace)
    assert finding.trace[-1] == "pool reaps the worker"
