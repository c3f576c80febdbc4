"""`creche kill`: the end of sessions, and the proof."""

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from actors import exit_codes
from actors.cli import words

if TYPE_CHECKING:
    from actors.console.operating import Killed


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

    That is at once, by SIGKILL, unless there is a --grace. It says so once that is
    proven, and ends with 0 if nothing of any is left, else with 1. Nor is it 0 if there
    is no such session, or none in the scope. With --json it is one array of objects: id
    (null if there is none of that name), given (the word for it), signalled and reaped
    (numbers of processes), survivors (objects of pid, started, uid, state), error and
    message (null, or why nothing was done).
    """
    from actors.console import operating  # noqa: PLC0415 - see the package's docstring

    ways = [bool(sessions), given["everything"], given["scope"] is not None]
    if sum(ways) != 1:
        raise click.UsageError("name the sessions in one way: ID..., --scope or --all")
    found = words.finish(operating.kill(words.broker(endpoint), sessions, **given))
    facts = [_facts(one) for one in found]
    if as_json:
        words.tell(json.dumps(facts))
    else:
        for fact in facts:
            line = _line(fact)
            words.say(line) if fact["error"] else words.tell(line)
    left = any(fact["error"] or fact["survivors"] for fact in facts)
    sys.exit(exit_codes.TROUBLE if left else 0)


def _facts(killed: "Killed") -> dict[str, Any]:
    from actors.console import objects  # noqa: PLC0415 - see the package's docstring
    from actors.events import KillReceipt  # noqa: PLC0415

    answer = killed.answer
    receipt = KillReceipt(0, 0, ()) if isinstance(answer, Exception) else answer
    return {
        "id": killed.id,
        "given": killed.word,
        "signalled": receipt.signalled,
        "reaped": receipt.reaped,
        "survivors": objects.survivors(receipt.survivors),
        **objects.failure(answer if isinstance(answer, Exception) else None),
    }


def _line(fact: dict[str, Any]) -> str:
    word = fact["given"]
    if fact["error"]:
        return f"{word}: {fact['message']}"
    if fact["survivors"]:
        left = ", ".join(f"{s['pid']} ({s['state']})" for s in fact["survivors"])
        return f"{word}: still alive: {left}"
    # SIGTERM alone is not among the signals that are counted.
    count = max(fact["signalled"], fact["reaped"])
    if not count:
        return f"{word}: nothing was left of it"
    return f"{word}: {count} process{'es' if count > 1 else ''} ended"
