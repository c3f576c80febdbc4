"""`pexpect.spawn`: a terminal for each child, blocking calls.

Its fixed waits are off, or they would be all that is measured.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import pexpect

from bench.system import Argv, Threaded

LARGEST_READ: Final = 65536


class Pexpect(Threaded):
    """Children on terminals; stdout and stderr are one stream of it."""

    async def run(self, argv: Argv) -> None:
        child = _start(argv)
        child.wait()
        _release(child)

    async def capture(self, argv: Argv) -> bytes:
        child = _start(argv)
        child.expect(pexpect.EOF)
        output: bytes = child.before
        child.close()
        return output

    async def open(self, argv: Argv) -> pexpect.spawn:
        return _start(argv)

    async def trip(self, session: pexpect.spawn, line: bytes) -> bytes:
        session.send(line)
        back: bytes = session.readline()
        return back

    async def close(self, session: pexpect.spawn) -> None:
        session.close(force=True)

    async def drain(self, argv: Argv) -> int:
        child, seen = _start(argv), 0
        with suppress(OSError):  # EIO: how a terminal tells the end
            while data := os.read(child.child_fd, LARGEST_READ):
                seen += len(data)
        child.close()
        return seen

    async def hold(self, argv: Argv) -> pexpect.spawn:
        return _start(argv)

    async def kill(self, sessions: Sequence[pexpect.spawn]) -> None:
        for child in sessions:
            child.kill(signal.SIGKILL)
        for child in sessions:
            child.wait()

    async def forget(self, sessions: Sequence[pexpect.spawn]) -> None:
        for child in sessions:
            _release(child)


def _start(argv: Argv) -> pexpect.spawn:
    child = pexpect.spawn(argv[0], list(argv[1:]), echo=False, maxread=LARGEST_READ)
    child.delaybeforesend = None
    for closer in (child, child.ptyproc):
        closer.delayafterclose = closer.delayafterterminate = 0.001
    return child


def _release(child: pexpect.spawn) -> None:
    """Close the terminal of a reaped child, without the waits of `close`."""
    child.ptyproc.fileobj.close()
    child.closed = child.ptyproc.closed = True
