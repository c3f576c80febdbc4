"""A child on a pseudo-terminal: start, input, size. System calls, no policy.

The worker holds both sides. The *master* is read and written; of the *slave* it keeps a
descriptor until the leader is reaped, so that a child which closes its terminal and
opens it again meets no hangup in between, and a read that fails with EIO means the end.

What the child wrote goes through a buffer that FIONREAD does not count: after 8000
bytes it answered 4095, in every one of 300 starts. But a read first waits until that
buffer is handed over. So "nothing more was there" is known from a read that finds
nothing, not from a count.

The child is started with posix_spawn: a new session leader that opens the slave as its
standard input gets it as its controlling terminal, with no code of ours between fork
and exec (0.16 ms; with such code 1.6 ms). posix_spawn knows neither directory nor
umask: the worker, which has one thread, borrows the child's for the call. Where limits
differ the child is forked and takes the terminal by itself.
"""

import errno
import fcntl
import os
import signal
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from actors import posix_spawn, process
from actors.discipline import Discipline, Line
from actors.launch import Launch
from actors.settings import TtySize
from broker.errors import InvalidRequest, SpawnFailed, StdinUnavailable

IN_FLIGHT: Final = 16 * 1024
"""Bytes that a terminal holds at most on their way to us: 4 KiB to read, 8 behind."""
TIOCSIG: Final = 0x40045436
"""Signal the foreground group, which the kernel knows by itself: no number is used."""
LFLAG: Final = 3
"""Index of the local modes in what `tcgetattr` gives."""


class Terminal(process.Process):
    """A started child and this side of its terminal.

    The master is held twice, for reading and for typing, so that input can be closed
    while output goes on. Closing both hangs the terminal up.
    """

    def __init__(
        self, pid: int, typing: int, master: int, slave: int, size: TtySize
    ) -> None:
        super().__init__(pid, typing, {"stdout": master})
        self.size = size
        self._slave: int | None = slave
        self._queued = Line()
        self._entered = Line()

    def capacity(self, stream: str) -> int:  # noqa: ARG002 - there is but one
        """Return how many bytes a read gives at least if more may be there."""
        return 1

    def widen(self, stream: str) -> None:
        """Leave it as it is: it is no pipe."""

    def read_into(self, stream: str, room: memoryview) -> int | None:
        """Read what is there into `room`: bytes, 0 at the end, None when nothing is."""
        try:
            return super().read_into(stream, room)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return 0  # no slave is open any more, and everything was read

    def waiting(self, stream: str) -> int:  # noqa: ARG002 - there is but one
        """Return how many bytes can be on their way at most: none are counted."""
        return IN_FLIGHT

    def check_input(self, data: bytes) -> None:
        """Take note of input that is going to be written.

        Raises:
            InvalidRequest: it has a line that canonical mode would cut.
            StdinUnavailable: nothing that is typed arrives any more.
        """
        try:
            discipline = self._discipline()
        except OSError as hangup:
            raise StdinUnavailable("the child has hung its terminal up") from hangup
        discipline.check(data, self._queued)
        self._queued = discipline.unfinished(data, self._queued)

    def write(self, data: memoryview) -> int:
        """Write what fits; 0 when the terminal takes nothing now."""
        discipline = self._discipline()
        count = super().write(data)
        written = bytes(data[:count])
        self._entered = discipline.unfinished(written, self._entered)
        return count

    def last_input(self) -> bytes:
        """Return what tells the child that its input has ended.

        Raises:
            InvalidRequest: the terminal has no such thing now.
        """
        try:
            discipline = self._discipline()
        except OSError:  # who reads on a terminal that is hung up finds the end
            return b""
        if not discipline.eof:
            why = "has no end-of-file character"
            if not discipline.canonical:
                why = (
                    "the terminal is in raw mode, where no key ends the input for "
                    "certain: write what this program takes as its end, such as '\\x04'"
                )
            raise InvalidRequest("tty", why)
        # One is an ordinary byte where the last one before makes it so, and with that a
        # line is pending, if it was dropped before; one more completes what is pending.
        length, quotes = self._entered
        return discipline.eof * (1 + quotes + (quotes or length > 0))

    def resize(self, size: TtySize) -> None:
        """Set the size, of which the kernel tells the child; nothing after its end."""
        if self._slave is not None:
            with suppress(termios.error):  # it is hung up: nobody sees its size
                termios.tcsetwinsize(self._slave, (size.rows, size.cols))
            self.size = size

    def drop_input(self) -> bool:
        """Drop what was typed and not read, unless NOFLSH is set.

        The kernel drops, too, what it has not handed to the line discipline yet, so
        nothing that was written comes up later.
        """
        if self._slave is None:
            return False
        try:
            if termios.tcgetattr(self._slave)[LFLAG] & termios.NOFLSH:
                return False
            termios.tcflush(self._slave, termios.TCIFLUSH)
        except termios.error:  # it is hung up: nobody reads what was typed
            return False
        # The kernel has not forgotten that the next byte is to be an ordinary one.
        self._entered = Line(quotes=self._entered.quotes)
        self._queued = self._entered
        return True

    def interrupt(self) -> bool:
        """Send SIGINT to the foreground group, as ^C does."""
        if self._slave is None or "stdout" not in self.outputs:
            return False
        fcntl.ioctl(self.outputs["stdout"], TIOCSIG, signal.SIGINT)
        return True

    def on_exit(self) -> None:
        """Let go of the slave: what is left of the tree keeps the terminal, or none."""
        if self._slave is not None:
            os.close(self._slave)
            self._slave = None

    def close(self) -> None:
        """Close every descriptor that is left."""
        self.on_exit()
        super().close()

    def _discipline(self) -> Discipline:
        """Return how input is treated now.

        Raises:
            OSError: a privileged child has hung the terminal up, by vhangup(2).
        """
        assert self._slave is not None  # nobody writes after the end
        try:
            return Discipline.of(termios.tcgetattr(self._slave))
        except termios.error as hangup:
            raise OSError(*hangup.args) from hangup


