"""A screen by pyte: in plain Python, for every machine.

What pyte does not know it would fail on; here that draws nothing, as on any terminal.
Of its own it has no second screen either, which programs of the whole screen draw on
and leave again.
"""

import copy
import inspect
import unicodedata
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from actors.settings import TtySize

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
MISSPELT: Final = {"bfightmagenta": "brightmagenta"}
"""A name of pyte's table of bright backgrounds, and what it is meant to be."""
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

SECOND: Final = {47, 1047, 1049}
"""Modes of a terminal: each is its second screen."""
KEEPING: Final = 1049
"""The one that keeps the cursor of the first as well."""


class Pyte:
    """What a terminal of this size shows.

    Raises:
        ModuleNotFoundError: pyte is not installed.
    """

    def __init__(self, size: TtySize) -> None:
        pyte = import_module("pyte")
        self._cells: Any = _cells(pyte, size)
        self._stream: Any = pyte.ByteStream(self._cells)

    def feed(self, output: bytes) -> None:
        """Draw output."""
        self._stream.feed(output)

    def resize(self, size: TtySize) -> None:
        """Take a new size."""
        self._cells.resize(size.rows, size.cols)

    def lines(self) -> list[str]:
        """Return the text of each line."""
        # Not its `display`, which fails where half of a wide character is left: the
        # second half is an empty text, which nothing then comes before.
        rows = range(self._cells.lines)
        return ["".join(text for text, _ in self.cells(row)) for row in rows]

    def cells(self, row: int) -> list[tuple[str, str]]:
        """Return text and style of each cell of a line."""
        line = self._cells.buffer[row]
        cells = (line[column] for column in range(self._cells.columns))
        return [(cell.data, _style(cell)) for cell in cells]

    @property
    def cursor(self) -> tuple[int, int]:
        """Row and column of the cursor."""
        return self._cells.cursor.y, self._cells.cursor.x

    @property
    def title(self) -> str:
        """The title of the window."""
        return str(self._cells.title)


def _style(cell: Any) -> str:
    """Return the numbers of a cell's style, for a sequence of a terminal."""
    marks = [number for name, number in MARKS.items() if getattr(cell, name)]
    codes = [0, *marks, *_colour(cell.fg, 30), *_colour(cell.bg, 40)]
    return ";".join(map(str, codes))


def _colour(name: str, base: int) -> list[int]:
    """Return the numbers of a colour that pyte names, or gives as `rrggbb`.

    It has more digits where a part was more than 255: no colour at all.
    """
    name = MISSPELT.get(name, name)
    if name == "default":
        return []
    plain = name.removeprefix("bright")
    if plain in COLOURS:
        return [base + COLOURS.index(plain) + 60 * (plain != name)]
    return [base + 8, 2, *bytes.fromhex(name)] if len(name) == 6 else []


def _cells(pyte: Any, size: TtySize) -> Any:
    """Return pyte's screen, which fails on no sequence any more."""
    cells = pyte.Screen(size.cols, size.rows)
    for name, most in ERASING.items():
        setattr(cells, name, _limited(getattr(cells, name), most))

    def cursor_to_line(line: int = 1) -> None:
        cells.cursor_position(line, cells.cursor.x + 1)

    # pyte's own fails in origin mode while there is no scrolling region.
    cells.cursor_to_line = cursor_to_line
    _draw_all(cells, pyte.screens.wcwidth)
    _give_second_screen(cells)
    for name in set(pyte.Stream.csi.values()):
        setattr(cells, name, _lenient(getattr(cells, name)))
    return cells


def _draw_all(cells: Any, width: Callable[[str], int]) -> None:
    """Have pyte leave out what has no width; it would stop there, and draw no more."""
    draw = cells.draw

    def draw_what_shows(text: str) -> None:
        draw("".join(c for c in text if width(c) > 0 or unicodedata.combining(c)))

    cells.draw = draw_what_shows


def _give_second_screen(cells: Any) -> None:
    set_mode, reset_mode, reset = cells.set_mode, cells.reset_mode, cells.reset
    first: list[tuple[Any, Any]] = []

    def enter(*modes: int, private: bool = False) -> None:
        set_mode(*modes, private=private)
        if private and not first and SECOND.intersection(modes):
            first.append((cells.buffer, copy.copy(cells.cursor)))
            cells.buffer = cells.buffer.copy()
            cells.buffer.clear()

    def leave(*modes: int, private: bool = False) -> None:
        reset_mode(*modes, private=private)
        if private and first and SECOND.intersection(modes):
            cells.buffer, cursor = first.pop()
            if KEEPING in modes:
                cells.cursor = cursor
                # The screen may have become smaller meanwhile.
                cells.ensure_hbounds()
                cells.ensure_vbounds()

    def begin_anew() -> None:
        reset()
        first.clear()

    cells.set_mode, cells.reset_mode, cells.reset = enter, leave, begin_anew


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
