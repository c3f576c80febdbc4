"""`creche write`: input for a session."""

import os
from typing import Any

import click

from actors.cli import words


def _keys(
    _: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> list[bytes]:
    from actors.console import keys  # noqa: PLC0415 - see the package's docstring

    try:
        found = keys.keys(words.utf8(" ".join(given)))
    except ValueError as unknown:
        raise click.BadParameter(str(unknown), param=parameter) from unknown
    if given and not found:  # without any, it would be stdin that is written
        raise click.BadParameter("names no key", param=parameter)
    return found


@click.command(cls=words.Verb)
@click.option(
    "--keys",
    multiple=True,
    callback=_keys,
    metavar="KEYS",
    help="Keys to type after that, separated by blanks or commas: C-c, M-x, Enter, "
    "Tab, Escape, Space, Backspace, Delete, Insert, Up, Down, Left, Right, Home, End, "
    "PageUp, PageDown, F1 to F12, or a character. Of a session with pipes, C-c "
    "interrupts it, C-\\ quits it, C-d ends its input, and Enter is a newline.",
)
@click.option(
    "--eof", is_flag=True, allow_from_autoenv=False, help="Close its stdin at last."
)
@words.BROKER
@words.SESSION
@click.argument("data", required=False)
def write(session: str, data: str | None, endpoint: str | None, **given: Any) -> None:
    """Write DATA to the stdin of session ID, as it is.

    Without DATA and --keys it is what comes from stdin here. It is written once this
    ends with 0.
    """
    from actors.console import operating  # noqa: PLC0415 - see the package's docstring

    told = None if data is None else os.fsencode(data)
    words.finish(operating.write(words.broker(endpoint), session, told, **given))
