"""The aftermath: ends what engines left that died with all their processes.

For each directory of the journal whose lock is free its engine is dead. `sweep` reads
the records in it, ends what belongs to them (see `kinship`) and removes each record
whose tree is proven gone::

    another boot ──────────────────────────────────────────▶ dropped
    idle, nobody there ────────────────────────────────────▶ dropped
    somebody belongs to it ──SIGKILL, look again──▶ none twice ─▶ dropped, `killed`
                                     ╰── some after the deadline ──▶ `kept`
    this process belongs to it ────────────────────────────▶ `kept`, nothing is sent
    in doubt, torn, of another namespace of pids ──────────▶ `unknown`

What stays is looked at again by the next sweep. Two sweeps of one directory never meet:
each has it locked. But the dead engine's pool may still be about to end, and remove
records and cgroups of its workers just now: what is gone needs nothing more. A worker
may be about to end, too, with a child that it has just begun: its record is read again
at each look. Nobody here is our child: whoever is killed is reaped by its parent, one
that only waits for that counts as gone, and there is no proof but to look again.
"""

import os
import select
import signal
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from broker import cgroup, journal, tree
from broker.auth import RunDirectory
from broker.kinship import Kin, Kinship, Process

__all__ = ["Finding", "end_marked", "settle", "sweep"]

TIMEOUT: Final = 5.0
"""Seconds for the dead engines' trees to be proven gone, all together."""
LONGEST: Final = 65536
"""Bytes that are read of a record: it has less than 5000."""
NO_RECORD: Final = b"?"
"""What is read of anything but a file: it is as good as a torn record."""
PAUSE: Final = 2
"""Milliseconds between two looks, for those that were killed to go."""
QUIET: Final = 2
"""Looks in a row that find nobody, until a tree counts as gone.

Who is born during one, of a parent that ends during it, is not seen by that one."""
EXEC: Final = 0.1
"""Seconds for which a child is looked for that was begun, and that nobody knows yet.

Before its exec is through it does not carry its mark, and may be nobody's any more."""


class Finding(NamedTuple):
    """What became of a record.

    Attributes:
        kind: `killed`: its tree was ended and is proven gone, `kept`: there is somebody
            left of it, `unknown`: it cannot be said who belongs to it.
        session: its number; 0 where there was only a worker, or the record is torn.
        pids: who was killed, is left, or is in doubt.
        reason: why it is kept or unknown; empty for what was killed.
        record: the path of the record.
    """

    kind: str
    session: int
    pids: tuple[int, ...]
    reason: str
    record: str


def sweep(root: bytes) -> list[Finding]:
    """End what dead engines left, whose records lie below the journal at `root`.

    Raises:
        InvalidRequest: `root` is not this user's alone.
    """
    return settle(RunDirectory.abandoned(root))


def settle(directories: list[RunDirectory]) -> list[Finding]:
    """End what dead engines left whose records lie in these directories, locked."""
    try:
        found = [record for d in directories for record in _records(d)]
        return _settle(found) if found else []
    finally:
        for directory in directories:
            if os.listdir(directory.fd) == ["lock"]:
                directory.remove()
            directory.close()


def end_marked(marks: Iterable[bytes]) -> bool:
    """End the trees that carry one of these marks; return whether they are gone.

    False also if this process is in one of them.
    """
    nobody = tree.Identity(0, 0)
    boot, space = journal.here()
    entries = [
        journal.Entry(0, None, mark, nobody, boot, space, 0, "") for mark in marks
    ]
    cases = [_Case("", entry) for entry in entries]
    _end(cases)
    return not any(case.kin.mine or case.kin.ours for case in cases)


