"""`asyncio.create_subprocess_exec`: the reference."""

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence

from bench.commands import MIB
from bench.system import Argv, System


class Asyncio(System):
    """The event loop's own subprocesses."""

    async def run(self, argv: Argv) -> None:
        child = await _start(argv, DEVNULL, DEVNULL, DEVNULL)
        await child.wait()

    async def capture(self, argv: Argv) -> bytes:
        child = await _start(argv, DEVNULL, PIPE, PIPE)
        stdout, stderr = await child.communicate()
        return stdout + stderr

    async def open(self, argv: Argv) -> Process:
        return await _start(argv, PIPE, PIPE, DEVNULL)

    async def trip(self, session: Process, line: bytes) -> bytes:
        assert session.stdin is not None  # both are piped
        assert session.stdout is not None
        session.stdin.write(line)
        return await session.stdout.readline()

    async def close(self, session: Process) -> None:
        assert session.stdin is not None  # it is piped
        session.stdin.close()
        await session.communicate()

    async def drain(self, argv: Argv) -> int:
        child = await _start(argv, DEVNULL, PIPE, DEVNULL)
        assert child.stdout is not None  # it is piped
        seen = 0
        while data := await child.stdout.read(MIB):
            seen += len(data)
        await child.wait()
        return seen

    async def hold(self, argv: Argv) -> Process:
        return await _start(argv, PIPE, PIPE, PIPE)

    async def kill(self, sessions: Sequence[Process]) -> None:
        for child in sessions:
            child.kill()
        await asyncio.gather(*(child.wait() for child in sessions))

    async def forget(self, sessions: Sequence[Process]) -> None:
        for child in sessions:
            await child.communicate()


async def _start(argv: Argv, stdin: int, stdout: int, stderr: int) -> Process:
    return await asyncio.create_subprocess_exec(
        *argv, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
    )
