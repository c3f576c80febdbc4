"""A session's input: what the pipe takes, and what every writer is told, once."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from actors.events import ExitStatus
from actors.launch import Launch
from actors.outlet import DYING, Ask, Progress
from actors.settings import Settings, TtySize
from actors.spec import Ambient, Spec
from actors.stdin import Stdin
from broker import errors
from broker.wire import Kind, Payload

AMBIENT = Ambient(b"/", {b"PATH": b"/bin"}, 0o022, (), 0, 0)
LAUNCH = Spec(["x"], stdin="pipe").launch(AMBIENT, Settings(), "", "0" * 32)
ONE, TWO = Ask(1, 1), Ask(2, 1)
RUNNING, ENDED = "running", "ended"


@dataclass
class Pipe:
    """A pipe with a little room, whose reader may be gone."""

    stdin: int | None = 5
    room: int = 4
    broken: bool = False
    got: bytes = b""
    last: bytes = b""
    drops: bool = False

    def write(self, data: memoryview) -> int:
        if self.broken:
            raise BrokenPipeError
        count = min(self.room, len(data))
        self.room -= count
        self.got += bytes(data[:count])
        return count

    def close_stdin(self) -> None:
        self.stdin = None

    def check_input(self, data: bytes) -> None:
        if b"!" in data:
            raise errors.InvalidRequest("data", "would be cut")

    def drop_input(self) -> bool:
        return self.drops

    def last_input(self) -> bytes:
        return self.last


@dataclass
class World:
    """One stdin, and what its writers were told."""

    launch: Launch = LAUNCH
    pipe: Pipe = field(default_factory=Pipe)
    progress: Progress = field(default_factory=lambda: Progress(set()))
    told: list[tuple[Ask, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stdin = Stdin(self.pipe, self.launch, self.progress, self)
        self.stdin.start(0.0)

    def say(
        self, kind: Kind, ask: Ask, body: dict[str, Any], payload: Payload | None = None
    ) -> None:
        assert kind is Kind.REPLY
        assert payload is None
        self.told.append((ask, body["accepted"], body["state"]))

    def room(self) -> bool:
        raise AssertionError("an answer is no bulk output")


def test_a_writer_is_told_once_its_last_byte_is_in_the_pipe() -> None:
    world = World()
    world.stdin.write(ONE, b"abc", None, 0.0)
    world.stdin.write(TWO, b"def", None, 0.0)
    assert world.told == [(ONE, 3, RUNNING)]
    assert world.stdin.wanted() == 5
    world.pipe.room = 9
    world.stdin.pour(1.0)
    assert world.told[1:] == [(TWO, 3, RUNNING)]
    assert world.pipe.got == b"abcdef"
    assert world.stdin.wanted() is None


def test_a_repeated_write_is_answered_at_once() -> None:
    world = World()
    world.stdin.write(ONE, b"abc", 0, 0.0)
    world.stdin.write(TWO, b"abc", 0, 0.0)
    assert world.told == [(ONE, 3, RUNNING), (TWO, 3, RUNNING)]
    assert world.pipe.got == b"abc"


def test_what_the_pipe_would_cut_is_refused_whole() -> None:
    world = World()
    with pytest.raises(errors.InvalidRequest):
        world.stdin.write(ONE, b"ab!", None, 0.0)
    assert world.pipe.got == b""


def test_input_given_whole_is_followed_by_the_end() -> None:
    world = World(replace(LAUNCH, stdin=b"abcdef"))
    assert world.pipe.stdin == 5
    with pytest.raises(errors.StdinUnavailable, match="stdin is closed"):
        world.stdin.write(ONE, b"x", None, 0.0)
    world.pipe.room = 9
    world.stdin.pour(0.0)
    assert world.pipe.got == b"abcdef"
    assert world.pipe.stdin is None


def test_s35_closing_waits_for_nobody_and_tells_what_went_in() -> None:
    world = World()
    world.stdin.write(ONE, b"abcdef", None, 0.0)
    world.stdin.end(0.0)
    world.stdin.end(0.0)
    world.stdin.close()
    assert world.told == [(ONE, 4, RUNNING)]
    assert world.pipe.stdin is None


def test_a_terminal_is_closed_once_its_last_input_is_in() -> None:
    world = World(pipe=Pipe(room=0, last=b"\4"))
    world.stdin.end(0.0)
    assert world.stdin.wanted() == 5
    world.pipe.room = 1
    world.stdin.pour(0.0)
    assert (world.pipe.got, world.pipe.stdin) == (b"\4", None)


@pytest.mark.parametrize("state", [RUNNING, ENDED])
def test_writers_of_a_broken_pipe_hear_a_moment_later_how_it_is(state: str) -> None:
    world = World(pipe=Pipe(broken=True))
    world.stdin.write(ONE, b"abc", None, 1.0)
    assert world.pipe.stdin is None
    assert world.stdin.next_deadline() == 1.0 + DYING
    world.stdin.tick(1.0)
    assert world.told == []
    world.progress.status = ExitStatus(0) if state == ENDED else None
    world.stdin.tick(1.0 + DYING)
    assert world.told == [(ONE, 0, state)]
    assert world.stdin.next_deadline() is None


@pytest.mark.parametrize(
    ("launch", "status", "why"),
    [
        (LAUNCH, ExitStatus(0), "has ended"),
        (LAUNCH, None, "is closed"),
        (replace(LAUNCH, stdin="null"), None, "is null"),
        (replace(LAUNCH, stdin="null"), ExitStatus(0), "is null"),
        (replace(LAUNCH, stdin="null", tty=TtySize()), None, "is closed"),
    ],
)
def test_a_write_that_finds_no_stdin_is_told_why(
    launch: Launch, status: ExitStatus | None, why: str
) -> None:
    world = World(launch, Pipe(stdin=None), Progress(set(), status=status))
    with pytest.raises(errors.StdinUnavailable, match=why):
        world.stdin.write(ONE, b"x", None, 0.0)


def test_an_interrupt_drops_what_was_typed_ahead() -> None:
    world = World(pipe=Pipe(drops=True))
    world.stdin.write(ONE, b"abcdef", None, 0.0)
    world.stdin.write(TWO, b"gh", None, 0.0)
    world.stdin.interrupt()
    assert world.told == [(ONE, 4, RUNNING), (TWO, 0, RUNNING)]
    world.pipe.room = 4
    world.stdin.write(TWO, b"new", 4, 0.0)
    assert world.pipe.got == b"abcdnew"


def test_an_interrupt_leaves_what_a_pipe_holds() -> None:
    world = World()
    world.stdin.write(ONE, b"abcdef", None, 0.0)
    world.stdin.interrupt()
    assert world.told == []
    assert world.stdin.wanted() is not None


def test_an_interrupt_leaves_input_that_has_an_end() -> None:
    world = World(pipe=Pipe(drops=True, room=0, last=b"\x04"))
    world.stdin.end(0.0)
    world.stdin.interrupt()
    world.pipe.room = 1
    world.stdin.pour(0.0)
    assert (world.pipe.got, world.pipe.stdin) == (b"\x04", None)
    world.stdin.interrupt()
    assert world.pipe.stdin is None


def test_nothing_overtakes_input_that_was_refused_for_want_of_room() -> None:
    world = World(replace(LAUNCH, stdin_queue=4), Pipe(room=0))
    others, mine = Ask(1, 1), Ask(2, 1)
    world.stdin.write(others, b"1234", None, 0.0)
    with pytest.raises(errors.CapacityExceeded):
        world.stdin.write(mine, b"first", None, 0.0)
    world.pipe.room = 99
    world.stdin.pour(0.0)
    assert world.stdin.refused == {2}
    for at in (None, 0, 4):
        with pytest.raises(errors.CapacityExceeded):
            world.stdin.write(Ask(2, 2), b"second", at, 0.0)
    world.stdin.write(Ask(1, 2), b"5", None, 0.0)
    world.stdin.write(Ask(2, 3), b"", 0, 0.0)
    assert world.stdin.refused == set()
    world.stdin.write(Ask(2, 4), b"first", None, 0.0)
    world.stdin.write(Ask(2, 5), b"second", None, 0.0)
    assert world.pipe.got == b"12345firstsecond"


def test_input_may_be_written_beside_an_empty_queue_alone() -> None:
    world = World()
    assert world.stdin.direct == 5
    world.stdin.passed(3)
    world.stdin.write(ONE, b"abc", 0, 0.0)
    assert world.told == [(ONE, 3, RUNNING)]
    assert world.pipe.got == b""  # it was there already
    world.pipe.room = 0
    world.stdin.write(TWO, b"def", None, 0.0)
    assert world.stdin.direct is None


def test_no_input_may_be_written_beside_the_last_or_into_a_terminal() -> None:
    assert World(replace(LAUNCH, tty=TtySize())).stdin.direct is None
    assert World(replace(LAUNCH, stdin=b"all of it")).stdin.direct is None


def test_s46_whoever_waits_for_the_pipe_is_known() -> None:
    world = World()
    world.stdin.write(ONE, b"abc", None, 0.0)
    world.stdin.write(TWO, b"def", None, 0.0)
    assert world.stdin.writers == [TWO]
    world.pipe.broken = True
    world.stdin.pour(1.0)
    assert world.stdin.writers == [TWO]  # it is told a moment later
    world.stdin.close()
    assert world.stdin.writers == []
