"""The wire: message kinds, the frame, and its limits.

A message is one frame: a fixed header, a body, and for some kinds a payload::

    version u8 | kind u8 | size u16 | client u32 | request, session, epoch u64 |
    deadline f64 | body | payload

little endian. The low 15 bits of `size` are the bytes of the body, its top bit says
that a payload follows, to the end of the frame; an empty one is not the same as none.
The body is a map whose keys, types and ranges are fixed per kind by `SHAPES`: packed by
msgpack, or nothing at all for an empty map. A few kinds that come thousands of times a
second have a fixed layout instead (`_LAYOUTS`). Anything else is a `ProtocolError`. The
payload is raw bytes (output, input, or a packed document such as a spawn spec): the
broker forwards it without reading it. `PROTOCOL.md` tells the same for people.

With the ids at fixed places the broker can pass on what it has no interest in by a
look at the header alone (`Head`): output in 0.7 us and input in 1.7, where to decode,
route and encode them takes 4 to 6.

This module is pure, and the only one that knows msgpack.
"""

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgpack

from broker.errors import ProtocolError

__all__ = [
    "BULK",
    "HEADER_SIZE",
    "LIFECYCLE",
    "MAX_CONTROL",
    "MAX_FDS",
    "MAX_FRAME",
    "MAX_IDS",
    "MAX_PAYLOAD",
    "MAX_TOKEN",
    "SHAPES",
    "STREAMS",
    "VERSION",
    "Head",
    "Kind",
    "Message",
    "Payload",
    "decode",
    "encode",
    "head",
    "pack",
    "salvage",
    "unpack",
]

VERSION: Final = 2
MAX_CONTROL: Final = 16 * 1024
"""Bytes of header and body: everything larger travels as payload."""
MAX_PAYLOAD: Final = 8 * 1024 * 1024
"""Bytes of a payload: a spawn spec with 3 MiB of arguments fits."""
MAX_FRAME: Final = MAX_CONTROL + MAX_PAYLOAD
MAX_TOKEN: Final = 128
"""Characters of a spawn's token, which is the caller's request id if there is one."""
MAX_FDS: Final = 253
"""Descriptors that one message carries at most: the kernel's SCM_MAX_FD."""
MAX_IDS: Final = 1000
"""Sessions named by one command, so that its control frame stays within bounds."""
STREAMS: Final = ("stdout", "stderr")
LIFECYCLE: Final = (
    "starting",
    "running",
    "exited",
    "closed",
    "lost",
    "evicted",
    "warning",
    "failed",
)
"""What can happen to a session, for whoever watches."""

_BIG = 2**63 - 1
Payload = bytes | bytearray | memoryview


class Kind(IntEnum):
    """What a message is; the number is what travels."""

    # client -> broker
    HELLO = 1
    SPAWN = 2
    LIST = 3
    INFO = 4
    DROP = 5
    KILL_MANY = 6
    ATTACH = 7
    DETACH = 8
    WATCH = 9
    CLAIM = 28
    # client -> worker of the session (the broker checks the right and forwards)
    WRITE = 10
    CLOSE_STDIN = 11
    POLL = 12
    READ = 13
    OPEN = 14
    RESUME = 27
    CREDIT = 15
    STOP = 16
    KILL = 17
    SIGNAL = 18
    SNAPSHOT = 19
    STATS = 21
    CLOCK = 25
    RESIZE = 20
    EXPECT = 22
    READY = 23
    APPEND = 24
    VISIT = 26
    # broker -> worker
    START = 30
    MEMO = 31
    RETIRE = 32
    # broker or worker -> client
    WELCOME = 40
    REPLY = 41
    ERROR = 42
    CHUNK = 43
    GAP = 44
    EOF = 45
    ABANDONED = 46
    BROKEN = 47
    EXITED = 48
    CLOSED = 49
    LIFECYCLE = 50
    PLACED = 52
    ARENA = 53
    # worker -> broker
    NOTICE = 51
    IDLE = 60
    # broker <-> pool, supervisor -> broker
    FORK = 70
    GONE = 71
    POOL = 72
    POOL_GONE = 73
    CONDEMN = 74
    WORKERS = 75
    # worker -> another broker than before
    REGISTER = 76


