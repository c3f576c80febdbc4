"""A worker whose broker is the test."""

import _socket
import os
import select
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final

from actors.ambient import Surroundings
from actors.settings import Settings
from actors.spec import Spec
from broker import tree
from broker.pipe import Leg
from broker.wire import Kind, Message
from tests.helpers import NOT_BLOCKED

SESSION, EPOCH, CLIENT, READER = 1000, 5, 1, 7
WINDOW: Final = {"chunks": 256, "bytes": 1 << 20}

MAIN: Final = """
import os, signal, sys
from actors import worker
from broker.journal import Record
signal.signal(signal.SIGCHLD, lambda *_: None)
record = Record(os.memfd_create("record"))
worker.main(int(sys.argv[1]), int(sys.argv[2]), None, record, 0.0)
"""


class Driven:
    """A worker with one session; the test sees every message.

    Args:
        argv: the child's.
        terms: of its start, where they are other than for a spawn.
        worker: code that the worker runs first.
        options: of the child.
    """

    def __init__(
        self,
        argv: Any,
        terms: Mapping[str, Any] | None = None,
        worker: str = "",
        **options: Any,
    ) -> None:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.control, other = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        fds = theirs.fileno(), other.fileno()
        words = [sys.executable, "-c", worker + MAIN, *map(str, fds)]
        self.process = subprocess.Popen(words, pass_fds=fds)
        theirs.close()
        other.close()
        self.leg = Leg(ours)
        self.last = 100
        self._said: deque[Message] = deque()
        spec = Spec(argv, stdin="pipe", stderr="null", **options)
        with closing(Surroundings()) as surroundings:
            launch = spec.launch(surroundings.read(), Settings(), "", "0" * 32)
        spawn = {"reader": None, "release": False, "memo": b"", **WINDOW}
        self.ask(Kind.START, spawn | dict(terms or {}), launch.to_wire())
        started = self.answer(self.last)
        assert started.kind is Kind.REPLY
        self.pid = started.body["pid"]

    def ask(self, kind: Kind, body: Any, payload: bytes | None = None) -> int:
        """Send a command; return its number."""
        self.last += 1
        number = READER if kind in (Kind.OPEN, Kind.CREDIT) else self.last
        ids = CLIENT, number, SESSION, EPOCH
        self.leg.send(Message(kind, *ids, 0.0, body, payload))
        return number

    def write(self, data: bytes) -> int:
        """Send input."""
        return self.ask(Kind.WRITE, {"at": None}, data)

    def messages(self) -> Iterator[Message]:
        """Give what the worker says, for as long as it says something in time."""
        poller = select.poll()
        poller.register(self.leg.fileno(), select.POLLIN)
        while True:
            while self._said:
                yield self._said.popleft()
            assert poller.poll(NOT_BLOCKED * 1000), "the worker says nothing"
            self.leg.flush()
            self._said += self.leg.messages()

    def answer(self, number: int) -> Message:
        """Return the next message of this number."""
        return next(m for m in self.messages() if m.request == number)

    def until(self, kind: Kind) -> list[Message]:
        """Return what the worker says up to the next message of this kind."""
        said = list[Message]()
        for message in self.messages():
            said.append(message)
            if message.kind is kind:
                break
        return said

    def output(self, size: int) -> bytes:
        """Return that much output, checking that no byte is missing between."""
        data = b""
        for message in self.messages():
            if message.kind is Kind.ARENA:  # we cannot: have it all in frames
                self.ask(Kind.CREDIT, {"chunks": 0, "sequence": 0, "local": False})
            if message.kind is Kind.CHUNK:
                assert message.body["offset"] == message.body["sequence"]
                data += bytes(message.payload or b"")
                if len(data) >= size:
                    break
        return data

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let the worker stand still meanwhile: what is sent waits for one turn."""
        tree.signal_child(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
        yield
        tree.signal_child(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        """End the child and the worker."""
        self.leg.close()
        self.control.close()
        assert self.process.wait(NOT_BLOCKED) == 0
