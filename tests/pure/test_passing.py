"""Descriptors and the SPAWN they are for: whichever comes first, what goes wrong."""

import errno

import pytest
from hypothesis import given, strategies as st

from broker.errors import ProtocolError, SpawnFailed
from broker.passing import (
    HELD,
    WAIT,
    Close,
    Pass,
    Passing,
    Refuse,
    frame,
    parse,
)
from broker.wire import MAX_FDS, Kind, Message

A, B = b"\0aaaa", b"\0bbbb"


def spawn(request: int = 7, fds: int = 2) -> Message:
    return Message(Kind.SPAWN, 1, request, body={"fds": fds}, payload=b"")


# --- the frame -----------------------------------------------------------------------


@given(
    st.lists(
        st.one_of(
            st.just(None),
            st.tuples(st.integers(0, 2**63 - 1), st.integers(0, MAX_FDS)),
        )
    ),
    st.lists(st.integers(1, 30)),
)
def test_frames_are_found_among_signs_of_life_however_they_are_cut(
    sent: list[tuple[int, int] | None], cuts: list[int]
) -> None:
    data = b"".join(b"." if item is None else frame(*item) for item in sent)
    found, rest = [], b""
    for size in (*cuts, len(data)):
        part, data = data[:size], data[size:]
        more, rest = parse(rest + part)
        found += more
    assert found == [item for item in sent if item is not None]
    assert rest == b""


# --- two halves ----------------------------------------------------------------------


def test_s14_descriptors_that_come_first_wait_for_their_spawn() -> None:
    passing = Passing()
    assert passing.descriptors(A, 7, (10, 11), 0.0) == []
    assert passing.spawn(A, spawn(), 1.0) == [Pass(A, spawn())]
    assert passing.take(A, spawn().request) == (10, 11)
    assert passing.next_deadline() is None


def test_s14_a_spawn_that_comes_first_waits_for_its_descriptors() -> None:
    passing = Passing()
    assert passing.spawn(A, spawn(), 0.0) == []
    assert passing.descriptors(A, 7, (10, 11), 1.0) == [Pass(A, spawn())]
    assert passing.take(A, spawn().request) == (10, 11)
    assert passing.next_deadline() is None


def test_halves_of_other_clients_or_numbers_do_not_meet() -> None:
    passing = Passing()
    assert passing.spawn(A, spawn(7), 0.0) == []
    assert passing.descriptors(B, 7, (10, 11), 0.0) == []
    assert passing.descriptors(A, 8, (12, 13), 0.0) == []
    assert passing.descriptors(A, 7, (14, 15), 0.0) == [Pass(A, spawn(7))]
    assert passing.take(A, spawn(7).request) == (14, 15)
    assert passing.spawn(B, spawn(7), 0.0) == [Pass(B, spawn(7))]
    assert passing.take(B, spawn(7).request) == (10, 11)


@pytest.mark.parametrize("fds", [(), (10,), (10, 11, 12)])
def test_descriptors_that_were_lost_on_the_way_fail_the_start(
    fds: tuple[int, ...],
) -> None:
    passing = Passing()
    passing.spawn(A, spawn(), 0.0)
    refuse, close = passing.descriptors(A, 7, fds, 0.0)
    assert isinstance(refuse, Refuse)
    assert isinstance(refuse.error, SpawnFailed)
    assert refuse.error.errno == errno.EMFILE
    assert close == Close(fds)


def test_a_second_spawn_of_a_waiting_number_is_refused_and_the_first_goes_on() -> None:
    passing = Passing()
    passing.spawn(A, spawn(), 0.0)
    (refuse,) = passing.spawn(A, spawn(fds=1), 0.0)
    assert isinstance(refuse, Refuse)
    assert isinstance(refuse.error, ProtocolError)
    assert passing.descriptors(A, 7, (10, 11), 0.0) == [Pass(A, spawn())]
    assert passing.take(A, spawn().request) == (10, 11)


def test_descriptors_for_a_number_that_has_some_are_closed() -> None:
    passing = Passing()
    passing.descriptors(A, 7, (10, 11), 0.0)
    assert passing.descriptors(A, 7, (12, 13), 0.0) == [Close((12, 13))]
    assert passing.spawn(A, spawn(), 0.0) == [Pass(A, spawn())]
    assert passing.take(A, spawn().request) == (10, 11)


