"""What an engine's start finds of dead engines and clients, and does about it.

Before an engine begins, the trees of dead engines are ended (`broker.aftermath`); once
it runs, it runs the stop commands of services whose clients are dead (`leftover`). Most
starts find nothing: what is needed for more than that look is imported then.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors.aside import aside
from actors.connection import Connection
from broker.auth import RunDirectory
from broker.errors import InvalidRequest
from broker.places import JOURNAL, SERVICES, place

if TYPE_CHECKING:
    from actors.services.leftover import Stopped
    from broker.aftermath import Finding

__all__ = ["Recovery", "end_left", "stop_left"]


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

    trees: "tuple[Finding, ...]" = ()
    services: "tuple[Stopped, ...]" = ()


async def end_left() -> "tuple[Finding, ...]":
    """End what engines left that are dead; return what became of it."""
    left = _left(JOURNAL)
    if not left:
        return ()  # a thread would cost more than this look
    from broker import aftermath  # noqa: PLC0415 - see above

    return tuple(await aside(aftermath.settle, left))


async def stop_left(connection: Connection) -> "list[Stopped]":
    """Stop the services of dead clients, all at once; return what became of them.

    Each takes no longer than its stop command may.
    """
    left = _left(SERVICES)
    if not left:
        return []
    from actors.services import leftover  # noqa: PLC0415 - see above

    return await leftover.stop(connection, left)


def _left(name: bytes) -> list[RunDirectory]:
    """Lock and return what dead engines, or clients, left in their place.

    A runtime directory that is refused holds nothing of ours.
    """
    try:
        return RunDirectory.abandoned(place(name, os.environ, os.geteuid()))
    except InvalidRequest:
        return []
