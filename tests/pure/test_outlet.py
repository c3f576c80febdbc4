"""Everything by which clients read a log: rule by rule, and laws for any order."""

import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from actors import outlet
from actors.buffer import Cursor, Log, Piece
from actors.events import ExitStatus
from actors.launch import Launch
from actors.outlet import Ask, End, Outlet, Progress
from actors.settings import OutputPolicy, Settings
from actors.spec import Ambient, Spec
from broker import errors
from broker.wire import STREAMS, Kind, Payload, unpack
from tests.shelf import Shelf

AMBIENT = Ambient(b"/", {b"PATH": b"/bin"}, 0o022, (), 0, 0)
STATUS = ExitStatus(0)
ONE, TWO = Ask(1, 1), Ask(2, 1)
OPEN = {"after": None, "newest": False, "chunks": 99, "bytes": 999, "capture": False}
POLL = {
    "reader": 60,
    "stdout": 0,
    "stderr": 0,
    "wait": 10.0,
    "mode": "completion",
    "limit": 999,
}
READ = {"reader": 50, "stream": "stdout", "offset": 0, "wait": 10.0, "limit": 999}


def launch(policy: OutputPolicy, chunk: int = 65536) -> Launch:
    order = Spec(["x"], retention=policy).launch(AMBIENT, Settings(), "", "0" * 32)
    return replace(order, chunk=chunk)


@dataclass
class Said:
    """One message to a client."""

    kind: Kind
    ask: Ask
    body: dict[str, Any]
    payload: Payload | None

    @property
    def data(self) -> bytes:
        return bytes(self.payload or b"")


@dataclass
class Voice:
    """It hears what is said, and can be congested."""

    heard: list[Said] = field(default_factory=list)
    free: bool = True

    def say(
        self, kind: Kind, ask: Ask, body: dict[str, Any], payload: Payload | None = None
    ) -> None:
        self.heard.append(Said(kind, ask, body, payload))

    def room(self) -> bool:
        return self.free

    def take(self) -> list[Said]:
        """What was said since the last time."""
        heard, self.heard = self.heard, []
        return heard


class Child:
    """What a session does to its outlet."""

    def __init__(
        self,
        kind: str = "tail",
        size: int = 100,
        chunk: int = 65536,
        arena: Shelf | None = None,
    ) -> None:
        policy = OutputPolicy(kind, size)  # type: ignore[arg-type]
        self.log = Log(kind, size, arena)
        self.progress = Progress(set(STREAMS))
        self.voice = Voice()
        order = launch(policy, chunk)
        self.quiet = order.quiet
        self.outlet = Outlet(self.log, self.progress, order, self.voice)
        self.now = 0.0

    def write(self, data: bytes, stream: str = "stdout") -> None:
        self.log.append(stream, data)
        self.outlet.on_output(self.now)

    def end(self, *streams: str, kind: Kind = Kind.EOF) -> None:
        for stream in streams:
            self.progress.streams.discard(stream)
            body = {"stream": stream}
            self.progress.ends[stream] = End(kind, self.log.end, body)

    def exit(self) -> None:
        self.progress.status = STATUS

    def mark(self) -> None:
        self.progress.exit_mark = self.log.end

    def close(self) -> None:
        """Everything that ends a child, at once."""
        self.exit()
        self.end(*self.progress.streams.copy())
        self.mark()
        self.progress.closed = True

    def open(self, ask: Ask = ONE, **changes: Any) -> None:
        self.outlet.open(ask, OPEN | changes)

    def poll(self, ask: Ask = ONE, **changes: Any) -> None:
        self.outlet.poll(ask, POLL | changes, self.now)

    def read(self, ask: Ask = ONE, **changes: Any) -> None:
        self.outlet.read(ask, READ | changes, self.now)

    def credit(
        self, chunks: int, sequence: int, ask: Ask = ONE, *, local: bool = False
    ) -> None:
        body = {"chunks": chunks, "sequence": sequence, "local": local}
        self.outlet.credit(ask, body)

    def serve(self, now: float = 0.0, *, held: bool = False) -> list[Said]:
        """What is said by the time `now`."""
        self.now = now
        self.outlet.serve(now, held=held)
        return self.voice.take()

    def heard(self, **how: Any) -> list[Any]:
        """The same in short: data, and the names of other messages."""
        return [said.data or said.kind.name for said in self.serve(**how)]


def refused(said: list[Said]) -> list[tuple[Ask, str]]:
    assert {s.kind for s in said} <= {Kind.ERROR}
    return [(s.ask, s.body["code"]) for s in said]


# Readers: where they begin


def test_a_reader_gets_both_streams_in_their_order() -> None:
    child = Child()
    child.write(b"ab")
    child.write(b"c", "stderr")
    child.open()
    first, second = child.serve()
    assert first.body == {"stream": "stdout", "offset": 0, "sequence": 0}
    assert second.body == {"stream": "stderr", "offset": 0, "sequence": 2}
    assert (first.data, second.data) == (b"ab", b"c")
    assert child.serve() == []
    child.write(b"d")
    (third,) = child.serve()
    assert third.body == {"stream": "stdout", "offset": 2, "sequence": 3}


def test_the_newest_reader_gets_what_comes_from_now_on() -> None:
    child = Child()
    child.write(b"old")
    child.open(newest=True)
    child.write(b"new")
    assert child.heard() == [b"new"]


def test_a_reader_may_begin_at_a_sequence() -> None:
    child = Child()
    child.write(b"abc")
    child.open(after=2)
    child.open(TWO, after=3)
    assert child.heard() == [b"c"]


def test_a_reader_cannot_begin_in_the_future() -> None:
    child = Child()
    child.write(b"abc")
    with pytest.raises(errors.InvalidRequest, match="after: is beyond the 3 bytes yet"):
        child.open(after=4)
    assert child.outlet.readers == {}


def test_a_late_reader_is_told_first_what_it_missed() -> None:
    child = Child("tail", 4)
    child.write(b"0123456789")
    child.open()
    gap, chunk = child.serve()
    assert (gap.kind, gap.body) == (
        Kind.GAP,
        {"stream": "stdout", "start": 0, "end": 6},
    )
    assert chunk.data == b"6789"


