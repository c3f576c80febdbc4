"""What clients wait for in a session: every outcome, its moment, and what it holds."""

from typing import Any

import pytest

from actors.awaited import FIRST_LOOK, LAST_LOOK, Awaited
from actors.buffer import Log
from actors.events import ExitStatus
from actors.outlet import DYING, Ask, Progress
from broker.errors import InvalidRequest, SessionNotFound
from broker.wire import STREAMS, Kind, Payload, unpack

ONE, TWO, OTHER = Ask(1, 1), Ask(1, 2), Ask(2, 1)
EXPECT = {
    "reader": 50,
    "stream": "stdout",
    "offset": 0,
    "pattern": b"x",
    "flags": 0,
    "wait": 10.0,
}
READY = {
    "port": None,
    "file": None,
    "pattern": None,
    "flags": 0,
    "stream": "stdout",
    "wait": 10.0,
}
STATUS = ExitStatus(3)


class Child:
    """A session's log and progress, with ears and eyes."""

    def __init__(self, policy: str = "tail", size: int = 100) -> None:
        self.log = Log(policy, size)
        self.progress = Progress(set(STREAMS))
        self.heard: list[tuple[Ask, Any]] = []
        self.there: set[object] = set()
        self.looked = 0
        blocking = policy == "block"
        self.awaited = Awaited(self.log, self.progress, self, self, blocking=blocking)

    def say(
        self, kind: Kind, ask: Ask, body: dict[str, Any], payload: Payload | None = None
    ) -> None:
        if kind is Kind.ERROR:
            self.heard.append((ask, body["code"]))
            return
        assert kind is Kind.REPLY
        extra = None if payload is None else unpack(payload)
        self.heard.append((ask, body | {"payload": extra}))

    def room(self) -> bool:
        raise AssertionError("answers are not held back")

    def listens(self, port: int) -> bool:
        self.looked += 1
        return port in self.there

    def exists(self, path: bytes) -> bool:
        self.looked += 1
        return path in self.there

    def write(self, data: bytes, stream: str = "stdout") -> None:
        self.log.append(stream, data)

    def exit(self) -> None:
        self.progress.status = STATUS
        self.progress.exit_mark = self.log.end

    def expect(self, ask: Ask = ONE, now: float = 0.0, **changes: Any) -> None:
        self.awaited.expect(ask, EXPECT | changes, now)

    def ready(self, ask: Ask = ONE, now: float = 0.0, **changes: Any) -> None:
        self.awaited.ready(ask, READY | changes, now)

    def serve(self, now: float = 0.0, *, held: bool = False) -> list[tuple[Ask, Any]]:
        """What is said by the time `now`."""
        self.awaited.serve(now, held=held)
        heard, self.heard = self.heard, []
        return heard

    def outcome(self, now: float = 0.0) -> str | None:
        heard = self.serve(now)
        assert len(heard) <= 1
        return heard[0][1]["outcome"] if heard else None


# Patterns


def test_a_pattern_is_told_with_what_came_before_it() -> None:
    child = Child()
    child.write(b"ab")
    child.expect(pattern=rb"a(b)(c)?", offset=1)
    child.write(b"x")
    assert child.serve() == []
    child.write(b"ab")
    body = {"outcome": "match", "offset": 3, "gap": 0}
    assert child.serve() == [(ONE, body | {"payload": [b"bx", b"ab", [b"b", None]]})]
    assert child.serve() == []


def test_several_wait_beside_each_other() -> None:
    child = Child()
    child.expect(ONE, pattern=b"a")
    child.expect(TWO, pattern=b"b", stream="stderr")
    child.ready(OTHER, pattern=b"A", flags=2)
    child.write(b"a")
    child.write(b"b", "stderr")
    assert [ask for ask, _ in child.serve()] == [ONE, TWO, OTHER]


def test_a_pattern_or_a_cursor_that_is_none_is_refused() -> None:
    child = Child()
    calls: list[tuple[Any, str]] = [
        (lambda: child.expect(pattern=b"("), "pattern"),
        (lambda: child.ready(pattern=b"("), "pattern"),
        (lambda: child.expect(offset=1), "offset"),
        (lambda: child.ready(port=None), "ready"),
        (lambda: child.ready(port=1, file=b"x"), "ready"),
    ]
    for call, field in calls:
        with pytest.raises(InvalidRequest) as caught:
            call()
        assert caught.value.field == field
    assert child.awaited.next_deadline() is None


