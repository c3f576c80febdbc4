"""Descriptors on their way from a client to a worker: the frame, and the wait. Pure.

They travel over the client's lifeline (SCM_RIGHTS), their SPAWN over ZeroMQ; nothing
says which comes first. Each half waits here for the other, a SPAWN no longer than
`WAIT`: then it is refused. Descriptors are numbers here, for the server to close.

On the lifeline a frame is ::

    "F" | descriptors u8 | request number of the SPAWN u64

little endian, sent in one go, so that the descriptors come with its first byte. Every
other byte is a sign of life.

==========================  =========================  ============================
what comes                  its other half is here     it is not
==========================  =========================  ============================
SPAWN                       `Pass`                     waits; in the end `Refuse`
descriptors                 `Pass`                     wait; in the end `Close`
too many descriptors        `Pass`                     `Close`; its SPAWN: `Refuse`
the end of the client       `Close` what is here, and forget its SPAWNs
==========================  =========================  ============================

A SPAWN may still have to wait for room. Its descriptors stay here until its START takes
them, or until it is answered without one.
"""

import errno
import struct
from typing import Final, NamedTuple

from broker.errors import EngineError, ProtocolError, SpawnFailed
from broker.wire import MAX_FDS, Message

__all__ = [
    "WAIT",
    "Action",
    "Close",
    "Pass",
    "Passing",
    "Refuse",
    "frame",
    "parse",
]

WAIT: Final = 5.0
"""Seconds that one half waits for the other: they are sent side by side."""
HELD: Final = 4 * MAX_FDS
"""Descriptors of one client that may wait at a time, for their SPAWN or for room."""

_FRAME: Final = struct.Struct("<cBQ")
_MARK: Final = b"F"


def frame(request: int, count: int) -> bytes:
    """Return what announces `count` descriptors for the SPAWN of that number."""
    return _FRAME.pack(_MARK, count, request)


def parse(data: bytes) -> tuple[list[tuple[int, int]], bytes]:
    """Return the frames in what a lifeline brought, and the beginning of one more.

    Each is a request number and a count. Signs of life are left out.
    """
    found: list[tuple[int, int]] = []
    while (at := data.find(_MARK)) >= 0:
        data = data[at:]
        if len(data) < _FRAME.size:
            return found, data
        _, count, request = _FRAME.unpack_from(data)
        found.append((request, count))
        data = data[_FRAME.size :]
    return found, b""


class Pass(NamedTuple):
    """Take the SPAWN: its descriptors are here, for its START to `take`."""

    peer: bytes
    message: Message


class Refuse(NamedTuple):
    """Answer the SPAWN with an error."""

    peer: bytes
    message: Message
    error: EngineError


class Close(NamedTuple):
    """Close what nobody takes."""

    fds: tuple[int, ...]


Action = Pass | Refuse | Close
_Key = tuple[bytes, int]


class Passing:
    """Halves that wait for each other, by client and request number.

    Attributes:
        joined: the descriptors of each SPAWN that came to no START yet; see `take`.
    """

    def __init__(self) -> None:
        self._spawns: dict[_Key, tuple[Message, float]] = {}
        self._fds: dict[_Key, tuple[tuple[int, ...], float]] = {}
        self.joined: dict[_Key, tuple[int, ...]] = {}

    def spawn(self, peer: bytes, message: Message, now: float) -> list[Action]:
        """Take a SPAWN that needs descriptors."""
        key = peer, message.request
        if key in self._spawns or key in self.joined:
            fault = ProtocolError("a spawn of this number waits already")
            return [Refuse(peer, message, fault)]
        if key not in self._fds:
            self._spawns[key] = message, now + WAIT
            return []
        fds, _ = self._fds.pop(key)
        return self._join(key, message, fds)

    def descriptors(
        self, peer: bytes, request: int, fds: tuple[int, ...], now: float
    ) -> list[Action]:
        """Take the descriptors for a SPAWN."""
        key = peer, request
        if key in self._spawns:
            message, _ = self._spawns.pop(key)
            return self._join(key, message, fds)
        if key in self._fds:
            return [Close(fds)]
        if self._held(peer) + len(fds) > HELD:
            self._fds[key] = (), now + WAIT  # so its SPAWN is told at once
            return [Close(fds)]
        self._fds[key] = fds, now + WAIT
        return []

    def _held(self, peer: bytes) -> int:
        """Return how many descriptors of a client are here."""
        waiting = sum(len(fds) for (p, _), (fds, _) in self._fds.items() if p == peer)
        return waiting + sum(len(f) for (p, _), f in self.joined.items() if p == peer)

    def _join(self, key: _Key, message: Message, fds: tuple[int, ...]) -> list[Action]:
        """Join the halves, unless some descriptors were lost on the way.

        The kernel drops those for which the broker has no room.
        """
        if len(fds) != message.body["fds"]:
            lost = SpawnFailed(errno.EMFILE, "pipe")
            return [Refuse(key[0], message, lost), Close(fds)]
        self.joined[key] = fds
        return [Pass(key[0], message)]

    def take(self, peer: bytes, request: int) -> tuple[int, ...]:
        """Return the descriptors of a SPAWN; they are the caller's.

        Its START passes them on. When it is answered and still has some, it came to
        none: it was refused, or its child was started before.
        """
        return self.joined.pop((peer, request), ())

    def gone(self, peer: bytes) -> list[Action]:
        """Forget a client."""
        for key in [key for key in self._spawns if key[0] == peer]:
            del self._spawns[key]
        keys = [key for key in self._fds if key[0] == peer]
        unused = [self._fds.pop(key)[0] for key in keys]
        keys = [key for key in self.joined if key[0] == peer]
        unused += [self.joined.pop(key) for key in keys]
        return [Close(fds) for fds in unused]

    def next_deadline(self) -> float | None:
        """Return when `tick` is wanted, None while nothing waits."""
        halves = *self._spawns.values(), *self._fds.values()
        return min((ends for _, ends in halves), default=None)

    def tick(self, now: float) -> list[Action]:
        """End every wait that is over at time `now`."""
        actions: list[Action] = []
        for key, (message, ends) in list(self._spawns.items()):
            if ends <= now:
                del self._spawns[key]
                late = SpawnFailed(errno.ETIMEDOUT, "pipe")
                actions.append(Refuse(key[0], message, late))
        for key, (fds, ends) in list(self._fds.items()):
            if ends <= now:
                del self._fds[key]
                actions.append(Close(fds))
        return actions
