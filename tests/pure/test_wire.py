"""The wire: what is encoded comes back, and nothing else gets in."""

import math
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
    Payload,
    decode,
    encode,
    pack,
    salvage,
    unpack,
)
from tests.helpers import SPAWN

BIG = 2**63 - 1
KILL = {"grace": None, "timeout": 5.0, "cause": "killed", "release": False}
POLL = {"stdout": 0, "stderr": 0, "wait": 0.0, "mode": "output", "limit": 1}

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
    "detach_ttl": st.none() | seconds,
    "steal": st.booleans(),
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
}
NOTICE = {"limit": st.text(max_size=32)}


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from(Kind))
    fields, payload = SHAPES[kind]
    named = NOTICE if kind is Kind.NOTICE else {}
    body = (
        draw(st.dictionaries(st.text(max_size=20), leaves, max_size=5))
        if fields is None
        else {name: draw((FIELDS | named)[name]) for name in fields}
    )
    raw = draw(st.binary(max_size=50)) if payload else None
    ids = draw(st.tuples(whole, whole, whole, whole))
    return Message(kind, *ids, draw(st.floats(0, 1e11)), body, raw)


def frame(**changes: Any) -> list[Any]:
    """A control frame of a LIST command with some items changed."""
    items = {
        "version": VERSION,
        "kind": int(Kind.LIST),
        "client": 1,
        "request": 2,
        "session": 0,
        "epoch": 9,
        "deadline": 0.0,
        "body": {"scope": None},
    }
    return list((items | changes).values())


def sent(items: Any, payload: bytes | None = None) -> Message:
    return decode(msgpack.packb(items), payload)


def carried(kind: Kind, body: Any, payload: bytes | None = None) -> Message:
    return sent(frame(kind=int(kind), body=body), payload)


# Round trips


@given(messages())
def test_every_message_comes_back_as_it_was(message: Message) -> None:
    again = decode(encode(message), message.payload)
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


def test_a_payload_may_be_any_buffer() -> None:
    body = {"stream": "stdout", "offset": 0, "sequence": 0}
    for payload in (b"x", bytearray(b"x"), memoryview(b"x")):
        control = encode(Message(Kind.CHUNK, body=body, payload=payload))
        assert decode(memoryview(control), payload).payload is payload


def test_a_reply_goes_back_to_its_asker() -> None:
    asked = Message(Kind.POLL, 3, 4, 1000, 9, 77.0, POLL)
    answer = asked.reply(Kind.REPLY, {"done": True}, b"x")
    assert answer == Message(Kind.REPLY, 3, 4, 1000, 9, 0.0, {"done": True}, b"x")
    assert asked.reply(Kind.REPLY).body == {}


@given(plain)
def test_a_document_comes_back_as_it_was(document: Any) -> None:
    assert unpack(pack(document)) == document


# Refusals of the frame


def test_a_frame_that_is_no_msgpack_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not msgpack"):
        decode(b"\xc1")


def test_a_frame_with_something_behind_it_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not msgpack"):
        decode(encode(Message(Kind.INFO)) + b"\0")


def test_a_frame_nested_without_end_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not msgpack"):
        decode(b"\x91" * 10_000)


@pytest.mark.parametrize("extra", [b"", b"\0" * MAX_PAYLOAD])
def test_a_frame_over_the_limit_is_refused(extra: bytes) -> None:
    control = b"\0" * (MAX_CONTROL + 1) + extra
    with pytest.raises(ProtocolError, match="16384 fit"):
        decode(control)


def test_a_message_that_does_not_fit_is_not_encoded() -> None:
    with pytest.raises(ProtocolError, match="a REPLY control frame of"):
        encode(Message(Kind.REPLY, body={str(i): "x" * 4000 for i in range(5)}))


def test_a_full_drop_fits_into_a_frame() -> None:
    body = {"sessions": [BIG] * MAX_IDS, "tokens": []}
    assert decode(encode(Message(Kind.DROP, body=body))).body == body


@pytest.mark.parametrize("items", [None, 1, "x", {}, [], frame()[:-1], [*frame(), 0]])
def test_a_frame_is_an_array_of_eight(items: Any) -> None:
    with pytest.raises(ProtocolError, match="array of 8"):
        sent(items)


@pytest.mark.parametrize("version", [0, VERSION + 1, None, "1"])
def test_another_version_is_refused_by_name(version: Any) -> None:
    with pytest.raises(ProtocolError, match=f"this side speaks {VERSION}"):
        sent(frame(version=version))


@pytest.mark.parametrize("kind", [0, 9999, -1, None, "LIST", 4.0, True])
def test_an_unknown_kind_is_refused(kind: Any) -> None:
    with pytest.raises(ProtocolError, match="unknown message kind"):
        sent(frame(kind=kind))


@pytest.mark.parametrize("name", ["client", "request", "session", "epoch"])
@pytest.mark.parametrize("value", [-1, 2**63, 1.0, True, None, "1", []])
def test_ids_are_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(ProtocolError, match="are whole numbers"):
        sent(frame(**{name: value}))


