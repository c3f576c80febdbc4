"""`running_process.RunningProcess`: a compiled library, blocking calls."""

from collections.abc import Sequence
from subprocess import DEVNULL
from typing import Any, Final

import running_process as library

from bench.system import Argv, Threaded

PATIENCE: Final = 60.0
"""Seconds that a read waits."""


class RunningProcess(Threaded):
    """Its blocking face."""

    async def run(self, argv: Argv) -> None:
        child = _start(argv, capture=False, stdin=DEVNULL)
        child.wait()
        child.close()

    async def capture(self, argv: Argv) -> bytes:
        child = _start(argv, stdin=DEVNULL)
        child.wait()
        output: bytes = child.stdout
        child.close()
        return output

    async def open(self, argv: Argv) -> Any:
        # A pipe takes one write here, so a dialogue needs a terminal.
        command = ["/bin/sh", "-c", 'stty -echo; echo up; exec "$0"', argv[0]]
        child = library.RunningProcess.pseudo_terminal(command, text=False)
        seen = b""
        while b"up" not in seen:
            seen += child.read(timeout=PATIENCE)
        return child

    async def trip(self, session: Any, line: bytes) -> bytes:
        session.write(line)
        back = b""
        while not back.endswith(b"\n"):
            back += session.read(timeout=PATIENCE)
        return back

    async def close(self, session: Any) -> None:
        session.kill()

    async def drain(self, argv: Argv) -> int:
        child = _start(argv, stdin=DEVNULL)
        seen = 0
        while True:
            line = child.get_next_stdout_line(timeout=PATIENCE)
            if isinstance(line, library.EndOfStream):
                break
            seen += len(line)
        child.wait()
        child.close()
        return seen

    async def hold(self, argv: Argv) -> Any:
        return _start(argv, stdin=library.PIPE, stderr=library.PIPE)

    async def kill(self, sessions: Sequence[Any]) -> None:
        for child in sessions:
            child.kill()
        for child in sessions:
            child.wait()

    async def forget(self, sessions: Sequence[Any]) -> None:
        for child in sessions:
            child.close()


def _start(argv: Argv, **options: Any) -> Any:
    return library.RunningProcess(list(argv), text=False, **options)
