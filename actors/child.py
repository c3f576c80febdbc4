"""A started child, as its user holds it."""

import asyncio
import os
import re
import signal
import warnings
import weakref
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final, Literal, Self

from actors import checks
from actors.connection import Connection
from actors.dialogue import Dialogue
from actors.events import (
    Completed,
    ExitStatus,
    KillReceipt,
    Match,
    PollResult,
    Snapshot,
    Stats,
    WriteResult,
)
from actors.polling import Polling
from actors.record import Record
from actors.settings import TtySize
from actors.streams import Capture, EventStream, Reader, completed
from actors.writing import Writing
from broker import errors
from broker.outcomes import TimedOut
from broker.wire import Kind

MAX_POLL: Final = 4 * 1024 * 1024
"""Bytes of output that one poll returns at most."""
LONGEST_APPEND: Final = 64 * 1024
"""Bytes that one `append` adds at most."""

Data = bytes | bytearray | memoryview | str


class Child:
    """One child process and everything that can be done with it.

    Made by `Engine.spawn`, `Engine.attach` and `Scope.spawn`. A child that an engine
    spawned or attached is owned by this handle: closing or collecting it ends the
    child. One spawned by a scope is owned by the scope, one that was visited
    (`Engine.visit`) by others. Once another client took it over, calls raise
    `SessionOwned`.
    """

    def __init__(self, connection: Connection, record: Record, *, owned: bool) -> None:
        self._connection = connection
        self._link = connection.link
        self._record = record
        self._timeouts = connection.timeouts_of(record.scope)
        self._dialogue = Dialogue(connection.link, record, self._timeouts)
        settings, inflows = connection.settings, connection.inflows
        queue = settings.stdin_queue
        self._writing = Writing(connection.link, record, queue, inflows)
        write = self._writing.write_input
        self._polling = Polling(connection.link, record, settings, write)
        self._finalizer: weakref.finalize[..., Any] | None = None
        if owned:  # one of the record's owners, since its answer
            self._finalizer = weakref.finalize(
                self, _collected, connection, record, record.process
            )
            self._finalizer.atexit = False

    def __repr__(self) -> str:
        state = "running" if self.returncode is None else f"returned {self.returncode}"
        return f"<Child {self.id} pid {self.pid} {self.argv!r} {state}>"

    # -- what is known without asking -------------------------------------------

    @property
    def id(self) -> int:
        """The session's number."""
        return self._record.id

    @property
    def pid(self) -> int:
        """The process id of the child."""
        return self._record.pid

    @property
    def argv(self) -> tuple[str, ...]:
        """The command."""
        return self._record.argv

    @property
    def tty(self) -> bool:
        """Whether the child has a terminal."""
        return self._record.tty

    @property
    def scope(self) -> str | None:
        """The name of the scope that owns it, None when this handle does."""
        return self._record.scope

    @property
    def returncode(self) -> int | None:
        """None while it runs, then as in `subprocess`; it turns without a call.

        It stays None when the worker was lost: `ended` tells.
        """
        status = self._record.status
        return None if status is None else status.returncode

    @property
    def status(self) -> ExitStatus | None:
        """None while it runs, then how it ended; it turns without a call."""
        return self._record.status

    @property
    def ended(self) -> bool:
        """Whether the child has ended, however."""
        return self._record.status is not None

    # -- output -----------------------------------------------------------------

    async def poll(
        self,
        input: Data | None = None,
        *,
        wait: float | None = None,
        mode: Literal["output", "completion"] | None = None,
        max_bytes: int | None = None,
        yield_on: asyncio.Event | None = None,
    ) -> PollResult:
        """Write `input` if given, then return what came since the last poll.

        A poll does not wait until its input is in the pipe: what the child has not read
        by then goes in as it reads. One that is cancelled or fails consumes no output;
        input that was sent goes in nevertheless, unless it was that which was refused.

        Args:
            input: bytes for stdin, or text as UTF-8; empty is none.
            wait: seconds to wait at most, 10 unless told; 0: what is there now. Clamped
                to 30 s with input or at first, to 300 s else.
            mode: `output` returns once there was output and 50 ms of quiet,
                `completion` at the end. By default `output` with input and for a
                terminal, else `completion`.
            max_bytes: bytes of output to return at most.
            yield_on: returns early with what there is when this is set.

        Raises:
            InvalidRequest: an argument is out of range, or the terminal would cut a
                line of `input`.
            StdinUnavailable: there is input, and nowhere to put it.
            SessionNotFound: the session was closed.
            BrokerLost: the broker is gone.
        """
        self._check()
        data = as_bytes("input", b"" if input is None else input)
        most = _limit("max_bytes", max_bytes, MAX_POLL, MAX_POLL)
        checks.optional(checks.instance(asyncio.Event))("yield_on", yield_on)
        terms = self._polling.terms(data, wait, mode, most)
        return await self._polling.poll(data, terms, yield_on)

    def events(
        self,
        after: Literal["oldest", "newest"] | int = "oldest",
        *,
        window: int | None = None,
    ) -> EventStream:
        """Return an async iterator of what happens, attached now.

        Args:
            after: `oldest`: from the start, with a `Gap` for what is not kept any more;
                `newest`: from now on; or the sequence (bytes of both streams before) to
                begin at.
            window: bytes under way at most before this iterator takes them.

        Raises:
            InvalidRequest: an argument is out of range.
        """
        self._check()
        settings = self._connection.settings
        size = _limit("window", window, settings.window_bytes, settings.window_bytes)
        _check_place(after)
        return EventStream(
            self,
            self._record,
            self._link,
            after=None if isinstance(after, str) else after,
            newest=after == "newest",
            chunks=settings.window_chunks,
            size=min(size, self._record.block or size),
            piece=settings.chunk,
        )

    def reader(
        self,
        stream: Literal["stdout", "stderr"] = "stdout",
        *,
        after: Literal["oldest", "newest"] | int = "oldest",
    ) -> Reader:
        """Return a cursor of one stream.

        Args:
            stream: which one.
            after: `oldest`, `newest`, or the offset to begin at.

        Raises:
            InvalidRequest: there is no such stream, or `after` is out of range.
        """
        self._check()
        if stream not in self._record.streams:
            raise errors.InvalidRequest("stream", f"{stream!r} is not piped here")
        _check_place(after)
        start = _FIXED_PLACES[after] if isinstance(after, str) else after
        return Reader(self, self._record, self._link, stream, start)

    async def output(self, limit: int | None = None) -> Completed:
        """Close stdin, and return everything that the child writes until its end.

        The child is held back rather than output dropped, by every policy. The input
        of a terminal in raw mode cannot be closed, and stays open.

        Args:
            limit: bytes of both streams to keep; the rest is drained.

        Raises:
            InvalidRequest: `limit` is no number of bytes.
            SessionNotFound: the session was closed.
            OutputLimitExceeded: there was more; it carries what was kept.
            OutputLost: bytes had been dropped before this call.
            WorkerLost: the worker died.
        """
        self._check()
        checks.optional(checks.whole(0))("limit", limit)
        return await self._exchange(b"", limit)

    async def communicate(self, input: Data | None = None) -> tuple[bytes, bytes]:
        """Write `input`, close stdin, and return (stdout, stderr), as in asyncio.

        Raises:
            InvalidRequest: the terminal would cut a line of `input`.
            OutputLost, WorkerLost: as for `output`.
        """
        self._check()
        data = as_bytes("input", b"" if input is None else input)
        done = await self._exchange(data, None)
        return done.stdout, done.stderr

    async def _exchange(self, data: bytes, limit: int | None) -> Completed:
        """Capture, and write meanwhile: the answer to its end is caught, too."""
        feeding = asyncio.ensure_future(self.feed(data))
        try:
            return await self._capture(limit, feeding)
        finally:
            feeding.cancel()

    async def _capture(
        self, limit: int | None, feeding: "asyncio.Future[None]"
    ) -> Completed:
        request, settings = self._link.number(), self._connection.settings
        size = min(settings.window_bytes, self._record.kept)
        chunks = settings.window_chunks
        capture = Capture(self._link, request, chunks, size, limit)
        capture.session = self.id
        feeding.add_done_callback(capture.fed)
        body = {
            "after": None,
            "newest": False,
            "chunks": chunks,
            "bytes": size,
            "capture": True,
        }
        try:
            self._link.post(Kind.OPEN, self.id, request, body)
            await capture.closed
        finally:
            capture.stop()
            if capture.status is None:  # it goes on, and would hold the child back
                self._link.take_back(self.id, request)
        return completed(self._record, capture, limit)

    async def feed(self, data: bytes) -> None:
        """Write all of `data`, then close stdin; the child may end before that.

        Whoever captures meanwhile hears by its capture what became of the session.
        """
        gone = errors.SessionNotFound, errors.WorkerLost
        with suppress(errors.StdinUnavailable, *gone):
            if data:
                self._check()
                await self._writing.write_input(data)
            await self._end_input()

    async def _end_input(self) -> None:
        """Close stdin where that is possible: a terminal in raw mode has no end."""
        with suppress(errors.InvalidRequest):
            await self.close_stdin()

    # -- waiting for what it says or does -----------------------------------------

    async def expect(
        self,
        pattern: str | bytes | re.Pattern[str] | re.Pattern[bytes],
        *,
        timeout: float | None,
        stream: Literal["stdout", "stderr"] = "stdout",
    ) -> Match:
        r"""Return the first match after the previous one, from the start at first.

        No bytes are taken from other readers. It is found as soon as it is a match,
        even if what comes later would have made it longer, and `$` is where the output
        ends at that moment. A match that comes in parts is found up to 16 KiB. Several
        calls at once take turns. One that fails or is cancelled consumes nothing.

        Under a `block` policy the place up to which it has come holds the output back
        from the first call on, as a poll does, until this handle is given up; only
        while the child cannot go on otherwise, output without a match is let go.

        Args:
            pattern: A regular expression of bytes; text becomes its UTF-8, and sets of
                characters beyond ASCII are refused. `.` is one byte, `^` at first the
                end of the last match; `\w` and ignoring case know ASCII alone.
            timeout: seconds; None: until the child ends.
            stream: which one.

        Raises:
            InvalidRequest: an argument is not valid, or the match exceeds 2 MiB.
            TimedOut: it did not come in time; it carries the last output.
            OutputEnded: the child or the stream ended without; it carries the same.
            SessionNotFound: the session was closed.
            WorkerLost: the worker died.
        """
        self._check()
        return await self._dialogue.expect(pattern, timeout, stream)

    def unexpect(self, match: Match, stream: Literal["stdout", "stderr"]) -> None:
        """Go back to before a match that its caller never got; for the other face."""
        self._dialogue.go_back(match, stream)

    async def ready(
        self,
        *,
        port: int | None = None,
        file: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None = None,
        pattern: str | bytes | re.Pattern[str] | re.Pattern[bytes] | None = None,
        timeout: float | None,
        stream: Literal["stdout", "stderr"] = "stdout",
    ) -> None:
        """Return once the child is ready, which is exactly one of three facts.

        Args:
            port: a process of the child's tree listens on this TCP port.
            file: this file exists; a relative path begins where the child started.
            pattern: the output matches, as for `expect`, from the oldest byte on.
            timeout: seconds; None: until the child ends.
            stream: that `pattern` is looked for in.

        Raises:
            InvalidRequest: an argument is not valid.
            TimedOut: it did not get ready in time; it carries the last output.
            OutputEnded: the child ended before; it carries the same.
            SessionNotFound: the session was closed.
            WorkerLost: the worker died.
        """
        self._check()
        await self._dialogue.ready(port, file, pattern, timeout, stream)

    def deadline(self, delay: float | None) -> AbstractAsyncContextManager[None]:
        """Limit a block to `delay` seconds without its scope's pauses; None: not.

        For what else of this package waits for the child to say something.
        """
        return self._timeouts.timeout(delay)

    async def append(self, text: Data) -> None:
        """Add a line to what the child says on stderr, or on stdout without stderr.

        Every reader gets it in its place; it counts as output.

        Args:
            text: bytes, or text as UTF-8, 64 KiB at most; a newline is added to it
                unless it ends with one.

        Raises:
            InvalidRequest: it is too long, no output is piped, or that has ended.
            SessionNotFound: the session was closed.
            WorkerLost: the worker died.
        """
        self._check()
        data = as_bytes("text", text)
        if len(data) > LONGEST_APPEND:
            raise errors.InvalidRequest("text", f"has over {LONGEST_APPEND} bytes")
        await self._link.ask(Kind.APPEND, self.id, {}, data)

    # -- input ------------------------------------------------------------------

    async def write(self, data: Data, *, at: int | None = None) -> WriteResult:
        """Put `data` into the child's stdin; returns when it is in the pipe.

        It waits for the writes before it by this engine, and, while the queue before
        the pipe is full, for those of others.

        A terminal in canonical mode, as it is at first, takes lines of at most 4095
        bytes and would quietly cut longer ones. They are refused, before anything of
        the write goes in (of more than 64 KiB: anything of the 64 KiB they are in).

        Args:
            data: bytes, or text as UTF-8; any length, sent in pieces.
            at: offset of `data` in all input so far: a retry writes nothing twice.

        Returns:
            How many bytes went in (fewer when the child ended meanwhile), and whether
            the child runs.

        Raises:
            StdinUnavailable: stdin is null or closed, or the child has ended.
            InvalidRequest: `at` is beyond what was written, or a line of `data` is too
                long for the terminal.
            SessionNotFound: the session was closed.
            WorkerLost: the worker died; what was not answered may have gone in or not.
        """
        self._check()
        payload = as_bytes("data", data)
        checks.optional(checks.whole(0))("at", at)
        return await self._writing.write(payload, at)

    async def close_stdin(self) -> None:
        """Close the child's stdin now; harmless to repeat.

        It does not wait behind a write: a pending one returns what went in so far.

        On a terminal in canonical mode the child gets what ^D at the start of a line
        gives it: one read finds the end. Nothing can be written any more; to say ^D
        and go on, write that byte (4).

        Raises:
            InvalidRequest: the terminal is in raw mode, where ^D is a byte like others.
            SessionNotFound: the session was closed.
        """
        self._check()
        try:
            await self._link.ask(Kind.CLOSE_STDIN, self.id)
        except errors.WorkerLost:
            return

    # -- the end ----------------------------------------------------------------

    async def wait(self, timeout: float | None = None) -> ExitStatus:
        """Return how the child ended; any number of callers, before or after.

        Raises:
            InvalidRequest: `timeout` is no time.
            TimedOut: it did not end within `timeout` seconds; it is left alone.
            SessionOwned: somebody else took the child over before it ended, or it
                outlives this engine, whose lease ran out.
            BrokerLost: the broker is gone, or the engine was closed before the end.
        """
        self._check(alive=False)
        checks.optional(checks.seconds)("timeout", timeout)
        record = self._record
        if record.status is None and record.failure is None:
            waiter = self._link.loop.create_future()
            record.waiters.add(waiter)
            try:
                with self._link.expecting():
                    async with asyncio.timeout(timeout):
                        await waiter
            except TimeoutError:
                raise TimedOut(list(self.argv), timeout or 0.0) from None
            finally:
                record.waiters.discard(waiter)
        if record.status is not None:
            return record.status
        assert record.failure is not None
        raise record.failure

    async def kill(self, timeout: float = 5.0) -> KillReceipt:
        """End the child and everything it started; return once that is proven.

        Args:
            timeout: seconds until survivors are listed instead.

        Raises:
            InvalidRequest: `timeout` is no time.
            SessionNotFound: the session was closed before.
            WorkerLost: the worker died, and not all it left is proven gone.
        """
        return await self._end(None, timeout)

    async def terminate(self, grace: float = 2.0) -> KillReceipt:
        """Ask the child to end (SIGTERM); after `grace` seconds kill what is left.

        Raises:
            InvalidRequest: `grace` is no time.
            SessionNotFound: the session was closed before.
            WorkerLost: the worker died, and not all it left is proven gone.
        """
        timeout = self._connection.settings.kill_timeout
        return await self._end(grace, timeout)

    async def _end(self, grace: float | None, timeout: float) -> KillReceipt:
        self._check()
        checks.optional(checks.seconds)("grace", grace)
        checks.seconds("timeout", timeout)
        return await self._connection.end(self.id, grace, timeout, release=False)

    async def interrupt(self) -> bool:
        """Send SIGINT to the foreground group; False when the child has ended.

        On a terminal that is what ^C does, in any mode: a shell's job gets it, not the
        shell. What was written and not read yet is dropped, unless the child set NOFLSH
        or input was closed; a pending write returns what went in, and one that waits
        for its turn behind that goes in afterwards. Elsewhere it is the child's own
        group that gets it, and input stays.

        Raises:
            SessionNotFound: the session was closed.
        """
        return await self._signal(signal.SIGINT, group=True, interrupt=True)

    async def signal(self, number: int, *, group: bool = False) -> bool:
        """Send a signal to the child, or to its group.

        Returns:
            False when the child has ended.

        Raises:
            InvalidRequest: there is no such signal.
            SessionNotFound: the session was closed.
        """
        checks.whole(1)("number", number)
        if number not in signal.valid_signals():
            raise errors.InvalidRequest("number", f"{number} is no signal")
        checks.flag("group", group)
        return await self._signal(number, group=group, interrupt=False)

    async def _signal(self, number: int, *, group: bool, interrupt: bool) -> bool:
        self._check()
        body = {"number": int(number), "group": group, "interrupt": interrupt}
        try:
            reply = await self._link.ask(Kind.SIGNAL, self.id, body)
        except errors.WorkerLost:
            return False
        return bool(reply.body["sent"])

    async def resize(self, rows: int, cols: int) -> None:
        """Set the terminal's size, in cells; the child is told by SIGWINCH.

        Nothing happens after the child's end.

        Raises:
            InvalidRequest: `tty.rows` or `tty.cols` is not from 1 to 65535.
            NotATerminal: the child has none.
            SessionNotFound: the session was closed.
        """
        self._check()
        body = {"rows": rows, "cols": cols}
        TtySize(**body)
        try:
            await self._link.ask(Kind.RESIZE, self.id, body)
        except errors.WorkerLost:
            return

    async def snapshot(self) -> Snapshot:
        """Return how the session is now; nothing is consumed.

        Raises:
            SessionNotFound: the session was closed.
            WorkerLost: the worker died.
        """
        self._check()
        return await self._connection.snapshot(self.id)

    async def stats(self) -> Stats:
        """Return what the child wrote, and what its tree uses now.

        Nothing is consumed, and nothing of the tree is disturbed. Once the tree is gone
        its memory and processes are 0.

        Raises:
            SessionNotFound: the session was closed.
            WorkerLost: the worker died.
        """
        self._check()
        reply = await self._link.ask(Kind.STATS, self.id)
        return Stats.from_wire(reply.body)

    async def detach(self, ttl: float | None = None) -> None:
        """Give the child up and let it live on; its stdin stays open.

        Its output is drained into its log. A client of the same key takes it over with
        `Engine.attach`. This handle is of no more use: what waits for the end raises
        `SessionNotFound`.

        Args:
            ttl: seconds that the child may live without an owner, after which it is
                killed; None is the `detach_ttl` of its spawn, or for ever.

        Raises:
            InvalidRequest: the engine's broker is its own, and ends with it.
            SessionOwned: this handle is a visitor's, or another client owns the child.
            SessionNotFound: the session was closed.
            WorkerLost: the worker died, and the child with it.
        """
        self._check()
        checks.optional(checks.seconds)("ttl", ttl)
        if not self._connection.shared:
            raise errors.InvalidRequest(
                "ttl", "a detached child needs a shared broker: this one ends with you"
            )
        await self._connection.detach(self._record, ttl)

    async def aclose(self) -> None:
        """End the child if it still runs, and let the engine forget it.

        One that outlives its owner (`kill_on_drop=False`, `detach_ttl`) only loses it.

        Raises:
            EngineError: its tree could not be proven gone.
        """
        if self._record.over:
            return
        self._check()
        if self._finalizer is not None:
            self._finalizer.detach()
        await self._connection.release(self._record)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _check(self, *, alive: bool = True) -> None:
        self._connection.check(alive=alive)
        if alive:
            self._record.check_owner()