def test_a_match_too_large_to_tell_is_an_error() -> None:
    child = Child(size=4 * 1024 * 1024)
    child.write(b"x" * (3 * 1024 * 1024))
    child.expect(pattern=b"x+")
    assert child.serve() == [(ONE, "invalid-request")]


# Time, and the end


def test_what_does_not_come_in_time_is_told_with_the_last_output() -> None:
    child = Child(size=9000)
    child.expect(wait=5.0)
    child.write(b"a" * 5000)
    child.write(b"b", "stderr")
    assert child.awaited.next_deadline() == 5.0
    assert child.serve(4.9) == []
    body = {"outcome": "timed-out", "status": None, "payload": [b"a" * 4096, b"b"]}
    assert child.serve(5.0) == [(ONE, body)]
    assert child.awaited.next_deadline() is None


def test_s31_a_pause_pushes_the_end_of_what_waits() -> None:
    child = Child()
    child.expect(wait=5.0)
    child.ready(ask=TWO, port=80, wait=5.0)
    child.awaited.pause(2.0, paused=True)
    assert child.serve(8.0) == []
    assert child.awaited.next_deadline() == 8.02  # the port is looked for all the same
    child.awaited.pause(9.0, paused=False)
    assert child.serve(11.9) == []
    outcomes = {ask: body["outcome"] for ask, body in child.serve(12.0)}
    assert outcomes == {ONE: "timed-out", TWO: "timed-out"}


def test_what_is_there_counts_when_the_time_is_over() -> None:
    child = Child()
    child.write(b"x")
    child.expect(wait=0.0)
    assert child.outcome() == "match"
    child.there = {b"f"}
    child.ready(file=b"f", wait=0.0)
    assert child.outcome() == "ready"


def test_without_a_time_only_the_end_is_waited_for() -> None:
    child = Child()
    child.expect(wait=None)
    assert child.serve(1e9) == []
    assert child.awaited.next_deadline() is None
    child.exit()
    assert child.outcome(1e9) == "ended"


def test_the_childs_end_is_told_with_its_status_once_all_was_looked_at() -> None:
    child = Child()
    child.expect(ONE)
    child.expect(TWO, pattern=b"z")
    child.progress.status = STATUS
    assert child.serve() == []  # not everything that was in the pipes is logged
    child.write(b"x")
    child.exit()
    (_, match), (_, end) = child.serve()
    assert match["outcome"] == "match"
    assert (end["outcome"], end["payload"]) == ("ended", [b"x", b""])
    assert ExitStatus.from_wire(end["status"]) == STATUS


def test_a_streams_end_waits_a_moment_for_the_childs() -> None:
    for dies in (False, True):
        child = Child()
        child.expect()
        child.progress.streams.discard("stderr")
        assert child.serve(1.0) == []
        child.progress.streams.discard("stdout")
        assert child.serve(1.0) == []
        assert child.awaited.next_deadline() == 1.0 + DYING
        if dies:
            child.exit()
        ((_, body),) = child.serve(1.0 + (0 if dies else DYING))
        assert body["outcome"] == "ended"
        assert (body["status"] is not None) is dies


# Ports and files


def test_ports_and_files_are_looked_for_less_and_less_often() -> None:
    for what in ({"port": 80}, {"file": b"f"}):
        child = Child()
        child.ready(**what, wait=100.0)
        now, pauses = 0.0, []
        for _ in range(12):
            assert child.serve(now) == []
            assert child.serve(now) == []  # other work in between is no reason to look
            due = child.awaited.next_deadline()
            assert due is not None
            pauses.append(due - now)
            now = due
        assert child.looked == 12
        assert pauses[0] == pytest.approx(FIRST_LOOK)
        assert pauses == sorted(pauses)
        assert pauses[-1] == pytest.approx(LAST_LOOK)
        child.there = {80, b"f"}
        assert child.outcome(now) == "ready"


def test_a_port_or_file_is_looked_for_a_last_time_at_the_end() -> None:
    for there in (False, True):
        for exits in (False, True):
            child = Child()
            child.ready(port=80, wait=1.0)
            assert child.serve(0.999) == []
            child.there = {80} if there else set()
            if exits:
                child.exit()
            failure = "ended" if exits else "timed-out"
            assert child.outcome(1.0) == ("ready" if there else failure)


def test_a_port_outlives_the_streams() -> None:
    child = Child()
    child.ready(port=80)
    child.progress.streams.clear()
    assert child.serve(1.0) == []