class Message(NamedTuple):
    """One message. Ids are 0 where they do not apply.

    `client` is the number that the broker gave its sender (or receiver) at the hello,
    `request` the sender's own number (0: no answer wanted), `session` the child's id,
    `epoch` the broker's incarnation, `deadline` an absolute time in seconds of the
    broker's monotonic clock (0: none).
    """

    kind: Kind
    client: int = 0
    request: int = 0
    session: int = 0
    epoch: int = 0
    deadline: float = 0.0
    body: Mapping[str, Any] = {}
    payload: Payload | None = None

    def reply(
        self,
        kind: Kind,
        body: Mapping[str, Any] = {},
        payload: Payload | None = None,
    ) -> "Message":
        """Return a message of `kind` that answers this one."""
        return Message(
            kind,
            self.client,
            self.request,
            self.session,
            self.epoch,
            0.0,
            body,
            payload,
        )


Check = Callable[[Any], bool]


def _whole(low: int = 0, high: int = _BIG) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def _seconds(high: float = 2.0**53) -> Check:
    return lambda value: type(value) in (int, float) and 0 <= value <= high


def _text(size: int) -> Check:
    return lambda value: type(value) is str and len(value) <= size


def _raw(size: int) -> Check:
    return lambda value: type(value) is bytes and len(value) <= size


def _one_of(*choices: Any) -> Check:
    return lambda value: value in choices


def _flag(value: Any) -> bool:
    return type(value) is bool


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check, size: int = MAX_IDS) -> Check:
    return lambda value: (
        type(value) is list and len(value) <= size and all(map(check, value))
    )


_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes})


def _plain(value: Any, depth: int = 4) -> bool:
    if type(value) is not list:
        return type(value) in _SCALARS
    if depth == 0:
        return False
    others = set(map(type, value)) - _SCALARS
    if not others:
        return True
    return others == {list} and all(
        _plain(item, depth - 1) for item in value if type(item) is list
    )


_STREAM = _one_of(*STREAMS)
_IDS = _list_of(_whole(1))
_TOKEN = _text(MAX_TOKEN)
_MEMO = _raw(4096)
_CAUSE = _one_of("killed", "owner-drop", "evicted")
_ANYTHING = None
"""Shape of an answer's body: any keys, plain values."""


class Shape(NamedTuple):
    """What a kind's body holds, and whether a payload frame follows (None: may)."""

    fields: Mapping[str, Check] | None = {}
    payload: bool | None = False


