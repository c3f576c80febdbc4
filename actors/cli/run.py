"""`creche run`: one child in the foreground."""

import dataclasses
import errno
import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from actors.cli import lean, words

if TYPE_CHECKING:
    from actors.events import ExitStatus
    from broker.errors import EngineError

SIGINT, SIGPIPE = 2, 13


class _Foreground(click.Command):
    """A command whose own trouble is told apart from its child's exit codes."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except click.UsageError as mistake:
            mistake.exit_code = words.ENGINE_TROUBLE  # type: ignore[misc]  # click reads it so
            raise


def _variables(
    _: click.Context, parameter: click.Parameter, given: Iterable[str]
) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for name, equals, _value in pairs:
        if not (name and equals):
            raise click.BadParameter(f"{name!r} is not NAME=VALUE", param=parameter)
    return {name: value for name, _, value in pairs}


@click.command(cls=_Foreground, context_settings={"allow_interspersed_args": False})
@click.option("--timeout", type=words.SECONDS, help="End it after this.")
@click.option(
    "--idle-timeout",
    type=words.SECONDS,
    help="End it after so long without output.",
)
@click.option(
    "--env",
    "extra_env",
    multiple=True,
    callback=_variables,
    metavar="NAME=VALUE",
    help="Set a variable for it; may be repeated.",
)
@click.option("--cwd", metavar="DIRECTORY", help="Run it there.")
@click.option("--json", "as_json", is_flag=True, help="Report its end on stderr.")
@words.ENDPOINT
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    command: tuple[str, ...], endpoint: str | None, *, as_json: bool, **options: Any
) -> None:
    """Run COMMAND in the foreground; end with its exit code.

    It has our streams, and gets SIGINT and SIGTERM (then SIGKILL after 2 seconds) from
    us; whatever else ends us, ends it and all it started.

    128 + N is its death by signal N, 124 a timeout, 125 trouble of the engine, 126 a
    command that cannot be executed, 127 one that is not found.
    """
    code, report = _run(command, options, endpoint or None)
    if as_json:
        click.echo(json.dumps({"exit_code": code, **report}), err=True)
    elif "message" in report:
        click.echo(f"creche: {report['message']}", err=True)
    sys.exit(code)


def _run(
    command: tuple[str, ...], options: dict[str, Any], endpoint: str | None
) -> tuple[int, dict[str, Any]]:
    """Return the exit code, and what there is to report."""
    lean.import_event_loop()
    from actors import foreground  # noqa: PLC0415 - see the package's docstring
    from broker.errors import EngineError  # noqa: PLC0415

    try:
        status = foreground.run(command, options, endpoint)
    except foreground.ReaderGone:
        return words.SIGNALLED + SIGPIPE, {"cause": "reader-gone"}
    except KeyboardInterrupt:  # before there was a child to interrupt
        return words.SIGNALLED + SIGINT, {"cause": "interrupted"}
    except EngineError as error:
        return _code_of_failure(error), {"error": error.code, "message": str(error)}
    except OSError as error:  # our stdout is on a full disk, for one
        return words.ENGINE_TROUBLE, {
            "error": "system",
            "message": error.strerror or str(error),
        }
    report = dataclasses.asdict(status)
    if status.returncode is None:
        report["message"] = f"nobody knows how the command ended: {status.cause}"
    return _code_of_end(status), report


def _code_of_end(status: "ExitStatus") -> int:
    if status.cause == "timeout":
        return words.TIMED_OUT
    if status.signal is not None:
        return words.SIGNALLED + status.signal
    return words.ENGINE_TROUBLE if status.code is None else status.code


def _code_of_failure(error: "EngineError") -> int:
    if getattr(error, "step", None) != "exec":
        return words.ENGINE_TROUBLE
    missing = isinstance(error, OSError) and error.errno == errno.ENOENT
    return words.NOT_FOUND if missing else words.NOT_EXECUTABLE
