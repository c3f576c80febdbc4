"""The lease page: shared memory by which the broker shows that it runs.

The broker stamps it every `RENEWAL` seconds with its monotonic clock. The pool looks at
it as often, for all its workers: when the last stamp is older than `DURATION`, every
worker is told to end its tree. No message, and nothing that grows with the sessions.

Behind the stamp stand the last numbers that were given to a client, a session and a
worker: the next broker, if this one is lost, goes on from there.
"""

import mmap
import os
import struct
import time
from typing import Final

DURATION: Final = 10.0
"""Seconds without a stamp after which a broker counts as dead."""
RENEWAL: Final = 3.0
"""Seconds between two stamps, and between two looks at the page."""

_STAMP: Final = struct.Struct("d")
_NUMBERS: Final = slice(_STAMP.size, _STAMP.size + 3 * 8)


class Page:
    """A mapped lease page; `fd` is a memfd that the supervisor made."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, _NUMBERS.stop)

    def stamp(self, now: float) -> None:
        """Show that the broker runs at time `now` (monotonic seconds)."""
        _STAMP.pack_into(self._map, 0, now)

    def age(self, now: float) -> float:
        """Return the seconds since the last stamp."""
        (stamped,) = _STAMP.unpack_from(self._map, 0)
        return now - float(stamped)

    def numbers(self) -> memoryview:
        """Return the last numbers that were given, as they stand in the page."""
        return memoryview(self._map)[_NUMBERS].cast("Q")


def create() -> int:
    """Return the descriptor of a fresh page, stamped now."""
    fd = os.memfd_create("creche-lease", os.MFD_CLOEXEC)
    os.ftruncate(fd, _NUMBERS.stop)
    Page(fd).stamp(time.monotonic())
    return fd
