"""`subprocess.Popen`, blocking; many at once in threads: the strongest simple way."""

import os
from collections.abc import Sequence
from subprocess import DEVNULL, PIPE, Popen

from bench.commands import MIB
from bench.system import Argv, Threaded

Process = Popen[bytes]


class PopenThreads(Threaded):
    """The standard library's subprocesses, a thread for each that is under way."""

    async def run(self, argv: Argv) -> None:
        _start(argv, DEVNULL, DEVNULL, DEVNULL).wait()

    async def capture(self, argv: Argv) -> bytes:
        stdout, stderr = _start(argv, DEVNULL, PIPE, PIPE).communicate()
        return stdout + stderr

    async def open(self, argv: Argv) -> Process:
        return _start(argv, PIPE, PIPE, DEVNULL)

    async def trip(self, session: Process, line: bytes) -> bytes:
        assert session.stdin is not None  # both are piped
        assert session.stdout is not None
        session.stdin.write(line)
        output = session.stdout.fileno()
        back = b""
        while not back.endswith(b"\n"):
            back += os.read(output, 65536)
        return back

    async def close(self, session: Process) -> None:
        session.communicate()

    async def drain(self, argv: Argv) -> int:
        with _start(argv, DEVNULL, PIPE, DEVNULL) as child:
            assert child.stdout is not None  # it is piped
            seen, output = 0, child.stdout.fileno()
            while data := os.read(output, MIB):
                seen += len(data)
        return seen

    async def hold(self, argv: Argv) -> Process:
        return _start(argv, PIPE, PIPE, PIPE)

    async def kill(self, sessions: Sequence[Process]) -> None:
        for child in sessions:
            child.kill()
        for child in sessions:
            child.wait()

    async def forget(self, sessions: Sequence[Process]) -> None:
        for child in sessions:
            child.communicate()


def _start(argv: Argv, stdin: int, stdout: int, stderr: int) -> Process:
    return Popen(
        argv,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        bufsize=0,
        start_new_session=True,
    )
