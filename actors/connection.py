"""The open connection of an engine: what its scopes and children work through."""

import asyncio
import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

from actors.ambient import Surroundings
from actors.events import ExitStatus, KillReceipt, Snapshot
from actors.holding import let_go
from actors.launch import Launch
from actors.pause import Timeouts
from actors.record import Record, lost_status
from actors.scratch import DIRECTORY, Scratches
from actors.settings import OutputPolicy, Settings
from actors.spec import Ambient, Spec
from actors.streams import Capture
from actors.subscription import LifecycleStream
from broker import auth, errors, places
from broker.link import Link, error_of
from broker.wire import MAX_IDS, STREAMS, Kind, Message, unpack

if TYPE_CHECKING:
    from actors.embedded import Embedded
    from actors.writing import Inflow

TOKENS_A_DROP: Final = 30
"""Spawns named by one DROP: those of the longest tokens fit, 128 times 4 bytes each."""
CLOSE_MARGIN: Final = 1.0
"""Seconds beyond the time to kill that a broker may take to answer a closing engine."""


class Room(NamedTuple):
    """What a scope may hold, and how long its spawns wait for room (seconds)."""

    capacity: int | None = None
    queue: float | None = None


class Connection:
    """A link to a broker, the records of the sessions made over it, and its checks.

    Args:
        endpoint: of a shared broker; None: a private one is started.
        owner: the key under which sessions are made and found.
        operator: whether to present the broker's operator key.
    """

    def __init__(
        self, endpoint: str | None, owner: bytes, settings: Settings, *, operator: bool
    ) -> None:
        self.settings = settings
        self.link: Link
        self.records: dict[int, Record] = {}
        self._visited: dict[int, list[Record]] = {}
        self.paused: set[str] = set()
        self.rooms: dict[str, Room] = {}
        self.timeouts: dict[str, Timeouts] = {}
        self.guards: set[asyncio.Task[None]] = set()
        self.inflows: weakref.WeakValueDictionary[int, Inflow] = (
            weakref.WeakValueDictionary()
        )
        self._watching: weakref.WeakSet[LifecycleStream] = weakref.WeakSet()
        self._starting: dict[int, tuple[str, str | None]] = {}
        self.shared = endpoint is not None
        self._endpoint = endpoint
        self._owner = owner
        self._operator = operator
        self._embedded = None if self.shared else _embedded()
        self.scratches = Scratches(
            _scratch_root(settings, endpoint), owner, settings.kill_timeout
        )
        self._process = os.getpid()
        self._open = False
        self._closing: asyncio.Task[None] | None = None
        self._surroundings = Surroundings()  # at last: it holds files

    # -- opening and closing ----------------------------------------------------

    async def open(self) -> None:
        """Start the private broker if there is none, and say hello.

        Raises:
            BrokerLost: nobody answers.
        """
        settings = self.settings
        lease = settings.lease if settings.on_hung == "kill" else 0.0
        try:
            endpoint = self._endpoint
            if self._embedded is not None:
                endpoint = await self._embedded.start(settings)
            await self.scratches.sweep()
            assert endpoint is not None
            self.link = Link(endpoint, self._on_push, self._on_lost, self._on_back)
            await self.link.open(
                self._owner,
                operator=self._operator,
                lease=lease,
                renewal=settings.lease_renewal,
            )
        except BaseException:
            self._surroundings.close()
            if self._embedded is not None:
                await asyncio.shield(self._embedded.stop())
            raise
        self._open = True

    async def close(self) -> None:
        """End every child, and the private broker; harmless to repeat.

        Whoever calls it returns once that is done; it goes on when they are cancelled.
        """
        if self._closing is None:
            self._open = False
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    @property
    def closed(self) -> bool:
        """Whether `close` has done all that it does."""
        return self._closing is not None and self._closing.done()

    async def _close(self) -> None:
        try:
            if self.link.lost is None:
                # What stands still does not answer: the end of its lifelines ends it.
                with suppress(errors.BrokerLost, TimeoutError):
                    async with asyncio.timeout(self._patience()):
                        await self._release_all()
        finally:
            for guard in self.guards:  # what cancels a scope may never fire
                guard.cancel()
            staying = {record.scope for record in self.records.values() if record.stays}
            for record in self._all():
                record.released = True
                record.fail(errors.BrokerLost("the engine is closed"))
            self.records.clear()
            self._visited.clear()
            for stream in self._watching:
                stream.finish()
            self.link.close()
            self._surroundings.close()
            if self._embedded is not None:
                await asyncio.shield(self._embedded.stop())
            await self.scratches.close(staying)

    def _patience(self) -> float:
        """Return how long a broker may take to see the children off.

        A private one is ended next, and whatever it left undone with it.
        """
        timeout = self.settings.kill_timeout + CLOSE_MARGIN
        return timeout if self.shared else CLOSE_MARGIN

    async def _release_all(self) -> None:
        ours = [r for r in self.records.values() if not (r.released or r.stays)]
        timeout = self.settings.kill_timeout
        for record in ours:
            record.released = True  # what a run reads now is no result of its own
        await asyncio.gather(
            *(self.end(record.id, None, timeout, release=True) for record in ours),
            return_exceptions=True,
        )
        # What others have closed is to be gone as well: a scope, or a child.
        if others := [asked.future for asked in self.link.asked(Kind.KILL)]:
            await asyncio.wait(others)

    def ours(self) -> bool:
        """Return whether this is the process that opened it, not a forked copy."""
        return os.getpid() == self._process

    def check(self, *, alive: bool = True) -> None:
        """Refuse a call from a forked copy, another loop, or after the end.

        Raises:
            WrongProcess, RuntimeContext, BrokerLost: see there.
        """
        if not self.ours():
            raise errors.WrongProcess
        here: asyncio.AbstractEventLoop | None = None
        with suppress(RuntimeError):  # a thread without one
            here = asyncio.get_running_loop()
        if here is not self.link.loop:
            raise errors.RuntimeContext(self._elsewhere())
        if alive and not self._open:
            raise errors.BrokerLost("the engine is closed")
        if alive and self.link.lost is not None:
            raise self.link.lost

    def _elsewhere(self) -> str:
        if not self.link.loop.is_closed():
            return "this engine belongs to another event loop"
        # Its sockets are looked at by nobody any more, but hold until they are closed.
        return (
            "the event loop of this engine was closed before it: its children end once "
            "it is collected, at the latest with this process"
        )

    # -- what the broker tells unasked ------------------------------------------

    def _on_push(self, message: Message) -> None:
        number = message.session
        own = self.records.get(number)
        told = [*self._visited.get(number, ()), *([] if own is None else [own])]
        if message.kind is Kind.EXITED:
            for record in told:
                record.end(ExitStatus.from_wire(message.body["status"]))
        elif message.kind is Kind.ERROR:
            error = error_of(message)
            if isinstance(error, errors.WorkerLost):
                for record in told:
                    record.end(lost_status(record.started))
            elif isinstance(error, errors.SessionOwned) and own is not None:
                own.released = True
                self.forget(own, error)
            elif isinstance(error, errors.SessionNotFound):  # it had to go, or was late
                self._visited.pop(number, None)
                self.records.pop(number, None)
                for record in told:
                    record.fail(error)

    def _on_lost(self) -> None:
        for record in self._all():
            record.fail(self.link.lost or errors.BrokerLost())

    def _all(self) -> list[Record]:
        visited = [record for records in self._visited.values() for record in records]
        return [*self.records.values(), *visited]

    def _on_back(self) -> None:
        """Tell another broker whose sessions these are, and hear what was missed."""
        own = [record.id for record in self.records.values() if not record.released]
        visited = (record for records in self._visited.values() for record in records)
        pairs = [number for record in visited for number in (record.id, record.request)]
        # No pair is parted: MAX_IDS is even.
        for field, ids in (("sessions", own), ("visits", pairs)):
            for at in range(0, len(ids), MAX_IDS):
                claimed = {"sessions": [], "visits": [], field: ids[at : at + MAX_IDS]}
                self.link.post(Kind.CLAIM, body=claimed)

    # -- sessions ---------------------------------------------------------------

    def ambient(self) -> Ambient:
        """Return what a child that is spawned now inherits from this process."""
        return self._surroundings.read()

    async def start(
        self,
        spec: Spec,
        scope: str | None,
        capture: Capture | None = None,
        *,
        mark: str | None = None,
        limited: bool = True,
    ) -> Record:
        """Start a child for an owner that the caller sees to.

        Args:
            spec: what to start.
            scope: the name of the owning scope, if that is the owner.
            capture: attached before the program runs.
            mark: what its tree carries; made up unless given.
            limited: whether it needs room within this client's own capacity.

        Raises:
            InvalidRequest, SpawnFailed, CapacityExceeded: see `Engine.spawn`.
        """
        self._check_options(spec)
        launch = spec.launch(
            self._surroundings.read(),
            self.settings,
            scope or "",
            mark or os.urandom(16).hex(),
            paused=scope in self.paused,
        )
        lock = self.scratches.lock(scope or "")
        if lock is not None:
            launch = replace(launch, scratch=lock)
        token = spec.request_id or os.urandom(16).hex()
        body = {
            "token": token,
            "scope": scope or "",
            "reader": None if capture is None else capture.request,
            "chunks": self.settings.window_chunks,
            "bytes": self.settings.window_bytes,
            "release": self._releases_itself(spec, capture),
            "kill_on_drop": spec.kill_on_drop,
            "fds": len(launch.pass_fds),
            "again": False,
            "detach_ttl": spec.detach_ttl,
            **self._room(spec, scope, limited=limited),
        }
        adopted: list[Record] = []

        def adopt(reply: Message) -> None:
            record = self._adopt(reply, launch, scope)
            record.token = token
            record.named = record.named or spec.request_id is not None
            record.hold(scope)
            record.stays = not spec.kill_on_drop or spec.detach_ttl is not None
            adopted.append(record)
            if capture is not None:
                capture.session = record.id

        # At once: the end of a short child may come right behind the answer.
        document = _document(launch)
        request = self.link.number()
        if launch.pass_fds:
            await self._pass_fds(request, launch.pass_fds)
        asked = self.link.ask(
            Kind.SPAWN,
            body=body,
            payload=document,
            request=request,
            first=adopt,
            fds=launch.pass_fds,
        )
        self._starting[request] = token, scope
        named = spec.request_id is not None
        try:
            # One of a request id may have to go on for the others of that.
            await (asyncio.shield(asked) if named else asked)
        except BaseException as broken_off:
            self._starting.pop(request, None)
            for record in adopted:
                record.let_go(scope)
            if named and self._shared(token):
                self._leave(asked, adopted, capture, scope)
            elif isinstance(broken_off, asyncio.CancelledError):
                asked.cancel()
                self._take_back(token)
            elif named:
                self._drop_unshared(token)
            raise
        self._starting.pop(request, None)
        return adopted[0]

    def _releases_itself(self, spec: Spec, capture: Capture | None) -> bool:
        """Return whether a session goes with the end of its capture, without a word.

        Not where the broker may be lost with what it was to deliver, nor where others
        may come to have it by its request id: one can come just as it ends.
        """
        named = spec.request_id is not None
        return capture is not None and not self.link.grace and not named

    def shares(self, record: Record) -> bool:
        """Return whether anybody here owns this session, or starts it as well."""
        return bool(record.owners) or (record.named and self._is_started(record.token))

    def _is_started(self, token: str) -> bool:
        return any(known == token for known, _ in self._starting.values())

    def _of(self, token: str) -> list[Record]:
        return [r for r in self.records.values() if r.token == token]

    def _shared(self, token: str) -> bool:
        return self._is_started(token) or any(r.owners for r in self._of(token))

    def _take_back(self, token: str) -> None:
        """Have a start that nobody waits for any more leave no child."""
        for record in self._of(token):
            self.forget(record)
        if self.link.lost is None:
            self.link.tell(Kind.DROP, body={"sessions": [], "tokens": [token]})

    def _drop_unshared(self, token: str) -> None:
        """Drop what was left to a start that was refused then."""
        for record in self._of(token):
            if not (record.released or self.shares(record)):
                self.drop(record)

    def _leave(
        self,
        asked: "asyncio.Future[Message]",
        adopted: list[Record],
        capture: Capture | None,
        scope: str | None,
    ) -> None:
        """Leave a start that was given up to the others of its child."""
        if capture is None or asked.done():
            asked.cancel()
            if capture is not None and adopted:
                capture.leave_to(adopted[0])
            return
        capture.leave()  # they may hear of the end by it

        def done(_: object) -> None:
            if _failed(asked):
                capture.stop()
                return
            [record] = adopted
            record.let_go(scope)
            if self.shares(record):
                capture.leave_to(record)
                return
            capture.stop()
            if not record.released:
                self.drop(record)

        asked.add_done_callback(done)

    async def _pass_fds(self, request: int, fds: tuple[int, ...]) -> None:
        for fd in fds:
            try:
                os.fstat(fd)
            except OSError as closed:
                why = f"{fd} is not an open descriptor"
                raise errors.InvalidRequest("pass_fds", why) from closed
        try:
            await self.link.pass_fds(request, fds)
        except OSError as error:  # too many on their way
            raise errors.SpawnFailed(error.errno or 0, "pipe") from error

    def _room(self, spec: Spec, scope: str | None, *, limited: bool) -> dict[str, Any]:
        """Return what a spawn tells of the limits that it is under."""
        room = self.rooms.get(scope or "", Room())
        return {
            "scope_capacity": room.capacity,
            "client_capacity": self.settings.capacity if limited else None,
            "queue": room.queue if spec.queue is None else spec.queue,
            "on_full": spec.on_full,
        }

    def cancel_starts(self, scope: str) -> None:
        """Take back the spawns of a scope that are unanswered, and of nobody else.

        One that waits for room would otherwise outlive its owner.
        """
        own = {key: token for key, (token, at) in self._starting.items() if at == scope}
        if not own:
            return
        for request in own:
            del self._starting[request]
        kept = {token for token, _ in self._starting.values()}
        kept |= {r.token for r in self.records.values() if r.owners}
        tokens = [token for token in own.values() if token not in kept]
        for at in range(0, len(tokens), TOKENS_A_DROP):
            if self.link.lost is None:
                body = {"sessions": [], "tokens": tokens[at : at + TOKENS_A_DROP]}
                self.link.tell(Kind.DROP, body=body)

    def _check_options(self, spec: Spec) -> None:
        if not spec.kill_on_drop and not self.shared:
            raise errors.InvalidRequest(
                "kill_on_drop", "False needs a shared broker: this one ends with you"
            )
        if spec.detach_ttl is not None and not self.shared:
            raise errors.InvalidRequest(
                "detach_ttl", "needs a shared broker: this one ends with you"
            )

    def _adopt(self, reply: Message, launch: Launch, scope: str | None) -> Record:
        known = self.records.get(reply.session)
        if known is not None:
            return known
        terminal = launch.tty is not None
        piped = [s for s in STREAMS if getattr(launch, s) == "pipe"]
        retention = launch.retention
        record = Record(
            id=reply.session,
            pid=reply.body["pid"],
            argv=_words(launch.argv),
            scope=scope,
            streams=("stdout",) if terminal else tuple(piped),
            tty=terminal,
            started=reply.body["started"],
            metadata=dict(launch.metadata),
            kept=retention.size,
            block=retention.size if retention.kind == "block" else None,
        )
        self.records[record.id] = record
        if (scope in self.paused) is not launch.paused:  # it changed meanwhile
            self._tell_clock(record, paused=not launch.paused)
        return record

    def pause(self, scope: str, *, paused: bool) -> None:
        """Stop the clocks of a scope's sessions, or let them go on.

        Those that start while it is paused are paused from their start.
        """
        (self.paused.add if paused else self.paused.discard)(scope)
        for record in self.records.values():
            if record.scope == scope and not record.released:
                self._tell_clock(record, paused=paused)

    def timeouts_of(self, scope: str | None) -> Timeouts:
        """Return the timeouts that a pause of this scope stops; without one, none."""
        return self.timeouts.get(scope or "", Timeouts())

    def _go_on(self, record: Record) -> None:
        """Let the clock of a session go on that its scope gives up."""
        if record.scope in self.paused:
            self._tell_clock(record, paused=False)

    def _tell_clock(self, record: Record, *, paused: bool) -> None:
        if self.link.lost is None:
            self.link.tell(Kind.CLOCK, record.id, {"paused": paused})

    async def attach(self, number: int, *, steal: bool) -> Record:
        """Become the owner of a session; see `Engine.attach`.

        Raises:
            SessionNotFound, SessionOwned, WorkerLost: see there.
        """
        adopted: list[Record] = []

        def adopt(reply: Message) -> None:
            record = _attached(reply)
            record.hold(None)
            self.records[record.id] = record
            adopted.append(record)

        request, body = self.link.number(), {"steal": steal}
        try:
            await self.link.ask(Kind.ATTACH, number, body, request=request, first=adopt)
        except asyncio.CancelledError:
            for record in adopted:
                self.give_back(record)
            if not adopted:  # the broker knows whether it was granted
                self.link.take_back(number, request)
            raise
        return adopted[0]

    def give_back(self, record: Record) -> None:
        """Undo an attach of which nobody hears; see `Engine.attach`."""
        record.released = True
        self.forget(record)
        self.link.take_back(record.id, record.request)

    async def visit(self, number: int) -> Record:
        """Follow a session that stays another's; see `Engine.visit`.

        Raises:
            SessionNotFound, WorkerLost: see there.
        """
        visited: list[Record] = []

        def adopt(reply: Message) -> None:
            # Not among `records`: closing this engine, or a scope of it, ends those.
            record = _attached(reply)
            self._visited.setdefault(number, []).append(record)
            visited.append(record)

        request = self.link.number()
        try:
            await self.link.ask(Kind.VISIT, number, request=request, first=adopt)
        except asyncio.CancelledError:
            for record in visited:
                self.leave(record)
            if not visited:
                self.link.take_back(number, request)
            raise
        return visited[0]

    def leave(self, record: Record) -> None:
        """End a visit; harmless to repeat. The session goes on.

        Raises:
            WrongProcess, RuntimeContext: see `check`.
        """
        if record.released:
            return
        self.check(alive=False)
        let_go(self.link, record)
        record.released = True
        record.fail(errors.SessionNotFound("this visit of the session is over"))
        self.link.take_back(record.id, record.request)
        others = [r for r in self._visited.pop(record.id, ()) if r is not record]
        if others:
            self._visited[record.id] = others

    async def detach(self, record: Record, ttl: float | None) -> None:
        """Let a session live on without an owner; see `Child.detach`."""
        self._go_on(record)
        record.released = True  # first: whatever comes now must not end it
        asked = self.link.ask(Kind.DETACH, record.id, {"ttl": ttl})

        def detached(asked: "asyncio.Future[Message]") -> None:
            if _failed(asked):
                record.released = False
            else:
                let_go(self.link, record)
                gone = errors.SessionNotFound("the session was detached")
                self.forget(record, gone)

        asked.add_done_callback(detached)
        await asyncio.shield(asked)  # it goes on when the caller is cancelled

    def owned_by(self, scope: str) -> list[Record]:
        """Return the sessions of a scope that were not released yet, by id."""
        found = [r for r in self.records.values() if scope in r.owners]
        return sorted((r for r in found if not r.released), key=lambda r: r.id)

    def forget(self, record: Record, why: errors.EngineError | None = None) -> None:
        """Stop tracking a session that was given up; nobody hears of its end."""
        record.fail(why or errors.SessionNotFound("the session was closed"))
        if self.records.get(record.id) is record:  # it may be this client's again
            del self.records[record.id]

    async def release(self, record: Record) -> None:
        """End a session if it still runs, and have the broker forget it.

        One that stays loses its owner only, and maybe its stdin.

        Raises:
            EngineError: the tree could not be proven gone.
        """
        if record.stays:
            self.drop(record)
            return
        record.released = True
        timeout = self.settings.kill_timeout
        try:
            receipt = await self.end(record.id, None, timeout, release=True)
        except errors.SessionNotFound:  # a run's own end was faster
            return
        finally:
            self.forget(record)
        if receipt.survivors:
            left = ", ".join(str(s.pid) for s in receipt.survivors)
            raise errors.EngineError(f"session {record.id}: not proven gone: {left}")

    def finish(self, record: Record) -> None:
        """Let go of a run that has come to its end, of which nothing was lost.

        It releases itself, but for the exceptions of `_releases_itself`.
        """
        if self.link.grace or record.named:
            self.drop(record)
        else:
            self.forget(record)

    def drop(self, record: Record) -> None:
        """Give a session up without waiting: unless it stays, its tree is killed."""
        if record.stays:
            let_go(self.link, record)
            self._go_on(record)
        record.released = True
        self.forget(record)
        if self.link.lost is None:
            self.link.drop(record.id)

    async def end(
        self,
        number: int,
        grace: float | None,
        timeout: float,
        *,
        release: bool,
    ) -> KillReceipt:
        """End one session's tree; `release` has the broker forget it as well.

        It goes on when the caller is cancelled: nobody awaits the answer then.
        """
        cause = "owner-drop" if release else "killed"
        body = {"grace": grace, "timeout": timeout, "cause": cause, "release": release}
        asked = self.link.ask(Kind.KILL, number, body)
        asked.add_done_callback(_failed)
        reply = await asyncio.shield(asked)
        return KillReceipt.from_wire(reply.body["receipt"])

    async def kill_many(self, ids: list[int]) -> list[KillReceipt | errors.EngineError]:
        """End many sessions; see `Engine.kill`. It goes on when it is cancelled."""
        parts = [ids[at : at + MAX_IDS] for at in range(0, len(ids), MAX_IDS)]
        body = {"timeout": self.settings.kill_many_timeout}
        asked = [
            self.link.ask(Kind.KILL_MANY, body={**body, "sessions": part})
            for part in parts
        ]
        for one in asked:
            one.add_done_callback(_failed)
        replies = await asyncio.gather(*(asyncio.shield(one) for one in asked))
        answers = [item for r in replies for item in unpack(r.payload or b"")]
        return [_receipt(answer) for answer in answers]

    async def children(self, scope: str | None, *, ended: bool) -> list[Snapshot]:
        """Return the sessions of this key, or of one scope; see `Engine.children`."""
        body = {"scope": scope, "readable": ended}
        reply = await self.link.ask(Kind.LIST, body=body)
        ids = unpack(reply.payload or b"")
        found = await asyncio.gather(
            *(self.snapshot(number) for number in ids), return_exceptions=True
        )
        return [item for item in found if _is_there(item)]

    def watch(self, scope: str | None) -> LifecycleStream:
        """Return what happens to the sessions of this key, or of one scope."""
        stream = LifecycleStream(self.link, scope)
        self._watching.add(stream)
        return stream

    async def snapshot(self, number: int) -> Snapshot:
        """Return how a session is now.

        Raises:
            SessionNotFound: there is none of this number here.
            WorkerLost: its worker died.
        """
        reply = await self.link.ask(Kind.SNAPSHOT, number)
        document = unpack(reply.payload or b"")
        document["owner_alive"] = reply.body["owner_alive"]
        return Snapshot.from_wire(document)


