"""Containment in a cgroup: a directory that a worker's tree cannot leave unseen.

Where the unified hierarchy (version 2) can be written, one write ends a whole tree,
and no fork can outrun it. Whether it can is found out by doing it (`probe`): mount
points, delegation and namespaces differ too much to be guessed.
"""

import errno
import os
import re
from contextlib import suppress

__all__ = ["Cgroup", "own_directory", "probe"]

PREFIX = "creche-"
"""Of the cgroup of an engine; its supervisor's pid follows."""
MOUNTS = "/proc/self/mountinfo"
_LISTS_NOBODY = (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP)
"""What a cgroup answers that was removed, or is threaded: one above lists who is in."""


def own_directory(controller: str = "") -> str | None:
    """Where the cgroup of this process is mounted.

    Args:
        controller: A controller of version 1; empty for the unified hierarchy.

    Returns:
        The directory, or None if that hierarchy is not mounted, or not above us.
    """
    mount = _find_mount(controller)
    place = _find_place(controller)
    if mount is None or place is None:
        return None
    root, point = mount
    inside = os.path.relpath(place, root)
    if inside.split("/")[0] == "..":
        return None
    return os.path.normpath(os.path.join(point, inside))


def _find_mount(controller: str) -> tuple[str, str] | None:
    """What part of the hierarchy is mounted, and where."""
    with open(MOUNTS) as file:
        for line in file:
            front, _, back = line.partition(" - ")
            kind, _, options = back.split()[:3]
            if controller:
                found = kind == "cgroup" and controller in options.split(",")
            else:
                found = kind == "cgroup2"
            if found:
                root, point = map(_unescaped, front.split(" ")[3:5])
                return root, point
    return None


def _unescaped(path: str) -> str:
    """Undo what the kernel does to white space and backslashes in a table of mounts."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def _find_place(controller: str) -> str | None:
    """Where this process is within the hierarchy."""
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, place = line.rstrip("\n").split(":", 2)
            if controller in controllers.split(","):
                return place
    return None


def sweep_stale() -> None:
    """Remove the cgroups of engines whose supervisor is dead, if nobody is in them.

    Raises:
        OSError: The hierarchy cannot be read.
    """
    parent = own_directory()
    for name in os.listdir(parent) if parent else ():
        owner = name.removeprefix(PREFIX)
        if owner != name and owner.isdecimal() and not os.path.exists(f"/proc/{owner}"):
            with suppress(OSError):  # somebody is in it, or another engine was faster
                Cgroup(f"{parent}/{name}").remove()


def probe() -> bool:
    """Whether trees can be contained here: makes a cgroup, enters, leaves, removes it.

    Moves all threads of this process for a moment. Not for a process that may fork at
    the same time.
    """
    try:
        trial = Cgroup.create(f"creche-probe-{os.getpid()}")
        try:
            trial.enter()
            trial.leave()
            # Absent from old kernels; there a cgroup lists its members, but kills none.
            os.stat(os.path.join(trial.path, "cgroup.kill"))
        finally:
            trial.remove()
    except OSError:
        return False
    return True


class Cgroup:
    """The cgroup of one worker, and so of its child's whole tree.

    The worker lives in it, so that a child is born into it, at no cost per start. Trees
    are ended by walks of /proc all the same, which is as fast; the cgroup is for the
    tree that forks faster than it can be walked.

    Attributes:
        path: The directory; enough to find the cgroup again after a restart.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def create(cls, name: str) -> "Cgroup":
        """Make a new one below that of this process.

        Raises:
            OSError: There is no such hierarchy, no permission, or the name is taken.
        """
        parent = own_directory()
        if parent is None:
            raise FileNotFoundError("no unified cgroup hierarchy is mounted")
        path = os.path.join(parent, name)
        os.mkdir(path, 0o700)
        return cls(path)

    @classmethod
    def enter_new(cls, parent: str, name: str) -> "Cgroup":
        """Make one below `parent` and move this process in.

        Raises:
            OSError: It cannot be made or entered.
        """
        made = cls(f"{parent}/{name}")
        os.mkdir(made.path, 0o700)
        made.enter()
        return made

    def kill_around(self) -> None:
        """Kill everything in it but this process, which steps out for that moment.

        Raises:
            OSError: The kernel does not offer it.
        """
        self.leave()
        try:
            self.kill()
        finally:
            self.enter()

    def enter(self) -> None:
        """Move this process in, and so all that it starts from now on."""
        _write(f"{self.path}/cgroup.procs", b"0")

    def leave(self) -> None:
        """Move this process back to where the cgroup was made."""
        _write(f"{os.path.dirname(self.path)}/cgroup.procs", b"0")

    def inode(self) -> int:
        """Return what tells it from a later one of this path, within one boot.

        Raises:
            OSError: It is gone.
        """
        return os.stat(self.path).st_ino

    def pids(self) -> list[int]:
        """Every process in it, also in cgroups that its members made below.

        Raises:
            OSError: It cannot be read.
        """
        found: list[int] = []
        for directory, _, _ in os.walk(self.path):
            try:
                with open(os.path.join(directory, "cgroup.procs")) as file:
                    found.extend(int(line) for line in file)
            except OSError as error:
                if error.errno not in _LISTS_NOBODY:
                    raise
        return found

    def crowded(self, most: int) -> bool:
        """Whether there are more than `most` processes in it (8 us for a few).

        Those in cgroups that its members made below are not counted.
        """
        fd = os.open(f"{self.path}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
        try:
            count = 0
            while count <= most and (part := os.read(fd, 4096)):
                count += part.count(b"\n")
        finally:
            os.close(fd)
        return count > most

    def kill(self) -> None:
        """Have the kernel kill every process in it, also those being forked now.

        They still have to be reaped; it is over when `pids` is empty.

        Raises:
            OSError: The kernel does not offer it, or the cgroup is gone.
            ValueError: This process is in it.
        """
        if os.getpid() in self.pids():
            raise ValueError("refusing to kill the cgroup this process is in")
        _write(f"{self.path}/cgroup.kill", b"1")

    def remove(self) -> None:
        """Remove it with all that its members made below.

        Raises:
            OSError: A process is still in it.
        """
        for directory, _, _ in os.walk(self.path, topdown=False):
            os.rmdir(directory)


def _write(path: str, data: bytes) -> None:
    # By system calls alone: each worker does this once, and the classes of `open` lie
    # on 120 KiB that it shares until then.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
