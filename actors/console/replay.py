"""Old output of a terminal, made fit for being shown again. Pure.

Programs ask the terminal that shows their output: where the cursor is, what kind of
terminal it is, which colours it has. It answers as if somebody typed. Shown again, old
questions would be answered again, into a program that asks nothing now.
"""

import re
from typing import Final

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


def unasking(output: bytes) -> bytes:
    """Return a terminal's output without the questions in it."""
    return _QUESTIONS.sub(b"", output)
