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

Here are the engine and its scopes; what they give is in `actors.blocking_child` and
`actors.blocking_streams`, the thread and the way into it in `actors.portal`.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import actors.child
import actors.engine
import actors.many
import actors.scope
import actors.services.service
import actors.shell
from actors import checks
from actors.blocking_child import Child, Service, Shell
from actors.blocking_streams import (
    EventStream,
    Feed,
    LifecycleStream,
    Reader,
    Results,
)
from actors.events import Completed, Info, KillReceipt, Snapshot
from actors.portal import Known, Portal, check_context, fired, settled
from actors.recovery import Recovery
from actors.services.command import merged
from actors.services.spec import ServiceSpec
from actors.settings import Settings
from broker import errors

__all__ = [
    "Child",
    "Engine",
    "EventStream",
    "LifecycleStream",
    "Reader",
    "Results",
    "Scope",
    "Service",
    "Shell",
    "run",
]

T = TypeVar("T")

Cancel = threading.Event | concurrent.futures.Future[Any]


class Engine:
    """Runs child processes through worker actors behind a broker; see `actors.Engine`.

    A context manager: leaving it ends every child, and the engine's thread. So does
    collecting it with all that it gave, and the end of the interpreter, with a
    `ResourceWarning`.

    Args:
        endpoint, owner_key, operator, keys, settings: see `actors.Engine`.

    Raises:
        InvalidRequest: an argument is not valid.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        owner_key: bytes | str | None = None,
        operator: bool = False,
        keys: object = None,
        settings: Settings | None = None,
    ) -> None:
        self._engine = actors.engine.Engine(
            endpoint,
            owner_key=owner_key,
            operator=operator,
            keys=keys,
            settings=settings,
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
            portal.close(self._engine.aclose, None)
        finally:
            portal.stop()

    @property
    def _portal(self) -> Portal:
        if self._opened is None:
            raise errors.RuntimeContext("enter the engine first: with Engine()")
        return self._opened

    def spawn(self, argv: Any, **options: Any) -> Child:
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
        into: Callable[[str, bytes], object] | None = None,
        **options: Any,
    ) -> Completed:
        """Run a command to its end and return its output; see `actors.Engine.run`.

        Raises:
            CommandFailed, TimedOut, OutputLimitExceeded, SpawnFailed, InvalidRequest,
            CapacityExceeded, WorkerLost: see there.
        """
        return self._portal.call(
            lambda: self._engine.run(
                argv,
                input=input,
                timeout=timeout,
                check=check,
                limit=limit,
                into=into,
                **options,
            )
        )

    def map(
        self,
        specs: Iterable[Any],
        *,
        concurrency: int | None = None,
        ordered: bool = False,
    ) -> Results:
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
        self,
        name: str | None = None,
        *,
        cancel: Cancel | None = None,
        capacity: int | None = None,
        queue: float | None = None,
    ) -> "Scope":
        """Return a named group of children that end together.

        Args:
            name: unique among this engine's open scopes; made up unless given.
            cancel: a `threading.Event`, or a future of `concurrent.futures`: the scope
                closes when it fires.
            capacity: children that it may have at once; None is no limit.
            queue: seconds that a spawn over a limit waits for room, unless it says so
                itself; None does not wait.

        Raises:
            InvalidRequest: a scope of that name is open, or an argument is not valid.
        """
        checks.optional(_check_cancel)("cancel", cancel)
        portal = self._portal

        def make() -> Scope:
            watch = None
            if cancel is not None:
                watch = asyncio.ensure_future(_fired(cancel, portal.known))
            try:
                scope = self._engine.scope(
                    name, cancel=watch, capacity=capacity, queue=queue
                )
                return Scope(portal, scope, watch)
            except BaseException:
                if watch is not None:
                    watch.cancel()
                raise

        return portal.plain(make, Scope.aclose)

    @property
    def recovered(self) -> Recovery:
        """What was found of dead engines and clients, and done, as this one started."""
        return self._engine.recovered

    def service(self, spec: ServiceSpec, *, cancel: Cancel | None = None) -> Service:
        """Return a service that is ready; see `actors.Engine.service`.

        Args:
            spec: what it is, and how it is started and stopped.
            cancel: a `threading.Event`, or a future of `concurrent.futures`, that gives
                the start up when it fires.

        Raises:
            InvalidRequest, ServiceFailed, SpawnFailed, CapacityExceeded: see there.
        """
        portal = self._portal

        async def start(
            watch: "asyncio.Task[None] | None",
        ) -> actors.services.service.Service:
            return await self._engine.service(spec, cancel=watch)

        def undo(service: actors.services.service.Service) -> None:
            portal.close(service.aclose, None)

        return Service(
            portal, portal.call(lambda: _watched(cancel, portal.known, start), undo)
        )

    def services(
        self, specs: Iterable[ServiceSpec], *, cancel: Cancel | None = None
    ) -> list[Service]:
        """Return several services, in this order; see `actors.Engine.services`.

        Raises:
            InvalidRequest, ServiceFailed, SpawnFailed, CapacityExceeded: see there.
        """
        portal = self._portal
        wanted = actors.services.service.specs_of(specs)  # pulled in this thread

        async def start(
            watch: "asyncio.Task[None] | None",
        ) -> list[actors.services.service.Service]:
            return await self._engine.services(wanted, cancel=watch)

        def undo(services: list[actors.services.service.Service]) -> None:
            closing = actors.services.service.close_all
            none: list[actors.EngineError] = []
            if failed := portal.close(lambda: closing(services), none):
                raise merged(failed)

        found = portal.call(lambda: _watched(cancel, portal.known, start), undo)
        return [Service(portal, service) for service in found]

    def attach(self, session_id: int, *, steal: bool = False) -> Child:
        """Take over a child that has no owner; see `actors.Engine.attach`.

        Args:
            session_id: the child's number, as in `Child.id` and `Snapshot.id`.
            steal: take it from a living owner too.

        Raises:
            InvalidRequest, SessionNotFound, SessionOwned, WorkerLost: see there.
        """
        portal = self._portal

        def undo(child: actors.child.Child) -> None:
            portal.close(lambda: _give_back(child), None)

        call = lambda: self._engine.attach(session_id, steal=steal)  # noqa: E731
        return Child(portal, portal.call(call, undo))

    def visit(self, session_id: int) -> Child:
        """Return a handle of a child that stays another's; see `actors.Engine.visit`.

        Raises:
            InvalidRequest, SessionNotFound, WorkerLost: see there.
        """
        portal = self._portal

        def undo(child: actors.child.Child) -> None:
            portal.close(child.aclose, None)

        return Child(portal, portal.call(lambda: self._engine.visit(session_id), undo))

    def children(
        self, scope: str | None = None, *, ended: bool = False
    ) -> list[Snapshot]:
        """Return the live sessions of this engine's key, or of one scope, by id.

        Args:
            scope: the name of the only scope to list; None: all, and those without.
            ended: list those as well that have ended and can still be read.

        Raises:
            InvalidRequest: an argument is not valid.
        """
        return self._portal.call(lambda: self._engine.children(scope, ended=ended))

    def events(self, scope: str | None = None) -> LifecycleStream:
        """Return an iterator of what happens to the sessions of this key.

        Args:
            scope: the name of the only scope to hear of; None: all, and those without.

        Raises:
            InvalidRequest: `scope` is no text.
        """
        make = lambda: self._engine.events(scope)  # noqa: E731 - one call
        return LifecycleStream(self._portal, self._portal.plain(make))

    def kill(self, ids: Iterable[int]) -> list[KillReceipt | errors.EngineError]:
        """End many sessions at once; one receipt each, in order.

        Raises:
            InvalidRequest: an id is not a positive number, or `ids` no iterable.
        """
        numbers = actors.engine.session_ids(ids)
        return self._portal.call(lambda: self._engine.kill(numbers))

    def info(self) -> Info:
        """Return what this engine and its broker are."""
        return self._portal.call(self._engine.info)


class Scope:
    """A group of children; leaving it, also by an exception, ends them all.

    Made by `Engine.scope`. It holds its children: collecting a handle does nothing.

    Attributes:
        name: unique among its engine's open scopes.
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

    def spawn(self, argv: Any, **options: Any) -> Child:
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
        into: Callable[[str, bytes], object] | None = None,
        **options: Any,
    ) -> Completed:
        """Run a command to its end within this scope; see `Engine.run`.

        Raises:
            SessionNotFound: the scope is closed, or was before the command ended.
        """
        return self._portal.call(
            lambda: self._scope.run(
                argv,
                input=input,
                timeout=timeout,
                check=check,
                limit=limit,
                into=into,
                **options,
            )
        )

    def map(
        self,
        specs: Iterable[Any],
        *,
        concurrency: int | None = None,
        ordered: bool = False,
    ) -> Results:
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
    ) -> Shell:
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
            portal.close(shell.aclose, None)

        call = lambda: self._scope.shell(argv, **options)  # noqa: E731 - one call
        return Shell(portal, portal.call(call, undo))

    def children(self) -> list[Snapshot]:
        """Return this scope's live sessions, by id.

        Raises:
            SessionNotFound: the scope is closed.
        """
        return self._portal.call(self._scope.children)

    def events(self) -> LifecycleStream:
        """Return an iterator of what happens to this scope's children.

        It outlives the scope, so that it tells of all their ends.

        Raises:
            SessionNotFound: the scope is closed.
        """
        return LifecycleStream(self._portal, self._portal.plain(self._scope.events))

    def pause(self) -> None:
        """Stop the clock of this scope; see `actors.Scope.pause`.

        Raises:
            SessionNotFound: the scope is closed.
        """
        self._portal.plain(self._scope.pause, lambda _: self.resume())

    def resume(self) -> None:
        """Take one `pause` back; with the last one the clock goes on.

        Raises:
            InvalidRequest: it was not paused.
        """
        self._portal.plain(self._scope.resume)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock of this scope for a `with` block.

        Raises:
            SessionNotFound: the scope is closed.
        """
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def scratch(self) -> Path:
        """Return a private directory of this scope; see `actors.Scope.scratch`.

        Raises:
            InvalidRequest, SessionNotFound: see there.
        """
        return self._portal.call(self._scope.scratch)

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
        return self._portal.close(self._close, 0)

    async def _close(self) -> int:
        try:
            return await self._scope.aclose()
        finally:
            if self._watch is not None:
                self._watch.cancel()


def run(
    argv: Any,
    *,
    input: bytes | str | None = None,
    timeout: float | None = None,
    check: bool = False,
    limit: int | None = None,
    into: Callable[[str, bytes], object] | None = None,
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
        into: called with each piece of output, see `actors.Engine.run`.
        options: see `actors.Spec`.

    Raises:
        RuntimeContext: an event loop runs in this thread.
        CommandFailed, TimedOut, OutputLimitExceeded, SpawnFailed, InvalidRequest,
        CapacityExceeded, WorkerLost: see `actors.Engine.run`.
    """
    with Engine() as engine:
        return engine.run(
            argv,
            input=input,
            timeout=timeout,
            check=check,
            limit=limit,
            into=into,
            **options,
        )


