"""How many sessions one broker takes before it would fall over, and what ends first.

A broker refuses further ones (`CapacityExceeded`) instead of meeting the limit itself:
libzmq aborts when it has no descriptor for a connection, and what has no process left
to be reaped with cannot be ended in order. What is counted is what can be known at the
start, so that no call is needed for a session; what is used up by others is met by the
start of a child, and refused with the system's own words.
"""

import os
import resource
from typing import Final

from broker.registry import Capacity

SESSION_FILES: Final = 2
"""Descriptors of the broker per session: its leg, and one on its way to the pool."""
SPARE_FILES: Final = 200
"""Descriptors for clients, the pool, and to go on at all."""
SESSION_PROCESSES: Final = 2
"""Processes per session: its worker, of one thread, and the child itself."""
SPARE_PROCESSES: Final = 100
"""Processes for clients, the engine, idle workers and whatever else is there."""

PID_MAX: Final = "/proc/sys/kernel/pid_max"


def capacity() -> Capacity:
    """Return what this process has room for, as it is limited now."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return least(files, process_limit())


def least(files: int | None, processes: int | None) -> Capacity:
    """Return the capacity under two limits; None is none."""
    found = [
        Capacity(max(1, (limit - spare) // each), name)
        for name, limit, spare, each in (
            ("descriptors", files, SPARE_FILES, SESSION_FILES),
            ("processes", processes, SPARE_PROCESSES, SESSION_PROCESSES),
        )
        if limit is not None
    ]
    return min(found)


def process_limit() -> int | None:
    """Return how many processes this user may have here, None where nothing says."""
    limits = [pid_max()]
    user, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if user != resource.RLIM_INFINITY and os.geteuid() != 0:  # root is exempt
        limits.append(user)
    return min((limit for limit in limits if limit is not None), default=None)


def pid_max() -> int | None:
    """Return where the kernel's pids end, None if it does not tell."""
    try:
        with open(PID_MAX, encoding="ascii") as file:
            return int(file.read())
    except OSError:
        return None
