"""Whose turn it is: one after another, in the order in which they came."""

import asyncio


class Turns:
    """A queue of numbers, the first of which may act."""

    def __init__(self) -> None:
        self._queue: dict[int, asyncio.Event] = {}

    def join(self, number: int) -> None:
        """Queue up; harmless to repeat."""
        if number not in self._queue:
            self._queue[number] = asyncio.Event()
            self._call_first()

    async def mine(self, number: int) -> None:
        """Wait for the turn of one that has joined."""
        await self._queue[number].wait()

    def leave(self, number: int) -> None:
        """Let the next one have it, or give up waiting; harmless to repeat."""
        self._queue.pop(number, None)
        self._call_first()

    def _call_first(self) -> None:
        first = next(iter(self._queue.values()), None)
        if first is not None:
            first.set()
