"""Lifecycle streams: what happens to the sessions of a key, or of one scope."""

import os
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from actors.events import Lifecycle
from actors.record import check_caller
from broker import errors
from broker.link import Link, error_of
from broker.wire import Kind, Message

if TYPE_CHECKING:
    import asyncio

REPLACED: Final = "the broker was replaced: what happened meanwhile nobody knows"
STEP: Final = 64
"""Events taken between two words to the broker; a quarter of what it sends ahead."""


class LifecycleStream:
    """An async iterator of `Lifecycle`, attached when it is made.

    It ends with its engine. The broker sends 256 events ahead of what was taken, and
    counts the rest: a slow consumer finds their number in the next event's `missed`.

    A shared broker that is lost tells nothing until another one has taken its place,
    and nobody knows what happened meanwhile. A `warning` of session 0 and `BrokerLost`
    says so, at once, and counts as one missed event: what is there now is to be listed.
    """

    def __init__(self, link: Link, scope: str | None) -> None:
        self._link = link
        self._process = os.getpid()
        self._number = link.number()
        self._inbox: deque[Lifecycle] = deque()
        self._waiters: set[asyncio.Future[None]] = set()
        self._taken = 0
        self._before = 0
        self._last = 0
        self._end: errors.EngineError | None = None
        self._closed = False
        feed = weakref.WeakMethod(self._feed)

        def hear(message: Message) -> None:
            if (method := feed()) is not None:
                method(message)

        def again() -> None:
            if (method := resume()) is not None:
                method()

        self._scope = scope
        resume = weakref.WeakMethod(self._resume)
        link.listen(self._number, hear, again)
        self._begin()
        self._finalizer = weakref.finalize(self, _stop, link, self._number)
        self._finalizer.atexit = False

    def _begin(self) -> None:
        """Have a broker tell what happens; of what it told none is taken yet."""
        self._taken = -len(self._inbox)
        self._link.post(Kind.WATCH, 0, self._number, {"scope": self._scope})

    def _resume(self) -> None:
        """Begin at another broker, and tell that nobody knows what was before."""
        self._before = self._last + 2  # one for what was missed, one for this event
        self._add(
            Lifecycle(
                kind="warning",
                id=0,
                scope=self._scope or "",
                sequence=self._before,
                time=self._link.loop.time(),
                status=None,
                error=errors.BrokerLost(REPLACED),
                missed=1,
            )
        )
        self._begin()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Lifecycle:
        check_caller(self._process, self._link.loop)
        while (event := self.take()) is None:
            waiter = self._link.loop.create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        return event

    def take(self) -> Lifecycle | None:
        """Return the next event if it is here; the other face asks without a loop.

        Raises:
            StopAsyncIteration: there are no more.
            EngineError: the broker ended the stream.
        """
        if not self._inbox:
            if self._end is not None:
                raise self._end
            if self._closed:
                raise StopAsyncIteration
            return None
        self._taken += 1
        if self._taken > 0 and self._taken % STEP == 0 and self._link.lost is None:
            body = {"chunks": self._taken, "sequence": 0, "local": True}
            self._link.post(Kind.CREDIT, 0, self._number, body)
        return self._inbox.popleft()

    async def aclose(self) -> None:
        """Stop watching; whoever waits for an event finds the end."""
        self._inbox.clear()
        self.finish()

    def finish(self) -> None:
        """End after what has come; the engine does this when it closes."""
        self._closed = True
        self._link.unlisten(self._number)
        self._finalizer()
        self._wake()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _feed(self, message: Message) -> None:
        if message.kind is Kind.LIFECYCLE:
            event = Lifecycle.from_wire(message.session, message.body)
            self._add(replace(event, sequence=self._before + event.sequence))
        else:
            self._end = error_of(message)
            self._wake()

    def _add(self, event: Lifecycle) -> None:
        self._last = event.sequence
        self._inbox.append(event)
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


def _stop(link: Link, number: int) -> None:
    """End a stream at the broker; runs in any thread, also while the loop is gone."""

    def stop() -> None:
        link.unlisten(number)
        with suppress(errors.EngineError):  # without a broker nobody sends any more
            link.tell(Kind.STOP, 0, {"target": number})

    link.call(stop)
