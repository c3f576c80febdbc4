"""`creche batch`: many jobs, so many at a time."""

import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from actors import exit_codes
from actors.cli import words

if TYPE_CHECKING:
    from actors.batch.command import Order

PER_CORE: Final = 2
"""Jobs at once unless told: most wait for something half of their time."""


class Limit(NamedTuple):
    """How long a job may take: seconds, or a multiple of what jobs usually take."""

    seconds: float | None = None
    share: float | None = None


class _Limit(click.ParamType[Limit]):
    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Limit:
        if isinstance(value, Limit):
            return value
        if share := re.fullmatch(r"([1-9]\d*)%", value):
            return Limit(share=float(share[1]) / 100)
        seconds = words.SECONDS.convert(value, param, ctx)
        if not seconds:
            self.fail("no job could end before 0 seconds are over", param, ctx)
        return Limit(seconds=seconds)


class _Halt(click.ParamType[Any]):
    name = "condition"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        from actors.batch.halt import Halt  # noqa: PLC0415 - see the package's docstring

        try:
            return Halt.parse(value)
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1),
    help=f"Run so many at once; by default {PER_CORE} for each processor.",
)
@click.option(
    "--timeout",
    type=_Limit(),
    default=Limit(),
    metavar="TIME|N%",
    help="End a job after this; 200% is twice the median of those that succeeded.",
)
@click.option(
    "--retries",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Run a job that fails up to N times in all.",
)
@click.option(
    "--halt",
    type=_Halt(),
    default="never",
    metavar="WHEN",
    help="Stop early: now,fail=1 kills what runs, soon,fail=10% lets it finish; "
    "also success= and done=.",
)
@click.option("-k", "--keep-order", is_flag=True, help="Write output in order.")
@click.option("--tag", is_flag=True, help="Put its argument before each line.")
@click.option(
    "--joblog",
    metavar="FILE",
    help="Note jobs that are finished, as GNU parallel does.",
)
@click.option(
    "--results",
    metavar="DIR|FILE.jsonl",
    help="Keep output there; in a directory, instead of writing it.",
)
@click.option("--resume", is_flag=True, help="Skip what the joblog has as finished.")
@click.option(
    "--resume-failed", is_flag=True, help="The same, but run those that failed again."
)
@words.as_json("One document on stdout.")
@click.option("--jsonl", "as_jsonl", is_flag=True, help="A line of JSON for each job.")
@words.ENDPOINT
@click.argument(
    "arguments",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[FILE...|-] or COMMAND... ::: ARGUMENT...",
)
def batch(arguments: tuple[str, ...], **options: Any) -> None:
    """Run many jobs, so many at a time.

    Each line of a FILE, or of stdin (- or no word at all), is a job: a command for the
    shell, or a JSON object such as
    {"argv": ["make", "all"], "cwd": "/src", "timeout": 60}.

    Behind ::: are arguments, one for each job; of several such lists, every
    combination. {} in COMMAND is the argument, {1} and {2} those of several lists, {#}
    the number of the job; without any of these they follow COMMAND.

    The exit code is the number of jobs that failed, 101 for more than 100; with
    --halt now,fail=1 that of the job. 2 is a mistake in words or input, 125 trouble of
    the engine, 130 Ctrl-C.
    """
    _check(arguments, options)
    try:
        code, message = _run(arguments, options)
    except KeyboardInterrupt:  # before there was anything to interrupt
        sys.exit(exit_codes.INTERRUPTED)
    if message is not None:
        words.say(message)
    sys.exit(code)


def _check(arguments: tuple[str, ...], options: dict[str, Any]) -> None:
    """Refuse words that do not go together; leave out variables that do not apply."""
    for name in ("joblog", "results"):
        if options[name] == "":
            raise click.UsageError(f"--{name} names no file")
    if not options["joblog"]:
        words.leave_out(
            options,
            ("resume", "resume_failed"),
            "--resume needs --joblog: it says what is finished",
        )
    if options["as_json"] and options["as_jsonl"]:
        habit = "as_json" if words.written("as_jsonl") else "as_jsonl"
        words.leave_out(options, (habit,), "--json and --jsonl exclude each other")
    if not arguments and os.isatty(0):
        raise click.UsageError("give files of jobs, - for stdin, or COMMAND ::: ARG…")


def _run(arguments: tuple[str, ...], options: dict[str, Any]) -> tuple[int, str | None]:
    """Return the exit code, and what there is to say."""
    from actors.batch import command  # noqa: PLC0415 - see the package's docstring
    from actors.console.stdio import ReaderGone  # noqa: PLC0415
    from broker.errors import EngineError  # noqa: PLC0415

    try:
        return command.run(_order(arguments, options)), None
    except command.Misused as wrong:
        return exit_codes.USAGE, str(wrong)
    except ReaderGone:
        return exit_codes.READER_GONE, None
    except (EngineError, OSError) as error:  # a full disk, for one
        return exit_codes.ENGINE_TROUBLE, words.sentence(error)


def _order(arguments: tuple[str, ...], options: dict[str, Any]) -> "Order":
    from actors.batch import command  # noqa: PLC0415 - see the package's docstring
    from actors.batch.jobs import is_separator  # noqa: PLC0415
    from actors.batch.runner import Plan  # noqa: PLC0415

    if any(map(is_separator, arguments)):  # else these are names of files
        arguments = tuple(map(words.utf8, arguments))
    limit: Limit = options["timeout"]
    form = "json" if options["as_json"] else "jsonl" if options["as_jsonl"] else "text"
    plan = Plan(
        jobs=options["jobs"] or PER_CORE * (os.cpu_count() or 1),
        attempts=options["retries"],
        timeout=limit.seconds,
        share=limit.share,
        halt=options["halt"],
        ordered=options["keep_order"],
        endpoint=options["endpoint"] or None,
    )
    return command.Order(
        words=arguments or ("-",),
        plan=plan,
        joblog=options["joblog"],
        results=options["results"],
        resume=options["resume"] or options["resume_failed"],
        again=options["resume_failed"],
        tag=options["tag"],
        form=form,  # type: ignore[arg-type]  # one of the three
    )
