"""An engine of this very project."""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

import actors
from actors import mapped
from bench import proc
from bench.commands import MIB
from bench.system import Argv, System

KEPT: Final = actors.OutputPolicy("block", 4 * MIB)
"""What a session keeps of a stream: it holds the child back, it loses nothing."""


class Session(NamedTuple):
    """A child, and the events that tell of it."""

    child: actors.Child
    events: actors.EventStream


class Creche(System):
    """One engine, private or at `endpoint`."""

    def __init__(self, endpoint: str | None = None) -> None:
        self.engine = actors.Engine(endpoint)

    async def start(self) -> None:
        await self.engine.__aenter__()

    async def stop(self) -> None:
        self.stages = (await self.engine.info()).latency
        await self.engine.aclose()

    async def run(self, argv: Argv) -> None:
        await self.engine.run(argv, stdout="null", stderr="null")

    async def capture(self, argv: Argv) -> bytes:
        done = await self.engine.run(argv)
        return done.stdout + done.stderr

    async def open(self, argv: Argv) -> Session:
        child = await self.engine.spawn(argv, stdin="pipe", stderr="null")
        return Session(child, child.events())

    async def trip(self, session: Session, line: bytes) -> bytes:
        await session.child.write(line)
        back = b""
        while not back.endswith(b"\n"):
            event = await anext(session.events)
            assert isinstance(event, actors.Chunk)  # the child says nothing else
            back += event.data
        return back

    async def close(self, session: Session) -> None:
        await session.child.close_stdin()
        await session.child.wait()
        await session.events.aclose()
        await session.child.aclose()

    def stay_remote(self) -> None:
        # No arena is mapped then, so all bytes travel in frames.
        setattr(mapped, "MOST_OPEN", 0)  # noqa: B010 - a constant to everybody else

    async def drain(self, argv: Argv) -> int:
        child = await self.engine.spawn(argv, stderr="null", retention=KEPT)
        seen = 0
        async with child, child.events() as events:
            async for event in events:
                if isinstance(event, actors.Chunk):
                    seen += len(event.data)
        return seen

    async def hold(self, argv: Argv) -> actors.Child:
        return await self.engine.spawn(argv, stdin="pipe")

    async def prepare(self, count: int) -> None:
        await self.engine.aclose()
        # More than half stay idle: none is forked while the others are taken.
        warm = 2 * count + 1
        self.engine = actors.Engine(settings=actors.Settings(warm=warm))
        await self.start()
        while len(proc.engine()) < warm:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)

    async def kill(self, sessions: Sequence[actors.Child]) -> None:
        await self.engine.kill(child.id for child in sessions)

    async def forget(self, sessions: Sequence[actors.Child]) -> None:
        await asyncio.gather(*(child.aclose() for child in sessions))
