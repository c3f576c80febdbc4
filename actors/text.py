"""Bytes of two streams as text, without ever breaking a character. Pure."""

import codecs
from threading import local
from typing import Final

_tally: Final = local()


def _count(error: UnicodeError) -> tuple[str, int]:
    """Put a mark in place of undecodable bytes, and count them."""
    assert isinstance(error, UnicodeDecodeError)
    _tally.bytes += error.end - error.start
    return "\N{REPLACEMENT CHARACTER}", error.end


codecs.register_error("creche-count", _count)
_Decoder: Final = codecs.getincrementaldecoder("utf-8")


class TextView:
    """An incremental UTF-8 view of a session: one decoder per stream.

    Attributes:
        undecodable: bytes so far that are not UTF-8.
    """

    def __init__(self) -> None:
        self.undecodable = 0
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}

    def decode(self, stream: str, data: bytes, *, final: bool = False) -> str:
        """Return the characters that are complete with `data`."""
        decoder = self._decoders.get(stream)
        if decoder is None:
            decoder = self._decoders[stream] = _Decoder("creche-count")
        _tally.bytes = 0
        text = decoder.decode(data, final)
        self.undecodable += _tally.bytes
        return text

    def skip(self, stream: str) -> str:
        """Note that bytes are missing here: what was incomplete stays so."""
        text = self.decode(stream, b"", final=True)
        self._decoders.pop(stream, None)
        return text

    def finish(self) -> str:
        """Return what the streams' ends leave incomplete, as marks."""
        return "".join(self.skip(stream) for stream in list(self._decoders))
