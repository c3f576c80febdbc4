"""`creche stats`: what a session wrote, and what it uses."""

import json
from typing import TYPE_CHECKING, Any

import click

from actors.cli import words

if TYPE_CHECKING:
    from actors.facts import Stats


@click.command(cls=words.Verb)
@words.AS_JSON
@words.BROKER
@words.SESSION
def stats(session: str, endpoint: str | None, *, as_json: bool) -> None:
    """Tell what session ID has written, and what it uses.

    That is, what its processes use now. With --json it is one object: cpu_time in
    seconds, of all that ever ran; memory (resident bytes; what processes share is
    counted for each) and processes of the tree; stdout and stderr (null if it is
    merged, or a terminal's) with the bytes produced, retained, dropped.
    """
    from actors.console import operating  # noqa: PLC0415 - see the package's docstring

    found = words.finish(operating.stats(words.broker(endpoint), session))
    words.tell(json.dumps(_facts(found)) if as_json else _plain(found))


def _facts(found: "Stats") -> dict[str, Any]:
    streams = {"stdout": found.stdout, "stderr": found.stderr}
    return {
        "cpu_time": found.cpu_time,
        "memory": found.memory,
        "processes": found.processes,
        **{n: None if s is None else s._asdict() for n, s in streams.items()},
    }


def _plain(found: "Stats") -> str:
    facts = [
        ("cpu time", words.duration(found.cpu_time)),
        ("memory", words.amount(found.memory)),
        ("processes", found.processes),
    ]
    for name, stream in (("stdout", found.stdout), ("stderr", found.stderr)):
        if stream is not None:
            counts = (words.amount(n) for n in (stream.retained, stream.dropped))
            kept, dropped = counts
            facts += [(name, f"{stream.produced} bytes, {kept} kept, {dropped} not")]
    return "\n".join(f"{name:<11}{value}" for name, value in facts)
