"""A child's input: every byte in order, every writer told once how much went in."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.inbox import Inbox
from broker.errors import CapacityExceeded, InvalidRequest


def drained(inbox: Inbox) -> bytes:
    data = bytearray()
    while inbox:
        piece = inbox.next()
        data += piece
        inbox.took(len(piece))
    return bytes(data)


def test_an_empty_inbox_has_nothing_to_write() -> None:
    inbox = Inbox(4)
    assert not inbox
    assert not inbox.finished


def test_a_writer_is_served_once_its_last_byte_is_in_the_pipe() -> None:
    inbox = Inbox(100)
    assert inbox.put("a", b"abcd", None) is None
    assert inbox.put("b", b"ef", None) is None
    assert bytes(inbox.next()) == b"abcd"
    assert inbox.took(3) == []
    assert bytes(inbox.next()) == b"d"
    assert inbox.took(1) == [("a", 4)]
    assert inbox.took(2) == [("b", 2)]
    assert not inbox


def test_writing_nothing_is_answered_at_once_when_nothing_waits() -> None:
    assert Inbox(4).put("a", b"", None) == 0


def test_writing_nothing_waits_for_what_is_before_it() -> None:
    inbox = Inbox(4)
    inbox.put("a", b"abcd", None)
    assert inbox.put("b", b"", None) is None
    assert inbox.took(4) == [("a", 4), ("b", 0)]


def test_a_full_queue_refuses_a_writer() -> None:
    inbox = Inbox(4)
    inbox.put("a", b"abcd", None)
    with pytest.raises(CapacityExceeded, match="4 bytes of input are waiting"):
        inbox.put("b", b"e", None)
    inbox.took(1)
    assert inbox.put("b", b"e", None) is None


def test_fresh_is_what_put_will_queue_and_refuses_what_put_refuses() -> None:
    inbox = Inbox(4)
    inbox.put("a", b"ab", None)
    assert inbox.fresh(b"cd", None) == b"cd"
    assert inbox.fresh(b"abcd", 0) == b"cd"
    assert inbox.fresh(b"ab", 0) == b""
    with pytest.raises(InvalidRequest, match="beyond the 2 bytes"):
        inbox.fresh(b"d", 3)
    inbox.put("b", b"cd", None)
    with pytest.raises(CapacityExceeded):
        inbox.fresh(b"e", None)
    assert drained(inbox) == b"abcd"


def test_nothing_follows_the_last_input() -> None:
    inbox = Inbox(4)
    inbox.put("a", b"ab", None)
    before = inbox.ending, inbox.finished
    inbox.feed(b"\4")
    assert (before, inbox.ending, inbox.finished) == ((False, False), True, False)
    assert drained(inbox) == b"ab\4"
    assert inbox.finished


def test_a_large_write_is_taken_while_there_is_any_room() -> None:
    inbox = Inbox(4)
    inbox.put("a", b"abc", None)
    assert inbox.put("b", bytes(100), None) is None


def test_a_repeated_write_is_not_queued_again() -> None:
    inbox = Inbox(100)
    inbox.put("first", b"abcd", 0)
    assert inbox.put("again", b"abcd", 0) is None
    assert inbox.took(4) == [("first", 4), ("again", 4)]
    assert inbox.total == 4


def test_a_repeated_write_that_went_in_is_answered_at_once() -> None:
    inbox = Inbox(100)
    inbox.put("first", b"abcd", 0)
    drained(inbox)
    assert inbox.put("again", b"abcd", 0) == 4
    assert not inbox


def test_a_repeated_write_queues_what_is_new_of_it() -> None:
    inbox = Inbox(100)
    inbox.put("first", b"ab", 0)
    assert inbox.put("longer", b"abcd", 0) is None
    assert drained(inbox) == b"abcd"


def test_a_repeated_write_is_taken_by_a_full_queue() -> None:
    inbox = Inbox(4)
    inbox.put("first", b"abcd", 0)
    assert inbox.put("again", b"abcd", 0) is None


def test_a_write_beyond_what_was_written_is_refused() -> None:
    inbox = Inbox(100)
    inbox.put("a", b"ab", None)
    with pytest.raises(InvalidRequest, match="beyond the 2 bytes written so far"):
        inbox.put("b", b"x", 3)


def test_input_given_whole_ends_stdin_once_it_is_through() -> None:
    inbox = Inbox(4)
    inbox.feed(b"more than fits")
    assert not inbox.finished
    assert drained(inbox) == b"more than fits"
    assert inbox.finished


def test_empty_input_given_whole_ends_stdin_at_once() -> None:
    inbox = Inbox(4)
    inbox.feed(b"")
    assert inbox.finished


def test_closing_tells_every_writer_what_went_in() -> None:
    inbox = Inbox(100)
    inbox.put("a", b"abcd", None)
    inbox.put("b", b"ef", None)
    inbox.took(3)
    assert inbox.close() == [("a", 3), ("b", 0)]
    assert not inbox
    assert not inbox.finished
    assert inbox.close() == []


class Writing(RuleBasedStateMachine):
    """Writers, retries and a pipe that takes what it likes, against a byte string."""

    def __init__(self) -> None:
        super().__init__()
        self.inbox = Inbox(8)
        self.written = b""
        self.through = b""
        self.waiting: dict[int, tuple[int, int]] = {}
        self.last = 0

    def served(self, answers: list[tuple[object, int]]) -> None:
        for key, accepted in answers:
            assert isinstance(key, int)
            start, end = self.waiting.pop(key)
            assert end <= len(self.through)
            assert accepted == end - start

    @rule(size=st.integers(0, 12))
    def write(self, size: int) -> None:
        data = bytes((len(self.written) + i) % 251 for i in range(size))
        self.put(data, len(self.written), None)

    @rule(where=st.floats(0, 1), size=st.integers(0, 12))
    def write_again(self, where: float, size: int) -> None:
        start = int(where * len(self.written))
        data = bytes((start + i) % 251 for i in range(size))
        self.put(data, start, start)

    def put(self, data: bytes, start: int, at: int | None) -> None:
        fresh = data[len(self.written) - start :]
        self.last += 1
        try:
            accepted = self.inbox.put(self.last, data, at)
        except CapacityExceeded:
            assert fresh
            assert len(self.written) - len(self.through) >= self.inbox.limit
            return
        self.written += fresh
        if accepted is None:
            self.waiting[self.last] = (start, start + len(data))
        else:
            assert accepted == len(data)
            assert start + len(data) <= len(self.through)

    @precondition(lambda self: bool(self.inbox))
    @rule(where=st.floats(0, 1))
    def pipe_takes(self, where: float) -> None:
        piece = self.inbox.next()
        count = int(where * len(piece))
        self.through += bytes(piece[:count])
        self.served(self.inbox.took(count))

    @rule()
    def close(self) -> None:
        for key, accepted in self.inbox.close():
            assert isinstance(key, int)
            start, end = self.waiting.pop(key)
            assert accepted == max(0, min(end, len(self.through)) - start)
        assert not self.waiting
        self.written = self.through

    @invariant()
    def what_went_in_is_what_was_written(self) -> None:
        assert self.written.startswith(self.through)
        assert (self.inbox.total, self.inbox.taken) == (
            len(self.written),
            len(self.through),
        )
        assert bool(self.inbox) == (len(self.through) < len(self.written))

    @invariant()
    def nobody_waits_for_bytes_that_are_through(self) -> None:
        assert all(end > len(self.through) for _, end in self.waiting.values())


TestWriting = Writing.TestCase


def test_what_went_in_beside_the_queue_counts_for_the_offsets() -> None:
    inbox = Inbox(4)
    inbox.passed(3)
    assert inbox.put("a", b"abc", 0) == 3
    assert inbox.fresh(b"abcd", 0) == b"d"
    with pytest.raises(InvalidRequest, match="beyond the 3 bytes"):
        inbox.fresh(b"e", 4)
