"""`running_process.asyncio`: the same compiled library for event loops."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import running_process.asyncio as library

from bench.system import Argv, System

PATIENCE: Final = 60.0
"""Seconds that a read waits."""


class AsyncRunningProcess(System):
    """Its asynchronous face."""

    async def run(self, argv: Argv) -> None:
        await _made(argv).run()

    async def capture(self, argv: Argv) -> bytes:
        _, stdout, stderr = await _made(argv).run()
        output: bytes = stdout + stderr
        return output

    async def open(self, argv: Argv) -> Any:
        command = ["/bin/sh", "-c", 'stty -echo; echo up; exec "$0"', argv[0]]
        child = library.AsyncPseudoTerminalProcess(command)
        await child.start()
        seen = b""
        while b"up" not in seen:
            seen += await child.read(PATIENCE) or b""
        return child

    async def trip(self, session: Any, line: bytes) -> bytes:
        await session.write(line, False)
        back = b""
        while not back.endswith(b"\n"):
            back += await session.read(PATIENCE) or b""
        return back

    async def close(self, session: Any) -> None:
        await session.kill()

    async def hold(self, argv: Argv) -> Any:
        child = _made(argv)
        await child.start()
        return child

    async def kill(self, sessions: Sequence[Any]) -> None:
        await asyncio.gather(*(child.kill() for child in sessions))
        await asyncio.gather(*(child.wait() for child in sessions))


def _made(argv: Argv) -> Any:
    program, *words = argv
    return library.AsyncRunningProcess(program, words, create_process_group=True)
