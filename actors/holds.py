"""Holds: how long a process uses a scope's scratch directory, told to the kernel.

A hold is a shared lock on the file beside the directory. It ends with the process that
has it, however that ends; whoever gets the lock for itself alone knows that nobody uses
the directory any more. Workers take one for each child that may know the directory.
"""

import fcntl
import os

__all__ = ["LOCK_FLAGS", "Hold"]

LOCK_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Hold:
    """Keeps a scratch directory from being removed, until `close`.

    There is nothing to keep when the file is gone, or being removed: the client died.

    Args:
        lock: path of the lock file; None holds nothing.
    """

    __slots__ = ("_fd",)

    def __init__(self, lock: bytes | None) -> None:
        self._fd = -1
        if lock is None:
            return
        try:
            self._fd = os.open(lock, LOCK_FLAGS)
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            self.close()

    def close(self) -> None:
        """Let go; harmless to repeat."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
