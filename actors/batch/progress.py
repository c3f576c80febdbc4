"""How far a batch is, on stderr: a bar on a terminal, else a line now and then."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Final, Protocol

from actors.batch.tally import Tally

EVERY: Final = 10.0
"""Seconds between two lines."""


class View(Protocol):
    """What shows it; `period` is the time from one sight of it to the next, seconds."""

    period: float

    def draw(self, tally: Tally, wall: float) -> None:
        """Show it, `wall` seconds after the start."""

    def hidden(self) -> AbstractContextManager[None]:
        """Take it away while something else is written."""

    def wrote(self, data: bytes) -> None:
        """Note what was written last."""

    def close(self) -> None:
        """Take it away for good."""


class Plain:
    """A line now and then."""

    period = EVERY

    def draw(self, tally: Tally, wall: float) -> None:
        """Write a line."""
        tell(tally.line(wall))

    def hidden(self) -> AbstractContextManager[None]:
        """Leave it: what was written stays."""
        return nullcontext()

    def wrote(self, _data: bytes) -> None:
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
    """Write words to stderr."""
    with suppress(OSError):  # nobody reads them, so nobody misses them
        sys.stderr.write(f"creche: {words}\n")
        sys.stderr.flush()
