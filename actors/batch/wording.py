"""Words as shells, directories and readers of mixed output want them. Pure."""

import re
import zlib
from collections.abc import Sequence
from typing import Final

LONGEST_NAME: Final = 255
"""Bytes of one file name, on every common file system."""

_PLAIN: Final = re.compile(r"[-_.+a-zA-Z0-9/]+")
_NAMES: Final = str.maketrans({"/": "\\_", "\\": "\\\\", "\t": "\\t", "\0": "\\0"})


def quote(word: str) -> str:
    """Return a word as a shell reads it back, byte for byte as GNU parallel has it."""
    if _PLAIN.fullmatch(word):
        return word
    if not word:
        return "''"
    inner = word.replace("'", "'\"'\"'")
    return f"'{inner}'".removeprefix("''").removesuffix("''")


def command_line(argv: Sequence[str]) -> str:
    """Return a command as one would type it."""
    return " ".join(map(quote, argv))


def place(inputs: Sequence[str]) -> str:
    r"""Return the directory of a job's results below that of all.

    As GNU parallel names it: the number of each input, and its text with `\_` for a
    slash. But an empty text, `.` and `..` become `\`, `\.` and `\..`, for they would
    lead elsewhere, and a text that is too long ends in a checksum, for others may begin
    like it.
    """
    return "/".join(f"{n}/{_name(text)}" for n, text in enumerate(inputs, 1))


def _name(text: str) -> str:
    if text in ("", ".", ".."):
        return f"\\{text}"
    name = text.translate(_NAMES)
    raw = name.encode("utf-8", "surrogateescape")
    if len(raw) <= LONGEST_NAME:
        return name
    mark = f"-{zlib.crc32(raw):08x}"
    return raw[: LONGEST_NAME - len(mark)].decode("utf-8", "ignore") + mark


class Tagger:
    """Puts a tag and a tab in front of every line.

    Args:
        tag: what tells the job.
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag.encode("utf-8", "surrogateescape") + b"\t"
        self._line_begins = True

    def tagged(self, data: bytes) -> bytes:
        """Return the next piece of output, at least one byte, with its tags."""
        first = self._tag if self._line_begins else b""
        self._line_begins = data.endswith(b"\n")
        whole = data.removesuffix(b"\n")
        rest = data[len(whole) :]
        return first + whole.replace(b"\n", b"\n" + self._tag) + rest
