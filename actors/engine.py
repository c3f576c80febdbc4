"""The engine: the public door. Children and scopes are made through it."""

import asyncio
import os
from collections.abc import AsyncIterable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Self

from actors import checks
from actors.child import Child, Guest
from actors.connection import Connection, Room
from actors.events import Completed, Info, KillReceipt, Snapshot
from actors.many import Results
from actors.oneshot import run
from actors.recovery import Recovery, end_left, stop_left
from actors.scope import Scope
from actors.settings import Settings
from actors.spec import Spec
from actors.subscription import LifecycleStream
from broker import auth, errors
from broker.wire import MAX_IDS, VERSION, Kind, unpack

if TYPE_CHECKING:
    from actors.services.service import Service, Services
    from actors.services.spec import ServiceSpec

KEY_SIZE: Final = 32
"""Bytes of an owner key that is made up."""
MAX_NAME: Final = 256
"""Bytes of a scope's name."""


class Engine:
    """Runs child processes through worker actors behind a broker.

    An async context manager: leaving it ends every child.

    Args:
        endpoint: None: a private broker that lives and dies with this engine.
            `ipc://PATH`: a broker that is already running (`creche serve`).
        owner_key: bytes or hexadecimal text; engines of one key see each other's
            sessions. Random unless given.
        operator: present the broker's operator key, a file in its runtime directory
            that only its user can read: sessions of every key are listed and found.
        keys: directory of CURVE keys, for `tcp://`.
        settings: every default.

    Raises:
        InvalidRequest: an argument is not valid; `tcp://` is not available yet.
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
        _check_endpoint(endpoint, keys)
        self._endpoint = endpoint
        self._key = _owner_key(owner_key)
        self._settings = _settings(settings)
        self._operator = _operator(operator, endpoint)
        self._opened: Connection | None = None
        self._scopes: dict[str, Scope] = {}
        self._services: Services | None = None
        self._recovered = Recovery()

    @property
    def settings(self) -> Settings:
        """The defaults of this engine."""
        return self._settings

    @property
    def recovered(self) -> Recovery:
        """What was found of dead engines and clients, and done, as this one started."""
        return self._recovered

    async def __aenter__(self) -> Self:
        if self._opened is not None:
            raise errors.RuntimeContext("an engine is entered once")
        trees = await end_left()
        connection = Connection(
            self._endpoint, self._key, self._settings, operator=self._operator
        )
        await connection.open()
        self._opened = connection
        try:
            self._recovered = Recovery(trees, tuple(await stop_left(connection)))
        except BaseException:
            await asyncio.shield(self.aclose())
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop every service, end every child, and the private broker.

        Calls that run on behalf of a service are ended like every child.

        Harmless to repeat: each call returns once all has ended. Cancelling it leaves
        stop commands that did not run yet to the next engine; the rest goes on.

        Raises:
            ExceptionGroup: stop commands failed; everything has ended all the same.
            RuntimeContext: it was called outside of the engine's loop.
        """
        connection = self._opened
        if connection is None or not connection.ours() or connection.closed:
            return
        connection.check(alive=False)
        try:
            if self._services is not None:
                await self._services.close()
        finally:
            await connection.close()

    def _connection(self) -> Connection:
        if self._opened is None:
            raise errors.RuntimeContext("enter the engine first: async with Engine()")
        self._opened.check()
        return self._opened

    # -- starting ---------------------------------------------------------------

    async def spawn(self, argv: Any, **options: Any) -> Child:
        """Start a child whose owner is the returned handle.

        Args:
            argv: the command: a sequence, or a command line with `shell=True`.
            options: see `Spec`.

        Returns:
            The child, once its program runs.

        Raises:
            InvalidRequest: an argument is not valid; nothing was started.
            SpawnFailed: the system refused to start it; nothing is left.
            CapacityExceeded: there is no room now, nor was there in `queue` seconds.
        """
        connection = self._connection()
        record = await connection.start(Spec(argv, **options), None)
        return Child(connection, record, owned=True)

    async def run(
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
        """Run a command to its end and return its output.

        Args:
            argv: the command, or a `Spec`, which has all its options.
            input: bytes (or text) for its stdin, which is closed after them; without
                any a `stdin="pipe"` is closed at once.
            timeout: seconds; then the tree is terminated.
            check: raise for a failure status.
            limit: bytes of output to keep.
            into: called with the stream's name and each piece of output as it comes, in
                the engine's loop; it is not kept then. What it raises ends the command,
                and is raised.
            options: see `Spec`.

        Raises:
            CommandFailed: `check`, and the status is not 0.
            TimedOut: with the output so far.
            OutputLimitExceeded: with what was kept.
            SpawnFailed, InvalidRequest, CapacityExceeded: as for `spawn`.
            WorkerLost: the worker died.
        """
        connection = self._connection()
        return await run(
            connection,
            None,
            argv,
            input=input,
            timeout=timeout,
            limit=limit,
            check=check,
            into=into,
            check_open=connection.check,
            deadline=asyncio.timeout,
            options=options,
        )

    def map(
        self,
        specs: Iterable[Any] | AsyncIterable[Any],
        *,
        concurrency: int | None = None,
        ordered: bool = False,
    ) -> Results:
        """Run many commands, a few at a time; iterate over their results.

        A `Completed` each, or the `EngineError` of one that did not come to that, with
        a note that numbers its spec. Leaving the iterator ends what runs.

        Args:
            specs: `Spec`s or argvs, which may be endless: pulled as places get free.
                A plain iterable must not block: it is pulled within the loop.
            concurrency: how many run at once; as many as there are processors unless
                told. No more results wait to be taken, in order twice as many.
            ordered: give the results in the order of `specs`, not as they end.

        Raises:
            InvalidRequest: an argument is not valid.
        """
        connection = self._connection()
        return Results(
            connection,
            None,
            specs,
            concurrency=concurrency,
            ordered=ordered,
            check_open=connection.check,
        )

    def scope(
        self,
        name: str | None = None,
        *,
        cancel: asyncio.Event | asyncio.Future[Any] | None = None,
        capacity: int | None = None,
        queue: float | None = None,
    ) -> Scope:
        """Return a named group of children that end together.

        Args:
            name: unique among this engine's open scopes; made up unless given.
            cancel: an event, task or future: the scope closes when it fires.
            capacity: children that it may have at once, those counted whose end was not
                yet told; None is no limit.
            queue: seconds that a spawn over a limit waits for room, unless it says so
                itself; None does not wait.

        Raises:
            InvalidRequest: a scope of that name is open, or an argument is not valid.
        """
        connection = self._connection()
        if name is None:
            name = f"scope-{os.urandom(4).hex()}"
        checks.text("name", name)
        if not 0 < len(name.encode()) <= MAX_NAME:
            raise errors.InvalidRequest("name", f"is a text of 1 to {MAX_NAME} bytes")
        if name in self._scopes:
            raise errors.InvalidRequest("name", f"a scope {name!r} is open already")
        _cancel(cancel)
        checks.optional(checks.size)("capacity", capacity)
        checks.optional(checks.seconds)("queue", queue)
        scope = Scope(connection, name, cancel, Room(capacity, queue), self._scopes.pop)
        self._scopes[name] = scope
        return scope

    async def service(
        self,
        spec: "ServiceSpec",
        *,
        cancel: asyncio.Event | asyncio.Future[Any] | None = None,
    ) -> "Service":
        """Return a service that is ready; it is started unless it runs already.

        It runs once in this engine for all who ask; other engines have their own, also
        at the same broker.

        It is stopped when the last of those who got it has closed it, or the engine is
        closed. Cancelling this gives the start up, unless somebody else waits for it;
        the stop command runs then, too.

        Args:
            spec: what it is, and how it is started and stopped.
            cancel: an event, task or future that gives the start up when it fires.

        Raises:
            InvalidRequest: an argument is not valid, or another service of this name
                and owner runs.
            ServiceFailed: it did not get ready, and was stopped; or it has ended since.
            SpawnFailed, CapacityExceeded: the start command could not be executed.
        """
        return await self._open_services().get(spec, _cancel(cancel))

    async def services(
        self,
        specs: "Iterable[ServiceSpec]",
        *,
        cancel: asyncio.Event | asyncio.Future[Any] | None = None,
    ) -> "list[Service]":
        """Return several services, started one after the other, in this order.

        If one fails, those before it are closed again, the last one first; that goes on
        when this is cancelled.

        Args:
            specs: what they are.
            cancel: see `service`.

        Raises:
            InvalidRequest, ServiceFailed, SpawnFailed, CapacityExceeded: the first
                failure, as for `service`; it tells what failed of the clean-up, too.
        """
        return await self._open_services().get_all(specs, _cancel(cancel))

    def _open_services(self) -> "Services":
        connection = self._connection()
        if self._services is None:
            from actors.services.service import Services  # noqa: PLC0415 - most need none

            self._services = Services(connection)
        return self._services

    async def attach(self, session_id: int, *, steal: bool = False) -> Child:
        """Take over a child that has no owner; the returned handle owns it then.

        Everything works as for the one who spawned it, from the oldest output that is
        kept on; of one that has ended the exit status and the output are there.

        Cancelled, it leaves the child as it was. One that it took from a living owner
        has none then: it ends, unless it outlives its owner.

        Args:
            session_id: the child's number, as in `Child.id` and `Snapshot.id`.
            steal: take it from a living owner too, whose calls then raise
                `SessionOwned`.

        Raises:
            InvalidRequest: `session_id` is not a positive number.
            SessionNotFound: there is none of this number under this engine's key.
            SessionOwned: its owner lives, and `steal` was not asked for.
            WorkerLost: the worker died, and the child with it.
        """
        connection = self._connection()
        checks.whole(1)("session_id", session_id)
        checks.flag("steal", steal)
        record = await connection.attach(session_id, steal=steal)
        return Child(connection, record, owned=True)

    async def visit(self, session_id: int) -> Child:
        """Return a handle of a child that stays its owner's, or without one.

        Everything works but owning: closing or collecting the handle, and the end of
        this engine, leave the child alone, and `detach` raises `SessionOwned`. Of one
        that has ended the exit status and the output are there. Any number of engines
        visit at once.

        Args:
            session_id: the child's number, as in `Child.id` and `Snapshot.id`.

        Raises:
            InvalidRequest: `session_id` is not a positive number.
            SessionNotFound: there is none of this number that this engine may see.
            WorkerLost: the worker died, and the child with it.
        """
        connection = self._connection()
        checks.whole(1)("session_id", session_id)
        return Guest(connection, await connection.visit(session_id))

    # -- all of them ------------------------------------------------------------

    async def children(
        self, scope: str | None = None, *, ended: bool = False
    ) -> list[Snapshot]:
        """Return the live sessions of this engine's key, or of one scope, by id.

        Args:
            scope: the name of the only scope to list; None: all, and those without.
            ended: list those as well that have ended and can still be read.

        Raises:
            InvalidRequest: an argument is not valid.
        """
        connection = self._connection()
        checks.optional(checks.text)("scope", scope)
        checks.flag("ended", ended)
        if scope is not None and len(scope.encode()) > MAX_NAME:
            return []  # no scope has such a name
        return await connection.children(scope, ended=ended)

    def events(self, scope: str | None = None) -> LifecycleStream:
        """Return an async iterator of what happens to the sessions of this key.

        Args:
            scope: the name of the only scope to hear of; None: all, and those without.

        Raises:
            InvalidRequest: `scope` is no text.
        """
        connection = self._connection()
        checks.optional(checks.text)("scope", scope)
        if scope is not None and len(scope.encode()) > MAX_NAME:
            raise errors.InvalidRequest("scope", f"is a text of 1 to {MAX_NAME} bytes")
        return connection.watch(scope)

    async def kill(self, ids: Iterable[int]) -> list[KillReceipt | errors.EngineError]:
        """End many sessions at once; one receipt each, in order.

        In the place of one that is not here stands its `SessionNotFound`; of one whose
        worker was lost, before its tree was proven gone, its `WorkerLost`.

        Raises:
            InvalidRequest: an id is not a positive number, or `ids` no iterable.
        """
        connection = self._connection()
        return await connection.kill_many(session_ids(ids))

    async def info(self) -> Info:
        """Return what this engine and its broker are."""
        from actors import __version__  # noqa: PLC0415 - the package imports this lazily
        from broker import host  # noqa: PLC0415 - imports psutil, 20 ms, for this only

        link = self._connection().link
        reply = await link.ask(Kind.INFO)
        counts: Any = dict(reply.body)
        own = {"creche": __version__, "wire": str(VERSION)}
        return Info(
            versions=own | host.versions(),
            endpoint=link.endpoint,
            containment=counts.pop("containment"),
            limits={"sessions": counts.pop("capacity"), "ids_per_kill": MAX_IDS},
            counts={name: int(value) for name, value in counts.items()},
            latency={
                stage: tuple((bound, int(count)) for bound, count in rows)
                for stage, rows in unpack(reply.payload or b"").items()
            },
        )


def _cancel(given: object) -> Any:
    if given is not None and not isinstance(given, asyncio.Event | asyncio.Future):
        raise errors.InvalidRequest("cancel", "is an event, a task or a future")
    return given


def session_ids(ids: Iterable[int]) -> list[int]:
    """Return the numbers of sessions that an iterable gives.

    Raises:
        InvalidRequest: it is none, or gives anything but positive numbers.
    """
    if not isinstance(ids, Iterable):
        raise errors.InvalidRequest("ids", "must be an iterable of session ids")
    numbers = list(ids)
    for number in numbers:
        if type(number) is not int or not 0 < number <= checks.MOST:
            raise errors.InvalidRequest("ids", f"{number!r} is no session id")
    return numbers


def _owner_key(given: object) -> bytes:
    if given is None:
        return os.urandom(KEY_SIZE)
    if isinstance(given, str):
        try:
            given = bytes.fromhex(given)
        except ValueError:
            given = None
    if not isinstance(given, bytes):
        why = "must be bytes, or text of hexadecimal digits"
        raise errors.InvalidRequest("owner_key", why)
    if not 0 < len(given) <= 64:
        raise errors.InvalidRequest("owner_key", "must be 1 to 64 bytes")
    return given


def _operator(given: object, endpoint: str | None) -> bool:
    checks.flag("operator", given)
    if given and endpoint is None:
        raise errors.InvalidRequest("operator", "needs the endpoint of a shared broker")
    return bool(given)


def _settings(given: object) -> Settings:
    if given is None:
        return Settings()
    if not isinstance(given, Settings):
        raise errors.InvalidRequest("settings", "must be Settings")
    return given


def _check_endpoint(endpoint: object, keys: object) -> None:
    tcp = isinstance(endpoint, str) and endpoint.startswith("tcp://")
    if keys is not None and not tcp:
        raise errors.InvalidRequest("keys", "are for an endpoint of tcp:// alone")
    if endpoint is None:
        return
    if not isinstance(endpoint, str):
        raise errors.InvalidRequest("endpoint", "is a text such as ipc:///PATH")
    if tcp and keys is None:
        raise errors.InvalidRequest("keys", "tcp:// needs a directory of keys")
    auth.endpoint_path(endpoint)
