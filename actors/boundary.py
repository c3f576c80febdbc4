"""Where the output of one command in a shell ends. Pure.

The shell gets each command as one piece of script: the command itself as a sourced
document, then a report on both streams that a fresh random word introduces. What stands
before the word is the command's output, byte for byte; what the command cannot know it
cannot imitate. The script holds the word only in halves, so that neither `set -v` nor
`set -x` prints it whole.

::

    . /dev/fd/103 103<<'END…' </dev/null      sourced: a syntax error is the command's,
    the command                               `return` works, and an interruption can
    END…                                      unwind from any depth
                                              an empty line: an unclosed quote leaves
                                              the parser blind for `{` on the next one
    { printf … } 2>/dev/null                  the report; its own trace is hidden
"""

import re
from collections.abc import Mapping
from typing import Final

from broker.wire import STREAMS

STDOUT: Final = 101
STDERR: Final = 102
SOURCE: Final = 103
"""Descriptors of the shell; a command may redirect 1 and 2 for good (`exec >file`)."""
HALF: Final = 16
"""Hexadecimal digits of half a word: 128 bits in all."""

SCRIPT: Final = "/dev/stdin"
"""Last argument of the shell: it reads the pipe as a script file, over a descriptor of
its own. Bash that reads commands from its stdin dies of `exec 5<&0` (SIGSEGV, 5.2)."""
PREAMBLE: Final = f"""\
exec </dev/null {STDOUT}>&1 {STDERR}>&2
trap 'set -T; trap "return 130" DEBUG' INT
""".encode()
"""Makes SIGINT end a command and not the shell.

A trap cannot leave a command, but a `DEBUG` trap that returns, inherited by functions,
makes each one and the document return before its next step.
"""
CALM: Final = b"{ trap - DEBUG; set +T; } 2>/dev/null\n"
"""Follows an interruption, which may come when there is nothing left to unwind."""


def script(command: bytes, word: str, *, interrupted: bool) -> bytes:
    """Return what has the shell run `command` and report.

    Args:
        command: any script without NUL.
        word: `2 * HALF` random hexadecimal digits, never used before.
        interrupted: whether the command before was interrupted.
    """
    halves = f"{word[:HALF]} {word[HALF:]}"
    end = f"END{word[HALF:]}"
    lines = [
        f". /dev/fd/{SOURCE} {SOURCE}<<'{end}' </dev/null".encode(),
        command,
        end.encode(),
        b"",
        f"{{ builtin printf '%s%s %d.' {halves} $? >&{STDOUT}".encode(),
        f"builtin printf '%s%s .' {halves} >&{STDERR}; }} 2>/dev/null\n".encode(),
    ]
    return (CALM if interrupted else b"") + b"\n".join(lines)


class Cut:
    """Finds the end of a command's output in both streams, and keeps what precedes it.

    Args:
        word: the same as in the script.
        limit: bytes of both streams to keep; None: all.
        before: what came after the previous command's report, by stream.

    Attributes:
        exceeded: whether there was more than `limit`.
        code: the command's exit status, once it was reported.
        rest: what came after its report, by stream: jobs in the background.
    """

    def __init__(
        self, word: str, limit: int | None, before: Mapping[str, bytes]
    ) -> None:
        self._report = re.compile(word.encode() + rb" (\d*)\.")
        self._carry = len(word) + len(" 255.") - 1
        self._pending = dict.fromkeys(STREAMS, b"")
        self._kept = {stream: bytearray() for stream in STREAMS}
        self._room = limit
        self._open = set(STREAMS)
        self.exceeded = False
        self.code: int | None = None
        self.rest = dict.fromkeys(STREAMS, b"")
        for stream, data in before.items():
            self.feed(stream, data)

    @property
    def done(self) -> bool:
        """Whether the command has reported on both streams."""
        return not self._open

    def feed(self, stream: str, data: bytes) -> None:
        """Take what came."""
        if stream not in self._open:
            self.rest[stream] += data
            return
        pending = self._pending[stream] + data
        found = self._report.search(pending)
        if found is None:
            # A report may be split between this piece and the next.
            sure = max(0, len(pending) - self._carry)
            self._keep(stream, pending[:sure])
            self._pending[stream] = pending[sure:]
            return
        self._open.discard(stream)
        self._keep(stream, pending[: found.start()])
        self._pending[stream] = b""
        self.rest[stream] = pending[found.end() :]
        if found[1]:
            self.code = int(found[1])

    def finish(self) -> None:
        """Note that nothing more will come: the shell has ended."""
        for stream in STREAMS:
            self._keep(stream, self._pending[stream])
            self._pending[stream] = b""

    def output(self, stream: str) -> bytes:
        """Return what was kept of a stream."""
        return bytes(self._kept[stream])

    def _keep(self, stream: str, data: bytes) -> None:
        if self._room is None:
            self._kept[stream] += data
            return
        self.exceeded = self.exceeded or len(data) > self._room
        kept = data[: self._room]
        self._kept[stream] += kept
        self._room -= len(kept)
