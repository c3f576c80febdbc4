"""`creche attach`: a session's output here, and what is typed there."""

import sys

import click

from actors import exit_codes
from actors.cli import words
from actors.console.keys import DETACH_KEYS


@click.command(cls=words.ChildVerb)
@click.option(
    "--detach-keys",
    default=DETACH_KEYS,
    show_default=True,
    metavar="KEYS",
    help="What ends this, and not the session, typed into its terminal; empty: nothing "
    "does. Keys are written as for `write --keys`.",
)
@click.option("--watch", is_flag=True, help="Leave the keyboard to others.")
@click.option(
    "--new",
    is_flag=True,
    allow_from_autoenv=False,
    help="Show what comes, not what is kept.",
)
@words.BROKER
@words.SESSION
def attach(
    session: str, endpoint: str | None, detach_keys: str, *, watch: bool, new: bool
) -> None:
    """Join session ID to the streams here, until it ends.

    First comes what is kept of its output. What is typed goes to it, of one person at a
    time: of whoever attached first. Others watch. The size of that person's terminal
    becomes the session's.

    A session with a terminal is left by the detach keys, one with pipes by Ctrl-C. It
    goes on. Once it ends, so does this, with its exit code; 125 is trouble here.
    """
    from actors.console import attaching, keys  # noqa: PLC0415 - see the package

    try:
        leave = b"".join(keys.keys(words.utf8(detach_keys)))
    except ValueError as unknown:
        hint = "'--detach-keys'"
        raise click.BadParameter(str(unknown), param_hint=hint) from unknown
    status = words.finish(
        attaching.attach(
            words.broker(endpoint), session, keys=leave, watch=watch, replay=not new
        )
    )
    if status is None:
        words.say(f"detached from {session}")
        return
    sys.exit(exit_codes.of_status(status))
