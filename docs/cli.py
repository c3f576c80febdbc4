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

## Options and variables

What is written on the command line comes before a variable. A variable is a habit:
where its option does not apply, because it needs another one that is not given (`run
--ttl` needs `--detach`, `batch --resume` needs `--joblog`) or because it and one that
is given exclude each other (`batch --json` and `--jsonl`), it counts for nothing. On
the command line the same is a mistake, and told. A variable that is empty is none.

## Streams

What is asked for is on stdout, words for people are on stderr. If stdout does not take
what is written to it, because it is closed or on a full disk, that is trouble like any
other. Words that stderr does not take are lost, and change nothing.

## JSON

The same fact has the same name in every verb. A point in time is *Unix time*, seconds
as a float; every other time is a duration in seconds, every size in bytes. A field that
is not known is null.

| field | meaning | of |
|---|---|---|
| `id` | number of a session; of a batch's job the `id` in its line | `ps` `top` `kill` `recover` `run -d` `batch` |
| `name`, `scope`, `metadata` | what it is called, its scope (empty without one), its pairs | `ps` `top` `run -d` |
| `argv`, `cwd`, `tty`, `pid` | its words, directory, `[rows, cols]`, process | `ps` `top` `run -d` |
| `command` | of a batch's job the command line, as in the joblog | `batch` |
| `state` | `starting`, `running`, `exited` (its output is still open), `closed` | `ps` `top` |
| `event`, `time`, `missed` | what happened, when, and how many events are missing before this one | `ps --watch` (`event` also `batch`) |
| `started`, `execed`, `ended`, `last_used` | Unix time of the start, of the program's, of the end, of the last write, poll, resize or signal | `run` `wait` `ps` `batch`, `started` also in `survivors` |
| `wall_time` | from the start to the end, or until now | `run` `wait` `ps` `top` `batch` |
| `code`, `signal`, `core`, `cause` | how it ended: as in `ExitStatus`; a batch's job that could not be started has the cause `failed` | `run` `wait` `ps` `batch` |
| `exit_code` | what this command ends with | `run` `wait` `batch` |
| `error`, `message` | an error's code (those of PROTOCOL.md), and its sentence | `run` `kill` `ps --watch` `batch`, `message` also `recover` |
| `usage` | `user`, `sys` (processor time), `max_rss`, `voluntary`, `involuntary`, `tree_peak` | `run` `wait` `batch` |
| `written` | bytes of output, by stream | `run` `batch` |
| `dropped` | bytes of output that are not kept any more; in a batch's summary jobs that were killed before their end | `ps` `stats` `batch` |
| `cpu_time`, `memory`, `processes` | of the whole tree, so far and now | `stats` `top` (`cpu_time` also of a batch) |
| `signalled`, `reaped`, `survivors`, `leftovers` | as in `KillReceipt` and `ExitStatus` | `kill`, `leftovers` of `run` `wait` |
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
