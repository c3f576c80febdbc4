"""One operating-system child: start, pipes, non-blocking input and output. No policy.

The child is started with `_posixsubprocess.fork_exec`, the C function under
`subprocess.Popen`: it forks with vfork, changes directory, makes the session, and tells
which call failed; measured 80 us per start cheaper than Popen, and it pulls in none of
its imports. Every descriptor of the worker is close-on-exec, so that the child has 0-2
and what it is passed.
"""

import _posixsubprocess
import _socket
import errno
import fcntl
import os
import resource
import select
import signal
import struct
import termios
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final, NamedTuple

from actors.launch import Launch
from actors.settings import Limits, Rlimits, TtySize
from broker import tree
from broker.errors import NotATerminal, SpawnFailed

DEFAULT_PATH: Final = b"/bin:/usr/bin"
PIPE: Final = 64 * 1024
"""Bytes that a pipe holds by default."""
WIDE_PIPE: Final = 1024 * 1024
"""Bytes that one holds whose writer is fast; to set it costs 8 us."""
WIDE_PIPES: Final = 16
"""Wide pipes of one user at once, in all engines: 16 of the 64 MiB that pipes may hold.

Beyond that every new pipe of that user would be cut to 8 KiB, in any program."""
_TICKET: Final = b"\0creche-wide-pipe-%d-%d"
BUSY_RETRIES: Final = 20
"""Attempts at a program that is still being written (ETXTBSY), 10 ms apart."""


