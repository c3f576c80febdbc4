"""From pipes to the log: what is read when, and where the exit has its place."""

from dataclasses import dataclass, field

import pytest

from actors import lifecycle
from actors.budget import Budget
from actors.buffer import Cursor, Log
from actors.drain import FILLS, READS_A_TURN, TURN, Drain
from actors.lifecycle import Held, Output, StreamDone
from actors.outlet import Progress
from actors.settings import Limits
from broker.wire import Kind
from tests.shelf import Shelf

STREAMS = ("stdout", "stderr")
OUT, ERR = 10, 11
READER = "reader"


@dataclass
class Pipes:
    """Two pipes with a writer each, which may be gone; one read gives one piece."""

    outputs: dict[str, int] = field(
        default_factory=lambda: dict(zip(STREAMS, (OUT, ERR), strict=True))
    )
    pieces: dict[str, list[bytes | OSError]] = field(
        default_factory=lambda: {"stdout": [], "stderr": []}
    )
    phantom: int = 0
    """Bytes that seem to wait on stdout, and never come."""
    full: int = 1
    """Bytes of a read that may have left more behind."""
    widened: list[str] = field(default_factory=list)

    def capacity(self, stream: str) -> int:
        return self.full

    def widen(self, stream: str) -> None:
        self.widened.append(stream)

    def read_into(self, stream: str, room: memoryview) -> int | None:
        if not self.pieces[stream]:
            return None
        piece = self.pieces[stream].pop(0)
        if isinstance(piece, OSError):
            raise piece
        count = min(len(piece), len(room))
        room[:count] = piece[:count]
        if count < len(piece):
            self.pieces[stream].insert(0, piece[count:])
        return count

    def waiting(self, stream: str) -> int:
        real = sum(len(p) for p in self.pieces[stream] if isinstance(p, bytes))
        return real + (self.phantom if stream == "stdout" else 0)

    def close_output(self, stream: str) -> None:
        del self.outputs[stream]


class World:
    """One child's output, and what is heard of it."""

    def __init__(
        self,
        room: int = 100,
        output: int | None = None,
        arena: Shelf | None = None,
    ) -> None:
        self.pipes = Pipes()
        self.log = Log("block", room, arena)
        self.log.hold(READER, 0)
        self.progress = Progress(set(STREAMS))
        self.budget = Budget(Limits(output=output), 0.0)
        self.drain = Drain(self.pipes, self.log, self.progress, self.budget, self)
        self.events: list[lifecycle.Event] = []
        self.growths = 0

    def happened(self, event: lifecycle.Event) -> None:
        self.events.append(event)

    def grew(self) -> None:
        self.growths += 1

    def look_at_output(self) -> None:
        if self.budget.written(self.log.end):
            self.drain.cut_off = True

    def mark(self) -> int | None:
        """Where the exit has its place."""
        return self.progress.exit_mark

    def write(self, *pieces: bytes | OSError, stream: str = "stdout") -> None:
        self.pipes.pieces[stream] += pieces


def test_a_turn_reads_a_few_blocks_of_the_one_stream() -> None:
    world = World()
    world.write(*[b"x"] * (READS_A_TURN + 1))
    world.write(b"y", stream="stderr")
    world.drain.ready(OUT)
    assert world.log.stats("stdout").produced == world.growths == READS_A_TURN
    assert world.log.stats("stderr").produced == 0
    assert world.events == [Output()] * READS_A_TURN
    assert not world.drain.ready(99)
    assert world.log.end == READS_A_TURN


def test_a_turn_ends_when_enough_was_read() -> None:
    world = World(room=3 * TURN, arena=Shelf(TURN, 4))
    world.write(bytes(2 * TURN))
    world.drain.ready(OUT)
    assert world.log.end == TURN
    assert not world.drain.held


def test_a_read_that_had_more_room_than_it_needed_ends_the_turn() -> None:
    world = World()
    world.pipes.full = 2
    world.write(b"ab", b"c", b"d")
    world.drain.ready(OUT)
    assert world.log.end == 3
    world.drain.ready(OUT)
    assert world.log.end == 4


