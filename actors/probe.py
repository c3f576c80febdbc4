"""Looking for what makes a program ready: its listening ports, its files.

A port counts only if a process of the tree holds the listening socket: the kernel lists
the sockets of a network namespace with their inodes, and a process its descriptors with
the inodes of their sockets. What another user's process holds cannot be seen.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from broker import tree

LISTENING: Final = "0A"
"""The kernel's number of the state LISTEN, in its tables."""


class Look:
    """The eyes of one session.

    Args:
        cwd: Where the child was started; relative paths begin there.
    """

    def __init__(self, cwd: bytes) -> None:
        self._cwd = cwd

    def exists(self, path: bytes) -> bool:
        """Return whether there is such a file, of any type."""
        return os.path.exists(os.path.join(self._cwd, path))

    def listens(self, port: int) -> bool:
        """Return whether a process below this one listens on the TCP port."""
        sockets: dict[str, set[str]] = {}
        for pid in tree.descendants(os.getpid()):
            with suppress(OSError):  # it has ended, or is another user's
                # A process may have a network of its own.
                net = os.readlink(f"/proc/{pid}/ns/net")
                if net not in sockets:
                    sockets[net] = _listening(pid, port)
                if sockets[net] and _holds(pid, sockets[net]):
                    return True
        return False


def _listening(pid: int, port: int) -> set[str]:
    """Return the sockets listening on a port of a process's network, as fd links."""
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        # Without IPv6 there is no tcp6.
        with suppress(FileNotFoundError), open(f"/proc/{pid}/net/{table}") as lines:
            found |= _sockets(lines, port)
    return found


def _sockets(lines: Iterable[str], port: int) -> set[str]:
    end = f":{port:04X}"
    found = set()
    for line in lines:
        words = line.split()
        if words[3] == LISTENING and words[1].endswith(end):
            found.add(f"socket:[{words[9]}]")
    return found


def _holds(pid: int, sockets: set[str]) -> bool:
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(f"/proc/{pid}/fd/{name}") in sockets:
                return True
    return False
