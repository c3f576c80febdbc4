"""The output side of a session: from the child's pipes into the log. Pure.

A turn reads a bounded part of one stream, so no stream starves another one. It ends
once the pipe is empty: that is known from a read that gives less than it has room for.
A stream whose turns find its pipe full is given a wider one: 1.0 -> 0.58 s of CPU time
per GiB in all processes. With these even 4 KiB writes come in reads of 200 KiB. Where
a budget of output ends the tree it stays as it is: a wider one would hold more of it.

Where the log has no room, reading is *held* until readers make some. A child that has
used up its budget of output is *cut off*: reading on, one that ignores SIGTERM would
flood the log until its kill.

At the child's exit its pipes may hold more, and whoever inherited them may go on
writing. So what is waiting at that moment is the *target* of each stream. Once that
much is logged, or the stream has ended, the place is noted as the exit mark: the exit
is told after these bytes, and before any later ones.
"""

from collections.abc import Mapping
from math import inf
from typing import Any, Final, Protocol

from actors import lifecycle
from actors.budget import Budget
from actors.buffer import Log
from actors.outlet import End, Progress
from broker.wire import STREAMS, Kind

READS_A_TURN: Final = 16
"""Reads of one stream before the other descriptors get their turn."""
TURN: Final = 1024 * 1024
"""Bytes of one stream before that; then readers are told, too."""
FILLS: Final = 2
"""Turns in a row that find a full pipe until it is widened."""


class Pipes(Protocol):
    """The child's output; `outputs` are the descriptors of what is still open."""

    outputs: dict[str, int]

    def capacity(self, stream: str) -> int:
        """Return how many bytes a read gives at least if more may be there."""

    def widen(self, stream: str) -> None:
        """Give a stream a larger pipe, if that can be."""

    def read_into(self, stream: str, room: memoryview) -> int | None:
        """Read what is there: bytes, 0 at the end, None when nothing is."""

    def waiting(self, stream: str) -> int:
        """Return how many bytes are in the stream's pipe now."""

    def close_output(self, stream: str) -> None:
        """Stop reading a stream; harmless to repeat."""


class Listener(Protocol):
    """Who has to know what comes out of the pipes."""

    def happened(self, event: lifecycle.Event) -> None:
        """Follow what the rules say to an event."""

    def grew(self) -> None:
        """Tell the readers that there is more in the log."""

    def look_at_output(self) -> None:
        """Compare the output with its budget."""