def test_a_stream_whose_turns_find_its_pipe_full_gets_a_wider_one() -> None:
    world = World()
    world.pipes.full = 2
    for turn in ((b"ab",), (b"c",), (b"ab", b"c"), (b"ab", b"c")):
        assert world.pipes.widened == []
        world.write(*turn)
        world.drain.ready(OUT)
        world.write(b"e", stream="stderr")
        world.drain.ready(ERR)
    world.write(b"ab")
    world.drain.ready(OUT)
    assert world.pipes.widened == ["stdout"]


@pytest.mark.parametrize("output", [3, 99])
def test_a_pipe_whose_output_has_a_budget_is_not_widened(output: int) -> None:
    world = World(output=output)
    world.pipes.full = 2
    for _ in range(FILLS):
        world.write(b"ab")
        world.drain.ready(OUT)
    assert (world.log.end, world.pipes.widened) == (2 * FILLS, [])


def test_what_did_not_fit_says_nothing_of_a_full_pipe() -> None:
    world = World(room=100_000)
    world.pipes.full = 4000
    world.log.append("stdout", bytes(4000))
    world.write(bytes(96), bytes(4000), bytes(10), bytes(4000))
    world.drain.ready(OUT)
    assert (world.log.end, world.pipes.widened) == (8106, [])
    world.drain.ready(OUT)
    assert world.pipes.widened == []


def test_an_empty_pipe_ends_the_turn() -> None:
    world = World()
    world.write(b"x")
    world.drain.ready(OUT)
    world.drain.ready(OUT)
    assert world.drain.wanted() == (OUT, ERR)
    assert world.log.end == 1


def test_the_end_of_a_stream_has_its_place() -> None:
    world = World()
    world.write(b"abc", b"")
    world.drain.ready(OUT)
    end = world.progress.ends["stdout"]
    assert (end.kind, end.at, end.body) == (Kind.EOF, 3, {"stream": "stdout"})
    assert world.progress.streams == {"stderr"}
    assert world.drain.wanted() == (ERR,)
    assert world.events == [Output(), StreamDone("stdout")]


def test_a_broken_stream_says_how_it_broke() -> None:
    world = World()
    world.write(OSError(5, "no luck"), OSError("odd"))
    world.drain.ready(OUT)
    end = world.progress.ends["stdout"]
    assert end.kind is Kind.BROKEN
    assert end.body == {
        "stream": "stdout",
        "kind": "OSError",
        "message": "[Errno 5] no luck",
        "errno": 5,
    }


def test_a_full_log_holds_both_streams_until_there_is_room() -> None:
    world = World(room=3)
    world.write(b"abcdef")
    world.drain.ready(OUT)
    assert world.drain.held
    assert world.drain.wanted() == ()
    assert not world.drain.resume()
    world.log.hold(READER, 3)
    assert not world.drain.resume()
    assert world.drain.wanted() == (OUT, ERR)
    assert world.events == [Output(), Held(True), Held(False)]


def test_a_budget_that_is_used_up_cuts_the_child_off_until_its_exit() -> None:
    world = World(output=2)
    world.write(b"abcdef")
    world.drain.ready(OUT)
    assert world.log.end == 3
    assert world.drain.wanted() == ()
    world.drain.exited()
    world.drain.catch_up(alone=False)
    assert world.log.end == 6


def test_the_exit_lies_behind_what_the_pipes_held() -> None:
    world = World()
    world.write(b"ab")
    world.write(b"c", stream="stderr")
    world.drain.exited()
    world.drain.catch_up(alone=False)
    world.write(b"late")
    world.drain.ready(OUT)
    assert (world.mark(), world.log.end) == (3, 7)


