"""What the blocking face iterates over or reads from, and each result exactly once.

A result that arrived just as the waiting call was interrupted is kept here, and given
to the next call: so an interruption consumes nothing.
"""

import asyncio
from asyncio import FIRST_COMPLETED
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from typing import Any, Generic, Protocol, Self, TypeVar

import actors.many
import actors.streams
import actors.subscription
from actors.events import Event, Lifecycle, Piece
from actors.many import Item
from actors.portal import Portal
from broker import errors

__all__ = ["EventStream", "Feed", "LifecycleStream", "Reader", "Results"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Source(Protocol[T_co]):
    """The async twin of an iterator."""

    def __anext__(self) -> Coroutine[Any, Any, T_co]:
        """Return the next item."""

    async def aclose(self) -> None:
        """End it; harmless to repeat."""


class _Stream(Generic[T]):
    """An iterator whose async twin lives in the engine's loop."""

    def __init__(self, portal: Portal, inner: Source[T]) -> None:
        self._portal = portal
        self._inner = inner
        self._unread: deque[T] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        with suppress(IndexError):
            return self._unread.popleft()
        try:
            return self._portal.call(self._inner.__anext__, self._unread.append)
        except StopAsyncIteration:
            raise StopIteration from None

    def aclose(self) -> None:
        """End it; harmless to repeat."""
        self._unread.clear()
        self._portal.close(self._inner.aclose, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.aclose()


class EventStream(_Stream[Event]):
    """The events of one session, in order; every stream sees every byte.

    Made by `Child.events`; see `actors.EventStream`. It may be iterated from several
    threads: each event goes to one of them.
    """

    def aclose(self) -> None:
        """Stop reading; the child goes on and its output is drained."""
        super().aclose()


class LifecycleStream(_Stream[Lifecycle]):
    """What happens to the sessions of a key, or of one scope, in order.

    Made by `Engine.events` and `Scope.events`; see `actors.LifecycleStream`. What came
    before the end of the engine is given after it too.
    """

    _inner: actors.subscription.LifecycleStream

    def __next__(self) -> Lifecycle:
        try:
            return super().__next__()
        except errors.BrokerLost:
            if not self._portal.stopping:
                raise
        self._portal.stop()  # wait until nobody else can take an event
        with suppress(StopAsyncIteration):
            if (event := self._inner.take()) is not None:
                return event
        raise StopIteration

    def aclose(self) -> None:
        """Stop watching; whoever waits for an event finds the end."""
        super().aclose()


class Reader:
    """A cursor of one stream: each `read` gives what comes next.

    Made by `Child.reader`; see `actors.Reader`.
    """

    def __init__(self, portal: Portal, reader: actors.streams.Reader) -> None:
        self._portal = portal
        self._reader = reader
        self._unread: deque[Piece] = deque()

    def read(
        self, max_bytes: int = actors.streams.LARGEST_READ, wait: float = 10.0
    ) -> Piece:
        """Return the next bytes, at least one unless the wait or the stream ends.

        Args:
            max_bytes: bytes to return at most; what an interrupted read had got comes
                whole.
            wait: seconds to wait for the first byte; 0: what is there now.

        Raises:
            InvalidRequest: a bound is out of range.
            WorkerLost: the worker died with what it had not yet sent.
        """
        with suppress(IndexError):
            return self._unread.popleft()
        return self._portal.call(
            lambda: self._reader.read(max_bytes, wait), self._unread.append
        )

    def aclose(self) -> None:
        """Give the cursor up."""
        self._portal.close(self._reader.aclose, None)


class Results(_Stream[Item]):
    """The results of many commands, as they end; an iterator, for one thread.

    Made by `Engine.map` and `Scope.map`; see `actors.Results`.
    """

    def __init__(
        self,
        portal: Portal,
        results: actors.many.Results,
        specs: Iterator[Any],
        feed: "Feed",
    ) -> None:
        super().__init__(portal, results)
        self._specs = specs
        self._feed = feed

    def __next__(self) -> Item:
        with suppress(IndexError):
            return self._unread.popleft()
        try:
            while True:
                found = self._portal.call(self._step, self._keep)
                if found is not None:
                    return found
                self._pull()
        except StopAsyncIteration:
            raise StopIteration from None

    def _keep(self, found: "Item | None") -> None:
        if found is not None:
            self._unread.append(found)

    async def _step(self) -> "Item | None":
        """Return the next result, or None when another spec is wanted first."""
        wanted = asyncio.ensure_future(self._feed.wanted.wait())
        result = asyncio.ensure_future(anext(self._inner))
        try:
            await asyncio.wait((wanted, result), return_when=FIRST_COMPLETED)
        except asyncio.CancelledError:
            if result.done():
                self._keep(result.result())
            raise
        finally:
            wanted.cancel()
            result.cancel()  # if it is not there yet: nothing is taken then
        return result.result() if result.done() else None

    def _pull(self) -> None:
        try:
            spec = next(self._specs)
        except StopIteration:
            self._portal.plain(lambda: self._feed.put(StopAsyncIteration()))
        except Exception as error:
            failure = error
            self._portal.plain(lambda: self._feed.put(failure))
        else:
            self._portal.plain(lambda: self._feed.put(spec))

    def aclose(self) -> None:
        """End what runs; harmless to repeat."""
        super().aclose()


class Feed:
    """Specs on their way from the thread that iterates into the loop."""

    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        self._given: asyncio.Future[Any]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        self._given = asyncio.get_running_loop().create_future()
        self.wanted.set()
        return await self._given

    def put(self, spec: Any) -> None:
        """Hand over what was wanted; an exception is raised there."""
        self.wanted.clear()
        if self._given.done():
            return  # cancelled: nobody wants it any more
        if isinstance(spec, Exception):
            self._given.set_exception(spec)
        else:
            self._given.set_result(spec)
