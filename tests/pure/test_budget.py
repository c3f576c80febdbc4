"""Budgets: which is over, what follows, and when the tree is looked at again."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from actors.budget import COSTS, FAR, NEAR, NOTHING, Budget, Over, Sample
from actors.settings import Limits, Watch


def budget(**limits: Any) -> Budget:
    """The budgets of a session that started at time 0."""
    return Budget(Limits(**limits), 0.0)


def sample(processes: int = 1, memory: int = 0, cost: float = 0.0) -> Sample:
    return Sample(processes, memory, 0.0, cost)


def test_s17_without_a_watch_nothing_is_over_and_nobody_looks() -> None:
    free = budget()
    assert free.next_sample() is None
    assert free.written(10**12) == []
    assert free.room(10**12) == float("inf")
    assert free.sampled(sample(10**6, 10**12), 1.0) == []


# Output


def test_s17_output_is_over_with_the_first_byte_too_much() -> None:
    tight = budget(output=10)
    assert tight.next_sample() is None
    assert tight.written(10) == []
    assert tight.written(11) == [Over("output", "terminate")]
    assert tight.written(12) == []


def test_s17_no_more_is_read_than_the_first_byte_too_much() -> None:
    tight = budget(output=10)
    assert tight.room(0) == 11
    assert tight.room(10) == 1
    assert tight.room(11) == 1
    tight.written(11)
    assert tight.room(11) == float("inf")


def test_s17_a_budget_that_is_only_told_holds_nothing_back() -> None:
    told = budget(output=Watch(10, "notify"))
    assert told.room(0) == float("inf")
    assert told.counts_output
    assert told.written(11) == [Over("output", "notify")]
    assert told.written(99) == []
    assert not told.counts_output


# The tree


@pytest.mark.parametrize(
    ("name", "most", "over"),
    [
        ("tree_memory", sample(memory=100), sample(memory=101)),
        ("tree_processes", sample(processes=100), sample(processes=101)),
    ],
)
def test_s17_a_tree_is_over_its_budget_with_one_too_much(
    name: Any, most: Sample, over: Sample
) -> None:
    for action in ("terminate", "notify"):
        watched = budget(**{name: Watch(100, action)})
        assert watched.sampled(most, 1.0) == []
        assert watched.sampled(over, 2.0) == [Over(name, action)]
        assert watched.sampled(over, 3.0) == []
        assert watched.next_sample() is None


def test_s17_two_budgets_are_told_each_for_itself() -> None:
    both = budget(tree_memory=Watch(100, "notify"), tree_processes=2)
    assert both.sampled(sample(1, 101), 1.0) == [Over("tree_memory", "notify")]
    assert both.next_sample() is not None
    assert both.sampled(sample(3, 101), 2.0) == [Over("tree_processes", "terminate")]
    assert both.next_sample() is None


def test_s17_a_tree_far_below_its_budget_is_looked_at_less_often() -> None:
    watched = budget(tree_memory=100)
    assert watched.next_sample() == NEAR
    watched.sampled(sample(memory=49), 1.0)
    assert watched.next_sample() == 1.0 + FAR
    watched.sampled(sample(memory=50), 2.0)
    assert watched.next_sample() == 2.0 + NEAR


def test_s17_what_is_not_watched_makes_no_hurry() -> None:
    watched = budget(tree_memory=100)
    watched.sampled(sample(processes=10**6), 1.0)
    assert watched.next_sample() == 1.0 + FAR


def test_s17_looking_at_a_large_tree_takes_a_bounded_part_of_a_processor() -> None:
    watched = budget(tree_processes=9)
    watched.sampled(sample(cost=1.0), 1.0)
    assert watched.next_sample() == 1.0 + COSTS


# The peak


def test_s39_the_peak_is_unknown_until_somebody_looked() -> None:
    watched = budget()
    assert watched.peak is None
    watched.note(NOTHING)
    assert watched.peak == 0


@given(st.lists(st.integers(0, 10**12), min_size=1))
def test_s39_the_peak_is_the_largest_sample(seen: list[int]) -> None:
    watched = budget()
    for now, memory in enumerate(seen):
        watched.sampled(sample(memory=memory), now)
    assert watched.peak == max(seen)
