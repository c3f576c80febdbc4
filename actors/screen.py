"""What a terminal shows: output fed in, lines of text out.

An emulator draws it, of the extra `screen`; it is imported when a screen is made.
"""

import itertools
import weakref
from typing import TYPE_CHECKING, Final

from actors import checks
from actors.emulation.choice import emulator
from actors.events import Chunk, Event, Gap
from actors.settings import TtySize
from broker import errors
from broker.outcomes import TimedOut

if TYPE_CHECKING:
    from actors.child import Child

DEFAULT_SIZE: Final = TtySize()


class Screen:
    """The present screen of a terminal.

    Fed with everything that the child writes, it shows what a person would see; fed
    with a part (after a `Gap`, or from the middle), what that part draws.

    Args:
        size: as the child's terminal has.

    Attributes:
        size: the present one.
        missed: bytes that `Gap` events said were dropped.

    Raises:
        ModuleNotFoundError: neither pyghostty nor pyte is installed.
    """

    def __init__(self, size: TtySize = DEFAULT_SIZE) -> None:
        self.size = size
        self.missed = 0
        self._emulator = emulator(size)
        # Not itself: a child that nobody else holds is to end.
        self._child: weakref.ref[Child] | None = None
        self._next = 0

    def feed(self, output: bytes | Event) -> None:
        """Draw output: bytes, or the chunk in an event; other events draw nothing.

        Bytes may come in any pieces, also in the middle of a character or sequence.
        """
        if isinstance(output, Chunk):
            self._emulator.feed(output.data)
        elif isinstance(output, Gap):
            self.missed += output.end - output.start
        elif isinstance(output, bytes):
            self._emulator.feed(output)

    async def follow(
        self, child: "Child", *, until: str | None = None, timeout: float | None = None
    ) -> None:
        """Draw what the child writes, until its last event or until a text is shown.

        The next call for the same child goes on where this one came to, so one can
        type in between; no bytes are taken from other readers. Run it as a task to look
        at the screen meanwhile. Cancelling it is harmless.

        Args:
            child: whose terminal it is.
            until: what `text` has to contain; it counts if it is shown already.
            timeout: seconds; None: until the child ends.

        Raises:
            InvalidRequest: `until` is no text, or `timeout` is no time.
            TimedOut: it was not shown in time, or the child did not end; `stdout` is
                what is shown instead, as UTF-8.
            OutputEnded: the child ended without showing it; it carries the same.
            SessionNotFound, BrokerLost: as iterating `Child.events` does.
        """
        checks.optional(checks.text)("until", until)
        checks.optional(checks.seconds)("timeout", timeout)
        try:
            async with child.deadline(timeout):
                shown = await self._draw(child, until)
        except TimeoutError:
            what = "the end" if until is None else f"{until!r} on the screen"
            raise TimedOut(
                list(child.argv), timeout or 0.0, self.text.encode(), awaited=what
            ) from None
        if until is not None and not shown:
            what = f"{until!r} on the screen"
            raise errors.OutputEnded(child.status, self.text.encode(), awaited=what)

    async def _draw(self, child: "Child", until: str | None) -> bool:
        """Return whether `until` is shown; False at the end."""
        if self._child is None or self._child() is not child:
            self._child, self._next = weakref.ref(child), 0
        if until is not None and until in self.text:
            return True
        async with child.events(self._next) as events:
            async for event in events:
                self.feed(event)
                if isinstance(event, Chunk):
                    self._next = event.sequence + len(event.data)
                    if until is not None and until in self.text:
                        return True
        return False

    def resize(self, size: TtySize) -> None:
        """Take a new size, as `Child.resize` gave to the terminal."""
        self._emulator.resize(size)
        self.size = size

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines from top to bottom, without blanks at their ends."""
        return tuple(line.rstrip() for line in self._emulator.lines())

    @property
    def text(self) -> str:
        """The lines as one text, without empty ones at the end."""
        return "\n".join(self.lines).rstrip("\n")

    @property
    def styled(self) -> str:
        """The text with its colours and styles, as sequences for a terminal."""
        lines = []
        for row in range(len(self.text.splitlines())):
            runs = itertools.groupby(self._emulator.cells(row), lambda cell: cell[1])
            line = [
                f"\x1b[{style}m" + "".join(text for text, _ in run)
                for style, run in runs
            ]
            lines.append("".join(line) + "\x1b[0m")
        return "\n".join(lines)

    @property
    def cursor(self) -> tuple[int, int]:
        """Row and column of the cursor, counted from 0."""
        return self._emulator.cursor

    @property
    def title(self) -> str:
        """The title that the child gave its window, empty when it gave none."""
        return self._emulator.title
