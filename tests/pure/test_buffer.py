"""The session log, against its laws and against a model that keeps everything."""

import sys
from itertools import groupby

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from actors import buffer
from actors.buffer import Counts, Cursor, Hole, Log, Piece, Placed
from broker.wire import STREAMS
from tests.shelf import Shelf

START = Cursor(0, 0)
POLICIES = ("tail", "head_tail", "block")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few bytes fill many blocks."""
    monkeypatch.setattr(buffer, "FIRST_BLOCK", 2)
    monkeypatch.setattr(buffer, "BLOCK_GROWTH", 2)
    monkeypatch.setattr(buffer, "LARGEST_BLOCK", 8)


def text(count: int) -> bytes:
    return bytes(i * 7 % 251 for i in range(count))


def memory(log: Log) -> int:
    return sum(len(block.view) for block in log._blocks)


def everything(
    log: Log, cursor: Cursor = START, limit: int = 1 << 20
) -> list[Piece | Hole]:
    found: list[Piece | Hole] = []
    while cursor.sequence < log.end:
        entries, cursor = log.read(cursor, limit)
        found += entries
    return found


# Construction and simple reading


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_size_must_be_positive(policy: str, size: int) -> None:
    with pytest.raises(ValueError, match="size must be positive"):
        Log(policy, size)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="no such policy: 'ring'"):
        Log("ring", 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_empty_log_answers_every_question(policy: str) -> None:
    log = Log(policy, 9)
    assert (log.end, log.first(), log.newest(5)) == (0, 0, b"")
    assert log.at(0) == START
    assert log.read(START, 10) == ([], START)
    assert log.read_stream("stderr", 0, 10) == (0, 0, b"")
    assert log.seek("stdout", 3) == 0
    assert log.stats("stdout") == log.stats("stderr") == Counts(0, 0, 0)


def test_both_streams_come_in_merged_order_with_their_own_offsets() -> None:
    log = Log("tail", 100)
    log.append("stderr", b"ab")
    log.append("stdout", b"c")
    log.append("stdout", b"d")
    log.append("stderr", b"e")
    assert log.read(START, 100) == (
        [
            Piece("stderr", 0, 0, b"ab"),
            Piece("stdout", 0, 2, b"cd"),
            Piece("stderr", 2, 4, b"e"),
        ],
        Cursor(2, 3),
    )


def test_reading_in_the_middle_of_each_run_goes_on_where_it_stopped() -> None:
    log = Log("tail", 100)
    for stream, data in [("stdout", b"abc"), ("stderr", b"def"), ("stdout", b"g")]:
        log.append(stream, data)
    entries, cursor = log.read(START, 2)
    assert entries == [Piece("stdout", 0, 0, b"ab")]
    entries, cursor = log.read(cursor, 2)
    assert entries == [Piece("stdout", 2, 2, b"c"), Piece("stderr", 0, 3, b"d")]
    entries, cursor = log.read(cursor, 2)
    assert entries == [Piece("stderr", 1, 4, b"ef")]
    assert log.read(cursor, 2) == ([Piece("stdout", 3, 6, b"g")], Cursor(4, 3))


def test_reading_takes_nothing_from_another_reader() -> None:
    log = Log("tail", 100)
    log.append("stdout", b"abc")
    assert log.read(START, 100) == log.read(START, 100)


def test_a_piece_spans_blocks(small_blocks: None) -> None:
    log = Log("tail", 100)
    log.append("stdout", text(50))
    assert log.read(START, 100)[0] == [Piece("stdout", 0, 0, text(50))]
    assert log.read(START, 49)[0] == [Piece("stdout", 0, 0, text(49))]


def test_no_limit_reads_nothing() -> None:
    log = Log("tail", 100)
    log.append("stdout", b"abc")
    for limit in (0, -1):
        assert log.read(START, limit) == ([], START)
        assert log.read_stream("stdout", 1, limit) == (0, 1, b"")


def test_one_read_is_bounded_in_pieces() -> None:
    log = Log("tail", 10_000)
    for _ in range(buffer.MOST_PIECES):
        log.append("stdout", b"o")
        log.append("stderr", b"e")
    entries, cursor = log.read(START, 10_000)
    assert len(entries) == buffer.MOST_PIECES == cursor.sequence
    assert log.read(START, 10_000, 3)[1] == Cursor(2, 1)
    assert len(everything(log)) == 2 * buffer.MOST_PIECES


# Filling


def test_space_is_writable_and_never_empty() -> None:
    log = Log("tail", 10)
    sizes = set()
    for _ in range(50):
        space = log.space()
        sizes.add(len(space))
        space[:] = b"x" * len(space)
        log.commit("stdout", len(space))
    assert sizes == {4096, 16384, 65536}


def test_what_was_read_into_the_space_belongs_to_the_stream_committed() -> None:
    log = Log("tail", 10)
    log.space()[:4] = b"abcd"
    log.commit("stderr", 3)
    log.commit("stdout", 0)
    log.append("stderr", memoryview(b"xy"))
    assert everything(log) == [Piece("stderr", 0, 0, b"abcxy")]


def test_more_than_the_space_cannot_be_committed() -> None:
    log = Log("tail", 10)
    for count in (-1, len(log.space()) + 1):
        with pytest.raises(ValueError, match="were not in the space"):
            log.commit("stdout", count)
    assert log.end == 0


def test_an_unknown_stream_is_refused() -> None:
    with pytest.raises(KeyError):
        Log("tail", 10).append("stdin", b"x")


# Policies


@pytest.mark.parametrize("size", [1, 2, 5, 64])
def test_a_tail_keeps_exactly_the_newest_bytes(small_blocks: None, size: int) -> None:
    log = Log("tail", size)
    for count in range(200):
        kept = min(size, count)
        assert log.stats("stdout") == Counts(count, kept, count - kept)
        assert log.newest(1 << 20) == text(count)[count - kept :]
        assert log.first() == count - kept
        log.append("stdout", text(200)[count : count + 1])


@pytest.mark.parametrize("size", [1, 2, 5, 64])
def test_a_head_and_tail_keep_exactly_both_halves(
    small_blocks: None, size: int
) -> None:
    log = Log("head_tail", size)
    head, tail = size - size // 2, size // 2
    for count in range(200):
        data = text(count)
        kept = data if count <= size else data[:head] + data[count - tail :]
        pieces = [entry for entry in everything(log) if isinstance(entry, Piece)]
        assert b"".join(piece.data for piece in pieces) == kept
        assert log.first() == 0
        log.append("stdout", text(200)[count : count + 1])


def test_a_full_head_alone_tells_what_it_lost() -> None:
    log = Log("head_tail", 1)
    log.append("stdout", b"abc")
    assert log.read(START, 9) == (
        [Piece("stdout", 0, 0, b"a"), Hole("stdout", 1, 3)],
        Cursor(3, 0),
    )
    assert log.newest(9) == b""


def test_a_hole_stands_in_its_place_with_one_entry_per_stream_that_lost() -> None:
    log = Log("head_tail", 6)
    log.append("stdout", b"abcd")
    log.append("stderr", b"efgh")
    log.append("stdout", b"ijk")
    assert everything(log) == [
        Piece("stdout", 0, 0, b"abc"),
        Hole("stdout", 3, 4),
        Hole("stderr", 0, 4),
        Piece("stdout", 4, 8, b"ijk"),
    ]
    assert log.read(START, 3) == ([Piece("stdout", 0, 0, b"abc")], Cursor(3, 0))
    assert log.newest(9) == b"ijk"


def test_an_overtaken_reader_is_told_what_it_missed_since_its_place() -> None:
    log = Log("tail", 4)
    log.append("stdout", b"abc")
    _, cursor = log.read(START, 2)
    log.append("stderr", b"defgh")
    assert log.read(cursor, 9) == (
        [Hole("stdout", 2, 3), Hole("stderr", 0, 1), Piece("stderr", 1, 4, b"efgh")],
        Cursor(3, 5),
    )


def test_a_log_reuses_the_memory_of_what_it_dropped() -> None:
    log = Log("tail", 200_000)
    blocks = set()
    for _ in range(100):
        log.append("stdout", bytes(65_536))
        blocks.add(id(log._blocks[-1].view.obj))
    assert len(blocks) <= 8


@pytest.mark.parametrize(("policy", "blocks"), [("tail", 2), ("head_tail", 3)])
def test_memory_stays_near_the_size(policy: str, blocks: int) -> None:
    size = 300_000
    log = Log(policy, size)
    for _ in range(500):
        log.append("stdout", bytes(9_999))
        assert memory(log) <= size + blocks * buffer.LARGEST_BLOCK


def test_alternating_single_bytes_cost_few_bytes_each() -> None:
    log = Log("tail", 65_536)
    for _ in range(40_000):
        log.append("stdout", b"o")
        log.append("stderr", b"e")
    runs = sum(sys.getsizeof(path) for block in log._blocks for path in block.path)
    assert runs <= 5 * sum(block.used for block in log._blocks)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_that_goes_on_alone_costs_only_its_bytes(stream: str) -> None:
    log = Log("tail", 5_000)
    for _ in range(4_000):
        log.append(stream, b"x")
    assert {len(path) for block in log._blocks for path in block.path} == {2}


# The arena


def bulky(policy: str = "tail", size: int = 200_000, count: int = 1000) -> Log:
    """Return a log whose next byte lies in the arena: its own blocks are full."""
    log = Log(policy, size, Shelf(65_536, count))
    log.append("stdout", bytes(4096 + 16_384 + 65_536))
    return log


def test_a_log_with_little_output_has_no_arena() -> None:
    assert bulky().address is None
    log = bulky()
    log.append("stdout", b"x")
    assert log.address == {"pid": 1, "fd": 2, "device": 3, "inode": 4}
    assert Log("tail", 10).address is None


def test_bytes_in_the_arena_are_located_up_to_the_next_change_of_stream() -> None:
    log = bulky()
    start = log.at(log.end)
    log.append("stdout", b"o" * 100)
    log.append("stderr", b"e" * 50)
    placed = log.locate(start, 1000, 1)
    assert placed == Placed("stdout", start.stdout, start.sequence, 0, 100)
    cursor = start.after("stdout", 100)
    assert log.locate(cursor, 30, 1) == Placed("stderr", 0, cursor.sequence, 100, 30)
    assert log.locate(cursor, 1000, 51) is None
    assert log.locate(cursor, 30, 31) is None
    assert log.locate(cursor.after("stderr", 50), 30, 1) is None


def test_what_lies_in_the_log_s_own_memory_has_no_place() -> None:
    assert bulky().locate(START, 1000, 1) is None


def test_what_is_dropped_has_no_place() -> None:
    log = bulky(size=100)
    start = log.at(log.end)
    log.append("stdout", bytes(200))
    assert log.locate(start, 1000, 1) is None
    assert log.locate(log.at(log.first()), 1000, 100) is not None


def test_a_log_goes_on_in_its_own_memory_when_the_arena_is_full() -> None:
    log = bulky(count=1)
    log.append("stdout", bytes(65_536))
    start = log.at(log.end)
    log.append("stdout", b"more")
    assert log.locate(start, 4, 1) is None
    assert log.read(start, 4)[0][0].data == b"more"  # type: ignore[union-attr]


def flooded(log: Log) -> Shelf:
    """Write far more than the log keeps; return its arena."""
    for _ in range(50):
        log.append("stdout", bytes(65_536))
    assert isinstance(log._arena, Shelf)
    return log._arena


def test_dropped_blocks_are_used_again() -> None:
    assert len(flooded(bulky()).out) <= 6


def test_a_pinned_block_is_used_again_only_when_it_is_let_go() -> None:
    log = bulky()
    start = log.at(log.end)
    log.append("stdout", b"pinned")
    placed = log.locate(start, 6, 1)
    assert placed is not None
    log.pin("reader", placed)
    shelf = flooded(log)
    assert shelf.copy(placed.place, 6) == b"pinned"
    assert len(shelf.out) <= 7
    assert log.read(start, 1)[0][0] == Hole("stdout", start.stdout, log.first())
    log.unpin("nobody", log.end)
    log.unpin("reader", start.sequence + 5)
    flooded(log)
    assert shelf.copy(placed.place, 6) == b"pinned"
    log.unpin("reader", start.sequence + 6)
    flooded(log)
    assert shelf.copy(placed.place, 6) != b"pinned"


# Holds


def test_a_blocking_log_waits_for_its_first_reader() -> None:
    log = Log("block", 4)
    assert log.room() == 4
    log.append("stdout", b"abcd")
    assert log.room() == 0
    log.hold("reader", 0)
    assert log.room() == 0
    log.hold("reader", 3)
    assert log.room() == 3


def test_a_blocking_log_keeps_what_was_read_while_it_has_room() -> None:
    log = Log("block", 4)
    log.append("stdout", b"abcd")
    log.hold("reader", 4)
    assert log.first() == 0
    log.append("stdout", b"e")
    assert log.first() == 1


def test_a_blocking_log_is_drained_and_counted_after_its_last_reader() -> None:
    log = Log("block", 4)
    log.hold("reader", 0)
    log.release("reader")
    assert log.room() == sys.maxsize
    log.append("stdout", text(10))
    assert log.stats("stdout") == Counts(10, 4, 6)
    log.hold("late", 0)
    assert log.room() == 0
    assert everything(log, log.at(0)) == [Piece("stdout", 6, 6, text(10)[6:])]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_slowest_hold_counts_and_holds_only_move_forward(policy: str) -> None:
    log = Log(policy, 10)
    log.append("stdout", b"abcdef")
    log.hold("slow", 2)
    log.hold("fast", 6)
    assert log.room() == 6
    log.hold("slow", 1)
    assert log.room() == 6
    log.release("slow")
    assert log.room() == 10


@pytest.mark.parametrize("policy", POLICIES)
def test_held_bytes_are_kept_over_the_size(policy: str) -> None:
    log = Log(policy, 4)
    log.hold("reader", 0)
    log.append("stderr", text(20))
    assert log.room() == 0
    assert everything(log) == [Piece("stderr", 0, 0, text(20))]
    log.hold("reader", 20)
    assert log.stats("stderr") == Counts(20, 4, 16)


def test_a_late_hold_does_not_bring_back_what_was_dropped() -> None:
    log = Log("head_tail", 4)
    log.append("stdout", b"abcdef")
    log.hold("reader", 1)
    log.append("stdout", b"gh")
    assert everything(log) == [
        Piece("stdout", 0, 0, b"ab"),
        Hole("stdout", 2, 4),
        Piece("stdout", 4, 4, b"efgh"),
    ]
    assert log.room() == 0


# Places


def test_a_dropped_place_leads_to_the_next_retained_one() -> None:
    log = Log("tail", 4)
    log.append("stdout", b"abc")
    log.append("stderr", b"defg")
    log.append("stdout", b"hi")
    assert log.first() == 5
    assert log.at(2) == log.at(5) == Cursor(3, 2)
    assert log.at(9) == Cursor(5, 4)
    assert log.seek("stdout", 0) == 7
    assert log.seek("stderr", 0) == log.seek("stderr", 2) == 5
    assert log.seek("stdout", 5) == log.seek("stdout", 99) == 9
    assert log.read_stream("stdout", 1, 9) == (2, 3, b"hi")
    assert log.read_stream("stderr", 3, 9) == (0, 3, b"g")


def test_a_stream_read_ends_at_a_hole() -> None:
    log = Log("head_tail", 6)
    log.append("stdout", b"abcdefgh")
    assert log.read_stream("stdout", 1, 9) == (0, 1, b"bc")
    assert log.read_stream("stdout", 3, 2) == (2, 5, b"fg")


def test_a_stream_that_lost_everything_says_so() -> None:
    log = Log("tail", 4)
    log.append("stdout", b"abc")
    log.append("stderr", b"defg")
    assert log.read_stream("stdout", 0, 9) == (3, 3, b"")
    assert log.seek("stdout", 0) == log.end


def test_places_outside_the_log_are_refused() -> None:
    log = Log("tail", 4)
    log.append("stdout", b"abc")
    for sequence in (-1, 4):
        with pytest.raises(ValueError, match="outside the log"):
            log.at(sequence)
        with pytest.raises(ValueError, match="outside the log"):
            log.hold("reader", sequence)
        with pytest.raises(ValueError, match="outside stdout"):
            log.read_stream("stdout", sequence, 1)
    assert log.room() == sys.maxsize


@pytest.mark.parametrize("cursor", [(0, 1), (8, 0), (7, 3), (-1, 0), (-1, 1), (9, -8)])
def test_a_foreign_cursor_is_refused(cursor: tuple[int, int]) -> None:
    log = Log("tail", 4)
    log.append("stdout", b"abcdefg")
    log.append("stderr", b"hi")
    with pytest.raises(ValueError, match="no place in this log"):
        log.read(Cursor(*cursor), 1)


# The model: all that was ever written, and where the hole ends


class Reader:
    def __init__(self, cursor: Cursor, holds: bool, promised: int) -> None:
        self.start = self.cursor = cursor
        self.holds = holds
        self.promised = promised  # nothing from here on was dropped when it came
        self.delivered = dict.fromkeys(STREAMS, 0)
        self.missed = dict.fromkeys(STREAMS, 0)


class LogMachine(RuleBasedStateMachine):
    """Drive a log with tiny blocks beside a model that forgets nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(buffer, "FIRST_BLOCK", 2)
        self.patch.setattr(buffer, "BLOCK_GROWTH", 2)
        self.patch.setattr(buffer, "LARGEST_BLOCK", 8)

    def teardown(self) -> None:
        self.patch.undo()

    @initialize(
        policy=st.sampled_from(POLICIES),
        size=st.integers(1, 40),
        blocks=st.integers(0, 9),
    )
    def create(self, policy: str, size: int, blocks: int) -> None:
        self.shelf = Shelf(8, blocks)
        self.log = Log(policy, size, self.shelf)
        self.pins: dict[int, list[Placed]] = {}
        self.size = size
        self.tail = size // 2 if policy == "head_tail" else size
        self.head = size - self.tail
        self.unread = policy == "block"
        self.owners: list[int] = []
        self.data = bytearray()
        self.resume = self.head
        self.readers: dict[int, Reader] = {}

    # What the model knows

    def owned(self, index: int, stop: int) -> int:
        return self.owners[:stop].count(index)

    def point(self, sequence: int) -> Cursor:
        return Cursor(self.owned(0, sequence), self.owned(1, sequence))

    def dropped(self, sequence: int) -> bool:
        return self.head <= sequence < self.resume

    def kept(self, sequence: int) -> list[int]:
        """List what is retained from `sequence` on."""
        return [i for i in range(sequence, len(self.data)) if not self.dropped(i)]

    def held(self) -> list[Reader]:
        return [reader for reader in self.readers.values() if reader.holds]

    def settle(self) -> None:
        holds = [reader.cursor.sequence for reader in self.held()]
        oldest = min([*holds, 0] if self.unread else [*holds, len(self.data)])
        self.resume = max(self.resume, min(len(self.data) - self.tail, oldest))

    # What happens to a log

    @rule(stream=st.sampled_from(STREAMS), data=st.binary(max_size=30))
    def write_without_asking(self, stream: str, data: bytes) -> None:
        self.log.append(stream, data)
        self.data += data
        self.owners += [STREAMS.index(stream)] * len(data)
        self.settle()

    @rule(streams=st.lists(st.sampled_from(STREAMS), max_size=20))
    def write_single_bytes_into_the_room(self, streams: list[str]) -> None:
        for stream in streams[: self.log.room()]:
            self.write_without_asking(stream, bytes([len(self.data) % 251]))
        if self.held() or self.unread:
            assert self.log.room() <= self.size

    @rule(key=st.integers(0, 3), holds=st.booleans(), where=st.floats(0, 1))
    def attach(self, key: int, holds: bool, where: float) -> None:
        self.detach(key)
        cursor = self.log.at(round(where * len(self.data)))
        assert not self.dropped(cursor.sequence)
        if holds:
            self.log.hold(key, cursor.sequence)
            self.unread = False
        self.readers[key] = Reader(cursor, holds, self.resume)
        self.settle()

    @rule(key=st.integers(0, 3))
    def detach(self, key: int) -> None:
        self.readers.pop(key, None)
        self.pins.pop(key, None)
        self.log.release(key)
        self.settle()

    @rule(key=st.integers(0, 3), limit=st.integers(0, 60), count=st.integers(0, 9))
    def advance(self, key: int, limit: int, count: int) -> None:
        if key not in self.readers:
            return
        reader = self.readers[key]
        found, after = self.log.read(reader.cursor, limit, count)
        pieces = [entry for entry in found if isinstance(entry, Piece)]
        assert sum(len(piece.data) for piece in pieces) <= limit
        assert len(pieces) <= count
        assert after.sequence == len(self.data) or limit * count == 0 or found
        for entry in found:
            self.take(reader, entry)
        assert after == reader.cursor == self.point(after.sequence)
        if reader.holds:
            self.log.hold(key, after.sequence)
        self.settle()

    @rule(key=st.integers(0, 3), limit=st.integers(0, 60), least=st.integers(1, 9))
    def find_the_place(self, key: int, limit: int, least: int) -> None:
        if key not in self.readers:
            return
        reader = self.readers[key]
        at = reader.cursor.sequence
        placed = self.log.locate(reader.cursor, limit, least)
        if placed is None:
            return
        stop = at + placed.length
        assert least <= placed.length <= limit
        assert not self.dropped(at)
        assert self.owners[at:stop] == [STREAMS.index(placed.stream)] * placed.length
        index = STREAMS.index(placed.stream)
        assert (placed.offset, placed.sequence) == (reader.cursor[index], at)
        reader.cursor = reader.cursor.after(placed.stream, placed.length)
        reader.delivered[placed.stream] += placed.length
        assert reader.cursor == self.point(stop)
        self.pins.setdefault(key, []).append(placed)
        self.log.pin(key, placed)
        if reader.holds:
            self.log.hold(key, stop)
        self.settle()

    @rule(key=st.integers(0, 3))
    def take_what_is_pinned_first(self, key: int) -> None:
        if self.pins.get(key):
            placed = self.pins[key].pop(0)
            self.log.unpin(key, placed.sequence + placed.length)

    @invariant()
    def what_is_pinned_stays_where_it_is(self) -> None:
        for placed in (one for pinned in self.pins.values() for one in pinned):
            stop = placed.sequence + placed.length
            there = self.shelf.copy(placed.place, placed.length)
            assert there == self.data[placed.sequence : stop]

    def take(self, reader: Reader, entry: Piece | Hole) -> None:
        at = reader.cursor
        index = STREAMS.index(entry.stream)
        if isinstance(entry, Piece):
            stop = entry.sequence + len(entry.data)
            assert (entry.offset, entry.sequence) == (at[index], at.sequence)
            assert entry.data == self.data[entry.sequence : stop]
            assert set(self.owners[entry.sequence : stop]) == {index}
            reader.delivered[entry.stream] += len(entry.data)
            moved = len(entry.data)
        else:
            assert entry.start == at[index]
            assert entry.end == self.point(self.resume)[index]
            reader.missed[entry.stream] += entry.end - entry.start
            moved = entry.end - entry.start
        reader.cursor = Cursor(
            at.stdout + moved * (1 - index), at.stderr + moved * index
        )

    # What must be true at any time

    @invariant()
    def every_byte_is_retained_or_dropped(self) -> None:
        assert self.log.end == len(self.data)
        for index, stream in enumerate(STREAMS):
            counts = self.log.stats(stream)
            retained = [i for i in self.kept(0) if self.owners[i] == index]
            assert counts.produced == counts.retained + counts.dropped
            assert counts.produced == self.owned(index, len(self.data))
            assert counts.retained == len(retained)

    @invariant()
    def every_reader_got_missed_or_awaits_every_byte(self) -> None:
        for reader in self.readers.values():
            for index, stream in enumerate(STREAMS):
                done = reader.delivered[stream] + reader.missed[stream]
                to_come = self.log.stats(stream).produced - reader.cursor[index]
                assert done + to_come == (
                    self.owned(index, len(self.data)) - reader.start[index]
                )

    @invariant()
    def a_hold_loses_nothing_ahead_of_it(self) -> None:
        for reader in self.held():
            assert self.resume <= max(reader.cursor.sequence, reader.promised)

    @invariant()
    def merged_reading_gives_runs_as_long_as_they_are(self) -> None:
        begin = self.log.first()
        assert [begin] == self.kept(0)[:1] or self.log.end == begin == 0
        found, _ = self.log.read(self.log.at(begin), 1 << 20, 1 << 20)
        head = [i for i in self.kept(0) if i < self.head]
        rest = self.kept(self.head)
        # Without a hole between them the two parts are one.
        parts = [head, rest] if self.resume > self.head else [head + rest]
        expected = [
            (STREAMS[index], bytes(self.data[i] for i in group))
            for part in parts
            for index, group in groupby(part, lambda i: self.owners[i])
        ]
        pieces = [entry for entry in found if isinstance(entry, Piece)]
        assert [(piece.stream, piece.data) for piece in pieces] == expected

    @invariant()
    def each_offset_leads_to_its_byte_or_the_next_retained_one(self) -> None:
        for index, stream in enumerate(STREAMS):
            mine = [i for i, owner in enumerate(self.owners) if owner == index]
            for offset in {0, len(mine) // 3, len(mine) // 2, len(mine)}:
                left = [i for i in mine[offset:] if not self.dropped(i)]
                expected = left[0] if left else len(self.data)
                assert self.log.seek(stream, offset) == expected
                self.compare_stream(stream, offset, mine)

    def compare_stream(self, stream: str, offset: int, mine: list[int]) -> None:
        missed, start, data = self.log.read_stream(stream, offset, 1 << 20)
        assert start == offset + missed
        assert all(self.dropped(i) for i in mine[offset:start])
        assert data == bytes(self.data[i] for i in mine[start : start + len(data)])
        rest = mine[start + len(data) :]
        # It stopped early only for a hole, of whichever stream.
        if rest:
            assert mine[start + len(data) - 1] < self.head <= rest[0]
            assert self.resume > self.head

    @invariant()
    def the_newest_bytes_are_those_after_the_hole(self) -> None:
        begin = self.resume if self.resume > self.head else 0
        assert self.log.newest(1 << 20) == self.data[begin:]
        assert self.log.newest(3) == self.data[max(begin, len(self.data) - 3) :]


LogMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestTheLogAgainstItsModel = LogMachine.TestCase
