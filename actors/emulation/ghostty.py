"""A screen by the emulator of the terminal Ghostty, which pyghostty brings.

Whatever a method of `pyghostty.Terminal` gives is taken from there; the functions of
the library itself, which change, are called for the cells alone.
"""

from importlib import import_module
from typing import Any, Final

from actors.settings import TtySize

MARKS: Final = {
    "bold": 1,
    "faint": 2,
    "italic": 3,
    "underline": 4,
    "blink": 5,
    "inverse": 7,
    "invisible": 8,
    "strikethrough": 9,
    "overline": 53,
}
"""Ghostty's names of styles, and their numbers."""


class Ghostty:
    """What a terminal of this size shows.

    Raises:
        ImportError: pyghostty is not installed.
        OSError: the library that it brings is for another system.
    """

    def __init__(self, size: TtySize) -> None:
        self._ghostty: Any = import_module("pyghostty")
        self._terminal: Any = self._ghostty.Terminal(size.cols, size.rows, scrollback=0)

    def feed(self, output: bytes) -> None:
        """Draw output."""
        self._terminal.feed(output)

    def resize(self, size: TtySize) -> None:
        """Take a new size; lines that were wrapped are wrapped anew."""
        self._terminal.resize(size.cols, size.rows)

    def lines(self) -> list[str]:
        """Return the text of each line."""
        _, rows = self._terminal.size
        found: list[str] = self._terminal.text().split("\n")
        return found + [""] * (rows - len(found))

    def cells(self, row: int) -> list[tuple[str, str]]:
        """Return text and style of each cell of a line."""
        columns, _ = self._terminal.size
        return [self._cell(column, row) for column in range(columns)]

    def _cell(self, column: int, row: int) -> tuple[str, str]:
        ffi, lib = self._ghostty.ffi, self._ghostty.lib
        place = self._terminal.ref(column, row)
        cell, wide = ffi.new("GhosttyCell *"), ffi.new("GhosttyCellWide *")
        lib.ghostty_grid_ref_cell(place, cell)
        lib.ghostty_cell_get(cell[0], lib.GHOSTTY_CELL_DATA_WIDE, wide)
        count = ffi.new("size_t *")
        lib.ghostty_grid_ref_graphemes(place, ffi.NULL, 0, count)
        points = ffi.new("uint32_t[]", count[0])
        lib.ghostty_grid_ref_graphemes(place, points, count[0], count)
        text = "".join(map(chr, points))
        if not text and wide[0] != lib.GHOSTTY_CELL_WIDE_SPACER_TAIL:
            text = " "
        style = self._terminal.style(column, row)
        style["bg"] = style["bg"] or self._erased_in(cell[0])
        return text, _style(style)

    def _erased_in(self, cell: Any) -> Any:
        """Return the colour of a cell that has nothing else, as a style has it."""
        ffi, lib = self._ghostty.ffi, self._ghostty.lib
        content = ffi.new("GhosttyCellContentTag *")
        lib.ghostty_cell_get(cell, lib.GHOSTTY_CELL_DATA_CONTENT_TAG, content)
        if content[0] == lib.GHOSTTY_CELL_CONTENT_BG_COLOR_PALETTE:
            number = ffi.new("GhosttyColorPaletteIndex *")
            lib.ghostty_cell_get(cell, lib.GHOSTTY_CELL_DATA_COLOR_PALETTE, number)
            return "palette", number[0]
        if content[0] == lib.GHOSTTY_CELL_CONTENT_BG_COLOR_RGB:
            rgb = ffi.new("GhosttyColorRgb *")
            lib.ghostty_cell_get(cell, lib.GHOSTTY_CELL_DATA_COLOR_RGB, rgb)
            return "rgb", (rgb.r, rgb.g, rgb.b)
        return None

    @property
    def cursor(self) -> tuple[int, int]:
        """Row and column of the cursor."""
        column, row = self._terminal.cursor
        return row, column

    @property
    def title(self) -> str:
        """The title of the window."""
        title = self._terminal.get("title", "GhosttyString")
        raw: bytes = self._ghostty.ffi.buffer(title.ptr, title.len)[:]
        return raw.decode("utf-8", "replace")


def _style(style: dict[str, Any]) -> str:
    """Return the numbers of a style, for a sequence of a terminal."""
    marks = [number for name, number in MARKS.items() if style[name]]
    codes = [0, *marks, *_colour(style["fg"], 30), *_colour(style["bg"], 40)]
    return ";".join(map(str, codes))


def _colour(colour: Any, base: int) -> list[int]:
    """Return the numbers of a colour: of the palette, or as red, green and blue."""
    match colour:
        case ("palette", number) if number < 16:
            return [base + number + 52 * (number >= 8)]
        case ("palette", number):
            return [base + 8, 5, number]
        case ("rgb", parts):
            return [base + 8, 2, *parts]
        case _:
            return []
