"""What a shared broker tells whoever started it: that it is ready, ends, and lives.

=====================  ============================================================
to                     what
=====================  ============================================================
stdout                 a line once clients can connect: `creche broker ready ENDPOINT`,
                       or the endpoint alone
a descriptor           the endpoint as a line, once clients can connect; then its end
systemd                READY=1, STOPPING=1, a STATUS= for people, and WATCHDOG=1 twice
                       in the time that it allows, as long as the broker is alive
=====================  ============================================================

systemd, or whoever speaks like it, is found by NOTIFY_SOCKET. No child inherits that: a
child has the environment of its client. Nobody who stopped listening keeps a broker
from serving.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Self

STDOUT: Final = 1
SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"
PERIOD_VARIABLE: Final = "WATCHDOG_USEC"
PROCESS_VARIABLE: Final = "WATCHDOG_PID"


class Manager:
    """A service manager that wants to know.

    Attributes:
        period: seconds between two signs of life; None: it wants none.
    """

    def __init__(self, address: str, period: float | None) -> None:
        # A name with @ is in the abstract namespace, where a NUL stands for that.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.period = period if address else None

    @classmethod
    def found(cls, environ: Mapping[str, str], pid: int) -> Self:
        """Return the one that started a process with this environment, of this pid."""
        address = environ.get(SOCKET_VARIABLE, "")
        allowed = environ.get(PERIOD_VARIABLE, "")
        process = environ.get(PROCESS_VARIABLE, str(pid))
        if not allowed.isdecimal() or process != str(pid) or int(allowed) == 0:
            return cls(address, None)
        return cls(address, int(allowed) / 1_000_000 / 2)

    def tell(self, *facts: str) -> None:
        """Send facts such as READY=1."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notice:
            notice.setblocking(False)
            told = "\n".join(facts).encode(errors="surrogateescape")
            with suppress(OSError):  # it is gone, or does not listen
                notice.sendto(told, self._address)


class Notices:
    """All that is told of one broker.

    Args:
        manager: who is told of its life.
        ready_fd: descriptor that its endpoint is written to; None for none.
        bare: whether stdout gets the endpoint alone.
    """

    def __init__(self, manager: Manager, ready_fd: int | None, *, bare: bool) -> None:
        self._manager = manager
        self._ready_fd = ready_fd
        self._bare = bare
        self._due = 0.0

    def ready(self, endpoint: str) -> None:
        """Tell that clients can connect there."""
        line = endpoint if self._bare else f"creche broker ready {endpoint}"
        _write(STDOUT, line)
        if self._ready_fd is not None:
            _write(self._ready_fd, endpoint)
            self.close()
        self._manager.tell("READY=1", f"STATUS=Serving at {endpoint}")

    def close(self) -> None:
        """Let go of the descriptor: a copy of it would hide its end."""
        fd, self._ready_fd = self._ready_fd, None
        if fd is not None and fd > STDOUT + 1:
            with suppress(OSError):  # it was closed already
                os.close(fd)

    def stopping(self) -> None:
        """Tell that the end has begun."""
        self._manager.tell("STOPPING=1", "STATUS=Ending every child")

    def beat(self, now: float, *, alive: bool) -> int | None:
        """Give a sign of life if one is due and there is life.

        Returns:
            Milliseconds until the next; None when nobody wants one.
        """
        period = self._manager.period
        if period is None:
            return None
        if now >= self._due:
            self._due = now + period
            if alive:
                self._manager.tell("WATCHDOG=1")
        return int((self._due - now) * 1000) + 1


def _write(fd: int, line: str) -> None:
    with suppress(OSError):  # nobody reads it: the broker serves all the same
        os.write(fd, line.encode(errors="surrogateescape") + b"\n")
