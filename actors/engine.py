"""The engine: a connection to a broker, and the children and scopes made through it."""

import asyncio
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from actors.ambient import Surroundings
from actors.child import Child, as_bytes, completed
from actors.embedded import Embedded
from actors.events import Completed, ExitStatus, Info, KillReceipt, Snapshot
from actors.record import Record, lost_status
from actors.scope import Scope
from actors.spec import Launch, Settings, Spec
from actors.streams import Capture
from broker import auth, errors
from broker.link import Link, error_of
from broker.wire import MAX_IDS, STREAMS, VERSION, Kind, Message, pack, unpack

KEY_SIZE: Final = 32
MAX_NAME: Final = 256
RUN_INPUT: Final = 1024 * 1024
"""Bytes of input that travel with the spawn; more is written while it runs."""


class Engine:
    """Runs child processes through worker actors behind a broker.

    An async context manager: leaving it ends every child.

    Args:
        endpoint: None: a private broker that lives and dies with this engine.
            `ipc://PATH`: a broker that is already running (`creche serve`).
        owner_key: bytes or hexadecimal text; engines of one key see each other's
            sessions. Random unless given.
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
        keys: object = None,
        settings: Settings | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.link: Link
        self._endpoint = endpoint
        self._key = _owner_key(owner_key)
        self._operator = False
        self._embedded: Embedded | None = None
        self._surroundings: Surroundings | None = None
        self._records: dict[int, Record] = {}
        self._scopes: dict[str, Scope] = {}
        self._process = os.getpid()
        self._open = False
        _check_endpoint(endpoint, keys)

    # -- opening and closing ----------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._open:
            raise errors.RuntimeContext("this engine is open already")
        endpoint = self._endpoint
        if endpoint is None:
            self._embedded = Embedded()
        try:
            if self._embedded is not None:
                endpoint = await self._embedded.start(
                    self.settings.warm, self.settings.start_timeout
                )
            assert endpoint is not None
            self.link = Link(endpoint, self._on_push, self._on_lost)
            kill_hung = self.settings.on_hung == "kill"
            await self.link.open(
                self._key,
                operator=self._operator,
                lease=self.settings.lease if kill_hung else 0.0,
                renewal=self.settings.lease_renewal,
            )
        except BaseException:
            if self._embedded is not None:
                await asyncio.shield(self._embedded.stop())
            raise
        self._surroundings = Surroundings()
        self._process = os.getpid()
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End every child, and the private broker; harmless to repeat."""
        if not self._open or os.getpid() != self._process:
            return
        self._open = False
        try:
            if self.link.lost is None:
                with suppress(errors.BrokerLost):
                    await self._release_all()
        finally:
            for record in self._records.values():
                record.released = True
                record.fail(errors.BrokerLost("the engine is closed"))
            self._records.clear()
            self.link.close()
            if self._surroundings is not None:
                self._surroundings.close()
            if self._embedded is not None:
                await asyncio.shield(self._embedded.stop())

    async def _release_all(self) -> None:
        ids = [record.id for record in self._records.values() if not record.released]
        timeout = self.settings.kill_timeout
        await asyncio.gather(
            *(self.kill_one(number, timeout, "owner-drop", True) for number in ids),
            return_exceptions=True,
        )

    def check(self, *, alive: bool = True) -> None:
        """Refuse a call from a forked copy, another loop, or after the end.

        Raises:
            WrongProcess, RuntimeContext, BrokerLost: see there.
        """
        if os.getpid() != self._process:
            raise errors.WrongProcess
        if not hasattr(self, "link"):
            raise errors.RuntimeContext("enter the engine first: async with Engine()")
        if asyncio.get_running_loop() is not self.link.loop:
            raise errors.RuntimeContext("this engine belongs to another event loop")
        if alive and not self._open:
            raise errors.BrokerLost("the engine is closed")
        if alive and self.link.lost is not None:
            raise self.link.lost

    # -- what the broker tells unasked ------------------------------------------

    def _on_push(self, message: Message) -> None:
        record = self._records.get(message.session)
        if record is None:
            return
        if message.kind is Kind.EXITED:
            record.end(ExitStatus.from_wire(message.body["status"]))
        elif message.kind is Kind.ERROR and isinstance(
            error_of(message), errors.WorkerLost
        ):
            record.end(lost_status(record.started))

    def _on_lost(self) -> None:
        for record in self._records.values():
            record.fail(errors.BrokerLost())

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
            CapacityExceeded: there is no room now.
        """
        self.check()
        record = await self.start(Spec(argv, **options), None)
        return Child(self, record, owned=True)

    async def start(
        self, spec: Spec, scope: str | None, capture: Capture | None = None
    ) -> Record:
        """Start a child for an owner that the caller is; used by scopes."""
        self._check_options(spec)
        assert self._surroundings is not None
        launch = spec.launch(
            self._surroundings.read(), self.settings, scope or "", secrets.token_hex(16)
        )
        token = spec.request_id or secrets.token_hex(16)
        settings = self.settings
        body = {
            "token": token,
            "scope": scope or "",
            "reader": None if capture is None else capture.request,
            "chunks": settings.window_chunks,
            "bytes": settings.window_bytes,
            "kill_on_drop": spec.kill_on_drop,
        }
        asked = self.link.ask(Kind.SPAWN, body=body, payload=_document(launch))
        try:
            reply = await asked
        except asyncio.CancelledError:
            if self.link.lost is None:
                self.link.post(Kind.DROP, body={"sessions": [], "tokens": [token]})
            raise
        return self._adopt(reply, launch, scope)

    def _check_options(self, spec: Spec) -> None:
        if not spec.kill_on_drop and self._embedded is not None:
            raise errors.InvalidRequest(
                "kill_on_drop", "False needs a shared broker: this one ends with you"
            )
        for name, default in _NOT_YET.items():
            if getattr(spec, name) != default:
                raise errors.InvalidRequest(name, "is not supported by this version")

    def _adopt(self, reply: Message, launch: Launch, scope: str | None) -> Record:
        known = self._records.get(reply.session)
        if known is not None:
            return known
        streams = [s for s in STREAMS if getattr(launch, s) == "pipe"]
        retention = launch.retention
        record = Record(
            id=reply.session,
            pid=reply.body["pid"],
            argv=tuple(os.fsdecode(word) for word in launch.argv),
            scope=scope,
            streams=tuple(streams),
            stdin=reply.body["stdin"],
            started=reply.body["started"],
            metadata=dict(launch.metadata),
            block=retention.size if retention.kind == "block" else None,
        )
        self._records[record.id] = record
        return record

    async def run(
        self,
        argv: Any,
        *,
        input: bytes | str | None = None,
        timeout: float | None = None,
        check: bool = False,
        limit: int | None = None,
        **options: Any,
    ) -> Completed:
        """Run a command to its end and return its output.

        Args:
            argv: the command.
            input: bytes (or text) for its stdin, which is closed after them.
            timeout: seconds; then the tree is terminated.
            check: raise for a failure status.
            limit: bytes of output to keep.
            options: see `Spec`.

        Raises:
            CommandFailed: `check`, and the status is not 0.
            TimedOut: with the output so far.
            OutputLimitExceeded: with what was kept.
            SpawnFailed, InvalidRequest, CapacityExceeded: as for `spawn`.
            WorkerLost: the worker died.
        """
        self.check()
        return await self.run_in(
            None, argv, input, timeout, limit, check=check, **options
        )

    async def run_in(
        self,
        scope: str | None,
        argv: Any,
        input: bytes | str | None,
        timeout: float | None,
        limit: int | None,
        *,
        check: bool,
        **options: Any,
    ) -> Completed:
        """Do what `run` does, for a scope."""
        data = None if input is None else as_bytes("input", input)
        if timeout is not None and not timeout >= 0:
            raise errors.InvalidRequest("timeout", "is not negative")
        if limit is not None and (type(limit) is not int or limit < 0):
            raise errors.InvalidRequest("limit", "is a number of bytes")
        if data is not None:
            if "stdin" in options:
                raise errors.InvalidRequest("input", "and stdin exclude each other")
            options["stdin"] = data if len(data) <= RUN_INPUT else "pipe"
        spec = Spec(argv, **options)
        size = self.settings.window_bytes
        if spec.retention is not None and spec.retention.kind == "block":
            size = min(size, spec.retention.size)
        capture = Capture(self.link, self.link.number(), size, limit)
        try:
            record = await self.start(spec, scope, capture)
        except BaseException:
            capture.stop()
            raise
        child = Child(self, record, owned=False)
        feeding = None
        if data is not None and len(data) > RUN_INPUT:
            feeding = asyncio.ensure_future(child.feed(data))
        try:
            await self._await_capture(child, capture, timeout)
            done = completed(record, capture, limit)
        finally:
            capture.stop()
            if feeding is not None:
                feeding.cancel()
            self._release(record)
        if check and done.returncode != 0:
            raise errors.CommandFailed(
                done.returncode or 0, list(done.argv), done.stdout, done.stderr
            )
        return done

    async def _await_capture(
        self, child: Child, capture: Capture, timeout: float | None
    ) -> None:
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(capture.closed)
        except TimeoutError:
            if capture.closed.done():
                return
            await child.terminate(self.settings.terminate_grace)
            with suppress(errors.EngineError):
                await capture.closed
            raise errors.TimedOut(
                list(child.argv),
                timeout or 0.0,
                capture.output("stdout"),
                capture.output("stderr"),
            ) from None

    def _release(self, record: Record) -> None:
        """Have the broker forget a finished run; what is left of its tree is killed."""
        record.released = True
        self._records.pop(record.id, None)
        if self.link.lost is None:
            self.link.drop(record.id)

    def forget(self, record: Record) -> None:
        """Stop tracking a session that was released."""
        self._records.pop(record.id, None)

    # -- scopes -----------------------------------------------------------------

    def scope(
        self,
        name: str | None = None,
        *,
        cancel: "asyncio.Event | asyncio.Future[Any] | None" = None,
    ) -> Scope:
        """Return a named group of children that end together.

        Args:
            name: unique among this engine's open scopes; made up unless given.
            cancel: an event, task or future: the scope closes when it fires.

        Raises:
            InvalidRequest: a scope of that name is open.
        """
        self.check()
        if name is None:
            name = f"scope-{secrets.token_hex(4)}"
        if not 0 < len(as_bytes("name", name)) <= MAX_NAME:
            raise errors.InvalidRequest("name", f"is a text of 1 to {MAX_NAME} bytes")
        if name in self._scopes:
            raise errors.InvalidRequest("name", f"a scope {name!r} is open already")
        scope = Scope(self, name, cancel)
        self._scopes[name] = scope
        return scope

    def leave(self, scope: Scope) -> None:
        """Forget a scope that has closed."""
        self._scopes.pop(scope.name, None)

    # -- looking ----------------------------------------------------------------

    async def children(self, scope: str | None = None) -> list[Snapshot]:
        """Return the live sessions of this engine's key, or of one scope, by id."""
        self.check()
        reply = await self.link.ask(Kind.LIST, body={"scope": scope})
        ids = unpack(reply.payload or b"")
        found = await asyncio.gather(
            *(self.snapshot(number) for number in ids), return_exceptions=True
        )
        return [item for item in found if isinstance(item, Snapshot)]

    async def snapshot(self, number: int) -> Snapshot:
        """Return how a session is now.

        Raises:
            SessionNotFound: there is none of this number here.
        """
        reply = await self.link.ask(Kind.SNAPSHOT, number)
        document = unpack(reply.payload or b"")
        document["owner_alive"] = reply.body["owner_alive"]
        return Snapshot.from_wire(document)

    async def kill(
        self, ids: Iterable[int]
    ) -> list[KillReceipt | errors.SessionNotFound]:
        """End many sessions at once; one receipt each, in order.

        In the place of one that is not here stands its `SessionNotFound`.

        Raises:
            InvalidRequest: an id is not a positive number.
        """
        self.check()
        numbers = list(ids)
        for number in numbers:
            if type(number) is not int or number < 1:
                raise errors.InvalidRequest("ids", f"{number!r} is no session id")
        parts = [numbers[at : at + MAX_IDS] for at in range(0, len(numbers), MAX_IDS)]
        body = {"timeout": self.settings.kill_many_timeout}
        replies = await asyncio.gather(
            *(
                self.link.ask(Kind.KILL_MANY, body={**body, "sessions": part})
                for part in parts
            )
        )
        answers = [item for r in replies for item in unpack(r.payload or b"")]
        return [_receipt(answer) for answer in answers]

    async def kill_one(
        self, number: int, timeout: float, cause: str, release: bool
    ) -> KillReceipt:
        """End one session; `release` forgets it as well."""
        body = {"grace": None, "timeout": timeout, "cause": cause, "release": release}
        reply = await self.link.ask(Kind.KILL, number, body)
        return KillReceipt.from_wire(reply.body["receipt"])

    async def info(self) -> Info:
        """Return what this engine and its broker are."""
        from actors import __version__  # noqa: PLC0415 - the package imports this lazily
        from broker import host  # noqa: PLC0415 - imports psutil, 20 ms, for this only

        self.check()
        reply = await self.link.ask(Kind.INFO)
        counts: Any = dict(reply.body)
        machine = host.report()
        versions = {
            "creche": __version__,
            "wire": str(VERSION),
            "python": machine.python,
            "kernel": machine.kernel,
            "zmq": machine.zmq,
            "msgpack": machine.msgpack,
            "psutil": machine.psutil,
        }
        return Info(
            versions=versions,
            endpoint=self.link.endpoint,
            containment="subreaper",
            limits={"sessions": counts.pop("capacity"), "ids_per_kill": MAX_IDS},
            counts={name: int(value) for name, value in counts.items()},
            latency={},
        )