class Process:
    """A started child and this side's ends of its pipes.

    `stdin` and the values of `outputs` are descriptors that this object closes. `size`
    is that of its terminal, None without one.
    """

    size: TtySize | None = None

    def __init__(self, pid: int, stdin: int | None, outputs: dict[str, int]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.outputs = outputs
        self._wide: dict[str, _socket.socket] = {}

    def capacity(self, stream: str) -> int:
        """Return how many bytes a read gives at least if more may be there."""
        return WIDE_PIPE if stream in self._wide else PIPE

    def widen(self, stream: str) -> None:
        """Give a stream a larger pipe, if it is one and few others have it."""
        ticket = _ticket()
        if ticket is None:
            return
        try:
            fcntl.fcntl(self.outputs[stream], fcntl.F_SETPIPE_SZ, WIDE_PIPE)
        except OSError:  # a user with many pipes may not
            ticket.close()
        else:
            self._wide[stream] = ticket

    def read_into(self, stream: str, room: memoryview) -> int | None:
        """Read what is there into `room`: bytes, 0 at the end, None when nothing is."""
        try:
            return os.readv(self.outputs[stream], [room])
        except BlockingIOError:
            return None

    def waiting(self, stream: str) -> int:
        """Return how many bytes are in the stream's pipe now."""
        answer = fcntl.ioctl(self.outputs[stream], termios.FIONREAD, b"\0\0\0\0")
        return int(struct.unpack("i", answer)[0])

    def write(self, data: memoryview) -> int:
        """Write what fits; 0 when the pipe is full.

        Raises:
            BrokenPipeError: the child has closed its stdin.
        """
        if self.stdin is None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        try:
            return os.write(self.stdin, data)
        except BlockingIOError:
            return 0

    def check_input(self, data: bytes) -> None:
        """Refuse input that would not arrive whole: in a pipe there is none."""

    def last_input(self) -> bytes:
        """Return what must be written before stdin is closed: for a pipe nothing."""
        return b""

    def resize(self, size: TtySize) -> None:  # noqa: ARG002 - a pipe has none
        """Set the size of the terminal.

        Raises:
            NotATerminal: there is none.
        """
        raise NotATerminal

    def drop_input(self) -> bool:
        """Drop what was typed and not read, if ^C would; in a pipe it stays."""
        return False

    def interrupt(self) -> bool:
        """Send SIGINT to the child's group; return whether there was one."""
        return tree.send_group(self.pid, signal.SIGINT)

    def on_exit(self) -> None:
        """Follow up on the child's end, before its last output is read."""

    def close_stdin(self) -> None:
        """Close this side of stdin; harmless to repeat."""
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None

    def close_output(self, stream: str) -> None:
        """Stop reading a stream; harmless to repeat."""
        if stream in self.outputs:
            os.close(self.outputs.pop(stream))
        if stream in self._wide:
            self._wide.pop(stream).close()

    def close(self) -> None:
        """Close every descriptor that is left."""
        self.close_stdin()
        for stream in list(self.outputs):
            self.close_output(stream)


def _ticket() -> _socket.socket | None:
    """Take one of this user's tickets for a wide pipe; None when all are taken.

    It is a name that one socket at a time can have, until that is closed or its process
    ends, however it does.
    """
    kind = _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC
    try:
        ticket = _socket.socket(_socket.AF_UNIX, kind)
    except OSError:  # no descriptor is to be had
        return None
    for number in range(WIDE_PIPES):
        try:
            ticket.bind(_TICKET % (os.geteuid(), number))
        except OSError:
            continue
        return ticket
    ticket.close()
    return None


class _Pipes:
    """The descriptors of one start: the child's ends, and ours."""

    def __init__(self) -> None:
        self.theirs: list[int] = []
        self._nothing: int | None = None
        self.stdin: int | None = None
        self.outputs: dict[str, int] = {}

    def open(self, launch: Launch) -> tuple[int, int, int]:
        """Return the child's three descriptors."""
        child_in = self._null() if launch.stdin == "null" else self._input()
        child_out = self._null() if launch.stdout == "null" else self._output("stdout")
        if launch.stderr == "stdout":
            child_err = child_out
        elif launch.stderr == "null":
            child_err = self._null()
        else:
            child_err = self._output("stderr")
        return child_in, child_out, child_err

    def _null(self) -> int:
        if self._nothing is None:
            self._nothing = os.open(os.devnull, os.O_RDWR)
            self.theirs.append(self._nothing)
        return self._nothing

    def _input(self) -> int:
        read, self.stdin = os.pipe()
        self.theirs.append(read)
        os.set_blocking(self.stdin, False)
        return read

    def _output(self, stream: str) -> int:
        ours, write = os.pipe()
        self.outputs[stream] = ours
        self.theirs.append(write)
        os.set_blocking(ours, False)
        return write

    def close_theirs(self) -> None:
        while self.theirs:
            os.close(self.theirs.pop())

    def close_ours(self) -> None:
        if self.stdin is not None:
            os.close(self.stdin)
        for fd in self.outputs.values():
            os.close(fd)


def start(launch: Launch, fds: tuple[int, ...] = ()) -> Process:
    """Start the child of `launch` and return it once its exec has succeeded.

    It gets copies of `fds` under the numbers in `launch.pass_fds`.

    Raises:
        SpawnFailed: with the system's errno and the step that failed; nothing is left.
    """
    pipes = _Pipes()
    try:
        try:
            ends = pipes.open(launch)
        except OSError as error:
            raise SpawnFailed(error.errno or 0, "pipe") from error
        steps = preparations(launch, fds)
        pid = retried(lambda: fork_exec(launch, ends, steps))
    except BaseException:
        pipes.close_ours()
        raise
    finally:
        pipes.close_theirs()
    return Process(pid, pipes.stdin, pipes.outputs)


def retried(attempt: Callable[[], int]) -> int:
    """Return the pid that `attempt` gives, also when the program is busy at first.

    Raises:
        SpawnFailed: as `attempt` does.
    """
    for _ in range(BUSY_RETRIES):
        try:
            return attempt()
        except SpawnFailed as failed:
            if failed.errno != errno.ETXTBSY:
                raise
            # Another thread of the client may hold the file open for writing across
            # its own fork: it is gone in a moment.
            select.poll().poll(10)
    return attempt()


class Step(NamedTuple):
    """What the child does itself before exec, and what a failure of it is called."""

    name: bytes
    act: Callable[[], None]


def fork_exec(
    launch: Launch, ends: tuple[int, int, int], steps: tuple[Step, ...]
) -> int:
    """Start the child once, on three descriptors; return its pid after its exec.

    With steps of its own it is forked (1.3 ms), without them there is only a vfork
    (0.1 ms).

    Raises:
        SpawnFailed: nothing is left of the attempt.
    """
    program = launch.executable or launch.argv[0]
    failure_read, failure_write = _failure_pipe(launch.pass_fds)
    try:
        pid = _posixsubprocess.fork_exec(
            list(launch.argv),
            candidates(program, launch.variables),
            False,  # close_fds: every descriptor of ours is close-on-exec
            (),
            launch.cwd,  # type: ignore[arg-type]  # bytes do: os.chdir takes them
            launch.variables,
            ends[0],
            -1,
            -1,
            ends[1],
            -1,
            ends[2],
            failure_read,
            failure_write,
            True,  # restore SIGPIPE and SIGXFSZ, which Python ignores
            True,  # setsid
            -1,
            None,
            None,
            None,
            launch.umask,
            _preparation(steps, failure_write),  # type: ignore[arg-type]  # None does
            True,  # vfork
        )
    except OSError as error:
        os.close(failure_read)
        raise SpawnFailed(error.errno or 0, "fork", text(program)) from error
    finally:
        os.close(failure_write)
    failure = _read_all(failure_read)
    if failure:
        os.waitpid(pid, 0)
        raise _failed(failure, launch, program)
    return pid


def _failure_pipe(taken: tuple[int, ...]) -> tuple[int, int]:
    """Return a pipe whose writing end has none of the numbers that the child takes."""
    try:
        read, write = os.pipe()
        if not taken:
            return read, write
        try:
            return read, _copies((write,), taken)[0]
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
    except OSError as error:
        raise SpawnFailed(error.errno or 0, "pipe") from error


def _copies(fds: tuple[int, ...], taken: tuple[int, ...]) -> list[int]:
    """Return copies of `fds` that have none of the numbers `taken`.

    Raises:
        OSError: no number is left.
    """
    copies: list[int] = []
    lowest = 3
    with any_number():
        for fd in fds:
            while (copy := fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)) in taken:
                os.close(copy)
                lowest = copy + 1
            copies.append(copy)
    return copies


