"""The input side of a session: from what clients write to what the pipe takes. Pure.

Input waits in the `Inbox` until the pipe has room, so a child that does not read blocks
nobody but its writers. A writer is answered once, when its last byte is in the pipe or
cannot get there any more.

A stdin that nobody reads any more is closed at once, but its writers hear of it a
moment later: a dying child loses its pipes before it can be reaped, and what they are
told is whether it has ended.
"""

from collections.abc import Hashable
from typing import Protocol

from actors.inbox import Inbox
from actors.launch import Launch
from actors.outlet import DYING, Ask, Progress, Voice
from broker import errors
from broker.wire import Kind


class Pipe(Protocol):
    """A child's stdin, a pipe or a terminal; `stdin` is its descriptor until closed."""

    stdin: int | None

    def write(self, data: memoryview) -> int:
        """Put in what there is room for; OSError when nobody reads it."""

    def close_stdin(self) -> None:
        """Close it; harmless to repeat."""

    def check_input(self, data: bytes) -> None:
        """Refuse what would not arrive as it is."""

    def drop_input(self) -> bool:
        """Drop what is in it and not read, if an interrupt does that; say whether."""

    def last_input(self) -> bytes:
        """Return what has to be written so that the child finds the end."""


class Stdin:
    """The queue before one child's stdin, and who waits for what in it."""

    def __init__(
        self, pipe: Pipe, launch: Launch, progress: Progress, voice: Voice
    ) -> None:
        self._pipe = pipe
        self._launch = launch
        self._progress = progress
        self._voice = voice
        self._inbox = Inbox(launch.stdin_queue)
        self._cut: list[tuple[Hashable, int]] = []
        self._cut_told = 0.0
        self.refused: set[int] = set()
        """Clients of whom a write was refused, and nothing goes in until they heard."""

    def start(self, now: float) -> None:
        """Write what the child was given as its whole input, if it was."""
        if isinstance(self._launch.stdin, bytes):
            self._inbox.feed(self._launch.stdin)
            self.pour(now)

    @property
    def direct(self) -> int | None:
        """The pipe if input may be written to it beside the queue, else None."""
        busy = self._inbox or self._inbox.ending
        return None if busy or self._launch.tty is not None else self._pipe.stdin

    @property
    def writers(self) -> list[Hashable]:
        """Those who wait for their input to be in the pipe."""
        return [ask for ask, _ in self._cut] + self._inbox.writers

    def passed(self, count: int) -> None:
        """Count input that was written beside the queue."""
        self._inbox.passed(count)

    def wanted(self) -> int | None:
        """Return the descriptor that is to become writable, None if none is.

        Without anything to write none is: a pipe whose reader is gone is always ready.
        """
        return self._pipe.stdin if self._inbox else None

    def next_deadline(self) -> float | None:
        """Return when `tick` is wanted, None while nothing is due."""
        return self._cut_told if self._cut else None

    def tick(self, now: float) -> None:
        """Tell the writers of a stdin that nobody reads, if it is time."""
        if self._cut and now >= self._cut_told:
            self.close()

    def write(self, ask: Ask, data: bytes, at: int | None, now: float) -> None:
        """Queue a write, which is answered when it is through.

        Where one is refused because the queue is full, those that its client sent
        behind it are too, although there may be room by now: else they would come
        before it. An empty one at the start tells that the client has heard.

        Raises:
            StdinUnavailable: nothing can be written, or no more.
            InvalidRequest: `at` is beyond what was written, or a line of it too long.
            CapacityExceeded: the queue is full, or was.
        """
        if self._pipe.stdin is None or self._inbox.ending:
            raise errors.StdinUnavailable(self._why_not())
        if at == 0 and not data:
            self.refused.discard(ask.client)
        self._pipe.check_input(self._fresh(ask.client, data, at))
        accepted = self._inbox.put(ask, data, at)
        if accepted is not None:
            self._wrote(ask, accepted)
        self.pour(now)

    def _fresh(self, client: int, data: bytes, at: int | None) -> bytes:
        try:
            if client in self.refused:
                raise self._inbox.full()
            return self._inbox.fresh(data, at)
        except errors.CapacityExceeded:
            self.refused.add(client)
            raise

    def _why_not(self) -> str:
        # The caller's mistake first, which the child's end must not hide.
        if self._launch.stdin == "null" and self._launch.tty is None:
            return (
                "stdin is null: start the session with a pipe (stdin='pipe', "
                "`creche run --interactive`) or a terminal (tty=True, `--tty`)"
            )
        if self._progress.status is not None:
            return "the child has ended"
        return "stdin is closed"

    def pour(self, now: float) -> None:
        """Move queued input into the pipe, and answer the writers that are through."""
        while self._inbox and self._pipe.stdin is not None:
            try:
                count = self._pipe.write(self._inbox.next())
            except OSError:  # EPIPE: the child closed its stdin, its writers are told
                self._cut_off(now)
                return
            if count == 0:
                return
            for ask, accepted in self._inbox.took(count):
                self._wrote(ask, accepted)
        if self._inbox.finished:
            self.close()

    def _cut_off(self, now: float) -> None:
        self._pipe.close_stdin()
        self._cut += self._inbox.close()
        self._cut_told = now + DYING

    def end(self, now: float) -> None:
        """Have the child find the end of its input now; what is queued is dropped.

        Raises:
            InvalidRequest: it is a terminal in raw mode.
        """
        if self._pipe.stdin is not None:
            last = self._pipe.last_input()
            for writer, accepted in self._inbox.close():
                self._wrote(writer, accepted)
            self._inbox.feed(last)
            self.pour(now)

    def interrupt(self) -> None:
        """Drop what was typed ahead: nothing of it shall follow an interrupt.

        Once input has ended it stays. With it, its end would be dropped, and a child
        that survives would wait for ever.
        """
        if self._pipe.stdin is None or self._inbox.ending:
            return
        if self._pipe.drop_input():
            for ask, accepted in self._inbox.close():
                self._wrote(ask, accepted)

    def close(self) -> None:
        """Close stdin, and tell every writer what went in; harmless to repeat."""
        if self._pipe.stdin is None and not self._cut:
            return
        self._pipe.close_stdin()
        cut, self._cut = self._cut, []
        for ask, accepted in cut + self._inbox.close():
            self._wrote(ask, accepted)

    def _wrote(self, ask: Hashable, accepted: int) -> None:
        assert isinstance(ask, Ask)
        state = "running" if self._progress.status is None else "ended"
        self._voice.say(Kind.REPLY, ask, {"accepted": accepted, "state": state})
