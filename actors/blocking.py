"""The blocking face: the same engine for programs without an event loop.

Names, parameters and results are those of `actors.Engine` and what it gives; each call
here blocks the calling thread until it is answered. An engine has one thread with one
event loop; any number of threads may call at once, only not one in which an event loop
runs (`RuntimeContext`).

What interrupts a waiting call, such as Ctrl-C, cancels it: an interrupted `spawn` or
`run` leaves no child, an interrupted `poll`, `wait`, `read` or iteration has consumed
nothing, `kill`, `terminate` and `aclose` go on. `yield_on` and a scope's `cancel` are
`threading.Event`s, looked at every 20 ms while something depends on them.

::

    with actors.blocking.Engine() as engine:
        print(engine.run(["date"]).text)
"""

import asyncio
import concurrent.futures
import threading
from asyncio import FIRST_COMPLETED
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Literal, Self

import actors.child
import actors.engine
import actors.many
import actors.scope
import actors.shell
import actors.streams
from actors import checks
from actors.child import Data
from actors.events import (
    Completed,
    Event,
    ExitStatus,
    Info,
    KillReceipt,
    Piece,
    PollResult,
    Snapshot,
    WriteResult,
)
from actors.many import Item
from actors.portal import Portal, check_context, fired
from actors.settings import Settings
from broker import errors

__all__ = [
    "Child",
    "Engine",
    "EventStream",
    "Reader",
    "Results",
    "Scope",
    "Shell",
    "run",
]

Cancel = threading.Event | concurrent.futures.Future[Any]


class Engine:
    """Runs child processes through worker actors behind a broker; see `actors.Engine`.

    A context manager: leaving it ends every child, and the engine's thread. So does
    collecting it with all that it gave, and the end of the interpreter, with a
    `ResourceWarning`.

    Args:
        endpoint, owner_key, keys, settings: see `actors.Engine`.

    Raises:
        InvalidRequest: an argument is not valid.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        owner_key: bytes | str | None = None,
        keys: object = None,
        settings: Settings | None = None,
    ) -> None:
        self._engine = actors.engine.Engine(
            endpoint, owner_key=owner_key, keys=keys, settings=settings
        )
        self._opened: Portal | None = None

    @property
    def settings(self) -> Settings:
        """The defaults of this engine."""
        return self._engine.settings

    def __enter__(self) -> Self:
        check_context()
        if self._opened is not None:
            raise errors.RuntimeContext("an engine is entered once")
        portal = Portal(self._engine)
        try:
            portal.call(self._engine.__aenter__)
        except BaseException:
            portal.stop()
            raise
        self._opened = portal
        return self

    def __exit__(self, *_: object) -> None:
        self.aclose()

    def aclose(self) -> None:
        """End every child, the private broker and the thread; harmless to repeat.

        Raises:
            RuntimeContext: an event loop runs in this thread.
        """
        portal = self._opened
        if portal is None or not portal.here():
            return
        check_context()
        try:
            if not portal.stopping:
                portal.call(self._engine.aclose)
        finally:
            portal.stop()

    @property
    def _portal(self) -> Portal:
        if self._opened is None:
            raise errors.RuntimeContext("enter the engine first: with Engine()")
        return self._opened

    def spawn(self, argv: Any, **options: Any) -> "Child":
        """Start a child whose owner is the returned handle; see `actors.Engine.spawn`.

        Raises:
            InvalidRequest, SpawnFailed, CapacityExceeded: see there.
        """
        return _spawn(self._portal, self._engine, argv, options)

    def run(
        self,
        argv: Any,
        *,
        input: bytes | str | None = None,
        timeout: float | None = None,
        check: bool = False,
        limit: int | None = None,
        **options: Any,
    ) -> Completed:
        """Run a command to its end and return its output; see `actors.Engine.run`.

        Raises:
            CommandFailed, TimedOut, OutputLimitExceeded, SpawnFailed, InvalidRequest,
            CapacityExceeded, WorkerLost: see there.
        """
        return self._portal.call(
            lambda: self._engine.run(
                argv, input=input, timeout=timeout, check=check, limit=limit, **options
            )
        )

    def map(
        self,
        specs: Iterable[Any],
        *,
        concurrency: int | None = None,
        ordered: bool = False,
    ) -> "Results":
        """Run many commands, a few at a time; iterate over their results.

        A `Completed` each, or the `EngineError` of one that did not come to that, with
        a note that numbers its spec. Leaving the iterator ends what runs.

        Args:
            specs: `Spec`s or argvs, which may be endless: pulled as places get free, in
                the thread that iterates.
            concurrency: how many run at once; as many as there are processors unless
                told. No more results wait to be taken, in order twice as many.
            ordered: give the results in the order of `specs`, not as they end.

        Raises:
            InvalidRequest: an argument is not valid.
        """
        return _map(self._portal, self._engine.map, specs, concurrency, ordered=ordered)

    def scope(
        self, name: str | None = None, *, cancel: Cancel | None = None
    ) -> "Scope":
        """Return a named group of children that end together.

        Args:
            name: unique among this engine's open scopes; made up unless given.
            cancel: a `threading.Event`, or a future of `concurrent.futures`: the scope
                closes when it fires.

        Raises:
            InvalidRequest: a scope of that name is open, or an argument is not valid.
        """
        checks.optional(_check_cancel)("cancel", cancel)
        portal = self._portal

        def make() -> Scope:
            watch = None if cancel is None else asyncio.ensure_future(_fired(cancel))
            try:
                return Scope(portal, self._engine.scope(name, cancel=watch), watch)
            except BaseException:
                if watch is not None:
                    watch.cancel()
                raise

        return portal.plain(make)

    def children(self, scope: str | None = None) -> list[Snapshot]:
        """Return the live sessions of this engine's key, or of one scope, by id."""
        return self._portal.call(lambda: self._engine.children(scope))

    def kill(self, ids: Iterable[int]) -> list[KillReceipt | errors.EngineError]:
        """End many sessions at once; one receipt each, in order.

        Raises:
            InvalidRequest: an id is not a positive number.
        """
        numbers = list(ids)
        return self._portal.call(lambda: self._engine.kill(numbers))

    def info(self) -> Info:
        """Return what this engine and its broker are."""
        return self._portal.call(self._engine.info)


