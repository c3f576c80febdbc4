"""What a pool does before its first fork: whole sessions, for the traces they leave.

A first run of Python code writes to it: the interpreter specialises instructions, fills
caches of attributes, numbers types. Done here, these writes are to pages that all
workers share; done in a worker, to copies of its own. Measured: after its first start a
worker has 1.75 MiB of its own instead of 2.36, and that start took 1.9 ms of processor
time instead of 2.5. The rehearsal takes 8 ms, mostly beside the start of the broker.

It runs in the pool's process, which has no worker yet: whatever is below this process
belongs to the rehearsal, and is reaped by it. Where a session fails (there may be no
`/bin/sh`) the rest is left out: it is an optimisation, and nothing of it stays.
"""

import _socket
import os
import resource
import signal
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any, Final, NoReturn

from actors.launch import Launch
from actors.settings import RLIMITS, Limits, Settings
from actors.worker import Worker, end_tree, main
from broker import tree
from broker.cgroup import Cgroup
from broker.errors import EngineError
from broker.journal import Record
from broker.pipe import Leg
from broker.wire import Kind, Message

ROUNDS: Final = 5
"""Of two sessions: what runs once in each is specialised after eight calls. Three
rounds leave each worker 110 KiB more, ten 20 KiB less."""
PATIENCE: Final = 2.0
"""Seconds for all of it, on a machine where something is very wrong."""

ENDS: Final = (b"/bin/sh", b"-c", b"echo")
LIVES: Final = (b"/bin/sh", b"-c", b"read line")


class Stage:
    """A worker in this process, and the other end of its leg."""

    def __init__(self) -> None:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        control, self.lifeline = os.pipe()
        self.peer = Leg(ours)
        tree.become_subreaper()  # as each worker does; its pool is one already
        record = Record(os.memfd_create("creche-record", os.MFD_CLOEXEC))
        self.worker = Worker(Leg(theirs), control, None, record, grace=0.0)
        self.worker.settle()

    def close(self) -> None:
        """Let go of everything."""
        self.worker.close()
        self.peer.close()
        os.close(self.lifeline)

    def ask(
        self, kind: Kind, body: Mapping[str, Any], payload: bytes | None = None
    ) -> None:
        """Ask the worker for something, as the broker does."""
        self.peer.send(Message(kind, 1, kind, 1, 1, 0.0, body, payload), urgent=True)

    def until(self, kind: Kind) -> None:
        """Let the worker go on until it says this.

        Raises:
            EngineError: it says ERROR.
        """
        said = set[Kind]()
        while kind not in said:
            self.worker.turn()
            said = {message.kind for message in self.peer.messages()}
            if Kind.ERROR in said:
                raise EngineError("the rehearsal failed")


def rehearsed() -> Callable[[int, int, Cgroup | None, Record, float], NoReturn]:
    """Rehearse, and return what a forked copy of this process is to run."""
    rehearse()
    return main


def unrehearsed() -> Callable[[int, int, Cgroup | None, Record, float], NoReturn]:
    """Return the same at once."""
    return main


def rehearse() -> None:
    """Start and end some children as a worker does."""
    for number, handler in ((signal.SIGCHLD, _ignore), (signal.SIGALRM, _too_late)):
        signal.signal(number, handler)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        with suppress(OSError, EngineError):  # the sessions to come will tell why
            for _ in range(ROUNDS):
                with closing(Stage()) as stage:
                    _play(stage)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        end_tree(PATIENCE)


def _ignore(*_: object) -> None:
    """Have the signal written to the worker's wake-up descriptor, and no more."""


def _too_late(*_: object) -> None:
    raise TimeoutError


def _play(stage: Stage) -> None:
    """Go through a child whose output is captured, and one that is killed."""
    stage.ask(Kind.START, _terms(reader=1), launch(ENDS))
    stage.until(Kind.IDLE)
    stage.ask(Kind.START, _terms(reader=None), launch(LIVES))
    stage.until(Kind.REPLY)
    kill = {"grace": None, "timeout": 1.0, "cause": "owner-drop", "release": True}
    stage.ask(Kind.KILL, kill)
    stage.until(Kind.IDLE)


def _terms(reader: int | None) -> dict[str, Any]:
    settings = Settings()
    return {
        "reader": reader,
        "chunks": settings.window_chunks,
        "bytes": settings.window_bytes,
        "release": reader is not None,
        "memo": b"",
    }


def launch(argv: tuple[bytes, ...]) -> bytes:
    """Return an order with the terms of most: what a worker checks once is known then.

    Put together here, as to import `spec` takes 4 ms.
    """
    settings = Settings()
    umask = os.umask(0)
    os.umask(umask)
    order = Launch(
        argv=argv,
        executable=None,
        cwd=b"/",
        env=b"",
        umask=umask,
        rlimits=tuple((number, *resource.getrlimit(number)) for number in RLIMITS),
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        oom_score_adj=_oom_score_adj(),
        pass_fds=(),
        stdin="pipe",
        stdout="pipe",
        stderr="pipe",
        tty=None,
        retention=settings.retention,
        post_exit_grace=settings.post_exit_grace,
        leftover=settings.leftover,
        leftover_delay=settings.leftover_delay,
        timeout=None,
        idle_timeout=None,
        limits=Limits(),
        terminate_grace=settings.terminate_grace,
        kill_timeout=settings.kill_timeout,
        kill_on_drop=True,
        quiet=settings.quiet,
        chunk=settings.chunk,
        stdin_queue=settings.stdin_queue,
        metadata=(),
        authority=None,
        scope="",
        paused=False,
        observe=(),
        mark=bytes(16).hex().encode(),
    )
    return order.to_wire()


def _oom_score_adj() -> int:
    with open("/proc/self/oom_score_adj") as file:
        return int(file.read())
