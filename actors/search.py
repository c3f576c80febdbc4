r"""Looking for a pattern in a stream of the log while it grows. Pure.

Rules:

1. A search has a *start*, an offset in one stream. The text begins there: nothing
   before it is seen, and `^` matches there (and after newlines, with `(?m)`).
2. Each step looks at what is new, with `OVERLAP` bytes before it: a match that came in
   parts is found unless it is longer than that by the time of its last part. No byte is
   looked at more often than needed for this, however long the search takes.
3. Something is found as soon as it is a match. What comes later would perhaps have made
   it longer; `$` and `\Z` match where the output ends at that moment.
4. What was dropped before the search came to it is counted. The text ends there, and
   begins anew behind it.

Patterns are of bytes. Text becomes its UTF-8, with every character beyond ASCII as one
unit, so that `é+` means what it says; a set of such characters cannot be said in bytes
and is refused. `.`, `\w` and ignoring case know ASCII alone.
"""

import re
from typing import Final, NamedTuple

from actors.buffer import Log
from broker.errors import InvalidRequest

__all__ = ["LONGEST_PATTERN", "Found", "Search", "compiled", "prepared", "tail"]

LONGEST_PATTERN: Final = 4096
"""Bytes of a pattern: it travels in a control frame."""
OVERLAP: Final = 16 * 1024
"""Bytes looked at again with each new piece: a match that comes in parts is shorter."""
CONTEXT: Final = 256
"""Bytes before these that assertions of what comes before can see."""
BEFORE: Final = 64 * 1024
"""Bytes before a match that are told with it."""
LARGEST_MATCH: Final = 2 * 1024 * 1024
"""Bytes of a match and its groups, in sum, that fit into an answer."""

_FLAGS: Final = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE | re.ASCII
# An escape, a set, or a character beyond ASCII.
_UNITS: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\x00-\x7f]", re.DOTALL)


class Found(NamedTuple):
    """A match.

    Attributes:
        offset: Of its first byte in the stream.
        matched: Its bytes.
        groups: Those of its groups, None for one that took no part.
        before: The bytes in front of it since the start or the last gap, the newest
            `BEFORE` of them.
        gap: Bytes since the start that were dropped unseen.
    """

    offset: int
    matched: bytes
    groups: tuple[bytes | None, ...]
    before: bytes
    gap: int


def prepared(pattern: object) -> tuple[bytes, int]:
    """Return a caller's pattern as bytes and flags, once it is known to compile.

    Raises:
        InvalidRequest: It is no regular expression, or too long.
    """
    flags = 0
    if isinstance(pattern, re.Pattern):
        flags, pattern = pattern.flags & _FLAGS, pattern.pattern
    if isinstance(pattern, str):
        try:
            pattern = _UNITS.sub(_unit, pattern).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise InvalidRequest("pattern", "holds half a character") from None
    if not isinstance(pattern, bytes):
        raise InvalidRequest("pattern", "must be text, bytes or a compiled pattern")
    if len(pattern) > LONGEST_PATTERN:
        raise InvalidRequest("pattern", f"must have at most {LONGEST_PATTERN} bytes")
    compiled(pattern, flags)
    return pattern, flags


def _unit(found: re.Match[str]) -> str:
    unit = found[0]
    if unit.isascii():
        return unit
    if unit.startswith("["):
        raise InvalidRequest(
            "pattern", "has a set with characters beyond ASCII: write (?:a|b) instead"
        )
    return f"(?:{unit.removeprefix(chr(92))})"


def compiled(pattern: bytes, flags: int) -> re.Pattern[bytes]:
    """Return the compiled pattern.

    Raises:
        InvalidRequest: It is no regular expression.
    """
    try:
        return re.compile(pattern, flags)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest("pattern", f"is no regular expression: {error}") from error


class Search:
    """One search in one stream.

    Attributes:
        seen: Where the bytes end that have been looked at.
        gap: Bytes that were dropped unseen.
    """

    def __init__(
        self, log: Log, stream: str, pattern: re.Pattern[bytes], start: int
    ) -> None:
        self.stream = stream
        self.seen = start
        self.gap = 0
        self._log = log
        self._pattern = pattern
        self._base = start
        self._last = b""  # what was looked at last: the log may not keep it

    def step(self) -> Found | None:
        """Look at everything that is new; return the first match.

        Raises:
            InvalidRequest: It is larger than an answer can be.
        """
        while self.seen < (produced := self._log.stats(self.stream).produced):
            missed, begin, new = self._log.read_stream(self.stream, self.seen, produced)
            if missed:
                self.gap += missed
                self._base, self._last = begin, b""
            text, place = self._last + new, max(0, len(self._last) - OVERLAP)
            found = self._pattern.search(text, place)
            if found:
                return self._found(begin - len(self._last), found)
            self.seen, self._last = begin + len(new), text[-OVERLAP - CONTEXT :]
        return None

    def _found(self, begin: int, found: re.Match[bytes]) -> Found:
        matched, groups = found[0], found.groups()
        size = len(matched) + sum(len(group) for group in groups if group)
        if size > LARGEST_MATCH:
            raise InvalidRequest(
                "pattern", f"matches {size} bytes: {LARGEST_MATCH} can be told"
            )
        offset = begin + found.start()
        first = max(self._base, offset - BEFORE)
        before = tail(self._log, self.stream, offset - first, end=offset)
        return Found(offset, matched, groups, before, self.gap)


def tail(log: Log, stream: str, count: int, *, end: int | None = None) -> bytes:
    """Return the last `count` bytes before `end` of a stream, or those since a hole."""
    end = log.stats(stream).produced if end is None else end
    offset, data = max(0, end - count), b""
    while offset < end:
        missed, offset, more = log.read_stream(stream, offset, end - offset)
        more = more[: max(0, end - offset)]  # a hole may reach beyond the end
        data = more if missed else data + more
        offset += len(more)
    return data
