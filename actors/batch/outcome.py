"""How a job ended, and which numbers say so. Pure."""

from dataclasses import dataclass
from typing import Final

import actors
from actors import exit_codes

KILLED: Final = -1
"""Exit value, in a joblog, of a job that was ended for a limit, or lost."""
TERMINATED: Final = 15
"""Its signal there: what a job is ended with."""

OWN_ENDS: Final = ("exited", "oom")
"""Causes of an end that nobody here brought about: its code or signal tells."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended. Times in seconds, sizes in bytes.

    Attributes:
        status: How its last attempt ended; None if it failed, see there.
        started: When that began, since 1970.
        attempts: How often it was run.
        stdout: Bytes it wrote there, in its last attempt.
        stderr: Bytes it wrote there.
        late: Whether it was ended because its time was over.
        error: The code of why it could not be started, or was given up; None if not.
        failure: The same as a sentence.
        failure_code: The exit code that stands for that.
    """

    status: actors.ExitStatus | None
    started: float
    attempts: int = 1
    stdout: int = 0
    stderr: int = 0
    late: bool = False
    error: str | None = None
    failure: str | None = None
    failure_code: int = exit_codes.ENGINE_TROUBLE

    @property
    def wall_time(self) -> float:
        """How long the last attempt took, seconds."""
        return 0.0 if self.status is None else self.status.wall_time

    @property
    def cause(self) -> str:
        """Why it ended: a cause of `ExitStatus`, or `failed`."""
        if self.status is None:
            return "failed"
        return "timeout" if self.late else self.status.cause

    @property
    def ok(self) -> bool:
        """Whether it exited by itself with code 0."""
        return (self.exitval, self.signal) == (0, 0)

    @property
    def exitval(self) -> int:
        """The exit value in a joblog: 0 of a job that died of a signal."""
        if self.status is None:
            return self.failure_code
        if self.cause not in OWN_ENDS:
            return KILLED
        return self.status.code or 0

    @property
    def signal(self) -> int:
        """The signal in a joblog, 0 for none."""
        if self.status is None:
            return 0
        if self.cause not in OWN_ENDS:
            return TERMINATED
        return self.status.signal or 0

    @property
    def code(self) -> int:
        """The exit code that tells of this job alone, as `creche run` has them."""
        if self.status is None:
            return self.failure_code
        if self.late:
            return exit_codes.TIMED_OUT
        code = exit_codes.of_status(self.status)
        if code == 0 and not self.ok:  # it exits so when it is ended
            return exit_codes.SIGNALLED + TERMINATED
        return code

    @property
    def words(self) -> str:
        """What to call this end in one line."""
        if self.failure is not None:
            return self.failure
        if self.cause not in OWN_ENDS:
            return self.cause
        return f"signal {self.signal}" if self.signal else f"exit {self.exitval}"