class Scope:
    """A group of children; leaving it, also by an exception, ends them all.

    Made by `Engine.scope`. It holds its children: collecting a handle does nothing.
    """

    def __init__(
        self,
        portal: Portal,
        scope: actors.scope.Scope,
        watch: "asyncio.Task[None] | None",
    ) -> None:
        self.name = scope.name
        self._portal = portal
        self._scope = scope
        self._watch = watch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.aclose()

    def spawn(self, argv: Any, **options: Any) -> "Child":
        """Start a child that this scope owns; see `Engine.spawn`.

        Raises:
            SessionNotFound: the scope is closed, or was while the child started.
        """
        return _spawn(self._portal, self._scope, argv, options)

    def run(
        self,
        argv: Any,
        *,
        input: bytes | str | None = None,
        timeout: float | None = None,
        check: bool = False,
        limit: int | None = None,
        **options: Any,
    ) -> Completed:
        """Run a command to its end within this scope; see `Engine.run`.

        Raises:
            SessionNotFound: the scope is closed, or was before the command ended.
        """
        return self._portal.call(
            lambda: self._scope.run(
                argv, input=input, timeout=timeout, check=check, limit=limit, **options
            )
        )

    def map(
        self,
        specs: Iterable[Any],
        *,
        concurrency: int | None = None,
        ordered: bool = False,
    ) -> "Results":
        """Run many commands in this scope, a few at a time; iterate over their results.

        A `Completed` each, or the `EngineError` of one that did not come to that, with
        a note that numbers its spec. Leaving the iterator ends what runs.

        Args:
            specs: `Spec`s or argvs, which may be endless: pulled as places get free, in
                the thread that iterates.
            concurrency: how many run at once; as many as there are processors unless
                told. No more results wait to be taken, in order twice as many.
            ordered: give the results in the order of `specs`, not as they end.

        Raises:
            InvalidRequest: an argument is not valid.
            SessionNotFound: the scope is closed.
        """
        return _map(self._portal, self._scope.map, specs, concurrency, ordered=ordered)

    def shell(
        self, argv: Any = ("bash", "--noprofile", "--norc"), **options: Any
    ) -> "Shell":
        """Start a persistent shell that this scope owns.

        Args:
            argv: bash, or a shell that understands its language.
            options: see `actors.Scope.shell`.

        Raises:
            InvalidRequest, SpawnFailed, CapacityExceeded, SessionNotFound, ShellEnded,
            TimedOut: see there.
        """
        portal = self._portal

        def undo(shell: actors.shell.Shell) -> None:
            portal.call(shell.aclose)

        call = lambda: self._scope.shell(argv, **options)  # noqa: E731 - one call
        return Shell(portal, portal.call(call, undo))

    def children(self) -> list[Snapshot]:
        """Return this scope's live sessions, by id.

        Raises:
            SessionNotFound: the scope is closed.
        """
        return self._portal.call(self._scope.children)

    def kill(self) -> list[KillReceipt | errors.EngineError]:
        """End every child of this scope now, and keep them readable.

        Raises:
            SessionNotFound: the scope is closed.
        """
        return self._portal.call(self._scope.kill)

    def aclose(self) -> int:
        """End and release every child, in parallel; return how many there were.

        Raises:
            ExceptionGroup: what failed, each with a note that names its session.
            WrongProcess: this is a forked copy, which owns nothing.
        """
        if self._portal.here() and self._portal.stopping:
            return 0  # the engine has ended them
        return self._portal.call(self._close)

    async def _close(self) -> int:
        try:
            return await self._scope.aclose()
        finally:
            if self._watch is not None:
                self._watch.cancel()


