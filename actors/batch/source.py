"""Where jobs come from: files and stdin, read as places get free."""

import os
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from actors.batch.jobs import BadJob, Job, Template, of_line
from actors.console import stdio

if TYPE_CHECKING:
    from collections.abc import Iterator

STDIN: Final = "-"
"""What stands for it among the names of files."""
PIECE: Final = 64 * 1024
"""Bytes read at once."""
PROGRAMS: Final = b"#!", b"\x7fELF"
"""How programs begin: each line of one would be run as a job, all of them at once."""
LONGEST_LINE: Final = 8 * 1024 * 1024
"""Bytes of a line; a spawn takes no more."""


class Lines:
    """The jobs of files with one job in each line.

    Args:
        paths: the files, in order; `-` is stdin.

    Raises:
        BadJob: one of them cannot be opened.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        for path in paths:
            if path != STDIN:
                _check(path)

    def total(self) -> int | None:
        """Return how many jobs there are; None if only reading them would tell."""
        files = [path for path in self._paths if path != STDIN and os.path.isfile(path)]
        if len(files) < len(self._paths):
            return None
        return sum(_count(path) for path in files)

    async def jobs(self, done: set[int]) -> AsyncIterator[Job | None]:
        """Yield the jobs in order; None in place of one that is done.

        Raises:
            BadJob: a line is none; the message says where it is.
        """
        seq = 0
        for path in self._paths:
            number = 0
            async for line in _lines(path):
                seq, number = seq + 1, number + 1
                yield None if seq in done else _job(seq, line, path, number)


class Combinations:
    """The jobs of a command and lists of arguments."""

    def __init__(self, template: Template) -> None:
        self._template = template

    def total(self) -> int:
        """Return how many jobs there are."""
        return self._template.total

    async def jobs(self, done: set[int]) -> AsyncIterator[Job | None]:
        """Yield the jobs in order; None in place of one that is done.

        Raises:
            BadJob: an argument cannot be one.
        """
        for job in self._template.jobs(done):
            yield job


def _job(seq: int, line: bytes, path: str, number: int) -> Job:
    try:
        return of_line(seq, line.decode("utf-8", "surrogateescape"))
    except BadJob as wrong:
        raise BadJob(f"{_name(path)} line {number}: {wrong}") from None


def _name(path: str) -> str:
    return "stdin" if path == STDIN else path


def _check(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError as missing:
        where = "to run a command with arguments, put these behind :::"
        raise BadJob(f"{path}: there is no such file of jobs; {where}") from missing
    except OSError as refused:
        raise BadJob(f"{path}: {refused.strerror}") from refused
    if stat.S_ISDIR(mode):
        raise BadJob(f"{path}: is a directory, not a file of jobs")
    if stat.S_ISREG(mode) and _begins(path).startswith(PROGRAMS):
        where = "to run it with arguments, put these behind :::"
        raise BadJob(f"{path}: is a program, not a file of jobs; {where}")


def _begins(path: str) -> bytes:
    with _opened(path) as fd:
        return os.read(fd, 4)


def _count(path: str) -> int:
    """Return how many lines a file has, one without an end counted."""
    count, last = 0, b"\n"
    with _opened(path) as fd:
        while data := os.read(fd, PIECE):
            count += data.count(b"\n")
            last = data[-1:]
    return count + (last != b"\n")


async def _lines(path: str) -> AsyncIterator[bytes]:
    rest, number = b"", 0
    with _opened(path) as fd:
        while data := await _read(fd, path):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                number += 1
                yield line
            if len(rest) > LONGEST_LINE:
                where = f"{_name(path)} line {number + 1}"
                raise BadJob(f"{where}: is longer than {LONGEST_LINE} bytes")
    if rest:
        yield rest


@contextmanager
def _opened(path: str) -> "Iterator[int]":
    if path == STDIN:
        yield 0
        return
    # A fifo that nobody writes to yet would hold the open, and the loop with it.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags)
    except OSError as refused:
        raise BadJob(f"{path}: {refused.strerror}") from refused
    try:
        yield fd
    finally:
        os.close(fd)


async def _read(fd: int, path: str) -> bytes:
    """Return what comes next, waiting for it; nothing at the end."""
    try:
        if path == STDIN:
            return await stdio.take()
        while True:
            await stdio.readable(fd)
            with suppress(BlockingIOError):  # another reader of a FIFO was faster
                return os.read(fd, PIECE)
    except OSError as broken:
        raise BadJob(f"{_name(path)}: {broken.strerror}") from broken