def test_a_client_that_sends_descriptors_without_a_spawn_fills_its_own_room_only() -> (
    None
):
    passing = Passing()
    for number in range(HELD):
        assert passing.descriptors(A, number, (number,), 0.0) == []
    assert passing.descriptors(A, HELD, (1,), 0.0) == [Close((1,))]
    assert passing.descriptors(B, 1, (2,), 0.0) == []


def test_a_spawn_whose_descriptors_found_no_room_fails_at_once() -> None:
    passing = Passing()
    passing.descriptors(A, 7, tuple(range(HELD)), 0.0)
    assert passing.descriptors(A, 8, (1, 2), 0.0) == [Close((1, 2))]
    refuse, close = passing.spawn(A, spawn(8), 0.0)
    assert isinstance(refuse, Refuse)
    assert isinstance(refuse.error, SpawnFailed)
    assert refuse.error.errno == errno.EMFILE
    assert close == Close(())
    assert passing.descriptors(A, 8, (1, 2), 0.0) == [Close((1, 2))]  # as before


# --- waits that end ------------------------------------------------------------------


def test_s14_a_spawn_whose_descriptors_do_not_come_is_refused_in_time() -> None:
    passing = Passing()
    passing.spawn(A, spawn(7), 0.0)
    passing.spawn(A, spawn(8), 1.0)
    assert passing.next_deadline() == WAIT
    (refuse,) = passing.tick(WAIT)
    assert isinstance(refuse, Refuse)
    assert (refuse.peer, refuse.message) == (A, spawn(7))
    assert isinstance(refuse.error, SpawnFailed)
    assert refuse.error.errno == errno.ETIMEDOUT
    assert passing.next_deadline() == WAIT + 1.0
    assert passing.descriptors(A, 7, (10, 11), WAIT) == []  # too late: it waits in vain


def test_descriptors_whose_spawn_does_not_come_are_closed_in_time() -> None:
    passing = Passing()
    passing.descriptors(A, 7, (10, 11), 0.0)
    passing.descriptors(A, 8, (12,), 1.0)
    assert passing.tick(WAIT) == [Close((10, 11))]
    assert passing.next_deadline() == WAIT + 1.0


def test_nothing_is_left_of_a_client_that_is_gone() -> None:
    passing = Passing()
    passing.descriptors(A, 7, (10, 11), 0.0)
    passing.descriptors(B, 7, (12, 13), 0.0)
    passing.spawn(A, spawn(8), 0.0)
    passing.spawn(B, spawn(8), 0.0)
    assert passing.gone(A) == [Close((10, 11))]
    assert passing.gone(A) == []
    assert passing.descriptors(A, 8, (14, 15), 0.0) == []
    assert passing.descriptors(B, 8, (16, 17), 0.0) == [Pass(B, spawn(8))]
    assert passing.take(B, spawn(8).request) == (16, 17)


# --- a SPAWN that waits for room -----------------------------------------------------


def test_descriptors_stay_until_a_start_takes_them() -> None:
    passing = Passing()
    passing.descriptors(A, 7, (10, 11), 0.0)
    assert passing.spawn(A, spawn(), 0.0) == [Pass(A, spawn())]
    assert passing.tick(WAIT * 2) == []
    assert passing.take(B, 7) == ()
    assert passing.take(A, 7) == (10, 11)
    assert passing.take(A, 7) == ()


def test_a_client_that_is_gone_leaves_none_behind() -> None:
    passing = Passing()
    passing.descriptors(A, 7, (10, 11), 0.0)
    passing.spawn(A, spawn(), 0.0)
    passing.descriptors(A, 8, (12,), 0.0)
    assert passing.gone(A) == [Close((12,)), Close((10, 11))]
    assert passing.take(A, 7) == ()


def test_what_waits_for_room_counts_as_held() -> None:
    passing = Passing()
    many = tuple(range(HELD - 1))
    passing.descriptors(A, 7, many, 0.0)
    assert passing.spawn(A, spawn(fds=len(many)), 0.0) != []
    assert passing.descriptors(A, 8, (1, 2), 0.0) == [Close((1, 2))]
    again = passing.spawn(A, spawn(fds=1), 0.0)
    assert isinstance(again[0], Refuse)
    assert isinstance(again[0].error, ProtocolError)
