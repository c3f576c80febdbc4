"""What a terminal shows: output fed in, lines of text out.

The emulation is pyte's, which comes with the extra `screen`; it is imported when a
screen is made.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from actors.events import Chunk, Event, Gap
from actors.settings import TtySize

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
        ModuleNotFoundError: pyte is not installed.
    """

    def __init__(self, size: TtySize = DEFAULT_SIZE) -> None:
        pyte = _emulation()
        self.size = size
        self.missed = 0
        self._cells: Any = pyte.Screen(size.cols, size.rows)
        self._stream: Any = pyte.ByteStream(self._cells)

    def feed(self, output: bytes | Event) -> None:
        """Draw output: bytes, or the chunk in an event; other events draw nothing.

        Bytes may come in any pieces, also in the middle of a character or sequence.
        """
        if isinstance(output, Chunk):
            self._stream.feed(output.data)
        elif isinstance(output, Gap):
            self.missed += output.end - output.start
        elif isinstance(output, bytes):
            self._stream.feed(output)

    async def follow(self, child: "Child") -> None:
        """Draw all that the child writes, until its last event.

        Run it as a task to look at the screen meanwhile. Cancelling it is harmless.

        Raises:
            SessionNotFound, BrokerLost: as iterating `Child.events` does.
        """
        async with child.events() as events:
            async for event in events:
                self.feed(event)

    def resize(self, size: TtySize) -> None:
        """Take a new size, as `Child.resize` gave to the terminal."""
        self._cells.resize(size.rows, size.cols)
        self.size = size

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines from top to bottom, without blanks at their ends."""
        return tuple(line.rstrip() for line in self._cells.display)

    @property
    def text(self) -> str:
        """The lines as one text, without empty ones at the end."""
        return "\n".join(self.lines).rstrip("\n")

    @property
    def cursor(self) -> tuple[int, int]:
        """Row and column of the cursor, counted from 0."""
        return self._cells.cursor.y, self._cells.cursor.x

    @property
    def title(self) -> str:
        """The title that the child gave its window, empty when it gave none."""
        return str(self._cells.title)


def _emulation() -> Any:
    try:
        return import_module("pyte")
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            "a Screen needs pyte: install creche[screen]", name="pyte"
        ) from missing