def test_a_reader_that_begins_in_the_dropped_part_gets_what_comes_after() -> None:
    child = Child("tail", 4)
    child.write(b"0123456789")
    child.open(after=2)
    assert child.heard() == [b"6789"]


# Readers: how far they may go


def test_a_reader_gets_no_more_bytes_than_its_window() -> None:
    child = Child()
    child.write(b"0123456789")
    child.open(bytes=4)
    assert child.heard() == [b"0123"]
    assert child.heard() == []
    child.credit(1, 3)
    assert child.heard() == [b"456"]


def test_a_reader_gets_no_more_chunks_than_its_window() -> None:
    child = Child(chunk=2)
    child.write(b"0123456789")
    child.open(chunks=2)
    assert child.heard() == [b"01", b"23"]
    child.credit(1, 2)
    assert child.heard() == [b"45"]


def test_credit_only_grows() -> None:
    child = Child()
    child.write(b"0123456789")
    child.open(bytes=4)
    assert child.heard() == [b"0123"]
    child.credit(1, 4)
    child.credit(0, 0)
    assert child.heard() == [b"4567"]


@pytest.mark.parametrize(("chunks", "sequence"), [(2, 4), (1, 5)])
def test_credit_for_more_than_was_sent_ends_the_reader(
    chunks: int, sequence: int
) -> None:
    child = Child("block")
    child.write(b"0123456789")
    child.open(bytes=4)
    assert child.heard() == [b"0123"]
    with pytest.raises(errors.InvalidRequest, match="more than was sent"):
        child.credit(chunks, sequence)
    assert child.outlet.readers == {}
    assert child.log.room() == sys.maxsize


def test_credit_for_a_reader_that_was_stopped_is_nothing() -> None:
    child = Child()
    child.credit(1, 1)
    assert child.serve() == []


def test_a_gap_takes_nothing_of_the_window() -> None:
    child = Child("head_tail", 1)  # one byte of head, none of tail
    child.open(bytes=8)
    child.write(b"0123456789")
    assert child.heard() == [b"0", "GAP"]
    child.write(b"0123456789")
    assert child.heard() == ["GAP"]
    child.close()
    assert child.heard() == ["EOF", "EOF", "EXITED", "CLOSED"]


def test_nothing_is_sent_while_the_voice_has_no_room() -> None:
    child = Child()
    child.open()
    child.write(b"abc")
    child.voice.free = False
    assert child.heard() == []
    child.voice.free = True
    child.outlet.pump()
    assert [said.data for said in child.voice.take()] == [b"abc"]


def test_readers_take_nothing_from_each_other() -> None:
    child = Child()
    child.open(ONE, bytes=1)
    child.open(TWO)
    child.write(b"abc")
    assert [(s.ask, s.data) for s in child.serve()] == [(ONE, b"a"), (TWO, b"abc")]


# Readers: what they hold


def test_a_reader_of_a_tail_is_told_what_it_was_too_slow_for() -> None:
    child = Child("tail", 4)
    child.open(bytes=2)
    child.write(b"01")
    assert child.heard() == [b"01"]
    child.write(b"23456789")
    child.credit(1, 2)
    assert child.heard() == ["GAP", b"67"]


@pytest.mark.parametrize(("kind", "capture"), [("block", False), ("tail", True)])
def test_a_lossless_reader_holds_what_its_client_has_not_taken(
    kind: str, capture: bool
) -> None:
    child = Child(kind, 4)
    child.open(bytes=3, capture=capture)
    child.write(b"0123")
    assert child.heard() == [b"012"]
    assert child.log.room() == 0
    child.credit(1, 3)
    assert child.log.room() == 3
    assert child.heard() == [b"3"]


def test_a_stopped_reader_holds_nothing() -> None:
    child = Child("block", 4)
    child.open()
    child.write(b"0123")
    child.outlet.stop(ONE)
    assert child.log.room() == sys.maxsize
    assert child.heard() == []


def test_a_forgotten_client_holds_nothing_and_is_told_nothing() -> None:
    child = Child("block", 4)
    for number, ask in enumerate((child.open, child.poll, child.read)):
        ask(Ask(1, number + 1))
        ask(Ask(2, number + 1))
    child.write(b"0123")
    child.outlet.stop(Ask(1, 0))
    assert {said.ask.client for said in child.serve(11.0)} == {2}
    assert child.log.room() == 0
    child.outlet.stop(Ask(2, 0))
    child.outlet.stop(Ask(3, 0))
    assert child.log.room() == sys.maxsize
    assert child.outlet.holds.keys() <= {1, 2}
    assert not any(child.outlet.holds.values())


# Readers: ends


def test_an_end_is_told_between_what_was_before_and_after_it() -> None:
    child = Child()
    child.write(b"err", "stderr")
    child.end("stderr")
    child.write(b"out")
    child.exit()
    child.mark()
    child.write(b"late")
    child.end("stdout", kind=Kind.ABANDONED)
    child.open()
    assert child.heard() == [b"err", "EOF", b"out", "EXITED", b"late", "ABANDONED"]
    child.progress.closed = True
    assert child.heard() == ["CLOSED"]
    assert child.heard() == []


def test_s53_only_a_capture_is_told_what_files_changed() -> None:
    child = Child()
    child.open(ONE, capture=True)
    child.open(TWO)
    child.progress.changes = b"changes"
    child.close()
    closed = {s.ask: s.payload for s in child.serve() if s.kind is Kind.CLOSED}
    assert closed == {ONE: b"changes", TWO: None}


def test_an_end_waits_for_a_reader_that_is_behind() -> None:
    child = Child()
    child.open(bytes=2)
    child.write(b"0123")
    child.close()
    assert child.heard() == [b"01"]
    child.credit(1, 2)
    assert child.heard() == [b"23", "EOF", "EOF", "EXITED", "CLOSED"]
    assert child.outlet.readers == {}


def test_an_exit_is_told_once_the_bytes_before_it_are_logged() -> None:
    child = Child()
    child.open()
    child.exit()
    assert child.progress.state == "running"
    assert child.heard() == []
    child.mark()
    assert child.progress.state == "exited"
    assert child.heard() == ["EXITED"]
    child.close()
    assert child.progress.state == "closed"


