"""What programs are told, as JSON objects: one name for each fact, in every verb.

The names are those of `Snapshot`, `ExitStatus` and `Stats`; docs/cli.md has them in a
table. Inside the engine a time is a stamp of a clock that never jumps, which says
nothing to another program: here it is Unix time, in seconds, like every other date.
"""

import dataclasses
import json
import time
from typing import Any, Final

import actors

NAME: Final = "name"
"""The pair of a session's metadata by which people address it."""
CLOSE: Final = 1e-4
"""Seconds within which two clocks are read as one; it takes one microsecond."""


def text(facts: object) -> str:
    """Return facts as one line of JSON."""
    return json.dumps(facts)


def date(stamp: float | None, clock: int = time.CLOCK_MONOTONIC) -> float | None:
    """Return when a stamp of a clock was made, in Unix time; None for none."""
    if stamp is None:
        return None
    while True:  # a pause between the two clocks would be taken for their difference
        begun = time.clock_gettime(clock)
        now = time.time()  # noqa: TID251 - a date is what is asked for
        if time.clock_gettime(clock) - begun < CLOSE:
            return round(now - begun + stamp, 6)


def end(status: actors.ExitStatus) -> dict[str, Any]:
    """Return what is told of the end of a child."""
    facts = dataclasses.asdict(status)
    stamps = {name: date(facts[name]) for name in ("started", "execed", "ended")}
    return facts | stamps | {"leftovers": survivors(status.leftovers)}


def survivors(found: tuple[actors.Survivor, ...]) -> list[dict[str, Any]]:
    """Return what is told of processes that are left."""
    return [
        {**dataclasses.asdict(one), "started": date(one.started, time.CLOCK_BOOTTIME)}
        for one in found
    ]


def failure(error: actors.EngineError | None) -> dict[str, Any]:
    """Return what is told of an error: its code, and a sentence."""
    if error is None:
        return {"error": None, "message": None}
    return {"error": error.code, "message": str(error)}


def session(found: actors.Snapshot) -> dict[str, Any]:
    """Return what is told of a session."""
    return {
        "id": found.id,
        "name": found.metadata.get(NAME),
        "scope": found.scope,
        "state": found.state,
        "pid": found.pid,
        "argv": list(found.argv),
        "cwd": found.cwd,
        "tty": None if found.tty is None else [found.tty.rows, found.tty.cols],
        "started": date(found.started),
        "last_used": date(found.last_used),
        "wall_time": found.wall_time,
        **_ended(found.status),
        "dropped": found.dropped,
        "owner_alive": found.owner_alive,
        "metadata": dict(found.metadata),
    }


def event(happened: actors.Lifecycle) -> dict[str, Any]:
    """Return what is told of something that happened to a session."""
    return {
        "event": happened.kind,
        "id": happened.id or None,
        "scope": happened.scope,
        "time": date(happened.time),
        **_ended(happened.status),
        **failure(happened.error),
        "missed": happened.missed,
    }


def _ended(status: actors.ExitStatus | None) -> dict[str, Any]:
    """Return how a child ended, in short; nothing is known while it runs."""
    names = ("code", "signal", "cause")
    return {name: None if status is None else getattr(status, name) for name in names}
