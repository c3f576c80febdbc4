"""`creche wait`: the end of a session."""

import json
import sys

import click

from actors import exit_codes
from actors.cli import words


@click.command(cls=words.ChildVerb)
@click.option("--timeout", type=words.SECONDS, help="End with 124 after this.")
@words.as_json(
    "Report its end on stdout: exit_code, code, signal, cause, usage, started, "
    "execed and ended (Unix time), wall_time in seconds."
)
@words.BROKER
@words.SESSION
def wait(
    session: str, endpoint: str | None, *, timeout: float | None, as_json: bool
) -> None:
    """Wait until session ID ends; end with its exit code.

    As of `run`: 128 + N is its death by signal N, 124 a timeout, its own or this one,
    125 trouble here.
    """
    from actors.console import objects, operating  # noqa: PLC0415 - see the package
    from broker.outcomes import TimedOut  # noqa: PLC0415

    broker = words.broker(endpoint)
    try:
        status = words.finish(operating.wait(broker, session, timeout))
    except TimedOut:
        words.say(f"{session} still runs")
        sys.exit(exit_codes.TIMED_OUT)
    code = exit_codes.of_status(status)
    if as_json:
        words.tell(json.dumps({"exit_code": code, **objects.end(status)}))
    sys.exit(code)
