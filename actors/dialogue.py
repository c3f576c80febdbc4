"""The client's side of waiting for a child: patterns, ports, files.

The cursor from which patterns are looked for is kept here and sent with each request.
It moves when a match arrives, so what is cancelled or too late consumes nothing.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from typing import Any, Final, NoReturn

from actors import checks
from actors.events import ExitStatus, Match
from actors.holding import Holding
from actors.pause import Timeouts
from actors.record import Record
from actors.search import prepared
from broker import errors
from broker.link import Link
from broker.outcomes import TimedOut
from broker.wire import STREAMS, Kind, Message, unpack

LATE: Final = 2.0
"""Seconds beyond its time after which an answer is not waited for any more.

A worker gives up in time, unless it is lost in a pattern that never comes to an end.
"""
LONGEST_PATH: Final = 4096
"""Bytes of a path with the NUL that ends it: the kernel's PATH_MAX."""


class Dialogue:
    """What one handle of a child waits for, in the time of the child's scope."""

    def __init__(self, link: Link, record: Record, timeouts: Timeouts) -> None:
        self._link = link
        self._record = record
        self._timeouts = timeouts
        self._cursor = dict.fromkeys(STREAMS, 0)
        self._previous = dict.fromkeys(STREAMS, 0)
        self._holding = Holding(link, record)
        self._turn = asyncio.Lock()

    async def expect(
        self, pattern: object, timeout: float | None, stream: str
    ) -> Match:
        """See `Child.expect`."""
        raw, flags = prepared(pattern)
        checks.optional(checks.seconds)("timeout", timeout)
        self._check_stream(stream)
        awaited = _pattern(pattern)
        async with self._my_turn(timeout, awaited) as left:
            body = {
                "reader": self._holding.number(),
                "stream": stream,
                "offset": self._cursor[stream],
                "pattern": raw,
                "flags": flags,
                "wait": left,
            }
            reply = await self._ask(Kind.EXPECT, body, timeout, awaited)
            before, matched, groups = unpack(reply.payload or b"")
            offset = reply.body["offset"]
            self._previous[stream] = self._cursor[stream]
            self._cursor[stream] = offset + len(matched)
        return Match(offset, matched, tuple(groups), before, reply.body["gap"])

    def go_back(self, match: Match, stream: str) -> None:
        """Let the next `expect` begin where the one did that found this match.

        Unless another has found the next match since.
        """
        if self._cursor[stream] == match.offset + len(match.matched):
            self._cursor[stream] = self._previous[stream]

    async def ready(
        self,
        port: int | None,
        file: object,
        pattern: object,
        timeout: float | None,
        stream: str,
    ) -> None:
        """See `Child.ready`."""
        if [port, file, pattern].count(None) != 2:
            raise errors.InvalidRequest("ready", "is for one of port, file and pattern")
        checks.optional(checks.whole(1, 65535))("port", port)
        checks.optional(checks.seconds)("timeout", timeout)
        raw, flags = (None, 0) if pattern is None else prepared(pattern)
        if pattern is not None:
            self._check_stream(stream)
        path = None if file is None else _path(file)
        body = {
            "port": port,
            "file": path,
            "pattern": raw,
            "flags": flags,
            "stream": stream,
            "wait": timeout,
        }
        awaited = _pattern(pattern)
        if port is not None:
            awaited = f"port {port}"
        elif path is not None:
            awaited = f"file {os.fsdecode(path)!r}"
        await self._ask(Kind.READY, body, timeout, awaited)

    def _check_stream(self, stream: str) -> None:
        if stream not in self._record.streams:
            raise errors.InvalidRequest("stream", f"{stream!r} is not piped here")

    @asynccontextmanager
    async def _my_turn(
        self, timeout: float | None, awaited: str
    ) -> AsyncIterator[float | None]:
        """Wait for the requests before this one; give what is left of its time."""
        started = self._timeouts.time()
        try:
            async with self._timeouts.timeout(timeout):
                await self._turn.acquire()
        except TimeoutError:
            raise self._timed_out(timeout, awaited) from None
        try:
            self._record.check_owner()
            past = self._timeouts.time() - started
            yield None if timeout is None else max(0.0, timeout - past)
        finally:
            self._turn.release()

    async def _ask(
        self, kind: Kind, body: dict[str, Any], timeout: float | None, awaited: str
    ) -> Message:
        """Return the good answer; whoever does not wait for it takes the request back.

        Raises:
            TimedOut, OutputEnded: See there.
        """
        number, session = self._link.number(), self._record.id
        asked = self._link.ask(kind, session, body, request=number)
        wait = body["wait"]
        patience = None if wait is None else wait + LATE
        try:
            async with self._timeouts.timeout(patience):
                reply = await asked
        except TimeoutError:
            raise self._timed_out(timeout, awaited) from None
        finally:
            if not asked.done() or asked.cancelled():
                self._link.take_back(session, number)
        if reply.body["outcome"] in ("timed-out", "ended"):
            self._fail(reply, timeout, awaited)
        return reply

    def _fail(self, reply: Message, timeout: float | None, awaited: str) -> NoReturn:
        stdout, stderr = unpack(reply.payload or b"")
        if reply.body["outcome"] == "timed-out":
            raise self._timed_out(timeout, awaited, stdout, stderr)
        wire = reply.body["status"]
        status = None if wire is None else ExitStatus.from_wire(wire)
        raise errors.OutputEnded(status, stdout, stderr, awaited)

    def _timed_out(
        self,
        timeout: float | None,
        awaited: str,
        stdout: bytes = b"",
        stderr: bytes = b"",
    ) -> TimedOut:
        seconds = inf if timeout is None else timeout
        argv = list(self._record.argv)
        return TimedOut(argv, seconds, stdout, stderr, awaited)


def _pattern(pattern: object) -> str:
    """Return the words for a pattern, as its caller wrote it."""
    return f"pattern {getattr(pattern, 'pattern', pattern)!r}"


def _path(file: object) -> bytes:
    try:
        path = os.fsencode(file)  # type: ignore[arg-type]  # that is what it finds out
    except TypeError:
        raise errors.InvalidRequest("file", "must be text, bytes or a path") from None
    except UnicodeEncodeError:
        raise errors.InvalidRequest("file", "holds half a character") from None
    checks.plain_bytes("file", path)
    if not 0 < len(path) < LONGEST_PATH:
        raise errors.InvalidRequest("file", f"must be 1 to {LONGEST_PATH - 1} bytes")
    return path