def start(launch: Launch, size: TtySize, fds: tuple[int, ...] = ()) -> Terminal:
    """Start the child of `launch` on a new terminal; its exec has succeeded.

    It gets copies of `fds` under the numbers in `launch.pass_fds`.

    Raises:
        SpawnFailed: with the system's errno and the step that failed; nothing is left.
    """
    opened: list[int] = []
    try:
        master, slave, typing = _open(size, opened)
        pid = process.retried(lambda: _start(launch, slave, fds))
    except BaseException:
        for fd in opened:
            os.close(fd)
        raise
    return Terminal(pid, typing, master, slave, size)


def _open(size: TtySize, opened: list[int]) -> tuple[int, int, int]:
    try:
        master, slave = os.openpty()
        opened += [master, slave]
        typing = os.dup(master)
        opened.append(typing)
        os.set_blocking(master, False)
        termios.tcsetwinsize(slave, (size.rows, size.cols))
    except OSError as error:
        raise SpawnFailed(error.errno or 0, "pty") from error
    return master, slave, typing


def _start(launch: Launch, slave: int, fds: tuple[int, ...]) -> int:
    steps = process.preparations(launch, fds)
    if not steps:
        return _spawn(launch, slave)
    steps = (*steps, process.Step(b"pty", _take_terminal))
    return process.fork_exec(launch, (slave, slave, slave), steps)


def _take_terminal() -> None:
    """Make standard input the controlling terminal; runs in the child."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _spawn(launch: Launch, slave: int) -> int:
    try:
        path = os.fsencode(os.ttyname(slave))
    except OSError as error:  # /dev/pts is not the one that the terminal belongs to
        raise SpawnFailed(error.errno or 0, "pty") from error
    program = launch.executable or launch.argv[0]
    with _place(launch):
        try:
            return _spawn_first(launch, program, path)
        except OSError as error:
            code = error.errno or 0
            step = "fork" if code in (errno.EAGAIN, errno.ENOMEM) else "exec"
            raise SpawnFailed(code, step, process.text(program)) from error


def _spawn_first(launch: Launch, program: bytes, terminal: bytes) -> int:
    """Start the first candidate that can be started.

    Raises:
        OSError: there is none; the first error that is not a missing file, else that.
    """
    told: OSError | None = None
    missing: OSError | None = None
    env = launch.variables
    for candidate in process.candidates(program, env):
        try:
            os.stat(candidate)  # a look costs 2 us, a failing start 150
            return posix_spawn.spawn(candidate, launch.argv, env, terminal)
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = error
        except OSError as error:
            told = told or error
    failure = told or missing
    assert failure is not None  # there is a candidate at least
    raise failure


@contextmanager
def _place(launch: Launch) -> Iterator[None]:
    """Stand where the child shall start, with its umask, for the time of the start."""
    try:
        home = os.open("/proc/self/cwd", os.O_PATH | os.O_CLOEXEC)
    except OSError as error:  # no descriptor is to be had
        raise SpawnFailed(error.errno or 0, "pty") from error
    mask = os.umask(launch.umask)
    try:
        _enter(launch.cwd)
        yield
    finally:
        os.umask(mask)
        _return_to(home)


def _enter(cwd: bytes) -> None:
    try:
        os.chdir(cwd)
    except OSError as error:
        raise SpawnFailed(error.errno or 0, "cwd", process.text(cwd)) from error


def _return_to(home: int) -> None:
    try:
        os.fchdir(home)
    except PermissionError:  # a place where we could not go, only be
        os.chdir("/")
    finally:
        os.close(home)
