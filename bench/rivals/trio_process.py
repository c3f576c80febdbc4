"""`trio.run_process` and `trio.lowlevel.open_process`."""

from collections.abc import Callable, Coroutine, Sequence
from subprocess import DEVNULL, PIPE
from typing import Any, TypeVar

import trio

from bench.commands import MIB
from bench.system import Argv, Job, System

T = TypeVar("T")


class Trio(System):
    """Trio's subprocesses."""

    def play(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        result: T = trio.run(main)
        return result

    async def together(self, jobs: Sequence[Job]) -> None:
        async with trio.open_nursery() as nursery:
            for job in jobs:
                nursery.start_soon(job)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def run(self, argv: Argv) -> None:
        await trio.run_process(
            argv, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True
        )

    async def capture(self, argv: Argv) -> bytes:
        done = await trio.run_process(
            argv,
            stdin=DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            start_new_session=True,
        )
        output: bytes = done.stdout + done.stderr
        return output

    async def open(self, argv: Argv) -> trio.Process:
        return await _start(argv, PIPE, PIPE, DEVNULL)

    async def trip(self, session: trio.Process, line: bytes) -> bytes:
        assert session.stdin is not None  # both are piped
        assert session.stdout is not None
        await session.stdin.send_all(line)
        back = b""
        while not back.endswith(b"\n"):
            back += await session.stdout.receive_some(65536)
        return back

    async def close(self, session: trio.Process) -> None:
        assert session.stdin is not None  # it is piped
        await session.stdin.aclose()
        await session.wait()
        await self.forget([session])

    async def drain(self, argv: Argv) -> int:
        child = await _start(argv, DEVNULL, PIPE, DEVNULL)
        assert child.stdout is not None  # it is piped
        seen = 0
        while data := await child.stdout.receive_some(MIB):
            seen += len(data)
        await child.wait()
        await self.forget([child])
        return seen

    async def hold(self, argv: Argv) -> trio.Process:
        return await _start(argv, PIPE, PIPE, PIPE)

    async def kill(self, sessions: Sequence[trio.Process]) -> None:
        for child in sessions:
            child.kill()
        await self.together([child.wait for child in sessions])

    async def forget(self, sessions: Sequence[trio.Process]) -> None:
        for child in sessions:
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream is not None:
                    await stream.aclose()


async def _start(argv: Argv, stdin: int, stdout: int, stderr: int) -> trio.Process:
    return await trio.lowlevel.open_process(
        argv, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
    )
