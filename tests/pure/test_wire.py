"""The wire: what is encoded comes back, and nothing else gets in."""

import math
import struct
from contextlib import suppress
from typing import Any

import msgpack  # the fuzz makes frames that the encoder refuses to make
import pytest
from hypothesis import given, strategies as st

from broker import wire
from broker.errors import ProtocolError
from broker.wire import (
    BULK,
    MAX_CONTROL,
    MAX_IDS,
    MAX_PAYLOAD,
    SHAPES,
    VERSION,
    Kind,
    Message,
    decode,
    encode,
    head,
    pack,
    salvage,
    unpack,
)
from tests.helpers import SPAWN

BIG = 2**63 - 1
KILL = {"grace": None, "timeout": 5.0, "cause": "killed", "release": False}
POLL = {
    "reader": 2,
    "stdout": 0,
    "stderr": 0,
    "wait": 0.0,
    "mode": "output",
    "limit": 1,
}

# Generators of every field, named as on the wire

seconds = st.floats(0, 1e9) | st.integers(0, 10**9)
whole = st.integers(0, BIG)
positive = st.integers(1, BIG)
leaves = st.none() | st.booleans() | st.integers(-(2**63), BIG) | st.binary(max_size=20)
plain = st.recursive(
    leaves | st.text(max_size=20) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)
shallow = st.lists(st.lists(leaves, max_size=3), max_size=3)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "at": st.none() | whole,
    "after": st.none() | whole,
    "bytes": positive,
    "capture": st.booleans(),
    "cause": st.sampled_from(("killed", "owner-drop", "evicted")),
    "chunks": positive,
    "clock": seconds,
    "cols": st.integers(1, 65535),
    "code": st.text(max_size=32),
    "end": whole,
    "errno": whole,
    "file": st.none() | st.binary(max_size=20),
    "flags": st.integers(0, 2**16),
    "error": shallow,
    "event": st.sampled_from(wire.LIFECYCLE),
    "missed": whole,
    "time": seconds,
    "grace": st.none() | seconds,
    "group": st.booleans(),
    "interrupt": st.booleans(),
    "release": st.booleans(),
    "kill_on_drop": st.booleans(),
    "fds": st.integers(0, 253),
    "again": st.booleans(),
    "whole": st.booleans(),
    "detach_ttl": st.none() | seconds,
    "steal": st.booleans(),
    "readable": st.booleans(),
    "ttl": st.none() | seconds,
    "scope_capacity": st.none() | positive,
    "client_capacity": st.none() | positive,
    "queue": st.none() | seconds,
    "on_full": st.sampled_from(["refuse", "evict"]),
    "kind": st.text(max_size=64),
    "lease": seconds,
    "limit": positive,
    "message": st.text(max_size=1024),
    "mode": st.sampled_from(["output", "completion"]),
    "newest": st.booleans(),
    "number": st.integers(1, 64),
    "offset": whole,
    "operator": st.none() | st.binary(max_size=64),
    "owner": st.binary(max_size=64),
    "paused": st.booleans(),
    "pattern": st.binary(max_size=20),
    "port": st.none() | st.integers(1, 65535),
    "proven": st.booleans(),
    "reader": positive,
    "rows": st.integers(1, 65535),
    "scope": st.text(max_size=256),
    "sequence": whole,
    "sessions": st.lists(positive, max_size=20),
    "visits": st.lists(positive, max_size=20),
    "stamps": st.lists(st.none() | seconds, max_size=4),
    "start": whole,
    "status": shallow,
    "stderr": whole,
    "stdout": whole,
    "stream": st.sampled_from(wire.STREAMS),
    "target": positive,
    "ticket": st.binary(max_size=32),
    "timeout": seconds,
    "token": st.text(max_size=128),
    "tokens": st.lists(st.text(max_size=128), max_size=5),
    "values": shallow,
    "wait": seconds,
    "worker": positive,
    "workers": st.lists(positive, max_size=5),
    "device": whole,
    "fd": whole,
    "inode": whole,
    "length": st.integers(1, 2**32 - 1),
    "local": st.booleans(),
    "proof": st.none() | st.binary(max_size=64),
    "received": whole,
    "taken": whole,
    "memo": st.binary(max_size=64),
    "ended": st.lists(st.sampled_from(wire.STREAMS), max_size=2),
    "exited": st.booleans(),
    "closed": st.booleans(),
    "released": st.booleans(),
    "last": st.booleans(),
    "started": seconds,
    "stdin": st.booleans(),
    "clients": st.lists(positive, max_size=5),
    "used": seconds,
    "pid": positive,
    "place": whole,
}
MEANT_OTHERWISE: dict[Kind, dict[str, st.SearchStrategy[Any]]] = {
    Kind.NOTICE: {"limit": st.text(max_size=32)},
    Kind.WELCOME: {"grace": seconds, "proof": st.binary(max_size=64)},
}


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from(Kind))
    fields, payload = SHAPES[kind]
    named = MEANT_OTHERWISE.get(kind, {})
    body = (
        draw(st.dictionaries(st.text(max_size=20), leaves, max_size=5))
        if fields is None
        else {name: draw((FIELDS | named)[name]) for name in fields}
    )
    raw = draw(st.binary(max_size=50)) if payload else None
    ids = draw(st.tuples(st.integers(0, 2**32 - 1), whole, whole, whole))
    return Message(kind, *ids, draw(st.floats(0, 1e11)), body, raw)