def _spawn(
    portal: Portal,
    owner: "actors.engine.Engine | actors.scope.Scope",
    argv: Any,
    options: dict[str, Any],
) -> Child:
    def undo(child: actors.child.Child) -> None:
        portal.close(child.aclose, None)

    return Child(portal, portal.call(lambda: owner.spawn(argv, **options), undo))


async def _give_back(child: actors.child.Child) -> None:
    """Undo an interrupted `attach`: it leaves the child as a cancelled one does."""
    child._connection.give_back(child._record)  # noqa: SLF001 - no handle yet


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
        feed = Feed()
        results = start(feed, concurrency=concurrency, ordered=ordered)
        return Results(portal, results, iter(specs), feed)

    return portal.plain(make)


async def _watched(
    cancel: Cancel | None,
    known: Known,
    start: Callable[["asyncio.Task[None] | None"], Coroutine[Any, Any, T]],
) -> T:
    """Await what `start` gives, which gets a task that ends when `cancel` fires."""
    checks.optional(_check_cancel)("cancel", cancel)
    if cancel is None:
        return await start(None)
    watch = asyncio.ensure_future(_fired(cancel, known))
    try:
        return await start(watch)
    finally:
        watch.cancel()


async def _fired(cancel: Cancel, known: Known) -> None:
    if isinstance(cancel, threading.Event):
        await fired(cancel)
    else:
        await settled(cancel, known)