def test_a_reader_that_comes_after_everything_gets_all_of_it() -> None:
    child = Child()
    child.write(b"x")
    child.close()
    child.open()
    assert child.heard() == [b"x", "EOF", "EOF", "EXITED", "CLOSED"]
    child.open(newest=True)
    assert child.heard() == ["EOF", "EOF", "EXITED", "CLOSED"]


# Polls


def test_a_poll_for_completion_waits_for_the_end() -> None:
    child = Child()
    child.write(b"x")
    child.poll()
    assert child.serve(9.0) == []
    child.exit()
    child.mark()
    assert child.serve(9.0) == []
    child.close()
    (reply,) = child.serve(9.0)
    assert (reply.kind, reply.ask) == (Kind.REPLY, ONE)
    assert unpack(reply.data) == [["stdout", 0, b"x"]]
    assert reply.body == {
        "state": "closed",
        "status": STATUS.to_wire(),
        "more": False,
        "done": True,
    }
    assert child.serve(99.0) == []


def test_a_poll_is_answered_at_its_deadline_whatever_there_is() -> None:
    child = Child()
    child.poll(wait=2.0)
    assert child.outlet.next_deadline() == 2.0
    assert child.serve(1.9) == []
    (reply,) = child.serve(2.0)
    assert unpack(reply.data) == []
    assert reply.body == {
        "state": "running",
        "status": None,
        "more": False,
        "done": False,
    }
    assert child.outlet.next_deadline() is None


def test_a_poll_for_output_is_answered_after_a_moment_of_quiet() -> None:
    child = Child()
    child.poll(mode="output")
    assert child.serve(1.0) == []
    child.write(b"a")
    assert child.outlet.next_deadline() == 1.0 + child.quiet
    child.now = 1.0 + child.quiet / 2
    child.write(b"b")
    assert child.serve(1.0 + child.quiet) == []
    (reply,) = child.serve(1.0 + 2 * child.quiet)
    assert unpack(reply.data) == [["stdout", 0, b"ab"]]


def test_a_poll_for_output_counts_quiet_from_itself_on() -> None:
    child = Child()
    child.write(b"a")
    child.now = 5.0
    child.poll(mode="output")
    assert child.serve(5.0) == []
    assert len(child.serve(5.0 + child.quiet)) == 1


def test_output_is_no_quiet_for_a_poll_for_completion() -> None:
    child = Child()
    child.poll()
    child.write(b"a")
    assert child.outlet.next_deadline() == 10.0


def test_unread_output_wakes_nobody_for_a_poll_for_completion() -> None:
    child = Child()
    child.write(b"a")
    child.poll()
    assert child.outlet.next_deadline() == 10.0
    assert child.serve(child.quiet) == []
    assert child.outlet.next_deadline() == 10.0


def test_a_poll_is_answered_when_it_holds_the_child_back() -> None:
    child = Child("block", 4)
    child.poll(ONE)
    child.poll(TWO, stdout=0)
    assert child.serve(held=True) == []  # it has all that there is
    child.write(b"0123")
    assert child.log.room() == 0
    assert {reply.ask for reply in child.serve(held=True)} == {ONE, TWO}
    child.poll(ONE, stdout=4)
    assert child.log.room() == 0
    child.poll(TWO, stdout=2)
    assert child.log.room() == 2


def test_each_handle_that_polls_holds_a_blocking_log_until_it_is_stopped() -> None:
    child = Child("block", 4)
    child.poll(ONE, reader=61)
    child.poll(Ask(1, 2), reader=62)
    child.write(b"0123")
    assert len(child.serve(held=True)) == 2
    child.poll(ONE, reader=61, stdout=4)
    assert child.log.room() == 0
    child.outlet.stop(Ask(1, 62))
    assert child.log.room() == 4
    child.outlet.stop(Ask(1, 61))
    assert child.log.room() == sys.maxsize
    assert child.outlet.pending  # an answer is still to come


def test_a_poll_says_when_there_is_more() -> None:
    child = Child("tail", 4)
    child.write(b"012345")
    child.close()
    child.poll(limit=3)
    (reply,) = child.serve()
    assert unpack(reply.data) == [["stdout", 2, None], ["stdout", 0, b"234"]]
    assert (reply.body["more"], reply.body["done"]) == (True, False)
    child.poll(stdout=5)
    (reply,) = child.serve()
    assert (reply.body["more"], reply.body["done"]) == (False, True)


def test_the_runs_in_one_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet, "MOST_PIECES", 2)
    child = Child()
    for stream in (*STREAMS, *STREAMS):
        child.write(b"x", stream)
    child.poll(wait=0.0)
    (reply,) = child.serve()
    assert unpack(reply.data) == [["stdout", 0, b"x"], ["stderr", 0, b"x"]]
    assert reply.body["more"]


def test_an_answer_is_bounded_whatever_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outlet, "POLL_LIMIT", 2)
    child = Child()
    child.write(b"0123")
    child.poll(wait=0.0)
    child.read(TWO)
    polled, read = sorted(child.serve(), key=lambda said: said.ask)
    assert unpack(polled.data) == [["stdout", 0, b"01"]]
    assert read.data == b"01"


def test_a_cursor_of_another_log_is_refused() -> None:
    child = Child()
    child.write(b"abc")
    with pytest.raises(errors.InvalidRequest, match="cursor"):
        child.poll(stderr=1)
    assert child.outlet.polls == []


@pytest.mark.parametrize("kind", ["poll", "read"])
def test_what_is_stopped_is_not_answered(kind: str) -> None:
    child = Child()
    getattr(child, kind)(ONE)
    getattr(child, kind)(TWO)
    child.outlet.stop(ONE)
    assert [said.ask for said in child.serve(10.0)] == [TWO]


# Reads of one stream


