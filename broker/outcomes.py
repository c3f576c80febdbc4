"""The two errors that are kinds of subprocess's own, for those who catch these.

They are apart from `errors` because subprocess imports threading, whose hook runs in
every fork: a worker would write to 300 KiB more of what it shares with the pool. Only
clients and the broker ever raise them.
"""

import subprocess

from broker.errors import Command, EngineError, last_output

__all__ = ["CommandFailed", "TimedOut"]


class CommandFailed(EngineError, subprocess.CalledProcessError):
    """The command ended with a failure status and `check` was asked for."""

    code = "command-failed"
    fields = ("returncode", "cmd", "output", "stderr")
    local_fields = ("output", "stderr")
    number_fields = ("returncode",)

    def __init__(
        self,
        returncode: int,
        cmd: Command,
        output: bytes | None = None,
        stderr: bytes | None = None,
    ) -> None:
        subprocess.CalledProcessError.__init__(self, returncode, cmd, output, stderr)
        self.message = str(self)

    def __str__(self) -> str:
        return subprocess.CalledProcessError.__str__(self)


class TimedOut(EngineError, subprocess.TimeoutExpired, TimeoutError):
    """It did not happen within `timeout` seconds.

    `awaited` says what a wait for output or readiness was for; with it the message
    shows the ends of the output, too. It is empty after other waits.
    """

    code = "timed-out"
    fields = ("cmd", "timeout", "output", "stderr", "awaited")
    local_fields = ("output", "stderr", "awaited")
    number_fields = ("timeout",)

    def __init__(
        self,
        cmd: Command,
        timeout: float,
        output: bytes | None = None,
        stderr: bytes | None = None,
        awaited: str = "",
    ) -> None:
        subprocess.TimeoutExpired.__init__(self, cmd, timeout, output, stderr)
        self.awaited = awaited
        self.message = str(self)

    def __str__(self) -> str:
        what = f"{self.cmd!r} timed out after {self.timeout} seconds"
        if not self.awaited:
            return what
        last = last_output(self.stdout, self.stderr)
        return f"{what} of waiting for {self.awaited}; {last}"
