"""The terminal of the person who runs us: its size, and its raw mode and way back.

Raw is for a child that has a terminal of its own: that one does the echo and turns keys
into signals, so ours must not. Whatever ends us, the terminal is as before: the block
is left, an exception passes, or a signal that would end us at once comes: then it is
restored first. Only SIGKILL leaves it raw; `stty sane` helps. While we are stopped a
shell has it: it is raw again once we go on in front.
"""

import asyncio
import os
import signal
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import actors
from actors.console.stdio import GLANCE, STDERR, STDIN, STDOUT, in_front

ENDING: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""What would end a program at once."""


def size() -> actors.TtySize | None:
    """Return the size of the terminal we are at; None: there is none."""
    for fd in (STDIN, STDOUT, STDERR):
        with suppress(OSError):  # no terminal
            columns, rows = os.get_terminal_size(fd)
            if rows and columns:
                return actors.TtySize(rows, columns)
    return None


class Console:
    """The terminal on stdin, if there is one; else everything here does nothing."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    @property
    def there(self) -> bool:
        """Whether stdin is a terminal."""
        return os.isatty(STDIN)

    @contextmanager
    def raw(self) -> Iterator[None]:
        """Have every key come as it is typed, for a block."""
        if self.there:
            # Behind a shell this stops us, until the modes are not those of its own.
            termios.tcflow(STDIN, termios.TCOON)
            self._before = termios.tcgetattr(STDIN)
            # At once, and what was typed so far stays to be read.
            tty.setraw(STDIN, termios.TCSANOW)
        try:
            yield
        finally:
            self.restore()

    async def again(self) -> None:
        """Make it raw again, once it is ours: others had it while we were stopped."""
        while not in_front():  # noqa: ASYNC110 - there is no other way to hear of it
            await asyncio.sleep(GLANCE)
        if self._before is not None:
            with suppress(termios.error):  # it was hung up
                tty.setraw(STDIN, termios.TCSANOW)

    def restore(self) -> None:
        """Make the terminal what it was; harmless to repeat."""
        before, self._before = self._before, None
        if before is not None:
            with suppress(termios.error):  # it was hung up
                termios.tcsetattr(STDIN, termios.TCSANOW, before)

    def die(self, number: signal.Signals) -> None:
        """Restore the terminal, and end by a signal as if it had not been handled."""
        self.restore()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


@contextmanager
def handling(handlers: dict[signal.Signals, Callable[[], object]]) -> Iterator[None]:
    """Have functions called in the event loop for signals, for a block.

    Those that are ignored stay so: a shell ignores SIGINT for what it runs behind
    itself.
    """
    loop = asyncio.get_running_loop()
    taken = [n for n in handlers if signal.getsignal(n) is not signal.SIG_IGN]
    for number in taken:
        loop.add_signal_handler(number, handlers[number])
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
