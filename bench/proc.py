"""What /proc says of a process and of everything below it."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from bench.commands import SLEEP

_GONE: Final = (FileNotFoundError, ProcessLookupError)


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    found: list[int] = []
    with suppress(*_GONE):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def family(root: int) -> Iterator[int]:
    """Yield `root` and every process below it."""
    yield root
    for child in children(root):
        yield from family(child)


def parent(pid: int) -> int:
    """Return the parent of a process."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def engine(root: int | None = None) -> list[int]:
    """Return this process, or `root`, and those below it that are not held children."""
    root = os.getpid() if root is None else root
    return [pid for pid in family(root) if _command(pid) != SLEEP]


def _command(pid: int) -> tuple[str, ...]:
    with suppress(*_GONE):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return tuple(os.fsdecode(word) for word in words[:-1])
    return ()


def pss(pids: Iterable[int]) -> int:
    """Return the bytes of memory of these processes; shared pages count in parts."""
    total = 0
    for pid in pids:
        with suppress(*_GONE):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def cpu(pids: Iterable[int]) -> float:
    """Return the seconds of CPU that these processes have used, to the nanosecond."""
    total = 0
    for pid in pids:
        with suppress(*_GONE):
            for task in Path(f"/proc/{pid}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def used(pids: Iterable[int]) -> float:
    """Return the seconds of CPU of these processes and of what they have reaped.

    In hundredths, as the kernel tells it of those that are gone.
    """
    total = 0
    for pid in pids:
        with suppress(*_GONE):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def fds(pids: Iterable[int]) -> int:
    """Return how many descriptors these processes have open."""
    total = 0
    for pid in pids:
        with suppress(*_GONE):
            total += len(os.listdir(f"/proc/{pid}/fd"))
    return total


def threads(pids: Iterable[int]) -> int:
    """Return how many threads these processes have: each takes a pid."""
    total = 0
    for pid in pids:
        with suppress(*_GONE):
            total += len(os.listdir(f"/proc/{pid}/task"))
    return total
