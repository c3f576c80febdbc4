"""How far a batch is, on stderr: a bar on a terminal, else a line now and then."""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final, Protocol

from actors.batch.tally import Tally
from actors.console import stdio

EVERY: Final = 10.0
"""Seconds between two lines."""


class View(Protocol):
    """What shows it; `period` is the time from one sight of it to the next, seconds."""

    period: float

    def draw(self, tally: Tally, wall: float) -> None:
        """Show it, `wall` seconds after the start."""

    def aside(self, fd: int) -> AbstractContextManager[bytes]:
        """For a block, come between nothing that is written to this descriptor.

        What it gives is to be written there first.
        """

    def wrote(self, fd: int, data: bytes) -> None:
        """Note what was written to it last."""

    def close(self) -> None:
        """Take it away for good."""

    def rest(self) -> bytes:
        """Return what is to be written to stderr first after that."""


class Plain:
    """A line now and then."""

    period = EVERY

    def __init__(self) -> None:
        self._away = False

    def draw(self, tally: Tally, wall: float) -> None:
        """Write a line, unless it would lie within other output, or wait."""
        if not self._away:
            offer(tally.line(wall))

    @contextmanager
    def aside(self, fd: int) -> Iterator[bytes]:
        """Write no line meanwhile if that goes where stderr does."""
        self._away = _same_file(fd, sys.stderr.fileno())
        try:
            yield b""
        finally:
            self._away = False

    def wrote(self, _fd: int, _data: bytes) -> None:
        """Ignore it."""

    def close(self) -> None:
        """Write nothing more."""

    def rest(self) -> bytes:
        """Return nothing."""
        return b""


def view() -> View:
    """Return what suits our stderr: a bar needs a terminal, and rich."""
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        try:
            from actors.batch.bar import Bar  # noqa: PLC0415 - of the extra `ui`
        except ImportError:
            return Plain()
        return Bar()
    return Plain()


def tell(words: str, first: bytes = b"") -> None:
    """Write words to stderr, behind what is to come first, at its reader's pace."""
    with suppress(OSError):  # nobody reads them, so nobody misses them
        stdio.write(sys.stderr.fileno(), first + _line(words))


def offer(words: str, first: bytes = b"") -> None:
    """Write the same as far as stderr takes it at once."""
    stdio.write_now(sys.stderr.fileno(), first + _line(words))


def _line(words: str) -> bytes:
    # Not by way of sys.stderr: what it could not write it would try again at our end.
    return f"creche: {words}\n".encode(sys.stderr.encoding, "backslashreplace")


def _same_file(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False
