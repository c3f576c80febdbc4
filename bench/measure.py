"""Rounds, ratios and tables: how two systems are compared on a noisy machine.

The systems take turns: in each round each does the same work once, in a process of its
own, so that neither's threads or leftovers touch the other's figures. A ratio is taken
inside a round, and what is told is the median over the rounds and its spread: noise
that lasts longer than a round falls out. A ratio is always "times better than the
reference", for rates and for costs alike.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

SYSTEM_TIMEOUT: Final = 300.0
"""Seconds after which a system's round counts as hung."""

Values = Mapping[str, float]
Work = Callable[[], Values]
"""Does the work of one round once and returns what it measured, by figure."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that a case measures."""

    name: str
    unit: str
    better: Literal["more", "less"]

    def ratio(self, own: float, reference: float) -> float:
        """Return how many times better `own` is than `reference`."""
        over, under = (own, reference) if self.better == "more" else (reference, own)
        return over / under if under else float("inf")


@dataclass(frozen=True, slots=True)
class Case:
    """The same work for several systems; the first of them is the reference."""

    name: str
    figures: Sequence[Figure]
    systems: Mapping[str, Work]


@dataclass(frozen=True, slots=True)
class Row:
    """What all rounds say of one figure of one system."""

    case: str
    figure: str
    unit: str
    system: str
    median: float
    low: float
    high: float
    ratio: float
    ratio_low: float
    ratio_high: float


def play(workload: str, case: Case, rounds: int) -> list[dict[str, Values]]:
    """Return what each system measured in each round."""
    names = list(case.systems)
    played = []
    for turn in range(rounds):
        first = turn % len(names)
        order = names[first:] + names[:first]
        played.append({name: _in_process(workload, case.name, name) for name in order})
    return played


def _in_process(workload: str, case: str, system: str) -> Values:
    words = [sys.executable, "-m", "bench", workload, "--only", case, system]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, timeout=SYSTEM_TIMEOUT, check=True
    )
    values: dict[str, float] = json.loads(done.stdout)
    return values


def rows(case: Case, played: Sequence[Mapping[str, Values]]) -> list[Row]:
    """Condense the rounds of a case."""
    reference = next(iter(case.systems))
    return [
        _row(case, figure, system, reference, played)
        for figure in case.figures
        for system in case.systems
    ]


def _row(
    case: Case,
    figure: Figure,
    system: str,
    reference: str,
    played: Sequence[Mapping[str, Values]],
) -> Row:
    own = [values[system][figure.name] for values in played]
    ratios = [
        figure.ratio(values[system][figure.name], values[reference][figure.name])
        for values in played
    ]
    return Row(
        case.name,
        figure.name,
        figure.unit,
        system,
        statistics.median(own),
        min(own),
        max(own),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
    )


def table(found: Sequence[Row]) -> str:
    """Return the rows as text for people."""
    head = ("case", "figure", "system", "median", "range", "better by", "range")
    lines = [head, *(_cells(row) for row in found)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.case,
        row.figure,
        row.system,
        f"{row.median:.4g} {row.unit}",
        f"{row.low:.4g}..{row.high:.4g}",
        f"{row.ratio:.2f}x",
        f"{row.ratio_low:.2f}..{row.ratio_high:.2f}",
    )


def document(workload: str, rounds: int, found: Sequence[Row]) -> dict[str, Any]:
    """Return everything about a run as one JSON object."""
    return {
        "workload": workload,
        "rounds": rounds,
        "machine": machine(),
        "rows": [asdict(row) for row in found],
    }


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": list(os.getloadavg()),
    }


def quantile(values: Sequence[float], part: float) -> float:
    """Return the value below which `part` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
