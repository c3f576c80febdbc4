"""What a client knows of a session without asking: one record for all its handles."""

import asyncio
import os
from dataclasses import dataclass, field
from typing import Any

from actors.events import ExitStatus
from broker import errors


@dataclass(slots=True, eq=False)
class Record:
    """A session as its client sees it; exits are pushed into it.

    Attributes:
        process: pid of the process that started the session.
        tty: whether the child has a terminal.
        kept: bytes of output that the worker's log holds.
        block: the same where the child is held back when it is full, else None.
        token: of the spawn that has started it here; empty if it was attached.
        owners: how many living handles, runs and calls of a scope own the session, each
            from its answer on: by the name of the scope, None for those of the engine.
        released: whether the broker was told to forget the session.
        stays: whether it lives on without an owner, if that one goes.
        named: whether a start of it had a request id: then others may have it, too.
        holdings: numbers under which its handles hold the log back.
        request: of the ATTACH or VISIT that it comes from; 0: it was spawned.
    """

    id: int
    pid: int
    argv: tuple[str, ...]
    scope: str | None
    streams: tuple[str, ...]
    tty: bool
    started: float
    metadata: dict[str, str]
    kept: int
    block: int | None
    process: int = field(default_factory=os.getpid)
    token: str = ""
    owners: dict[str | None, int] = field(default_factory=dict)
    status: ExitStatus | None = None
    failure: errors.EngineError | None = None
    released: bool = False
    stays: bool = False
    named: bool = False
    waiters: set[asyncio.Future[Any]] = field(default_factory=set)
    holdings: set[int] = field(default_factory=set)
    request: int = 0

    def hold(self, scope: str | None) -> None:
        """Count one more owner."""
        self.owners[scope] = self.owners.get(scope, 0) + 1

    def let_go(self, scope: str | None) -> None:
        """Count one owner less, unless its scope has closed meanwhile."""
        left = self.owners.pop(scope, 0) - 1
        if left > 0:
            self.owners[scope] = left

    @property
    def over(self) -> bool:
        """Whether nothing is left to give up: that was done, or its broker did it."""
        return self.released or isinstance(self.failure, errors.SessionNotFound)

    def here(self, process: int) -> bool:
        """Return whether this is still the process that made the handle."""
        return os.getpid() == process

    def check_owner(self) -> None:
        """Refuse a call by the record of an owner that is none any more.

        Whatever waited for its turn asks again: it may have been robbed meanwhile.

        Raises:
            SessionOwned: somebody else owns the session, or nobody.
        """
        if isinstance(self.failure, errors.SessionOwned):
            raise self.failure

    def end(self, status: ExitStatus) -> None:
        """Take the final status; the first one stays."""
        if self.status is None:
            self.status = status
            self._wake()

    def fail(self, error: errors.EngineError) -> None:
        """Note that nothing more will be heard of the session."""
        if self.failure is None:
            self.failure = error
            self._wake()

    def _wake(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


def check_caller(process: int, loop: asyncio.AbstractEventLoop) -> None:
    """Refuse a call from a forked copy, or from elsewhere than the loop of its engine.

    Iterators ask in each step. It costs two getpid(2), one of them asyncio's own.

    Raises:
        WrongProcess, RuntimeContext: see there.
    """
    if os.getpid() != process:
        raise errors.WrongProcess
    try:
        running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is not loop:
        raise errors.RuntimeContext("its engine belongs to another event loop")


def lost_status(started: float) -> ExitStatus:
    """Return the status of a session whose worker was lost: nothing is known."""
    return ExitStatus(code=None, cause="worker-lost", started=started)
