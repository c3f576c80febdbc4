"""The error tree: one code for each class, and nothing lost on any way."""

import copy
import errno
import os
import pickle  # noqa: TID251 - the errors must survive it, e.g. between processes
import subprocess
from typing import Any

import pytest
from hypothesis import given, strategies as st

from actors.events import ExitStatus
from broker import errors, outcomes, wire
from broker.errors import (
    CLASSES,
    TEXT_BYTES,
    AlreadyRunning,
    BrokerLost,
    CapacityExceeded,
    EngineError,
    InvalidRequest,
    OutputEnded,
    OutputLimitExceeded,
    OutputLost,
    ProtocolError,
    ServiceFailed,
    SessionNotFound,
    ShellEnded,
    SpawnFailed,
    decode,
    encode,
)
from broker.outcomes import CommandFailed, TimedOut

PUBLIC: list[Any] = [
    value
    for home in (errors, outcomes)
    for name in home.__all__
    if isinstance(value := getattr(home, name), type)
]
SAMPLES = [
    EngineError("trouble"),
    InvalidRequest("tty.rows", "must be more"),
    SessionNotFound(),
    errors.SessionOwned(),
    SpawnFailed(errno.ENOENT, "exec", "/no/such"),
    errors.StdinUnavailable("closed"),
    errors.NotATerminal(),
    OutputLimitExceeded(5, b"abcde", b""),
    OutputLost(7, b"x", b"y"),
    OutputEnded(None, b"x", b"y"),
    CommandFailed(3, "false", b"out", b"err"),
    TimedOut("sleep 9", 0.5, b"out", b"err"),
    CapacityExceeded(1.5, "full"),
    errors.WorkerLost(),
    BrokerLost(),
    AlreadyRunning(),
    ShellEnded(None, "it said goodbye"),
    ServiceFailed("exited", "with 1"),
    errors.WrongProcess(),
    errors.RuntimeContext(),
    ProtocolError("nonsense"),
]
named = pytest.mark.parametrize("error", SAMPLES, ids=lambda e: type(e).__name__)
# Any text, halves of characters included: a path may be anything.
texts = st.text(st.characters(exclude_categories=[]), max_size=30)
numbers = st.integers(-(2**31), 2**31 - 1)
errors_of_any_kind = (
    st.builds(EngineError, texts)
    | st.builds(InvalidRequest, texts, texts)
    | st.builds(SessionNotFound, texts)
    | st.builds(SpawnFailed, numbers, texts, texts)
    | st.builds(OutputLimitExceeded, numbers)
    | st.builds(OutputLost, numbers)
    | st.builds(CommandFailed, numbers, texts)
    | st.builds(TimedOut, texts, st.floats(0, 1e9))
    | st.builds(CapacityExceeded, st.floats(0, 1e9), texts)
    | st.builds(ShellEnded, message=texts)
    | st.builds(ServiceFailed, texts, texts)
)


def sent(error: Any) -> Any:
    code, values = wire.unpack(wire.pack(encode(error)))
    return decode(code, values)


def test_every_public_class_has_a_code_of_its_own() -> None:
    assert set(CLASSES.values()) == set(PUBLIC)
    assert {type(sample) for sample in SAMPLES} == set(PUBLIC)
    assert all(CLASSES[cls.code] is cls for cls in PUBLIC)


def test_the_tree_fits_into_pythons() -> None:
    assert issubclass(InvalidRequest, ValueError)
    assert issubclass(SessionNotFound, LookupError)
    assert issubclass(SpawnFailed, OSError)
    assert issubclass(CommandFailed, subprocess.CalledProcessError)
    assert issubclass(TimedOut, subprocess.TimeoutExpired)
    assert issubclass(TimedOut, TimeoutError)


@named
def test_an_error_survives_pickling_and_copying(error: Any) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert repr(again) == repr(error)
        assert str(again) == str(error)


@named
def test_an_error_says_what_happened(error: Any) -> None:
    assert str(error).strip()
    assert str(error) != type(error).__name__
    assert repr(error).startswith(f"{type(error).__name__}(")


@named
def test_an_error_reads_the_same_after_the_wire(error: Any) -> None:
    again = sent(error)
    assert type(again) is type(error)
    assert str(again) == str(error)


@given(errors_of_any_kind)
def test_an_error_comes_back_from_the_wire(error: Any) -> None:
    assert type(sent(error)) is type(error)
    assert repr(sent(error)) == repr(error)


