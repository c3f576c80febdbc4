"""What sessions use between two looks."""

from hypothesis import given, strategies as st

from actors.console.rates import Look, Rates, Use, by_scope, total

LOOK = Look(1000, "", "", "running", ("cat",), 2.0, 1.0, 4096, 1, 100)


def test_a_session_seen_first_is_measured_since_its_start() -> None:
    assert Rates().round([LOOK]) == [(LOOK, Use(1, 1, 0.5, 4096, 50.0))]


def test_later_it_is_measured_since_the_last_look() -> None:
    rates = Rates()
    rates.round([LOOK])
    later = LOOK._replace(
        wall_time=4.0, cpu_time=4.0, memory=1, processes=2, written=300
    )
    assert rates.round([later]) == [(later, Use(1, 2, 1.5, 1, 100.0))]


def test_one_that_stands_still_uses_nothing() -> None:
    rates = Rates()
    rates.round([LOOK])
    ((_, use),) = rates.round([LOOK._replace(wall_time=3.0)])
    assert (use.cpu, use.rate) == (0.0, 0.0)


def test_processor_time_never_runs_backwards() -> None:
    rates = Rates()
    rates.round([LOOK])
    ((_, use),) = rates.round([LOOK._replace(wall_time=3.0, cpu_time=0.9)])
    assert use.cpu == 0.0


def test_an_ended_session_is_measured_over_all_of_its_time() -> None:
    """Its age stands still: there is no time since the last look."""
    rates = Rates()
    rates.round([LOOK])
    ((_, use),) = rates.round([LOOK])
    assert (use.cpu, use.rate) == (0.5, 50.0)


def test_one_that_has_just_begun_divides_by_no_zero() -> None:
    ((_, use),) = Rates().round([LOOK._replace(wall_time=0.0, cpu_time=0.0, written=0)])
    assert (use.cpu, use.rate) == (0.0, 0.0)


def test_the_busiest_comes_first() -> None:
    looks = [
        LOOK._replace(id=1, cpu_time=0.0),
        LOOK._replace(id=3),
        LOOK._replace(id=2),
        LOOK._replace(id=4, cpu_time=2.0),
    ]
    assert [look.id for look, _ in Rates().round(looks)] == [4, 2, 3, 1]


def test_scopes_are_summed_by_name() -> None:
    a, b = LOOK._replace(id=1, scope="b"), LOOK._replace(id=2, scope="a")
    found = Rates().round([a, b, LOOK._replace(id=3, scope="b"), LOOK])
    assert list(by_scope(found)) == ["a", "b"]
    assert by_scope(found)["b"] == Use(2, 2, 1.0, 8192, 100.0)


def test_nothing_uses_nothing() -> None:
    assert total([]) == Use(0, 0, 0, 0, 0)
    assert by_scope([]) == {}


@given(st.lists(st.builds(Use, *[st.integers(0, 1000)] * 5)))
def test_a_total_is_the_sum_of_each(uses: list[Use]) -> None:
    for n, field in enumerate(total(uses)):
        assert field == sum(use[n] for use in uses)
