"""A person at a terminal: types keys, sees a screen."""

import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from actors import Screen, TtySize, ignition
from tests.helpers import NOT_BLOCKED, eventually

CRECHE = [sys.executable, "-m", "actors"]
PATIENCE = 3 * NOT_BLOCKED
"""Seconds for a whole command, engine and all, on a busy machine."""
LONGEST = 8 * PATIENCE
"""Seconds for a test of several commands."""
LAST = b"\0"
"""What no screen shows, and comes behind all that a command wrote."""


def _environment() -> dict[str, str]:
    plain = ignition.environment() | {"PS1": "$ ", "TERM": "xterm"}
    # They would count more than the terminal.
    return {k: v for k, v in plain.items() if k not in ("COLUMNS", "LINES")}


class Person:
    """Someone before a terminal in which a command runs.

    Attributes:
        process: the command.
        screen: what the terminal shows.
        output: all that was written to it.
    """

    def __init__(self, command: list[str], size: TtySize, env: dict[str, str]) -> None:
        self.screen = Screen(size)
        self.output = b""
        self._master, self._slave = os.openpty()
        os.set_blocking(self._master, False)
        termios.tcsetwinsize(self._slave, (size.rows, size.cols))
        self._before = self.modes()
        self.process = subprocess.Popen(
            command,
            env=_environment() | env,
            preexec_fn=self._sit_down,  # noqa: PLW1509 - two calls
            close_fds=False,
        )

    def _sit_down(self) -> None:
        """Take the terminal, as a shell's child that ignores no signal."""
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        os.login_tty(self._slave)

    @classmethod
    @contextmanager
    def at(
        cls, *words: str, rows: int = 10, cols: int = 50, **env: str
    ) -> Iterator[Self]:
        """Run `creche` for a block; it has to have ended by then, or is killed."""
        with cls.before([*CRECHE, *words], rows, cols, **env) as person:
            yield person

    @classmethod
    @contextmanager
    def before(
        cls, command: list[str], rows: int, cols: int, **env: str
    ) -> Iterator[Self]:
        """Run any command for a block; it has to have ended by then, or is killed."""
        person = cls(command, TtySize(rows, cols), env)
        try:
            yield person
        finally:
            person.process.kill()
            person.process.wait()
            os.close(person._master)
            os.close(person._slave)

    def types(self, keys: str | bytes) -> None:
        """Type keys, as fast as the terminal takes them."""
        rest = keys.encode() if isinstance(keys, str) else keys
        room = select.poll()
        room.register(self._master, select.POLLOUT)
        while rest:
            eventually(lambda: room.poll(0), PATIENCE, lambda: "no room for keys")
            with suppress(BlockingIOError):  # it has less
                rest = rest[os.write(self._master, rest) :]

    def sees(self, what: str | Callable[[str], Any]) -> str:
        """Look at the screen until it shows a text, or a fact holds of it."""
        fact = what if callable(what) else lambda text: what in text
        self._look(lambda: fact(self.screen.text), repr(what))
        return self.screen.text

    def gets(self, fact: Callable[[bytes], Any]) -> None:
        """Look until a fact holds of all that the terminal was given."""
        self._look(lambda: fact(self.output), "such output")

    def _look(self, fact: Callable[[], Any], what: str) -> None:
        ends = time.monotonic() + PATIENCE
        while not fact():
            left = ends - time.monotonic()
            seen = f"{self.screen.text}\nlast: {self.output[-500:]!r}"
            assert left > 0, f"no {what}, but:\n{seen}"
            self._read(min(left, 0.05))

    def _read(self, wait: float) -> bytes:
        data = b""
        if select.select([self._master], [], [], wait)[0]:
            with suppress(OSError):  # hung up
                data = os.read(self._master, 65536)
                self.output += data
                self.screen.feed(data)
        return data

    def resizes(self, rows: int, cols: int) -> None:
        """Pull at the window's corner."""
        self.screen.resize(TtySize(rows, cols))
        termios.tcsetwinsize(self._master, (rows, cols))

    def hangs_up(self) -> None:
        """Close the window."""
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nothing, self._master, inheritable=False)
        os.close(nothing)

    def signals(self, number: signal.Signals) -> None:
        """Send the command a signal."""
        self.process.send_signal(number)

    def has_it_back(self) -> None:
        """Set the terminal as it was at first, as a shell does for itself."""
        termios.tcsetattr(self._slave, termios.TCSANOW, self._before)

    def modes(self) -> list[Any]:
        """Return how the terminal is set."""
        return termios.tcgetattr(self._slave)

    @property
    def unread(self) -> int:
        """How many bytes were typed that nobody has read."""
        count = fcntl.ioctl(self._slave, termios.FIONREAD, bytes(4))
        return int.from_bytes(count, sys.byteorder)

    @property
    def raw(self) -> bool:
        """Whether keys come as they are typed."""
        return not self.modes()[3] & termios.ICANON

    def ended(self) -> int:
        """Wait for the command, and see its last words. Return its code.

        Its terminal has to be as it was.
        """
        self._look(lambda: self.process.poll() is not None, "end")
        assert self.modes() == self._before
        while self._read(0):
            pass  # so that there is room for more
        os.write(self._slave, LAST)  # the kernel may not have passed on what was before
        self._look(lambda: self.output.endswith(LAST), "last words")
        self.output = self.output.removesuffix(LAST)
        code = self.process.returncode
        assert code is not None
        return code