class Guest(Child):
    """A child that stays another's: everything works but what is its owner's to do.

    Made by `Engine.visit`. Closing or collecting it ends the visit alone.
    """

    def __init__(self, connection: Connection, record: Record) -> None:
        super().__init__(connection, record, owned=False)
        self._finalizer = weakref.finalize(
            self, _left, connection, record, record.process
        )
        self._finalizer.atexit = False

    async def detach(self, ttl: float | None = None) -> None:
        """Refuse to give up what is not this handle's.

        Raises:
            SessionOwned: always.
        """
        self._check()
        checks.optional(checks.seconds)("ttl", ttl)
        raise errors.SessionOwned("a visitor does not own the child: attach to it")

    async def aclose(self) -> None:
        """Let go of this handle; the child goes on. Harmless to repeat."""
        self._connection.leave(self._record)


def _collected(connection: Connection, record: Record, process: int) -> None:
    """Drop a session whose last handle was collected; any thread, any moment."""
    record.let_go(None)
    if not record.here(process) or record.owners or record.over:
        return
    if connection.link.lost is not None:
        record.released = True
        return

    def drop() -> None:
        if not (record.over or connection.shares(record)):
            connection.drop(record)

    # First: the warning may be made an error.
    connection.link.call(drop)
    warnings.warn(
        f"child {record.id} {record.argv!r} was never closed: its session is dropped",
        ResourceWarning,
        stacklevel=2,
    )


def _left(connection: Connection, record: Record, process: int) -> None:
    """End a visit whose handle was collected; any thread, any moment."""
    if record.here(process) and not record.released:
        connection.link.call(lambda: connection.leave(record))


def as_bytes(name: str, data: object) -> bytes:
    """Return `data` as bytes; text is UTF-8.

    Raises:
        InvalidRequest: it is neither.
    """
    if isinstance(data, str):
        try:
            return data.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise errors.InvalidRequest(name, "holds half a character") from None
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise errors.InvalidRequest(name, f"is bytes or str, not {type(data).__name__}")


_FIXED_PLACES: Final[dict[str, int | None]] = {"oldest": 0, "newest": None}


def _check_place(after: object) -> None:
    if not isinstance(after, str):
        checks.whole(0)("after", after)
    elif after not in _FIXED_PLACES:
        raise errors.InvalidRequest("after", "must be oldest, newest or a number")


def _limit(name: str, value: int | None, default: int, most: int) -> int:
    checks.optional(checks.size)(name, value)
    return default if value is None else min(value, most)