HEADER = struct.Struct("<BBHIQQQd")
WITH_PAYLOAD = 0x8000


def frame(
    body: bytes = b"",
    payload: bytes | None = None,
    *,
    kind: int = Kind.INFO,
    version: int = VERSION,
    request: int = 2,
    deadline: float = 0.0,
    size: int | None = None,
) -> bytes:
    """A frame of an INFO with some items changed."""
    size = len(body) if size is None else size
    if payload is not None:
        size |= WITH_PAYLOAD
    header = HEADER.pack(version, kind, size, 1, request, 0, 9, deadline)
    return header + body + (payload or b"")


def whole_frame(message: Message) -> bytes:
    return encode(message) + bytes(message.payload or b"")


def carried(kind: Kind, body: Any, payload: bytes | None = None) -> Message:
    return decode(frame(msgpack.packb(body), payload, kind=kind))


# Round trips


@given(messages())
def test_every_message_comes_back_as_it_was(message: Message) -> None:
    again = decode(whole_frame(message))
    assert again == message
    assert type(again.kind) is Kind


def test_every_kind_has_a_shape() -> None:
    assert set(SHAPES) == set(Kind)


def test_the_data_lane_holds_output_input_and_the_last_word() -> None:
    streams = {
        kind for kind, shape in SHAPES.items() if "stream" in (shape.fields or {})
    }
    assert (streams - {Kind.READ, Kind.EXPECT, Kind.READY}) | {
        Kind.WRITE,
        Kind.IDLE,
    } == BULK


def test_a_payload_is_a_slice_of_its_frame_whatever_that_is() -> None:
    body = {"stream": "stdout", "offset": 0, "sequence": 0}
    whole = whole_frame(Message(Kind.CHUNK, body=body, payload=b"x"))
    for made in (bytes, bytearray, memoryview):
        payload = decode(made(whole)).payload
        assert payload == b"x"
        assert type(payload) is made


def test_a_reply_goes_back_to_its_asker() -> None:
    asked = Message(Kind.POLL, 3, 4, 1000, 9, 77.0, POLL)
    answer = asked.reply(Kind.REPLY, {"done": True}, b"x")
    assert answer == Message(Kind.REPLY, 3, 4, 1000, 9, 0.0, {"done": True}, b"x")
    assert asked.reply(Kind.REPLY).body == {}


@given(plain)
def test_a_document_comes_back_as_it_was(document: Any) -> None:
    assert unpack(pack(document)) == document


# Refusals of the frame


def test_a_frame_without_a_whole_header_is_refused() -> None:
    for length in (0, 1, HEADER.size - 1):
        with pytest.raises(ProtocolError, match=f"of {length} bytes has no header"):
            decode(frame()[:length])


def test_a_frame_with_something_behind_it_is_refused() -> None:
    with pytest.raises(ProtocolError, match="1 bytes follow a whole message"):
        decode(encode(Message(Kind.INFO)) + b"\0")


@pytest.mark.parametrize("size", [1, MAX_CONTROL, 0x7FFF])
def test_a_body_that_is_not_all_there_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"body of {size} bytes is not in its"):
        decode(frame(size=size))