def test_once_nobody_is_left_the_ends_are_read_with_what_was_before() -> None:
    world = World()
    world.write(b"ab", b"")
    world.write(b"", stream="stderr")
    world.drain.exited()
    world.drain.catch_up(alone=True)
    assert {end.kind for end in world.progress.ends.values()} == {Kind.EOF}
    assert world.progress.ends.keys() == set(STREAMS)
    assert (world.mark(), world.pipes.outputs) == (2, {})
    assert not world.drain.ready(OUT)


def test_a_pipe_that_a_stranger_keeps_open_has_no_end_yet() -> None:
    world = World()
    world.write(b"ab")
    world.drain.exited()
    world.drain.catch_up(alone=True)
    assert (world.mark(), world.progress.ends) == (2, {})
    world.write(b"late", b"")
    assert world.drain.ready(OUT)
    assert (world.mark(), world.log.end) == (2, 6)
    assert world.progress.ends.keys() == {"stdout"}


def test_an_end_is_not_looked_for_behind_what_there_is_no_room_for() -> None:
    world = World(room=2)
    world.write(b"abcd", b"")
    world.drain.exited()
    world.drain.catch_up(alone=True)
    assert (world.mark(), world.log.end, world.drain.held) == (None, 2, True)
    world.log.hold(READER, 2)
    assert world.drain.resume()
    assert (world.mark(), world.log.end) == (4, 4)
    world.log.hold(READER, 4)
    assert world.drain.ready(OUT)
    assert world.progress.ends.keys() == {"stdout"}


def test_an_append_before_the_mark_lies_before_the_exit() -> None:
    world = World(room=2)
    world.write(b"abcd")
    world.drain.exited()
    world.drain.catch_up(alone=False)
    assert world.mark() is None
    world.drain.append("stdout", b"!\n")
    world.log.hold(READER, 3)
    assert world.drain.resume()
    assert (world.mark(), world.log.end) == (None, 5)
    world.log.hold(READER, 5)
    assert world.drain.resume()
    assert world.mark() == world.log.end == 6
    assert world.growths == 4


def test_an_append_while_the_child_runs_is_output_as_any_other() -> None:
    world = World()
    world.drain.append("stderr", b"!\n")
    assert world.log.stats("stderr").produced == 2
    assert world.growths == 1


def test_a_hold_after_the_mark_is_only_let_go() -> None:
    world = World(room=1)
    world.drain.exited()
    world.drain.catch_up(alone=False)
    world.write(b"ab")
    world.drain.ready(OUT)
    world.log.hold(READER, 1)
    assert not world.drain.resume()
    assert world.mark() == 0


def test_bytes_that_never_come_do_not_keep_the_exit() -> None:
    world = World()
    world.pipes.phantom = 7
    world.write(b"ab")
    world.drain.exited()
    world.drain.catch_up(alone=False)
    assert world.mark() == 2


def test_a_stream_that_broke_keeps_no_exit() -> None:
    world = World()
    world.pipes.phantom = 7
    world.write(b"ab", OSError(5, "no luck"))
    world.drain.exited()
    world.drain.catch_up(alone=False)
    assert world.mark() == 2
    assert world.progress.ends["stdout"].kind is Kind.BROKEN


def test_an_abandoned_stream_is_read_once_more_and_ends_once() -> None:
    world = World()
    world.pipes.phantom = 7
    world.write(b"ab", OSError(5, "no luck"))
    world.write(b"c", stream="stderr")
    world.drain.abandon()
    assert world.log.end == 3
    assert world.pipes.outputs == {}
    kinds = {stream: end.kind for stream, end in world.progress.ends.items()}
    assert kinds == {"stdout": Kind.BROKEN, "stderr": Kind.ABANDONED}


def test_what_is_in_an_abandoned_stream_is_read_although_the_log_is_full() -> None:
    world = World(room=2)
    world.write(b"ab", b"cd")
    world.write(b"ef", stream="stderr")
    world.drain.abandon()
    pieces, _ = world.log.read(Cursor(0, 0), 99)
    assert [piece[-1] for piece in pieces] == [b"abcd", b"ef"]
    assert {end.kind for end in world.progress.ends.values()} == {Kind.ABANDONED}