def test_a_read_waits_for_a_byte_of_its_stream() -> None:
    child = Child()
    child.read(stream="stderr")
    child.write(b"out")
    assert child.outlet.next_deadline() == 10.0
    assert child.serve(1.0) == []
    child.write(b"err", "stderr")
    (reply,) = child.serve(1.0)
    assert reply.body == {"offset": 0, "gap": 0, "eof": False}
    assert reply.data == b"err"
    assert child.serve(99.0) == []


def test_a_read_is_answered_at_its_deadline_with_nothing() -> None:
    child = Child()
    child.read(wait=2.0)
    assert child.serve(1.9) == []
    (reply,) = child.serve(2.0)
    assert (reply.body["eof"], reply.data) == (False, b"")


def test_a_read_is_told_the_end_with_the_last_bytes() -> None:
    child = Child()
    child.write(b"abc")
    child.end("stdout")
    child.read(limit=2)
    child.read(TWO, offset=2)
    child.read(Ask(3, 1), offset=3)
    assert [(s.data, s.body["eof"]) for s in child.serve()] == [
        (b"ab", False),
        (b"c", True),
        (b"", True),
    ]


def test_the_newest_read_waits_for_what_comes() -> None:
    child = Child()
    child.write(b"old")
    child.read(offset=None)
    assert child.serve() == []
    child.write(b"new")
    (reply,) = child.serve()
    assert (reply.body["offset"], reply.data) == (3, b"new")


def test_a_read_counts_what_it_missed() -> None:
    child = Child("tail", 4)
    child.write(b"012345")
    child.read(offset=1)
    (reply,) = child.serve()
    assert (reply.body, reply.data) == (
        {"offset": 2, "gap": 1, "eof": False},
        b"2345",
    )


def test_a_read_of_the_future_is_refused() -> None:
    child = Child()
    with pytest.raises(errors.InvalidRequest, match="after: is beyond the 0 bytes yet"):
        child.read(offset=1)
    assert child.outlet.reads == []


def test_a_cursor_of_a_blocking_log_holds_until_it_is_given_up() -> None:
    child = Child("block", 4)
    child.read()
    child.write(b"0123")
    assert child.heard() == [b"0123"]
    assert child.log.room() == 0
    child.read(Ask(1, 2), offset=3)
    assert child.log.room() == 3
    child.outlet.stop(Ask(1, 50))
    assert child.log.room() == sys.maxsize


def test_a_read_that_waits_does_not_hold_the_other_stream() -> None:
    child = Child("block", 4)
    child.read(stream="stderr")
    child.write(b"0123")
    assert child.serve(held=True) == []
    assert child.log.room() == 4
    child.write(b"err", "stderr")
    assert child.heard() == [b"err"]


# Refused


def test_a_release_refuses_what_waits_and_leaves_readers() -> None:
    child = Child()
    child.open(ONE)
    child.poll(Ask(1, 2))
    child.read(Ask(2, 3))
    child.outlet.refuse_polls(errors.SessionNotFound())
    code = errors.SessionNotFound.code
    assert refused(child.voice.take()) == [(Ask(1, 2), code), (Ask(2, 3), code)]
    child.write(b"x")
    assert child.heard(now=99.0) == [b"x"]


def test_the_end_of_a_session_refuses_everybody() -> None:
    child = Child()
    child.open(ONE)
    child.poll(Ask(1, 2))
    child.outlet.refuse_all(errors.SessionNotFound())
    assert [ask for ask, _ in refused(child.voice.take())] == [Ask(1, 2), ONE]
    child.write(b"x")
    assert child.serve(99.0) == []


# Places instead of bytes

LONG = outlet.INLINE + 1
OWN = 4096 + 16_384 + 65_536
"""Bytes that a log has in its own memory before it turns to the arena."""


class Bulky(Child):
    """A child whose next byte lies in the arena; what came before is taken."""

    def __init__(self, kind: str = "tail", size: int = 200_000) -> None:
        self.shelf = Shelf(65_536)
        super().__init__(kind, size, arena=self.shelf)
        self.open(bytes=1 << 20)
        self.write(bytes(OWN))
        self.serve()
        self.credit(2, OWN)

    def answer(self, sequence: int = OWN, chunks: int = 2, *, local: bool) -> None:
        """Take what was sent, and say whether its places can be read."""
        self.credit(chunks, sequence, local=local)

    def meet(self) -> Said:
        """Make the reader local; return the first place that it is told."""
        self.write(b"x" * LONG)
        assert kinds(self.serve()) == ["ARENA"]
        self.answer(local=True)
        (placed,) = self.serve()
        return placed

    def read_there(self, said: Said) -> bytes:
        return self.shelf.copy(said.body["place"], said.body["length"])


def kinds(said: list[Said]) -> list[str]:
    return [one.kind.name for one in said]


def test_a_reader_is_told_of_the_arena_once_and_waited_for() -> None:
    child = Bulky()
    child.write(b"x" * LONG)
    (arena,) = child.serve()
    assert (arena.kind, arena.body) == (Kind.ARENA, child.shelf.address)
    child.write(b"y")
    assert child.serve() == []


def test_a_local_reader_gets_the_place_of_much_output() -> None:
    child = Bulky()
    placed = child.meet()
    assert (placed.kind, placed.payload) == (Kind.PLACED, None)
    assert placed.body["offset"] == placed.body["sequence"] == OWN
    assert child.read_there(placed) == b"x" * LONG
    child.write(b"y" * outlet.INLINE)
    (chunk,) = child.serve()
    assert (chunk.kind, chunk.data) == (Kind.CHUNK, b"y" * outlet.INLINE)


def test_a_reader_that_cannot_read_places_gets_the_bytes() -> None:
    child = Bulky()
    child.write(b"x" * LONG)
    child.serve()
    child.answer(local=False)
    assert child.heard() == [b"x" * LONG]


def test_a_reader_without_an_answer_gets_the_bytes_before_they_are_dropped() -> None:
    child = Bulky()
    assert child.outlet.patience == 100_000
    child.outlet.patience = LONG
    child.write(b"x" * (LONG - 1))
    assert kinds(child.serve()) == ["ARENA"]
    child.write(b"x")
    assert child.heard() == [b"x" * LONG]


