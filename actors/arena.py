"""The arena: the file in memory that holds the log of a session with much output.

The worker fills its blocks straight from the child's pipes. A client of the same
machine maps the file too, and is told where its output lies: the bytes never travel.

The file is a memfd, found as `/proc/PID/fd/N` by those who may look into this process.
Its size is fixed, a block takes memory only once it is used. It is sealed: nobody can
shrink it (which would kill whoever reads), and nobody but the worker can write.

Block 0 holds the *stamps*: for each block the sequence of its first byte, written
before the block is used again. A reader whose bytes were not kept for it, because it is
none any more, sees by the stamp that what it copied may be something else.

A block that is used again is warm: to fill 4 MiB costs 2.4 ms the first time, for the
pages, and 0.13 ms later. So the one given back last is taken first. What was used once
stays until the session's end: a sealed file gives no page back.
"""

import fcntl
import mmap
import os
import struct
from typing import Final

BLOCK: Final = 1024 * 1024
"""Bytes of a block; at most so many are told to a reader in one message.

In all processes 1 GiB costs 0.9 to 1.0 s of CPU time on a busy machine; with 256 or 512
KiB 1.2 to 1.3, with 2 MiB no less."""
AHEAD: Final = 32 * 1024 * 1024
"""Bytes that readers may keep in use beyond what the log keeps; 2 windows by default.

What they want beyond that lies in the worker's own memory, and travels."""
LARGEST: Final = 1024 * 1024 * 1024
"""Bytes of the largest arena: of an even larger log the rest is no part of it."""
STAMP: Final = struct.Struct("<Q")

_ADD_SEALS: Final = 1033
SEALS: Final = 0x17
"""Seal, shrink, grow and future write; the last one is Linux 5.1."""


class Arena:
    """The blocks for one session's log; nothing exists before the first is taken.

    Args:
        size: bytes that the log keeps.

    Attributes:
        address: `pid`, `fd`, `device` and `inode` of the file, None without one.
    """

    def __init__(self, size: int) -> None:
        self.address: dict[str, int] | None = None
        self._size = BLOCK + min(-(-(size + AHEAD) // BLOCK) * BLOCK, LARGEST)
        self._map: mmap.mmap | None = None
        self._refused = False
        self._blocks: list[memoryview] = []
        self._free: list[int] = []

    def take(self, sequence: int) -> tuple[memoryview, int] | None:
        """Give a block for the bytes from `sequence` on, and its offset in the file.

        Returns:
            None when all are in use, or the system gives no such file.
        """
        if self._map is None and not self._open():
            return None
        assert self._map is not None  # it is open
        place = self._free.pop() if self._free else (len(self._blocks) + 1) * BLOCK
        if place >= self._size:
            return None
        if place > len(self._blocks) * BLOCK:
            self._blocks.append(memoryview(self._map)[place : place + BLOCK])
        STAMP.pack_into(self._map, place // BLOCK * STAMP.size, sequence)
        return self._blocks[place // BLOCK - 1], place

    def give_back(self, place: int) -> None:
        """Take back the block at `place`: nobody reads it any more."""
        self._free.append(place)

    def _open(self) -> bool:
        """Make the file, at the first call; it is not tried again."""
        if self._refused:
            return False
        self._refused = True
        try:
            fd = os.memfd_create("creche-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            return False
        try:
            os.ftruncate(fd, self._size)
            self._map = mmap.mmap(fd, self._size)
            fcntl.fcntl(fd, _ADD_SEALS, SEALS)
        except OSError:  # a limit on files, address space or descriptors
            self._map = None
            os.close(fd)
            return False
        found = os.fstat(fd)
        self.address = {
            "pid": os.getpid(),
            "fd": fd,
            "device": found.st_dev,
            "inode": found.st_ino,
        }
        return True

    def close(self) -> None:
        """Let go of the file: the log is read no more. Who has mapped it keeps it."""
        if self._map is None or self.address is None:
            return
        for block in self._blocks:
            block.release()
        self._map.close()
        self._map = None
        os.close(self.address["fd"])
        self.address = None
