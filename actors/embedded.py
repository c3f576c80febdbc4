"""Starting and ending the private broker of one engine."""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Final

from actors.settings import Settings
from broker import errors

END_TIMEOUT: Final = 20.0
"""Seconds for the engine processes to end: they kill trees that may resist."""
LOG_VARIABLE: Final = "CRECHE_LOG"
"""Names a file that unhandled errors of engine processes are appended to."""


class Embedded:
    """The supervisor process of a private broker, and the socket it watches."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: socket.socket | None = None

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        assert self._process is not None
        return self._process.pid

    async def start(self, settings: Settings) -> str:
        """Start the engine's processes and return the endpoint they listen at.

        Raises:
            BrokerLost: they did not come up in time.
            InvalidRequest: the runtime directory, or a setting, is refused.
        """
        self._keeper, theirs = socket.socketpair()
        self._keeper.setblocking(False)
        with theirs:
            # vfork and exec of one program: about a millisecond, once per engine.
            self._process = subprocess.Popen(  # noqa: ASYNC220 - see above
                command(theirs.fileno(), settings),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
                cwd="/",
                env=environment(),
            )
        try:
            async with asyncio.timeout(settings.start_timeout):
                line = await self._line()
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

    async def _line(self) -> str:
        assert self._keeper is not None
        loop, data = asyncio.get_running_loop(), b""
        while not data.endswith(b"\n"):
            part = await loop.sock_recv(self._keeper, 4096)
            if not part:
                break
            data += part
        return os.fsdecode(data.strip())

    async def stop(self) -> None:
        """Have everything end, and wait until it has; harmless to repeat."""
        process, keeper = self._process, self._keeper
        self._process = self._keeper = None
        if keeper is not None:
            # A forked copy of this process may hold the socket: its end is no word.
            with suppress(OSError):  # the supervisor is gone already
                keeper.send(b"end\n")
            keeper.close()
        if process is not None:
            await ended(process)


async def ended(process: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of a child of this process without blocking the loop."""
    loop = asyncio.get_running_loop()
    pidfd = os.pidfd_open(process.pid)
    over = loop.create_future()
    loop.add_reader(pidfd, _settle, over)
    try:
        async with asyncio.timeout(END_TIMEOUT):
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


def command(keeper: int, settings: Settings) -> list[str]:
    """Return the command line of the supervisor.

    `-P`: a file in the user's directory must not pass for a module of ours.
    """
    words = [sys.executable, "-P", "-m", "broker", "--keeper", str(keeper)]
    words += [str(os.getpid()), str(settings.warm), settings.containment]
    if log := os.environ.get(LOG_VARIABLE):
        words.append(os.path.abspath(log))
    return words


def environment() -> dict[str, str]:
    """Return the environment in which `-m broker` finds these very packages."""
    root = os.path.dirname(os.path.dirname(os.path.realpath(errors.__file__)))
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [root, *(os.path.abspath(path) for path in given if path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
