"""What a terminal shows: output fed in, lines of text out.

The emulation is pyte's, which comes with the extra `screen`; it is imported when a
screen is made. What pyte does not know it would fail on; here that draws nothing, as on
any terminal.
"""

import asyncio
import inspect
import itertools
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from actors import checks
from actors.events import Chunk, Event, Gap
from actors.settings import TtySize
from broker import errors
from broker.outcomes import TimedOut

if TYPE_CHECKING:
    from actors.child import Child

DEFAULT_SIZE: Final = TtySize()
COLOURS: Final = (
    "black",
    "red",
    "green",
    "brown",
    "blue",
    "magenta",
    "cyan",
    "white",
)
"""pyte's names, in the order of their numbers."""
MARKS: Final = {
    "bold": 1,
    "italics": 3,
    "underscore": 4,
    "blink": 5,
    "reverse": 7,
    "strikethrough": 9,
}
"""pyte's names of styles, and their numbers."""
ERASING: Final = {"erase_in_line": 2, "erase_in_display": 3}
"""pyte's methods that erase, and the last of the ways in which each of them can."""


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
        self._cells: Any = _cells(pyte, size)
        self._stream: Any = pyte.ByteStream(self._cells)
        # Not itself: a child that nobody else holds is to end.
        self._child: weakref.ref[Child] | None = None
        self._next = 0

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
            async with asyncio.timeout(timeout):
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
        self._cells.resize(size.rows, size.cols)
        self.size = size

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines from top to bottom, without blanks at their ends."""
        cells, columns = self._cells, range(self._cells.columns)
        # Not its `display`, which fails where half of a wide character is left: the
        # second half is an empty text, which nothing then comes before.
        rows = (cells.buffer[row] for row in range(cells.lines))
        return tuple("".join(row[x].data for x in columns).rstrip() for row in rows)

    @property
    def text(self) -> str:
        """The lines as one text, without empty ones at the end."""
        return "\n".join(self.lines).rstrip("\n")

    @property
    def styled(self) -> str:
        """The text with its colours and styles, as sequences for a terminal."""
        cells, columns = self._cells, range(self._cells.columns)
        lines = []
        for row in range(len(self.text.splitlines())):
            styled = ((_style(cells.buffer[row][x]), x) for x in columns)
            runs = itertools.groupby(styled, key=lambda pair: pair[0])
            line = [
                f"\x1b[{style}m" + "".join(cells.buffer[row][x].data for _, x in run)
                for style, run in runs
            ]
            lines.append("".join(line) + "\x1b[0m")
        return "\n".join(lines)

    @property
    def cursor(self) -> tuple[int, int]:
        """Row and column of the cursor, counted from 0."""
        return self._cells.cursor.y, self._cells.cursor.x

    @property
    def title(self) -> str:
        """The title that the child gave its window, empty when it gave none."""
        return str(self._cells.title)


def _style(cell: Any) -> str:
    """Return the numbers of a cell's style, for a sequence of a terminal."""
    marks = [number for name, number in MARKS.items() if getattr(cell, name)]
    codes = [0, *marks, *_colour(cell.fg, 30), *_colour(cell.bg, 40)]
    return ";".join(map(str, codes))


def _colour(name: str, base: int) -> list[int]:
    """Return the numbers of a colour that pyte names, or gives as `rrggbb`."""
    if name == "default":
        return []
    plain = name.removeprefix("bright")
    if plain in COLOURS:
        return [base + COLOURS.index(plain) + 60 * (plain != name)]
    return [base + 8, 2, *bytes.fromhex(name)]


def _emulation() -> Any:
    try:
        return import_module("pyte")
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            "a Screen needs pyte: install the extra `screen`", name="pyte"
        ) from missing


def _cells(pyte: Any, size: TtySize) -> Any:
    """Return pyte's screen, which fails on no sequence any more."""
    cells = pyte.Screen(size.cols, size.rows)
    for name, most in ERASING.items():
        setattr(cells, name, _limited(getattr(cells, name), most))

    def cursor_to_line(line: int = 1) -> None:
        cells.cursor_position(line, cells.cursor.x + 1)

    # pyte's own fails in origin mode while there is no scrolling region.
    cells.cursor_to_line = cursor_to_line
    for name in set(pyte.Stream.csi.values()):
        setattr(cells, name, _lenient(getattr(cells, name)))
    return cells


def _limited(erase: Callable[..., None], most: int) -> Callable[..., None]:
    def erase_if_known(how: int = 0, *, private: bool = False) -> None:
        if how <= most:
            erase(how, private=private)

    return erase_if_known


def _lenient(handle: Callable[..., None]) -> Callable[..., None]:
    """Return a handler of control sequences which takes whatever there is in one.

    pyte hands each number over, and `private` for a `?` before them: vim sends xterm
    `CSI ? 4 m`, which no handler of `m` takes.
    """
    kinds = {name: p.kind for name, p in inspect.signature(handle).parameters.items()}
    private_too = "private" in kinds or inspect.Parameter.VAR_KEYWORD in kinds.values()
    named = [
        name
        for name, kind in kinds.items()
        if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and name != "private"
    ]
    every = inspect.Parameter.VAR_POSITIONAL in kinds.values()
    most = None if every else len(named)

    def lenient(*numbers: int, private: bool = False) -> None:
        if not private:
            handle(*numbers[:most])
        elif private_too:
            handle(*numbers[:most], private=True)

    return lenient