SHAPES: Final[Mapping[Kind, Shape]] = {
    Kind.HELLO: Shape(
        {
            "ticket": _raw(32),
            "owner": _raw(64),
            "operator": _optional(_raw(64)),
            "lease": _seconds(),
            "proof": _optional(_raw(64)),
        }
    ),
    Kind.SPAWN: Shape(
        {
            "token": _TOKEN,
            "scope": _text(256),
            "reader": _optional(_whole(1)),
            "chunks": _whole(1),
            "bytes": _whole(1),
            "release": _flag,
            "kill_on_drop": _flag,
            "fds": _whole(0, MAX_FDS),
            "again": _flag,
            "detach_ttl": _optional(_seconds()),
            "scope_capacity": _optional(_whole(1)),
            "client_capacity": _optional(_whole(1)),
            "queue": _optional(_seconds()),
            "on_full": _one_of("refuse", "evict"),
        },
        payload=True,
    ),
    Kind.LIST: Shape({"scope": _optional(_text(256)), "readable": _flag}),
    Kind.INFO: Shape({}),
    Kind.DROP: Shape({"sessions": _IDS, "tokens": _list_of(_TOKEN, 100)}),
    Kind.KILL_MANY: Shape({"sessions": _IDS, "timeout": _seconds()}),
    Kind.ATTACH: Shape({"steal": _flag}),
    Kind.DETACH: Shape({"ttl": _optional(_seconds())}),
    Kind.WATCH: Shape({"scope": _optional(_text(256))}),
    Kind.CLAIM: Shape({"sessions": _IDS, "visits": _IDS}),
    Kind.WRITE: Shape({"at": _optional(_whole())}, payload=True),
    Kind.CLOSE_STDIN: Shape({}),
    Kind.POLL: Shape(
        {
            "reader": _whole(1),
            "stdout": _whole(),
            "stderr": _whole(),
            "wait": _seconds(),
            "mode": _one_of("output", "completion"),
            "limit": _whole(1),
        }
    ),
    Kind.READ: Shape(
        {
            "reader": _whole(1),
            "stream": _STREAM,
            "offset": _optional(_whole()),
            "wait": _seconds(),
            "limit": _whole(1),
        }
    ),
    Kind.OPEN: Shape(
        {
            "after": _optional(_whole()),
            "newest": _flag,
            "chunks": _whole(1),
            "bytes": _whole(1),
            "capture": _flag,
        }
    ),
    Kind.RESUME: Shape(
        {
            "stdout": _whole(),
            "stderr": _whole(),
            "received": _whole(),
            "taken": _whole(),
            "sequence": _whole(),
            "local": _flag,
            "ended": _list_of(_STREAM, len(STREAMS)),
            "exited": _flag,
            "chunks": _whole(1),
            "bytes": _whole(1),
            "capture": _flag,
        }
    ),
    Kind.CREDIT: Shape({"chunks": _whole(), "sequence": _whole(), "local": _flag}),
    Kind.STOP: Shape({"target": _whole()}),
    Kind.KILL: Shape(
        {
            "grace": _optional(_seconds()),
            "timeout": _seconds(),
            "cause": _CAUSE,
            "release": _flag,
        }
    ),
    Kind.SIGNAL: Shape({"number": _whole(1, 64), "group": _flag, "interrupt": _flag}),
    Kind.SNAPSHOT: Shape({}),
    Kind.STATS: Shape({}),
    Kind.CLOCK: Shape({"paused": _flag}),
    Kind.RESIZE: Shape({"rows": _whole(1, 65535), "cols": _whole(1, 65535)}),
    Kind.EXPECT: Shape(
        {
            "reader": _whole(1),
            "stream": _STREAM,
            "offset": _whole(),
            "pattern": _raw(4096),
            "flags": _whole(0, 2**16),
            "wait": _optional(_seconds()),
        }
    ),
    Kind.READY: Shape(
        {
            "port": _optional(_whole(1, 65535)),
            "file": _optional(_raw(4096)),
            "pattern": _optional(_raw(4096)),
            "flags": _whole(0, 2**16),
            "stream": _STREAM,
            "wait": _optional(_seconds()),
        }
    ),
    Kind.APPEND: Shape({}, payload=True),
    Kind.VISIT: Shape({}),
    Kind.START: Shape(
        {
            "reader": _optional(_whole(1)),
            "chunks": _whole(1),
            "bytes": _whole(1),
            "release": _flag,
            "memo": _MEMO,
        },
        payload=True,
    ),
    Kind.MEMO: Shape({"memo": _MEMO}),
    Kind.RETIRE: Shape({}),
    Kind.WELCOME: Shape({"clock": _seconds(), "grace": _seconds(), "proof": _raw(64)}),
    Kind.REPLY: Shape(_ANYTHING, payload=None),
    Kind.ERROR: Shape({"code": _text(32), "values": _plain}, payload=None),
    Kind.CHUNK: Shape(
        {"stream": _STREAM, "offset": _whole(), "sequence": _whole()}, payload=True
    ),
    Kind.PLACED: Shape(
        {
            "stream": _STREAM,
            "offset": _whole(),
            "sequence": _whole(),
            "place": _whole(),
            "length": _whole(1),
        }
    ),
    Kind.ARENA: Shape(
        {"pid": _whole(1), "fd": _whole(), "device": _whole(), "inode": _whole()}
    ),
    Kind.GAP: Shape({"stream": _STREAM, "start": _whole(), "end": _whole()}),
    Kind.EOF: Shape({"stream": _STREAM}),
    Kind.ABANDONED: Shape({"stream": _STREAM}),
    Kind.BROKEN: Shape(
        {
            "stream": _STREAM,
            "kind": _text(64),
            "message": _text(1024),
            "errno": _whole(),
        }
    ),
    Kind.EXITED: Shape({"status": _plain}),
    Kind.NOTICE: Shape({"limit": _text(32)}),
    Kind.CLOSED: Shape({"status": _plain}, payload=None),
    Kind.LIFECYCLE: Shape(
        {
            "event": _one_of(*LIFECYCLE),
            "scope": _text(256),
            "sequence": _whole(),
            "time": _seconds(),
            "status": _plain,
            "error": _plain,
            "missed": _whole(),
        }
    ),
    Kind.IDLE: Shape({"stamps": _list_of(_optional(_seconds()), 4)}),
    Kind.FORK: Shape({"workers": _list_of(_whole(1), MAX_FDS)}),
    Kind.GONE: Shape({"worker": _whole(1), "errno": _whole(), "proven": _flag}),
    Kind.POOL: Shape({}),
    Kind.POOL_GONE: Shape({"proven": _flag}),
    Kind.CONDEMN: Shape({"worker": _whole(1)}),
    Kind.WORKERS: Shape(
        {"workers": _list_of(_whole(1), MAX_FDS), "last": _flag, "whole": _flag}
    ),
    Kind.REGISTER: Shape(
        {
            "pid": _whole(1),
            "started": _seconds(),
            "stdin": _flag,
            "status": _plain,
            "closed": _flag,
            "released": _flag,
            "clients": _list_of(_whole(1)),
            "used": _seconds(),
        },
        payload=True,
    ),
}


