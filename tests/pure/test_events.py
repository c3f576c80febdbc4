"""Results and reports: what they say, and that they cross the wire whole."""

import dataclasses
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from actors import events
from actors.buffer import Counts
from actors.events import (
    Cause,
    Chunk,
    Closed,
    Completed,
    Event,
    Exited,
    ExitStatus,
    Gap,
    KillReceipt,
    Lifecycle,
    PollResult,
    Snapshot,
    State,
    Stats,
    StreamAbandoned,
    StreamEof,
    StreamError,
    Survivor,
    Usage,
)
from actors.settings import TtySize
from broker import errors, wire
from broker.errors import ProtocolError

counts = st.integers(0, 2**53)
seconds = st.floats(0, 1e9)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
# Text as it is read from names that are not UTF-8.
natives = st.binary(max_size=9).map(lambda raw: raw.decode("utf-8", "surrogateescape"))

survivors = st.builds(Survivor, counts, seconds, counts, words)
usages = st.builds(Usage, seconds, seconds, counts, counts, counts, st.none() | counts)
sums = st.builds(Counts, counts, counts, counts)
stats = st.builds(Stats, sums, st.none() | sums, seconds, counts, counts)
ends = st.sampled_from([(0, None), (7, None), (None, 9), (None, None)])
statuses = st.builds(
    lambda end, **rest: ExitStatus(*end, **rest),
    ends,
    core=st.booleans(),
    cause=st.sampled_from(get_args(Cause)),
    usage=usages,
    started=st.none() | seconds,
    execed=st.none() | seconds,
    ended=st.none() | seconds,
    wall_time=seconds,
    leftovers=st.lists(survivors, max_size=2).map(tuple),
)
receipts = st.builds(
    KillReceipt, counts, counts, st.lists(survivors, max_size=2).map(tuple)
)
snapshots = st.builds(
    Snapshot,
    id=counts,
    scope=words,
    argv=st.lists(natives, max_size=3).map(tuple),
    cwd=natives,
    pid=st.none() | counts,
    tty=st.none() | st.builds(TtySize, st.integers(1, 65535), st.integers(1, 65535)),
    state=st.sampled_from(get_args(State)),
    started=seconds,
    last_used=seconds,
    wall_time=seconds,
    status=st.none() | statuses,
    tail=st.binary(max_size=9),
    dropped=counts,
    metadata=st.dictionaries(words, words, max_size=2),
    authority=st.none() | words,
    owner_alive=st.booleans(),
)
TRAVELLERS = [ExitStatus, KillReceipt, Snapshot, Stats, Survivor, Usage]
SAMPLES: dict[Any, Any] = {
    ExitStatus: ExitStatus(
        None, 9, cause="killed", leftovers=(Survivor(1, 2, 3, "D"),)
    ),
    KillReceipt: KillReceipt(2, 1, (Survivor(1, 2.5, 0, "D"),)),
    Survivor: Survivor(1, 2.5, 0, "D"),
    Usage: Usage(),
    Stats: Stats(Counts(3, 2, 1), Counts(0, 0, 0), 0.5, 4096, 1),
    Snapshot: Snapshot(
        id=1000,
        scope="build",
        argv=("x",),
        cwd="/",
        pid=5,
        tty=TtySize(),
        state="exited",
        started=1.0,
        last_used=2.0,
        wall_time=1.0,
        status=ExitStatus(0),
        tail=b"",
        dropped=0,
        metadata={"k": "v"},
        authority=None,
        owner_alive=True,
    ),
}


def sent(value: Any) -> Any:
    return wire.unpack(wire.pack(value.to_wire()))


# --- what they say -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "returncode", "ok"),
    [
        (ExitStatus(0), 0, True),
        (ExitStatus(3), 3, False),
        (ExitStatus(None, 9), -9, False),
        (ExitStatus(None, cause="worker-lost"), None, False),
    ],
)
def test_a_return_code_is_the_code_the_negative_signal_or_unknown(
    status: Any, returncode: Any, ok: Any
) -> None:
    assert status.returncode == returncode
    assert status.ok is ok


def test_nobody_exits_and_dies_of_a_signal_at_once() -> None:
    with pytest.raises(ValueError, match="not both"):
        ExitStatus(0, 9)


def test_a_completed_command_reads_as_text() -> None:
    done = Completed(("x",), b"caf\xc3\xa9\xff", b"", ExitStatus(1))
    assert done.text == "café\ufffd"
    assert done.returncode == 1
    assert (done.metadata, done.changes) == ({}, ())


def poll_result(status: Any) -> PollResult:
    return PollResult(
        stdout=b"",
        stderr=b"",
        transcript=b"",
        text="",
        undecodable=0,
        dropped_bytes=0,
        status=status,
        state="running",
        more=False,
        done=False,
        wall_time=0.0,
        chunk_id="a1",
    )


def test_a_poll_of_a_living_child_has_no_exit_code() -> None:
    assert poll_result(None).alive
    assert poll_result(None).exit_code is None


