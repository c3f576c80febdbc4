"""The agent tools of one client: the sessions that it may name, and its calls.

A call observes a session: it returns what was written since the last observation, when
the command has ended or the time is over. Nothing here ever ends a command but a kill,
the end of the scope, or the 65th session.

=======================  ==========================================================
this                     does that
=======================  ==========================================================
a call is cancelled      the observation ends; what it would have told, the next does
another call comes       the earlier observation of that session ends with what there
                         is, so that nobody waits minutes to get a word in
the end was told         the session is closed, and its number means nothing any more
a 65th session           the least recently used one goes, an ended one first, but
                         none of the 8 used last
=======================  ==========================================================
"""

import asyncio
import os
import pwd
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

import actors
from actors.agents import tools

KEPT: Final = 1024 * 1024
"""Bytes that are kept of a session's output."""
SETTINGS: Final = actors.Settings(retention=actors.OutputPolicy.head_tail(KEPT))
"""Of the engine: an agent reads the beginning and the end of what is too long."""
LAST_WORDS: Final = 1.0
"""Seconds that a kill waits for the rest of the output of what it ended."""

Document = dict[str, Any]


class Answer(NamedTuple):
    """What a call gives: its result, and what else its caller should know."""

    result: Document
    notes: tuple[str, ...] = ()


class _Untold(NamedTuple):
    text: str
    dropped_bytes: int


class Session:
    """A session that a client may name.

    Attributes:
        child: The command.
        cmd: The command line as it was given.
        told: What told its end, once something has. Its call may have been cancelled
            then, and the child closed: the next call tells it, and asks no child.
        row: How it is listed from then on.
    """

    def __init__(self, child: actors.Child, cmd: str) -> None:
        self.child = child
        self.cmd = cmd
        self.told: actors.PollResult | None = None
        self.row: Document | None = None
        self._turn = asyncio.Lock()
        self._yielding = asyncio.Event()
        self._untold = _Untold("", 0)

    async def poll(self, data: str, wait: float) -> actors.PollResult:
        """Write, and return what there is at the command's end or after `wait` seconds.

        An earlier poll ends at once. After the end was told there is nothing new.
        """
        async with self._my_turn() as yielding:
            seen = self.told or await self._look(data, wait, yielding)
            seen = replace(seen, **self._untold._asdict())
            self._untold = _Untold("", 0)
            if seen.done:
                self.told = seen
            return seen

    async def _look(
        self, data: str, wait: float, yielding: asyncio.Event
    ) -> actors.PollResult:
        seen = await self.child.poll(
            data, wait=wait, mode="completion", yield_on=yielding
        )
        self._keep(seen)
        while seen.status is not None and seen.more:  # one answer has its bound
            seen = await self.child.poll(wait=0)
            self._keep(seen)
        return seen

    def untell(self, seen: actors.PollResult) -> None:
        """Have the next poll return this, which its caller was not there to tell."""
        self._untold = _Untold(seen.text, seen.dropped_bytes)

    def _keep(self, seen: actors.PollResult) -> None:
        """Keep what is not told yet: whoever asked may be cancelled before it is."""
        text, dropped = self._untold
        self._untold = _Untold(text + seen.text, dropped + seen.dropped_bytes)

    @asynccontextmanager
    async def _my_turn(self) -> AsyncIterator[asyncio.Event]:
        self._yielding.set()
        self._yielding = mine = asyncio.Event()
        async with self._turn:
            yield mine

    async def type(self, chars: str, wait: float) -> str:
        """Do what keys mean on a pipe; return what is left to be written.

        Raises:
            StdinUnavailable: the command does not read what is in front of a key.
        """
        if self.child.tty or self.told is not None:
            return chars  # the terminal knows what they mean, or nobody is to
        rest = ""
        for piece in tools.keys(chars):
            if piece == tools.INTERRUPT:
                await self._write(rest, wait)
                await self.child.interrupt()
            elif piece == tools.END_OF_INPUT:
                await self._write(rest, wait)
                await self.child.close_stdin()
            rest = "" if piece in tools.CONTROLS else piece
        return rest

    async def _write(self, text: str, wait: float) -> None:
        if not text:
            return
        try:
            async with asyncio.timeout(wait):
                await self.child.write(text)
        except TimeoutError:
            why = "the command does not read: not all that comes before the key went in"
            raise actors.StdinUnavailable(f"chars: {why}") from None


