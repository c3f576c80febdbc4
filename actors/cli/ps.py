"""`creche ps`: the sessions of a broker."""

import json
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from actors.cli import words

if TYPE_CHECKING:
    from actors.events import Lifecycle, Snapshot

HEADS = ("ID", "NAME", "STATE", "PID", "TIME", "SCOPE", "COMMAND")


@click.command(cls=words.Verb)
@click.option("-a", "--all", "ended", is_flag=True, help="Those too that have ended.")
@click.option("--scope", help="Only those of the scopes of this name.")
@click.option("--watch", is_flag=True, help="Go on with a line for all that happens.")
@words.AS_JSON
@words.BROKER
def ps(endpoint: str | None, scope: str | None, **given: bool) -> None:
    """List the sessions of a running broker.

    With --json it is one array of objects: id, name, scope, state (starting, running,
    exited, closed), pid, argv, cwd, tty ([rows, cols] or null), started and last_used
    (Unix time), wall_time in seconds, code, signal, cause (null while it runs), dropped
    (bytes of output no longer kept), owner_alive, metadata. With --watch as well, each
    is a line, and so is what happens: event, id, scope, time, code, signal, cause,
    error, message, missed (events that came too fast, or while a broker was replaced:
    the sessions there are come once more).
    """
    from actors.console import objects, operating  # noqa: PLC0415 - see the package

    broker = words.broker(endpoint)
    if given["watch"]:
        words.finish(_watch(broker, scope, as_json=given["as_json"]))
        return
    found = words.finish(operating.listed(broker, scope, ended=given["ended"]))
    if given["as_json"]:
        words.tell(json.dumps([objects.session(one) for one in found]))
    else:
        words.tell(words.fitted(words.table(HEADS, map(_row, found))))


async def _watch(broker: str, scope: str | None, *, as_json: bool) -> None:
    from actors.console import operating  # noqa: PLC0415

    line = _as_json if as_json else _as_line
    async with aclosing(operating.happening(broker, scope)) as happening:
        async for what in happening:
            words.tell(line(what))


def _as_json(what: "Snapshot | Lifecycle") -> str:
    from actors.console import objects  # noqa: PLC0415
    from actors.events import Snapshot  # noqa: PLC0415

    if isinstance(what, Snapshot):
        return json.dumps(objects.session(what))
    return json.dumps(objects.event(what))


def _as_line(what: "Snapshot | Lifecycle") -> str:
    from actors.events import Snapshot  # noqa: PLC0415

    if isinstance(what, Snapshot):
        cells = (words.plain(str(cell)) for cell in _row(what))
        return words.fitted("  ".join(cells))
    why = what.error or (words.end(what.status) if what.status else "")
    line = f"{what.id or '-'}  {what.kind}  {why}  {what.scope}"
    return words.plain(line.rstrip())


def _row(found: "Snapshot") -> tuple[object, ...]:
    state = found.state if found.status is None else words.end(found.status)
    return (
        found.id,
        found.metadata.get("name", "-"),
        state,
        found.pid or "-",
        words.duration(found.wall_time),
        found.scope or "-",
        words.command(found.argv),
    )
