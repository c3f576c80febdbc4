"""`python -m bench WORKLOAD [--rounds N] [--json]`."""

import argparse
import importlib
import json
from typing import Final

from bench import measure

WORKLOADS: Final = ("spawn", "echo", "stream", "hold", "drop")


def cases(workload: str) -> tuple[measure.Case, ...]:
    """Return what a workload consists of."""
    found: tuple[measure.Case, ...] = importlib.import_module(f"bench.{workload}").CASES
    return found


def main() -> None:
    """Measure, and tell."""
    parser = argparse.ArgumentParser("python -m bench", description=measure.__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", help="only this case of the workload")
    parser.add_argument("--json", action="store_true", help="one object, no table")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    by_name = {case.name: case for case in cases(given.workload)}
    if given.only is not None:
        case, system = given.only
        print(json.dumps(by_name[case].systems[system]()))
        return
    chosen = [by_name[given.case]] if given.case else list(by_name.values())
    found = [
        row
        for case in chosen
        for row in measure.rows(case, measure.play(given.workload, case, given.rounds))
    ]
    if given.json:
        print(json.dumps(measure.document(given.workload, given.rounds, found)))
    else:
        print(measure.table(found))
        print(", ".join(f"{key} {value}" for key, value in measure.machine().items()))


if __name__ == "__main__":
    main()
