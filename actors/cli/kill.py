"""`creche kill`: the end of sessions, and the proof."""

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from actors import exit_codes
from actors.cli import words

if TYPE_CHECKING:
    from actors.events import KillReceipt
    from broker.errors import EngineError


@click.command(cls=words.Verb)
@click.option(
    "--grace",
    type=words.SECONDS,
    help="Ask it first (SIGTERM), and kill what is left after this.",
)
@click.option(
    "--scope", allow_from_autoenv=False, help="All in the scopes of this name."
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    allow_from_autoenv=False,
    help="All there are.",
)
@words.AS_JSON
@words.BROKER
@click.argument("sessions", nargs=-1, metavar="ID...")
def kill(
    sessions: tuple[str, ...], endpoint: str | None, *, as_json: bool, **given: Any
) -> None:
    """End sessions with everything they started.

    It says so once that is proven, and ends with 0 if nothing of any is left, else
    with 1. With --json it is one array of objects: id (as given), signalled and reaped
    (numbers of processes), survivors (objects of pid, started, uid, state), error
    (null, or why nothing was done).
    """
    from actors.console import operating  # noqa: PLC0415 - see the package's docstring

    if not (sessions or given["everything"] or given["scope"] is not None):
        raise click.UsageError("name the sessions: ID..., --scope or --all")
    found = words.finish(operating.kill(words.broker(endpoint), sessions, **given))
    facts = [_facts(word, answer) for word, answer in found]
    if as_json:
        words.tell(json.dumps(facts))
    else:
        for fact in facts:
            words.tell(_line(fact))
    left = any(fact["error"] or fact["survivors"] for fact in facts)
    sys.exit(exit_codes.TROUBLE if left else 0)


def _facts(word: str, answer: "KillReceipt | EngineError") -> dict[str, Any]:
    import dataclasses  # noqa: PLC0415 - 4 ms that `--help` has no time for

    if isinstance(answer, Exception):
        counts = {"signalled": 0, "reaped": 0, "survivors": []}
        return {"id": word, **counts, "error": str(answer)}
    return {"id": word, **dataclasses.asdict(answer), "error": None}


def _line(fact: dict[str, Any]) -> str:
    if fact["error"]:
        return f"{fact['id']}: {fact['error']}"
    if fact["survivors"]:
        left = ", ".join(f"{s['pid']} ({s['state']})" for s in fact["survivors"])
        return f"{fact['id']}: still alive: {left}"
    if not fact["signalled"]:
        return f"{fact['id']}: nothing was left of it"
    count = fact["signalled"]
    return f"{fact['id']}: {count} process{'es' if count > 1 else ''} ended"
