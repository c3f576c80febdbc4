"""Rounds and ratios: how several systems are compared on a noisy machine.

The systems take turns: in each round each does the same work once, in a process of its
own, so that neither's threads or leftovers touch the other's figures. A ratio is taken
inside a round, and what is told is the median over the rounds and its spread: noise
that lasts longer than a round falls out. A ratio is always "times better than the
reference", for rates and for costs alike.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

POINTS: Final = 200
"""Points that a distribution is thinned to: enough to draw it."""

Histogram = Sequence[tuple[float, int]]
"""Rows of an upper bound in seconds and how many took at most that, and more than the
row before."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that a case measures; `at` is its place on a curve, if it is on one."""

    name: str
    unit: str
    better: Literal["more", "less"]
    at: int | None = None

    @property
    def key(self) -> str:
        """What the figure is called among the values of a round."""
        return self.name if self.at is None else f"{self.name} @{self.at}"

    def ratio(self, own: float, reference: float) -> float:
        """Return how many times better `own` is than `reference`; NaN if neither is."""
        over, under = (own, reference) if self.better == "more" else (reference, own)
        if under:
            return over / under
        return math.inf if over else math.nan


@dataclass(frozen=True, slots=True)
class Found:
    """What one round of one system brought.

    Attributes:
        values: by the key of a figure.
        samples: distributions, by name: thinned, sorted.
        stages: where the engine's time went, by stage; of an engine that tells it.
        failed: why there is nothing else.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    stages: Mapping[str, Histogram] = field(default_factory=dict)
    failed: str = ""


Work = Callable[[], Found]
"""Does the work of one round once."""


@dataclass(frozen=True, slots=True)
class Case:
    """The same work for several systems; the first of them is the reference."""

    name: str
    figures: Sequence[Figure]
    systems: Mapping[str, Work]

    @property
    def reference(self) -> str:
        """The system that the others are compared with."""
        return next(iter(self.systems))


@dataclass(frozen=True, slots=True)
class Row:
    """What all rounds say of one figure of one system."""

    case: str
    figure: str
    at: int | None
    unit: str
    system: str
    median: float
    low: float
    high: float
    ratio: float
    ratio_low: float
    ratio_high: float


Round = Mapping[str, Found]
"""What each system brought in one round."""


def turns(names: Sequence[str], rounds: int) -> list[list[str]]:
    """Return the order of the systems in each round: each is first in its turn."""
    firsts = [number % len(names) for number in range(rounds)]
    return [[*names[first:], *names[:first]] for first in firsts]


def rows(case: Case, played: Sequence[Round]) -> list[Row]:
    """Condense the rounds of a case; a system that always failed has no row."""
    made = (
        _row(case, figure, system, played)
        for figure in case.figures
        for system in case.systems
    )
    return [row for row in made if row is not None]


def _row(
    case: Case, figure: Figure, system: str, played: Sequence[Round]
) -> Row | None:
    own = [
        one[system].values[figure.key]
        for one in played
        if system in one and figure.key in one[system].values
    ]
    if not own:
        return None
    ratios = [
        figure.ratio(
            one[system].values[figure.key], one[case.reference].values[figure.key]
        )
        for one in played
        if all(
            name in one and figure.key in one[name].values
            for name in (system, case.reference)
        )
    ] or [math.nan]
    return Row(
        case.name,
        figure.name,
        figure.at,
        figure.unit,
        system,
        *_spread(own),
        *_spread(ratios),
    )


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def failures(case: Case, played: Sequence[Round]) -> dict[str, str]:
    """Return why systems failed, by system: the last reason of each."""
    return {
        system: one[system].failed
        for one in played
        for system in case.systems
        if system in one and one[system].failed
    }


def times(taken: Sequence[float], *, per_second: float) -> Found:
    """Return p50, p99 and the distribution of `taken` seconds in another unit."""
    scaled = [seconds * per_second for seconds in taken]
    return Found(
        {"p50": quantile(scaled, 0.5), "p99": quantile(scaled, 0.99)},
        {"each": thin(scaled)},
    )


def quantile(values: Sequence[float], part: float) -> float:
    """Return the value below which `part` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def thin(values: Sequence[float]) -> list[float]:
    """Return at most `POINTS` values that are distributed as these are, sorted."""
    if len(values) <= POINTS:
        return sorted(values)
    return [quantile(values, (point + 0.5) / POINTS) for point in range(POINTS)]


def histogram_quantile(rows: Histogram, part: float) -> float:
    """Return the upper bound of the row in which `part` of what was counted is reached.

    NaN if nothing was counted.
    """
    wanted = part * sum(count for _, count in rows)
    seen = 0
    for bound, count in rows:
        seen += count
        if count and seen >= wanted:
            return bound
    return math.nan
