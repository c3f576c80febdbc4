"""The loop of a batch: reads jobs, runs so many at once, and sees to what they leave.

The package's docstring has the states of a job. A task each: it holds a *place* while
its job runs, and *room* from the start until the job is finished or dropped; turns are
for writing, one job at a time.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import actors
from actors import exit_codes
from actors.ambient import many_files
from actors.batch.halt import NEVER, Halt
from actors.batch.jobs import BadJob, Job
from actors.batch.outcome import Outcome
from actors.batch.output import Show
from actors.batch.pace import Pace
from actors.batch.progress import View
from actors.batch.records import Destination, Joblog
from actors.batch.spool import Spool
from actors.batch.tally import LAST_BYTES, Tally
from actors.batch.turns import Turns
from actors.console.terminal import handling

HELD: Final = 256
"""Jobs that may have ended, in order, and wait for an earlier one."""
UNDER_WAY: Final = 1024 * 1024
"""Bytes of output of one job that wait in the engine before the job waits."""
MOST_WARM: Final = 16
"""Workers kept ready: what a fast machine uses up before new ones are forked."""
QUEUE: Final = 86400.0
"""Seconds that a job waits for room in a shared broker: a day."""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Source(Protocol):
    """Where jobs come from."""

    def total(self) -> int | None:
        """Return how many there are; None if that is not known."""

    def jobs(self, done: set[int]) -> AsyncIterator[Job | None]:
        """Yield them in order; None in place of one that is done.

        Raises:
            BadJob: the next one is none.
        """


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run jobs. Times in seconds.

    Attributes:
        jobs: How many run at once.
        attempts: How often one is run until it succeeds.
        timeout: Until it is ended, unless it says so itself.
        share: The same as a multiple of what they usually take.
        halt: When no more are started.
        ordered: Whether they are finished in order.
        endpoint: Of a running broker; None starts a private one.
    """

    jobs: int
    attempts: int = 1
    timeout: float | None = None
    share: float | None = None
    halt: Halt = NEVER
    ordered: bool = False
    endpoint: str | None = None


