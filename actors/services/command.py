"""A service's two commands: how they are run, and how one that failed is told."""

import errno
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from actors.child import Child
from actors.connection import Connection
from actors.events import ExitStatus
from actors.services.files import ServiceFiles, ServiceRecord
from actors.settings import OutputPolicy
from actors.spec import Spec
from broker import errors
from broker.outcomes import TimedOut

__all__ = [
    "GONE",
    "KEPT",
    "Outcome",
    "add",
    "command",
    "failed",
    "last_words",
    "merged",
    "stop",
]

KEPT: Final = 64 * 1024
"""Bytes that are kept of the output of either, the last ones."""
GONE: Final = (errors.SessionNotFound, errors.SessionOwned, errors.WorkerLost)
"""What calls raise when a command's session is gone, and the engine is not.

Its worker was lost; this program stood still for longer than its lease, so that the
broker has ended what it had; or somebody else took the session.
"""
SHORT: Final = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
"""What a system answers that would execute a program at another time."""


class Outcome(NamedTuple):
    """What became of a stop command.

    Attributes:
        failure: why it did not end well; None: it did.
        over: whether it ended, had its time, or can never be executed. Otherwise it is
            to be run by a later engine, for which the record stays.
    """

    failure: errors.EngineError | None
    over: bool = True


def command(
    argv: Iterable[Any], record: ServiceRecord, retention: OutputPolicy
) -> Spec:
    """Return a command of a service, as its record says it is run."""
    return Spec(
        list(argv),
        env=record.environment,
        cwd=record.directory,
        stdin=record.document.encode(),
        retention=retention,
        leftover="kill",
    )


async def stop(
    connection: Connection, files: ServiceFiles, record: ServiceRecord
) -> Outcome:
    """Run a stop command to its end, or for its time, and note that it is over.

    Its tree carries the last of the marks on record. It needs no room within the
    client's capacity, which the service itself may fill.

    Raises:
        BrokerLost: the engine is lost, or was closed; nothing is noted.
    """
    outcome = await _stop(connection, record)
    if outcome.over:
        with suppress(errors.SpawnFailed):  # a full disk: at worst it is run once more
            files.write(replace(record, stopped=True))
    return outcome


async def _stop(connection: Connection, record: ServiceRecord) -> Outcome:
    words = f"the stop command of the service {record.name!r} of {record.owner!r}"
    try:
        session = await connection.start(
            command(record.stop, record, OutputPolicy.tail(KEPT)),
            None,
            mark=record.marks[-1],
            limited=False,
        )
    except errors.BrokerLost:
        raise
    except errors.EngineError as refused:
        refused.add_note(f"while running {words}")
        return Outcome(refused, over=not _passing(refused))
    child = Child(connection, session, owned=False)
    failure: errors.EngineError | None
    try:
        failure = await _wait(child, words, connection.settings.service_stop)
        over = True
    except GONE as broken_off:
        broken_off.add_note(f"while running {words}")
        failure, over = broken_off, False
    try:
        await connection.release(session)
    except errors.BrokerLost:
        raise
    except errors.EngineError as survived:
        failure = survived if failure is None else merged([failure, survived])
    return Outcome(failure, over)


def _passing(refused: errors.EngineError) -> bool:
    """Return whether a command that was refused may well be run at another time."""
    if isinstance(refused, errors.SpawnFailed):
        ours = refused.step in ("fork", "pipe", "journal")
        return ours or refused.errno in SHORT
    # What is gone may have run, but not to its end.
    return isinstance(refused, (errors.CapacityExceeded, *GONE))


async def _wait(child: Child, words: str, time: float) -> errors.ServiceFailed | None:
    try:
        status = await child.wait(time)
    except TimedOut:
        reason, what = "timed-out", f"{words} took longer than {time:g} s"
    else:
        if status.ok:
            return None
        if status.code is None and status.signal is None:
            raise errors.WorkerLost
        reason, what = "exited", f"{words} failed"
    return failed(reason, what, *await last_words(child))


async def last_words(child: Child) -> tuple[ExitStatus | None, tuple[bytes, bytes]]:
    """Return how a command ended, and what is kept of its stdout and its stderr.

    Raises:
        SessionNotFound, SessionOwned, WorkerLost: its session is gone.
    """
    seen = await child.poll(wait=0)
    stdout, stderr = seen.stdout, seen.stderr
    while seen.more and len(stdout) + len(stderr) < KEPT:  # one answer has its bound
        seen = await child.poll(wait=0)
        stdout, stderr = stdout + seen.stdout, stderr + seen.stderr
    return seen.status, (stdout, stderr)


def failed(
    reason: str, what: str, status: ExitStatus | None, output: tuple[bytes, bytes]
) -> errors.ServiceFailed:
    """Return the failure of a command, with its status and the last of its output."""
    how = "" if status is None else _how(status)
    message = f"{what}{how}; {errors.last_output(*output)}"
    return errors.ServiceFailed(reason, message, status, *output)


def _how(status: ExitStatus) -> str:
    if status.signal is not None:
        return f": it died of signal {status.signal}"
    if status.code is None:
        return f": nobody knows how it ended ({status.cause})"
    return f": it exited with code {status.code}"


def merged(found: list[errors.EngineError]) -> errors.EngineError:
    """Return the first of some failures; it tells of the others."""
    for later in found[1:]:
        add(found[0], later)
    return found[0]


def add(first: BaseException, later: errors.EngineError) -> None:
    """Have a failure tell of one in the clean-up as well, if that is another."""
    if str(later) == str(first):
        return
    if isinstance(first, errors.ServiceFailed):
        first.message += f"; then the clean-up failed: {later}"
    else:
        first.add_note(f"then the clean-up failed: {later}")