def test_a_body_over_the_limit_is_refused() -> None:
    with pytest.raises(ProtocolError, match="is not in its frame"):
        decode(frame(bytes(MAX_CONTROL)))


def test_a_message_that_does_not_fit_is_not_encoded() -> None:
    with pytest.raises(ProtocolError, match=r"a REPLY of \d+ bytes is over 16384"):
        encode(Message(Kind.REPLY, body={str(i): "x" * 4000 for i in range(5)}))


@pytest.mark.parametrize("number", [-1, 2**64])
def test_a_message_with_an_id_out_of_range_is_not_encoded(number: int) -> None:
    with pytest.raises(ProtocolError, match="a LIST with an id out of range"):
        encode(Message(Kind.LIST, session=number))


def test_a_full_drop_fits_into_a_frame() -> None:
    body = {"sessions": [BIG] * MAX_IDS, "tokens": []}
    assert decode(encode(Message(Kind.DROP, body=body))).body == body


@pytest.mark.parametrize("version", [0, VERSION + 1, 0x98])
def test_another_version_is_refused_by_name(version: int) -> None:
    with pytest.raises(ProtocolError, match=f"this side speaks {VERSION}"):
        decode(frame(version=version))


@pytest.mark.parametrize("kind", [0, 200])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(ProtocolError, match="unknown message kind"):
        decode(frame(kind=kind))


@pytest.mark.parametrize("value", [-1.0, 1e12, math.nan, math.inf])
def test_a_deadline_is_a_time(value: float) -> None:
    with pytest.raises(ProtocolError, match="deadline is a time"):
        decode(frame(deadline=value))


# Refusals of the body


@pytest.mark.parametrize("body", [None, 0, [], "scope"])
def test_a_body_is_a_map(body: Any) -> None:
    with pytest.raises(ProtocolError, match="body of LIST is a map"):
        carried(Kind.LIST, body)


@pytest.mark.parametrize("body", [b"\xc1", b"\xc0\0", b"\x91" * 10_000])
def test_a_body_that_is_no_msgpack_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="not msgpack"):
        decode(frame(body, kind=Kind.LIST))


@pytest.mark.parametrize("body", [b"", b"\2" + bytes(16), bytes(16), bytes(18)])
def test_a_body_of_another_layout_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="the body of CHUNK is broken"):
        decode(frame(body, b"", kind=Kind.CHUNK))


@pytest.mark.parametrize(
    ("body", "odd"),
    [
        ({"readable": True}, "scope"),
        ({"scope": None, "readable": True, "more": 1}, "more"),
        ({"scope": None, "readable": True, b"raw": 1}, "b'raw'"),
        ({"scop": None, "readable": True}, "scop, scope"),
    ],
)
def test_a_body_with_other_keys_is_refused_by_their_names(body: Any, odd: str) -> None:
    with pytest.raises(ProtocolError, match=f"does not know: {odd}$"):
        carried(Kind.LIST, body)


