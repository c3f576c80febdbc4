"""Scopes: named groups of children with one owner, which end together."""

import asyncio
from collections.abc import Callable
from typing import Any, Self

from actors.child import Child
from actors.connection import Connection, Room
from actors.events import Completed, KillReceipt, Snapshot
from actors.run import run
from actors.spec import Spec
from actors.subscription import LifecycleStream
from broker import errors


class Scope:
    """A group of children; leaving it, also by an exception, ends them all.

    Made by `Engine.scope`. It holds its children: collecting a handle does nothing.
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
        self._guard: asyncio.Task[None] | None = None
        if cancel is not None:
            self._guard = asyncio.ensure_future(self._close_on(cancel))

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
            if not record.released:
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
            check_open=self._check,
            options=options,
        )

    async def children(self) -> list[Snapshot]:
        """Return this scope's live sessions, by id.

        Raises:
            SessionNotFound: the scope is closed.
        """
        self._check()
        return await self._connection.children(self.name)

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

    async def aclose(self) -> int:
        """End and release every child, in parallel; return how many that were.

        Those that outlive an owner (`kill_on_drop=False`, `detach_ttl`) only lose it.

        Raises:
            ExceptionGroup: what failed, each with a note that names its session.
            WrongProcess: this is a forked copy, which owns nothing.
        """
        self._connection.check(alive=False)
        if self._closed:
            return 0
        self._closed = True
        if self._guard is not None:
            self._guard.cancel()
        self._on_close(self.name)
        self._connection.rooms.pop(self.name, None)
        self._connection.cancel_starts(self.name)
        owned = self._connection.owned_by(self.name)
        results = await asyncio.gather(
            *map(self._connection.release, owned), return_exceptions=True
        )
        failed = []
        for record, result in zip(owned, results, strict=True):
            if isinstance(result, Exception):
                result.add_note(f"while closing session {record.id} {record.argv!r}")
                failed.append(result)
        if failed:
            raise ExceptionGroup(f"closing the scope {self.name!r}", failed)
        return sum(not record.stays for record in owned)

    def _check(self) -> None:
        self._connection.check()
        if self._closed:
            raise errors.SessionNotFound(f"the scope {self.name!r} is closed")
