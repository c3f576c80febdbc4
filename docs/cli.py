"""Writes docs/cli.md, the manual of the command line, from the commands themselves.

python docs/cli.py          writes it
python docs/cli.py --check  ends with 1 if it is not what would be written
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from actors.cli import VERBS, main

PAGE: Final = Path(__file__).resolve().parent / "cli.md"
WIDTH: Final = 88
TOP: Final = """\
# The command line

What `creche --help` and `creche VERB --help` say, on one page. It is written by
`python docs/cli.py`; the tests compare it with the commands.
"""
EXIT_CODES: Final = """\
## Exit codes

Of `run`: the command's own; 128 + N if it died of signal N; 124 on a timeout; 125
trouble of the engine, or a mistake in the words given; 126 a command that cannot be
executed; 127 one that is not found. Of every other verb, unless its own part says more:
0; 1 trouble, with one sentence on stderr; 2 a mistake in the words given.
"""


def page() -> str:
    """Return the text of the page."""
    settings = {**main.context_settings, "terminal_width": WIDTH}
    top = click.Context(main, info_name="creche", **settings)
    parts = [TOP, _part("creche", main, top)]
    for verb in VERBS:
        command = main.get_command(top, verb)
        assert command is not None
        context = click.Context(command, parent=top, info_name=verb)
        parts.append(_part(f"creche {verb}", command, context))
    return "\n".join([*parts, EXIT_CODES])


def _part(title: str, command: click.Command, context: click.Context) -> str:
    lines = [f"## {title}", "", "```text", *_help(command, context), "```"]
    variables = [*_variables(command, context)]
    if variables:
        lines += ["", f"Variables: {', '.join(variables)}."]
    return "\n".join(lines) + "\n"


def _help(command: click.Command, context: click.Context) -> list[str]:
    return [line.rstrip() for line in command.get_help(context).splitlines()]


def _variables(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the variables that stand for options of a verb."""
    for parameter in command.get_params(context):
        if not isinstance(parameter, click.Option) or parameter.is_eager:
            continue  # --help and --version
        given = parameter.envvar or ()
        names = [given] if isinstance(given, str) else given
        yield from (f"`{name}`" for name in names)


def run(arguments: list[str]) -> int:
    """Write the page, or compare it; return an exit code."""
    text = page()
    if arguments == ["--check"]:
        same = PAGE.exists() and PAGE.read_text() == text
        if not same:
            sys.stderr.write(f"{PAGE} is out of date: run {sys.argv[0]}\n")
        return 0 if same else 1
    if arguments:
        sys.stderr.write(inspect.getdoc(sys.modules[__name__]) or "")
        return 2
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
