"""What /proc says of a process and of everything below it."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_GONE: Final = (FileNotFoundError, ProcessLookupError)


def family(root: int) -> Iterator[int]:
    """Yield `root` and every process below it."""
    yield root
    with suppress(*_GONE):
        for task in Path(f"/proc/{root}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))


def engine(held: Iterable[int]) -> list[int]:
    """Return this process and those below it that are not `held` children."""
    return list(set(family(os.getpid())) - set(held))


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
