"""What a terminal emulator has to know for a `Screen`, and which one there is.

Ghostty's is preferred: it reads some fifty megabytes a second and draws what terminals
draw today. There is no wheel of it for every machine: pyte, in plain Python, reads less
than one, and stands in.
"""

from contextlib import suppress
from typing import Protocol

from actors.emulation.ghostty import Ghostty
from actors.emulation.pyte import Pyte
from actors.settings import TtySize


class Emulator(Protocol):
    """Draws what is fed to it; no output is too strange for it."""

    def feed(self, output: bytes) -> None:
        """Draw output, which may end in the middle of a character or sequence."""

    def resize(self, size: TtySize) -> None:
        """Take a new size."""

    def lines(self) -> list[str]:
        """Return the text of each line, from top to bottom; blanks may end it."""

    def cells(self, row: int) -> list[tuple[str, str]]:
        """Return text and style of each cell of a line, from left to right.

        Of a wide character the second cell has no text. A style is the numbers of the
        sequence that sets it, such as `0;1;31`.
        """

    @property
    def cursor(self) -> tuple[int, int]:
        """Row and column of the cursor, counted from 0."""

    @property
    def title(self) -> str:
        """The title of the window, empty without one."""


def emulator(size: TtySize) -> Emulator:
    """Return the best emulator there is, with an empty screen.

    Raises:
        ModuleNotFoundError: none is installed.
    """
    with suppress(ImportError, OSError):  # not installed, or made for other systems
        return Ghostty(size)
    try:
        return Pyte(size)
    except ModuleNotFoundError as missing:
        needs = "a screen needs the extra `screen`: pip install pyghostty, or pyte"
        raise ModuleNotFoundError(needs, name="pyte") from missing