_NOT_YET: Final[dict[str, Any]] = {
    "tty": False,
    "pass_fds": (),
    "detach_ttl": None,
    "observe": (),
    "on_full": "refuse",
    "queue": None,
}


def _receipt(answer: list[Any]) -> KillReceipt | errors.SessionNotFound:
    """Return what one session answered to the kill of many.

    Raises:
        EngineError: something else than that it is not here.
    """
    if len(answer) == 1:
        return KillReceipt.from_wire(answer[0])
    error = errors.decode(*answer)
    if not isinstance(error, errors.SessionNotFound):
        raise error
    return error


def _owner_key(given: object) -> bytes:
    if given is None:
        return secrets.token_bytes(KEY_SIZE)
    if isinstance(given, str):
        try:
            given = bytes.fromhex(given)
        except ValueError:
            raise errors.InvalidRequest("owner_key", "is not hexadecimal") from None
    if not isinstance(given, bytes) or not 0 < len(given) <= 64:
        raise errors.InvalidRequest("owner_key", "is 1 to 64 bytes, or hexadecimal")
    return given


def _check_endpoint(endpoint: object, keys: object) -> None:
    if endpoint is None:
        return
    if not isinstance(endpoint, str):
        raise errors.InvalidRequest("endpoint", "is a text such as ipc:///PATH")
    if endpoint.startswith("tcp://") and keys is None:
        raise errors.InvalidRequest("keys", "tcp:// needs a directory of keys")
    auth.endpoint_path(endpoint)


def _document(launch: Launch) -> bytes:
    try:
        return pack(launch.to_wire())
    except errors.ProtocolError as large:
        raise errors.InvalidRequest("argv", f"with env: {large}") from large
