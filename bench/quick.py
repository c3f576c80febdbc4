"""`python -m bench quick`: has anything become much slower than it was recorded?

A minute of small workloads. What is compared are ratios, ours against another system
of the same run, so that a recording holds on other machines too, more or less: a
ratio that moved by a third is told, and only one that is half of what was recorded
fails.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from bench import compare, machine, report, rivals
from bench.measure import Row
from bench.sizes import QUICK

RECORDED: Final = Path(__file__).with_name("recorded.json")
ROUNDS: Final = 3
WORKLOADS: Final = ("spawn", "capture", "echo", "stream", "hold", "startup", "drop")
CASES: Final = frozenset(
    (
        "true",
        "true-64",
        "capture-64",
        "echo",
        "echo-64",
        "64-KiB-writes",
        "16-streams",
        f"hold-{QUICK.sessions}",
        "start-up",
        "drop-client",
    )
)
FIGURES: Final = frozenset(("p50", "rate", "start", "memory", "kill"))
"""Tails and sums of a few tries say too little."""
NOTABLE: Final = 1.3
"""The change that is told: what is less cannot be told from noise."""
FATAL: Final = 2.0
"""The change for the worse that fails."""

Verdict = Literal["", "better", "worse", "much worse", "new", "gone"]


@dataclass(frozen=True, slots=True)
class Move:
    """What became of one ratio; NaN where there is none."""

    name: str
    recorded: float
    now: float
    verdict: Verdict


def ratios(rows: Sequence[Row]) -> dict[str, float]:
    """Return our ratios among the rows, by case and figure."""
    return {
        f"{row.case} {row.figure}": row.ratio
        for row in rows
        if row.system == rivals.OURS and row.figure in FIGURES
    }


def moves(recorded: Mapping[str, float], now: Mapping[str, float]) -> list[Move]:
    """Return what became of each ratio that was recorded, or is there now."""
    return [
        _move(name, recorded.get(name), now.get(name)) for name in {**recorded, **now}
    ]


def _move(name: str, before: float | None, now: float | None) -> Move:
    if before is None or now is None:
        nothing = float("nan")
        verdict: Verdict = "new" if before is None else "gone"
        return Move(name, before or nothing, now or nothing, verdict)
    return Move(name, before, now, _verdict(now / before))


def _verdict(change: float) -> Verdict:
    if change >= NOTABLE:
        return "better"
    if change > 1 / NOTABLE:
        return ""
    return "worse" if change > 1 / FATAL else "much worse"


def main(words: Sequence[str]) -> None:
    """Measure, compare, tell."""
    parser = argparse.ArgumentParser("python -m bench quick", description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the file anew")
    parser.add_argument("--file", type=Path, default=RECORDED)
    given = parser.parse_args(words)
    results = compare.run(WORKLOADS, [], QUICK, ROUNDS, only=CASES)
    now = ratios(results.rows)
    if given.record:
        found = {"machine": machine.facts(), "ratios": now}
        compare.save(given.file, found)
    sys.exit(_told(_recorded(given.file), now))


def _recorded(file: Path) -> dict[str, float]:
    if not file.exists():
        return {}
    found: dict[str, float] = json.loads(file.read_text())["ratios"]
    return found


def _told(recorded: Mapping[str, float], now: Mapping[str, float]) -> int:
    """Print what moved; return the exit status."""
    found = moves(recorded, now)
    lines = [
        (move.name, report.ratio(move.recorded), report.ratio(move.now), move.verdict)
        for move in found
    ]
    print(report.table(("ours against the reference", "recorded", "now", ""), lines))
    print(machine.line(machine.facts()))
    return int(any(move.verdict in ("much worse", "gone") for move in found))
