"""How long each stage of a session takes, as histograms. Pure.

One session passes through six stages, each measured from the end of the one before it:

===========  ==================================================  ==================
stage        from ... to                                         whose clock
===========  ==================================================  ==================
queued       the spawn came: there was room, START is sent       broker's
leased       START is sent: its worker has read it               broker's, worker's
spawned      the worker has read START: the program is executed  worker's
first_byte   the program is executed: the first output is read   worker's
exit_seen    the program is executed: its exit is reaped         worker's
reported     its exit is reaped: the broker sends that on        worker's, broker's
===========  ==================================================  ==================

All on one machine read the same monotonic clock, so the stages can cross processes. The
worker's stamps come with its last word (IDLE), so a session counts once it is over.
One that was taken over from a lost broker has no `leased` and no `reported` stage.
To note a session takes 2 us.
"""

from typing import Final

STAGES: Final = (
    "queued",
    "leased",
    "spawned",
    "first_byte",
    "exit_seen",
    "reported",
)
BUCKETS: Final = 33
"""Each twice as wide as the one before: from one microsecond to more than an hour."""

Rows = list[list[float]]


class Latency:
    """The histograms of one broker."""

    def __init__(self) -> None:
        self._counts = {stage: [0] * BUCKETS for stage in STAGES}

    def note(self, stage: str, start: float | None, end: float | None) -> None:
        """Count one session's stage between two stamps in seconds, if both are known.

        A negative time counts as none: the stamps of two processes may cross.
        """
        if start is None or end is None:
            return
        bucket = int(max(0.0, end - start) * 1e6).bit_length()
        self._counts[stage][min(bucket, BUCKETS - 1)] += 1

    def rows(self) -> dict[str, Rows]:
        """Return, by stage, pairs of an upper bound in seconds and a count above 0."""
        return {
            stage: [[2**at / 1e6, count] for at, count in enumerate(counts) if count]
            for stage, counts in self._counts.items()
        }
