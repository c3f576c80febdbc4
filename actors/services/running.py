"""One service: its start, its users and calls, and its end.

The rules are the table of `life`; this module carries them out. Each service is one
task, which starts the command, waits for its first line, watches it, and ends it; users
come and go beside it. The task is nobody's but the engine's: whoever waits may be
cancelled, the stop command runs all the same.

The record (`files`) is written before the start command can run. A client that is
killed cannot run a stop command: the start command's tree ends with it like every
child, and the record is left, with a free lock. The next engine that starts in this
runtime directory takes the lock, makes sure that nothing is left of the start command
and of an earlier stop command, runs the stop command, notes its end, and removes all.
"""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from actors.aside import aside
from actors.checks import Native
from actors.child import Child
from actors.connection import Connection
from actors.events import Chunk, Exited, ExitStatus
from actors.services.command import (
    GONE,
    KEPT,
    add,
    command,
    failed,
    last_words,
    merged,
    stop,
)
from actors.services.files import OUTPUT, TEMPORARY, ServiceFiles, ServiceRecord
from actors.services.life import Happening, ServiceLife, State
from actors.services.spec import ServiceSpec
from actors.settings import OutputPolicy
from actors.spec import MARK
from broker import errors, journal

if TYPE_CHECKING:
    from actors.record import Record

__all__ = ["Running", "taken_back"]


