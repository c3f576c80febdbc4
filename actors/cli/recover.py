"""`creche recover`: end what dead engines left."""

import json
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from actors import exit_codes
from actors.cli import words

if TYPE_CHECKING:
    from actors.recovery import Recovery
    from actors.services.leftover import Stopped
    from broker.aftermath import Finding

DONE: Final = {"killed", "stopped"}
"""Kinds of findings of which nothing is left."""


@click.command(cls=words.Verb)
@words.AS_JSON
def recover(*, as_json: bool) -> None:
    """End what dead engines left, and say what was done.

    It ends with 0 if nothing of it is left, else with 1.

    Every engine does that as it starts. Here it is told: which trees of processes were
    killed, which services of dead programs were stopped, and which records are kept for
    a later time, because somebody could not be ended, or nobody can say whose it is.

    With `--json`: one document. `trees` has `kind` (killed, kept, unknown), `id`,
    `pids`, `message`, `record`; `services` has `kind` (stopped, failed, kept, unknown),
    `name`, `owner`, `message`, `record`.
    """
    from actors import blocking  # noqa: PLC0415 - see the package's docstring

    with blocking.Engine() as engine:
        found = engine.recovered
    if as_json:
        rows = {
            "trees": [_facts(tree, session="id") for tree in found.trees],
            "services": [_facts(service) for service in found.services],
        }
        words.tell(json.dumps(rows))
    else:
        words.tell("\n".join(_lines(found)) or "nothing was left")
    kinds = {tree.kind for tree in found.trees} | {one.kind for one in found.services}
    sys.exit(exit_codes.TROUBLE if kinds - DONE else 0)


def _facts(found: "Finding | Stopped", **other: str) -> dict[str, Any]:
    """Return the fields of a finding by the names that they have in every verb."""
    names = {"reason": "message", **other}
    return {names.get(name, name): v for name, v in found._asdict().items()}


def _lines(found: "Recovery") -> list[str]:
    trees = [
        _line(tree.kind, f"session {tree.session}", _pids(tree.pids), tree.reason)
        for tree in found.trees
    ]
    services = [
        _line(one.kind, f"service {one.name} of {one.owner}", one.reason)
        for one in found.services
    ]
    return trees + services


def _pids(pids: tuple[int, ...]) -> str:
    return "pid " + " ".join(map(str, pids)) if pids else ""


def _line(kind: str, what: str, *more: str) -> str:
    return f"{kind:<9}{what}" + "".join(f": {word}" for word in more if word)
