"""Checks of what callers hand in. Pure.

Each takes the parameter's name and a value, and returns or raises `InvalidRequest` that
names the parameter. Error texts never repeat a value: it may be a secret.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from broker.errors import InvalidRequest
from broker.wire import MAX_FDS, MAX_PAYLOAD, MAX_TOKEN

# Up to here a float holds every whole number. Anything larger is a mistake, and would
# change as soon as some peer computes with it.
MOST = 2**53
# What setrlimit and the wire can carry; -1 is "no limit", as in `resource`.
RLIMIT_MOST = 2**63 - 1
MOST_PAIRS = 4096
"""Pairs of metadata: a snapshot tells them in one map, and the wire takes no larger."""

_MARK = re.compile(rb"[0-9a-f]{32}")

Check = Callable[[str, object], None]


class PathLike(Protocol):
    """Anything that names a file, as `os.PathLike` does."""

    def __fspath__(self) -> str | bytes:
        """Return the path."""


Native = str | bytes | PathLike
"""Text or bytes that the operating system will see; text is UTF-8."""


def whole(low: int, high: int = MOST) -> Check:
    """Return a check for whole numbers from `low` to `high`; True is none."""

    def check(name: str, value: object) -> None:
        # True and False are ints to Python; nobody means them as a size.
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidRequest(name, "must be a whole number")
        if not low <= value <= high:
            raise InvalidRequest(name, f"must be between {low} and {high}")

    return check


def seconds(name: str, value: object) -> None:
    """Refuse what is no finite time in seconds from 0 on."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidRequest(name, "must be a number of seconds")
    # Not a number compares false with everything, so it ends here too.
    if not 0 <= value <= MOST:
        raise InvalidRequest(name, "must be a finite time, not negative")


def some_seconds(name: str, value: object) -> None:
    """Refuse what is no time longer than nothing."""
    seconds(name, value)
    if value == 0:
        raise InvalidRequest(name, "must be longer than nothing")


def flag(name: str, value: object) -> None:
    """Refuse what is not True or False."""
    if not isinstance(value, bool):
        raise InvalidRequest(name, "must be True or False")