class Running:
    """One service: its task, its users and the calls on its behalf."""

    def __init__(
        self,
        connection: Connection,
        spec: ServiceSpec,
        on_end: Callable[["Running"], object],
    ) -> None:
        self.spec = spec
        self.users = 0
        self.environment: dict[str, str] = {}
        self._connection = connection
        self._on_end = on_end
        self._life = ServiceLife()
        self._calls: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._unused = asyncio.Event()
        self._why = "cancelled"
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._session: Record | None = None
        self._tail = _Tail()
        self._status: ExitStatus | None = None
        self._said = b"", b""
        self._task = asyncio.ensure_future(self._live())
        self._task.add_done_callback(self._settle)

    # -- users and calls --------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether a new user has to wait for its end, and start another one."""
        return self._task.done() or self._life.over or self._unused.is_set()

    @property
    def done(self) -> bool:
        """Whether it has ended, however."""
        return self._task.done()

    @property
    def used(self) -> bool:
        """Whether somebody has it, whom its end was not told."""
        ready = self._ready.done() and self._ready.exception() is None
        return ready and self.users > 0

    @property
    def pid(self) -> int:
        """The process id of the start command."""
        assert self._session is not None  # a user has it, so it was started
        return self._session.pid

    async def ready(self) -> None:
        """Return once it is ready.

        Raises:
            ServiceFailed: it does not get ready, or has ended since; cleaned up.
            EngineError: the start command cannot be executed.
        """
        await asyncio.shield(self._ready)
        if self._life.state is State.FALLEN:
            raise self._fenced()

    async def ended(self) -> None:
        """Return once it has ended.

        Raises:
            EngineError: see `Service.aclose`.
        """
        await asyncio.shield(self._task)

    async def over_with(self) -> None:
        """Wait until it has ended, however."""
        await asyncio.wait((self._task,))

    def leave(self, why: str = "cancelled") -> None:
        """Take one user away; with the last it is stopped.

        `why` is what those are told who wait for a start that is given up.
        """
        self.users -= 1
        if self.users == 0:
            self.give_up(why)

    def give_up(self, why: str) -> None:
        """Have it stopped, whoever uses it."""
        if not self._unused.is_set():
            self._why = why
            self._unused.set()

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Count a call while its block runs.

        Raises:
            ServiceFailed: there can be none any more, or it was broken off.
        """
        if self._life.state is not State.READY or self._unused.is_set():
            raise self._fenced()
        limit = asyncio.timeout(None)
        self._calls.add(limit)
        self._idle.clear()
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._fenced() from None
        finally:
            self._calls.discard(limit)
            if not self._calls:
                self._idle.set()

    def break_off(self) -> None:
        """End the calls that run, and their commands."""
        now = asyncio.get_running_loop().time()
        for limit in self._calls:
            if not limit.expired():
                limit.reschedule(now)

    def _fenced(self) -> errors.ServiceFailed:
        if self._life.state is State.FALLEN:
            what = self._words("has ended by itself")
            return failed("exited", what, self._status, self._said)
        return errors.ServiceFailed("dropped", self._words("is being stopped"))

    def _words(self, what: str) -> str:
        return f"the service {self.spec.name!r} of {self.spec.owner!r} {what}"

    # -- its life ---------------------------------------------------------------

    def _settle(self, task: "asyncio.Task[None]") -> None:
        """Tell those who wait for the start what became of it, if nobody has."""
        error = None if task.cancelled() else task.exception()
        if not self._ready.done():
            self._ready.set_exception(error or self._fenced())
            self._ready.exception()  # maybe nobody waits any more
        self._on_end(self)

    async def _live(self) -> None:
        files = ServiceFiles.new()
        try:
            await self._go_through(files)
        except errors.BrokerLost as lost:
            self._life.on(Happening.ENGINE_LOST)
            why = self._words("is left to the next engine, which stops it")
            raise errors.BrokerLost(why) from lost
        finally:
            files.leave()

    async def _go_through(self, files: ServiceFiles) -> None:
        try:
            record = await self._put_on_record(files)
            failure = await self._start(record)
        except errors.BrokerLost:
            raise
        except Exception as refused:  # not if cancelled: it may have run by now
            self._life.on(Happening.NOT_EXECUTED)
            for later in await _removed(files):
                add(refused, later)
            raise
        child = self._child()
        if child is not None:
            failure = await self._become_ready(child)
        if child is None or failure is not None:
            self._life.on(Happening.FAILED)
        else:
            await self._serve(child)
        await self._end(files, record, failure)

    async def _put_on_record(self, files: ServiceFiles) -> ServiceRecord:
        """Make its files, and write what has to be known before anything runs."""
        await aside(files.make)
        ambient, mark = self._connection.ambient(), os.urandom(16).hex()
        env = {_text(k): _text(v) for k, v in ambient.env.items() if k}
        self.environment = {**env, _text(MARK): mark}
        document = self.spec.document(files.own(OUTPUT), files.own(TEMPORARY))
        boot, space = journal.here()
        record = ServiceRecord(
            name=self.spec.name,
            owner=self.spec.owner,
            stop=tuple(map(_text, self.spec.stop)),
            environment=self.environment,
            directory=_text(ambient.cwd),
            document=document.decode(),
            boot=boot.decode(),
            namespace=space,
            marks=(mark, os.urandom(16).hex()),
        )
        files.write(record)
        return record

    async def _start(self, record: ServiceRecord) -> errors.ServiceFailed | None:
        """Start the command; return why there is no session, although it may have run.

        Raises:
            EngineError: it has not run.
        """
        spec = command(self.spec.start, record, OutputPolicy.block(KEPT))
        mark = record.marks[0]
        try:
            self._session = await self._connection.start(spec, None, mark=mark)
        except GONE as lost:
            return errors.ServiceFailed("exited", self._words(f"was lost: {lost}"))
        return None

    def _child(self) -> Child | None:
        if self._session is None:
            return None
        return Child(self._connection, self._session, owned=False)

    async def _become_ready(self, child: Child) -> errors.ServiceFailed | None:
        """Wait for the first line; return why it is not ready."""
        waiting = asyncio.ensure_future(self._first_line(child))
        unused = asyncio.ensure_future(self._unused.wait())
        try:
            await asyncio.wait((waiting, unused), return_when=asyncio.FIRST_COMPLETED)
            if unused.done():
                what = self._words("was given up before it was ready")
                return errors.ServiceFailed(self._why, what)
            await waiting
        except TimeoutError:
            time = self._connection.settings.service_start
            what = self._words(f"was not ready within {time:g} s")
            return failed("timed-out", what, None, self._tail.output())
        except errors.OutputEnded as ended:
            what = self._words("ended before it was ready")
            return failed("exited", what, ended.status, self._tail.output())
        except GONE as lost:
            what = self._words(f"was lost before it was ready ({lost})")
            return failed("exited", what, None, self._tail.output())
        finally:
            await taken_back(waiting, unused)
        self._life.on(Happening.LINE)
        self._ready.set_result(None)
        self._tail = _Tail()  # which nobody needs any more
        return None

    async def _first_line(self, child: Child) -> None:
        """Return once it came, and the leader lives.

        Its reader is lossless, so that no flood behind the line can push it out of the
        log. Once the reader is gone, whatever comes is drained.

        Raises:
            TimeoutError: it did not come in time.
            OutputEnded: the leader ended.
            BrokerLost, SessionNotFound, SessionOwned, WorkerLost: see `Child.events`
                and `Child.snapshot`.
        """
        stream = child.events()
        try:
            async with asyncio.timeout(self._connection.settings.service_start):
                async for event in stream:
                    if isinstance(event, Exited):
                        raise errors.OutputEnded(event.status)
                    if isinstance(event, Chunk):
                        self._tail.add(event)
                        line = event.stream == "stdout" and b"\n" in event.data
                        if line and (await child.snapshot()).state == "running":
                            return
        finally:
            await stream.aclose()
        raise errors.SessionNotFound

    async def _serve(self, child: Child) -> None:
        """Watch the leader until nobody uses the service and no call runs."""
        ended = asyncio.ensure_future(child.wait())
        unused = asyncio.ensure_future(self._unused.wait())
        try:
            await asyncio.wait((ended, unused), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                with suppress(*GONE):  # nothing more will be heard of it: it has ended
                    self._status = ended.result()
                self._life.on(Happening.LEADER_ENDED)
                # Its broker may have ended the tree already; that it is gone is proven
                # by the release, after the stop command.
                with suppress(*GONE):
                    await child.kill()
                    _, self._said = await last_words(child)
                await unused
        finally:
            await taken_back(ended, unused)
        self._life.on(Happening.UNUSED)
        await self._idle.wait()
        self._life.on(Happening.IDLE)

    async def _end(
        self,
        files: ServiceFiles,
        record: ServiceRecord,
        failure: errors.ServiceFailed | None,
    ) -> None:
        """Run the stop command, then end the start command's tree.

        A stop command that cannot be run now is left to the next engine.

        Raises:
            EngineError: the first failure; it tells of a later one as well.
        """
        found: list[errors.EngineError] = [failure] if failure else []
        outcome = await stop(self._connection, files, record)
        found += [outcome.failure] if outcome.failure else []
        self._life.on(Happening.STOPPED if outcome.over else Happening.POSTPONED)
        try:
            if self._session is not None:
                await self._connection.release(self._session)
        except errors.BrokerLost:
            raise
        except errors.EngineError as survived:  # the record stays: it is tried again
            raise merged([*found, survived]) from None
        self._life.on(Happening.GONE)
        if outcome.over:
            found += await _removed(files)
        if found:
            raise merged(found)


async def _removed(files: ServiceFiles) -> list[errors.EngineError]:
    """Remove the files of a service that is over; return what failed of that."""
    try:
        await aside(files.remove)
    except errors.EngineError as failure:
        return [failure]
    return []


class _Tail:
    """The last of what a start command said before it was ready."""

    def __init__(self) -> None:
        self._pieces: deque[Chunk] = deque()
        self._size = 0

    def add(self, piece: Chunk) -> None:
        self._pieces.append(piece)
        self._size += len(piece.data)
        while self._size - len(self._pieces[0].data) >= KEPT:
            self._size -= len(self._pieces.popleft().data)

    def output(self) -> tuple[bytes, bytes]:
        """Return the last of stdout and of stderr, `KEPT` bytes in sum at most."""
        kept = {"stdout": b"", "stderr": b""}
        over = max(0, self._size - KEPT)
        for piece in self._pieces:
            kept[piece.stream] += piece.data[over:]
            over = 0
        return kept["stdout"], kept["stderr"]


def _text(word: Native) -> str:
    """Return the text of which a `Spec` makes these bytes, whatever the locale."""
    plain = word if isinstance(word, str | bytes) else word.__fspath__()
    return plain if isinstance(plain, str) else plain.decode("utf-8", "surrogateescape")


async def taken_back(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel what is not awaited any more, and wait for that."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
