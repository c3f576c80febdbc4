"""What a child inherits from the client: read at the moment of each spawn."""

import os
import resource
from typing import Final

from actors.spec import Ambient

_RLIMITS: Final = tuple(
    sorted({getattr(resource, n) for n in dir(resource) if n.startswith("RLIMIT_")})
)


class Surroundings:
    """Reads this process's directory, environment, umask, limits and priorities.

    The two files under /proc are kept open: 7 us instead of 17 us a read. umask(2)
    itself can only be read by changing it, which other threads would notice.
    """

    def __init__(self) -> None:
        flags = os.O_RDONLY | os.O_CLOEXEC
        self._status = os.open("/proc/self/status", flags)
        self._score = os.open("/proc/self/oom_score_adj", flags)

    def close(self) -> None:
        """Close the files; harmless to repeat."""
        for fd in (self._status, self._score):
            if fd >= 0:
                os.close(fd)
        self._status = self._score = -1

    def read(self) -> Ambient:
        """Return what a child that is spawned now inherits."""
        return Ambient(
            cwd=_cwd(),
            env=_environment(),
            umask=self._umask(),
            rlimits=tuple((number, *resource.getrlimit(number)) for number in _RLIMITS),
            nice=os.getpriority(os.PRIO_PROCESS, 0),
            oom_score_adj=int(os.pread(self._score, 16, 0)),
        )

    def _umask(self) -> int:
        status = os.pread(self._status, 4096, 0)
        _, _, rest = status.partition(b"\nUmask:")
        return int(rest.split(maxsplit=1)[0], 8)


def _environment() -> dict[bytes, bytes]:
    """Return a copy of the environment.

    `os.environ` keeps it in bytes; asking it for each variable takes 50 us for 40 of
    them, a copy of what it keeps takes one.
    """
    kept = getattr(os.environ, "_data", None)
    return dict(os.environb) if kept is None else dict(kept)


def _cwd() -> bytes:
    try:
        return os.getcwdb()
    except FileNotFoundError:
        # It was removed. The child starts in it all the same where it can: the exec
        # names the path that does not exist.
        return b"/proc/self/cwd"
