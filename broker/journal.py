"""The journal: what each worker has started, on file, for when nobody is left to tell.

An engine has a directory below `journal` in the runtime directory, which its supervisor
keeps locked as long as it lives. In it lies a file for each worker, two lines::

    SESSION LEADER STARTED MARK                      of fixed width, overwritten
    WORKER STARTED BOOT NAMESPACE CGROUP-ID CGROUP   written once

LEADER is the child's pid and STARTED the start time that makes it an identity; MARK is
what the child carries as CRECHE_MARK; CGROUP-ID is the inode of the worker's cgroup.

========  ===================================  =======================================
record    written                              what may be alive
========  ===================================  =======================================
idle      as the worker starts, and once the   the worker
          tree of a session is proven gone
begun     before the child can run             the worker, and a tree that carries MARK
born      once the child runs                  the same, and LEADER with its session
removed   once the worker is proven gone       nothing
========  ===================================  =======================================

One file for each worker that is overwritten, instead of a new one for each session, and
none of it is synced: a reboot ends the children as well. A session costs 15 us: three
writes of about 1 us, and one look at its leader, 11 us; a worker 17 us, as it starts.

Whoever cannot write a record starts no child. Only what a worker needs is here, it is
imported by each of them; `aftermath` reads the records of the dead.
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from broker import tree
from broker.cgroup import Cgroup
from broker.errors import SpawnFailed

__all__ = ["IDLE", "Entry", "Journal", "Record", "mark_in", "parse"]

VARIABLE: Final = b"CRECHE_MARK="
_FIRST: Final = b"%-16d %-10d %-20d %-32s\n"
_FORM: Final = re.compile(
    rb"(\d+) +(\d+) +(\d+) +([0-9a-f]{32}|-) *\n"
    rb"(\d+) (\d+) ([0-9a-f-]{36}) (\d+) (\d+) (/[^\n]*|-)\n"
)
IDLE: Final = _FIRST % (0, 0, 0, b"-")
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_BOOT: Final = "/proc/sys/kernel/random/boot_id"


class Entry(NamedTuple):
    """What a record says.

    Attributes:
        session: the number of the session; 0: there is none.
        leader: its child, None until that runs.
        mark: what its tree carries; empty for nothing.
        worker: who wrote this.
        boot: in which life of the machine.
        namespace: in which the pids have their meaning.
        cgroup_id: tells the cgroup from a later one of this path; 0 for none.
        cgroup: path of the worker's cgroup; empty for none.
    """

    session: int
    leader: tree.Identity | None
    mark: bytes
    worker: tree.Identity
    boot: bytes
    namespace: int
    cgroup_id: int
    cgroup: str


def parse(text: bytes) -> Entry | None:
    """Return what a record says, None for one that is torn."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    session, leader, born, mark, worker, started, boot, space, known, path = (
        found.groups()
    )
    return Entry(
        session=int(session),
        leader=tree.Identity(int(leader), int(born)) if int(leader) else None,
        mark=b"" if mark == b"-" else mark,
        worker=tree.Identity(int(worker), int(started)),
        boot=boot,
        namespace=int(space),
        cgroup_id=int(known),
        cgroup="" if path == b"-" else os.fsdecode(path),
    )


def here() -> tuple[bytes, int]:
    """Return this life of the machine, and the namespace of this process's pids."""
    with open(_BOOT, "rb") as file:
        boot = file.read().strip()
    return boot, os.stat("/proc/self/ns/pid").st_ino


def mark_in(environment: bytes) -> bytes:
    """Return the mark in an environment as /proc gives it; empty if there is none."""
    at = environment.find(VARIABLE)
    while at > 0 and environment[at - 1]:
        at = environment.find(VARIABLE, at + 1)
    if at < 0:
        return b""
    return environment[at + len(VARIABLE) :].partition(b"\0")[0]


class Record:
    """What one worker keeps on file, for as long as it lives.

    Args:
        fd: of the file; the record owns it. -1: it cannot be had yet.
        create: makes the file and returns `fd`; each start of a child tries again.
    """

    __slots__ = ("_create", "_fd")

    def __init__(self, fd: int, create: Callable[[], int] | None = None) -> None:
        self._fd = fd
        self._create = create

    def begin(self, session: int, mark: bytes) -> None:
        """Write that a session is about to be started.

        Raises:
            SpawnFailed: it cannot be written.
        """
        try:
            if self._fd < 0 and self._create is not None:
                self._fd = self._create()
            os.pwrite(self._fd, _FIRST % (session, 0, 0, mark or b"-"), 0)
        except OSError as error:
            raise SpawnFailed(error.errno or 0, "journal") from error

    def born(self, session: int, mark: bytes, pid: int) -> None:
        """Write which child it is: it runs now, and is not reaped."""
        leader = tree.identify(pid)
        if leader is not None:  # /proc hides it from us: the mark has to do
            words = session, leader.pid, leader.started, mark or b"-"
            os.pwrite(self._fd, _FIRST % words, 0)

    def clear(self) -> None:
        """Write that the tree of the session is proven gone."""
        if self._fd >= 0:
            os.pwrite(self._fd, IDLE, 0)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)


class Journal:
    """The directory of one engine's records, as its pool sees it.

    Args:
        directory: its path; whoever locks it makes it, before there is a worker.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._here = here()

    def open(self, worker: int, home: Cgroup | None) -> Record:
        """Return the record of a worker, which is this process."""

        def create() -> int:
            fd = os.open(self._path(worker), _FLAGS, 0o600)
            try:
                os.pwrite(fd, IDLE + self._second(home), 0)
            except OSError:
                os.close(fd)
                raise
            return fd

        try:
            return Record(create(), create)
        except OSError:  # each start of a child tries again, and tells
            return Record(-1, create)

    def remove(self, worker: int) -> None:
        """Remove the record of a worker that is proven gone with all that it left."""
        with suppress(FileNotFoundError):  # it died before it could write one
            os.unlink(self._path(worker))

    def clear(self) -> None:
        """Remove all records: nothing is left of any worker.

        If the supervisor is dead, another engine may do the same just now.
        """
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return
        for name in names:
            if name.startswith("w"):
                with suppress(FileNotFoundError):
                    os.unlink(f"{self._directory}/{name}")

    def _path(self, worker: int) -> str:
        return f"{self._directory}/w{worker}"

    def _second(self, home: Cgroup | None) -> bytes:
        me = tree.identify(os.getpid())
        assert me is not None  # it is this process
        boot, space = self._here
        known, path = (0, "-") if home is None else (home.inode(), home.path)
        words = me.pid, me.started, boot, space, known, os.fsencode(path)
        return b"%d %d %s %d %d %s\n" % words
