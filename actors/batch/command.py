"""A batch as the command line asks for it: opens what it needs, runs, says the end."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

from actors.batch import output, progress
from actors.batch.jobs import BadJob, Template, is_separator
from actors.batch.records import (
    Destination,
    Joblog,
    Tree,
    Unusable,
    opened_joblog,
    opened_results,
)
from actors.batch.runner import Batch, Plan
from actors.batch.source import Combinations, Lines
from actors.console.stdio import ReaderGone


class Misused(Exception):
    """What was asked for is not possible; the message says why."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to run, and what to leave of it.

    Attributes:
        words: Names of files of jobs, or a command and its arguments behind `:::`.
        plan: How to run it.
        joblog: Path of the joblog.
        results: Path of the results: a directory, or a file `.jsonl`.
        resume: Whether to skip what the joblog says is finished.
        again: Whether to run those that failed again, though.
        tag: Whether each line of output tells its job.
        form: What is written to stdout.
    """

    words: Sequence[str]
    plan: Plan
    joblog: str | None = None
    results: str | None = None
    resume: bool = False
    again: bool = False
    tag: bool = False
    form: Literal["text", "json", "jsonl"] = "text"


def run(order: Order) -> int:
    """Run all jobs and return the exit code.

    Raises:
        Misused: it is not possible; nothing was started.
        ReaderGone: stdout was closed by its reader; what ran was ended.
        OSError: output or results are refused, by a full disk for one.
        EngineError: the engine ended, or could not be had.
    """
    with ExitStack() as stack:
        try:
            source = _source(order.words)
            joblog = _joblog(order, stack)
            destination = stack.enter_context(
                opened_results(order.results, resume=order.resume)
            )
        except (BadJob, Unusable) as wrong:
            raise Misused(str(wrong)) from None
        view = progress.view()
        show = _show(order, destination, view)
        batch = Batch(
            order.plan,
            source=source,
            joblog=joblog,
            results=destination,
            show=show,
            view=view,
        )
        try:
            return asyncio.run(batch.run())
        except BrokenPipeError:
            raise ReaderGone from None
        finally:
            # Whoever has ended it by a signal does not wait for a reader of ours.
            tell = progress.tell if batch.signal is None else progress.offer
            tell(batch.summary(), view.rest())
            if batch.wrong is not None:
                tell(batch.wrong)


def _source(words: Sequence[str]) -> Lines | Combinations:
    if any(is_separator(word) for word in words):
        return Combinations(Template(words))
    return Lines(words)


def _joblog(order: Order, stack: ExitStack) -> Joblog | None:
    if order.joblog is None:
        return None
    return stack.enter_context(
        opened_joblog(order.joblog, resume=order.resume, again=order.again)
    )


def _show(order: Order, destination: Destination, view: progress.View) -> output.Show:
    if order.form == "json":
        return output.Document(destination)
    if order.form == "jsonl":
        return output.Events(destination)
    if isinstance(destination, Tree):
        return output.Silence()
    return output.Texts(view, tag=order.tag)