class Child:
    """One child process and everything that can be done with it; see `actors.Child`.

    Made by `Engine.spawn` and `Scope.spawn`. A child spawned by an engine is owned by
    this handle: closing or collecting it ends the child. One spawned by a scope is
    owned by the scope.
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
        """None while it runs, then as in `subprocess`; it turns without a call."""
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
    ) -> "EventStream":
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
    ) -> "Reader":
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

    # -- input ------------------------------------------------------------------

    def write(self, data: Data, *, at: int | None = None) -> WriteResult:
        """Put `data` into the child's stdin; returns when it is in the pipe.

        Args:
            data: bytes, or text as UTF-8; any length, sent in pieces.
            at: offset of `data` in all input so far: a retry writes nothing twice.

        Raises:
            StdinUnavailable, InvalidRequest: see `actors.Child.write`.
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

    def snapshot(self) -> Snapshot:
        """Return how the session is now; nothing is consumed.

        Raises:
            SessionNotFound: the session was closed.
        """
        return self._portal.call(self._child.snapshot)

    def aclose(self) -> None:
        """End the child if it still runs, and let the engine forget it.

        Raises:
            EngineError: its tree could not be proven gone.
        """
        if self._portal.here() and self._portal.stopping:
            return  # the engine has ended it
        self._portal.call(self._child.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.aclose()


class EventStream:
    """The events of one session, in order; every stream sees every byte.

    Made by `Child.events`. It may be iterated from several threads: each event goes to
    one of them.
    """

    def __init__(self, portal: Portal, events: actors.streams.EventStream) -> None:
        self._portal = portal
        self._events = events
        self._unread: deque[Event] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        with suppress(IndexError):
            return self._unread.popleft()
        try:
            return self._portal.call(self._events.__anext__, self._unread.append)
        except StopAsyncIteration:
            raise StopIteration from None

    def aclose(self) -> None:
        """Stop reading; the child goes on and its output is drained."""
        self._unread.clear()
        _close(self._portal, self._events.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.aclose()


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
        _close(self._portal, self._reader.aclose)


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
        _close(self._portal, self._shell.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.aclose()


class Results:
    """The results of many commands, as they end; an iterator, for one thread.

    Made by `Engine.map` and `Scope.map`; see `actors.Results`.
    """

    def __init__(
        self,
        portal: Portal,
        results: actors.many.Results,
        specs: Iterator[Any],
        feed: "_Feed",
    ) -> None:
        self._portal = portal
        self._results = results
        self._specs = specs
        self._feed = feed
        self._unread: deque[Item] = deque()

    def __iter__(self) -> Self:
        return self

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
        result = asyncio.ensure_future(anext(self._results))
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
        self._unread.clear()
        _close(self._portal, self._results.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.aclose()


class _Feed:
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


def run(
    argv: Any,
    *,
    input: bytes | str | None = None,
    timeout: float | None = None,
    check: bool = False,
    limit: int | None = None,
    **options: Any,
) -> Completed:
    """Run one command to its end, in one blocking call, and return its output.

    Each call starts an engine and ends it, which takes as long as dozens of commands:
    for more than a few, keep an `actors.blocking.Engine`. An interruption (Ctrl-C) ends
    the command.

    Args:
        argv: the command: a sequence, or a command line with `shell=True`.
        input: bytes (or text) for its stdin, which is closed after them.
        timeout: seconds; then the tree is terminated.
        check: raise for a failure status.
        limit: bytes of output to keep.
        options: see `actors.Spec`.

    Raises:
        RuntimeContext: an event loop runs in this thread.
        CommandFailed, TimedOut, OutputLimitExceeded, SpawnFailed, InvalidRequest,
        CapacityExceeded, WorkerLost: see `actors.Engine.run`.
    """
    with Engine() as engine:
        return engine.run(
            argv, input=input, timeout=timeout, check=check, limit=limit, **options
        )


def _spawn(
    portal: Portal,
    owner: "actors.engine.Engine | actors.scope.Scope",
    argv: Any,
    options: dict[str, Any],
) -> Child:
    def undo(child: actors.child.Child) -> None:
        portal.call(child.aclose)

    return Child(portal, portal.call(lambda: owner.spawn(argv, **options), undo))


def _close(portal: Portal, aclose: Callable[[], Any]) -> None:
    if not portal.stopping:
        portal.call(aclose)


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


def _check_cancel(name: str, value: object) -> None:
    if not isinstance(value, threading.Event | concurrent.futures.Future):
        raise errors.InvalidRequest(name, "is a threading.Event or a future")


def _map(
    portal: Portal,
    start: Callable[..., actors.many.Results],
    specs: Iterable[Any],
    concurrency: int | None,
    *,
    ordered: bool,
) -> Results:
    if isinstance(specs, str | bytes) or not isinstance(specs, Iterable):
        raise errors.InvalidRequest("specs", "is an iterable of specs or commands")

    def make() -> Results:
        feed = _Feed()
        results = start(feed, concurrency=concurrency, ordered=ordered)
        return Results(portal, results, iter(specs), feed)

    return portal.plain(make)


async def _fired(cancel: Cancel) -> None:
    if isinstance(cancel, threading.Event):
        await fired(cancel)
    else:
        # `wait` leaves it alone when it is cancelled itself.
        await asyncio.wait([asyncio.wrap_future(cancel)])


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
