"""Playing the rounds of a case, each turn in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from bench import proc, rivals
from bench.measure import Case, Found, Round, turns
from bench.place import environment
from bench.sizes import Sizes
from bench.victims import Victims
from broker import tree

TURN_TIMEOUT: Final = 300.0
"""Seconds after which a turn counts as hung."""

Tell = Callable[[str], None]
"""Is told what happens, a line each."""


def narrowed(case: Case, against: Collection[str]) -> Case:
    """Return a case with its reference, what is ours, and those of `against`."""
    wanted = {case.reference, rivals.OURS, *against}
    kept = {name: work for name, work in case.systems.items() if name in wanted}
    return replace(case, systems=kept)


def play(
    workload: str, case: Case, sizes: Sizes, rounds: int, tell: Tell
) -> list[Round]:
    """Return what each system brought in each round."""
    tree.become_subreaper()  # what a turn leaves behind comes to us
    played: list[Round] = []
    for number, order in enumerate(turns(list(case.systems), rounds), 1):
        found = {}
        for system in order:
            tell(f"{case.name}, round {number} of {rounds}: {system}")
            found[system] = _turn(workload, case.name, system, sizes)
        played.append(found)
    return played


def _turn(workload: str, case: str, system: str, sizes: Sizes) -> Found:
    words = [sys.executable, "-m", "bench.one", workload, case, system, sizes.to_json()]
    try:
        done = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            env=environment(),
            timeout=TURN_TIMEOUT,
            check=True,
        )
        return Found(**json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return Found(failed=f"no end within {TURN_TIMEOUT:g} seconds")
    except subprocess.CalledProcessError as error:
        return Found(failed=str(error))
    finally:
        _sweep()


def _sweep() -> None:
    """End what a turn left: a library may not end all that it started."""
    while left := [pid for pid in proc.family(os.getpid()) if pid != os.getpid()]:
        with Victims(left) as victims:
            victims.kill()
            victims.wait()
        _reap()


def _reap() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return