BULK: Final = frozenset(
    {
        Kind.WRITE,
        Kind.CHUNK,
        Kind.PLACED,
        Kind.GAP,
        Kind.EOF,
        Kind.ABANDONED,
        Kind.BROKEN,
        Kind.IDLE,
    }
)
"""The data lane. Everything else is control: it overtakes these in every queue.

IDLE is the last word about a session, so it comes after all of its output.
"""


class Layout(NamedTuple):
    """The fixed layout of a body: how it is packed, and the two ways between."""

    packing: struct.Struct
    to_items: Callable[[Any], tuple[Any, ...]]
    to_body: Callable[..., dict[str, Any]]


_INDEX: Final = {stream: index for index, stream in enumerate(STREAMS)}

_LAYOUTS: Final[Mapping[Kind, Layout]] = {
    Kind.WRITE: Layout(
        struct.Struct("<q"),  # -1: no offset
        lambda body: (-1 if body["at"] is None else body["at"],),
        lambda at: {"at": None if at < 0 else at},
    ),
    Kind.CREDIT: Layout(
        struct.Struct("<QQ?"),
        lambda body: (body["chunks"], body["sequence"], body["local"]),
        lambda chunks, sequence, local: {
            "chunks": chunks,
            "sequence": sequence,
            "local": local,
        },
    ),
    Kind.CHUNK: Layout(
        struct.Struct("<BQQ"),
        lambda body: (_INDEX[body["stream"]], body["offset"], body["sequence"]),
        lambda stream, offset, sequence: {
            "stream": STREAMS[stream],
            "offset": offset,
            "sequence": sequence,
        },
    ),
    Kind.PLACED: Layout(
        struct.Struct("<BQQQI"),
        lambda body: (
            _INDEX[body["stream"]],
            body["offset"],
            body["sequence"],
            body["place"],
            body["length"],
        ),
        lambda stream, offset, sequence, place, length: {
            "stream": STREAMS[stream],
            "offset": offset,
            "sequence": sequence,
            "place": place,
            "length": length,
        },
    ),
}


