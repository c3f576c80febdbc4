"""What is known of a batch as a whole: counts, the slowest, the failures. Pure."""

import heapq
from dataclasses import dataclass, field
from typing import Any, Final

from actors.batch.jobs import Job
from actors.batch.outcome import Outcome

SLOWEST: Final = 3
"""Jobs that the summary names for the time they took."""
FAILURES: Final = 5
"""Jobs that it names, with their last lines, for having failed: the first ones."""
LAST_LINES: Final = 3
"""Lines of each that it shows."""
LAST_BYTES: Final = 1024
"""Bytes that these are looked for in."""
_WIDTH: Final = 100
"""Characters of a command or a line that it shows."""


@dataclass(slots=True)
class Tally:
    """Counts of one run, and what its summary will name.

    Attributes:
        total: Jobs that there are; None as long as that is not known.
        skipped: Jobs that an earlier run has finished.
        running: Jobs that run now.
        done: Jobs that ended.
        failed: Those of them that failed.
        dropped: Jobs that were started, and killed by a halt or a signal.
        written: Bytes of output so far.
        cpu: Processor time of those that ended, seconds.
        peak: Largest resident memory of one process of theirs, bytes.
    """

    total: int | None = None
    skipped: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    dropped: int = 0
    written: int = 0
    cpu: float = 0.0
    peak: int = 0
    _told: tuple[float, int] = (0.0, 0)
    _slowest: list[tuple[float, int, str]] = field(default_factory=list)
    _failures: list[str] = field(default_factory=list)

    def ended(self, job: Job, outcome: Outcome, last: bytes) -> None:
        """Count a job that ended; `last` is the end of its output."""
        self.done += 1
        if outcome.status is not None:
            usage = outcome.status.usage
            self.cpu += usage.user + usage.sys
            self.peak = max(self.peak, usage.max_rss)
        entry = (outcome.wall_time, -job.seq, job.command[: _WIDTH + 1])
        heapq.heappush(self._slowest, entry)
        if len(self._slowest) > SLOWEST:
            heapq.heappop(self._slowest)
        if not outcome.ok:
            self.failed += 1
            if len(self._failures) < FAILURES:
                self._failures += [_failure(job, outcome, last)]

    def rate(self, wall: float) -> float:
        """Return how many jobs ended in a second, after so many seconds."""
        return self.done / wall if wall > 0 else 0.0

    def remaining(self, wall: float) -> float | None:
        """Return how many seconds the rest takes at that rate; None if unknown."""
        if self.total is None or not self.done:
            return None
        left = max(0, self.total - self.skipped - self.done)
        return left * wall / self.done

    def facts(self, wall: float) -> dict[str, Any]:
        """Return the numbers of the summary, for programs."""
        return {
            "done": self.done,
            "failed": self.failed,
            "skipped": self.skipped,
            "dropped": self.dropped,
            "wall_time": round(wall, 6),
            "cpu_time": round(self.cpu, 6),
            "max_rss": self.peak,
        }

    def line(self, wall: float) -> str:
        """Return how far it is; the rate of output is that since the last line."""
        of = "" if self.total is None else f"/{self.total - self.skipped}"
        before, written = self._told
        flow = (self.written - written) / (wall - before) if wall > before else 0.0
        self._told = wall, self.written
        left = self.remaining(wall)
        rest = "" if left is None else f", {left:.0f} s left"
        return (
            f"{self.done}{of} done, {self.failed} failed, {self.running} running, "
            f"{self.rate(wall):.1f}/s, {_amount(flow)}/s{rest}"
        )

    def summary(self, wall: float) -> str:
        """Return what to tell people at the end, in lines."""
        first = (
            f"{self.done} done, {self.failed} failed{self._others()}; "
            f"{wall:.1f} s, {self.rate(wall):.1f}/s, CPU {self.cpu:.1f} s, "
            f"peak memory {_amount(self.peak)}"
        )
        slowest = _named("slowest", self._slow() if self.done > 1 else [])
        failed = _named("failed", self._failures)
        more = self.failed - len(self._failures)
        rest = [f"    and {more} more"] if more else []
        return "\n".join([first, *slowest, *failed, *rest])

    def _others(self) -> str:
        """Return what became of the jobs that did not run to their end."""
        counts = (self.skipped, "finished before"), (self.dropped, "dropped unfinished")
        return "".join(f", {count} {what}" for count, what in counts if count)

    def _slow(self) -> list[str]:
        found = sorted(self._slowest, reverse=True)
        return [
            f"    {took:.3f} s  #{-seq}  {_short(line)}" for took, seq, line in found
        ]


def _named(what: str, lines: list[str]) -> list[str]:
    return [f"  {what}:", *lines] if lines else []


def _failure(job: Job, outcome: Outcome, last: bytes) -> str:
    lines = last.decode("utf-8", "replace").splitlines()[-LAST_LINES:]
    head = f"    #{job.seq}  {outcome.words}: {_short(job.command)}"
    return "\n".join([head, *(f"      | {_short(line)}" for line in lines)])


def _short(text: str) -> str:
    """Return the beginning of a text, in one line that moves no cursor."""
    start = text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in start)


def _amount(size: float) -> str:
    """Return a number of bytes as people read it."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} GiB"
