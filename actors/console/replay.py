"""Old output of a terminal, made fit for being shown again. Pure.

Programs ask the terminal that shows their output: where the cursor is, what kind of
terminal it is, which colours it has. It answers as if somebody typed. Shown again, old
questions would be answered again, into a program that asks nothing now.
"""

import re
from typing import Final

LONGEST: Final = 256
"""Bytes of a question that has begun, and is waited for to end."""
_QUESTIONS: Final = re.compile(
    rb"""
      \x1b \[ [<-?]* [0-9;]* [cn]            # attributes, status, place of the cursor
    | \x1b \[ [?]? [0-9;]* \$ p              # modes
    | \x1b \[ > [0-9;]* q                    # version
    | \x1b \[ [?] u                          # keyboard
    | \x1b \[ (?: 1[1-9] | 2[01] ) (?: ;[0-9]* )* t   # window
    | \x1b \] [0-9;]* ; \? (?: \x07 | \x1b\\ )  # colours
    | \x1b P [+$] q [^\x1b]* \x1b\\          # capabilities, settings
    | \x1b Z | \x05
    """,
    re.VERBOSE,
)
_BEGUN: Final = re.compile(
    rb"""
    \x1b (?:
      \[ [<-?]* [0-9;]* \$?
    | \] [0-9;]* (?: \? \x1b? )?
    | P (?: [+$] (?: q [^\x1b]* \x1b? )? )?
    )? \Z
    """,
    re.VERBOSE,
)
"""What may become a question, at the end of a piece of output."""


def unasking(output: bytes) -> bytes:
    """Return a terminal's output without the questions in it."""
    return _QUESTIONS.sub(b"", output)


class Unasking:
    """The same of output that comes in pieces, which may end within a question."""

    def __init__(self) -> None:
        self._held = b""

    def taken(self, piece: bytes) -> bytes:
        """Take the next piece; return what is to be shown now."""
        output = unasking(self._held + piece)
        begun = _BEGUN.search(output)
        shown = len(output) if begun is None else begun.start()
        if len(output) - shown > LONGEST:
            shown = len(output)
        self._held = output[shown:]
        return output[:shown]

    def rest(self) -> bytes:
        """Return what was held back, as nothing comes behind it."""
        rest, self._held = self._held, b""
        return rest
