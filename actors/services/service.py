"""Services: helpers that are started once, used by many, and stopped in any case.

What becomes of one is `running`'s; here are its users, and who asks for which.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Self

from actors import checks
from actors.child import Data
from actors.connection import Connection
from actors.events import Completed
from actors.oneshot import run
from actors.services.command import add
from actors.services.running import Running, taken_back
from actors.services.spec import ServiceSpec
from broker import errors

__all__ = ["Service", "Services", "close_all", "specs_of"]


class Service:
    """A running service, as one of its users has it.

    Made by `Engine.service`. It is stopped once every user has closed it, at the latest
    with the engine. An async context manager: leaving it closes it.
    """

    def __init__(self, running: Running, connection: Connection) -> None:
        self._running = running
        self._connection = connection
        self._closed = False

    @property
    def name(self) -> str:
        """What it is."""
        return self._running.spec.name

    @property
    def owner(self) -> str:
        """For whom it is."""
        return self._running.spec.owner

    @property
    def pid(self) -> int:
        """The process id of its start command."""
        return self._running.pid

    @property
    def environment(self) -> dict[str, str]:
        """A copy of what its start command got."""
        return dict(self._running.environment)

    async def run(
        self,
        argv: Any,
        *,
        input: Data | None = None,
        timeout: float | None = None,
        check: bool = False,
        limit: int | None = None,
        **options: Any,
    ) -> Completed:
        """Run a command on behalf of the service, with its environment.

        Stopping the service waits for it.

        Args:
            argv: the command.
            input: bytes (or text) for its stdin, which is closed after them.
            timeout: seconds; then the tree is terminated.
            check: raise for a failure status.
            limit: bytes of output to keep.
            options: see `Spec`; `extra_env` is laid over the service's environment.

        Raises:
            ServiceFailed: the service has ended (`exited`), or is being stopped
                (`dropped`): then a call that runs is ended, if the engine is closed.
            SessionNotFound: this user has closed it.
            CommandFailed, TimedOut, OutputLimitExceeded, SpawnFailed, InvalidRequest,
            CapacityExceeded, WorkerLost: see `Engine.run`.
        """
        self._connection.check()
        if self._closed:
            raise errors.SessionNotFound(f"the service {self.name!r} was closed")
        async with self._running.call():
            return await run(
                self._connection,
                None,
                argv,
                input=input,
                timeout=timeout,
                limit=limit,
                check=check,
                check_open=self._connection.check,
                deadline=asyncio.timeout,
                options={"env": self._running.environment, **options},
            )

    async def aclose(self) -> None:
        """Stop using it; harmless to repeat.

        For the last user it returns once the service has been stopped: the calls that
        run have ended, the stop command has, and nothing is left of the start command.
        That goes on when this is cancelled.

        Raises:
            ServiceFailed: the stop command failed; the service has ended all the same.
            EngineError: the start command's tree could not be proven gone; or the
                stop command cannot be run now (`CapacityExceeded`, `SpawnFailed`), and
                is left to the next engine.
            BrokerLost: the engine is lost; the stop command is left to the next one.
        """
        self._connection.check(alive=False)
        if self._closed:
            if self._running.users == 0:
                await self._running.over_with()
            return
        self._closed = True
        self._running.leave()
        if self._running.users == 0:
            await self._running.ended()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Services:
    """The services of one engine."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._running: dict[tuple[str, str], Running] = {}
        self._closed = False

    async def get(self, spec: ServiceSpec, cancel: object = None) -> Service:
        """Return a service that is ready; see `Engine.service`.

        Raises:
            InvalidRequest, ServiceFailed, EngineError: see there.
        """
        checks.instance(ServiceSpec)("spec", spec)
        running = await self._find(spec)
        running.users += 1
        try:
            await self._await_ready(running, cancel)
        except BaseException:
            running.leave()
            self._forget(running)
            raise
        return Service(running, self._connection)

    async def _find(self, spec: ServiceSpec) -> Running:
        while (running := self._running.get(spec.key)) is not None and running.over:
            await running.over_with()
            if self._running.get(spec.key) is running:
                del self._running[spec.key]
        if self._closed:
            raise errors.ServiceFailed("dropped", "the engine is closed")
        if running is None:
            running = Running(self._connection, spec, self._forget)
            self._running[spec.key] = running
        if running.spec != spec:
            why = f"another service {spec.name!r} of {spec.owner!r} runs"
            raise errors.InvalidRequest("spec", why)
        return running

    def _forget(self, running: Running) -> None:
        """Forget a service that has ended, unless somebody has it still."""
        known = self._running.get(running.spec.key) is running
        if known and running.done and running.users == 0:
            del self._running[running.spec.key]

    async def _await_ready(self, running: Running, cancel: object) -> None:
        if cancel is None:
            await running.ready()
            return
        ready = asyncio.ensure_future(running.ready())
        fired = asyncio.ensure_future(_fired(cancel))
        try:
            await asyncio.wait((ready, fired), return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                if running.users > 1:
                    what = f"waiting for {running.spec.name!r} was given up"
                    raise errors.ServiceFailed("cancelled", what)
                running.give_up("cancelled")
            await ready
        finally:
            await taken_back(ready, fired)

    async def get_all(
        self, specs: Iterable[ServiceSpec], cancel: object = None
    ) -> list[Service]:
        """Return several services, started one after the other; see there.

        Raises:
            InvalidRequest, ServiceFailed, EngineError: see `Engine.services`.
        """
        got: list[Service] = []
        try:
            for spec in specs_of(specs):
                service = await self.get(spec, cancel)
                got.append(service)
        except BaseException as first:
            for later in await close_all(got):
                add(first, later)
            raise
        return got

    async def close(self) -> None:
        """Stop all of them, whoever uses them, and end the calls that run.

        Raises:
            ExceptionGroup: what failed of that, unless an earlier call has told it.
        """
        self._closed = True
        running = self._running.copy()
        for one in running.values():
            one.give_up("dropped")
            one.break_off()  # their ends may never come
        results = await asyncio.gather(
            *(one.ended() for one in running.values()), return_exceptions=True
        )
        failed = [
            result
            for (key, one), result in zip(running.items(), results, strict=True)
            if self._running.pop(key, None) is not None  # nobody was told
            if isinstance(result, Exception) and one.used
            if not isinstance(result, errors.BrokerLost)  # it is left, not lost
        ]
        if failed:
            raise ExceptionGroup("closing the services", failed)


async def close_all(services: list[Service]) -> list[errors.EngineError]:
    """Close services, the last one first; return what failed of that.

    It goes on when the caller is cancelled.
    """
    return await asyncio.shield(asyncio.ensure_future(_close_each(services)))


async def _close_each(services: list[Service]) -> list[errors.EngineError]:
    failed = []
    for service in reversed(services):
        try:
            await service.aclose()
        except errors.EngineError as failure:
            failed.append(failure)
    return failed


def specs_of(specs: object) -> list[Any]:
    """Return what an iterable of services' specs gives.

    Raises:
        InvalidRequest: it is none, or a text, which gives characters.
    """
    if isinstance(specs, str | bytes) or not isinstance(specs, Iterable):
        raise errors.InvalidRequest("specs", "must be an iterable of ServiceSpec")
    return list(specs)


async def _fired(cancel: Any) -> None:
    if isinstance(cancel, asyncio.Event):
        await cancel.wait()
    else:
        await asyncio.wait([cancel])