def text(name: str, value: object) -> None:
    """Refuse what is no text, or cannot be encoded."""
    if not isinstance(value, str):
        raise InvalidRequest(name, "must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        # Without its cause, which would carry the text along.
        raise InvalidRequest(name, "holds half a character") from None


def token(name: str, value: object) -> None:
    """Refuse what cannot name a request on the wire."""
    text(name, value)
    assert isinstance(value, str)
    if not 0 < len(value) <= MAX_TOKEN:
        raise InvalidRequest(name, f"must be a text of 1 to {MAX_TOKEN} characters")


def mark(name: str, value: object) -> None:
    """Refuse what is neither empty nor the mark of a tree."""
    if not isinstance(value, bytes) or not (value == b"" or _MARK.fullmatch(value)):
        raise InvalidRequest(name, "must be 32 hexadecimal digits")


def choice(*choices: str) -> Check:
    """Return a check for one of some words."""

    def check(name: str, value: object) -> None:
        if not isinstance(value, str) or value not in choices:
            raise InvalidRequest(name, f"must be one of {', '.join(choices)}")

    return check


def instance(kind: type) -> Check:
    """Return a check for values of one type."""

    def check(name: str, value: object) -> None:
        if not isinstance(value, kind):
            raise InvalidRequest(name, f"must be {kind.__name__}")

    return check


def optional(check: Check) -> Check:
    """Return a check that lets None pass."""

    def check_unless_none(name: str, value: object) -> None:
        if value is not None:
            check(name, value)

    return check_unless_none


def each(check: Check) -> Check:
    """Return a check for every item of a sequence."""

    def check_each(name: str, value: object) -> None:
        for item in value if isinstance(value, tuple) else items(name, value):
            check(name, item)

    return check_each


def items(name: str, value: object) -> tuple[Any, ...]:
    """Return a sequence as a tuple."""
    if not isinstance(value, list | tuple):
        raise InvalidRequest(name, "must be a sequence")
    return tuple(value)


def pair(name: str, value: object) -> tuple[Any, Any]:
    """Return the two items of a pair."""
    both = items(name, value)
    if len(both) != 2:
        raise InvalidRequest(name, "must be a pair")
    return both[0], both[1]


def rows(name: str, value: object) -> tuple[tuple[Any, ...], ...]:
    """Return a sequence of sequences as tuples."""
    return tuple(items(name, row) for row in items(name, value))


def plain_bytes(name: str, value: object) -> None:
    """Refuse what is no bytes, or holds a NUL."""
    if not isinstance(value, bytes):
        raise InvalidRequest(name, "must be bytes")
    if b"\0" in value:
        raise InvalidRequest(name, "must not hold a NUL byte")


def command(name: str, value: object) -> None:
    """Refuse what is no command in bytes."""
    _words(name, value)
    if not value:
        raise InvalidRequest(name, "must not be empty")


def cells(name: str, value: object, width: int, kind: type) -> list[Any]:
    """Return all cells of a table whose rows have `width` cells of one type."""
    table = items(name, value)
    if not table:
        return []
    found = [cell for row in table for cell in items(name, row)]
    if any(len(row) != width for row in table):
        raise InvalidRequest(name, f"must hold rows of {width}")
    if not all(isinstance(cell, kind) for cell in found):
        raise InvalidRequest(name, f"must hold {kind.__name__} alone")
    return found


def block(name: str, value: object) -> None:
    """Refuse what is no block of variables, with a NUL between two of them.

    Any bytes are one that the system can carry: to look at each takes 8 us for 40.
    """
    if not isinstance(value, bytes):
        raise InvalidRequest(name, "must be bytes")


def variable_names(name: str, variables: Iterable[bytes]) -> None:
    """Refuse variables that no program can look up."""
    if not all(variables) or b"=" in b"".join(variables):
        raise InvalidRequest(name, "has a variable with no name, or with = in it")


def stdin(name: str, value: object) -> None:
    """Refuse what is no way to feed a child."""
    if not isinstance(value, bytes):
        choice("null", "pipe")(name, value)


def metadata(name: str, value: object) -> None:
    """Refuse what is no pairs of texts, or too many."""
    found = cells(name, value, 2, str)
    if len(found) > 2 * MOST_PAIRS:
        raise InvalidRequest(name, f"must be at most {MOST_PAIRS} pairs")
    for cell in found:
        text(name, cell)


def rlimits(name: str, value: object) -> None:
    """Refuse what is no table of number, soft and hard limit."""
    for cell in cells(name, value, 3, int):
        limit(name, cell)


def path(name: str, value: object) -> None:
    """Refuse what names no file: text, bytes, or an object such as `Path`."""
    fspath = getattr(type(value), "__fspath__", None)
    plain = value if fspath is None else fspath(value)
    if not isinstance(plain, str | bytes):
        raise InvalidRequest(name, "must be text, bytes or a path")
    if not plain or "\0" in (
        plain if isinstance(plain, str) else plain.decode("latin1")
    ):
        raise InvalidRequest(name, "must not be empty, nor hold a NUL byte")


def descriptors(name: str, value: object) -> None:
    """Refuse descriptors that a child cannot get."""
    numbers = items(name, value)
    for number in numbers:
        _number(name, number)
    if len(set(numbers)) != len(numbers) or len(numbers) > MAX_FDS:
        raise InvalidRequest(name, f"must be at most {MAX_FDS} different numbers")


_words = each(plain_bytes)
_number = whole(3, 2**31 - 1)  # 0, 1 and 2 are the child's own streams
limit = whole(-1, RLIMIT_MOST)
cell_count = whole(1, 65535)
size = whole(1)
chunk = whole(1, MAX_PAYLOAD)  # what a worker cannot send would end it
nice = whole(-20, 19)
oom_score_adj = whole(-1000, 1000)
policy = choice("tail", "head_tail", "block")
action = choice("terminate", "notify")
leftover = choice("kill", "keep", "report")
stdout = choice("pipe", "null")
stderr = choice("pipe", "stdout", "null")


def check_all(checks: Mapping[str, Check], values: object, prefix: str = "") -> None:
    """Check every attribute of `values` that `checks` names."""
    for name, check in checks.items():
        check(prefix + name, getattr(values, name))


def exactly(what: str, wire: object, names: Iterable[str]) -> dict[str, Any]:
    """Return a copy of the map `wire`, which has exactly these names."""
    if not isinstance(wire, dict):
        raise InvalidRequest(what, "must be a map")
    wanted = set(names)
    if missing := wanted - wire.keys():
        raise InvalidRequest(what, f"lacks {', '.join(sorted(missing))}")
    if len(wire) > len(wanted):
        raise InvalidRequest(what, "has unknown fields")
    return dict(wire)