@contextmanager
def any_number() -> Iterator[None]:
    """For a block, let a descriptor have any number up to the hard limit.

    The soft limit of a client that passes descriptors may be higher than this process's
    own, which is the one that its engine was started with.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _read_all(fd: int) -> bytes:
    try:
        data = b""
        while part := os.read(fd, 4096):
            data += part
        return data
    finally:
        os.close(fd)


def _failed(failure: bytes, launch: Launch, program: bytes) -> SpawnFailed:
    """Translate what the failed child wrote: `OSError:HEX-ERRNO:STEP`."""
    _, number, step = failure.split(b":", 2)
    code = int(number, 16)
    if step in (b"limits", b"pty", b"pipe"):
        return SpawnFailed(code, step.decode(), text(program))
    if step.startswith(b"noexec"):
        return SpawnFailed(code, "cwd", text(launch.cwd))
    return SpawnFailed(code, "exec", text(program))


def text(path: bytes) -> str:
    """Return a path as Python shows it."""
    return path.decode("utf-8", "surrogateescape")


def candidates(program: bytes, env: Iterable[bytes]) -> list[bytes]:
    """Return the paths to try, by the PATH that the child will have."""
    if b"/" in program:
        return [program]
    found = (item[5:] for item in env if item.startswith(b"PATH="))
    search = next(found, DEFAULT_PATH)
    return [(place or b".") + b"/" + program for place in search.split(b":")]


def _preparation(
    steps: tuple[Step, ...], failure_write: int
) -> Callable[[], None] | None:
    """Return what runs the steps in the child, None when there are none."""
    if not steps:
        return None

    def prepare() -> None:
        for name, act in steps:
            try:
                act()
            except (OSError, ValueError) as error:
                code = getattr(error, "errno", None) or errno.EPERM
                os.write(failure_write, b"OSError:%x:%s" % (code, name))
                os._exit(255)

    return prepare


def preparations(launch: Launch, fds: tuple[int, ...]) -> tuple[Step, ...]:
    """Return what the child of `launch` does before exec: nothing, nearly always."""
    # Descriptors first: their numbers may be above the limit that the child gets.
    steps = _numbering(launch.pass_fds, fds), limits(launch)
    return tuple(step for step in steps if step is not None)


def _numbering(numbers: tuple[int, ...], fds: tuple[int, ...]) -> Step | None:
    """Return how the child gives descriptors their numbers, None without any.

    The numbers may be those of descriptors of the worker, which the forked child can do
    without, or of one that is still to be copied: all are copied out of the way first.
    """
    if not numbers:
        return None

    def copy() -> None:
        copies = _copies(fds, numbers)
        with any_number():
            for fd, number in zip(copies, numbers, strict=True):
                os.dup2(fd, number)

    return Step(b"pipe", copy)


def limits(launch: Launch) -> Step | None:
    """Return how the child sets its limits, None when it inherits the right ones.

    The client's are nearly always the worker's. What was asked for has to be had. What
    the client only has, the child gets as far as this process may give it: a shared
    broker can have less.

    Raises:
        SpawnFailed: the present ones cannot be read.
    """
    terms = launch.rlimits, launch.nice, launch.oom_score_adj, launch.limits
    try:
        if launch.pass_fds:  # then they may have changed for this start alone
            return _limits.__wrapped__(*terms)
        return _limits(*terms)
    except OSError as error:
        raise SpawnFailed(error.errno or 0, "limits") from error


@lru_cache(maxsize=4)
def _limits(
    rlimits: Rlimits, niceness: int, oom_score_adj: int, asked: Limits
) -> Step | None:
    """Compare with this process's own, which change for no more than a start: once.

    It takes 0.3 us then, not 10.
    """
    named = asked.named()
    rows = [row if row[0] in named else _permitted_row(*row) for row in rlimits]
    wanted = [row for row in rows if resource.getrlimit(row[0]) != row[1:]]
    own_nice, own_score = os.getpriority(os.PRIO_PROCESS, 0), _oom_score()
    nice, score = niceness, oom_score_adj
    if asked.nice is None:
        nice = _permitted(nice, own_nice, _set_nice)
    if asked.oom_score_adj is None:
        score = _permitted(score, own_score, _set_oom_score)
    if not wanted and (nice, score) == (own_nice, own_score):
        return None

    def apply() -> None:
        # The limits last: one of them may leave no descriptor to write the score with.
        if nice != own_nice:
            _set_nice(nice)
        if score != own_score:
            _set_oom_score(score)
        for number, soft, hard in wanted:
            resource.setrlimit(number, (soft, hard))

    return Step(b"limits", apply)


def _permitted_row(number: int, soft: int, hard: int) -> tuple[int, int, int]:
    """Return the row, lowered to the own hard limit where that cannot be raised."""
    own = resource.getrlimit(number)
    if _height(hard) > _height(own[1]):
        try:
            resource.setrlimit(number, (own[0], hard))
        except ValueError:  # so Python tells of EPERM
            hard = own[1]
            soft = min(soft, hard, key=_height)
        else:
            resource.setrlimit(number, own)
    return number, soft, hard


def _height(limit: int) -> float:
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def _permitted(wanted: int, own: int, change: Callable[[int], None]) -> int:
    """Return `wanted`, or `own` where this process may not go down to it."""
    if wanted < own:
        try:
            change(wanted)
        except OSError:
            return own
        change(own)
    return wanted


def _set_nice(niceness: int) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, niceness)


def _oom_score() -> int:
    with open("/proc/self/oom_score_adj") as file:
        return int(file.read())


def _set_oom_score(score: int) -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(score))
