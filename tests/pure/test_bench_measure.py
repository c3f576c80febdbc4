"""How rounds become ratios, and what is told of them."""

import math
import random

import pytest

from bench import measure, mixed, options, quick, report, rounds
from bench.measure import Case, Figure, Found
from bench.sizes import QUICK, Sizes

RATE = Figure("rate", "/s", "more")
COST = Figure("cost", "ms", "less")


def case(*figures: Figure) -> Case:
    return Case("work", figures, {"asyncio": Found, "creche": Found, "trio": Found})


def played(**rates: list[float | None]) -> list[dict[str, Found]]:
    """Rounds in which each system had these rates; None: it failed."""
    return [
        {
            name: Found(failed="it broke") if rate is None else Found({"rate": rate})
            for name, rate in zip(rates, one, strict=True)
        }
        for one in zip(*rates.values(), strict=True)
    ]


def test_a_ratio_above_one_is_better_for_rates_and_costs_alike() -> None:
    assert RATE.ratio(200, 100) == 2
    assert COST.ratio(50, 100) == 2


def test_nothing_beside_nothing_is_no_ratio() -> None:
    assert math.isnan(COST.ratio(0, 0))
    assert math.isinf(COST.ratio(0, 1))


def test_a_figure_on_a_curve_is_known_by_its_place() -> None:
    assert Figure("true", "us", "less", 100).key == "true @100"


def test_every_system_is_first_in_its_turn() -> None:
    assert measure.turns("abc", 4) == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


def test_ratios_are_taken_within_a_round() -> None:
    """The second round was four times as slow for both: it does not show."""
    found = measure.rows(
        case(RATE), played(asyncio=[100, 25, 100], creche=[150, 37.5, 150])
    )
    assert [(row.system, row.ratio, row.ratio_low) for row in found] == [
        ("asyncio", 1, 1),
        ("creche", 1.5, 1.5),
    ]


def test_a_round_that_failed_is_left_out() -> None:
    rounds = played(asyncio=[100, 100], creche=[None, 50], trio=[None, None])
    found = measure.rows(case(RATE), rounds)
    assert [(row.system, row.ratio) for row in found] == [
        ("asyncio", 1),
        ("creche", 0.5),
    ]
    assert measure.failures(case(RATE), rounds) == dict.fromkeys(
        ("creche", "trio"), "it broke"
    )


def test_without_the_reference_there_is_a_figure_and_no_ratio() -> None:
    (row,) = measure.rows(case(RATE), played(asyncio=[None], creche=[50]))
    assert row.median == 50
    assert math.isnan(row.ratio)
    assert report.ratio(row.ratio) == "-"


def test_only_the_rivals_that_were_asked_for_stay() -> None:
    assert list(rounds.narrowed(case(RATE), []).systems) == ["asyncio", "creche"]
    assert list(rounds.narrowed(case(RATE), ["trio"]).systems) == list(
        case(RATE).systems
    )


def test_a_distribution_is_thinned_and_keeps_its_shape() -> None:
    many = random.Random(1).choices(range(1000), k=5000)
    thinned = measure.thin(many)
    assert len(thinned) == measure.POINTS
    for part in (0.1, 0.5, 0.9):
        whole = measure.quantile(many, part)
        assert measure.quantile(thinned, part) == pytest.approx(whole, abs=10)
    assert measure.thin([3, 1, 2]) == [1, 2, 3]


def test_times_come_with_their_unit() -> None:
    found = measure.times([0.001, 0.003, 0.002], per_second=1e3)
    assert found.values == {"p50": 2, "p99": 3}
    assert found.samples == {"each": [1, 2, 3]}


def test_a_quantile_of_a_histogram_is_the_bound_of_its_row() -> None:
    rows = [(0.001, 98), (0.002, 1), (0.004, 1)]
    assert measure.histogram_quantile(rows, 0.5) == 0.001
    assert measure.histogram_quantile(rows, 0.99) == 0.002
    assert measure.histogram_quantile(rows, 1) == 0.004
    assert math.isnan(measure.histogram_quantile([], 0.5))


def test_the_stages_of_all_rounds_are_counted_together() -> None:
    one = Found(stages={"queued": [(0.001, 2)]})
    other = Found(stages={"queued": [(0.002, 1), (0.001, 1)]})
    merged = report.merged_stages("creche", [{"creche": one}, {"creche": other}])
    assert merged == {"queued": [(0.001, 3), (0.002, 1)]}
    shown = report.stages({"true": merged}).splitlines()
    assert shown[1].split() == ["true", "queued", "1", "ms", "2", "ms", "4"]


def test_sizes_survive_a_command_line() -> None:
    assert Sizes.from_json(QUICK.to_json()) == QUICK


def test_numbers_are_changed_by_name() -> None:
    found = options.changed(Sizes(), ["serial=3", "levels=1,2", "idle_seconds=0.5"])
    assert (found.serial, found.levels, found.idle_seconds) == (3, (1, 2), 0.5)


@pytest.mark.parametrize("word", ["speed=3", "serial=fast", "serial"])
def test_what_changes_no_number_is_refused(word: str) -> None:
    with pytest.raises(SystemExit, match=word.partition("=")[0]):
        options.changed(Sizes(), [word])


@pytest.mark.parametrize(
    ("now", "verdict"),
    [(2.0, "better"), (1.2, ""), (0.8, ""), (0.7, "worse"), (0.5, "much worse")],
)
def test_a_move_is_judged_by_its_factor(now: float, verdict: str) -> None:
    (move,) = quick.moves({"true p50": 1.0}, {"true p50": now})
    assert move.verdict == verdict


def test_a_ratio_on_one_side_only_is_told() -> None:
    found = quick.moves({"old": 1.0}, {"young": 2.0})
    assert [(move.name, move.verdict) for move in found] == [
        ("old", "gone"),
        ("young", "new"),
    ]


def test_minutes_are_compared_with_the_second() -> None:
    minutes = [{"spawns": 1.0, "files": 0.0}, {"spawns": 4.0, "files": 0.0}]
    minutes.append({"spawns": 2.0, "files": 0.0})
    assert mixed.growth("spawns", minutes) == 0.5
    assert math.isnan(mixed.growth("files", minutes))
    assert math.isnan(mixed.growth("spawns", minutes[:1]))
    assert mixed.told(minutes).splitlines()[1].split() == ["spawns", *"142", "0.50x"]
