"""Starting and ending the private broker of one engine."""

import asyncio
import os

from actors import ignition
from actors.settings import Settings
from broker import errors
from broker.link import in_time


class Embedded:
    """The private broker of an engine, by its supervisor process."""

    def __init__(self) -> None:
        self._supervisor: ignition.Supervisor | None = None

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        assert self._supervisor is not None
        return self._supervisor.process.pid

    async def start(self, settings: Settings) -> str:
        """Start the engine's processes and return the endpoint they listen at.

        Raises:
            BrokerLost: they did not come up in time.
            InvalidRequest: the runtime directory, or a setting, is refused.
            OSError: the system refused to start them.
        """
        asked = settings.warm, settings.containment
        supervisor = ignition.take(*asked) or ignition.Supervisor.execute(*asked)
        self._supervisor = supervisor
        try:
            line = await in_time(_line(supervisor), settings.start_timeout)
        except TimeoutError:
            line = f"failed no answer within {settings.start_timeout} seconds"
        word, _, rest = line.partition(" ")
        if word == "ready":
            return rest
        await self.stop()
        if word == "refused":
            field, _, why = rest.partition(" ")
            raise errors.InvalidRequest(field, why)
        raise errors.BrokerLost(f"the engine did not start: {rest or 'it ended'}")

    async def stop(self) -> None:
        """Have everything end, and wait until it has; harmless to repeat."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.dismiss()
            await _ended(supervisor)


async def _line(supervisor: ignition.Supervisor) -> str:
    loop, data = asyncio.get_running_loop(), b""
    while not data.endswith(b"\n"):
        part = await loop.sock_recv(supervisor.keeper, 4096)
        if not part:
            break
        data += part
    return os.fsdecode(data.strip())


async def _ended(supervisor: ignition.Supervisor) -> None:
    """Wait for its end without blocking the loop."""
    loop, process = asyncio.get_running_loop(), supervisor.process
    pidfd = os.pidfd_open(process.pid)
    over = loop.create_future()
    loop.add_reader(pidfd, _settle, over)
    try:
        async with asyncio.timeout(ignition.END_TIMEOUT):
            await over
    except TimeoutError:
        process.kill()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
    process.wait()


def _settle(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)