def _scratch_root(settings: Settings, endpoint: str | None) -> bytes:
    root = settings.scratch_root
    if root is not None:
        return os.fsencode(root if isinstance(root, str | bytes) else root.__fspath__())
    if endpoint is not None:
        return os.path.join(os.path.dirname(auth.endpoint_path(endpoint)), DIRECTORY)
    return places.place(DIRECTORY, os.environ, os.geteuid())


def _words(argv: Iterable[bytes]) -> tuple[str, ...]:
    """Return a command as the text that it may have been given as."""
    return tuple(word.decode("utf-8", "surrogateescape") for word in argv)


def _attached(reply: Message) -> Record:
    """Return what the answer to an ATTACH or a VISIT tells of a session."""
    document = unpack(reply.payload or b"")
    retention = OutputPolicy.from_wire(document["retention"])
    record = Record(
        id=reply.session,
        pid=reply.body["pid"],
        argv=_words(document["argv"]),
        tty=document["tty"],
        scope=None,
        streams=tuple(document["streams"]),
        started=reply.body["started"],
        metadata=document["metadata"],
        kept=retention.size,
        block=retention.size if retention.kind == "block" else None,
        stays=reply.body.get("stays", False),
        request=reply.request,
    )
    if document["status"] is not None:
        record.end(ExitStatus.from_wire(document["status"]))
    return record