class Toolbox:
    """The tools of one client.

    Args:
        scope: holds its sessions; with a capacity of `tools.SESSIONS`.
    """

    def __init__(self, scope: actors.Scope) -> None:
        self._scope = scope
        self._sessions: dict[int, Session] = {}
        self._tools: Mapping[str, Callable[..., Coroutine[Any, Any, Answer]]] = {
            "exec_command": self.exec_command,
            "write_stdin": self.write_stdin,
            "list_sessions": self.list_sessions,
            "kill_session": self.kill_session,
            "interrupt_session": self.interrupt_session,
            "resize_session": self.resize_session,
        }

    async def call(self, name: str, arguments: Mapping[str, object] | None) -> Answer:
        """Do what a client asks for.

        Raises:
            EngineError: it cannot be done; `tools.sentence` says why.
        """
        if name not in tools.TOOLS:
            known = ", ".join(tools.TOOLS)
            raise actors.InvalidRequest("name", f"there is no tool {name!r}: {known}")
        values = tools.TOOLS[name].read(arguments)
        try:
            return await self._tools[name](**values)
        except actors.EngineError as error:
            number = values.get("session_id")
            if isinstance(error, actors.SessionNotFound) and number is not None:
                self._let_go(number)
            raise actors.EngineError(tools.sentence(error, number)) from error

    # -- the tools --------------------------------------------------------------

    async def exec_command(
        self,
        *,
        cmd: str,
        workdir: str | None,
        shell: str | None,
        login: bool,
        tty: bool,
        yield_time_ms: int,
        max_output_tokens: int,
    ) -> Answer:
        """Start a command, and observe it."""
        started = _now()
        argv = tools.command(cmd, shell or users_shell(), login=login)
        # The command runs on even if nobody waits for this call any more.
        starting = asyncio.ensure_future(self._start(argv, cmd, workdir, tty=tty))
        starting.add_done_callback(_seen)
        session = await asyncio.shield(starting)
        wait = tools.patience(yield_time_ms, looks=False)
        answer = await self._observe(session, "", wait, max_output_tokens, started)
        note = tools.crowding(sum(not s.child.ended for s in self._sessions.values()))
        return answer if note is None else answer._replace(notes=(*answer.notes, note))

    async def write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_ms: int,
        max_output_tokens: int,
    ) -> Answer:
        """Write to a command, and observe it."""
        started = _now()
        session = self._find(session_id)
        wait = tools.patience(yield_time_ms, looks=not chars)
        rest = await session.type(chars, wait)
        return await self._observe(session, rest, wait, max_output_tokens, started)

    async def list_sessions(self) -> Answer:
        """Tell what there is to be named."""
        rows = await asyncio.gather(*map(self._row, list(self._sessions.items())))
        return Answer({"sessions": [row for row in rows if row is not None]})

    async def kill_session(self, *, session_id: int, max_output_tokens: int) -> Answer:
        """End a command and all that it started."""
        started = _now()
        session = self._find(session_id)
        left: list[Document] = []
        if session.told is None:
            receipt = await session.child.kill()
            left = [{"pid": s.pid, "state": s.state} for s in receipt.survivors]
        answer = await self._observe(
            session, "", LAST_WORDS, max_output_tokens, started
        )
        return answer._replace(result={**answer.result, "survivors": left})

    async def interrupt_session(self, *, session_id: int) -> Answer:
        """Interrupt what runs in the foreground."""
        session = self._find(session_id)
        sent = session.told is None and await session.child.interrupt()
        return Answer({"session_id": session_id, "interrupted": sent})

    async def resize_session(self, *, session_id: int, rows: int, cols: int) -> Answer:
        """Set the size of a terminal."""
        session = self._find(session_id)
        if session.told is None:
            await session.child.resize(rows, cols)
        return Answer({"session_id": session_id, "rows": rows, "cols": cols})

    # -- what they share --------------------------------------------------------

    def _find(self, session_id: int) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise actors.SessionNotFound
        return session

    def _let_go(self, number: int) -> None:
        """Forget what the broker has let go of, unless its end is still to be told."""
        session = self._sessions.get(number)
        if session is not None and session.told is None:
            del self._sessions[number]

    async def _start(
        self, argv: list[str], cmd: str, workdir: str | None, *, tty: bool
    ) -> Session:
        child = await self._scope.spawn(
            argv,
            cwd=workdir,
            extra_env=actors.AGENT_ENV,
            stdin="pipe",
            tty=tty,
            on_full="evict",
        )
        session = self._sessions[child.id] = Session(child, cmd)
        return session

    async def _observe(
        self, session: Session, data: str, wait: float, tokens: int, started: float
    ) -> Answer:
        number = session.child.id
        seen = await session.poll(data, wait)
        notes: tuple[str, ...] = ()
        try:
            if seen.done:
                with suppress(actors.EngineError):  # for a list, if nobody is told
                    session.row = await self._row((number, session))
                notes = await self._close(session)
        except asyncio.CancelledError:  # the next call tells it
            session.untell(seen)
            self._sessions[number] = session
            raise
        if seen.done and seen.exit_code is None:
            raise actors.WorkerLost(
                "the command was ended, and what it wrote is gone: its worker died"
            )
        result = tools.observation(seen, _now() - started, number, tokens)
        return Answer(result, notes)

    async def _close(self, session: Session) -> tuple[str, ...]:
        """Forget a session whose end is told; return what there is to say of that."""
        if self._sessions.pop(session.child.id, None) is None:
            return ()
        try:
            await session.child.aclose()
        except actors.EngineError as error:
            return (str(error),)
        return ()

    async def _row(self, item: tuple[int, Session]) -> Document | None:
        """Return what is told of a session; None of one that was closed meanwhile."""
        number, session = item
        if session.row is not None:
            return session.row
        try:
            now = await session.child.snapshot()
        except actors.SessionNotFound:
            self._let_go(number)
            return None
        except actors.WorkerLost:  # whoever asks for it next is told
            return None
        return {
            "session_id": number,
            "cmd": session.cmd,
            "workdir": tools.directory(now.cwd),
            "tty": now.tty is not None,
            "pid": session.child.pid,
            "state": "running" if now.status is None else "ended",
            "wall_time_seconds": round(now.wall_time, 4),
            **tools.exit_code(now.status),
        }


def users_shell() -> str:
    """Return the shell of this user: as SHELL says, or the user's record, or one."""
    given = [os.environ.get("SHELL", "")]
    with suppress(KeyError):  # a user without a record, as in containers
        given.append(pwd.getpwuid(os.getuid()).pw_shell)
    for path in given:
        if tools.is_shell(path) and os.access(path, os.X_OK):
            return path
    return shutil.which("bash") or "/bin/sh"


def _now() -> float:
    return asyncio.get_running_loop().time()


def _seen(task: "asyncio.Task[Session]") -> None:
    """Look at how it ended, which the call may not be there to hear any more."""
    if not task.cancelled():
        task.exception()
