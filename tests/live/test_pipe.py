"""The worker leg, both ends on one thread, and a real process where one must die."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from broker import wire
from broker.errors import ProtocolError
from broker.pipe import Leg, LegClosed
from broker.wire import Kind, Message

pytestmark = pytest.mark.live

Legs = tuple[Leg, Leg]
Raw = tuple[Leg, socket.socket]

BIG = 4 << 20  # far more than a socket holds
CHUNK = {"stream": "stdout", "offset": 0, "sequence": 0}


@pytest.fixture(autouse=True)
def no_descriptor_leaks() -> Iterator[None]:
    before = os.listdir("/proc/self/fd")
    yield
    assert os.listdir("/proc/self/fd") == before


@pytest.fixture
def raw() -> Iterator[Raw]:
    ours, theirs = socket.socketpair()
    leg = Leg(ours)
    yield leg, theirs
    leg.close()
    theirs.close()


@pytest.fixture
def legs() -> Iterator[Legs]:
    left, right = map(Leg, socket.socketpair())
    yield left, right
    left.close()
    right.close()


def write(number: int, payload: wire.Payload = b"x") -> Message:
    return Message(Kind.WRITE, request=number, body={"at": None}, payload=payload)


def small(number: int) -> Message:
    return Message(Kind.SNAPSHOT, request=number)


def exchange(sender: Leg, receiver: Leg, count: int) -> list[Message]:
    """Move messages until `count` have arrived."""
    got: list[Message] = []
    while len(got) < count:
        sender.flush()
        got += [message for message, _ in receiver.receive()]
    return got


def requests(messages: list[Message]) -> list[int]:
    return [message.request for message in messages]


def frame(message: Message) -> bytes:
    whole = wire.encode(message) + (message.payload or b"")
    return len(whole).to_bytes(4, "little") + b"\0" + whole


def test_a_message_arrives_as_it_was_sent(legs: Legs) -> None:
    left, right = legs
    sent = Message(Kind.CHUNK, 1, 2, 1003, 4, 5.5, CHUNK, b"output")
    left.send(sent)
    assert left.queued == 0
    assert list(right.receive()) == [(sent, ())]


def test_an_empty_payload_is_not_a_missing_one(legs: Legs) -> None:
    left, right = legs
    left.send(Message(Kind.REPLY, request=1, payload=b""))
    left.send(Message(Kind.REPLY, request=2))
    payloads = [message.payload for message, _ in right.receive()]
    assert payloads == [b"", None]


def test_many_small_messages_arrive_in_one_read_and_in_order(legs: Legs) -> None:
    left, right = legs
    for number in range(50):
        left.send(write(number))
    assert requests([message for message, _ in right.receive()]) == list(range(50))


def test_nothing_to_read_yields_nothing(legs: Legs) -> None:
    assert list(legs[0].receive()) == []


def test_a_frame_that_trickles_in_by_bytes_is_put_together(raw: Raw) -> None:
    leg, theirs = raw
    data = frame(write(1, b"abc")) + frame(small(2))
    got = []
    for byte in data:
        theirs.send(bytes([byte]))
        got += [message for message, _ in leg.receive()]
    assert requests(got) == [1, 2]
    assert got[0].payload == b"abc"


@pytest.mark.parametrize("piece", [3, 7, 8, 1000, 70_000])
def test_frames_cut_anywhere_are_put_together(raw: Raw, piece: int) -> None:
    leg, theirs = raw
    sent = [write(1, b"a" * 100_000), small(2), write(3, b"")]
    sent.append(write(4, os.urandom(5_000)))
    data = b"".join(map(frame, sent))
    got = []
    for at in range(0, len(data), piece):
        theirs.sendall(data[at : at + piece])
        got += [message for message, _ in leg.receive()]
    assert got == sent


def test_the_largest_payload_passes_through_a_small_socket(legs: Legs) -> None:
    left, right = legs
    payload = os.urandom(1024) * (wire.MAX_PAYLOAD // 1024)
    left.send(write(1, payload))
    left.send(small(2))
    assert left.queued > 0
    large, following = exchange(left, right, 2)
    assert large.payload == payload
    assert (following.request, left.queued) == (2, 0)


def test_sending_to_a_reader_who_stalls_returns_and_counts_what_waits(
    legs: Legs,
) -> None:
    left, right = legs
    for number in range(8):
        left.send(write(number, bytes(BIG)))
    assert 6 * BIG < left.queued < 9 * BIG
    assert not left.flush()
    assert requests(exchange(left, right, 8)) == list(range(8))
    assert left.queued == 0


def test_urgent_messages_overtake_queued_ones_but_not_a_started_one(legs: Legs) -> None:
    left, right = legs
    left.send(write(1, bytes(BIG)))
    left.send(write(2, bytes(BIG)))
    left.send(small(3), urgent=True)
    left.send(small(4), urgent=True)
    assert requests(exchange(left, right, 4)) == [1, 3, 4, 2]


def test_what_is_put_leaves_with_the_next_flush_urgent_messages_first(
    legs: Legs,
) -> None:
    left, right = legs
    left.put(write(1))
    left.put(small(2), urgent=True)
    left.put(write(3))
    assert list(right.receive()) == []
    assert left.flush()
    assert requests([message for message, _ in right.receive()]) == [2, 1, 3]


def test_more_than_one_call_can_write_is_put_and_arrives_whole(legs: Legs) -> None:
    left, right = legs
    data = [os.urandom(1 + 997 * n % 40_000) for n in range(300)]
    for number, payload in enumerate(data):
        left.put(write(number, payload))
    assert not left.flush()  # the kernel holds less
    got = exchange(left, right, len(data))
    assert requests(got) == list(range(len(data)))
    assert [bytes(message.payload or b"") for message in got] == data
    assert left.queued == 0


def test_descriptors_stay_with_their_message_among_others(legs: Legs) -> None:
    left, right = legs
    reader, writer = os.pipe()
    left.send(write(1, bytes(BIG)))
    left.put(write(2))
    left.send(write(3), fds=(writer,))
    left.put(write(4))
    os.close(writer)
    got: dict[int, tuple[int, ...]] = {}
    while len(got) < 4:
        left.flush()
        got |= fds_of(right)
    assert [number for number, fds in got.items() if fds] == [3]
    assert is_pipe_from(reader, got[3][0])
    os.close(reader)
    os.close(got[3][0])


def test_a_payload_may_be_reused_once_send_has_returned(legs: Legs) -> None:
    left, right = legs
    memory = bytearray(b"a" * BIG)
    left.send(write(1, memoryview(memory)))
    left.send(write(2, memory))
    memory[:] = b"b" * BIG
    for message in exchange(left, right, 2):
        assert bytes(message.payload or b"") == b"a" * BIG


def fds_of(leg: Leg) -> dict[int, tuple[int, ...]]:
    return {message.request: fds for message, fds in leg.receive()}


def is_pipe_from(reader: int, writer: int) -> bool:
    os.write(writer, b"!")
    return os.read(reader, 9) == b"!"


def test_descriptors_arrive_with_their_message_among_others(legs: Legs) -> None:
    left, right = legs
    reader, writer = os.pipe()
    left.send(small(1))
    left.send(small(2), fds=(writer,))
    left.send(small(3))
    left.send(small(4), fds=(writer, reader))
    got = fds_of(right) | fds_of(right)
    assert list(map(len, got.values())) == [0, 1, 0, 2]
    assert is_pipe_from(got[4][1], got[2][0])
    assert not any(map(os.get_inheritable, got[2] + got[4]))
    for fd in (reader, writer, *got[2], *got[4]):
        os.close(fd)


def test_descriptors_of_a_queued_message_may_be_closed_by_the_sender(
    legs: Legs,
) -> None:
    left, right = legs
    reader, writer = os.pipe()
    left.send(write(1, bytes(BIG)))
    left.send(write(2, bytes(BIG)), fds=(writer,))
    os.close(writer)
    got: dict[int, tuple[int, ...]] = {}
    while len(got) < 2:
        left.flush()
        got |= fds_of(right)
    assert is_pipe_from(reader, got[2][0])
    os.close(reader)
    os.close(got[2][0])


def test_closing_drops_descriptors_that_were_not_sent_or_not_delivered(
    legs: Legs,
) -> None:
    left, right = legs
    reader, writer = os.pipe()
    left.send(write(1, bytes(BIG)), fds=(writer,))
    left.send(small(2), fds=(writer,))
    assert list(right.receive()) == []
    left.close()
    right.close()
    right.close()
    os.close(writer)
    assert os.read(reader, 1) == b""  # no copy of the writing end is left
    os.close(reader)


def test_a_failure_to_copy_descriptors_queues_nothing(legs: Legs) -> None:
    left, _ = legs
    left.send(write(1, bytes(BIG)))
    before = left.queued
    with pytest.raises(OSError, match="Bad file descriptor"):
        left.send(small(2), fds=(left.fileno(), 99_999))
    assert left.queued == before


def test_more_descriptors_or_bytes_than_fit_are_refused_at_the_sender(
    legs: Legs,
) -> None:
    with pytest.raises(ProtocolError, match="254 descriptors"):
        legs[0].send(small(1), fds=(0,) * (wire.MAX_FDS + 1))
    with pytest.raises(ProtocolError, match="payload of"):
        legs[0].send(write(1, bytes(wire.MAX_PAYLOAD + 1)))
    assert list(legs[1].receive()) == []


def test_the_most_descriptors_that_fit_arrive(legs: Legs) -> None:
    left, right = legs
    left.send(small(1), fds=(left.fileno(),) * wire.MAX_FDS)
    [(_, fds)] = right.receive()
    assert len(set(fds)) == wire.MAX_FDS
    for fd in fds:
        os.close(fd)


def test_what_came_before_the_end_is_delivered_first(legs: Legs) -> None:
    left, right = legs
    left.send(write(1))
    left.close()
    assert [message.request for message, _ in right.receive()] == [1]
    with pytest.raises(LegClosed):
        list(right.receive())


def test_a_peer_that_dies_inside_a_frame_is_gone_not_faulty(raw: Raw) -> None:
    leg, theirs = raw
    theirs.send(frame(write(1)) + frame(write(2, bytes(100)))[:-1])
    theirs.close()
    assert [message.request for message, _ in leg.receive()] == [1]
    with pytest.raises(LegClosed):
        list(leg.receive())


def test_sending_to_a_dead_peer_is_silent_and_its_last_words_are_read(
    legs: Legs,
) -> None:
    left, right = legs
    right.send(small(1))
    left.send(write(2, bytes(BIG)))
    right.close()  # with unread data: the kernel reports a reset
    assert left.flush()
    left.send(small(3))
    assert left.queued == 0
    assert [message.request for message, _ in left.receive()] == [1]
    with pytest.raises(LegClosed):
        list(left.receive())


def test_a_reset_by_a_peer_that_did_not_read_is_its_end(legs: Legs) -> None:
    left, right = legs
    left.send(small(1))
    right.close()
    with pytest.raises(LegClosed):
        list(left.receive())


@pytest.mark.parametrize(
    "header",
    [
        (wire.MAX_FRAME + 1).to_bytes(4, "little") + b"\0",
        b"\1\0\0\0\xff",
    ],
    ids=["bytes", "descriptors"],
)
def test_a_frame_over_the_limits_is_refused_by_its_header_alone(
    raw: Raw, header: bytes
) -> None:
    leg, theirs = raw
    theirs.send(frame(small(1)) + header)
    arrived = leg.receive()
    assert next(arrived)[0].request == 1
    with pytest.raises(ProtocolError, match="a frame of"):
        next(arrived)


def test_a_frame_that_is_no_message_is_refused_after_those_before_it(raw: Raw) -> None:
    leg, theirs = raw
    theirs.send(frame(small(1)) + b"\1\0\0\0\0\xc0")
    arrived = leg.receive()
    assert next(arrived)[0].request == 1
    with pytest.raises(ProtocolError, match="has no header"):
        next(arrived)


def test_descriptors_that_were_announced_and_did_not_come_are_missed(raw: Raw) -> None:
    leg, theirs = raw
    data = bytearray(frame(small(1)))
    data[4] = 1
    theirs.send(data)
    with pytest.raises(ProtocolError, match="0 of 1 descriptors"):
        list(leg.receive())


def test_descriptors_that_nothing_announces_do_not_pile_up(raw: Raw) -> None:
    leg, theirs = raw
    sent = [theirs.fileno()] * 200
    for byte in frame(small(1))[:2]:
        socket.send_fds(theirs, [bytes([byte])], sent)
    assert list(leg.receive()) == []
    with pytest.raises(ProtocolError, match="no frame announced"):
        list(leg.receive())


def test_a_closed_leg_has_no_descriptor_and_sends_nothing(legs: Legs) -> None:
    legs[0].close()
    legs[0].send(small(1))
    assert legs[0].fileno() == -1


def test_the_end_of_a_killed_process_is_seen() -> None:
    ours, theirs = socket.socketpair()
    fd = theirs.fileno()
    script = f"import os; os.write({fd}, b'x'); os.read({fd}, 1)"
    with subprocess.Popen([sys.executable, "-c", script], pass_fds=[fd]) as child:
        theirs.close()
        assert ours.recv(1) == b"x"
        leg = Leg(ours)
        child.send_signal(signal.SIGKILL)
        assert select.select([leg], [], [], 20) == ([leg], [], [])
        with pytest.raises(LegClosed):
            list(leg.receive())
        leg.close()


def test_a_process_that_loads_the_leg_does_not_load_the_socket_module() -> None:
    # Who measures coverage has loaded it before: forget that.
    forget = "import sys; sys.modules.pop('socket', None)"
    script = f"{forget}; import broker.pipe; print('socket' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
