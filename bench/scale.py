"""`python -m bench scale`: how far a broker, a machine and many machines go.

A calculation, not a measurement: from what one session, message and byte were measured
to cost, and from what a machine has, it says how many sessions of a given habit there
can be, and what ends first.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from bench import report
from bench.options import changed

GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Costs:
    """What `python -m bench costs` measured; CPU in seconds, memory in bytes.

    Attributes:
        broker_session: CPU of the broker's one thread for a start and an end.
        broker_message: the same for a command or a piece of output, one way.
        broker_byte: the same for a byte of output.
        session: CPU of all processes for a start and an end, the child's own included.
        message: the same for a message.
        byte: the same for a byte of output.
        idle: CPU of the engine for a session that does nothing, in a second.
        engine_memory: of supervisor, broker, pool and one client.
        session_memory: of the engine for each session, its worker included.
        child_memory: of a small child itself.
        session_pids: processes and threads of a session.
        engine_pids: those of an engine without one.
        session_files: descriptors that the broker has for a session.
        engine_files: those that it has without one.
    """

    broker_session: float = 300e-6
    broker_message: float = 87e-6
    broker_byte: float = 0.15 / GIB
    session: float = 2350e-6
    message: float = 210e-6
    byte: float = 0.76 / GIB
    idle: float = 12e-6
    engine_memory: float = 62 * 2.0**20
    session_memory: float = 1.93 * 2**20
    child_memory: float = 0.11 * 2**20
    session_pids: float = 2.0
    engine_pids: float = 13.0
    session_files: float = 1.0
    engine_files: float = 30.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine has, for engines and their children.

    Attributes:
        cores: processors.
        memory: bytes.
        pids: processes and threads that there can be.
        files: descriptors that one process may have.
        ptys: terminals.
        busy: the part of the CPU that may be used: near all of it queues grow without
            bound, at 0.7 a message waits as long again as it takes, and a bit.
    """

    cores: int = 2
    memory: float = 8 * 2.0**30
    pids: int = 32768
    files: int = 20000
    ptys: int = 4096
    busy: float = 0.7


@dataclass(frozen=True, slots=True)
class Habit:
    """What a session does, on the average.

    Attributes:
        lifetime: seconds that it lives.
        messages: of it in a second, both ways together.
        bytes: of output in a second.
        terminals: the part of sessions that have one.
    """

    lifetime: float = 60.0
    messages: float = 2.0
    bytes: float = 10240.0
    terminals: float = 0.1


@dataclass(frozen=True, slots=True)
class Fleet:
    """Brokers and machines, and how sessions are placed on them.

    Attributes:
        brokers: of each machine.
        machines: how many.
        even: whether each broker gets the same number; else each session is placed by
            chance, and the fullest broker, or machine, is where it ends.
    """

    brokers: int = 1
    machines: int = 1
    even: bool = True


@dataclass(frozen=True, slots=True)
class Saturation:
    """Where it ends.

    Attributes:
        resource: what is used up first.
        sessions: live ones of the whole fleet, then.
        room: the sessions of the whole fleet at which each resource would end.
        starts: sessions that start in a second.
        bytes: of output in a second.
    """

    resource: str
    sessions: float
    room: dict[str, float]
    starts: float
    bytes: float


def saturation(
    costs: Costs, machine: Machine, habit: Habit, fleet: Fleet
) -> Saturation:
    """Return how many sessions of a habit a fleet has room for, and what ends first."""
    by_machine = _machine_room(costs, machine, habit, fleet.brokers)
    by_broker = _broker_room(costs, machine, habit)
    room = {
        **{
            name: _spread(each, fleet.machines, fleet)
            for name, each in by_machine.items()
        },
        **{
            name: _spread(each, fleet.machines * fleet.brokers, fleet)
            for name, each in by_broker.items()
        },
    }
    resource = min(room, key=lambda name: room[name])
    sessions = room[resource]
    return Saturation(
        resource, sessions, room, sessions / habit.lifetime, sessions * habit.bytes
    )


