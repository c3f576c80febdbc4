"""What an engine's start finds of dead engines and clients, and does about it.

Before an engine begins, the trees of dead engines are ended (`broker.aftermath`); once
it runs, it runs the stop commands of services whose clients are dead (`services`).
"""

import asyncio
import os
from dataclasses import dataclass, replace
from typing import NamedTuple

from actors.aside import aside
from actors.connection import Connection
from actors.services.command import LOST, stop
from actors.services.files import ServiceFiles, ServiceRecord
from broker import aftermath
from broker.aftermath import Finding
from broker.auth import RunDirectory
from broker.errors import InvalidRequest
from broker.places import JOURNAL, runtime_root

__all__ = ["Recovery", "Stopped", "end_left", "stop_left"]


class Stopped(NamedTuple):
    """What became of a service whose client had died.

    Attributes:
        kind: `stopped`: its stop command has ended well, `failed`: it has ended, or
            had to be ended, otherwise, `kept`: its record is left for a later engine,
            `unknown`: the same, as the record is torn or of another namespace of pids.
        name: of the service; empty if its record is torn.
        owner: for whom it was.
        reason: why, for all but `stopped`.
        record: the path of its directory.
    """

    kind: str
    name: str
    owner: str
    reason: str
    record: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was found as an engine started.

    Attributes:
        trees: one for each session of a dead engine of which something was left. Its
            `kind` is `killed`, `kept` (somebody of it could not be ended, or this
            program belongs to it) or `unknown`; `session`, `pids`, `reason` and
            `record`, a path, tell more.
        services: one for each service of a dead client. Its `kind` is `stopped`,
            `failed` (its stop command did), `kept` or `unknown`; `name`, `owner`,
            `reason` and `record`, a path, tell more.
    """

    trees: tuple[Finding, ...] = ()
    services: tuple[Stopped, ...] = ()


async def end_left() -> tuple[Finding, ...]:
    """End what engines left that are dead; return what became of it.

    A runtime directory that is refused holds nothing of ours.
    """
    root = os.path.join(runtime_root(os.environ, os.geteuid()), JOURNAL)
    try:
        left = RunDirectory.abandoned(root)
    except InvalidRequest:
        return ()
    if not left:
        return ()  # as for most engines: a thread would cost more than this look
    return tuple(await aside(aftermath.settle, left))


async def stop_left(connection: Connection) -> list[Stopped]:
    """Stop the services of dead clients, all at once; return what became of them.

    Each takes no longer than its stop command may.
    """
    left = ServiceFiles.left()
    results = await asyncio.gather(*(_stop_left(connection, files) for files in left))
    return [result for result in results if result is not None]


async def _stop_left(connection: Connection, files: ServiceFiles) -> Stopped | None:
    try:
        text = await aside(files.read)
        record = None if text is None else ServiceRecord.parse(text)
        if text is None or (record is not None and not record.now()):
            await aside(files.remove)  # nothing has run, or can run now
            return None
        if record is None:
            return Stopped("unknown", "", "", "the record is torn", files.path)
        return await _stop_known(connection, files, record)
    except OSError as refused:
        return Stopped("kept", "", "", str(refused), files.path)
    finally:
        files.leave()


async def _stop_known(
    connection: Connection, files: ServiceFiles, record: ServiceRecord
) -> Stopped | None:
    def told(kind: str, reason: str = "") -> Stopped:
        return Stopped(kind, record.name, record.owner, reason, files.path)

    if not record.here():
        return told("unknown", "its pids are of another namespace")
    marks = [mark.encode() for mark in record.marks]
    if not await aside(aftermath.end_marked, marks):
        return told("kept", "what it had started cannot be ended")
    outcome = None
    if not record.stopped:
        record = replace(record, marks=(*record.marks, os.urandom(16).hex()))
        try:
            files.write(record)
            failure = await stop(connection, files, record)
        except (*LOST, OSError) as lost:
            return told("kept", str(lost))
        outcome = told("failed", str(failure)) if failure else told("stopped")
    await aside(files.remove)
    return outcome
