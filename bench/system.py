"""What a workload may ask of a way to run child processes, whichever it is.

A workload is written once, as coroutines. A system that has no event loop gives
coroutines that never wait: a step of one is a plain call, and costs 0.1 us. So the same
loop drives an event loop, threads and the bare system calls.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar

from bench.measure import Histogram

T = TypeVar("T")
Argv = tuple[str, ...]
"""A command."""
Job = Callable[[], Coroutine[Any, Any, object]]


class System:
    """A way to run child processes; this one drives what uses asyncio.

    A session is whatever the system has for one live child. Children lead a session of
    their own and have `/dev/null` where a call says nothing of a stream, if the system
    can do so.
    """

    starting: ClassVar[int] = 32
    """Starts of children that are held, under way at any time."""
    stages: Mapping[str, Histogram] = {}
    """Where the time of its operations went, by stage, once it was stopped."""
    memory_before: int = 0
    """Bytes that this process had before the system was loaded."""
    share: float = 1.0
    """The part of the bytes of a stream that it is given."""

    def play(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `main` in the way that this system wants its calls made."""
        return asyncio.run(main())

    async def together(self, jobs: Sequence[Job]) -> None:
        """Run all jobs at once, to the end of the last."""
        await asyncio.gather(*(job() for job in jobs))

    async def sleep(self, seconds: float) -> None:
        """Do nothing, as idly as the system can."""
        await asyncio.sleep(seconds)

    async def start(self) -> None:
        """Prepare what the figures do not count."""

    async def stop(self) -> None:
        """Put away what `start` made."""

    async def run(self, argv: Argv) -> None:
        """Run a command to its end; nobody wants its output."""
        raise NotImplementedError

    async def keep_running(self, argv: Argv, *, width: int, times: int) -> None:
        """Run a command `times` times, `width` of them under way at any time."""
        await self.keep_going(lambda: self.run(argv), width=width, times=times)

    async def keep_going(self, once: Job, *, width: int, times: int) -> None:
        """Do something `times` times, `width` of them under way at any time."""
        turns = iter(range(times))

        async def go_on() -> None:
            for _ in turns:
                await once()

        await self.together([go_on] * min(width, times))

    async def capture(self, argv: Argv) -> bytes:
        """Run a command to its end; return its output, both streams of it."""
        raise NotImplementedError

    async def open(self, argv: Argv) -> Any:
        """Start a child with stdin and stdout connected; return the session."""
        raise NotImplementedError

    async def trip(self, session: Any, line: bytes) -> bytes:
        """Write a line; return the one that comes back, as the system gives it."""
        raise NotImplementedError

    async def close(self, session: Any) -> None:
        """End an opened session."""
        raise NotImplementedError

    def stay_remote(self) -> None:
        """Have output come as it would to another machine; if that is another way."""

    async def drain(self, argv: Argv) -> int:
        """Run a command to its end; return how many bytes of stdout came."""
        raise NotImplementedError

    async def hold(self, argv: Argv) -> Any:
        """Start a child that stays, three pipes connected; return the session."""
        raise NotImplementedError

    async def prepare(self, count: int) -> None:
        """Have ready what so many children need, if the system can; not counted."""

    async def hold_many(self, argv: Argv, count: int) -> list[Any]:
        """Start `count` children that stay."""
        held = []

        async def one() -> None:
            held.append(await self.hold(argv))

        await self.keep_going(one, width=self.starting, times=count)
        return held

    async def kill(self, sessions: Sequence[Any]) -> None:
        """End held sessions; return when the end of each is known."""
        raise NotImplementedError

    async def forget(self, sessions: Sequence[Any]) -> None:
        """Put away what killed sessions still hold; not counted."""


class Threaded(System):
    """A system whose calls block: at once means in threads."""

    # Starting a process holds the interpreter's lock: threads would start no sooner.
    starting = 1

    def play(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Step through `main`, which never waits."""
        return stepped(main())

    async def together(self, jobs: Sequence[Job]) -> None:
        """Give each job a thread."""
        if len(jobs) == 1:
            await jobs[0]()
            return
        with ThreadPoolExecutor(len(jobs)) as pool:
            for _ in pool.map(lambda job: stepped(job()), jobs):
                pass

    async def sleep(self, seconds: float) -> None:
        """Block."""
        threading.Event().wait(seconds)


def stepped(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, as the plain call that it is.

    Raises:
        AssertionError: it does wait.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("a system without a loop gave a coroutine that waits")