def _machine_room(
    costs: Costs, machine: Machine, habit: Habit, brokers: int
) -> dict[str, float]:
    """The sessions that what all of a machine's brokers share has room for."""
    used = _per_second(habit, costs.session, costs.message, costs.byte) + costs.idle
    memory = machine.memory - brokers * costs.engine_memory
    pids = machine.pids - brokers * costs.engine_pids
    return {
        "cores": _fits(machine.cores * machine.busy, used),
        "memory": _fits(memory, costs.session_memory + costs.child_memory),
        "pids": _fits(pids, costs.session_pids),
        "ptys": _fits(machine.ptys, habit.terminals),
    }


def _broker_room(costs: Costs, machine: Machine, habit: Habit) -> dict[str, float]:
    """The sessions that one broker has room for: one thread, one table of files."""
    used = _per_second(
        habit, costs.broker_session, costs.broker_message, costs.broker_byte
    )
    return {
        "broker": _fits(machine.busy, used),
        "files": _fits(machine.files - costs.engine_files, costs.session_files),
    }


def _per_second(habit: Habit, session: float, message: float, byte: float) -> float:
    """The CPU that a session of a habit takes in a second of its life."""
    return session / habit.lifetime + habit.messages * message + habit.bytes * byte


def _fits(room: float, need: float) -> float:
    return max(0.0, room) / need if need else math.inf


def _spread(each: float, places: int, fleet: Fleet) -> float:
    """The sessions of all places when the fullest has `each`."""
    mean = each if fleet.even else mean_of_fullest(each, places)
    return mean * places


def mean_of_fullest(fullest: float, places: int) -> float:
    """Return what is in a place on the average when the fullest has `fullest`.

    Of `n` places filled by chance with `m` each, the fullest has about
    `m + sqrt(2 m ln n)`; this is solved for `m`.
    """
    spread = math.sqrt(2 * math.log(places))
    return ((math.sqrt(spread**2 + 4 * fullest) - spread) / 2) ** 2


SIZES: Final = ((1, 1), (1, 2), (1, 4), (10, 1), (1000, 1), (1000, 4))
"""Machines, and brokers of each, that are told."""


def told(costs: Costs, machine: Machine, habit: Habit, *, even: bool) -> str:
    """Return what fleets of several sizes have room for."""
    head = ("machines", "brokers each", "sessions", "starts/s", "GiB/s", "ends first")
    return report.table(
        head,
        (
            _cells(Fleet(brokers, machines, even), costs, machine, habit)
            for machines, brokers in SIZES
        ),
    )


def _cells(
    fleet: Fleet, costs: Costs, machine: Machine, habit: Habit
) -> tuple[str, ...]:
    found = saturation(costs, machine, habit, fleet)
    return (
        str(fleet.machines),
        str(fleet.brokers),
        f"{found.sessions:.0f}",
        f"{found.starts:.4g}",
        f"{found.bytes / GIB:.3g}",
        found.resource,
    )


def main(words: Sequence[str]) -> None:
    """Calculate, and tell."""
    parser = argparse.ArgumentParser("python -m bench scale", description=__doc__)
    for name, numbers in (("costs", Costs), ("machine", Machine), ("habit", Habit)):
        parser.add_argument(
            f"--{name}",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=", ".join(each.name for each in fields(numbers)),
        )
    parser.add_argument(
        "--measured", type=Path, metavar="FILE", help="of `python -m bench costs`"
    )
    parser.add_argument("--by-chance", action="store_true", help="place them so")
    given = parser.parse_args(words)
    print(
        told(
            changed(_measured(given.measured), given.costs),
            changed(Machine(), given.machine),
            changed(Habit(), given.habit),
            even=not given.by_chance,
        )
    )


def _measured(file: Path | None) -> Costs:
    return Costs() if file is None else Costs(**json.loads(file.read_text())["costs"])