@pytest.mark.parametrize(
    ("kind", "good", "name", "bad"),
    [
        (Kind.KILL, KILL, "cause", "boredom"),
        (Kind.SPAWN, SPAWN, "token", "x" * 129),
        (Kind.SPAWN, SPAWN, "token", b"t"),
        (Kind.SPAWN, SPAWN, "reader", 0),
        (Kind.SPAWN, SPAWN, "chunks", 0),
        (Kind.SPAWN, SPAWN, "bytes", 2**63),
        (Kind.SPAWN, SPAWN, "kill_on_drop", 1),
        (Kind.SPAWN, SPAWN, "fds", 254),
        (Kind.SPAWN, SPAWN, "scope_capacity", 0),
        (Kind.SPAWN, SPAWN, "queue", -1.0),
        (Kind.SPAWN, SPAWN, "on_full", "burst"),
        (Kind.KILL, KILL, "grace", -0.1),
        (Kind.KILL, KILL, "timeout", math.nan),
        (Kind.KILL, KILL, "timeout", math.inf),
        (Kind.KILL, KILL, "timeout", True),
        (Kind.KILL, KILL, "timeout", None),
        (Kind.KILL, KILL, "cause", "x" * 33),
        (Kind.KILL, KILL, "release", None),
        (Kind.POLL, POLL, "mode", "other"),
        (Kind.POLL, POLL, "mode", ["output"]),
        (Kind.POLL, POLL, "stdout", -1),
        (Kind.POLL, POLL, "limit", 1.0),
        (Kind.DROP, {"sessions": [], "tokens": []}, "sessions", [0]),
        (Kind.DROP, {"sessions": [], "tokens": []}, "sessions", {}),
        (Kind.DROP, {"sessions": [], "tokens": []}, "sessions", [1] * (MAX_IDS + 1)),
        (Kind.DROP, {"sessions": [], "tokens": []}, "tokens", ["t"] * 101),
        (Kind.ERROR, {"code": "x", "values": []}, "values", {}),
        (Kind.ERROR, {"code": "x", "values": []}, "values", [[[[[0]]]]]),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_name(
    kind: Kind, good: dict[str, Any], name: str, bad: Any
) -> None:
    payload = b"" if SHAPES[kind].payload else None
    assert carried(kind, good, payload).body == good
    with pytest.raises(ProtocolError, match=rf"{kind.name}\.{name} is out of range"):
        carried(kind, good | {name: bad}, payload)


def test_a_hello_takes_keys_and_tickets_as_bytes_only() -> None:
    body = {"ticket": b"t" * 32, "owner": b"", "operator": None, "lease": 0}
    body |= {"proof": None}
    assert carried(Kind.HELLO, body).body == body
    for bad in (b"t" * 33, "t", None):
        with pytest.raises(ProtocolError, match=r"HELLO\.ticket"):
            carried(Kind.HELLO, body | {"ticket": bad})


def test_an_answers_body_holds_plain_values_only() -> None:
    assert carried(Kind.REPLY, {"any": [1, [b"x", None, "y", 0.5, True]]}).body
    with pytest.raises(ProtocolError, match="body of REPLY holds plain values only"):
        carried(Kind.REPLY, {"any": {"a": "map"}})


# Refusals of the payload


def written(payload: bytes | None) -> Message:
    return decode(frame(bytes(8), payload, kind=Kind.WRITE))


def test_a_payload_where_none_belongs_is_refused() -> None:
    with pytest.raises(ProtocolError, match="LIST comes without payload"):
        carried(Kind.LIST, {"scope": None, "readable": False}, b"")


def test_a_payload_that_is_missing_is_refused() -> None:
    with pytest.raises(ProtocolError, match="WRITE comes with payload"):
        written(None)


def test_an_answer_may_have_a_payload_or_none() -> None:
    assert carried(Kind.REPLY, {}).payload is None
    assert carried(Kind.REPLY, {}, b"").payload == b""


def test_a_payload_over_the_limit_is_refused() -> None:
    assert written(bytes(MAX_PAYLOAD)).payload
    with pytest.raises(ProtocolError, match="8388608 fit"):
        written(bytes(MAX_PAYLOAD + 1))


# Documents


def test_a_document_over_the_limit_is_not_packed() -> None:
    with pytest.raises(ProtocolError, match="a document of"):
        pack(bytes(MAX_PAYLOAD))


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\0\0", b"\x91" * 5000, b"\x81\x01\x01"]
)
def test_what_is_no_document_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="no document"):
        unpack(data)


def test_a_document_that_would_unfold_to_gigabytes_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no document"):
        unpack(b"\xdd\x7f\xff\xff\xff" + b"\xc0" * 1000)


# Salvage


@pytest.mark.parametrize(
    ("broken", "request_id"),
    [
        (frame(request=42, kind=200), 42),
        (frame(request=43, version=9), 43),
        (frame(request=44) + b"?", 44),
        (frame(request=45)[:-1], 0),
        (b"", 0),
    ],
)
def test_the_request_of_a_refused_frame_is_saved_where_it_has_one(
    broken: bytes, request_id: int
) -> None:
    assert salvage(broken) == request_id


# What is passed on by its header


CHUNK = Message(
    Kind.CHUNK,
    3,
    4,
    1000,
    9,
    0.0,
    {"stream": "stderr", "offset": 1, "sequence": 2},
    b"x",
)
PASSED = (
    CHUNK,
    Message(Kind.WRITE, 3, 4, 1000, 9, 0.0, {"at": None}, b"x"),
    Message(
        Kind.CREDIT, 3, 4, 1000, 9, 0.0, {"chunks": 1, "sequence": 2, "local": True}
    ),
    Message(Kind.REPLY, 3, 4, 1000, 9, 0.0, {"accepted": 1}),
    Message(Kind.REPLY, 3, 4, 1000, 9, 0.0, {}, b"x"),
)


