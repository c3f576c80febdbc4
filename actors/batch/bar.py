"""A progress bar on a terminal, by rich."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from actors.batch.tally import Tally
from actors.console import stdio

PERIOD: Final = 0.25
"""Seconds from one sight of it to the next."""


class _Stderr(io.FileIO):
    """Our stderr, which nobody waits for: it may stand still, or be hung up.

    Attributes:
        rest: What it has not taken, with all that came behind that.
    """

    rest = b""

    def write(self, data: Any, /) -> int:
        """Write what it takes at once."""
        more = bytes(data)
        self.rest += more if self.rest else stdio.write_now(self.fileno(), more)
        return len(data)

    def take_rest(self) -> None:
        """Write what it takes by now of the rest."""
        self.rest = stdio.write_now(self.fileno(), self.rest)


class Bar:
    """A bar with counts, below the output; it is away while output is written."""

    period = PERIOD

    def __init__(self) -> None:
        self._raw = _Stderr(sys.stderr.fileno(), "w", closefd=False)
        self._stderr = io.TextIOWrapper(
            self._raw,
            sys.stderr.encoding,
            "backslashreplace",
            write_through=True,
        )
        self._progress = Progress(
            BarColumn(bar_width=None),
            TextColumn("{task.description}"),
            console=Console(file=self._stderr),
            auto_refresh=False,  # no thread: it is drawn when it is told to
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            expand=True,
        )
        self._task = self._progress.add_task("", total=None)
        self._visible = False
        self._away = False
        self._mid_line = False

    def draw(self, tally: Tally, wall: float) -> None:
        """Show it, unless it is to be away, or has no place."""
        if self._away or not (self._visible or stdio.has_room(self._raw.fileno())):
            return
        if not self._visible:
            self._raw.take_rest()
            if self._raw.rest:  # of an earlier sight; where it was is not known yet
                return
        self._raw.rest = b""  # the next sight of it takes the place of this one
        total = None if tally.total is None else tally.total - tally.skipped
        self._progress.update(
            self._task,
            description=tally.line(wall),
            completed=tally.done,
            total=total,
        )
        if not self._visible:
            self._appear()
        self._progress.refresh()

    def _appear(self) -> None:
        if self._mid_line:
            self._stderr.write("\n")  # the bar would take the place of that line
        self._mid_line = False
        self._visible = True
        self._progress.start()

    @contextmanager
    def aside(self, fd: int) -> Iterator[bytes]:
        """Take it away if that is a terminal; the next time to draw brings it back."""
        if not os.isatty(fd):
            yield b""
            return
        self.close()
        self._away = True
        try:
            same = os.path.sameopenfile(fd, self._raw.fileno())
            yield self.rest() if same else b""
        finally:
            self._away = False

    def wrote(self, fd: int, data: bytes) -> None:
        """Note whether a line was left without its end."""
        if os.isatty(fd):
            self._mid_line = not data.endswith(b"\n")

    def close(self) -> None:
        """Take it away."""
        if self._visible:
            self._raw.rest = b""
            self._progress.stop()
        self._visible = False

    def rest(self) -> bytes:
        """Return, once, what of taking it away the terminal has not taken yet."""
        rest, self._raw.rest = self._raw.rest, b""
        return rest
