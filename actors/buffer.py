"""The session log: what one child wrote, kept by policy and read through cursors.

Rules:

1. A byte has two addresses: its *offset* in its stream, and its *sequence*, the number
   of bytes of both streams before it. Neither depends on how the bytes came in.
2. Reading removes nothing. A reader is a `Cursor` that its owner keeps; the log does
   not know who reads, except for those that `Log.hold` it back.
3. Per stream, produced = retained + dropped, always. What a cursor missed is told as a
   `Hole`, at its place in the order.
4. Nothing at or after a hold is ever dropped.
5. What a reader was told the place of stays in that place while it is *pinned*, dropped
   or not. A pin keeps memory, not output: no other reader gets to see what is dropped.

How it works:

The bytes lie in merged order in *blocks*. Whose they are is a path in the plane of the
two offsets: right for a byte of stdout, up for one of stderr. A point of the path is a
cursor, and its two coordinates add up to its sequence. The path is a staircase, so a
block stores just its corners, one for every change from stderr back to stdout (8 bytes
for two runs, however short): one bisection finds the point for a sequence, or the step
for an offset.

What is dropped is one stretch, the *hole*, and it is a function of the present state:
it begins after the head that the policy keeps, and ends where the policy's tail begins
or at the oldest hold, whichever is earlier. Its end never moves back, because a new
hold inside or before the hole counts from the hole's end. The blocks that lie in the
hole are given back when the next block is needed. So dropping costs an append nothing,
and the memory in use is what is retained and pinned plus at most two blocks (a head
adds one) and the corners.

Once a log has filled its first blocks it takes the next ones from an *arena*, which
others can map: then a reader may be told where bytes lie instead of getting them.

`block(n)` is `tail(n)` with a hold at 0 that only the first real hold takes away.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import NamedTuple, Protocol

from broker.wire import STREAMS

__all__ = ["Blocks", "Counts", "Cursor", "Hole", "Log", "Piece", "Placed"]

# Most children write little, and a worker should stay small; a full pipe is 64 KiB.
FIRST_BLOCK = 4096
LARGEST_BLOCK = 65536
BLOCK_GROWTH = 4

# One read answers with at most so many pieces (those of a reader's whole credit). All
# of 64 KiB with the streams alternating byte by byte would keep the worker for 94 ms.
MOST_PIECES = 256

_INDEX = {stream: index for index, stream in enumerate(STREAMS)}
_UNREAD = object()  # the key of the hold of a blocking log that nobody has read yet

_base = attrgetter("base")


# The values are named tuples, not dataclasses: a piece is made in 0.24 instead of
# 0.51 microseconds, and a read may make hundreds.
class Cursor(NamedTuple):
    """A reader's place: how many bytes of each stream lie before it.

    Take one from `Log.at` or from the last `Log.read`; `Cursor(0, 0)` is the start.

    Attributes:
        stdout: The offset in stdout.
        stderr: The offset in stderr.
    """

    stdout: int
    stderr: int

    @property
    def sequence(self) -> int:
        """The number of bytes of both streams before this place."""
        return self.stdout + self.stderr

    def after(self, stream: str, count: int) -> "Cursor":
        """Give the place after the next `count` bytes if they are of `stream`."""
        if stream == "stdout":
            return Cursor(self.stdout + count, self.stderr)
        return Cursor(self.stdout, self.stderr + count)


class Piece(NamedTuple):
    """Bytes of one stream that lie together in the merged order.

    Attributes:
        stream: "stdout" or "stderr".
        offset: The first byte's offset in its stream.
        sequence: The first byte's place in the merged order.
        data: The bytes, at least one.
    """

    stream: str
    offset: int
    sequence: int
    data: bytes


class Placed(NamedTuple):
    """Where bytes of one stream lie in the arena.

    Attributes:
        stream: "stdout" or "stderr".
        offset: The first byte's offset in its stream.
        sequence: The first byte's place in the merged order.
        place: The first byte's offset in the arena's file.
        length: How many bytes there are, at least one.
    """

    stream: str
    offset: int
    sequence: int
    place: int
    length: int


class Hole(NamedTuple):
    """Bytes of one stream that were dropped before this reader came to them.

    Attributes:
        stream: "stdout" or "stderr".
        start: The offset of the first missed byte.
        end: The offset after the last one.
    """

    stream: str
    start: int
    end: int


class Counts(NamedTuple):
    """The bytes of one stream; produced = retained + dropped.

    Attributes:
        produced: All that the child wrote and the log took.
        retained: Those that can be read now.
        dropped: Those no longer in the log, whoever had read them.
    """

    produced: int
    retained: int
    dropped: int


class Blocks(Protocol):
    """What a bulky log has its blocks from.

    Attributes:
        address: How others find the file, None while it has no block in use.
    """

    address: dict[str, int] | None

    def take(self, sequence: int) -> tuple[memoryview, int] | None:
        """Give a block for the bytes from `sequence` on, and its offset in the file.

        Returns:
            None when there is none to be had.
        """

    def give_back(self, place: int) -> None:
        """Take back the block at `place`: nobody reads it any more."""


class _Block:
    """One stretch of the merged bytes and of the path that says whose they are.

    `path` holds the coordinates of the corners, counted from `start`. A step goes from
    one corner right to the next one's stdout, then up to its stderr; either part may
    be empty. The last corner is the end of what is used. `place` is the block's offset
    in the arena, None for memory of this process alone.
    """

    __slots__ = ("base", "path", "place", "start", "used", "view")

    def __init__(
        self, start: Cursor, view: memoryview, place: int | None = None
    ) -> None:
        self.start = start
        self.base = start.sequence
        self.view = view
        self.place = place
        self.path = array("I", (0, 0)), array("I", (0, 0))
        self.used = 0

    @property
    def end(self) -> Cursor:
        """The place after the last byte in use."""
        right, up = self.path
        return Cursor(self.start.stdout + right[-1], self.start.stderr + up[-1])

    def extend(self, stream: str, count: int) -> None:
        """Lead the path on by `count` bytes of `stream`."""
        right, up = self.path
        index = _INDEX[stream]
        if not index and up[-1] > up[-2]:
            right.append(right[-1])
            up.append(up[-1])
        self.path[index][-1] += count
        self.used += count

    def step(self, position: int) -> int:
        """Find the step with the byte at `position`; the last one for the end."""
        right, up = self.path
        steps = range(len(right) - 1)
        return bisect_right(steps, position, key=lambda i: right[i] + up[i]) - 1

    def at(self, position: int) -> Cursor:
        """Give the cursor before the byte at `position`."""
        right, up = self.path
        step = self.step(position)
        stdout = min(position - up[step], right[step + 1])
        return Cursor(self.start.stdout + stdout, self.start.stderr + position - stdout)

    def seek(self, index: int, offset: int) -> int:
        """Find the sequence of the byte of stream `index` at its absolute `offset`."""
        inside = offset - self.start[index]
        step = bisect_right(self.path[index], inside) - 1
        # Right first, then up: a byte of stderr comes after all stdout of its step.
        return self.base + inside + self.path[1 - index][step + index]

    def runs(self, position: int, stop: int) -> Iterator[tuple[str, memoryview]]:
        """Yield the bytes from `position` to `stop`, cut where the stream changes."""
        right, up = self.path
        step = self.step(position)
        while position < stop:
            turn = min(max(right[step + 1] + up[step], position), stop)
            if position < turn:
                yield "stdout", self.view[position:turn]
            step += 1
            position = min(right[step] + up[step], stop)
            if turn < position:
                yield "stderr", self.view[turn:position]


class Log:
    """The output of one child, for any number of readers.

    Args:
        policy: "tail" keeps the newest `size` bytes, "head_tail" the first
            `size - size // 2` and the last `size // 2`, "block" whatever a hold asks
            for, then the newest.
        size: Bytes to keep over both streams, at least 1.
        arena: Where further blocks come from when the first ones are full; without one,
            or when it has none, from this process's own memory.

    Attributes:
        end: All bytes produced so far: the sequence of the next one.

    Raises:
        ValueError: No such policy, or a size below 1.
    """

    def __init__(self, policy: str, size: int, arena: Blocks | None = None) -> None:
        if policy not in {"tail", "head_tail", "block"}:
            raise ValueError(f"no such policy: {policy!r}")
        if size < 1:
            raise ValueError(f"size must be positive, not {size}")
        self._size = size
        self._tail = size // 2 if policy == "head_tail" else size
        self._head = size - self._tail
        self._holds: dict[Hashable, int] = {_UNREAD: 0} if policy == "block" else {}
        self._pins: dict[Hashable, list[tuple[int, int]]] = {}
        self._arena = arena
        first = memoryview(bytearray(FIRST_BLOCK))
        self._blocks = [_Block(Cursor(0, 0), first)]
        self.end = 0

    # Producing

    def space(self) -> memoryview:
        """Offer room for the next bytes; read into it, then `commit`.

        Returns:
            A writable view, never empty, valid until the next `commit`. It may be
            larger than `room`: slice it before reading into it.
        """
        last = self._blocks[-1]
        used = last.used
        if used == len(last.view):
            last, used = self._grow(last), 0
        return last.view[used:]

    def commit(self, stream: str, count: int) -> None:
        """Take the first `count` bytes of the last `space` as output of `stream`.

        The log takes more than `room` allows too, and keeps over its size what is held.

        Raises:
            ValueError: `count` is negative or more than the space there was.
        """
        # A space and a commit cost 1.1 microseconds, as much as copying 50 KiB.
        last = self._blocks[-1]
        if not 0 <= count <= len(last.view) - last.used:
            raise ValueError(f"{count} bytes were not in the space given")
        last.extend(stream, count)
        self.end += count

    def append(self, stream: str, data: bytes | memoryview) -> None:
        """Copy `data`, of any length, to the end of `stream`."""
        rest = memoryview(data)
        while rest:
            space = self.space()
            count = min(len(space), len(rest))
            space[:count] = rest[:count]
            self.commit(stream, count)
            rest = rest[count:]

    def _grow(self, last: _Block) -> _Block:
        """Add a block, in the memory of one that lies in the hole if there is any."""
        freed = self._free()
        size = min(len(last.view) * BLOCK_GROWTH, LARGEST_BLOCK)
        shared = self._share(last) if len(last.view) >= LARGEST_BLOCK else None
        # Memory used again saves 1.4 of the 9 microseconds that 64 KiB of output cost.
        if shared is not None:
            block = _Block(last.end, *shared)
        elif freed and len(freed[-1].view) == size:
            block = _Block(last.end, freed[-1].view)
        else:
            block = _Block(last.end, memoryview(bytearray(size)))
        self._blocks.append(block)
        return block

    def _share(self, last: _Block) -> tuple[memoryview, int] | None:
        return self._arena.take(last.base + last.used) if self._arena else None

    def _free(self) -> list[_Block]:
        """Drop the blocks in the hole; return those of this process's own memory."""
        start, stop = self._hole()
        first = bisect_left(self._blocks, start, key=_base)
        # The block with the byte at `stop` stays, and so does the newest of all.
        after = bisect_right(self._blocks, stop, key=_base) - 1
        inside = self._blocks[first:after]
        pinned = [block for block in inside if self._pinned(block)]
        self._blocks[first:after] = pinned
        freed = [block for block in inside if block not in pinned]
        for block in freed:
            if block.place is not None and self._arena is not None:
                self._arena.give_back(block.place)
        return [block for block in freed if block.place is None]

    def _pinned(self, block: _Block) -> bool:
        end = block.base + block.used
        return block.place is not None and any(
            block.base < stop and start < end
            for pinned in self._pins.values()
            for start, stop in pinned
        )

    # Holding back

    def room(self) -> int:
        """Say how many bytes may be produced without overtaking a hold.

        Returns:
            `size` less what the oldest hold is behind, at least 0; `sys.maxsize`
            without a hold. At 0 leave the child's pipes unread until a hold moves.
        """
        if not self._holds:
            return sys.maxsize
        return max(0, self._size - (self.end - min(self._holds.values())))

    def hold(self, key: Hashable, sequence: int) -> None:
        """Keep everything from `sequence` on for the reader `key`.

        Calling again moves the hold forward, never backward. What was dropped already
        cannot be held: then the hold begins where bytes are retained again. Under
        "head_tail" the head is kept besides, so a held log may grow to size + head.

        Raises:
            ValueError: `sequence` is negative or beyond `end`.
        """
        if not 0 <= sequence <= self.end:
            raise ValueError(f"sequence {sequence} is outside the log")
        _, stop = self._hole()
        self._holds.pop(_UNREAD, None)
        self._holds[key] = max(sequence, stop, self._holds.get(key, 0))

    def release(self, key: Hashable) -> None:
        """Drop the hold and the pins of `key`, if it has any.

        After the last hold the log keeps the newest bytes only, and `room` is
        unlimited, until somebody holds again.
        """
        self._holds.pop(key, None)
        self._pins.pop(key, None)

    def pin(self, key: Hashable, placed: Placed) -> None:
        """Keep the memory of what a reader was told the place of."""
        pinned = self._pins.setdefault(key, [])
        start = placed.sequence
        if pinned and pinned[-1][1] == start:
            start, _ = pinned.pop()
        pinned.append((start, placed.sequence + placed.length))

    def unpin(self, key: Hashable, until: int) -> None:
        """Let go of what lies before `until` and was pinned for the reader `key`."""
        if key in self._pins:
            left = [pin for pin in self._pins[key] if until < pin[1]]
            self._pins[key] = [(max(start, until), stop) for start, stop in left]

    # Places

    @property
    def address(self) -> dict[str, int] | None:
        """How others find the arena, None before it is in use."""
        return self._arena.address if self._arena else None

    def first(self) -> int:
        """Give the sequence of the oldest retained byte (`end` in an empty log)."""
        start, stop = self._hole()
        return 0 if start else stop

    def at(self, sequence: int) -> Cursor:
        """Give the cursor at `sequence`, or at the end of the hole it lies in.

        Raises:
            ValueError: `sequence` is negative or beyond `end`.
        """
        if not 0 <= sequence <= self.end:
            raise ValueError(f"sequence {sequence} is outside the log")
        start, stop = self._hole()
        return self._point(stop if start <= sequence < stop else sequence)

    def seek(self, stream: str, offset: int) -> int:
        """Find the sequence of a stream's byte.

        Returns:
            The sequence of the byte at `offset`, or of the first one retained after
            it; `end` when there is none yet.
        """
        index = _INDEX[stream]
        start, stop = map(self._point, self._hole())
        if start[index] <= offset < stop[index]:
            offset = stop[index]
        if offset >= self._blocks[-1].end[index]:
            return self.end
        blocks = self._blocks
        after = bisect_right(blocks, offset, key=lambda block: block.start[index])
        return blocks[after - 1].seek(index, offset)

    def _hole(self) -> tuple[int, int]:
        """Give the sequences between which all is dropped; (0, 0) when nothing is."""
        stop = min((self.end - self._tail, *self._holds.values()))
        return (self._head, stop) if stop > self._head else (0, 0)

    def _point(self, sequence: int) -> Cursor:
        """Give the cursor at a sequence that is retained, or is an end of the hole."""
        after = bisect_right(self._blocks, sequence, key=_base)
        if not after:  # the start of the log, whose first blocks are gone
            return Cursor(0, 0)
        block = self._blocks[after - 1]
        return block.at(sequence - block.base)

    # Reading

    def read(
        self, cursor: Cursor, limit: int, count: int = MOST_PIECES
    ) -> tuple[list[Piece | Hole], Cursor]:
        """Read both streams in merged order.

        Args:
            cursor: Where to go on.
            limit: Bytes to give at most.
            count: Pieces to give at most (holes come on top).

        Returns:
            What was found, and the cursor for the next read. Bytes of one stream that
            lie together are one piece. A short answer does not mean that the end was
            reached: compare the cursor's sequence with `end`.

        Raises:
            ValueError: The cursor is not from this log.
        """
        # 64 KiB in one piece cost 8 microseconds plus the copy, each further piece 1.4.
        self._check(cursor)
        start, stop = self._hole()
        found: list[Piece | Hole] = []
        while cursor.sequence < self.end and limit > 0 and count > 0:
            sequence = cursor.sequence
            if start <= sequence < stop:
                resume = self._point(stop)
                found += _holes(cursor, resume)
                cursor = resume
                continue
            until = min(sequence + limit, start if sequence < start else self.end)
            pieces, cursor = self._pieces(cursor, until, count)
            found += pieces
            limit -= cursor.sequence - sequence
            count -= len(pieces)
        return found, cursor

    def locate(self, cursor: Cursor, limit: int, least: int) -> Placed | None:
        """Find the bytes at a cursor in the arena, instead of reading them.

        Args:
            cursor: Where to go on.
            limit: Bytes to give at most.
            least: Bytes of one stream that have to lie together there.

        Returns:
            None if they have to be read: they are few, dropped, or not in the arena.
        """
        # 3 microseconds for up to 1 MiB; to read that much costs 90.
        sequence = cursor.sequence
        start, stop = self._hole()
        if start <= sequence < stop or limit < least:
            return None
        block = self._blocks[bisect_right(self._blocks, sequence, key=_base) - 1]
        if block.place is None:
            return None
        until = min(sequence + limit, start if sequence < start else self.end)
        position = sequence - block.base
        runs = block.runs(position, min(until - block.base, block.used))
        stream, view = next(runs, ("stdout", b""))
        if len(view) < least:
            return None
        offset, place = cursor[_INDEX[stream]], block.place + position
        return Placed(stream, offset, sequence, place, len(view))

    def read_stream(
        self, stream: str, offset: int, limit: int
    ) -> tuple[int, int, bytes]:
        """Read one stream alone.

        Returns:
            The bytes missed from `offset` on, the offset where the data starts, and at
            most `limit` bytes of data. They end where something was dropped from
            either stream, so a short answer does not mean that the end was reached.

        Raises:
            ValueError: `offset` is negative or beyond what was produced.
        """
        index = _INDEX[stream]
        produced = self.produced(stream)
        if not 0 <= offset <= produced:
            raise ValueError(f"offset {offset} is outside {stream}")
        gap_start, gap_stop = (self._point(end)[index] for end in self._hole())
        start = gap_stop if gap_start <= offset < gap_stop else offset
        until = gap_start if start < gap_start else produced
        data = self._gather(stream, start, min(limit, until - start))
        return start - offset, start, data

    def newest(self, count: int) -> bytes:
        """Give the newest `count` bytes over both streams, or those since the hole."""
        _, stop = self._hole()
        end = self.end
        runs = self._runs(max(stop, end - count), end)
        return b"".join(view for _, view in runs)

    def produced(self, stream: str) -> int:
        """Say how many bytes of `stream` there have been."""
        last = self._blocks[-1]
        index = _INDEX[stream]
        return last.start[index] + last.path[index][-1]

    def stats(self, stream: str) -> Counts:
        """Count the bytes of `stream`."""
        index = _INDEX[stream]
        produced = self.produced(stream)
        start, stop = map(self._point, self._hole())
        dropped = stop[index] - start[index]
        return Counts(produced, produced - dropped, dropped)

    def _check(self, cursor: Cursor) -> None:
        sequence = cursor.sequence
        start, stop = self._hole()
        if start <= sequence < stop:
            # Where the path went is forgotten; it cannot have left this rectangle.
            low, high = self._point(start), self._point(stop)
            known = all(
                a <= at <= b for a, at, b in zip(low, cursor, high, strict=True)
            )
        else:
            known = sequence <= self.end and cursor == self._point(sequence)
        if not known:
            raise ValueError(f"{cursor} is no place in this log")

    def _pieces(
        self, cursor: Cursor, stop: int, count: int
    ) -> tuple[list[Piece], Cursor]:
        stdout, stderr = cursor
        pieces = []
        runs = groupby(self._runs(cursor.sequence, stop), itemgetter(0))
        for stream, group in islice(runs, count):
            data = b"".join(view for _, view in group)  # the only copy made
            if stream == "stdout":
                pieces.append(Piece(stream, stdout, stdout + stderr, data))
                stdout += len(data)
            else:
                pieces.append(Piece(stream, stderr, stdout + stderr, data))
                stderr += len(data)
        return pieces, Cursor(stdout, stderr)

    def _gather(self, stream: str, offset: int, wanted: int) -> bytes:
        runs = self._runs(self.seek(stream, offset), self.end)
        parts = []
        while wanted > 0:
            name, view = next(runs)
            if name == stream:
                parts.append(view[:wanted])
                wanted -= len(parts[-1])
        return b"".join(parts)

    def _runs(self, start: int, stop: int) -> Iterator[tuple[str, memoryview]]:
        """Yield what lies between two sequences with no hole between them."""
        index = bisect_right(self._blocks, start, key=_base) - 1
        while start < stop:
            block = self._blocks[index]
            until = min(stop, block.base + block.used)
            yield from block.runs(start - block.base, until - block.base)
            start = until
            index += 1


def _holes(cursor: Cursor, resume: Cursor) -> Iterator[Hole]:
    for stream, start, end in zip(STREAMS, cursor, resume, strict=True):
        if start < end:
            yield Hole(stream, start, end)
