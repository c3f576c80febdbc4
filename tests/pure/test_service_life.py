"""The table of a service's life: what must hold of every way through it."""

from collections.abc import Iterator

import pytest

from actors.services.life import AFTER, Happening, ServiceLife, State

ENDS = {State.ENDED, State.LEFT}


def ways(state: State, before: tuple[State, ...] = ()) -> Iterator[tuple[State, ...]]:
    """Yield every way from a state to an end, engines that are lost left out."""
    here = (*before, state)
    lost = Happening.ENGINE_LOST
    steps = [b for (a, h), b in AFTER.items() if a is state and h is not lost]
    if not steps:
        yield here
    for step in steps:
        yield from ways(step, here)


def test_every_way_ends_and_runs_the_stop_command_once_if_anything_started() -> None:
    found = list(ways(State.STARTING))
    assert len(found) == 7
    for way in found:
        assert way[-1] is (State.LEFT if State.LEAVING in way else State.ENDED)
        assert way.count(State.STOPPING) == (way != (State.STARTING, State.ENDED))


def test_the_tree_is_ended_after_the_stop_command() -> None:
    for way in ways(State.STARTING):
        for state in {State.ENDING, State.LEAVING} & set(way):
            assert way[way.index(state) - 1] is State.STOPPING


def test_an_engine_can_be_lost_at_any_time() -> None:
    lost = {a for a, h in AFTER if h is Happening.ENGINE_LOST}
    assert lost == set(State) - ENDS


def test_every_happening_can_happen() -> None:
    assert {happening for _, happening in AFTER} == set(Happening)


def test_a_life_goes_where_the_table_says() -> None:
    life = ServiceLife()
    assert not life.over
    for happening, state, over in (
        (Happening.LINE, State.READY, False),
        (Happening.LEADER_ENDED, State.FALLEN, False),
        (Happening.UNUSED, State.DRAINING, True),
        (Happening.IDLE, State.STOPPING, True),
        (Happening.STOPPED, State.ENDING, True),
        (Happening.GONE, State.ENDED, True),
    ):
        life.on(happening)
        assert life.state is state
        assert life.over is over
    with pytest.raises(KeyError):
        life.on(Happening.GONE)
