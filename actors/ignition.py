"""Executing the supervisor of a private broker, before much is imported.

An engine executes one as it starts. A command that knows early that it will need an
engine has one come up *ahead*, while it imports the engine itself: both take 0.1 s.

However early this process dies, its supervisor sees the end of the keeper's socket, or
that its parent is another, and ends everything.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, Self

import broker

END_TIMEOUT: Final = 20.0
"""Seconds for the engine processes to end: they kill trees that may resist."""
LOG_VARIABLE: Final = "CRECHE_LOG"
"""Names a file that unhandled errors of engine processes are appended to."""


class Supervisor(NamedTuple):
    """A supervisor process, a child of this one, and the socket it watches."""

    process: subprocess.Popen[bytes]
    keeper: socket.socket

    @classmethod
    def execute(cls, warm: int, containment: str) -> Self:
        """Execute a supervisor; it tells over the socket when its engine is up.

        Args:
            warm: see `Settings.warm`.
            containment: see `Settings.containment`.

        Raises:
            OSError: the system refused it.
        """
        keeper, theirs = socket.socketpair()
        keeper.setblocking(False)
        try:
            with theirs:
                # vfork and exec of one program: about a millisecond, once per engine.
                process = subprocess.Popen(
                    _command(theirs.fileno(), warm, containment),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=(theirs.fileno(),),
                    cwd="/",
                    env=environment(),
                )
        except BaseException:
            keeper.close()
            raise
        return cls(process, keeper)

    def dismiss(self) -> None:
        """Have everything end; wait for it with `process`."""
        # A forked copy of this process may hold the socket: its end is no word.
        with suppress(OSError):  # the supervisor is gone already
            self.keeper.send(b"end\n")
        self.keeper.close()


_ahead: dict[tuple[int, str], Supervisor] = {}


@contextmanager
def ahead(*, warm: int, containment: str = "auto") -> Iterator[None]:
    """Have the supervisor of an engine come up that is about to be made within this.

    The next private engine of this process with these settings takes it. If none did,
    it is ended, and has ended when this is left.

    Raises:
        OSError: the system refused it.
    """
    _ahead[warm, containment] = Supervisor.execute(warm, containment)
    try:
        yield
    finally:
        supervisor = take(warm, containment)
        if supervisor is not None:
            supervisor.dismiss()
            with suppress(subprocess.TimeoutExpired):
                supervisor.process.wait(END_TIMEOUT)
            supervisor.process.kill()
            supervisor.process.wait()


def take(warm: int, containment: str) -> Supervisor | None:
    """Return the supervisor that comes up for these settings, for one engine."""
    return _ahead.pop((warm, containment), None)


def _command(keeper: int, warm: int, containment: str) -> list[str]:
    """Return the command line of the supervisor.

    `-P`: a file in the user's directory must not pass for a module of ours.
    """
    words = [sys.executable, "-P", "-m", "broker", "--keeper", str(keeper)]
    words += [str(os.getpid()), str(warm), containment]
    if log := os.environ.get(LOG_VARIABLE):
        words.append(os.path.abspath(log))
    return words


def environment() -> dict[str, str]:
    """Return the environment in which `-m broker` finds these very packages."""
    root = os.path.dirname(os.path.dirname(os.path.realpath(broker.__file__)))
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [root, *(os.path.abspath(path) for path in given if path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
