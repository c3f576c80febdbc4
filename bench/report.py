"""What was measured, as text for people."""

import math
from collections.abc import Iterable, Mapping, Sequence

from bench.measure import Case, Histogram, Round, Row, histogram_quantile, thin


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return columns of text."""
    rows = [head, *lines]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    )


def figures(found: Sequence[Row]) -> str:
    """Return the rows as a table."""
    head = ("case", "figure", "system", "median", "range", "better by", "range")
    return table(head, map(_cells, found))


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.case,
        row.figure if row.at is None else f"{row.figure} @{row.at}",
        row.system,
        f"{row.median:.4g} {row.unit}",
        f"{row.low:.4g}..{row.high:.4g}",
        ratio(row.ratio),
        f"{ratio(row.ratio_low)}..{ratio(row.ratio_high)}",
    )


def ratio(value: float) -> str:
    """Return a ratio as text; "-" if there is nothing to compare."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.2f}x" if value >= 0.1 else f"{value:.2g}x"


def stages(profiles: Mapping[str, Mapping[str, Histogram]]) -> str:
    """Return where the time of an engine's sessions went, in each case."""
    return table(
        ("case", "stage", "p50 at most", "p99 at most", "sessions"),
        (
            (case, stage, _bound(rows, 0.5), _bound(rows, 0.99), _count(rows))
            for case, profile in profiles.items()
            for stage, rows in profile.items()
            if rows
        ),
    )


def _bound(rows: Histogram, part: float) -> str:
    return f"{histogram_quantile(rows, part) * 1e3:g} ms"


def _count(rows: Histogram) -> str:
    return str(sum(count for _, count in rows))


def merged_stages(system: str, played: Sequence[Round]) -> dict[str, Histogram]:
    """Return the stages of all rounds of a system, counted together."""
    merged: dict[str, dict[float, int]] = {}
    for one in played:
        for name, rows in one[system].stages.items():
            counts = merged.setdefault(name, {})
            for bound, count in rows:
                counts[bound] = counts.get(bound, 0) + count
    return {name: sorted(counts.items()) for name, counts in merged.items()}


def samples(case: Case, played: Sequence[Round]) -> dict[str, list[float]]:
    """Return the distribution of each system that has one, over all rounds."""
    gathered = {
        system: [
            value for one in played for value in one[system].samples.get("each", ())
        ]
        for system in case.systems
    }
    return {system: thin(values) for system, values in gathered.items() if values}
