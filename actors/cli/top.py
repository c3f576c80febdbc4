"""`creche top`: what the sessions of a broker use, again and again."""

import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import click

from actors import exit_codes
from actors.cli import words

if TYPE_CHECKING:
    from actors.console.rates import Look, Use

HEADS = ("ID", "NAME", "STATE", "TIME", "CPU", "MEMORY", "PROCS", "OUTPUT", "COMMAND")
LEAST: Final = 0.05
"""Seconds between two looks: less would show the looking."""
SCOPES = ("SCOPE", "SESSIONS", "CPU", "MEMORY", "PROCS", "OUTPUT")

Round = list[tuple["Look", "Use"]]


@click.command(cls=words.Verb)
@click.option(
    "--interval",
    type=words.Seconds(least=LEAST),
    default="2s",
    show_default=True,
    help="Time between two looks.",
)
@click.option(
    "-n",
    "--count",
    "rounds",
    type=click.IntRange(1),
    help="Look so many times, then end.",
)
@words.AS_JSON
@words.BROKER
def top(
    endpoint: str | None, interval: float, rounds: int | None, *, as_json: bool
) -> None:
    """Show what the sessions of a running broker use, until Ctrl-C.

    That is, of each with all it started: processor time (100% is one processor) and
    output a second since the last look, memory and processes now; the sums of each
    scope, and of all. The busiest come first.

    On a terminal it is one table that changes, with the extra `ui` (rich), and with
    --count the last one stays; elsewhere there is a table for each look. With --json it
    is a line for each look: an object with sessions (id, name, scope, state, argv,
    wall_time, processes, cpu, memory, rate) and scopes (scope, sessions, processes,
    cpu, memory, rate); cpu in processors, rate in bytes a second.
    """
    from actors.console import operating  # noqa: PLC0415 - see the package's docstring

    looks = operating.looks(words.broker(endpoint), interval)
    with _shown(as_json=as_json, endless=rounds is None) as show:
        words.finish(_rounds(looks, rounds, show))


async def _rounds(
    looks: AsyncGenerator[list["Look"], None],
    rounds: int | None,
    show: Callable[[Round], None],
) -> None:
    from actors.console.rates import Rates  # noqa: PLC0415

    rates, done = Rates(), count(1)
    async with aclosing(looks):
        async for found in looks:
            show(rates.round(found))
            if next(done) == rounds:
                return


@contextmanager
def _shown(*, as_json: bool, endless: bool) -> Iterator[Callable[[Round], None]]:
    """Give what shows a round; the last one stays, if that is not endless."""
    if as_json:
        yield lambda found: words.tell(json.dumps(_facts(found)))
        return
    person = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    live = _live(screen=endless) if person else None
    if live is None:
        yield lambda found: words.tell(words.fitted(_plain(found)) + "\n")
        return
    from rich.text import Text  # noqa: PLC0415 - an extra, for terminals

    # An end by one of these has to give the screen back, too.
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, _end)
    with live:
        yield lambda found: live.update(
            Text(words.fitted(_plain(found)), no_wrap=True), refresh=True
        )


def _end(number: int, _: object) -> None:
    sys.exit(exit_codes.SIGNALLED + number)


def _live(*, screen: bool) -> Any:
    """Return a display that changes in place, on a screen of its own if it may.

    Without rich there is none.
    """
    try:
        from rich.live import Live  # noqa: PLC0415
    except ModuleNotFoundError:
        return None
    return Live(screen=screen, auto_refresh=False, vertical_overflow="crop")


def _plain(found: Round) -> str:
    from actors.console.rates import by_scope, total  # noqa: PLC0415

    use = total(use for _, use in found)
    plural = "" if use.sessions == 1 else "s"
    cpu, memory, processes, output = _cells(use)
    sums = f"{use.sessions} session{plural}, CPU {cpu}, memory {memory}"
    parts = [f"{sums}, processes {processes}, output {output}"]
    scopes = by_scope(found)
    if scopes:
        rows = [(name, use.sessions, *_cells(use)) for name, use in scopes.items()]
        parts.append(words.table(SCOPES, rows))
    parts.append(words.table(HEADS, [_row(look, use) for look, use in found]))
    return "\n\n".join(parts)


def _row(look: "Look", use: "Use") -> tuple[object, ...]:
    time = words.duration(look.wall_time)
    known = (look.id, look.name or "-", look.state, time)
    return (*known, *_cells(use), words.command(look.argv))


def _cells(use: "Use") -> tuple[str, str, str, str]:
    return (
        f"{use.cpu:.0%}",
        words.amount(use.memory),
        str(use.processes),
        f"{words.amount(use.rate)}/s",
    )


def _facts(found: Round) -> dict[str, Any]:
    from actors.console.rates import by_scope  # noqa: PLC0415

    known = ("id", "name", "scope", "state", "argv", "wall_time")
    return {
        "sessions": [
            {**{name: getattr(look, name) for name in known}, **_used(use)}
            for look, use in found
        ],
        "scopes": [
            {"scope": name, "sessions": use.sessions, **_used(use)}
            for name, use in by_scope(found).items()
        ],
    }


def _used(use: "Use") -> dict[str, float]:
    return {n: getattr(use, n) for n in ("processes", "cpu", "memory", "rate")}