@pytest.mark.parametrize("message", PASSED, ids=lambda message: message.kind.name)
def test_the_header_says_for_whom_a_frame_is(message: Message) -> None:
    found = head(whole_frame(message))
    assert found is not None
    assert (found.kind, found.client, found.request, found.session, found.epoch) == (
        message[:5]
    )


@pytest.mark.parametrize(
    "other",
    [
        b"",
        frame(kind=Kind.INFO),
        frame(kind=200),
        frame(bytes(17), b"", kind=Kind.CHUNK, version=VERSION + 1),
        frame(bytes(17), kind=Kind.CHUNK),
        frame(bytes(16), b"", kind=Kind.CHUNK),
        frame(bytes(17), b"", kind=Kind.CREDIT),
        frame(b"", b"", kind=Kind.WRITE, size=8),
        frame(bytes(7), b"", kind=Kind.WRITE, size=8),
        frame(bytes(8), bytes(MAX_PAYLOAD + 1), kind=Kind.WRITE),
        frame(bytes(16), kind=Kind.CREDIT, size=17),
        frame(bytes(18), kind=Kind.CREDIT, size=17),
        frame(bytes(1), kind=Kind.REPLY, size=2),
        frame(bytes(3), kind=Kind.REPLY, size=2),
        frame(b"", bytes(MAX_PAYLOAD + 1), kind=Kind.REPLY),
    ],
)
def test_whatever_else_a_frame_is_has_to_be_decoded(other: bytes) -> None:
    assert head(other) is None


# Fuzz

INPUT = (Kind.WRITE, Kind.CREDIT)
"""What a client's broker passes on to a worker unread, if it has no deadline."""

anything = st.recursive(
    leaves | st.text(max_size=20) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=9)
        | st.dictionaries(
            st.text(max_size=9) | st.binary(max_size=9), inner, max_size=4
        )
    ),
    max_leaves=20,
)


def refused_or_whole(data: bytes) -> None:
    salvage(data)
    try:
        message = decode(data)
    except ProtocolError:
        found = head(data)
        unread = found is not None and found.kind in INPUT and not found.deadline
        assert not unread, "a worker would take it"
        return
    again = decode(whole_frame(message))
    assert repr(again) == repr(message)  # NaN equals itself in writing only
    passed = head(data)
    assert passed is None or passed[3:7] == message[1:5]


@given(st.binary(max_size=100))
def test_any_bytes_are_refused_or_make_a_whole_message(data: bytes) -> None:
    refused_or_whole(data)


@given(st.sampled_from(Kind), anything, st.none() | st.binary(max_size=3))
def test_any_body_is_refused_or_makes_a_whole_message(
    kind: Kind, body: Any, payload: bytes | None
) -> None:
    refused_or_whole(frame(msgpack.packb(body), payload, kind=kind))


@given(messages(), st.data())
def test_a_message_with_one_field_exchanged_is_refused_or_whole(
    message: Message, data: st.DataObject
) -> None:
    names = st.sampled_from([*message.body, "other"])
    body = {**message.body, data.draw(names): data.draw(anything)}
    payload = None if message.payload is None else bytes(message.payload)
    refused_or_whole(frame(msgpack.packb(body), payload, kind=message.kind))


@given(messages(), st.integers(0, 300), st.integers(0, 255))
def test_a_message_with_one_byte_exchanged_is_refused_or_whole(
    message: Message, place: int, value: int
) -> None:
    changed = bytearray(whole_frame(message))
    changed[place % len(changed)] = value
    refused_or_whole(bytes(changed))


@given(messages(), st.integers(0, 300), st.binary(max_size=3))
def test_a_message_that_is_cut_or_goes_on_is_refused_or_whole(
    message: Message, end: int, behind: bytes
) -> None:
    refused_or_whole(whole_frame(message)[:end] + behind)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_make_a_document(payload: bytes) -> None:
    with suppress(ProtocolError):
        unpack(payload)