class Drain:
    """What reads one child's streams.

    Attributes:
        held: whether nothing is read because the log has no room.
        cut_off: whether nothing is read because the child has used up its budget.
        turn: bytes that the last turn has read.
    """

    def __init__(
        self,
        pipes: Pipes,
        log: Log,
        progress: Progress,
        budget: Budget,
        listener: Listener,
    ) -> None:
        self.held = False
        self.cut_off = False
        self.turn = 0
        self._pipes = pipes
        self._log = log
        self._progress = progress
        self._budget = budget
        self._listener = listener
        self._targets: dict[str, int] | None = None
        self._fills = dict.fromkeys(STREAMS, 0)

    def wanted(self) -> tuple[int, ...]:
        """Return the descriptors that are to be read."""
        if self.held or self.cut_off:
            return ()
        return tuple(self._pipes.outputs.values())

    def ready(self, fd: int) -> bool:
        """Read from a descriptor; return whether it is one of these."""
        before = self._log.end
        for stream, ours in self._pipes.outputs.items():
            if ours == fd:
                self._read(stream)
                self.turn = self._log.end - before
                return True
        return False

    def _read(self, stream: str) -> None:
        stop = self._log.end + TURN
        for number in range(READS_A_TURN):
            end = self._log.end
            room = min(self._log.room(), stop - end)
            if room <= 0:
                self._hold(held=end < stop)
                return
            left = self._budget.room(end)
            space = self._log.space()[: int(min(room, left))]
            count = self._read_once(stream, space)
            if count is None:
                return
            if count == 0:
                self._end(stream, Kind.EOF)
                return
            self._listener.look_at_output()
            if number == 0 and left == inf:
                self._note_fill(stream, count, len(space))
            emptied = count < min(len(space), self._pipes.capacity(stream))
            if emptied or self.cut_off:
                return

    def _note_fill(self, stream: str, count: int, asked: int) -> None:
        """Widen the pipe of a stream if a turn's first read keeps finding it full."""
        if count >= self._pipes.capacity(stream):
            self._fills[stream] += 1
            if self._fills[stream] == FILLS:
                self._pipes.widen(stream)
        elif count < asked:
            self._fills[stream] = 0

    def _read_once(self, stream: str, space: memoryview) -> int | None:
        try:
            count = self._pipes.read_into(stream, space)
        except OSError as error:
            self._broken(stream, error)
            return None
        if count:
            self._log.commit(stream, count)
            self._listener.happened(lifecycle.Output())
            self._listener.grew()
            self._check_mark()
        elif count is None and self._targets is not None:
            # Less was in the pipe at the exit than it might have been.
            self._targets[stream] = self._log.produced(stream)
            self._check_mark()
        return count

    def _end(
        self, stream: str, kind: Kind, details: Mapping[str, Any] | None = None
    ) -> None:
        self._pipes.close_output(stream)
        self._progress.streams.discard(stream)
        body = {"stream": stream, **(details or {})}
        self._progress.ends[stream] = End(kind, self._log.end, body)
        self._check_mark()
        self._listener.happened(lifecycle.StreamDone(stream))

    def _broken(self, stream: str, error: OSError) -> None:
        details = {
            "kind": type(error).__name__,
            "message": str(error)[:1000],
            "errno": error.errno or 0,
        }
        self._end(stream, Kind.BROKEN, details)

    def _hold(self, *, held: bool) -> None:
        if held is not self.held:
            self.held = held
            self._listener.happened(lifecycle.Held(held))

    def resume(self) -> bool:
        """Read again if there is room; return whether the readers have to be served.

        They have if the exit mark was looked for: a terminal may turn out to hold
        nothing more.
        """
        if not self.held or self._log.room() <= 0:
            return False
        self._hold(held=False)
        if self._targets is None or self._progress.exit_mark is not None:
            return False
        for stream in list(self._pipes.outputs):
            self._read(stream)
        return True

    def append(self, stream: str, line: bytes) -> None:
        """Add bytes of the host's own; a mark that is to come lies behind them."""
        self._log.append(stream, line)
        if self._targets is not None:
            self._targets[stream] += len(line)
        self._listener.grew()

    # -- the end ----------------------------------------------------------------

    def exited(self) -> None:
        """Note what the pipes hold now that the child has ended."""
        self.cut_off = False
        self._targets = {
            stream: self._log.produced(stream) + self._pipes.waiting(stream)
            for stream in self._pipes.outputs
        }

    def catch_up(self, *, alone: bool) -> None:
        """Read what the pipes held at the exit, as far as there is room.

        Args:
            alone: whether nobody of the tree is left. Then a stream that holds nothing
                more has nearly always come to its end, which is read at once instead of
                waited for: 60 us of a worker's turn less.
        """
        assert self._targets is not None  # it has exited
        for stream, target in list(self._targets.items()):
            self._empty(stream, target - self._log.produced(stream))
            if alone and stream in self._pipes.outputs:
                self._read_end(stream)
        self._check_mark()

    def abandon(self) -> None:
        """Read what is there, and give up every stream that somebody keeps open.

        Room or not: it is the last chance, and no more than the pipes hold.
        """
        for stream in list(self._pipes.outputs):
            left = self._pipes.waiting(stream)
            while left > 0 and (
                count := self._read_once(stream, self._log.space()[:left])
            ):
                left -= count
            if stream in self._pipes.outputs:
                self._end(stream, Kind.ABANDONED)

    def _read_end(self, stream: str) -> None:
        """Read once more, for the end of a stream if it is there."""
        room = self._log.room()
        if room > 0 and self._read_once(stream, self._log.space()[:room]) == 0:
            self._end(stream, Kind.EOF)

    def _empty(self, stream: str, left: int) -> None:
        """Read the bytes that are in the pipe, not what is written meanwhile."""
        while left > 0 and stream in self._pipes.outputs:
            room = min(self._log.room(), left)
            if room <= 0:
                self._hold(held=True)
                return
            count = self._read_once(stream, self._log.space()[:room])
            if not count:
                return
            left -= count

    def _check_mark(self) -> None:
        """Note where every byte that was in the pipes at the exit has been logged."""
        if self._targets is None or self._progress.exit_mark is not None:
            return
        for stream, target in self._targets.items():
            if stream in self._progress.streams and self._log.produced(stream) < target:
                return
        self._progress.exit_mark = self._log.end
