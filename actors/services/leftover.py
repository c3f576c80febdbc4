"""Services whose client is dead: their stop commands are run by whoever starts next."""

import asyncio
import os
from dataclasses import replace
from typing import NamedTuple

from actors.aside import aside
from actors.connection import Connection
from actors.services import command
from actors.services.files import ServiceFiles, ServiceRecord
from broker import aftermath, errors
from broker.auth import RunDirectory

__all__ = ["Stopped", "stop"]


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


async def stop(connection: Connection, left: list[RunDirectory]) -> list[Stopped]:
    """Stop the services in these locked directories, all at once; tell of each."""
    found = map(ServiceFiles, left)
    results = await asyncio.gather(*(_stop_left(connection, files) for files in found))
    return [result for result in results if result is not None]


async def _stop_left(connection: Connection, files: ServiceFiles) -> Stopped | None:
    name = owner = ""
    try:
        text = await aside(files.read)
        record = None if text is None else ServiceRecord.parse(text)
        if text is not None and record is None:
            return Stopped("unknown", "", "", "the record is torn", files.path)
        if record is not None:
            name, owner = record.name, record.owner
        if record is None or not record.now():
            await aside(files.remove)  # nothing has run, or can run now
            return None
        return await _stop_known(connection, files, record)
    except errors.EngineError as refused:
        return Stopped("kept", name, owner, str(refused), files.path)
    finally:
        files.leave()


async def _stop_known(
    connection: Connection, files: ServiceFiles, record: ServiceRecord
) -> Stopped | None:
    """Stop a service of which this life of the machine has a record.

    Raises:
        EngineError: the record cannot be written, or the engine is lost.
    """

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
        if record.directory.startswith("/proc/"):
            # The client's had been removed, and was reached by way of that alone.
            record = replace(record, directory="/")
        files.write(record)
        failure, over = await command.stop(connection, files, record)
        if not over:
            return told("kept", str(failure))
        outcome = told("failed", str(failure)) if failure else told("stopped")
    try:
        await aside(files.remove)
    except errors.EngineError as left:
        end = outcome.reason if outcome and outcome.reason else "it has stopped"
        return told("kept", f"{end}; {left}")
    return outcome
