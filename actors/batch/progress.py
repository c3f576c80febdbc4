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

    def aside(self, fd: int) -> AbstractContextManager[None]:
        """For a block, come between nothing that is written to this descriptor."""

    def wrote(self, fd: int, data: bytes) -> None:
        """Note what was written to it last."""

    def close(self) -> None:
        """Take it away for good."""


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
    def aside(self, fd: int) -> Iterator[None]:
        """Write no line meanwhile if that goes where stderr does."""
        self._away = _same_file(fd, sys.stderr.fileno())
        try:
            yield
        finally:
            self._away = False

    def wrote(self, _fd: int, _data: bytes) -> None:
        """Ignore it."""

    def close(self) -> None:
        """Write nothing more."""


def view() -> View:
    """Return what suits our stderr: a bar needs a terminal, and rich."""
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        try:
            from actors.batch.bar import Bar  # noqa: PLC0415 - of the extra `ui`
        except ImportError:
            return Plain()
        return Bar()
    return Plain()


def tell(words: str) -> None:
    """Write words to stderr, at the pace of whoever reads it."""
    with suppress(OSError):  # nobody reads them, so nobody misses them
        stdio.write(sys.stderr.fileno(), _line(words))


def offer(words: str) -> None:
    """Write words to stderr as far as it takes them at once."""
    stdio.write_now(sys.stderr.fileno(), _line(words))


def _line(words: str) -> bytes:
    # Not by way of sys.stderr: what it could not write it would try again at our end.
    return f"creche: {words}\n".encode(sys.stderr.encoding, "backslashreplace")


def _same_file(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False