def test_a_place_may_be_longer_than_a_chunk_but_not_than_the_window() -> None:
    child = Bulky()
    child.serve()
    child.outlet.readers[ONE].size = 3 * LONG
    child.outlet.launch = replace(child.outlet.launch, chunk=10)
    child.write(b"x" * 4 * LONG)
    child.serve()
    child.answer(local=True)
    (placed,) = child.serve()
    assert placed.body["length"] == 3 * LONG
    child.answer(OWN + 3 * LONG, 3, local=True)
    assert child.serve()[0].body["length"] == LONG


@pytest.mark.parametrize("kind", ["tail", "head_tail", "block"])
def test_what_a_local_reader_has_not_taken_stays_in_its_place(kind: str) -> None:
    child = Bulky(kind)
    placed = child.meet()
    for _ in range(50):
        child.write(b"y" * 65_536)
        child.serve()
    assert child.read_there(placed) == b"x" * LONG


def flood(child: Bulky) -> None:
    for _ in range(50):
        child.write(b"y" * 65_536)


def test_what_a_local_reader_has_taken_is_used_again() -> None:
    child = Bulky()
    placed = child.meet()
    child.answer(OWN + LONG, 3, local=True)
    flood(child)
    assert child.read_there(placed) != b"x" * LONG


@pytest.mark.parametrize("target", [Ask(1, 0), ONE])
def test_a_stopped_reader_keeps_no_place(target: Ask) -> None:
    child = Bulky()
    placed = child.meet()
    child.outlet.stop(target)
    flood(child)
    assert child.read_there(placed) != b"x" * LONG


def test_a_slow_local_reader_keeps_no_more_than_its_window() -> None:
    child = Bulky()
    child.meet()
    for _ in range(20):
        flood(child)
        child.serve()
    window, kept = 1 << 20, 200_000
    assert len(child.shelf.out) <= (window + kept) // 65_536 + 4


def test_a_local_reader_is_told_what_it_missed() -> None:
    child = Bulky()
    child.meet()
    flood(child)
    assert kinds(child.serve())[:2] == ["GAP", "CHUNK"]
    assert kinds(child.serve())[:2] == []


def test_ends_come_behind_places() -> None:
    child = Bulky()
    child.meet()
    child.write(b"x" * LONG)
    child.close()
    assert kinds(child.serve()) == ["PLACED", "EOF", "EOF", "EXITED", "CLOSED"]
    child.outlet.pump()
    assert child.voice.take() == []


# Pauses


def test_s31_a_pause_pushes_the_deadlines_of_polls_and_reads() -> None:
    child = Child()
    child.poll(wait=10.0)
    child.read(TWO, wait=12.0)
    child.outlet.pause(4.0, paused=True)
    assert child.outlet.next_deadline() is None
    assert child.serve(50.0) == []
    child.outlet.pause(54.0, paused=False)
    assert child.outlet.next_deadline() == 60.0
    assert child.serve(59.9) == []
    assert [said.ask for said in child.serve(60.0)] == [ONE]
    assert [said.ask for said in child.serve(62.0)] == [TWO]


def test_s31_what_was_asked_during_a_pause_waits_its_whole_time_after_it() -> None:
    child = Child()
    child.outlet.pause(0.0, paused=True)
    child.now = 30.0
    child.poll(wait=10.0)
    child.read(TWO, wait=10.0)
    assert child.serve(49.0) == []
    child.outlet.pause(50.0, paused=False)
    assert child.outlet.next_deadline() == 60.0
    assert len(child.serve(60.0)) == 2


def test_s31_who_does_not_wait_is_answered_during_a_pause() -> None:
    child = Child()
    child.outlet.pause(0.0, paused=True)
    child.now = 30.1
    child.poll(wait=0.0)
    child.read(TWO, wait=0.0)
    assert child.outlet.next_deadline() == 0.0
    assert len(child.serve(30.1)) == 2


def test_s31_output_is_given_during_a_pause() -> None:
    child = Child()
    child.outlet.pause(0.0, paused=True)
    child.poll(mode="output")
    child.write(b"x")
    assert child.outlet.next_deadline() == child.quiet
    assert len(child.serve(child.quiet)) == 1


# Whatever happens

clients = st.integers(1, 3)
streams = st.sampled_from(STREAMS)


@dataclass
class Follower:
    """A reader, as its client sees it: what it got, and what it may get."""

    at: dict[str, int]
    chunks: int
    size: int
    capture: bool
    lossless: bool
    excused: int
    """Bytes that were dropped before a lossless reader came."""
    events: list[Said] = field(default_factory=list)
    taken: int = 0
    missed: int = 0

    @property
    def sent(self) -> list[Said]:
        return [said for said in self.events if said.kind is Kind.CHUNK]

    def told(self, kind: Kind) -> int:
        return sum(said.kind is kind for said in self.events)


