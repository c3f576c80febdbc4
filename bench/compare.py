"""Workloads, rivals, rounds: the comparison itself, and what is told of it."""

import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from bench import machine, measure, report, rivals, rounds
from bench.measure import Case, Histogram, Row
from bench.one import cases
from bench.sizes import Sizes

WORKLOADS: Final = (
    "spawn",
    "capture",
    "echo",
    "stream",
    "hold",
    "growth",
    "drop",
    "startup",
    "idle",
)


@dataclass(slots=True)
class Results:
    """What all cases brought; filled case by case."""

    rows: list[Row] = field(default_factory=list)
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    stages: dict[str, dict[str, Histogram]] = field(default_factory=dict)
    skipped: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, case: Case, played: Sequence[measure.Round]) -> None:
        """Take the rounds of a case."""
        self.rows += measure.rows(case, played)
        if found := report.samples(case, played):
            self.samples[case.name] = found
        if rivals.OURS in case.systems and (
            profile := report.merged_stages(rivals.OURS, played)
        ):
            self.stages[case.name] = profile
        if failed := measure.failures(case, played):
            self.skipped[case.name] = failed

    def document(self, sizes: Sizes, count: int) -> dict[str, Any]:
        """Return all of it as one object."""
        return {
            "machine": machine.facts(),
            "sizes": asdict(sizes),
            "rounds": count,
            "rows": [asdict(row) for row in self.rows],
            "samples": self.samples,
            "stages": self.stages,
            "skipped": self.skipped,
        }

    def text(self) -> str:
        """Return all of it for people."""
        parts = [report.figures(self.rows)]
        if self.stages:
            parts.append(report.stages(self.stages))
        for case, failed in self.skipped.items():
            parts += [f"{case}: {name} failed: {why}" for name, why in failed.items()]
        return "\n\n".join(parts)


def run(
    workloads: Sequence[str],
    against: Collection[str],
    sizes: Sizes,
    count: int,
    *,
    only: Collection[str] = (),
) -> Results:
    """Play the rounds of all cases of some workloads.

    Args:
        workloads: their names.
        against: names of rivals; those that are not installed are left out, with a
            word to stderr.
        sizes: how much work a round is.
        count: rounds.
        only: names of cases; all unless given.
    """
    there = _installed(against)
    results = Results()
    for workload in workloads:
        for whole in cases(workload, sizes):
            if not only or whole.name in only:
                case = rounds.narrowed(whole, there)
                results.add(case, rounds.play(workload, case, sizes, count, tell))
    return results


def tell(line: str) -> None:
    """Tell those who wait how far it is."""
    print(line, file=sys.stderr, flush=True)


def _installed(names: Collection[str]) -> list[str]:
    there = [name for name in names if rivals.RIVALS[name].installed]
    for name in names:
        if name not in there:
            tell(f"{name} is left out: {rivals.RIVALS[name].package} is not installed")
    return there


def save(path: Path, document: dict[str, Any]) -> None:
    """Write a document as JSON."""
    path.write_text(json.dumps(document, indent=1) + "\n")
