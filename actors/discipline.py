"""A terminal's line discipline as rules: what ends a line, and what fits in. Pure.

In *canonical* mode the kernel gathers input into lines before a program can read it,
and quietly throws away what does not fit into the line that is being gathered. So the
unfinished `Line` has to be known: `Discipline.unfinished` follows it over the bytes
that go in, `Discipline.check` refuses those that would be cut. In *raw* mode
there are no lines; bytes that do not fit wait.

============================  =====================================================
byte (canonical mode)         what becomes of the unfinished line
============================  =====================================================
newline, VEOL, VEOL2, VEOF    it is complete
carriage return with ICRNL    the same; a newline with INLCR is none any more
VKILL; VINTR VQUIT VSUSP      it is thrown away; with ISIG and without NOFLSH
the byte after VLNEXT         one byte longer, whatever it is; with IEXTEN
any other                     one byte longer (erasing is not counted back)
============================  =====================================================
"""

import termios
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from broker.errors import InvalidRequest

LONGEST_LINE: Final = 4095
"""Bytes of a line in canonical mode, without what ends it: N_TTY_BUF_SIZE - 1."""

_OFF: Final = b"\0"
"""A control character that is switched off (_POSIX_VDISABLE)."""


class Line(NamedTuple):
    """A line that is not finished.

    Attributes:
        length: Its bytes.
        quotes: Whether the last of them makes the next byte an ordinary one.
    """

    length: int = 0
    quotes: bool = False


@dataclass(frozen=True, slots=True)
class Discipline:
    """How a terminal treats its input at one moment.

    Attributes:
        canonical: Whether input is gathered into lines.
        eof: The byte that ends the input, empty when there is none.
        breaks: The bytes that end or throw away the line before them.
        literal: The byte that makes the next one ordinary, empty when there is none.
    """

    canonical: bool
    eof: bytes = b""
    breaks: bytes = b""
    literal: bytes = b""
    _marks: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        marks = bytes(byte in self.breaks for byte in range(256))
        object.__setattr__(self, "_marks", marks)

    @classmethod
    def of(cls, attributes: Sequence[Any]) -> Self:
        """Return what `termios.tcgetattr` gave, as rules."""
        iflag, lflag, characters = attributes[0], attributes[3], attributes[6]
        if not lflag & termios.ICANON:
            return cls(canonical=False)
        extended = bool(lflag & termios.IEXTEN)
        names = [termios.VEOF, termios.VEOL, termios.VKILL]
        if extended:
            names.append(termios.VEOL2)
        if lflag & termios.ISIG and not lflag & termios.NOFLSH:
            names += [termios.VINTR, termios.VQUIT, termios.VSUSP]
        chosen = [characters[name] for name in names]
        return cls(
            canonical=True,
            eof=_switched_on(characters[termios.VEOF]),
            breaks=b"".join(map(_switched_on, chosen)) + _newlines(iflag),
            literal=_switched_on(characters[termios.VLNEXT]) if extended else b"",
        )

    def unfinished(self, data: bytes, before: Line) -> Line:
        """Return the unfinished line after `data`.

        Args:
            data: what goes in.
            before: the unfinished line that it continues.
        """
        if not self.canonical:
            return Line()
        marks, quotes = self._marked(data, quoted=before.quotes)
        at = marks.rfind(1)
        length = before.length + len(marks) if at < 0 else len(marks) - at - 1
        return Line(length, quotes)

    def check(self, data: bytes, before: Line) -> None:
        """Refuse data that would not arrive whole.

        Raises:
            InvalidRequest: a line is longer than canonical mode takes.
        """
        if not self.canonical or before.length + len(data) <= LONGEST_LINE:
            return
        marks, _ = self._marked(data, quoted=before.quotes)
        first, *others = marks.split(b"\1")
        longest = max([before.length + len(first), *map(len, others)])
        if longest > LONGEST_LINE:
            raise InvalidRequest(
                "data",
                f"has a line of {longest} bytes: a terminal in canonical mode takes "
                f"{LONGEST_LINE} and throws away the rest",
            )

    def _marked(self, data: bytes, *, quoted: bool) -> tuple[bytes, bool]:
        """Return a byte for each of `data`: 1 where a line ends, else 0.

        And whether what follows is quoted, as the first byte is if `quoted`.
        """
        marks = data.translate(self._marks)
        if not quoted and (not self.literal or self.literal not in data):
            return marks, False
        plain, end = bytearray(marks), int(quoted)
        plain[:end] = bytes(len(plain[:end]))
        while self.literal and (at := data.find(self.literal, end)) >= 0:
            end = at + 2
            plain[at:end] = bytes(len(plain[at:end]))
        return bytes(plain), end > len(data)


def _switched_on(character: bytes) -> bytes:
    return b"" if character == _OFF else character


def _newlines(iflag: int) -> bytes:
    """Return the bytes that become a newline on their way in."""
    newlines = b"" if iflag & termios.INLCR else b"\n"
    if iflag & termios.ICRNL and not iflag & termios.IGNCR:
        newlines += b"\r"
    return newlines
