"""The command `creche`: the only module that prints.

Whatever a command needs beyond click is imported by that command, so that `--help` and
mistakes are answered at once.
"""

import dataclasses
import errno
import json
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from actors import __version__

if TYPE_CHECKING:
    from actors.events import ExitStatus
    from broker.errors import EngineError

TIMED_OUT: Final = 124
"""Exit code, like the following ones a custom of timeout(1), env(1) and shells."""
ENGINE_TROUBLE: Final = 125
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
SIGNALLED: Final = 128
"""Exit code of a command that died of signal N, less N."""
SIGINT, SIGPIPE = 2, 13


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="creche")
def main() -> None:
    """Run commands as children that never outlive their owner."""


# -- run ------------------------------------------------------------------------


class _Foreground(click.Command):
    """A command whose own trouble is told apart from its child's exit codes."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except click.UsageError as mistake:
            mistake.exit_code = ENGINE_TROUBLE  # type: ignore[misc]  # click reads it so
            raise


def _variables(
    _: click.Context, parameter: click.Parameter, given: Iterable[str]
) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for name, equals, _value in pairs:
        if not (name and equals):
            raise click.BadParameter(f"{name!r} is not NAME=VALUE", param=parameter)
    return {name: value for name, _, value in pairs}


@main.command(cls=_Foreground, context_settings={"allow_interspersed_args": False})
@click.option("--timeout", type=float, metavar="SECONDS", help="End it after this.")
@click.option(
    "--idle-timeout",
    type=float,
    metavar="SECONDS",
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
@click.option(
    "--endpoint",
    envvar="CRECHE_BROKER",
    metavar="ipc://PATH",
    help="Use this broker instead of a private one; also CRECHE_BROKER.",
)
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
    from actors import foreground  # noqa: PLC0415 - see the module's docstring
    from broker.errors import EngineError  # noqa: PLC0415

    try:
        status = foreground.run(command, options, endpoint)
    except foreground.ReaderGone:
        return SIGNALLED + SIGPIPE, {"cause": "reader-gone"}
    except KeyboardInterrupt:  # before there was a child to interrupt
        return SIGNALLED + SIGINT, {"cause": "interrupted"}
    except EngineError as error:
        return _code_of_failure(error), {"error": error.code, "message": str(error)}
    except OSError as error:  # our stdout is on a full disk, for one
        return ENGINE_TROUBLE, {
            "error": "system",
            "message": error.strerror or str(error),
        }
    report = dataclasses.asdict(status)
    if status.returncode is None:
        report["message"] = f"nobody knows how the command ended: {status.cause}"
    return _code_of_end(status), report


def _code_of_end(status: "ExitStatus") -> int:
    if status.cause == "timeout":
        return TIMED_OUT
    if status.signal is not None:
        return SIGNALLED + status.signal
    return ENGINE_TROUBLE if status.code is None else status.code


def _code_of_failure(error: "EngineError") -> int:
    if getattr(error, "step", None) != "exec":
        return ENGINE_TROUBLE
    missing = isinstance(error, OSError) and error.errno == errno.ENOENT
    return NOT_FOUND if missing else NOT_EXECUTABLE


# -- serve ----------------------------------------------------------------------


@main.command()
@click.option(
    "--endpoint",
    metavar="ipc://PATH",
    help="Listen there, in a directory that is private: this user's, with mode 0700; "
    "it is made if it is missing. By default creche/broker.sock in XDG_RUNTIME_DIR; "
    "without that, /run/creche/broker.sock for root, /tmp/creche-UID/broker.sock else.",
)
def serve(endpoint: str | None) -> None:
    """Be a broker for many clients.

    In the foreground, until SIGTERM or SIGINT. Once clients can connect, it prints the
    line

        creche broker ready ipc://PATH

    to stdout. What follows "ready" is what they take as `--endpoint`, `CRECHE_BROKER`
    or `actors.Engine(endpoint)`.
    """
    from actors import embedded  # noqa: PLC0415 - see the module's docstring

    words = [sys.executable, "-P", "-m", "broker"]
    if endpoint is not None:
        words += ["--endpoint", endpoint]
    os.execve(sys.executable, words, embedded.environment())


# -- doctor ---------------------------------------------------------------------


@main.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor(*, as_json: bool) -> None:
    """Tell what this machine offers.

    And, below the table, what is worse here than it could be. Sizes are in bytes.
    """
    from broker import host  # noqa: PLC0415 - see the module's docstring

    found = host.report()
    room = found.room
    facts = {"creche": __version__, **dataclasses.asdict(found)}
    facts |= {"sessions": room.sessions, "sessions_end": room.resource}
    if as_json:
        _tell(json.dumps({**facts, "degraded": found.degraded}))
        return
    lines = [f"{name:<18}{_plain(value)}" for name, value in facts.items()]
    lines += [f"\n- {sentence}" for sentence in found.degraded]
    _tell("\n".join(lines))


def _tell(text: str) -> None:
    try:
        click.echo(text)
    except BrokenPipeError:
        raise  # click ends quietly with the reader
    except OSError as refused:
        # What is left in the buffer would be refused again at our end, with code 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.ClickException(f"stdout: {refused.strerror}") from refused


def _plain(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "no limit, or unknown" if value is None else value