@pytest.mark.parametrize("value", [-1, 1e12, math.nan, math.inf, None, True, "1"])
def test_a_deadline_is_a_time(value: Any) -> None:
    with pytest.raises(ProtocolError, match="deadline is a time"):
        sent(frame(deadline=value))


# Refusals of the body


@pytest.mark.parametrize("body", [None, 0, [], "scope"])
def test_a_body_is_a_map(body: Any) -> None:
    with pytest.raises(ProtocolError, match="body of LIST is a map"):
        sent(frame(body=body))


@pytest.mark.parametrize(
    ("body", "odd"),
    [
        ({}, "scope"),
        ({"scope": None, "more": 1}, "more"),
        ({"scope": None, b"raw": 1}, "b'raw'"),
        ({"scop": None}, "scop, scope"),
    ],
)
def test_a_body_with_other_keys_is_refused_by_their_names(body: Any, odd: str) -> None:
    with pytest.raises(ProtocolError, match=f"does not know: {odd}$"):
        sent(frame(body=body))


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
    assert carried(Kind.HELLO, body).body == body
    for bad in (b"t" * 33, "t", None):
        with pytest.raises(ProtocolError, match=r"HELLO\.ticket"):
            carried(Kind.HELLO, body | {"ticket": bad})


def test_an_answers_body_holds_plain_values_only() -> None:
    assert carried(Kind.REPLY, {"any": [1, [b"x", None, "y", 0.5, True]]}).body
    with pytest.raises(ProtocolError, match="body of REPLY holds plain values only"):
        carried(Kind.REPLY, {"any": {"a": "map"}})


# Refusals of the payload


def test_a_payload_where_none_belongs_is_refused() -> None:
    with pytest.raises(ProtocolError, match="LIST comes without payload"):
        sent(frame(), b"")


def test_a_payload_that_is_missing_is_refused() -> None:
    with pytest.raises(ProtocolError, match="WRITE comes with payload"):
        carried(Kind.WRITE, {"at": None})


def test_an_answer_may_have_a_payload_or_none() -> None:
    assert carried(Kind.REPLY, {}).payload is None
    assert carried(Kind.REPLY, {}, b"").payload == b""


def test_a_payload_over_the_limit_is_refused() -> None:
    assert carried(Kind.WRITE, {"at": None}, bytes(MAX_PAYLOAD)).payload
    with pytest.raises(ProtocolError, match="8388608 fit"):
        carried(Kind.WRITE, {"at": None}, bytes(MAX_PAYLOAD + 1))


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
    ("control", "request_id"),
    [
        (msgpack.packb(frame(request=42, kind=9999)), 42),
        (msgpack.packb([1, 2, 3, 4]), 4),
        (msgpack.packb([1, 2, 3]), 0),
        (msgpack.packb([1, 2, 3, -4]), 0),
        (msgpack.packb([1, 2, 3, "4"]), 0),
        (msgpack.packb({}), 0),
        (b"\xc1", 0),
        (bytes(MAX_CONTROL + 1), 0),
    ],
)
def test_the_request_of_a_refused_frame_is_saved_where_it_has_one(
    control: bytes, request_id: int
) -> None:
    assert salvage(control) == request_id


# Fuzz

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


def refused_or_whole(control: bytes, payload: Payload | None) -> None:
    salvage(control)
    try:
        message = decode(control, payload)
    except ProtocolError:
        return
    again = decode(encode(message), payload)
    assert repr(again) == repr(message)  # NaN equals itself in writing only


@given(st.binary(max_size=100), st.none() | st.binary(max_size=3))
def test_any_bytes_are_refused_or_make_a_whole_message(
    control: bytes, payload: bytes | None
) -> None:
    refused_or_whole(control, payload)


@given(anything, st.none() | st.binary(max_size=3))
def test_any_msgpack_is_refused_or_makes_a_whole_message(
    items: Any, payload: bytes | None
) -> None:
    refused_or_whole(msgpack.packb(items), payload)


@given(messages(), st.integers(0, 7), anything)
def test_a_message_with_one_item_exchanged_is_refused_or_whole(
    message: Message, place: int, value: Any
) -> None:
    items = msgpack.unpackb(encode(message))
    items[place] = value
    refused_or_whole(msgpack.packb(items), message.payload)


@given(messages(), st.data())
def test_a_message_with_one_field_exchanged_is_refused_or_whole(
    message: Message, data: st.DataObject
) -> None:
    names = st.sampled_from([*message.body, "other"])
    body = {**message.body, data.draw(names): data.draw(anything)}
    items = msgpack.unpackb(encode(message))
    items[7] = body
    refused_or_whole(msgpack.packb(items), message.payload)


@given(messages(), st.integers(0, 200), st.integers(0, 255))
def test_a_message_with_one_byte_exchanged_is_refused_or_whole(
    message: Message, place: int, value: int
) -> None:
    control = bytearray(encode(message))
    control[place % len(control)] = value
    refused_or_whole(bytes(control), message.payload)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_make_a_document(payload: bytes) -> None:
    with suppress(ProtocolError):
        unpack(payload)