@given(texts.filter(bool), st.integers(TEXT_BYTES // 4, TEXT_BYTES))
def test_a_long_text_is_cut_to_what_the_wire_takes(part: Any, times: Any) -> None:
    text = part * times
    (value,) = encode(BrokerLost(text))[1]
    raw = value if isinstance(value, bytes) else value.encode()
    assert len(raw) <= TEXT_BYTES
    assert text.startswith(sent(BrokerLost(text)).message)


def test_an_answer_with_the_longest_texts_fits_into_a_control_frame() -> None:
    error = InvalidRequest("é" * 9999, "\N{PILE OF POO}" * 9999)
    code, values = encode(error)
    body = {"code": code, "values": values}
    frame = wire.encode(wire.Message(wire.Kind.ERROR, body=body))
    assert wire.decode(frame).body == body


def test_the_longest_path_survives_the_wire() -> None:
    error = SpawnFailed(errno.ENOENT, "exec", "/" + "x" * 4094)
    assert repr(sent(error)) == repr(error)


def test_a_path_that_is_no_text_crosses_the_wire_as_bytes() -> None:
    error = SpawnFailed(errno.ENOENT, "exec", os.fsdecode(b"/\xff"))
    assert encode(error)[1][-1] == b"/\xed\xb3\xbf"
    assert repr(sent(error)) == repr(error)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(list(CLASSES)) | st.text(), st.lists(values, max_size=4))
def test_whatever_comes_is_decoded_to_an_error_of_the_tree(
    code: Any, fields: Any
) -> None:
    error = decode(code, fields)
    assert isinstance(error, EngineError)
    assert str(error)
    assert repr(error)
    assert pickle.dumps(error)


def test_an_unknown_code_or_misfit_is_a_broken_rule() -> None:
    assert type(decode("no-such-error", [])) is ProtocolError
    assert type(decode("spawn-failed", [2**40, "exec", ""])) is ProtocolError
    assert type(decode("spawn-failed", [2])) is ProtocolError
    assert type(decode("broker-lost", [5])) is ProtocolError
    assert type(decode("capacity-exceeded", ["soon", "full"])) is ProtocolError


def test_captured_output_stays_where_it_is() -> None:
    again = sent(TimedOut("x", 1.0, b"secret", b""))
    assert again.output is None
    assert b"secret" not in wire.pack(encode(OutputLost(1, b"secret")))


def test_the_output_so_far_is_there_under_both_names() -> None:
    error = CommandFailed(1, ["x"], b"out", b"err")
    assert (error.stdout, error.output, error.stderr) == (b"out", b"out", b"err")
    late = TimedOut(["x"], 1.0, b"out", b"err")
    assert (late.stdout, late.stderr) == (b"out", b"err")


def test_a_wait_in_vain_tells_for_what_and_the_last_output() -> None:
    late = TimedOut(["x"], 0.5, b"a" * 500 + b"last", b"oops", "pattern '>>> '")
    assert str(late) == (
        "['x'] timed out after 0.5 seconds of waiting for pattern '>>> '; "
        f"stdout ends with b'{'a' * 96}last', stderr ends with b'oops'"
    )
    assert str(TimedOut("x", 1, awaited="port 80")).endswith("there was no output")
    again = pickle.loads(pickle.dumps(late))
    assert (repr(again), str(again)) == (repr(late), str(late))


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "the child has not ended"),
        (ExitStatus(3), "the child exited with code 3"),
        (ExitStatus(None, 9, cause="limit"), "the child died of signal 9 (limit)"),
        (
            ExitStatus(None, cause="worker-lost"),
            "nobody knows how the child ended (worker-lost)",
        ),
    ],
)
def test_an_output_that_ended_early_tells_how(status: Any, words: str) -> None:
    error = OutputEnded(status, b"Bye", awaited="port 80")
    assert str(error) == (
        f"the output ended before port 80: {words}; stdout ends with b'Bye'"
    )
    again = pickle.loads(pickle.dumps(error))
    assert (repr(again), str(again)) == (repr(error), str(error))


def test_a_failed_start_names_the_thing_and_the_reason() -> None:
    error = SpawnFailed(errno.ENOENT, "cwd", "/no/such")
    assert (
        str(error)
        == "cannot use working directory '/no/such': No such file or directory"
    )
    assert (error.errno, error.filename) == (errno.ENOENT, "/no/such")


def test_a_message_not_given_is_the_classs_own() -> None:
    assert str(BrokerLost()) == "The broker is gone"