class _Case:
    """One record that is being looked into."""

    def __init__(self, path: str, entry: journal.Entry) -> None:
        self.path = path
        self.entry = entry
        self.kinship = Kinship(entry)
        self.kin = Kin(frozenset(), frozenset(), mine=False)
        self.killed: set[int] = set()

    def group(self) -> cgroup.Cgroup | None:
        """Return the cgroup of its worker, if that is still the same one."""
        group = cgroup.Cgroup(self.entry.cgroup)
        try:
            same = bool(group.path) and group.inode() == self.entry.cgroup_id
        except OSError:  # it is gone, or out of reach
            return None
        return group if same else None

    @property
    def started(self) -> bool:
        """Whether there may have been a tree, or somebody was killed."""
        return bool(self.entry.mark or self.entry.session or self.killed)

    @property
    def begun(self) -> bool:
        """Whether a child was begun that nobody knows, and that was not found yet."""
        unknown = bool(self.entry.session) and self.entry.leader is None
        return unknown and not self.killed - {self.entry.worker.pid}

    def look(self, processes: dict[int, Process], lineage: set[int]) -> None:
        """Find out who belongs to it now."""
        self._read_again()
        self.kin = self.kinship.look(processes, self._inside(), lineage)

    def _read_again(self) -> None:
        """Take what its worker, if that still lived, has written meanwhile."""
        text = _text(self.path, None) if self.path else None
        entry = journal.parse(text or b"")
        if entry is not None and entry.worker == self.entry.worker:
            self.entry = self.kinship.entry = entry

    def _inside(self) -> list[int]:
        """Return who is in the cgroup of its worker, as far as that tells."""
        group = self.group()
        try:
            return [] if group is None else group.pids()
        except OSError:  # what its members made of it: mark and session have to do
            return []

    def kill(self) -> None:
        """Send SIGKILL to all of them, by the kernel's list as well if there is one."""
        self.killed |= self.kin.ours
        group = self.group()
        if group is not None:
            with suppress(OSError, ValueError):  # an old kernel, or we are in it
                group.kill()

    def finding(self) -> Finding | None:
        """Return what is to be told of it; None: nothing was left of its tree."""
        kind, pids, why = "killed", frozenset(self.killed), ""
        if self.kin.mine:
            kind, pids, why = "kept", self.kin.ours, "this process belongs to it"
        elif self.kin.ours:
            kind, pids, why = "kept", self.kin.ours, "it cannot be ended"
        elif self.kin.unsure:
            kind, pids = "unknown", self.kin.unsure
            why = "its leader is gone, and nobody left in its session carries its mark"
        if not pids:
            return None
        return Finding(kind, self.entry.session, tuple(sorted(pids)), why, self.path)

    def drop(self) -> None:
        """Remove the record, and the cgroup, of a tree that is gone."""
        group = self.group()
        if group is not None:
            with suppress(OSError):  # a member waits to be reaped: the next engine does
                group.remove()
                os.rmdir(os.path.dirname(group.path))
        _remove(self.path)


def _remove(path: str) -> None:
    """Remove a record; its pool may have done so."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def _records(directory: RunDirectory) -> Iterable[tuple[str, bytes]]:
    for name in sorted(os.listdir(directory.fd)):
        if not name.startswith("w"):
            continue
        text = _text(name, directory.fd)
        if text is not None:
            yield os.path.join(os.fsdecode(directory.location), name), text


def _text(name: str, directory: int | None) -> bytes | None:
    """Return what a record says, None when it is gone.

    Never wait, as a fifo there would have us do.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError:  # a link, or not ours to read
        return NO_RECORD
    try:
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        return os.read(fd, LONGEST) if regular else NO_RECORD
    finally:
        os.close(fd)


def _settle(records: list[tuple[str, bytes]]) -> list[Finding]:
    boot, space = journal.here()
    cases, findings = [], []
    for path, text in records:
        entry = journal.parse(text)
        if not text or (entry is not None and entry.boot != boot):
            _remove(path)  # no child of it can have run, or be running
        elif entry is None:
            findings.append(Finding("unknown", 0, (), "the record is torn", path))
        elif entry.namespace != space:
            why = "its pids are of another namespace"
            findings.append(Finding("unknown", entry.session, (), why, path))
        else:
            cases.append(_Case(path, entry))
    _end(cases)
    for case in cases:
        finding = case.finding()
        if finding is not None:
            findings.append(finding)
        if finding is None or finding.kind == "killed":
            case.drop()
    return findings


def _end(cases: list[_Case]) -> None:
    """Kill what belongs to the cases until it is gone, or the time is over."""
    ends = time.monotonic() + TIMEOUT
    lineage = _lineage()
    refused: set[tree.Identity] = set()
    begun_until = time.monotonic() + EXEC
    quiet = 0
    while True:
        processes = _processes()
        for case in cases:
            case.look(processes, lineage)
        quiet = 0 if _kill_round(cases, processes, refused) else quiet + 1
        now = time.monotonic()
        waits = now < begun_until and any(case.begun for case in cases)
        enough = quiet >= QUIET or not any(case.started for case in cases)
        if now > ends or (enough and not waits):
            return
        select.poll().poll(PAUSE)


def _kill_round(
    cases: list[_Case], processes: dict[int, Process], refused: set[tree.Identity]
) -> bool:
    """Kill once whoever there is; return whether somebody may go of it."""
    hit = False
    for case in cases:
        if case.kin.mine:
            continue
        if case.kin.ours:
            case.kill()
        for pid in case.kin.ours:
            identity = processes[pid].stat.identity
            if identity not in refused:
                hit = True
                try:
                    tree.signal_process(identity, signal.SIGKILL)
                except OSError:  # another user's, or there are no pidfds
                    refused.add(identity)
    return hit


def _processes() -> dict[int, Process]:
    return {
        stat.pid: Process(stat, journal.mark_in(tree.environment(stat.pid)))
        for stat in tree.processes()
    }


def _lineage() -> set[int]:
    """Return this process and all above it."""
    found, pid = set[int](), os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        stat = tree.stat(pid)
        pid = stat.parent if stat else 0
    return found