class Head(NamedTuple):
    """The header of a frame, unchecked; `size` as it travels."""

    version: int
    kind: int
    size: int
    client: int
    request: int
    session: int
    epoch: int
    deadline: float


_HEADER: Final = struct.Struct("<BBHIQQQd")
HEADER_SIZE: Final = _HEADER.size
"""Bytes before the body."""
_PAYLOAD: Final = 0x8000


def head(frame: Payload) -> Head | None:
    """Return the header of a frame whose kind has a fixed layout or none to be read.

    None: the frame is to be decoded, which also tells what is wrong with it. Of any
    other only the deadline and the body may be wrong.
    """
    length = len(frame)
    if length < HEADER_SIZE:
        return None
    found = Head._make(_HEADER.unpack_from(frame))
    size = found.size
    fits = _PASSED.get(found.kind)
    if fits is None or found.version != VERSION or size not in fits:
        return None
    rest = length - HEADER_SIZE - (size & ~_PAYLOAD)
    if rest and (rest < 0 or rest > (MAX_PAYLOAD if size & _PAYLOAD else 0)):
        return None
    return found


_PASSED: Final[Mapping[int, range | tuple[int]]] = {
    int(Kind.REPLY): range(0x10000),
    **{
        int(kind): (layout.packing.size | _PAYLOAD * bool(SHAPES[kind].payload),)
        for kind, layout in _LAYOUTS.items()
    },
}
"""What `size` may be, of kinds that are passed on by their header."""


def encode(message: Message) -> bytes:
    """Return the frame of `message` up to its payload, which is to follow.

    Raises:
        ProtocolError: header and body would be longer than `MAX_CONTROL`.
    """
    kind, client, request, session, epoch, deadline, body, payload = message
    layout = _LAYOUTS.get(kind)
    if layout is not None:
        packed = layout.packing.pack(*layout.to_items(body))
    else:
        packed = msgpack.packb(body) if body else b""
    if len(packed) + _HEADER.size > MAX_CONTROL:
        size = len(packed) + _HEADER.size
        raise ProtocolError(f"a {kind.name} of {size} bytes is over {MAX_CONTROL}")
    size = len(packed) if payload is None else len(packed) | _PAYLOAD
    try:
        header = _HEADER.pack(
            VERSION, kind, size, client, request, session, epoch, deadline
        )
    except struct.error as error:
        raise ProtocolError(f"a {kind.name} with an id out of range") from error
    return header + packed


def decode(frame: Payload) -> Message:
    """Return the message in a frame, fully checked; its payload is a slice of that.

    Raises:
        ProtocolError: any departure from `SHAPES`, the version or the limits.
    """
    if len(frame) < _HEADER.size:
        raise ProtocolError(f"a frame of {len(frame)} bytes has no header")
    version, number, size, client, request, session, epoch, deadline = (
        _HEADER.unpack_from(frame)
    )
    if version != VERSION:
        raise ProtocolError(f"wire version {version}: this side speaks {VERSION}")
    kind = _KINDS.get(number)
    if kind is None:
        raise ProtocolError(f"unknown message kind: {number}")
    if not 0 <= deadline < 1e12:
        raise ProtocolError("deadline is a time in seconds, 0 for none")
    end = _HEADER.size + (size & ~_PAYLOAD)
    if end > MAX_CONTROL or end > len(frame):
        raise ProtocolError(f"a body of {size & ~_PAYLOAD} bytes is not in its frame")
    payload = frame[end:] if size & _PAYLOAD else None
    if payload is None and end < len(frame):
        raise ProtocolError(f"{len(frame) - end} bytes follow a whole message")
    _check_payload(kind, payload)
    body = _body(kind, frame[_HEADER.size : end])
    return Message(kind, client, request, session, epoch, deadline, body, payload)


