"""Bytes as text: no character is broken, and every byte that is none is counted."""

import threading

import pytest
from hypothesis import given, strategies as st

from actors.text import TextView, _count

MARK = "\N{REPLACEMENT CHARACTER}"
EURO = "€".encode()
# Mostly UTF-8, whole or cut, so that the decoder's states are all visited.
chunks = st.lists(
    st.binary(max_size=6)
    | st.text(max_size=3).map(str.encode)
    | st.text(max_size=3).map(lambda text: text.encode()[:-1]),
    max_size=12,
)


def undecodable(data: bytes) -> int:
    escaped = data.decode("utf-8", "surrogateescape")
    return sum("\udc80" <= character <= "\udcff" for character in escaped)


def test_a_character_split_over_chunks_is_whole() -> None:
    view = TextView()
    assert view.decode("stdout", EURO[:1]) == ""
    assert view.decode("stdout", EURO[1:]) == "€"
    assert view.undecodable == 0


def test_each_stream_has_its_own_characters() -> None:
    view = TextView()
    assert view.decode("stdout", EURO[:2]) == ""
    assert view.decode("stderr", EURO[2:]) == MARK
    assert view.decode("stdout", EURO[2:]) == "€"
    assert view.undecodable == 1


def test_undecodable_bytes_are_marked_and_counted() -> None:
    view = TextView()
    assert view.decode("stdout", b"a\xff\xfeb") == f"a{MARK}{MARK}b"
    assert view.undecodable == 2


def test_missing_bytes_leave_the_character_before_them_incomplete() -> None:
    view = TextView()
    view.decode("stdout", EURO[:2])
    assert view.skip("stdout") == MARK
    assert view.decode("stdout", b"x") == "x"
    assert view.undecodable == 2


def test_missing_bytes_between_characters_leave_no_mark() -> None:
    view = TextView()
    assert view.skip("stdout") == ""
    assert view.decode("stdout", b"x") == "x"
    assert view.skip("stdout") == ""
    assert view.undecodable == 0


def test_the_end_marks_what_is_incomplete_in_every_stream() -> None:
    view = TextView()
    view.decode("stdout", EURO[:1])
    view.decode("stderr", b"x")
    view.decode("other", EURO[:2])
    assert view.finish() == MARK + MARK
    assert view.undecodable == 3
    assert view.finish() == ""


def test_a_final_chunk_ends_the_characters() -> None:
    view = TextView()
    assert view.decode("stdout", b"x" + EURO[:1], final=True) == f"x{MARK}"


def test_only_decoding_uses_the_error_handler() -> None:
    with pytest.raises(AssertionError):
        _count(UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogate"))


def test_a_view_can_be_used_by_any_thread() -> None:
    view = TextView()
    thread = threading.Thread(target=view.decode, args=("stdout", b"\xff"))
    thread.start()
    thread.join()
    view.decode("stdout", b"\xff")
    assert view.undecodable == 2


@given(chunks)
def test_chunks_read_as_the_whole_does(parts: list[bytes]) -> None:
    view = TextView()
    text = "".join(view.decode("stdout", part) for part in parts) + view.finish()
    data = b"".join(parts)
    assert text == data.decode("utf-8", "replace")
    assert view.undecodable == undecodable(data)
