"""A shell that stays: one command after another, each with its output and status.

::

    idle ──run──▶ busy ──reported──▶ idle
                   │ ╰─timeout, cancelled─▶ interrupted ──reported──▶ idle
                   │                              ╰──grace over: killed──▶ ended
                   ╰──the shell exits, is lost, or its scope closes──▶ ended

Its output is never dropped: between two commands, jobs in the background are held back
once the log is full, and what they wrote comes with the next command's output.
"""

import asyncio
import os
from contextlib import suppress
from typing import Any, Final, Self

from actors import checks
from actors.boundary import HALF, PREAMBLE, SCRIPT, Cut, script
from actors.child import Child, Data, as_bytes
from actors.events import Chunk, Completed, Exited, ExitStatus
from actors.settings import OutputPolicy, Settings
from broker import errors
from broker.outcomes import TimedOut

LOG: Final = OutputPolicy.block(1024 * 1024)
"""What is kept of a shell's output until a command takes it."""
OURS: Final = ("shell", "stdin", "stdout", "stderr", "tty", "retention")
"""Options of a child that a shell decides itself."""


class Shell:
    """A persistent shell; made by `Scope.shell`.

    Directory, variables, functions and jobs stay from one command to the next. Commands
    that are asked for at once queue up. An async context manager: leaving it ends the
    shell and everything it started; so does the end of its scope.
    """

    def __init__(self, child: Child, settings: Settings) -> None:
        self._child = child
        self._grace = settings.terminate_grace
        self._kill_timeout = settings.kill_timeout
        self._events = child.events()
        self._turn = asyncio.Lock()
        self._stopping: asyncio.Task[None] | None = None
        self._interrupted = False
        self._unsent = PREAMBLE
        self._rest: dict[str, bytes] = {}
        self._ended = False
        self._status: ExitStatus | None = None

    @classmethod
    async def opened(cls, child: Child, settings: Settings) -> Self:
        """Return the shell that a new child is, once it has taken its first command.

        Raises:
            ShellEnded, TimedOut: it does not behave as one; it has been ended.
        """
        shell = cls(child, settings)
        try:
            await shell.run(b"", timeout=settings.start_timeout)
        except BaseException:
            await asyncio.shield(shell.aclose())
            raise
        return shell

    @property
    def id(self) -> int:
        """The session's number."""
        return self._child.id

    @property
    def pid(self) -> int:
        """The process id of the shell."""
        return self._child.pid

    async def run(
        self, command: Data, *, timeout: float | None = None, limit: int | None = None
    ) -> Completed:
        """Run a command in the shell, and return its output and exit status.

        Its stdin is empty. Cancelling this interrupts the command as a timeout does;
        the next one waits for that.

        Args:
            command: any script: text as UTF-8, or bytes.
            timeout: seconds; then the command is interrupted (SIGINT). If it resists
                for `Settings.terminate_grace`, the shell is killed with it; what is not
                gone after `Settings.kill_timeout` is given up.
            limit: bytes of output to keep.

        Raises:
            InvalidRequest: an argument is not valid.
            TimedOut: with the output so far.
            OutputLimitExceeded: with what was kept; the command ran to its end.
            ShellEnded: the command ended the shell, or an earlier one had.
            BrokerLost, SessionNotFound: the engine or the scope was closed.
        """
        words = as_bytes("command", command)
        if b"\0" in words:
            raise errors.InvalidRequest("command", "holds a NUL byte")
        checks.optional(checks.some_seconds)("timeout", timeout)
        checks.optional(checks.whole(0))("limit", limit)
        shown = words.decode(errors="replace")
        await self._turn.acquire()
        word = os.urandom(HALF).hex()
        cut = Cut(word, limit, self._rest)
        started = asyncio.get_running_loop().time()
        job = asyncio.ensure_future(self._perform(words, word, cut))
        job.add_done_callback(self._release)  # the turn ends with the command
        try:
            with suppress(TimeoutError):
                async with self._child.deadline(timeout):
                    await asyncio.wait((job,))
        except asyncio.CancelledError:
            self._give_up(job)
            raise
        if not job.done():
            await asyncio.shield(self._give_up(job))
            raise TimedOut(
                shown, timeout or 0.0, cut.output("stdout"), cut.output("stderr")
            )
        await job
        return self._completed(shown, cut, limit, started)

    def _completed(
        self, shown: str, cut: Cut, limit: int | None, started: float
    ) -> Completed:
        stdout, stderr = cut.output("stdout"), cut.output("stderr")
        if not cut.done:
            raise errors.ShellEnded(self._status, "", stdout, stderr)
        if cut.exceeded:
            raise errors.OutputLimitExceeded(limit or 0, stdout, stderr)
        ended = asyncio.get_running_loop().time()
        status = ExitStatus(
            code=cut.code, started=started, ended=ended, wall_time=ended - started
        )
        return Completed((shown,), stdout, stderr, status)

    def _release(self, job: "asyncio.Task[None]") -> None:
        self._turn.release()
        if not job.cancelled():
            job.exception()  # whoever was cancelled does not ask for it

    async def _perform(self, command: bytes, word: str, cut: Cut) -> None:
        """Have one command run, until it has reported or the shell has ended."""
        if self._stopping is not None:
            await asyncio.wait((self._stopping,))  # its signal is not for this command
        if self._ended:
            raise errors.ShellEnded(self._status)
        data = self._unsent + script(command, word, interrupted=self._interrupted)
        self._unsent, self._interrupted = b"", False
        writing = asyncio.ensure_future(self._write(data))
        try:
            while not cut.done and not self._ended:
                await self._take(cut)
        finally:
            writing.cancel()
        self._rest = cut.rest

    async def _write(self, data: bytes) -> None:
        # Where it ended meanwhile, its events tell.
        with suppress(errors.StdinUnavailable, errors.WorkerLost):
            await self._child.write(data)

    async def _take(self, cut: Cut) -> None:
        event = await anext(self._events, None)
        if isinstance(event, Chunk):
            cut.feed(event.stream, event.data)
        elif isinstance(event, Exited):
            self._status = event.status
        elif event is None:
            self._ended = True
            cut.finish()

    def _give_up(self, job: "asyncio.Task[None]") -> "asyncio.Task[None]":
        self._stopping = asyncio.ensure_future(self._stop(job))
        return self._stopping

    async def _stop(self, job: "asyncio.Task[None]") -> None:
        """Interrupt a command; if it resists, end the shell, or give it up."""
        self._interrupted = True
        with suppress(errors.EngineError):  # it is over: the job tells why
            # It may be refused, as another user's, or its worker stand still.
            with suppress(TimeoutError, errors.EngineError):
                async with asyncio.timeout(self._grace):
                    await self._child.interrupt()
                    await asyncio.wait((job,))
            if not job.done():
                receipt = await self._child.kill(self._kill_timeout)
                if receipt.survivors:  # their end may never come
                    self._ended = True
                    job.cancel()
        await asyncio.wait((job,))

    async def aclose(self) -> None:
        """End the shell and everything it started; harmless to repeat.

        Raises:
            EngineError: its tree could not be proven gone.
        """
        await self._child.aclose()
        await self._events.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def shell_argv(argv: Any) -> list[Any]:
    """Return the command that has a shell take its commands from us.

    Raises:
        InvalidRequest: it is no sequence.
    """
    return [*checks.items("argv", argv), SCRIPT]


def shell_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the child that is the shell.

    Raises:
        InvalidRequest: one of them is the shell's own matter.
    """
    for name in OURS:
        if name in options:
            raise errors.InvalidRequest(name, "cannot be chosen for a shell")
    return {**options, "stdin": "pipe", "retention": LOG}
