"""The short way of a line in and a line out through a worker.

An echo is two turns of a worker that hundreds of others have pushed out of the caches
meanwhile. What such a turn costs is not what its code does, but how many functions and
objects it touches: with 64 sessions the two took 312 us of CPU, where the same code
took 71 us over and over again. So what comes most is done here, by few functions,
whenever nothing but the obvious can follow from it (112 us, measured as the others with
real-time priority):

* input that fits the pipe as a whole, while none is queued;
* a little output, while one reader is all that waits for it, and has taken what came
  before.

Which of them may be so is found out by `refresh`, after each turn that went the long
way. Anything unexpected goes that way: until the very system call nothing has happened.
"""

import os
import time
from collections.abc import Callable
from typing import Final

from actors.outlet import INLINE, Reader
from actors.session import Session
from broker import wire
from broker.wire import HEADER_SIZE, STREAMS, Kind, Message

ATOMIC: Final = 4096
"""Bytes that a pipe takes whole or not at all (PIPE_BUF)."""
_AT_ONCE: Final = wire.encode(Message(Kind.WRITE, body={"at": None}, payload=b""))
_BODY: Final = slice(HEADER_SIZE, len(_AT_ONCE))
_NO_OFFSET: Final = _AT_ONCE[_BODY]


class Express:
    """What of one session can go the short way now.

    Args:
        session: whose.
        send: sends a message over the leg at once.
    """

    def __init__(self, session: Session, send: Callable[[Message], None]) -> None:
        self._session = session
        self._send = send
        self._stdin: int | None = None
        self._streams: dict[int, str] = {}
        self._reader: Reader | None = None

    def refresh(self) -> None:
        """Find out what can go the short way until the next turn that does not."""
        session = self._session
        self._stdin = session.stdin.direct
        self._reader = session.only_reader()
        self._streams = {}
        if self._reader is not None:
            outputs = session.process.outputs
            self._streams = {fd: stream for stream, fd in outputs.items()}

    def input(self, frame: memoryview) -> bool:
        """Pass on a WRITE, and answer it; return whether that could be done."""
        head = wire.head(frame)
        session = self._session
        if (
            self._stdin is None
            or head is None
            or head.kind != Kind.WRITE
            or head.session != session.number
            or len(frame) > _BODY.stop + ATOMIC
            or frame[_BODY] != _NO_OFFSET
            or head.client in session.stdin.refused
            or (head.client, head.request) in session.answers.known
        ):
            return False
        data = frame[_BODY.stop :]
        try:
            os.write(self._stdin, data)
        except OSError:  # it is full, or nobody reads it any more
            return False
        session.stdin.passed(len(data))
        session.last_used = time.monotonic()
        if head.request:
            body = {"accepted": len(data), "state": "running"}
            ids = head.client, head.request, head.session, head.epoch
            self._send(Message(Kind.REPLY, *ids, 0.0, body))
            session.answers.note(ids[:2], Kind.REPLY, body)
        return True

    def output(self, fd: int) -> bool:
        """Read and pass on a little output; return whether that could be done."""
        stream, reader = self._streams.get(fd), self._reader
        if stream is None or reader is None:
            return False
        log = self._session.log
        space = log.space()[:INLINE]
        size, chunks = reader.allowance()
        if size < INLINE or chunks <= 0 or log.room() < INLINE:
            return False
        try:
            count = os.readv(fd, [space])
        except OSError:  # nothing is there, or it broke
            return False
        if not count:
            return False
        log.commit(stream, count)
        cursor, reader.cursor = reader.cursor, reader.cursor.after(stream, count)
        reader.sent += 1
        body = {
            "stream": stream,
            "offset": cursor[STREAMS.index(stream)],
            "sequence": cursor.sequence,
        }
        session = self._session
        ids = *reader.ask, session.number, session.epoch
        self._send(Message(Kind.CHUNK, *ids, 0.0, body, bytes(space[:count])))
        if count == len(space):
            self._streams = {}  # there is more: it goes by larger pieces
        return True
