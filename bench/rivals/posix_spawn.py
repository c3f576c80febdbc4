"""`os.posix_spawn`, pipes, `waitpid` and nothing else: the floor.

No session has an owner here, no stream a limit, and nothing is cleaned up: it shows
what the kernel takes for the same work, not what one would use.
"""

import contextlib
import fcntl
import os
import signal
from collections.abc import Sequence
from typing import NamedTuple

from bench.commands import MIB
from bench.system import Argv, Threaded


class Session(NamedTuple):
    """A child, and our ends of its pipes."""

    pid: int
    stdin: int
    outputs: tuple[int, ...]


class PosixSpawn(Threaded):
    """System calls."""

    def __init__(self) -> None:
        self._null = -1

    async def start(self) -> None:
        self._null = os.open(os.devnull, os.O_RDWR)

    async def stop(self) -> None:
        os.close(self._null)

    def _spawn(self, argv: Argv, *given: int) -> int:
        """Start a command with these descriptors; with `/dev/null` after the last."""
        fds = [*given, *[self._null] * (3 - len(given))]
        moves = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)]
        return os.posix_spawn(
            argv[0], argv, os.environ, file_actions=moves, setsid=True
        )

    async def run(self, argv: Argv) -> None:
        os.waitpid(self._spawn(argv), 0)

    async def keep_running(self, argv: Argv, *, width: int, times: int) -> None:
        started = 0
        for ended in range(times):
            while started < times and started - ended < width:
                self._spawn(argv)
                started += 1
            os.waitpid(-1, 0)

    async def capture(self, argv: Argv) -> bytes:
        ours, theirs = os.pipe()
        pid = self._spawn(argv, self._null, theirs, theirs)
        os.close(theirs)
        with open(ours, "rb", buffering=0) as output:
            data = output.readall()
        os.waitpid(pid, 0)
        return data

    async def open(self, argv: Argv) -> Session:
        return self._piped(argv, outputs=1)

    def _piped(self, argv: Argv, outputs: int) -> Session:
        read, stdin = os.pipe()
        pipes = [os.pipe() for _ in range(outputs)]
        theirs = [read, *(write for _, write in pipes)]
        pid = self._spawn(argv, *theirs)
        for fd in theirs:
            os.close(fd)
        return Session(pid, stdin, tuple(ours for ours, _ in pipes))

    async def trip(self, session: Session, line: bytes) -> bytes:
        os.write(session.stdin, line)
        back = b""
        while not back.endswith(b"\n"):
            back += os.read(session.outputs[0], 65536)
        return back

    async def close(self, session: Session) -> None:
        os.close(session.stdin)
        os.waitpid(session.pid, 0)
        os.close(session.outputs[0])

    async def drain(self, argv: Argv) -> int:
        ours, theirs = os.pipe()
        # A user who has many large pipes gets no more of them: then a small one does.
        with contextlib.suppress(PermissionError):
            fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, MIB)
        pid = self._spawn(argv, self._null, theirs)
        os.close(theirs)
        # One buffer for all reads: a new one for each is paid in page faults.
        buffers, seen = [memoryview(bytearray(MIB // 4))], 0
        while count := os.readv(ours, buffers):
            seen += count
        os.close(ours)
        os.waitpid(pid, 0)
        return seen

    async def hold(self, argv: Argv) -> Session:
        return self._piped(argv, outputs=2)

    async def kill(self, sessions: Sequence[Session]) -> None:
        for session in sessions:
            os.kill(session.pid, signal.SIGKILL)  # noqa: TID251 - unreaped: still it
        for session in sessions:
            os.waitpid(session.pid, 0)

    async def forget(self, sessions: Sequence[Session]) -> None:
        for session in sessions:
            for fd in (session.stdin, *session.outputs):
                os.close(fd)
