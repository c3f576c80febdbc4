"""Looking for a pattern while its stream grows: the same as in the whole, and cheap."""

import re
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st

from actors import search
from actors.buffer import Log
from actors.search import LONGEST_PATTERN, Found, Search, compiled, prepared, tail
from broker.errors import InvalidRequest
from broker.wire import STREAMS

MIB = 1024 * 1024
small = patch.multiple(search, OVERLAP=8, CONTEXT=4)
"""Bounds so low that a few bytes reach them."""


def log(*pieces: bytes, policy: str = "tail", size: int = MIB) -> Log:
    made = Log(policy, size)
    for piece in pieces:
        made.append("stdout", piece)
    return made


def looking(made: Log, pattern: Any, start: int = 0) -> Search:
    return Search(made, "stdout", compiled(*prepared(pattern)), start)


def found(pattern: Any, *pieces: bytes) -> Found | None:
    return looking(log(*pieces), pattern).step()


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidRequest) as caught:
        call()
    assert caught.value.field == "pattern"
    return caught.value.message


# Patterns


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("ab", "xabx"),
        (b"a.c", "abc"),
        ("(?i)AB", "ab"),
        (re.compile("ab", re.IGNORECASE), "AB"),
        (re.compile(b"a.b", re.DOTALL), "a\nb"),
        (re.compile("a b", re.VERBOSE), "ab"),
        ("é", "é"),
        (r"\é", "é"),
        ("^é{2}$", "éé"),
        ("x(é|ü)+y", "xéüéy"),
        (r"[]a\]]+", "]a]"),
        ("\udc80", b"\x80"),
    ],
)
def test_a_pattern_of_any_kind_is_found(pattern: Any, text: str | bytes) -> None:
    assert found(pattern, text.encode() if isinstance(text, str) else text)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        b"[",
        "*",
        "[é]",
        "[^aé]",
        "(?P<é>x)",
        "\ud800",
        5,
        None,
        "(?u)x",
        "a{99999999999}",
    ],
)
def test_what_is_no_pattern_of_bytes_is_refused(pattern: Any) -> None:
    refused(lambda: prepared(pattern))


def test_a_pattern_fits_into_a_control_frame() -> None:
    assert prepared("x" * LONGEST_PATTERN)
    assert "4096" in refused(lambda: prepared("x" * (LONGEST_PATTERN + 1)))


# What is found


def test_a_match_tells_where_it_is_and_what_came_before() -> None:
    assert found(rb"port (\d+)(!)?", b"one\n", b"port 80 ok") == Found(
        4, b"port 80", (b"80", None), b"one\n", 0
    )


def test_a_search_begins_at_its_start_as_if_nothing_were_before() -> None:
    made = log(b"ab ab")
    assert looking(made, "ab", 1).step() == Found(3, b"ab", (), b"b ", 0)
    assert looking(made, "^b", 1).step() == Found(1, b"b", (), b"", 0)
    assert looking(made, "(?<=a)b", 1).step() == Found(4, b"b", (), b"b a", 0)
    assert looking(made, "ab", 4).step() is None


def test_a_match_may_come_in_parts() -> None:
    made = log()
    hunt = looking(made, "needle")
    for piece in (b"", b"ne", b"ed"):
        made.append("stdout", piece)
        assert hunt.step() is None
    made.append("stderr", b"le")
    assert hunt.step() is None
    made.append("stdout", b"le")
    assert hunt.step() == Found(0, b"needle", (), b"", 0)


def test_a_match_is_told_at_once_although_it_could_grow() -> None:
    made = log(b"x1")
    assert looking(made, r"\d+").step() == Found(1, b"1", (), b"x", 0)
    made.append("stdout", b"23")
    assert looking(made, r"\d+").step() == Found(1, b"123", (), b"x", 0)


def test_only_the_newest_bytes_before_a_match_are_told() -> None:
    with patch.object(search, "BEFORE", 3):
        assert found("x", b"abcdex") == Found(5, b"x", (), b"cde", 0)


def test_a_match_too_large_for_an_answer_is_refused() -> None:
    with patch.object(search, "LARGEST_MATCH", 5):
        assert found("(b)bbb", b"abbbb")
        assert "6 bytes" in refused(lambda: found("(bb)bb", b"abbbb"))


def test_bytes_are_looked_at_a_few_times_however_they_come() -> None:
    looked = 0

    class Counting:
        def search(self, data: bytes, at: int) -> None:
            nonlocal looked
            looked += len(data) - at

    made = log()
    hunt = Search(made, "stdout", Counting(), 0)  # type: ignore[arg-type]
    for _ in range(64):
        made.append("stdout", b"x" * 65536)
        hunt.step()
    assert looked < 1.3 * 64 * 65536


