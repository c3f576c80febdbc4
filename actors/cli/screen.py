"""`creche screen`: what the terminal of a session shows."""

import json

import click

from actors.cli import words


@click.command(cls=words.Verb)
@words.as_json(
    "For programs: rows, cols, lines, cursor ([row, column] from 0), title, "
    "missed (bytes of its output that are not kept any more)."
)
@click.option(
    "--svg",
    metavar="FILE",
    allow_from_autoenv=False,
    help="Draw it into FILE, with its colours.",
)
@words.BROKER
@words.SESSION
def screen(
    session: str, endpoint: str | None, svg: str | None, *, as_json: bool
) -> None:
    """Write what the terminal of session ID shows now, as text.

    It is drawn from what is kept of its output. It needs the extra `screen`
    (pyghostty, or pyte), and a picture `ui` (rich) as well.
    """
    from actors.console import operating, picture  # noqa: PLC0415 - see the package's docstring

    try:
        shown = words.finish(operating.screen(words.broker(endpoint), session))
        if svg is not None:
            picture.save(shown, svg)
            return
    except ModuleNotFoundError as missing:
        raise words.Trouble(str(missing)) from missing
    if not as_json:
        words.tell(shown.text)
        return
    facts = {
        "rows": shown.size.rows,
        "cols": shown.size.cols,
        "lines": shown.lines,
        "cursor": shown.cursor,
        "title": shown.title,
        "missed": shown.missed,
    }
    words.tell(json.dumps(facts))
