"""`creche doctor`: what this machine offers."""

import dataclasses
import json

import click

from actors import __version__
from actors.cli import words


@click.command()
@words.AS_JSON
def doctor(*, as_json: bool) -> None:
    """Tell what this machine offers.

    And, below the table, what is worse here than it could be. Sizes are in bytes.
    """
    from broker import host  # noqa: PLC0415 - see the package's docstring

    found = host.report()
    room = found.room
    facts = {"creche": __version__, **dataclasses.asdict(found)}
    facts |= {"sessions": room.sessions, "sessions_end": room.resource}
    if as_json:
        words.tell(json.dumps({**facts, "degraded": found.degraded}))
        return
    lines = [f"{name:<18}{_plain(value)}" for name, value in facts.items()]
    lines += [f"\n- {sentence}" for sentence in found.degraded]
    words.tell("\n".join(lines))


def _plain(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "no limit, or unknown" if value is None else value
