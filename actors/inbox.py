"""Bytes on their way into a child's stdin, and the writers that wait for them. Pure."""

from collections import deque
from collections.abc import Hashable
from typing import NamedTuple

from broker.errors import CapacityExceeded, InvalidRequest


class Writer(NamedTuple):
    """A write that is answered when the input up to `end` is in the pipe."""

    key: Hashable
    start: int
    end: int


class Inbox:
    """A bounded queue of input with offsets.

    Args:
        limit: bytes that may be queued; a write that finds that many is refused.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self.taken = 0
        self._parts: deque[memoryview] = deque()
        self._writers: list[Writer] = []
        self._last = False

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def finished(self) -> bool:
        """Return whether the input was given whole at the start, and is through."""
        return self._last and not self._parts

    @property
    def writers(self) -> list[Hashable]:
        """The keys of the writes that wait."""
        return [writer.key for writer in self._writers]

    def feed(self, data: bytes) -> None:
        """Queue the last input of the child: its stdin ends after it."""
        self._append(data)
        self._last = True

    @property
    def ending(self) -> bool:
        """Return whether nothing more can follow what is queued."""
        return self._last

    def fresh(self, data: bytes, at: int | None) -> bytes:
        """Return what `put` will queue of `data`: what was not queued before.

        Raises:
            InvalidRequest: `at` lies beyond what was written so far.
            CapacityExceeded: the queue is full.
        """
        start = self.total if at is None else at
        if start > self.total:
            raise InvalidRequest(
                "at", f"is beyond the {self.total} bytes written so far"
            )
        fresh = data[self.total - start :]
        if fresh and self.total - self.taken >= self.limit:
            raise self.full()
        return fresh

    def full(self) -> CapacityExceeded:
        """Return what a write is refused with that finds no room."""
        return CapacityExceeded(0.1, f"{self.limit} bytes of input are waiting already")

    def put(self, key: Hashable, data: bytes, at: int | None) -> int | None:
        """Queue `data`; return how much was accepted when that is known at once.

        `at` makes a retry harmless: bytes that were queued before are not queued again.

        Raises:
            InvalidRequest, CapacityExceeded: as for `fresh`.
        """
        fresh = self.fresh(data, at)
        start = self.total if at is None else at
        end = start + len(data)
        self._append(fresh)
        if end <= self.taken:
            return len(data)
        self._writers.append(Writer(key, start, end))
        return None

    def _append(self, data: bytes) -> None:
        if data:
            self._parts.append(memoryview(data))
            self.total += len(data)

    def passed(self, count: int) -> None:
        """Count bytes that went into the pipe beside the queue, which is empty."""
        self.total += count
        self.taken += count

    def next(self) -> memoryview:
        """Return the bytes to write next; there are some while the inbox is true."""
        return self._parts[0]

    def took(self, count: int) -> list[tuple[Hashable, int]]:
        """Note that the pipe took `count` bytes; return the writers now served."""
        self.taken += count
        part = self._parts[0][count:]
        if part:
            self._parts[0] = part
        else:
            self._parts.popleft()
        through = [w for w in self._writers if w.end <= self.taken]
        if through:
            self._writers = [w for w in self._writers if w.end > self.taken]
        return [(w.key, w.end - w.start) for w in through]

    def close(self) -> list[tuple[Hashable, int]]:
        """Drop what is queued; return every writer with what went in of its bytes."""
        cut = [(w.key, max(0, min(w.end, self.taken) - w.start)) for w in self._writers]
        self._writers.clear()
        self._parts.clear()
        self.total = self.taken
        self._last = False
        return cut
