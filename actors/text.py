"""Bytes of two streams as text, without ever breaking a character. Pure.

A text for a reader of limited capacity keeps its beginning and its end: `abridge`.
"""

import codecs
from threading import local
from typing import Final, NamedTuple

from broker.errors import InvalidRequest

_tally: Final = local()


def _count(error: UnicodeError) -> tuple[str, int]:
    """Put a mark in place of undecodable bytes, and count them."""
    assert isinstance(error, UnicodeDecodeError)
    _tally.bytes += error.end - error.start
    return "\N{REPLACEMENT CHARACTER}", error.end


codecs.register_error("creche-count", _count)
_Decoder: Final = codecs.getincrementaldecoder("utf-8")


BYTES_PER_TOKEN: Final = 4
"""The usual rule of thumb for language models."""
_CONTINUATION: Final = bytes(range(0x80, 0xC0))
_LONGEST_REST: Final = 3
"""Bytes of a character behind its first one."""


class TextView:
    """An incremental UTF-8 view of a session: one decoder per stream.

    Attributes:
        undecodable: bytes so far that are not UTF-8.
    """

    def __init__(self) -> None:
        self.undecodable = 0
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._cut: dict[str, int] = {}

    def decode(self, stream: str, data: bytes, *, final: bool = False) -> str:
        """Return the characters that are complete with `data`."""
        decoder = self._decoders.get(stream)
        if decoder is None:
            decoder = self._decoders[stream] = _Decoder("creche-count")
        if stream in self._cut:
            data = self._without_rest(stream, data)
        _tally.bytes = 0
        text = decoder.decode(data, final)
        self.undecodable += _tally.bytes
        return text

    def _without_rest(self, stream: str, data: bytes) -> bytes:
        """Leave out the rest of a character whose start is missing; it is counted."""
        rest = len(data) - len(data.lstrip(_CONTINUATION))
        left = self._cut.pop(stream)
        if rest == len(data) and rest < left:
            self._cut[stream] = left - rest  # more of it may follow
        rest = min(rest, left)
        self.undecodable += rest
        return data[rest:]

    def skip(self, stream: str) -> str:
        """Note that bytes are missing here: what was incomplete stays so."""
        text = self.decode(stream, b"", final=True)
        self._decoders.pop(stream, None)
        self._cut[stream] = _LONGEST_REST
        return text

    def finish(self) -> str:
        """Return what the streams' ends leave incomplete, as marks."""
        return "".join(self.skip(stream) for stream in list(self._decoders))


class Abridged(NamedTuple):
    """A text, or its beginning and its end.

    Attributes:
        text: The text; a mark in its middle tells how much is missing there.
        tokens: Of the whole, approximately: a quarter of its bytes.
        omitted: Characters left out; 0 when `text` is the whole.
    """

    text: str
    tokens: int
    omitted: int


def abridge(text: str, max_tokens: int) -> Abridged:
    """Return a text of about `max_tokens` tokens, without its middle if it is longer.

    Half of the tokens go to the beginning and half to the end, in whole characters; the
    mark between them comes on top.

    Raises:
        InvalidRequest: `max_tokens` is no number from 0 on.
    """
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int):
        raise InvalidRequest("max_tokens", "must be a whole number")
    if max_tokens < 0:
        raise InvalidRequest("max_tokens", "must not be negative")
    raw = text.encode("utf-8", "surrogatepass")
    tokens = -(-len(raw) // BYTES_PER_TOKEN)
    if tokens <= max_tokens:
        return Abridged(text, tokens, 0)
    half = max_tokens * BYTES_PER_TOKEN // 2
    head = _characters(raw[: _boundary(raw, half, -1)])
    tail = _characters(raw[_boundary(raw, len(raw) - half, 1) :])
    omitted = len(text) - len(head) - len(tail)
    mark = f"[... {omitted} characters left out ...]"
    return Abridged(f"{head}{mark}{tail}", tokens, omitted)


def _boundary(raw: bytes, place: int, step: int) -> int:
    """Return the first place from there on, in steps, that is within no character."""
    while place < len(raw) and raw[place] in _CONTINUATION:
        place += step
    return place


def _characters(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")
