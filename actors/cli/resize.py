"""`creche resize`: another size for a session's terminal."""

import click

from actors.cli import words

CELLS = click.IntRange(1, 65535)


@click.command(cls=words.Verb)
@words.BROKER
@words.SESSION
@click.argument("rows", type=CELLS)
@click.argument("cols", type=CELLS)
def resize(session: str, rows: int, cols: int, endpoint: str | None) -> None:
    """Give the terminal of session ID another size.

    In character cells. Its program is told by SIGWINCH.
    """
    from actors.console import operating  # noqa: PLC0415 - see the package's docstring

    words.finish(operating.resize(words.broker(endpoint), session, rows, cols))
