"""`creche logs`: what a session has written."""

import click

from actors.cli import words


@click.command(cls=words.Verb)
@click.option("-f", "--follow", is_flag=True, help="Go on until it ends.")
@click.option(
    "--since",
    type=words.SIZE,
    default=0,
    metavar="OFFSET",
    help="Leave out so many bytes of all it wrote, as `stats` counts them.",
)
@words.BROKER
@words.SESSION
def logs(session: str, endpoint: str | None, *, since: int, follow: bool) -> None:
    """Write what session ID has written.

    Each stream goes to the one here. That is what its broker keeps of it, by default
    the newest 2 MiB; what is not kept any more is told on stderr.
    """
    from actors.console import operating  # noqa: PLC0415 - see the package's docstring

    broker = words.broker(endpoint)
    words.finish(operating.logs(broker, session, follow=follow, since=since))
