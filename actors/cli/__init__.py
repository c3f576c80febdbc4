"""The command `creche`: one module here for each of its verbs.

They, and `words`, are what prints; nothing else in the engine does. Each says at its
top only what click needs, and imports the rest when it is run: the answer to `--help`,
or to a mistake, has no time for an event loop.
"""

import importlib
import sys
from typing import Any, Final

import click

from actors import __version__
from actors.cli import words

VERBS: Final = (
    "run",
    "batch",
    "ps",
    "logs",
    "attach",
    "write",
    "wait",
    "kill",
    "resize",
    "stats",
    "screen",
    "top",
    "serve",
    "mcp",
    "doctor",
    "recover",
    "completion",
)
"""In the order of `--help`. Each is a command of this name in a module of this name."""


class Verbs(click.Group):
    """Finds a command in its module."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run what the command line says, and end with its exit code."""
        words.open_streams()
        try:
            return super().main(*args, **extra)
        except OSError as refused:
            if refused.filename is not None:
                raise
            # What click itself writes is on stdout: the help, or the version.
            trouble = words.unwritten(refused)
            trouble.show()
            sys.exit(trouble.exit_code)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return a verb's command; of an unknown one say which is nearest.

        Raises:
            UsageError: it is unknown.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as unknown:
            from difflib import get_close_matches  # noqa: PLC0415 - for mistakes alone

            near = get_close_matches(args[0], VERBS, 1)
            if not near:
                raise
            told = f"{unknown.message} Did you mean {near[0]!r}?"
            raise click.UsageError(told, ctx) from None

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the verbs."""
        return list(VERBS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """Return a verb's command; None for an unknown one."""
        if name not in VERBS:
            return None
        command = getattr(importlib.import_module(f"actors.cli.{name}"), name)
        assert isinstance(command, click.Command)
        for option in command.params:
            if isinstance(option, click.Option) and _of_habit(option):
                flag = max(option.opts, key=len).strip("-").replace("-", "_")
                option.envvar = f"CRECHE_{name}_{flag}".upper()
        return command


def _of_habit(option: click.Option) -> bool:
    """Return whether a variable may set an option that names none itself.

    What is meant for one call, such as `kill --all`, would be a trap for the next.
    """
    return option.envvar is None and option.allow_from_autoenv and not option.multiple


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="creche")
def main() -> None:
    """Run commands as children that never outlive their owner.

    Options that are habits are also variables: `run --timeout` is CRECHE_RUN_TIMEOUT.
    Those that are meant for one call, or may be repeated, are not. A variable whose
    option does not apply to a call counts for nothing there.
    What could not be done ends with 1, a mistake in the words with 2; of run, wait and
    attach, which end as a child did, both are 125.
    Sizes are bytes, or 64K, 1.5M, 2G (powers of 1024); times are seconds, or 250ms,
    10s, 5m, 2h.
    """