PATTERNS = [b"ab", b"a+b", b"b{2,5}", rb"\bab\b", b"(?m)^a", b"^ab", b"(?<=aa)b"]
PATTERNS += [b"(?<!ab)c", b"(a)(b)?c", b"a$", rb"c\Z", b"aba(?!b)", b"bca{3}"]
pieces = st.lists(
    st.tuples(st.sampled_from(STREAMS), st.text("abc\n", min_size=1, max_size=7)),
    max_size=12,
)


@small
@given(st.sampled_from(PATTERNS), st.integers(0, 3), pieces)
def test_growing_output_is_searched_as_the_whole_is(
    pattern: bytes, start: int, pieces: list[tuple[str, str]]
) -> None:
    made = log(b"abc")
    hunt = looking(made, pattern, start)
    whole = b"abc"
    for stream, piece in pieces:
        step = hunt.step()
        expected = re.compile(pattern).search(whole[start:])
        if expected is not None:
            assert step is not None
            assert (step.offset, step.matched) == (
                start + expected.start(),
                expected[0],
            )
            assert step.groups == expected.groups()
            assert start + len(step.before) == step.offset
            return
        assert step is None
        made.append(stream, piece.encode())
        whole += piece.encode() if stream == "stdout" else b""


# What was dropped


def test_nothing_stands_before_a_match_whose_start_was_dropped_by_now() -> None:
    made = log(policy="tail", size=7)
    hunt = looking(made, b"bb")
    made.append("stdout", b"aab")
    assert hunt.step() is None
    made.append("stderr", b"aaaaa")
    made.append("stdout", b"ba")
    found = hunt.step()
    assert found is not None
    assert (found.offset, found.before) == (2, b"")


@small
@given(
    st.sampled_from(PATTERNS),
    st.sampled_from(["tail", "head_tail"]),
    st.integers(1, 20),
    pieces,
)
def test_what_was_dropped_is_counted_and_never_matched(
    pattern: bytes, policy: str, size: int, pieces: list[tuple[str, str]]
) -> None:
    made, whole, steps = log(policy=policy, size=size), b"", 0
    hunt = looking(made, pattern)
    for stream, piece in pieces:
        made.append(stream, piece.encode())
        whole += piece.encode() if stream == "stdout" else b""
        if len(piece) % 2:
            continue  # several pieces for one step
        steps += 1
        found = hunt.step()
        assert hunt.gap <= made.stats("stdout").dropped
        if found is not None:
            end = found.offset + len(found.matched)
            assert whole[found.offset : end] == found.matched
            assert whole[: found.offset].endswith(found.before)
            assert found.gap + len(found.before) <= found.offset
            return
        assert hunt.seen == len(whole)


def test_a_search_that_was_overtaken_goes_on_behind_the_gap() -> None:
    made = log(b"0123456789ab", size=4)
    hunt = looking(made, "^8|b")
    assert hunt.step() == Found(8, b"8", (), b"", 8)


def test_a_search_goes_through_the_head_then_behind_the_hole() -> None:
    made = log(b"abcd" * 5, policy="head_tail", size=8)
    assert looking(made, "da").step() is None
    assert looking(made, "cd$").step() == Found(2, b"cd", (), b"ab", 0)
    assert looking(made, "cd", 3).step() == Found(18, b"cd", (), b"ab", 12)


def test_a_search_that_has_seen_the_head_finds_what_is_behind_the_hole() -> None:
    made = log(b"abcd", policy="head_tail", size=8)
    hunt = looking(made, "y")
    assert hunt.step() is None
    made.append("stdout", b"x" * 20 + b"y")
    assert hunt.step() == Found(24, b"y", (), b"xxx", 17)


def test_a_hole_of_the_other_stream_parts_nothing() -> None:
    made = log(b"ab", policy="head_tail", size=4)
    hunt = looking(made, "abcd")
    assert hunt.step() is None
    made.append("stderr", b"x" * 50)
    made.append("stdout", b"cd")
    assert hunt.step() == Found(0, b"abcd", (), b"", 0)


def test_what_was_seen_and_then_dropped_is_no_gap() -> None:
    made = log(b"abc", size=3)
    hunt = looking(made, "z")
    for _ in range(5):
        assert hunt.step() is None
        made.append("stdout", b"abc")
    made.append("stdout", b"z")
    # One byte was overtaken: four came at once, and three are kept.
    assert hunt.step() == Found(18, b"z", (), b"bc", 1)


def test_the_tail_is_the_newest_output_since_a_hole() -> None:
    made = log(b"abcd" * 5, policy="head_tail", size=8)
    assert tail(made, "stdout", 2) == b"cd"
    assert tail(made, "stdout", 18) == b"abcd"
    assert tail(made, "stderr", 5) == b""
    assert tail(log(b"abcdef"), "stdout", 2, end=4) == b"cd"
    overtaken = log(b"abcdefgh", size=4)
    assert tail(overtaken, "stdout", 5, end=6) == b"ef"
