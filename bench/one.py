"""`python -m bench.one WORKLOAD CASE SYSTEM SIZES`: one system's turn.

A process of its own, started by `bench.rounds`; prints what it found as JSON.
"""

import importlib
import json
import os
import resource
import sys
import traceback
from dataclasses import asdict

from bench.measure import Case, Found
from bench.sizes import Sizes


def cases(workload: str, sizes: Sizes) -> tuple[Case, ...]:
    """Return what a workload consists of."""
    found: tuple[Case, ...] = importlib.import_module(f"bench.{workload}").cases(sizes)
    return found


def _found(workload: str, name: str, system: str, sizes: Sizes) -> Found:
    (case,) = (case for case in cases(workload, sizes) if case.name == name)
    try:
        return case.systems[system]()
    except Exception as error:
        traceback.print_exc()
        return Found(failed=f"{type(error).__name__}: {error}")


def _allow_many_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    """Take the turn that the command line names."""
    workload, name, system, sizes = sys.argv[1:]
    # A library may print what it likes: what is ours goes to what was stdout.
    answer = os.dup(1)
    os.dup2(2, 1)
    _allow_many_files()
    found = _found(workload, name, system, Sizes.from_json(sizes))
    with open(answer, "w") as file:
        json.dump(asdict(found), file)


if __name__ == "__main__":
    main()
