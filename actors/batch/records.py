"""What is left of finished jobs on disk: the joblog, and results."""

import errno
import fcntl
import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from actors.batch import joblog, report
from actors.batch.jobs import Job
from actors.batch.outcome import Outcome
from actors.batch.spool import STREAMS, Results, Spool, named

OBJECTS: Final = ".jsonl"
"""What the name of a file of results ends in; any other is that of a directory."""


class Unusable(Exception):
    """A file that was asked for cannot be used as that."""


class Appended:
    """A file that entries are added to, whole or not at all, by nobody else meanwhile.

    Args:
        path: of the file; it is made if it is missing.

    Raises:
        Unusable: it cannot be opened, or another batch writes to it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as refused:
            raise Unusable(f"{path}: {refused.strerror}") from refused
        self._end = 0
        try:
            self._check()
        except Unusable:
            os.close(self._fd)
            raise

    def _check(self) -> None:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise Unusable(f"{self._path}: is no regular file: it could not be resumed")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Unusable(f"{self._path}: another batch writes to it") from None

    def lines(self) -> Iterator[bytes]:
        """Yield what is in it, line by line."""
        with open(self._fd, "rb", closefd=False) as file:
            yield from file

    def cut(self, end: int) -> None:
        """Drop all from there on."""
        os.ftruncate(self._fd, end)
        self._end = end

    def add(self, pieces: Iterable[bytes]) -> None:
        """Add an entry.

        Raises:
            OSError: it is refused, by a full disk for one, and names the file; nothing
                of it stays.
        """
        end = self._end
        try:
            with named(self._path):
                for piece in pieces:
                    _write(self._fd, piece, end)
                    end += len(piece)
        except OSError:
            self.cut(self._end)
            raise
        self._end = end

    def close(self) -> None:
        """Let others have it."""
        os.close(self._fd)


def _write(fd: int, data: bytes, place: int) -> None:
    if os.pwrite(fd, data, place) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Joblog:
    """An open joblog.

    Attributes:
        done: Numbers of the jobs that an earlier run has finished.
    """

    def __init__(self, file: Appended, done: set[int]) -> None:
        self.done = done
        self._file = file

    def finish(self, job: Job, outcome: Outcome) -> None:
        """Write the line that makes a job a finished one.

        Raises:
            OSError: it is refused, by a full disk for one.
        """
        self._file.add([joblog.row(job, outcome)])


@contextmanager
def opened_joblog(path: str, *, resume: bool, again: bool) -> Iterator[Joblog]:
    """Open a joblog, and cut off a last line that was torn.

    Args:
        path: of the file.
        resume: whether to go on with what is in it, instead of a new one.
        again: whether jobs that failed are to be run again.

    Raises:
        Unusable: it is no joblog, or another batch uses it.
    """
    file = Appended(path)
    try:
        past = joblog.Past(again=again)
        for line in file.lines() if resume else ():
            past.read(line)
        file.cut(past.whole)
        if not past.whole:
            file.add([joblog.HEADER])
        yield Joblog(file, past.done)
    except joblog.NoJoblog as wrong:
        raise Unusable(f"{path}: {wrong}") from None
    finally:
        file.close()


class Destination(Protocol):
    """Where the results of jobs go."""

    def spool(self, job: Job) -> Spool:
        """Return what takes the output of an attempt.

        Raises:
            OSError: it cannot be made.
        """

    def directory(self, job: Job) -> str | None:
        """Return where its results will be, if they have a place of their own."""

    def keep(self, job: Job, outcome: Outcome, spool: Spool) -> None:
        """Put the results of a job where they belong.

        Raises:
            OSError: that is refused, by a full disk for one.
        """


class Nowhere:
    """No results are kept."""

    def spool(self, _job: Job) -> Spool:
        """Return what takes the output of an attempt."""
        return Spool()

    def directory(self, _job: Job) -> None:
        """Return None: there is no place."""

    def keep(self, _job: Job, _outcome: Outcome, _spool: Spool) -> None:
        """Keep nothing."""


class Objects(Nowhere):
    """Results as lines of JSON; see `report` for their fields."""

    def __init__(self, file: Appended) -> None:
        self._file = file

    def keep(self, job: Job, outcome: Outcome, spool: Spool) -> None:
        """Write the line of a job.

        Raises:
            OSError: it is refused, by a full disk for one.
        """
        streams = {stream: spool.pieces(stream) for stream in STREAMS}
        line = report.pieces(report.ended(job, outcome), streams)
        self._file.add(itertools.chain(line, [b"\n"]))


class Tree:
    """Results as files, in the directories that GNU parallel makes."""

    def __init__(self, root: str) -> None:
        self._root = root

    def spool(self, job: Job) -> Spool:
        """Return the files that become the results.

        Raises:
            OSError: they cannot be made.
        """
        return Results(self.directory(job), job.seq)

    def directory(self, job: Job) -> str:
        """Return where the results of a job are."""
        return os.path.join(self._root, job.place)

    def keep(self, _job: Job, _outcome: Outcome, spool: Spool) -> None:
        """Put the files in their place.

        Raises:
            OSError: that is refused.
        """
        assert isinstance(spool, Results)
        spool.keep()


@contextmanager
def opened_results(path: str | None, *, resume: bool) -> Iterator[Destination]:
    """Open the place of the results, and cut off a last line that was torn.

    Raises:
        Unusable: it cannot be opened, or another batch uses it.
    """
    if path is None:
        yield Nowhere()
        return
    if not path.endswith(OBJECTS):
        yield Tree(path)
        return
    file = Appended(path)
    try:
        lines = file.lines() if resume else ()
        file.cut(sum(len(line) for line in lines if line.endswith(b"\n")))
        yield Objects(file)
    finally:
        file.close()