class Batch:
    """One run.

    Args:
        joblog: where finished jobs are noted, if anywhere.

    Attributes:
        wrong: What was wrong with the input, if something was.
        signal: The signal that ended it before its time, if one did.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        source: Source,
        joblog: Joblog | None,
        results: Destination,
        show: Show,
        view: View,
    ) -> None:
        self.wrong: str | None = None
        self.signal: int | None = None
        self._plan = plan
        self._source = source
        self._joblog = joblog
        self._results = results
        self._show = show
        self._view = view
        self._done = set() if joblog is None else joblog.done
        self._tally = Tally(total=source.total())
        self._pace = None if plan.share is None else Pace(plan.share)
        self._clocks: dict[int, tuple[float, asyncio.Timeout]] = {}
        self._places = asyncio.Semaphore(plan.jobs)
        held = HELD if plan.ordered else plan.jobs
        self._room = asyncio.Semaphore(plan.jobs + held)
        self._turns = Turns()
        self._live: set[asyncio.Task[None]] = set()
        self._pulling: asyncio.Task[None] | None = None
        self._stopped = False
        self._reached: int | None = None
        self._started = time.monotonic()

    async def run(self) -> int:
        """Run all jobs; return the exit code.

        Raises:
            BrokenPipeError: nobody reads our output any more.
            OSError: output or results are refused, by a full disk for one.
            EngineError: the engine ended.
        """
        plan = self._plan
        settings = actors.Settings(
            warm=min(plan.jobs, MOST_WARM),
            retention=actors.OutputPolicy.block(UNDER_WAY),
        )
        try:
            with self._signals():
                async with actors.Engine(plan.endpoint, settings=settings) as engine:
                    with many_files():  # each job may hold two
                        await self._all(engine)
        except asyncio.CancelledError:
            if self.signal is None:
                raise
            return self._exit_code()
        code = self._exit_code()
        await self._show.end({**self._tally.facts(self._wall()), "exit_code": code})
        return code

    def summary(self) -> str:
        """Return what to tell people at the end, in lines."""
        return self._tally.summary(self._wall())

    def _wall(self) -> float:
        return time.monotonic() - self._started

    def _exit_code(self) -> int:
        if self.signal is not None:
            return exit_codes.SIGNALLED + self.signal
        if self.wrong is not None:
            return exit_codes.USAGE
        return self._plan.halt.exit_code(self._tally.failed, self._reached)

    # -- all of them ----------------------------------------------------------------

    async def _all(self, engine: actors.Engine) -> None:
        drawing = asyncio.ensure_future(self._draw())
        try:
            async with asyncio.TaskGroup() as group:
                self._pulling = group.create_task(self._pull(engine, group))
        except BaseExceptionGroup as failed:
            raise _first(failed) from None
        finally:
            drawing.cancel()
            self._view.close()

    async def _draw(self) -> None:
        while True:
            await asyncio.sleep(self._view.period)
            self._view.draw(self._tally, self._wall())

    async def _pull(self, engine: actors.Engine, group: asyncio.TaskGroup) -> None:
        try:
            async for job in self._source.jobs(self._done):
                if job is None:
                    self._tally.skipped += 1
                    continue
                await self._room.acquire()
                await self._places.acquire()
                if self._stopped:
                    return
                self._start(engine, group, job)
        except BadJob as wrong:
            self.wrong = str(wrong)

    def _start(self, engine: actors.Engine, group: asyncio.TaskGroup, job: Job) -> None:
        if self._plan.ordered:
            self._turns.join(job.seq)
        task = group.create_task(self._job(engine, job))
        self._live.add(task)
        self._tally.running += 1

        def left(task: "asyncio.Task[None]") -> None:
            # Not in the task itself: one that is cancelled at once never begins.
            if task in self._live:
                self._ran(task)
                self._tally.dropped += 1
            self._turns.leave(job.seq)
            self._room.release()

        task.add_done_callback(left)

    def _ran(self, task: "asyncio.Task[None]") -> None:
        self._live.discard(task)
        self._tally.running -= 1
        self._places.release()

    def _stop(self, *, now: bool) -> None:
        """Start no more jobs; `now`: and kill those that run."""
        self._stopped = True
        if self._pulling is not None:
            self._pulling.cancel()
        if now:
            for task in self._live:
                task.cancel()

    def _signals(self) -> AbstractContextManager[None]:
        """For a block, end early, in order, by the signals that are not ignored here.

        The first one kills what runs; what had ended by then is finished. That may wait
        for a reader of ours: the second one does not.
        """
        batch = asyncio.current_task()
        assert batch is not None

        def caught(number: signal.Signals) -> None:
            again, self.signal = self.signal is not None, number
            if again or self._pulling is None:
                batch.cancel()
            else:
                self._stop(now=True)

        return handling({number: partial(caught, number) for number in SIGNALS})

    # -- one of them ----------------------------------------------------------------

    async def _job(self, engine: actors.Engine, job: Job) -> None:
        task = asyncio.current_task()
        assert task is not None
        outcome, spool = await self._attempts(engine, job)
        try:
            self._ran(task)
            self._ended(job, outcome, spool)
            self._turns.join(job.seq)
            await self._turns.mine(job.seq)
            await self._show.job(job, outcome, spool)
            # No waiting from here on: nothing comes between results and joblog.
            self._results.keep(job, outcome, spool)
            if self._joblog is not None:
                self._joblog.finish(job, outcome)
        finally:
            spool.close()

    def _ended(self, job: Job, outcome: Outcome, spool: Spool) -> None:
        last = b"" if outcome.ok else spool.last(LAST_BYTES)
        self._tally.ended(job, outcome, last)
        if outcome.ok and self._pace is not None:
            self._pace.note(outcome.wall_time)
            for began, clock in self._clocks.values():
                self._set(clock, began)
        tally, halt = self._tally, self._plan.halt
        if self._reached is None and halt.due(tally.failed, tally.done, tally.total):
            self._reached = outcome.code
            self._stop(now=halt.when == "now")

    async def _attempts(self, engine: actors.Engine, job: Job) -> tuple[Outcome, Spool]:
        """Run a job until it succeeds, or as often as it may fail."""
        attempt = 1
        while True:
            spool = self._results.spool(job)
            try:
                outcome = await self._attempt(engine, job, spool, attempt)
            except BaseException:
                spool.close()
                raise
            if outcome.ok or attempt == self._plan.attempts or self._stopped:
                return outcome, spool
            spool.close()
            attempt += 1

    async def _attempt(
        self, engine: actors.Engine, job: Job, spool: Spool, attempt: int
    ) -> Outcome:
        started = time.time()  # noqa: TID251 - a date, as the joblog has it
        options, late = self._options(job), False
        try:
            if self._pace is None:
                spec = actors.Spec(job.argv, **options)
                done = await engine.run(spec, into=partial(self._took, spool))
                status = done.status
            else:  # how long it may take can change while it runs
                async with await engine.spawn(job.argv, **options) as child:
                    status, late = await self._follow(child, job, spool)
        except actors.BrokerLost:
            raise
        except actors.EngineError as error:
            return Outcome(
                None,
                started,
                attempt,
                *_sizes(spool),
                error=error.code,
                failure=str(error),
                failure_code=exit_codes.of_failure(error),
            )
        return Outcome(status, started, attempt, *_sizes(spool), late=late)

    def _options(self, job: Job) -> dict[str, Any]:
        extra = {**(job.options.get("extra_env") or {}), "CRECHE_SEQ": str(job.seq)}
        defaults = {"timeout": self._plan.timeout, "queue": QUEUE}
        return {**defaults, **job.options, "extra_env": extra}

    async def _follow(
        self, child: actors.Child, job: Job, spool: Spool
    ) -> tuple[actors.ExitStatus, bool]:
        """Return how a child ended, and whether its time was over."""
        late = False
        if child.tty:
            with suppress(actors.EngineError):  # in raw mode there is no end of input
                await child.close_stdin()
        async with child.events() as events:
            try:
                async with asyncio.timeout(None) as clock:
                    began = asyncio.get_running_loop().time()
                    self._clocks[job.seq] = began, clock
                    self._set(clock, began)
                    await self._drain(events, spool)
            except TimeoutError:
                late = not child.ended
                await child.terminate()
                await self._drain(events, spool)
            finally:
                self._clocks.pop(job.seq, None)
        return await child.wait(), late

    def _set(self, clock: asyncio.Timeout, began: float) -> None:
        """Let a job end when it has taken the usual times what is allowed."""
        limit = None if self._pace is None else self._pace.limit
        if limit is not None and not clock.expired():
            clock.reschedule(began + limit)

    async def _drain(self, events: actors.EventStream, spool: Spool) -> None:
        """Take the output of a child until its end."""
        async for event in events:
            if isinstance(event, actors.Chunk):
                self._took(spool, event.stream, event.data)

    def _took(self, spool: Spool, stream: str, data: bytes) -> None:
        spool.write(stream, data)
        self._tally.written += len(data)


def _sizes(spool: Spool) -> tuple[int, int]:
    return spool.sizes["stdout"], spool.sizes["stderr"]


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    """Return the first of the failures that ended the whole."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
