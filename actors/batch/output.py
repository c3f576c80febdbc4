"""What a batch writes to stdout: the output of jobs, or objects for programs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from actors.batch import report
from actors.batch.jobs import Job
from actors.batch.outcome import Outcome
from actors.batch.spool import STREAMS, Spool
from actors.batch.waiting import write
from actors.batch.wording import Tagger

FDS: Final = {"stdout": 1, "stderr": 2}


class Overlay(Protocol):
    """What else is written, and has to make room for output."""

    def aside(self, fd: int) -> AbstractContextManager[bytes]:
        """For a block, come between nothing that is written to this descriptor.

        What it gives is to be written there first.
        """

    def wrote(self, fd: int, data: bytes) -> None:
        """Note what was written to it last."""


class Places(Protocol):
    """Where results are."""

    def directory(self, job: Job) -> str | None:
        """Return where those of a job will be, if they have a place of their own."""


class Show(Protocol):
    """What becomes visible of jobs that ended, one at a time."""

    async def job(self, job: Job, outcome: Outcome, spool: Spool) -> None:
        """Write what there is to see of a job.

        Raises:
            OSError: it is refused; BrokenPipeError if nobody reads it any more.
        """

    async def end(self, summary: dict[str, Any]) -> None:
        """Write what comes last.

        Raises:
            OSError: see `job`.
        """


class Texts:
    """The output of each job in one piece: its stdout, then its stderr.

    Args:
        tag: whether each line begins with the job's tag.
    """

    def __init__(self, overlay: Overlay, *, tag: bool) -> None:
        self._overlay = overlay
        self._tag = tag

    async def job(self, job: Job, _outcome: Outcome, spool: Spool) -> None:
        """Write the output of a job to our stdout and stderr."""
        for stream in STREAMS:
            if spool.sizes[stream]:
                with self._overlay.aside(FDS[stream]) as first:
                    await write(FDS[stream], first)
                    await self._stream(job, stream, spool)

    async def _stream(self, job: Job, stream: str, spool: Spool) -> None:
        tagger = Tagger(job.tag)
        for data in spool.pieces(stream):
            text = tagger.tagged(data) if self._tag else data
            await write(FDS[stream], text)
            self._overlay.wrote(FDS[stream], text)

    async def end(self, _summary: dict[str, Any]) -> None:
        """Write nothing more."""


class Silence:
    """Nothing to see: the output of jobs is in their results."""

    async def job(self, _job: Job, _outcome: Outcome, _spool: Spool) -> None:
        """Write nothing."""

    async def end(self, _summary: dict[str, Any]) -> None:
        """Write nothing."""


class Events:
    """An object in each line: one for each job, and a summary.

    Args:
        results: where those of the jobs are.
    """

    def __init__(self, results: Places) -> None:
        self._results = results

    async def job(self, job: Job, outcome: Outcome, spool: Spool) -> None:
        """Write the line of a job."""
        for piece in self._pieces(job, outcome, spool):
            await write(FDS["stdout"], piece)
        await write(FDS["stdout"], b"\n")

    def _pieces(self, job: Job, outcome: Outcome, spool: Spool) -> Iterator[bytes]:
        facts, directory = report.ended(job, outcome), self._results.directory(job)
        if directory is not None:
            return report.pieces({**facts, "results": directory}, {})
        return report.pieces(facts, {s: spool.pieces(s) for s in STREAMS})

    async def end(self, summary: dict[str, Any]) -> None:
        """Write the line of the summary."""
        facts = {"event": "summary", **summary}
        for piece in report.pieces(facts, {}):
            await write(FDS["stdout"], piece)
        await write(FDS["stdout"], b"\n")


class Document(Events):
    """One object with all jobs, and a summary; it is written as they end."""

    _before = b'{"jobs": [\n'

    async def job(self, job: Job, outcome: Outcome, spool: Spool) -> None:
        """Write the next item."""
        await write(FDS["stdout"], self._before)
        self._before = b",\n"
        for piece in self._pieces(job, outcome, spool):
            await write(FDS["stdout"], piece)

    async def end(self, summary: dict[str, Any]) -> None:
        """Write the rest."""
        before = b"" if self._before == b",\n" else self._before
        tail = b"".join(report.pieces(summary, {}))
        await write(FDS["stdout"], before + b'\n], "summary": ' + tail + b"}\n")