def test_a_ready_pattern_counts_from_the_start_and_is_not_told() -> None:
    child = Child()
    child.write(b"abc")
    child.ready(pattern=b"^a")
    assert child.serve() == [(ONE, {"outcome": "ready", "payload": None})]


# Taken back


def test_what_is_stopped_is_never_answered() -> None:
    child = Child()
    for ask in (ONE, TWO, OTHER):
        child.expect(ask)
        child.serve()
    child.awaited.stop(ONE)
    child.write(b"x")
    child.awaited.stop(Ask(2, 0))
    assert [ask for ask, _ in child.serve()] == [TWO]
    assert child.log.room() > 100  # nothing is held any more


def test_the_end_of_the_session_refuses_what_is_pending() -> None:
    child = Child()
    child.expect(ONE)
    child.ready(TWO, port=1)
    child.awaited.refuse(SessionNotFound())
    assert child.serve() == [(ONE, "session-not-found"), (TWO, "session-not-found")]


# What is held


def test_nothing_is_dropped_before_a_pending_search_has_seen_it() -> None:
    for wait in (Child.expect, Child.ready):
        child = Child(size=10)
        wait(child, pattern=b"z")
        for _ in range(5):
            child.serve()
            assert child.log.room() == 10
            child.write(b"a" * child.log.room())
            assert child.log.room() == 0
        child.write(b"z")
        assert child.outcome() in ("match", "ready")
        assert child.log.room() > 10


def test_s20_the_cursor_holds_a_blocking_log_from_its_first_use() -> None:
    child = Child("block", 10)
    child.write(b"abcdefgh")
    child.expect(pattern=b"c")
    assert child.outcome() == "match"
    assert child.log.room() == 2
    child.expect(pattern=b"z", offset=3)
    assert child.serve() == []
    assert child.log.room() == 5
    child.awaited.stop(ONE)
    assert child.log.room() == 5  # what is taken back consumes nothing
    child.awaited.stop(Ask(1, 0))
    assert child.log.room() > 10


def test_each_handle_that_expects_holds_a_blocking_log_until_it_is_stopped() -> None:
    child = Child("block", 10)
    child.expect(ONE, reader=51)
    child.expect(TWO, reader=52)
    child.expect(Ask(1, 3), reader=52, stream="stderr")
    child.write(b"x1234567")
    assert len(child.serve()) == 2
    child.expect(ONE, reader=51, offset=8)
    assert child.log.room() == 2
    child.awaited.stop(Ask(1, 52))
    assert child.log.room() == 10
    child.awaited.stop(Ask(1, 51))
    assert child.serve(held=True) == []
    assert child.log.room() > 10  # a search that goes on holds nothing again


def test_a_held_child_goes_on_once_its_output_was_looked_at() -> None:
    child = Child("block", 10)
    child.expect(pattern=b"cd")
    child.write(b"aaaaaaaaac")
    assert child.log.room() == 0
    assert child.serve(held=True) == []
    assert child.log.room() == 10
    child.write(b"d")
    assert child.outcome() == "match"


def test_a_ready_pattern_is_no_reader_of_a_blocking_log() -> None:
    child = Child("block", 10)
    child.ready(pattern=b"x")
    child.write(b"aaaaaaaaaa")
    assert child.serve(held=True) == []
    assert child.log.room() == 0


def test_s46_what_is_asked_again_is_answered_once() -> None:
    child = Child()
    for _ in range(2):
        child.expect(ONE)
        child.ready(TWO, port=80)
    assert child.awaited.clients == {1}
    child.write(b"x")
    child.there.add(80)
    assert sorted(ask for ask, _ in child.serve()) == [ONE, TWO]
    assert child.awaited.clients == set()


def test_s46_a_cursor_that_holds_has_a_client_between_its_requests() -> None:
    child = Child("block")
    child.expect(OTHER)
    child.write(b"x")
    child.serve()
    assert child.awaited.clients == {OTHER.client}
    child.awaited.stop(Ask(OTHER.client, 0))
    assert child.awaited.clients == set()


def test_what_is_asked_again_ends_when_it_was_to() -> None:
    child = Child()
    child.expect(wait=10.0)
    child.ready(TWO, port=80, wait=10.0)
    child.expect(now=6.0, wait=4.0)
    child.ready(TWO, now=6.0, port=80, wait=0.0)
    assert child.serve(9.9) == []
    outcomes = {ask: body["outcome"] for ask, body in child.serve(10.0)}
    assert outcomes == {ONE: "timed-out", TWO: "timed-out"}
