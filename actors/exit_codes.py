"""The exit codes of this program, and which one stands for a command's end. Pure.

A custom of timeout(1), env(1) and shells. It imports next to nothing: the answer to
`--help` needs some of them.
"""

import errno
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from actors.facts import ExitStatus

TROUBLE: Final = 1
"""A verb could not do what was asked."""
USAGE: Final = 2
"""A mistake in the words given, as click and most commands have it."""
TIMED_OUT: Final = 124
ENGINE_TROUBLE: Final = 125
"""Trouble of a verb that else ends with a command's code, or an end nobody knows."""
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
SIGNALLED: Final = 128
"""A command died of signal N, less N."""
INTERRUPTED: Final = SIGNALLED + 2
"""Ctrl-C ended it."""
READER_GONE: Final = SIGNALLED + 13
"""Nobody read its output any more."""


def of_status(status: "ExitStatus") -> int:
    """Return the exit code that stands for a command's end."""
    if status.cause == "timeout":
        return TIMED_OUT
    if status.signal is not None:
        return SIGNALLED + status.signal
    return ENGINE_TROUBLE if status.code is None else status.code


def of_failure(error: Exception) -> int:
    """Return the exit code that stands for why a command did not start."""
    if getattr(error, "step", None) != "exec":
        return ENGINE_TROUBLE
    missing = isinstance(error, OSError) and error.errno == errno.ENOENT
    return NOT_FOUND if missing else NOT_EXECUTABLE
