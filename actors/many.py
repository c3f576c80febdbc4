"""Many commands, a few at a time: `Engine.map` and `Scope.map`.

At most `concurrency` commands run; each place takes the next spec, runs it, and keeps
the result until it is taken. So specs are pulled as places get free, and with a slow
consumer no more than `concurrency` results wait (in order: twice as many, since the
first may be the slowest).

::

    a place:  free ──pulled a spec──▶ running ──ended──▶ result waits ──taken──▶ free
                └──no more specs──▶ gone

Failures of one command are its result. What ends the whole: the engine or the scope is
gone, or `specs` itself raised; that is raised once what was started has been yielded.
Leaving the iterator (`aclose`, a `break`, collecting it) ends what runs.
"""

import asyncio
import os
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final, Self

from actors import checks
from actors.connection import Connection
from actors.events import Completed
from actors.oneshot import run_spec
from actors.record import check_caller
from actors.spec import Spec
from broker import errors

IN_ORDER: Final = 2
"""Results that may wait for an earlier one, as a multiple of the concurrency."""

Item = Completed | errors.EngineError


class Results:
    """The results of many commands, as they end; an async iterator.

    Each item is a `Completed`, or the `EngineError` of a command that did not come to
    one, with a note that names its spec.

    Raises:
        BrokerLost, SessionNotFound: the engine or the scope was closed meanwhile.
    """

    def __init__(
        self,
        connection: Connection,
        scope: str | None,
        specs: Iterable[Any] | AsyncIterable[Any],
        *,
        concurrency: int | None,
        ordered: bool,
        check_open: Callable[[], None],
    ) -> None:
        checks.optional(checks.whole(1))("concurrency", concurrency)
        checks.flag("ordered", ordered)

        async def run_one(spec: Spec) -> Completed:
            return await run_spec(connection, scope, spec, check_open=check_open)

        self._process, self._loop = os.getpid(), connection.link.loop
        self._places = _Places(
            _source(specs),
            run_one,
            check_open,
            concurrency=concurrency or os.cpu_count() or 1,
            ordered=ordered,
        )
        self._finalizer = weakref.finalize(
            self, _abandoned, connection, self._places, self._process
        )
        self._finalizer.atexit = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        check_caller(self._process, self._loop)
        try:
            return await self._places.take()
        except StopAsyncIteration:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """End what runs; harmless to repeat."""
        self._finalizer.detach()
        await self._places.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Places:
    """The commands that run, and their results until they are taken."""

    def __init__(
        self,
        specs: AsyncIterator[Any],
        run_one: Callable[[Spec], Any],
        check_open: Callable[[], None],
        *,
        concurrency: int,
        ordered: bool,
    ) -> None:
        self._specs = specs
        self._run_one = run_one
        self._check_open = check_open
        self._ordered = ordered
        self._free = asyncio.Semaphore(concurrency)
        waiting = IN_ORDER * concurrency if ordered else concurrency
        self._room = asyncio.Semaphore(waiting)
        self._results: dict[int, Item] = {}
        self._taken = 0
        self._failure: BaseException | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._pulling = asyncio.ensure_future(self._pull())
        self._pulling.add_done_callback(lambda _: self._changed.set())

    async def take(self) -> Item:
        """Return the next result.

        Raises:
            StopAsyncIteration: there are no more.
        """
        while (number := self._next()) is None:
            if not self._running and (self._pulling.done() or self._failure):
                failure, self._failure = self._failure, None
                raise failure or StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        self._taken += 1
        self._room.release()
        return self._results.pop(number)

    def _next(self) -> int | None:
        """Return the number of a result that can be taken now."""
        if not self._ordered:
            return next(iter(self._results), None)
        if self._failure and not self._running:
            return min(self._results, default=None)  # those between will not come
        return self._taken if self._taken in self._results else None

    async def _pull(self) -> None:
        number = 0
        while self._failure is None:
            await self._room.acquire()
            await self._free.acquire()
            try:
                given = await anext(self._specs)
            except StopAsyncIteration:
                return
            except (Exception, asyncio.CancelledError) as error:
                if self._pulling.cancelling():
                    raise  # it was this that was cancelled, not what it waited for
                self._failure = error
                return
            task = asyncio.ensure_future(self._run(number, given))
            self._running.add(task)
            task.add_done_callback(self._ended)
            number += 1

    async def _run(self, number: int, given: Any) -> None:
        try:
            self._check_open()
            spec = given if isinstance(given, Spec) else Spec(given)
            self._results[number] = await self._run_one(spec)
        except errors.EngineError as error:
            try:
                self._check_open()
            except errors.EngineError as gone:
                self._failure = gone
                return
            error.add_note(f"spec {number} (from 0)")
            self._results[number] = error

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        self._free.release()
        if not task.cancelled() and (error := task.exception()):
            self._failure = error
        self._changed.set()

    def cancel(self) -> None:
        """End what runs, without waiting."""
        self._pulling.cancel()
        for task in self._running:
            task.cancel()

    async def close(self) -> None:
        """End what runs, and the source of specs if it can be told to end."""
        self.cancel()
        await asyncio.gather(self._pulling, *self._running, return_exceptions=True)
        self._results.clear()
        aclose = getattr(self._specs, "aclose", None)
        if aclose is not None:
            await aclose()


def _abandoned(connection: Connection, places: _Places, process: int) -> None:
    if os.getpid() == process:
        connection.link.call(places.cancel)


def _source(specs: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(specs, AsyncIterable):
        return aiter(specs)
    if isinstance(specs, str | bytes) or not isinstance(specs, Iterable):
        raise errors.InvalidRequest("specs", "is an iterable of specs or commands")
    return _one_by_one(iter(specs))


async def _one_by_one(specs: Iterator[Any]) -> AsyncIterator[Any]:
    for spec in specs:
        yield spec