def _failed(asked: "asyncio.Future[Message]") -> bool:
    """Return whether a request has failed; so a failure that nobody awaits is seen."""
    return asked.cancelled() or asked.exception() is not None


def _document(launch: Launch) -> bytes:
    try:
        return launch.to_wire()
    except errors.ProtocolError as large:
        sizes = {
            "argv": sum(map(len, launch.argv)),
            "env": len(launch.env),
            "stdin": len(launch.stdin),
            "metadata": sum(len(key) + len(value) for key, value in launch.metadata),
        }
        largest = max(sizes, key=lambda name: sizes[name])
        raise errors.InvalidRequest(largest, f"is too large: {large}") from large


def _is_there(found: Snapshot | BaseException) -> TypeGuard[Snapshot]:
    """Return whether a listed session was still there for its snapshot.

    Raises:
        BaseException: the answer was another than that it is gone.
    """
    if isinstance(found, errors.SessionNotFound | errors.WorkerLost):
        return False
    if isinstance(found, BaseException):
        raise found
    return True


def _receipt(answer: list[Any]) -> KillReceipt | errors.EngineError:
    """Return what one session answered to the kill of many."""
    if len(answer) == 1:
        return KillReceipt.from_wire(answer[0])
    return errors.decode(*answer)


def _embedded() -> "Embedded":
    """Return the private broker of an engine, yet to be started."""
    from actors.embedded import Embedded  # noqa: PLC0415 - a shared one needs none

    return Embedded()