class Reading(RuleBasedStateMachine):
    """A child that writes and ends, and clients that read it in every way."""

    @initialize(
        kind=st.sampled_from(["tail", "head_tail", "block"]),
        size=st.integers(1, 12),
        chunk=st.integers(1, 8),
    )
    def begin(self, kind: str, size: int, chunk: int) -> None:
        self.child = Child(kind, size, chunk)
        self.kind = kind
        self.written: dict[str, bytearray] = {name: bytearray() for name in STREAMS}
        self.places: dict[str, list[int]] = {name: [] for name in STREAMS}
        self.end_at: dict[str, dict[str, int]] = {}
        self.mark_at: dict[str, int] | None = None
        self.followers: dict[Ask, Follower] = {}
        self.done: list[Follower] = []
        self.waiting: dict[Ask, dict[str, Any]] = {}
        self.answered: Counter[Ask] = Counter()
        self.cursors: dict[int, dict[str, int]] = {}
        self.last = 0

    def ask(self, client: int) -> Ask:
        self.last += 1
        return Ask(client, self.last)

    def produced(self) -> dict[str, int]:
        return {name: len(data) for name, data in self.written.items()}

    # -- the child ---------------------------------------------------------------

    @rule(stream=streams, count=st.integers(1, 9))
    def write(self, stream: str, count: int) -> None:
        if stream not in self.child.progress.streams:
            return
        log, sent = self.child.log, self.written[stream]
        data = bytes((len(sent) + i) % 251 for i in range(count))
        self.places[stream] += range(log.end, log.end + count)
        sent += data
        self.child.write(data, stream)

    @rule(stream=streams, kind=st.sampled_from([Kind.EOF, Kind.ABANDONED, Kind.BROKEN]))
    def end(self, stream: str, kind: Kind) -> None:
        if stream not in self.child.progress.streams:
            return
        self.child.end(stream, kind=kind)
        self.end_at[stream] = self.produced()

    @rule()
    def exit(self) -> None:
        self.child.exit()

    @precondition(lambda self: self.child.progress.status and self.mark_at is None)
    @rule()
    def mark(self) -> None:
        self.child.mark()
        self.mark_at = self.produced()

    @precondition(lambda self: self.mark_at and not self.child.progress.streams)
    @rule()
    def close(self) -> None:
        self.child.progress.closed = True

    # -- the clients -------------------------------------------------------------

    @rule(
        client=clients,
        where=st.sampled_from(["oldest", "newest", "after"]),
        part=st.integers(0, 100),
        window=st.tuples(st.integers(1, 4), st.integers(1, 20)),
        capture=st.booleans(),
    )
    def open(
        self,
        client: int,
        where: str,
        part: int,
        window: tuple[int, int],
        capture: bool,
    ) -> None:
        ask, log = self.ask(client), self.child.log
        chunks, size = window
        after = log.end * part // 100 if where == "after" else None
        self.child.open(
            ask,
            after=after,
            newest=where == "newest",
            chunks=chunks,
            bytes=size,
            capture=capture,
        )
        start = Cursor(0, 0) if where == "oldest" else self.child_cursor(ask)
        self.followers[ask] = Follower(
            start._asdict(),
            chunks,
            size,
            capture,
            capture or self.kind == "block",
            sum(log.stats(name).dropped for name in STREAMS),
        )

    def child_cursor(self, ask: Ask) -> Cursor:
        cursor = self.child.outlet.readers[ask].cursor
        for name, at in cursor._asdict().items():  # a true place of the merged order
            before = [p for p in self.places[name] if p < cursor.sequence]
            assert len(before) == at
        return cursor

    @precondition(lambda self: self.followers)
    @rule(data=st.data())
    def credit(self, data: st.DataObject) -> None:
        ask = data.draw(st.sampled_from(sorted(self.followers)))
        follower = self.followers[ask]
        follower.taken = data.draw(st.integers(follower.taken, len(follower.sent)))
        self.tell(ask, follower)

    def tell(self, ask: Ask, follower: Follower) -> None:
        if follower.taken:
            last = follower.sent[follower.taken - 1]
            reached = last.body["sequence"] + len(last.data)
            self.child.credit(follower.taken, reached, ask)

    @precondition(lambda self: self.followers)
    @rule(data=st.data())
    def lie(self, data: st.DataObject) -> None:
        ask = data.draw(st.sampled_from(sorted(self.followers)))
        follower = self.followers.pop(ask)
        with pytest.raises(errors.InvalidRequest):
            self.child.credit(len(follower.sent) + 1, 0, ask)

    @rule(
        client=clients,
        wait=st.sampled_from([0.0, 1.0, 5.0]),
        mode=st.sampled_from(["output", "completion"]),
        limit=st.integers(1, 9),
    )
    def poll(self, client: int, wait: float, mode: str, limit: int) -> None:
        if any(a.client == client and "mode" in b for a, b in self.waiting.items()):
            return  # a client's next poll follows the answer to its last one
        cursor = self.cursors.setdefault(client, dict.fromkeys(STREAMS, 0))
        ask = self.ask(client)
        body = {**cursor, "wait": wait, "mode": mode, "limit": limit}
        self.child.poll(ask, **body)
        self.waiting[ask] = body

    @rule(
        client=clients,
        stream=streams,
        part=st.integers(0, 100),
        wait=st.sampled_from([0.0, 1.0, 5.0]),
        limit=st.integers(1, 9),
    )
    def read(
        self, client: int, stream: str, part: int, wait: float, limit: int
    ) -> None:
        ask = self.ask(client)
        offset = len(self.written[stream]) * part // 100
        body = {"stream": stream, "offset": offset, "wait": wait, "limit": limit}
        self.child.read(ask, reader=1000 + ask.request, **body)
        self.waiting[ask] = body

    @precondition(lambda self: self.followers or self.waiting)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        ask = data.draw(st.sampled_from(sorted({*self.followers, *self.waiting})))
        self.child.outlet.stop(ask)
        self.followers.pop(ask, None)
        self.waiting.pop(ask, None)

    @rule(client=clients)
    def forget(self, client: int) -> None:
        self.child.outlet.stop(Ask(client, 0))
        for known in (self.followers, self.waiting):
            for ask in [a for a in known if a.client == client]:
                del known[ask]
        self.cursors.pop(client, None)
        assert not self.child.outlet.holds.get(client)

    # -- time, and the way to the clients ----------------------------------------

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.child.outlet.pause(self.child.now, paused=paused)

    @rule(free=st.booleans())
    def congest(self, free: bool) -> None:
        self.child.voice.free = free

    @rule(passes=st.sampled_from([0.0, 0.01, 0.1, 2.0]), held=st.booleans())
    def serve(self, passes: float, held: bool) -> None:
        self.hear(self.child.serve(self.child.now + passes, held=held))
        due = self.child.outlet.next_deadline()
        assert due is None or due > self.child.now, "the loop would spin"

    @rule()
    def pump(self) -> None:
        self.child.outlet.pump()
        self.hear(self.child.voice.take())

    @rule()
    def refuse(self) -> None:
        self.child.outlet.refuse_polls(errors.SessionNotFound())
        said = self.child.voice.take()
        assert sorted(ask for ask, _ in refused(said)) == sorted(self.waiting)
        self.answered.update(list(self.waiting))
        self.waiting.clear()

    def hear(self, heard: list[Said]) -> None:
        for said in heard:
            if said.kind is Kind.REPLY:
                self.reply(said)
            else:
                self.event(self.followers[said.ask], said)

    # -- what clients were told is true ------------------------------------------

    def event(self, follower: Follower, said: Said) -> None:
        body = said.body
        match said.kind:
            case Kind.CHUNK:
                self.chunk(follower, body, said.data)
            case Kind.GAP:
                assert body["start"] == follower.at[body["stream"]] < body["end"]
                follower.missed += body["end"] - body["start"]
                follower.at[body["stream"]] = body["end"]
                assert not follower.lossless or follower.missed <= follower.excused
            case Kind.EXITED:
                assert not follower.capture
                assert self.mark_at is not None
                assert covers(follower.at, self.mark_at)
                assert not follower.told(Kind.EXITED)
            case Kind.CLOSED:
                assert self.child.progress.closed
                assert follower.told(Kind.EXITED) == (not follower.capture)
                assert follower.at == self.produced()
                ends = [e.body["stream"] for e in follower.events if is_end(e)]
                assert sorted(ends) == ([] if follower.capture else sorted(STREAMS))
                self.done.append(self.followers.pop(said.ask))
            case _:
                assert is_end(said)
                assert not follower.capture
                assert covers(follower.at, self.end_at[body["stream"]])
        follower.events.append(said)

    def chunk(self, follower: Follower, body: dict[str, Any], data: bytes) -> None:
        stream, offset = body["stream"], body["offset"]
        assert offset == follower.at[stream]
        assert body["sequence"] == self.places[stream][offset]
        self.is_there(stream, offset, data)
        follower.at[stream] += len(data)
        assert 0 < len(data) <= self.child.outlet.launch.chunk
        under_way = [len(said.data) for said in follower.sent[follower.taken :]]
        assert len(under_way) < follower.chunks
        assert sum(under_way) + len(data) <= follower.size

    def is_there(self, stream: str, offset: int, data: bytes) -> None:
        assert self.written[stream][offset : offset + len(data)] == data

    def reply(self, said: Said) -> None:
        asked = self.waiting.pop(said.ask)
        self.answered[said.ask] += 1
        if "mode" in asked:
            self.polled(self.cursors[said.ask.client], said, asked["limit"])
            return
        offset, stream = said.body["offset"], asked["stream"]
        assert offset == asked["offset"] + said.body["gap"]
        assert len(said.data) <= asked["limit"]
        self.is_there(stream, offset, said.data)
        whole = offset + len(said.data) == len(self.written[stream])
        assert said.body["eof"] == (whole and stream in self.end_at)

    def polled(self, cursor: dict[str, int], said: Said, limit: int) -> None:
        size = 0
        for stream, gap, data in unpack(said.data):
            self.is_there(stream, cursor[stream], data or b"")
            cursor[stream] += gap if data is None else len(data)
            size += len(data or b"")
        assert size <= limit
        everything = cursor == self.produced()
        assert said.body["more"] == (not everything)
        progress = self.child.progress
        assert said.body["done"] == (progress.closed and everything)
        assert said.body["state"] == progress.state

    # -- laws --------------------------------------------------------------------

    @invariant()
    def a_request_is_answered_at_most_once(self) -> None:
        assert all(count == 1 for count in self.answered.values())

    @invariant()
    def the_outlet_knows_those_who_wait_and_no_others(self) -> None:
        known = self.child.outlet
        assert known.readers.keys() == self.followers.keys()
        waiting = [p.ask for p in known.polls] + [r.ask for r in known.reads]
        assert sorted(waiting) == sorted(self.waiting)

    @invariant()
    def lossless_readers_keep_what_their_clients_have_not_taken(self) -> None:
        for follower in self.followers.values():
            place = Cursor(**follower.at)
            if follower.lossless and follower.missed == follower.excused:
                ahead, _ = self.child.log.read(place, 1, 1)
                assert not ahead or isinstance(ahead[0], Piece)

    @invariant()
    def whoever_waits_has_a_deadline_unless_the_clock_is_stopped(self) -> None:
        due = self.child.outlet.next_deadline()
        if self.child.outlet.clock.when(float("inf")) is not None:
            assert (due is not None) == bool(self.waiting)
        assert due is None or self.waiting

    def teardown(self) -> None:
        """Let the child end and everybody take all: then everything has been said."""
        for stream in STREAMS:
            if stream in self.child.progress.streams:
                self.child.end(stream)
                self.end_at[stream] = self.produced()
        self.exit()
        if self.mark_at is None:
            self.mark()
        self.close()
        self.child.voice.free = True
        self.child.outlet.pause(self.child.now, paused=False)
        while self.followers:
            before = {ask: len(f.events) for ask, f in self.followers.items()}
            for ask, follower in self.followers.items():
                follower.taken = len(follower.sent)
                self.tell(ask, follower)
            self.serve(10.0, held=False)
            for ask, follower in self.followers.items():
                assert len(follower.events) > before[ask], "a reader starves"
        self.serve(10.0, held=False)
        assert not self.waiting
        assert all(follower.told(Kind.CLOSED) == 1 for follower in self.done)
        self.child.log.hold("first", 0)  # a blocking log waits for its first reader
        self.child.log.release("first")
        for client in (1, 2, 3):
            self.forget(client)
        assert self.child.log.room() == sys.maxsize