_KINDS: Final[Mapping[int, Kind]] = {int(kind): kind for kind in Kind}


def _body(kind: Kind, packed: Payload) -> dict[str, Any]:
    layout = _LAYOUTS.get(kind)
    if layout is not None:
        try:
            return layout.to_body(*layout.packing.unpack(packed))
        except (struct.error, IndexError) as broken:
            raise ProtocolError(f"the body of {kind.name} is broken") from broken
    body = _unpack_body(packed) if packed else {}
    _check_body(kind, body)
    return body


def _unpack_body(packed: Payload) -> Any:
    try:
        return msgpack.unpackb(
            packed,
            raw=False,
            strict_map_key=True,
            max_str_len=4096,
            max_bin_len=4096,
            max_array_len=1024,
            max_map_len=64,
            max_ext_len=0,
        )
    except (ValueError, RecursionError) as broken:
        raise ProtocolError(f"the body is not msgpack: {broken}") from broken


def _check_body(kind: Kind, body: Any) -> None:
    if type(body) is not dict:
        raise ProtocolError(f"the body of {kind.name} is a map")
    fields = SHAPES[kind].fields
    if fields is None:
        if not all(map(_plain, body.values())):
            raise ProtocolError(f"the body of {kind.name} holds plain values only")
        return
    if body.keys() != fields.keys():
        odd = sorted(map(str, body.keys() ^ fields.keys()))
        raise ProtocolError(f"{kind.name} lacks or does not know: {', '.join(odd)}")
    for name, check in fields.items():
        if not check(body[name]):
            raise ProtocolError(
                f"{kind.name}.{name} is out of range or of a wrong type"
            )


def _check_payload(kind: Kind, payload: Payload | None) -> None:
    wanted = SHAPES[kind].payload
    if wanted is not None and wanted is not (payload is not None):
        raise ProtocolError(
            f"{kind.name} comes {'with' if wanted else 'without'} payload"
        )
    if payload is not None and len(payload) > MAX_PAYLOAD:
        raise ProtocolError(f"a payload of {len(payload)} bytes: {MAX_PAYLOAD} fit")


def salvage(frame: Payload) -> int:
    """Return the request id of a frame that `decode` refused, 0 when it has none.

    With it a peer that sent nonsense, or speaks another version (it has the same
    place in all), still gets an answer to what it asked.
    """
    if len(frame) < _HEADER.size:
        return 0
    return Head._make(_HEADER.unpack_from(frame)).request


def pack(document: Any) -> bytes:
    """Return a payload document (a spawn spec, a snapshot) as bytes.

    Raises:
        ProtocolError: it would be larger than `MAX_PAYLOAD`.
    """
    data: bytes = msgpack.packb(document)
    if len(data) > MAX_PAYLOAD:
        raise ProtocolError(f"a document of {len(data)} bytes: {MAX_PAYLOAD} fit")
    return data


def unpack(payload: Payload) -> Any:
    """Return the document in a payload, under limits of its own.

    Raises:
        ProtocolError: it is no document, or larger in some respect than allowed.
    """
    try:
        return msgpack.unpackb(
            payload,
            raw=False,
            strict_map_key=True,
            max_str_len=MAX_PAYLOAD,
            max_bin_len=MAX_PAYLOAD,
            max_array_len=1 << 20,
            max_map_len=1 << 12,
            max_ext_len=0,
        )
    except (ValueError, RecursionError) as broken:
        raise ProtocolError(f"the payload is no document: {broken}") from broken