def test_a_poll_of_an_ended_child_has_its_exit_code() -> None:
    assert not poll_result(ExitStatus(None, 15)).alive
    assert poll_result(ExitStatus(None, 15)).exit_code == -15
    assert poll_result(ExitStatus(None, cause="lost")).exit_code is None


def test_events_compare_and_match_by_what_they_are() -> None:
    seen: list[Event] = [
        Chunk("stdout", 0, 0, b"x"),
        Gap("stdout", 1, 5),
        StreamEof("stdout"),
        StreamAbandoned("stderr"),
        StreamError("stderr", "read", "broken", 5),
        Exited(ExitStatus(0)),
        Closed(),
    ]
    assert [type(event) for event in seen] == list(get_args(Event))
    assert seen[-1] == Closed()
    assert len(set(seen)) == len(seen)


VALUES = [
    value
    for name in events.__all__
    if dataclasses.is_dataclass(value := getattr(events, name))
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value.__name__)
def test_every_value_is_frozen_slotted_and_documented(value: Any) -> None:
    assert value.__dataclass_params__.frozen
    assert "__slots__" in vars(value)
    for field in dataclasses.fields(value):
        assert f"        {field.name}: " in value.__doc__


# --- the wire ------------------------------------------------------------------------


@given(statuses | receipts | snapshots | stats)
def test_a_value_comes_back_from_the_wire(value: Any) -> None:
    assert type(value).from_wire(sent(value)) == value


def test_the_sample_of_each_value_comes_back() -> None:
    for kind, value in SAMPLES.items():
        assert kind.from_wire(sent(value)) == value


wire_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner)
    ),
    max_leaves=8,
)


def refused_or_whole(kind: Any, value: Any) -> None:
    """Have the wire bring a value: it breaks the rules, or is one that comes back."""
    try:
        came = kind.from_wire(value)
    except ProtocolError:
        return
    assert isinstance(came, kind)
    assert repr(kind.from_wire(sent(came))) == repr(came)


@given(st.sampled_from(TRAVELLERS), wire_values)
def test_nonsense_from_the_wire_is_refused_or_a_whole_value(
    kind: Any, value: Any
) -> None:
    refused_or_whole(kind, value)


@given(st.sampled_from(TRAVELLERS), st.integers(0, 15), wire_values)
def test_a_value_with_one_wrong_part_is_whole_or_breaks_the_rules(
    kind: Any, place: Any, wrong: Any
) -> None:
    value = sent(SAMPLES[kind])
    keys = list(value) if isinstance(value, dict) else range(len(value))
    value[keys[place % len(keys)]] = wrong
    refused_or_whole(kind, value)


@pytest.mark.parametrize("kind", TRAVELLERS)
@pytest.mark.parametrize("value", [None, 1, "", [], {}, [None] * 4, {"": 0}])
def test_what_is_no_value_at_all_breaks_the_rules(kind: Any, value: Any) -> None:
    with pytest.raises(ProtocolError):
        kind.from_wire(value)


def test_the_smallest_survivor_is_a_whole_value() -> None:
    assert Survivor.from_wire([0, 0, 0, ""]) == Survivor(0, 0.0, 0, "")


@pytest.mark.parametrize(
    ("place", "wrong"),
    [(0, 0), (1, True), (3, "boredom"), (4, None), (8, None), (9, [[1]])],
)
def test_a_malformed_status_breaks_the_rules(place: Any, wrong: Any) -> None:
    value = sent(SAMPLES[ExitStatus])
    value[place] = wrong
    with pytest.raises(ProtocolError, match="malformed"):
        ExitStatus.from_wire(value)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("argv", ["x"]),
        ("cwd", "/"),
        ("tty", [0, 80]),
        ("state", "bored"),
        ("status", [0]),
        ("metadata", {"k": 1}),
        ("metadata", {1: "v"}),
        ("owner_alive", 1),
        ("mood", "good"),
    ],
)
def test_a_malformed_snapshot_breaks_the_rules(name: Any, wrong: Any) -> None:
    with pytest.raises(ProtocolError, match="malformed"):
        Snapshot.from_wire(sent(SAMPLES[Snapshot]) | {name: wrong})


BODY = {
    "event": "exited",
    "scope": "x",
    "sequence": 3,
    "time": 1.5,
    "status": ExitStatus(7).to_wire(),
    "error": None,
    "missed": 2,
}


def test_s52_a_lifecycle_event_comes_off_the_wire() -> None:
    event = Lifecycle.from_wire(1000, BODY)
    assert event == Lifecycle("exited", 1000, "x", 3, 1.5, ExitStatus(7), None, 2)
    error = list(errors.encode(errors.WorkerLost()))
    lost = Lifecycle.from_wire(
        1000, BODY | {"event": "lost", "status": None, "error": error}
    )
    assert lost.status is None
    assert isinstance(lost.error, errors.WorkerLost)


@pytest.mark.parametrize("change", [{"status": [1]}, {"error": ["x"]}, {"error": 5}])
def test_a_lifecycle_event_that_is_none_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        Lifecycle.from_wire(1000, BODY | change)
