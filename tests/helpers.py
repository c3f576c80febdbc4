"""Waiting for facts, programs that misbehave on purpose, and a plain SPAWN."""

import contextlib
import os
import secrets
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

NOT_BLOCKED = 15.0
"""Seconds after which a test calls something blocked; children live 10 times longer."""

FOREVER = 150
"""Seconds that a child of a test lives when nobody ends it."""

SPAWN = {
    "token": "t",
    "scope": "",
    "reader": None,
    "chunks": 8,
    "bytes": 4096,
    "release": False,
    "kill_on_drop": True,
    "fds": 0,
    "again": False,
    "detach_ttl": None,
    "scope_capacity": None,
    "client_capacity": None,
    "queue": None,
    "on_full": "refuse",
}
"""The body of a SPAWN that asks for nothing special."""


def eventually(
    fact: Callable[[], object],
    timeout: float = NOT_BLOCKED,
    what: Callable[[], str] = lambda: "it did not happen",
) -> None:
    """Wait until `fact` is true; look every 5 ms."""
    ends = time.monotonic() + timeout
    while not fact():
        if time.monotonic() > ends:
            raise AssertionError(what())
        select.poll().poll(5)


def tag() -> str:
    """Return a word that marks the processes of one test in their command lines."""
    return f"tag{secrets.token_hex(8)}"


def tagged(word: str) -> list[int]:
    """Return the living processes with this word in their command line."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes()
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if word.encode() in line and state not in "ZX":
            found.append(int(name))
    return found


def gone(word: str, timeout: float = NOT_BLOCKED) -> None:
    """Wait until no process with this word lives."""
    eventually(lambda: not tagged(word), timeout, lambda: f"alive: {tagged(word)}")


def state(pid: int) -> str:
    """Return the kernel's letter for what a process does."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def alive(pid: int) -> bool:
    """Return whether `pid` lives and is no zombie."""
    try:
        return state(pid) not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def stop(*pids: int) -> None:
    """SIGSTOP processes, and wait until they stand still, or are gone."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # noqa: TID251 - a test hangs what it must survive
    eventually(lambda: all(state(pid) in "TZX" for pid in pids))


def go(*pids: int) -> None:
    """Let processes go on that were stopped."""
    for pid in pids:
        os.kill(pid, signal.SIGCONT)  # noqa: TID251


def parent(pid: int) -> int:
    """Return the parent of `pid`: of a child, its worker."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def is_full(pid: int) -> bool:
    """Return whether a process's stdout, a pipe, takes no more until somebody reads."""
    fd = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY | os.O_NONBLOCK)
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    try:
        return not poller.poll(0)
    finally:
        os.close(fd)


def end(pids: Iterable[int]) -> None:
    """SIGKILL exactly these processes; one may follow another by itself."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # noqa: TID251 - a test kills what it can


def python(code: str, *words: str) -> list[str]:
    """Return a command that runs `code` with `words` in its command line.

    It ends by itself after `FOREVER` seconds, whatever happens.
    """
    deadline = f"import signal; signal.alarm({FOREVER})\n"
    return [sys.executable, "-S", "-c", deadline + code, *words]


DAEMON_TREE = """
import os, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
for _ in range(int(sys.argv[2])):
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.alarm(150)
        while True:
            signal.pause()
    os.waitpid(middle, 0)
os.write(1, b"up\\n")
while True:
    signal.pause()
"""
"""python(DAEMON_TREE, tag, count): double-forked setsid'd daemons that ignore SIGTERM;
prints `up` when all are started."""
