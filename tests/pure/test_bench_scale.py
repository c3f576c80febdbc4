"""How far a fleet goes, from what one session costs."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from bench.scale import (
    Costs,
    Fleet,
    Habit,
    Machine,
    mean_of_fullest,
    saturation,
    told,
)

COSTS, MACHINE, HABIT = Costs(), Machine(), Habit()
IDLE = Habit(lifetime=3600.0, messages=0.0, bytes=0.0, terminals=0.0)
"""What idle sessions need is room."""


def ends_first(
    machine: Machine = MACHINE, habit: Habit = HABIT, fleet: Fleet | None = None
) -> str:
    return saturation(COSTS, machine, habit, fleet or Fleet()).resource


def test_a_machine_of_little_memory_ends_with_it() -> None:
    assert ends_first(replace(MACHINE, memory=2.0**30), IDLE) == "memory"


def test_a_machine_of_few_pids_ends_with_them() -> None:
    assert ends_first(replace(MACHINE, pids=1000), IDLE) == "pids"


def test_a_process_of_few_files_ends_the_broker_with_them() -> None:
    assert ends_first(replace(MACHINE, files=1024), IDLE) == "files"


def test_terminals_end_first_where_every_session_has_one() -> None:
    roomy = replace(MACHINE, memory=2.0**36)
    assert ends_first(roomy, replace(IDLE, terminals=1.0)) == "ptys"


def test_short_lives_end_with_the_cores_and_with_many_cores_at_the_broker() -> None:
    short = replace(IDLE, lifetime=0.1)
    assert ends_first(habit=short) == "cores"
    assert ends_first(replace(MACHINE, cores=64), short) == "broker"


def test_a_second_broker_helps_where_the_broker_is_the_end() -> None:
    wide, short = replace(MACHINE, cores=64), replace(IDLE, lifetime=0.1)
    one = saturation(COSTS, wide, short, Fleet(1))
    two = saturation(COSTS, wide, short, Fleet(2))
    assert two.sessions == pytest.approx(2 * one.sessions)
    assert two.starts == pytest.approx(two.sessions / 0.1)


def test_machines_add_up() -> None:
    one = saturation(COSTS, MACHINE, HABIT, Fleet())
    many = saturation(COSTS, MACHINE, HABIT, Fleet(machines=1000))
    assert many.sessions == pytest.approx(1000 * one.sessions)
    assert many.bytes == pytest.approx(1000 * one.sessions * HABIT.bytes)


def test_chance_leaves_some_places_emptier_than_the_fullest() -> None:
    even = saturation(COSTS, MACHINE, HABIT, Fleet(machines=1000))
    chance = saturation(COSTS, MACHINE, HABIT, Fleet(machines=1000, even=False))
    assert 0.8 * even.sessions < chance.sessions < even.sessions


def test_one_place_is_as_full_as_the_fullest() -> None:
    assert mean_of_fullest(500, 1) == pytest.approx(500)


def test_the_fullest_place_is_as_full_as_a_throw_of_dice_says() -> None:
    places, mean = 1000, 50
    throws = Counter(random.Random(1).choices(range(places), k=places * mean))
    fullest = max(throws.values())
    assert mean_of_fullest(fullest, places) == pytest.approx(mean, rel=0.06)


def test_what_needs_nothing_of_a_resource_never_ends_by_it() -> None:
    room = saturation(COSTS, MACHINE, replace(IDLE, terminals=0), Fleet()).room
    assert room["ptys"] == float("inf")


def test_nothing_fits_where_the_engine_itself_does_not() -> None:
    small = replace(MACHINE, memory=2.0**20)
    assert saturation(COSTS, small, HABIT, Fleet()).sessions == 0


def test_the_table_has_a_line_for_each_fleet() -> None:
    lines = told(COSTS, MACHINE, HABIT, even=True).splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["1", "1"],
        ["1", "2"],
        ["1", "4"],
        ["10", "1"],
        ["1000", "1"],
        ["1000", "4"],
    ]
