"""Writing to a descriptor at its reader's pace, in turns with all else in the loop."""

import os
from typing import Final

from actors.console import stdio

SHARE: Final = 256 * 1024
"""Bytes that are written before others get their turn."""


async def write(fd: int, data: bytes) -> None:
    """Write all of `data`, at the pace of whoever reads it.

    Raises:
        BrokenPipeError: nobody does any more.
        OSError: it is refused, by a full disk for one; it names the stream.
    """
    rest, file = memoryview(data), stdio.unwaited(fd)
    left = SHARE
    while rest:
        if left <= 0 or not stdio.has_room(fd):
            await stdio.writable(fd)
            left = SHARE
        try:
            count = os.write(file, rest[: stdio.ATOMIC])
        except BlockingIOError:
            left = 0  # a terminal, or somebody made the shared file non-blocking
            continue
        except BrokenPipeError:
            raise
        except OSError as error:
            raise stdio.refused(fd, error) from error
        rest = rest[count:]
        left -= count