def covers(at: dict[str, int], place: dict[str, int]) -> bool:
    return all(at[name] >= place[name] for name in STREAMS)


def is_end(said: Said) -> bool:
    return said.kind in (Kind.EOF, Kind.ABANDONED, Kind.BROKEN)


TestReading = Reading.TestCase
TestReading.settings = settings(stateful_step_count=40)


def test_the_only_reader_is_alone_and_has_got_everything() -> None:
    child = Child()
    assert child.outlet.only_reader() is None
    child.open(ONE)
    child.write(b"x")
    assert child.outlet.only_reader() is None
    child.serve()
    assert child.outlet.only_reader() is child.outlet.readers[ONE]
    child.open(TWO)
    child.serve()
    assert child.outlet.only_reader() is None
    child.outlet.stop(TWO)
    child.poll(TWO)
    assert child.outlet.only_reader() is None


# Another broker


def resume(child: Child, ask: Ask = ONE, **changes: Any) -> None:
    body = {
        "stdout": 0,
        "stderr": 0,
        "received": 0,
        "taken": 0,
        "sequence": 0,
        "local": False,
        "ended": [],
        "exited": False,
        "chunks": 99,
        "bytes": 999,
        "capture": False,
    }
    child.outlet.resume(ask, body | changes)


def test_s46_a_reader_gets_nothing_from_a_loss_to_its_return() -> None:
    child = Child()
    child.open()
    child.outlet.cut_off()
    child.write(b"abc")
    assert child.heard() == []


