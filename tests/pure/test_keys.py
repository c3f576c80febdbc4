"""Keys by their names, and those that detach."""

import pytest
from hypothesis import given, strategies as st

from actors.console.keys import Detacher, key, keys


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("C-c", b"\x03"),
        ("ctrl-p", b"\x10"),
        ("^[", b"\x1b"),
        ("^\\", b"\x1c"),
        ("C-@", b"\x00"),
        ("C-?", b"\x7f"),
        ("Enter", b"\r"),
        ("ENTER", b"\r"),
        ("Space", b" "),
        ("Up", b"\x1b[A"),
        ("PageDown", b"\x1b[6~"),
        ("F1", b"\x1bOP"),
        ("F4", b"\x1bOS"),
        ("F5", b"\x1b[15~"),
        ("F12", b"\x1b[24~"),
        ("M-x", b"\x1bx"),
        ("M-C-x", b"\x1b\x18"),
        ("x", b"x"),
        ("^", b"^"),
        ("-", b"-"),
        ("ä", "ä".encode()),
        ("\udcff", b"\xff"),
    ],
)
def test_a_key_sends_what_terminals_send(name: str, sent: bytes) -> None:
    assert key(name) == sent


@pytest.mark.parametrize("name", ["", "F13", "C-", "C-cc", "C-1", "M-", "Ente", "C-ä"])
def test_what_is_no_key_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no key"):
        key(name)


def test_keys_are_separated_by_blanks_or_commas() -> None:
    assert keys("C-p,C-q") == keys(" C-p  C-q ") == [b"\x10", b"\x11"]
    assert keys("C-p, Enter,") == [b"\x10", b"\r"]
    assert keys("-, M--, x") == [b"-", b"\x1b-", b"x"]
    assert keys("") == []


def test_a_comma_is_a_key_as_well() -> None:
    assert keys(",") == [b","]
    assert keys("a , M-, b,c") == [b"a", b",", b"\x1b,", b"b", b"c"]


@pytest.mark.parametrize("names", [",,", ",a", "a,,b", "C-,", "^,"])
def test_no_comma_is_dropped_silently(names: str) -> None:
    with pytest.raises(ValueError, match="is no key"):
        keys(names)


def test_the_detach_keys_are_found_and_the_rest_is_passed_on() -> None:
    typed = Detacher(b"\x10\x11")
    assert typed.typed(b"ls\r") == b"ls\r"
    assert typed.typed(b"a\x10") == b"a"
    assert not typed.detached
    assert typed.typed(b"b") == b"\x10b"
    assert typed.typed(b"\x10") == b""
    assert typed.typed(b"\x10") == b"\x10"
    assert typed.typed(b"\x11more") == b""
    assert typed.detached


def test_without_keys_nothing_detaches() -> None:
    typed = Detacher(b"")
    assert typed.typed(b"\x10\x11") == b"\x10\x11"
    assert not typed.detached


@given(
    st.lists(st.text("ab", max_size=5).map(str.encode)),
    st.text("ab", min_size=1, max_size=3).map(str.encode),
)
def test_it_does_not_matter_how_the_keys_come(
    pieces: list[bytes], sequence: bytes
) -> None:
    typed = Detacher(sequence)
    passed = b""
    for piece in pieces:
        if not typed.detached:
            passed += typed.typed(piece)
    before, found, _ = b"".join(pieces).partition(sequence)
    assert typed.detached is bool(found)
    assert before.startswith(passed)
    assert passed == before if found else len(before) - len(passed) < len(sequence)
