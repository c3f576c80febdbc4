"""What became of the files below some directories between two moments.

A `Sight` knows every file by modification time, size and inode. Symbolic links count as
files and are never followed below the directories that were named. A directory that is
not there is empty; one that cannot be read is left out, and so is everything below it.

A sight ends after `ENTRIES` entries. Then a file that it lacks may have been there all
the same, so only what both sights have is compared, and the result is called truncated.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from typing import Any, Final

ENTRIES: Final = 20_000
"""Entries of directories looked at in one sight: takes about 0.1 s."""
CHANGES: Final = 1_000
"""Changes told: the others only make the result a truncated one."""

Stamp = tuple[int, int, int]


class Sight:
    """The files below some directories, now.

    Attributes:
        files: Modification time in ns, size and inode by path.
        unread: Directories that could not be read.
        cut: Whether there was more than `ENTRIES` allow.
    """

    def __init__(self, directories: Iterable[bytes]) -> None:
        self.files: dict[bytes, Stamp] = {}
        self.unread: set[bytes] = set()
        self.cut = False
        self._look([_short(directory) for directory in directories])

    def _look(self, directories: Iterable[bytes]) -> None:
        waiting, seen, count = list(directories), set(), 0
        while waiting:
            directory = waiting.pop()
            if directory in seen:
                continue
            seen.add(directory)
            for entry in self._entries(directory):
                count += 1
                if count > ENTRIES:
                    self.cut = True
                    return
                if self._is_directory(entry):
                    waiting.append(entry.path)

    def _entries(self, directory: bytes) -> Iterator["os.DirEntry[bytes]"]:
        try:
            with os.scandir(directory) as entries:
                yield from entries
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError:
            self.unread.add(directory)

    def _is_directory(self, entry: "os.DirEntry[bytes]") -> bool:
        """Note a file; return whether it is a directory instead."""
        try:
            if entry.is_dir(follow_symlinks=False):
                return True
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # gone since it was listed
            return False
        except OSError:  # its directory can be listed, and not searched
            self.unread.add(os.path.dirname(entry.path))
            return False
        if stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode):
            stamp = found.st_mtime_ns, found.st_size, found.st_ino
            self.files[entry.path] = stamp
        return False

    def knows(self, path: bytes) -> bool:
        """Return whether this sight would have `path` if it was there."""
        while self.unread and path not in (b"", b"/"):
            path = os.path.dirname(path)
            if path in self.unread:
                return False
        return True


def _short(directory: bytes) -> bytes:
    """Return a path as people write it; behind a symbolic link `..` has a meaning."""
    return directory if b".." in directory else os.path.normpath(directory)


def changes(before: Sight, after: Sight) -> list[Any]:
    """Return what changed as the plain values of `Completed.changes`.

    Returns:
        Pairs of path and kind, in the order of the paths, and whether that is not all.
    """
    found: list[list[Any]] = []
    for path in sorted(before.files.keys() | after.files.keys()):
        kind = _kind(path, before, after)
        if kind is not None:
            found.append([path, kind])
    cut = before.cut or after.cut or len(found) > CHANGES
    return [found[:CHANGES], cut]


def _kind(path: bytes, before: Sight, after: Sight) -> str | None:
    old, new = before.files.get(path), after.files.get(path)
    if old is not None and new is not None:
        return None if old == new else "modified"
    lacking = before if old is None else after
    if lacking.cut or not lacking.knows(path):
        return None
    return "created" if old is None else "deleted"
