"""`creche run`: one child in the foreground, or left to a broker."""

import json
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

import click

from actors import exit_codes
from actors.cli import lean, words

LIMITS: Final[dict[str, click.ParamType[Any]]] = {
    "nofile": click.INT,
    "core": words.SIZE,
    "address_space": words.SIZE,
    "cpu": words.SECONDS,
    "file_size": words.SIZE,
    "processes": click.INT,
    "nice": click.INT,
    "oom_score_adj": click.INT,
    "output": words.SIZE,
    "tree_memory": words.SIZE,
    "tree_processes": click.INT,
}
"""The fields of `actors.Limits`, and how people write them."""
WARM: Final = 1
"""Idle workers that a private broker keeps ready: there will be one child."""


def _command(
    _: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    return tuple(map(words.utf8, given))


def _directory(
    _: click.Context, _parameter: click.Parameter, given: str | None
) -> str | None:
    return None if given is None else words.utf8(given)


def _pairs(
    _: click.Context, parameter: click.Parameter, given: Iterable[str]
) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for name, equals, _value in pairs:
        if not (name and equals):
            raise click.BadParameter(f"{name!r} is not NAME=VALUE", param=parameter)
    return {name: value for name, _, value in pairs}


def _variables(
    context: click.Context, parameter: click.Parameter, given: Iterable[str]
) -> dict[str, str]:
    return _pairs(context, parameter, map(words.utf8, given))


def _limits(
    context: click.Context, parameter: click.Parameter, given: Iterable[str]
) -> dict[str, Any]:
    pairs = _pairs(context, parameter, given)
    for name in pairs:
        if name not in LIMITS:
            known = ", ".join(LIMITS)
            raise click.BadParameter(f"{name!r} is none of {known}", param=parameter)
    found = {
        name: LIMITS[name].convert(value, parameter, context)
        for name, value in pairs.items()
    }
    if "cpu" in found:  # the system counts whole seconds
        found["cpu"] = math.ceil(found["cpu"])
    return found


def _env_files(
    _: click.Context, parameter: click.Parameter, given: Iterable[str]
) -> dict[str, str]:
    found = {}
    for path in given:
        try:
            with open(path) as file:
                lines = file.read().split("\n")  # nothing else ends one
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "is no text"
            raise click.BadParameter(f"{path}: {why}", param=parameter) from error
        for number, line in enumerate(lines, 1):
            name, equals, value = line.partition("=")
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            if not (name.strip() and equals):
                where = f"{path}, line {number}"
                raise click.BadParameter(f"{where}: no NAME=VALUE", param=parameter)
            found[words.utf8(name.strip())] = words.utf8(value)
    return found


@click.command(cls=words.ChildVerb, context_settings={"allow_interspersed_args": False})
@click.option(
    "-t", "--tty", is_flag=True, help="Give it a terminal, joined to the one here."
)
@click.option("--timeout", type=words.SECONDS, help="End it after this.")
@click.option(
    "--idle-timeout",
    type=words.SECONDS,
    help="End it after so long without output.",
)
@click.option(
    "--grace",
    type=words.SECONDS,
    default="2s",
    show_default=True,
    help="Time between asking it to end (SIGTERM) and killing it.",
)
@click.option(
    "--env",
    "env",
    multiple=True,
    callback=_variables,
    metavar="NAME=VALUE",
    help="Set a variable for it; may be repeated.",
)
@click.option(
    "--env-file",
    "env_file",
    multiple=True,
    callback=_env_files,
    metavar="FILE",
    help="Set those in a file, a NAME=VALUE a line; `#` begins a comment line. "
    "--env overrides them.",
)
@click.option(
    "--agent-env",
    is_flag=True,
    help="Set what keeps programs from colours and pagers: NO_COLOR=1, TERM=dumb, "
    "PAGER=cat and the like. --env and --env-file override them.",
)
@click.option("--cwd", callback=_directory, metavar="DIRECTORY", help="Run it there.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    callback=_limits,
    metavar="NAME=VALUE",
    help="Limit what it may use; may be repeated. NAME is one of nofile, core, "
    "address_space, cpu, file_size, processes, nice, oom_score_adj; or, of the whole "
    "tree, output, tree_memory, tree_processes, which end it when used up, if it has "
    "not ended by then.",
)
@click.option(
    "-d",
    "--detach",
    is_flag=True,
    allow_from_autoenv=False,
    help="Leave it to a running broker: print its number, and end. See logs, attach, "
    "wait, kill.",
)
@click.option(
    "--name",
    allow_from_autoenv=False,
    help="With --detach: a name beside its number, which no living session may have. "
    "Of several that have ended, it is that of the newest.",
)
@click.option(
    "--ttl",
    type=words.SECONDS,
    help="With --detach: kill it after this; what has ended is forgotten then, too.",
)
@click.option(
    "-i",
    "--interactive",
    is_flag=True,
    help="With --detach: keep its stdin open, for write and attach; it is /dev/null "
    "otherwise. Here it always is open.",
)
@words.as_json(
    "Report its end as JSON on stderr: exit_code, code, signal, cause, usage, "
    "started, execed and ended (Unix time), wall_time in seconds, written (bytes of "
    "each stream), or error and message; with --detach its start, on stdout."
)
@words.ENDPOINT
@click.argument(
    "command", nargs=-1, required=True, type=click.UNPROCESSED, callback=_command
)
def run(
    command: tuple[str, ...], endpoint: str | None, *, as_json: bool, **given: Any
) -> None:
    """Run COMMAND in the foreground; end with its exit code.

    It has our streams, and gets SIGINT and SIGTERM (then SIGKILL after the grace) from
    us; whatever else ends us, ends it and all it started.

    128 + N is its death by signal N, 124 a timeout, 125 trouble of the engine, 126 a
    command that cannot be executed, 127 one that is not found.

    With --detach it is a session of a running broker, and nobody's: it lives until it
    ends, or is killed. Its end and its output are kept until somebody has asked for
    them, and then as long as it is among the newest 256.
    """
    left = {name: given.pop(name) for name in ("name", "ttl", "interactive")}
    if given.pop("detach"):
        code, report = _guarded(lambda: _detach(command, given, endpoint, **left))
        if not code:
            words.tell(json.dumps(report) if as_json else str(report["id"]))
            return
    else:
        words.leave_out(left, ("name", "ttl"), "--name and --ttl need --detach")
        code, report = _guarded(lambda: _join(command, given, endpoint or None))
    if as_json:
        words.tell(json.dumps({"exit_code": code, **report}), err=True)
    elif told := report.get("message") or USED_UP.get(report.get("cause", "")):
        words.say(told)
    sys.exit(code)


USED_UP: Final = {
    "limit": "the command was ended: it had used up a limit",
    "oom": "the command was killed: the system had no memory left for it",
}
"""What to tell of an end that looks like that by somebody's signal."""

Report = tuple[int, dict[str, Any]]
"""An exit code, and what there is to report."""


def _guarded(work: Callable[[], Report]) -> Report:
    """Do it, and tell trouble of the engine from the command's."""
    try:
        return work()
    except KeyboardInterrupt:  # before there was a child to interrupt
        return exit_codes.INTERRUPTED, {"cause": "interrupted"}
    except Exception as error:
        report = _trouble(error)
        if report is None:
            raise
        return report


def _trouble(error: Exception) -> Report | None:
    """Return what to report of an error; None: it is a mistake of this program."""
    from actors.console import objects, stdio  # noqa: PLC0415 - see the package
    from broker.errors import EngineError  # noqa: PLC0415

    if isinstance(error, stdio.ReaderGone):
        return exit_codes.READER_GONE, {"cause": "reader-gone"}
    if isinstance(error, EngineError):
        return exit_codes.of_failure(error), objects.failure(error)
    if isinstance(error, OSError):  # our stdout is on a full disk, for one
        told = {"error": "system", "message": words.sentence(error)}
        return exit_codes.ENGINE_TROUBLE, told
    return None


def _join(
    command: tuple[str, ...], given: dict[str, Any], endpoint: str | None
) -> Report:
    if endpoint is not None:
        return _run(command, given, endpoint)
    from actors import ignition  # noqa: PLC0415 - see the package

    with ignition.ahead(warm=WARM):
        return _run(command, given, None)


def _run(
    command: tuple[str, ...], given: dict[str, Any], endpoint: str | None
) -> Report:
    lean.import_event_loop()
    from actors.console import foreground, objects  # noqa: PLC0415

    grace = given.pop("grace")
    options = _options(given)
    ended = foreground.run(command, options, endpoint, grace=grace, warm=WARM)
    status = ended.status
    report = {**objects.end(status), "written": ended.written}
    if status.returncode is None:
        report["message"] = f"nobody knows how the command ended: {status.cause}"
    return exit_codes.of_status(status), report


def _detach(
    command: tuple[str, ...],
    given: dict[str, Any],
    endpoint: str | None,
    *,
    interactive: bool,
    **left: Any,
) -> Report:
    lean.import_event_loop()
    from actors.console import operating  # noqa: PLC0415

    grace = given.pop("grace")
    options = _options(given)
    if interactive and not options["tty"]:
        options["stdin"] = "pipe"
    broker = words.broker(endpoint)
    started = operating.detach(broker, command, options, grace=grace, **left)
    return 0, words.finish(started)


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Return what `actors.Spec` takes for the options of the command line."""
    import actors  # noqa: PLC0415

    agent = actors.AGENT_ENV if given.pop("agent_env") else {}
    extra = {**agent, **given.pop("env_file"), **given.pop("env")}
    limits = actors.Limits(**given.pop("limits"))
    return {**given, "extra_env": extra, "limits": limits}
