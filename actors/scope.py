"""Scopes: named groups of children with one owner, which end together."""

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from actors.child import Child
from actors.connection import Connection, Room
from actors.events import Completed, KillReceipt, Snapshot
from actors.many import Results
from actors.oneshot import run
from actors.pause import Timeouts
from actors.record import Record
from actors.shell import Shell, shell_argv, shell_options
from actors.spec import Spec
from actors.subscription import LifecycleStream
from broker import errors

if TYPE_CHECKING:
    from pathlib import Path


class Scope:
    """A group of children; leaving it, also by an exception, ends them all.

    Made by `Engine.scope`. It holds its children: collecting a handle does nothing.

    Attributes:
        name: unique among its engine's open scopes.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        cancel: object,
        room: Room,
        on_close: Callable[[str], object],
    ) -> None:
        self.name = name
        self._connection = connection
        connection.rooms[name] = room
        self._on_close = on_close
        self._closed = False
        self._timeouts = connection.timeouts[name] = Timeouts()
        self._guard: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        if cancel is not None:
            self._guard = asyncio.ensure_future(self._close_on(cancel))
            connection.guards.add(self._guard)
            self._guard.add_done_callback(connection.guards.discard)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _close_on(self, cancel: Any) -> None:
        if isinstance(cancel, asyncio.Event):
            await cancel.wait()
        else:
            await asyncio.wait([cancel])
        self._guard = None
        await self.aclose()

    async def spawn(self, argv: Any, **options: Any) -> Child:
        """Start a child that this scope owns; see `Engine.spawn`.

        Raises:
            SessionNotFound: the scope is closed, or was while the child started, or
                waited for room.
        """
        self._check()
        record = await self._connection.start(Spec(argv, **options), self.name)
        if self._closed:
            record.let_go(self.name)
            if not (record.released or self._connection.shares(record)):
                await self._connection.release(record)
            raise errors.SessionNotFound(f"the scope {self.name!r} closed meanwhile")
        return Child(self._connection, record, owned=False)

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
        """Run a command to its end within this scope; see `Engine.run`.

        Raises:
            SessionNotFound: the scope is closed, or was before the command ended.
        """
        self._check()
        return await run(
            self._connection,
            self.name,
            argv,
            input=input,
            timeout=timeout,
            limit=limit,
            check=check,
            into=into,
            check_open=self._check,
            deadline=self._timeouts.timeout,
            options=options,
        )

    def map(
        self,
        specs: Iterable[Any] | AsyncIterable[Any],
        *,
        concurrency: int | None = None,
        ordered: bool = False,
    ) -> Results:
        """Run many commands in this scope, a few at a time; iterate over their results.

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
            SessionNotFound: the scope is closed.
        """
        self._check()
        return Results(
            self._connection,
            self.name,
            specs,
            concurrency=concurrency,
            ordered=ordered,
            check_open=self._check,
        )

    async def shell(
        self, argv: Any = ("bash", "--noprofile", "--norc"), **options: Any
    ) -> Shell:
        """Start a persistent shell that this scope owns.

        Args:
            argv: bash, or a shell that understands its language.
            options: see `Spec`; its streams and their retention are the shell's own
                matter.

        Raises:
            InvalidRequest, SpawnFailed, CapacityExceeded, SessionNotFound: as for
                `spawn`.
            ShellEnded, TimedOut: the program does not behave as a shell.
        """
        child = await self.spawn(shell_argv(argv), **shell_options(options))
        return await Shell.opened(child, self._connection.settings)

    async def children(self) -> list[Snapshot]:
        """Return this scope's live sessions, by id.

        Raises:
            SessionNotFound: the scope is closed.
        """
        self._check()
        return await self._connection.children(self.name, ended=False)

    def pause(self) -> None:
        """Stop the clock of this scope, as while a person is being asked.

        Until `resume` the deadlines of its children stand still: `timeout`,
        `idle_timeout`, the wait for pipes after the end, polls and reads, and the
        `timeout` of `run`, also of a shell's, of `expect`, `ready` and `Screen.follow`.
        Kills and their deadlines do not, nor does the `timeout` of `Child.wait`. Pauses
        nest. A child that starts meanwhile is paused from its start.

        Raises:
            SessionNotFound: the scope is closed.
            RuntimeContext: it was called outside of the engine's loop.
        """
        self._check()
        if self._timeouts.pause():
            self._connection.pause(self.name, paused=True)

    def resume(self) -> None:
        """Take one `pause` back; with the last one the clock goes on.

        A scope that closed meanwhile has no clock any more.

        Raises:
            InvalidRequest: it was not paused.
            RuntimeContext: it was called outside of the engine's loop.
        """
        self._connection.check(alive=False)
        if not self._timeouts.depth:
            raise errors.InvalidRequest(
                "resume", "takes back a pause, and there is none"
            )
        if self._timeouts.resume() and not self._closed:
            self._connection.pause(self.name, paused=False)

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

    def events(self) -> LifecycleStream:
        """Return an async iterator of what happens to this scope's children.

        It outlives the scope, so that it tells of all their ends.

        Raises:
            SessionNotFound: the scope is closed.
        """
        self._check()
        return self._connection.watch(self.name)

    async def kill(self) -> list[KillReceipt | errors.EngineError]:
        """End every child of this scope now, and keep them readable.

        Returns:
            One receipt each, in the order of their ids; in the place of one that is
            gone already stands its `SessionNotFound`.

        Raises:
            SessionNotFound: the scope is closed.
        """
        self._check()
        owned = self._connection.owned_by(self.name)
        return await self._connection.kill_many([record.id for record in owned])

    async def scratch(self) -> "Path":
        """Return a private directory of this scope, mode 0700; made at the first call.

        It is removed with all that is in it when the scope or the engine is closed and
        every child is gone. What a killed client left, or a scope whose children live
        on, is removed when the next engine with this root starts, unless a child that
        was started after the directory was made still lives. Its place is
        `Settings.scratch_root`.

        Raises:
            InvalidRequest: `settings.scratch_root` is a symbolic link, not this user's,
                or open to others; or something lies at the directory's place already.
            SessionNotFound: the scope is closed, or was meanwhile.
        """
        self._check()
        path = await self._connection.scratches.path(self.name)
        self._check()
        return path

    async def aclose(self) -> int:
        """End and release every child, in parallel; return how many that were.

        Those that outlive an owner (`kill_on_drop=False`, `detach_ttl`) only lose it,
        and those that others have by their `request_id` stay theirs.

        Then the scratch directory is removed, unless one of these children lives on in
        it. Cancelling this stops the waiting, not the closing; a second call waits for
        it as well.

        Raises:
            ExceptionGroup: what failed, each with a note that names its session, or
                the scratch directory.
            WrongProcess: this is a forked copy, which owns nothing.
        """
        self._connection.check(alive=False)
        if self._closed:
            if self._closing is not None:
                await asyncio.wait([self._closing])
            return 0
        self._closed = True
        if self._guard is not None:
            self._guard.cancel()
        self._on_close(self.name)
        if self.name in self._connection.paused:  # what stays goes on
            self._connection.pause(self.name, paused=False)
        scratch = self._connection.scratches.leave(self.name)
        self._connection.rooms.pop(self.name, None)
        self._connection.timeouts.pop(self.name, None)
        self._connection.cancel_starts(self.name)
        owned = self._leave_to_others(self._connection.owned_by(self.name))
        # A task of its own: it goes on when the caller is cancelled.
        self._closing = asyncio.ensure_future(self._end(owned, scratch))
        await asyncio.shield(self._closing)
        return sum(not record.stays for record in owned)

    def _leave_to_others(self, owned: list[Record]) -> list[Record]:
        """Return those of a closing scope that nobody else owns; let go of the rest."""
        for record in owned:
            record.owners.pop(self.name)
        return [record for record in owned if not self._connection.shares(record)]

    async def _end(
        self, owned: list[Record], scratch: "asyncio.Future[Any] | None"
    ) -> None:
        results = await asyncio.gather(
            *map(self._connection.release, owned), return_exceptions=True
        )
        failed = []
        for record, result in zip(owned, results, strict=True):
            if isinstance(result, Exception):
                result.add_note(f"while closing session {record.id} {record.argv!r}")
                failed.append(result)
        if scratch is not None and failed:
            self._connection.scratches.keep(scratch)
        elif scratch is not None:
            patient = not any(record.stays for record in owned)
            try:
                await self._connection.scratches.remove(scratch, patient=patient)
            except (errors.EngineError, OSError) as error:
                error.add_note("while removing the scratch directory")
                failed.append(error)
        if failed:
            raise ExceptionGroup(f"closing the scope {self.name!r}", failed)

    def _check(self) -> None:
        self._connection.check()
        if self._closed:
            raise errors.SessionNotFound(f"the scope {self.name!r} is closed")
