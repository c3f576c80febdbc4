"""One child in the blocking face, and one shell; made by its engines and scopes."""

import asyncio
import os
import re
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Literal, Self

import actors.child
import actors.services.service
import actors.shell
from actors import checks
from actors.blocking_streams import EventStream, Reader
from actors.child import Data
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
from actors.portal import Portal, fired

__all__ = ["Child", "Shell"]


class Child:
    """One child process and everything that can be done with it; see `actors.Child`.

    Made by `Engine.spawn`, `Engine.attach` and `Scope.spawn`. A child that an engine
    spawned or attached is owned by this handle: closing or collecting it ends the
    child. One spawned by a scope is owned by the scope, one that was visited
    (`Engine.visit`) by others.
    """

    def __init__(self, portal: Portal, child: actors.child.Child) -> None:
        self._portal = portal
        self._child = child
        self._unread: deque[PollResult] = deque()

    def __repr__(self) -> str:
        return repr(self._child)

    # -- what is known without asking -------------------------------------------

    @property
    def id(self) -> int:
        """The session's number."""
        return self._child.id

    @property
    def pid(self) -> int:
        """The process id of the child."""
        return self._child.pid

    @property
    def argv(self) -> tuple[str, ...]:
        """The command."""
        return self._child.argv

    @property
    def tty(self) -> bool:
        """Whether the child has a terminal."""
        return self._child.tty

    @property
    def scope(self) -> str | None:
        """The name of the scope that owns it, None when this handle does."""
        return self._child.scope

    @property
    def returncode(self) -> int | None:
        """None while it runs, then as in `subprocess`; it turns without a call.

        It stays None when the worker was lost: `ended` tells.
        """
        return self._child.returncode

    @property
    def status(self) -> ExitStatus | None:
        """None while it runs, then how it ended; it turns without a call."""
        return self._child.status

    @property
    def ended(self) -> bool:
        """Whether the child has ended, however."""
        return self._child.ended

    # -- output -----------------------------------------------------------------

    def poll(
        self,
        input: Data | None = None,
        *,
        wait: float | None = None,
        mode: Literal["output", "completion"] | None = None,
        max_bytes: int | None = None,
        yield_on: threading.Event | None = None,
    ) -> PollResult:
        """Write `input` if given, then return what came since the last poll.

        Args:
            input: bytes for stdin, or text as UTF-8; empty is none.
            wait: seconds to wait at most, 10 unless told; 0: what is there now.
            mode: `output` or `completion`.
            max_bytes: bytes of output to return at most; what an interrupted poll had
                got comes whole.
            yield_on: returns early with what there is when this is set.

        Raises:
            InvalidRequest, StdinUnavailable, SessionNotFound, BrokerLost: see
                `actors.Child.poll`.
        """
        checks.optional(checks.instance(threading.Event))("yield_on", yield_on)

        async def call() -> PollResult:
            async with _heard(yield_on) as now:
                return await self._child.poll(
                    input, wait=wait, mode=mode, max_bytes=max_bytes, yield_on=now
                )

        with suppress(IndexError):
            if not input:
                return self._unread.popleft()
        found = self._portal.call(call, self._unread.append)
        return self._with_unread(found)

    def _with_unread(self, found: PollResult) -> PollResult:
        """Return a result with what an interrupted poll could not deliver before it."""
        with suppress(IndexError):
            while True:
                found = _joined(self._unread.pop(), found)
        return found

    def events(
        self,
        after: Literal["oldest", "newest"] | int = "oldest",
        *,
        window: int | None = None,
    ) -> EventStream:
        """Return an iterator of what happens, attached now.

        Args:
            after: `oldest`, `newest`, or the sequence to begin at.
            window: bytes under way at most before this iterator takes them.

        Raises:
            InvalidRequest: an argument is out of range.
        """
        make = lambda: self._child.events(after, window=window)  # noqa: E731 - one call
        return EventStream(self._portal, self._portal.plain(make))

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
        make = lambda: self._child.reader(stream, after=after)  # noqa: E731 - one call
        return Reader(self._portal, self._portal.plain(make))

    def output(self, limit: int | None = None) -> Completed:
        """Close stdin, and return everything that the child writes until its end.

        Raises:
            InvalidRequest, SessionNotFound, OutputLimitExceeded, OutputLost,
            WorkerLost: see `actors.Child.output`.
        """
        return self._portal.call(lambda: self._child.output(limit))

    def communicate(self, input: Data | None = None) -> tuple[bytes, bytes]:
        """Write `input`, close stdin, and return (stdout, stderr).

        Raises:
            OutputLost, WorkerLost: as for `output`.
        """
        return self._portal.call(lambda: self._child.communicate(input))

    # -- waiting for what it says or does -----------------------------------------

    def expect(
        self,
        pattern: str | bytes | re.Pattern[str] | re.Pattern[bytes],
        *,
        timeout: float | None,
        stream: Literal["stdout", "stderr"] = "stdout",
    ) -> Match:
        """Return the first match after the previous one; see `actors.Child.expect`.

        Raises:
            InvalidRequest, TimedOut, OutputEnded, SessionNotFound, WorkerLost: see
                there.
        """

        def undo(match: Match) -> None:
            self._portal.plain(lambda: self._child.unexpect(match, stream))

        return self._portal.call(
            lambda: self._child.expect(pattern, timeout=timeout, stream=stream), undo
        )

    def ready(
        self,
        *,
        port: int | None = None,
        file: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None = None,
        pattern: str | bytes | re.Pattern[str] | re.Pattern[bytes] | None = None,
        timeout: float | None,
        stream: Literal["stdout", "stderr"] = "stdout",
    ) -> None:
        """Return once the child is ready, by one fact; see `actors.Child.ready`.

        Raises:
            InvalidRequest, TimedOut, OutputEnded, SessionNotFound, WorkerLost: see
                there.
        """
        self._portal.call(
            lambda: self._child.ready(
                port=port, file=file, pattern=pattern, timeout=timeout, stream=stream
            )
        )

    def append(self, text: Data) -> None:
        """Add a line to what the child says; see `actors.Child.append`.

        Raises:
            InvalidRequest, SessionNotFound, WorkerLost: see there.
        """
        self._portal.call(lambda: self._child.append(text))

    # -- input ------------------------------------------------------------------

    def write(self, data: Data, *, at: int | None = None) -> WriteResult:
        """Put `data` into the child's stdin; returns when it is in the pipe.

        Args:
            data: bytes, or text as UTF-8; any length, sent in pieces.
            at: offset of `data` in all input so far: a retry writes nothing twice.

        Raises:
            StdinUnavailable, InvalidRequest, SessionNotFound, WorkerLost: see
                `actors.Child.write`.
        """
        return self._portal.call(lambda: self._child.write(data, at=at))

    def close_stdin(self) -> None:
        """Close the child's stdin now; harmless to repeat.

        Raises:
            SessionNotFound: the session was closed.
        """
        self._portal.call(self._child.close_stdin)

    # -- the end ----------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> ExitStatus:
        """Return how the child ended; any number of callers, before or after.

        Raises:
            InvalidRequest: `timeout` is no time.
            TimedOut: it did not end within `timeout` seconds; it is left alone.
            SessionOwned: somebody else took the child over before it ended.
            BrokerLost: the broker is gone, or the engine was closed before the end.
        """
        status = self._child.status
        if status is not None and self._portal.here() and self._portal.stopping:
            return status  # known for ever, also when the loop has gone
        return self._portal.call(lambda: self._child.wait(timeout))

    def kill(self, timeout: float = 5.0) -> KillReceipt:
        """End the child and everything it started; return once that is proven.

        Args:
            timeout: seconds until survivors are listed instead.

        Raises:
            InvalidRequest, SessionNotFound, WorkerLost: see `actors.Child.kill`.
        """
        return self._portal.call(lambda: self._child.kill(timeout))

    def terminate(self, grace: float = 2.0) -> KillReceipt:
        """Ask the child to end (SIGTERM); after `grace` seconds kill what is left.

        Raises:
            InvalidRequest, SessionNotFound, WorkerLost: see `actors.Child.terminate`.
        """
        return self._portal.call(lambda: self._child.terminate(grace))

    def interrupt(self) -> bool:
        """Send SIGINT to the foreground group; False when the child has ended.

        On a terminal it drops what was typed ahead: see `actors.Child.interrupt`.

        Raises:
            SessionNotFound: the session was closed.
        """
        return self._portal.call(self._child.interrupt)

    def signal(self, number: int, *, group: bool = False) -> bool:
        """Send a signal to the child, or to its group; False when it has ended.

        Raises:
            InvalidRequest: there is no such signal.
            SessionNotFound: the session was closed.
        """
        return self._portal.call(lambda: self._child.signal(number, group=group))

    def resize(self, rows: int, cols: int) -> None:
        """Set the terminal's size, in cells; see `actors.Child.resize`.

        Raises:
            InvalidRequest, NotATerminal, SessionNotFound: see there.
        """
        self._portal.call(lambda: self._child.resize(rows, cols))

    def snapshot(self) -> Snapshot:
        """Return how the session is now; nothing is consumed.

        Raises:
            SessionNotFound, WorkerLost: see `actors.Child.snapshot`.
        """
        return self._portal.call(self._child.snapshot)

    def stats(self) -> Stats:
        """Return what the child wrote, and what its tree uses now.

        Raises:
            SessionNotFound, WorkerLost: see `actors.Child.stats`.
        """
        return self._portal.call(self._child.stats)

    def detach(self, ttl: float | None = None) -> None:
        """Give the child up and let it live on; see `actors.Child.detach`.

        Args:
            ttl: seconds that it may live without an owner; None: as its spawn said.

        Raises:
            InvalidRequest, SessionOwned, SessionNotFound, WorkerLost: see there.
        """
        self._portal.call(lambda: self._child.detach(ttl))

    def aclose(self) -> None:
        """End the child if it still runs, and let the engine forget it.

        Raises:
            EngineError: its tree could not be proven gone.
        """
        self._portal.close(self._child.aclose, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.aclose()


class Shell:
    """A persistent shell; made by `Scope.shell`, see `actors.Shell`.

    Commands that several threads ask for at once queue up.
    """

    def __init__(self, portal: Portal, shell: actors.shell.Shell) -> None:
        self._portal = portal
        self._shell = shell

    @property
    def id(self) -> int:
        """The session's number."""
        return self._shell.id

    @property
    def pid(self) -> int:
        """The process id of the shell."""
        return self._shell.pid

    def run(
        self, command: Data, *, timeout: float | None = None, limit: int | None = None
    ) -> Completed:
        """Run a command in the shell, and return its output and exit status.

        Args:
            command: any script: text as UTF-8, or bytes.
            timeout: seconds; then the command is interrupted.
            limit: bytes of output to keep.

        Raises:
            InvalidRequest, TimedOut, OutputLimitExceeded, ShellEnded, BrokerLost,
            SessionNotFound: see `actors.Shell.run`.
        """
        return self._portal.call(
            lambda: self._shell.run(command, timeout=timeout, limit=limit)
        )

    def aclose(self) -> None:
        """End the shell and everything it started; harmless to repeat.

        Raises:
            EngineError: its tree could not be proven gone.
        """
        self._portal.close(self._shell.aclose, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.aclose()


class Service:
    """A running service, as one of its users has it; see `actors.Service`."""

    def __init__(
        self, portal: Portal, service: actors.services.service.Service
    ) -> None:
        self._portal = portal
        self._service = service

    @property
    def name(self) -> str:
        """What it is."""
        return self._service.name

    @property
    def owner(self) -> str:
        """For whom it is."""
        return self._service.owner

    @property
    def pid(self) -> int:
        """The process id of its start command."""
        return self._service.pid

    @property
    def environment(self) -> dict[str, str]:
        """A copy of what its start command got."""
        return self._service.environment

    def run(
        self,
        argv: Any,
        *,
        input: Data | None = None,
        timeout: float | None = None,
        check: bool = False,
        limit: int | None = None,
        **options: Any,
    ) -> Completed:
        """Run a command on behalf of the service; see `actors.Service.run`.

        Raises:
            ServiceFailed, SessionNotFound, CommandFailed, TimedOut,
            OutputLimitExceeded, SpawnFailed, InvalidRequest, CapacityExceeded,
            WorkerLost: see there.
        """
        return self._portal.call(
            lambda: self._service.run(
                argv, input=input, timeout=timeout, check=check, limit=limit, **options
            )
        )

    def aclose(self) -> None:
        """Stop using it; harmless to repeat. See `actors.Service.aclose`.

        Raises:
            ServiceFailed, EngineError, BrokerLost: see there.
        """
        self._portal.close(self._service.aclose, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.aclose()


def _joined(first: PollResult, second: PollResult) -> PollResult:
    """Return two results of one cursor, one after the other, as one."""
    return replace(
        second,
        stdout=first.stdout + second.stdout,
        stderr=first.stderr + second.stderr,
        transcript=first.transcript + second.transcript,
        text=first.text + second.text,
        undecodable=first.undecodable + second.undecodable,
        dropped_bytes=first.dropped_bytes + second.dropped_bytes,
    )


@asynccontextmanager
async def _heard(source: threading.Event | None) -> AsyncIterator[asyncio.Event | None]:
    """Give an event of the loop that is set once `source` is."""
    if source is None:
        yield None
        return
    target = asyncio.Event()
    watch = asyncio.ensure_future(fired(source))
    watch.add_done_callback(lambda _: target.set())
    try:
        yield target
    finally:
        watch.cancel()
