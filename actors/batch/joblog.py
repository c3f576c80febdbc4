"""The joblog: one line for each finished job, in the format of GNU parallel. Pure.

::

    Seq  Host  Starttime  JobRuntime  Send  Receive  Exitval  Signal  Command

with tabs between. A job that died of a signal has exit value 0 and that signal, one
that was ended for its timeout or a limit -1 and 15. A line feed in a command is written
as NUL, so that a job has one line. Whoever writes a line writes the whole of it at
once; a last line without an end was torn by a crash and counts for nothing.
"""

from typing import Final

from actors.batch.jobs import Job
from actors.batch.outcome import Outcome

HEADER: Final = (
    b"Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n"
)
_COLUMNS: Final = HEADER.count(b"\t") + 1
_SEQ, _EXITVAL, _SIGNAL = 0, 6, 7


class NoJoblog(ValueError):
    """A file is no joblog."""


def row(job: Job, outcome: Outcome) -> bytes:
    """Return the line of a finished job."""
    fields = (
        str(job.seq),
        ":",
        f"{outcome.started:.3f}",
        f"{outcome.wall_time:10.3f}",
        "0",
        str(outcome.stdout),
        str(outcome.exitval),
        str(outcome.signal),
        job.command.replace("\n", "\0"),
    )
    return "\t".join(fields).encode("utf-8", "surrogateescape") + b"\n"


class Past:
    """What a joblog tells of earlier runs, read line by line.

    Args:
        again: whether jobs that failed are to be run again.

    Attributes:
        whole: Bytes of the lines that are complete.
        done: Numbers of the jobs that are not to be run.
    """

    def __init__(self, *, again: bool) -> None:
        self.whole = 0
        self.done: set[int] = set()
        self._again = again
        self._lines = 0

    def read(self, line: bytes) -> None:
        """Take the next line, with its end.

        Raises:
            NoJoblog: it is none of a joblog.
        """
        if not line.endswith(b"\n"):
            return
        self._lines += 1
        self.whole += len(line)
        if self._lines > 1:
            self._job(line)
        elif line != HEADER:
            raise NoJoblog("its first line is not that of a joblog")

    def _job(self, line: bytes) -> None:
        fields = line.split(b"\t", _COLUMNS - 1)
        try:
            seq, exitval, signal = (int(fields[n]) for n in (_SEQ, _EXITVAL, _SIGNAL))
        except (IndexError, ValueError):
            raise NoJoblog(f"line {self._lines} is not that of a job") from None
        if self._again and (exitval, signal) != (0, 0):
            self.done.discard(seq)
        else:
            self.done.add(seq)
