"""Bytes as text: no character is broken, and every byte that is none is counted."""

import threading
from typing import Any

import pytest
from hypothesis import given, strategies as st

from actors.text import TextView, _count, abridge
from broker.errors import InvalidRequest

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


def test_a_character_whose_start_is_missing_is_left_out_and_counted() -> None:
    view = TextView()
    view.skip("stdout")
    assert view.decode("stdout", EURO[1:2]) == ""
    assert view.decode("stdout", EURO[2:] + EURO) == "€"
    assert view.undecodable == 2
    assert view.decode("stdout", EURO[2:]) == MARK  # nothing is missing here
    view.skip("stderr")
    assert view.decode("stderr", b"\x80" * 4) == MARK  # three can be a rest
    assert view.undecodable == 7
    view.skip("stderr")
    assert view.decode("stderr", b"\x80\x80\x80") == ""
    assert view.decode("stderr", b"\x80") == MARK


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


# Abridged


def test_s26_a_text_within_its_limit_is_left_alone() -> None:
    assert abridge("", 0) == ("", 0, 0)
    assert abridge("abcde", 2) == ("abcde", 2, 0)


def test_s26_a_longer_text_loses_its_middle_in_whole_characters() -> None:
    short = abridge("abcdefgh", 1)
    assert short == ("ab[... 4 characters left out ...]gh", 2, 4)
    assert abridge("€" * 8, 2).text == "€[... 6 characters left out ...]€"
    assert abridge("abcde", 0).text == "[... 5 characters left out ...]"


@given(st.text(st.characters(exclude_categories=[])), st.integers(0, 30))
def test_s26_beginning_and_end_are_kept_within_the_limit(text: str, most: int) -> None:
    short = abridge(text, most)
    size = len(text.encode("utf-8", "surrogatepass"))
    assert 4 * short.tokens - 4 < size <= 4 * short.tokens
    if short.tokens <= most:
        assert (short.text, short.omitted) == (text, 0)
        return
    mark = f"[... {short.omitted} characters left out ...]"
    assert any(
        head + mark + tail == short.text
        and text.startswith(head)
        and text.endswith(tail)
        and len(head) + len(tail) + short.omitted == len(text)
        for head, tail in _halves(short.text, mark)
    )
    kept = len(short.text.encode("utf-8", "surrogatepass")) - len(mark)
    assert 4 * most - 6 <= kept <= 4 * most


def _halves(text: str, mark: str) -> list[tuple[str, str]]:
    starts = [at for at in range(len(text)) if text.startswith(mark, at)]
    return [(text[:at], text[at + len(mark) :]) for at in starts]


@pytest.mark.parametrize("most", [-1, 1.5, None, True, "5"])
def test_a_limit_that_is_no_number_of_tokens_is_refused(most: Any) -> None:
    with pytest.raises(InvalidRequest, match="max_tokens"):
        abridge("x", most)