def test_s46_a_reader_goes_on_exactly_where_its_client_is() -> None:
    child = Child()
    child.open()
    child.write(b"ab")
    child.write(b"c", "stderr")
    child.write(b"de")
    assert child.heard() == [b"ab", b"c", b"de"]
    child.outlet.cut_off()
    child.write(b"f")
    resume(child, stdout=2, stderr=1, received=2, sequence=3)
    assert child.heard() == [b"def"]


def test_s46_a_window_goes_on_as_well() -> None:
    child = Child()
    child.write(b"abcdef")
    resume(child, stdout=2, received=1, taken=0, sequence=0, bytes=4)
    assert child.heard() == [b"cd"]
    child.credit(1, 2)
    assert child.heard() == [b"ef"]


def test_s46_what_a_lossless_reader_has_not_received_is_held_meanwhile() -> None:
    child = Child("block", 8)
    child.open()
    child.write(b"01234567")
    assert child.heard() == [b"01234567"]
    child.outlet.cut_off()
    assert child.log.room() == 0
    resume(child, stdout=4, received=1, sequence=4)
    assert child.heard() == [b"4567"]
    assert child.log.room() == 4


def test_what_was_received_and_not_taken_is_held_on_after_a_loss() -> None:
    child = Child("block", 6)
    child.open()
    child.write(b"abcd")
    assert child.heard() == [b"abcd"]
    child.outlet.cut_off()
    resume(child, stdout=4, received=1, sequence=2)
    assert child.log.room() == 4
    child.credit(1, 4)
    assert child.log.room() == 6


def test_s46_a_reader_is_told_what_was_dropped_meanwhile() -> None:
    child = Child("tail", 4)
    child.open()
    child.outlet.cut_off()
    child.write(b"0123456789")
    resume(child)
    assert child.heard() == ["GAP", b"6789"]


def test_s46_ends_are_told_once() -> None:
    child = Child()
    child.open()
    child.close()
    assert sorted(child.heard()) == ["CLOSED", "EOF", "EOF", "EXITED"]
    child.outlet.cut_off()
    resume(child, ended=["stdout"], exited=True)
    assert sorted(child.heard()) == ["CLOSED", "EOF"]


def test_s46_a_reader_whose_end_was_lost_gets_it_again() -> None:
    child = Child()
    child.open(capture=True)
    child.write(b"abc")
    child.close()
    assert child.heard() == [b"abc", "CLOSED"]
    assert child.outlet.readers == {}
    child.outlet.cut_off()
    resume(child, stdout=1, received=1, sequence=1, capture=True)
    assert child.heard() == [b"bc", "CLOSED"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"stdout": 9},
        {"stdout": 1, "sequence": 2},
        {"stdout": 1, "received": 1, "taken": 2},
    ],
)
def test_s46_a_reader_cannot_go_on_where_it_cannot_be(wrong: dict[str, Any]) -> None:
    child = Child()
    child.write(b"abc")
    with pytest.raises(errors.InvalidRequest, match="cursor"):
        resume(child, **wrong)
    assert child.outlet.readers == {}


def test_s46_a_reader_that_got_nothing_begins_where_it_began() -> None:
    child = Child()
    child.write(b"old")
    child.open(newest=True)
    child.outlet.cut_off()
    child.write(b"new")
    child.open(newest=True)
    assert child.heard() == [b"new"]


def test_s46_a_local_reader_stays_one() -> None:
    child = Bulky()
    placed = child.meet()
    child.outlet.cut_off()
    child.write(b"y" * LONG)
    place: dict[str, Any] = {"stdout": OWN + LONG, "received": 3, "taken": 2}
    resume(child, **place, sequence=OWN, local=True, bytes=1 << 20)
    (later,) = child.serve()
    assert later.kind is Kind.PLACED
    assert child.read_there(later) == b"y" * LONG
    flood(child)
    assert child.read_there(placed) == b"x" * LONG  # it was not taken yet


def test_s46_a_client_that_does_not_come_back_holds_nothing() -> None:
    child = Child("block", 4)
    child.open()
    child.write(b"0123")
    child.outlet.cut_off()
    assert child.outlet.clients == {1}
    child.outlet.stop(Ask(1, 0))
    assert child.outlet.clients == set()
    assert child.log.room() > 4


def test_s46_a_reader_that_is_stopped_meanwhile_holds_nothing() -> None:
    child = Child("block", 4)
    child.open()
    child.write(b"0123")
    child.outlet.cut_off()
    child.outlet.stop(ONE)
    assert child.outlet.left == {}
    assert child.log.room() > 4


def test_s46_a_poll_or_read_that_is_asked_again_is_answered_once() -> None:
    child = Child()
    for _ in range(2):
        child.poll(ONE)
        child.read(TWO)
    assert child.outlet.pending
    assert child.outlet.clients == {1, 2}
    child.close()
    said = child.serve()
    assert sorted(s.ask for s in said) == [ONE, TWO]


@pytest.mark.parametrize("paused", [0.0, 40.0])
def test_a_poll_or_read_that_is_asked_again_ends_when_it_was_to(paused: float) -> None:
    child = Child()
    child.poll(ONE, wait=10.0)
    child.read(TWO, wait=10.0)
    child.outlet.pause(4.0, paused=True)
    child.outlet.pause(4.0 + paused, paused=False)
    child.now = 6.0 + paused
    child.poll(ONE, wait=0.0 if paused else 4.0)  # what is left of it to its client
    child.read(TWO, wait=20.0)
    assert child.serve(9.9 + paused) == []
    assert sorted(said.ask for said in child.serve(10.0 + paused)) == [ONE, TWO]
