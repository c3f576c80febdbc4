"""The clock that can be stopped."""

from actors.clock import Clock


def test_a_running_clock_shows_the_time() -> None:
    clock = Clock()
    assert clock.read(5.0) == 5.0
    assert clock.when(9.0) == 9.0
    assert clock.when(None) is None


def test_a_stopped_clock_reaches_nothing_that_was_not_reached() -> None:
    clock = Clock()
    clock.stop(5.0)
    clock.stop(6.0)
    assert clock.read(99.0) == 5.0
    assert clock.when(5.0) == 5.0
    assert clock.when(5.1) is None
    assert clock.when(None) is None


def test_it_goes_on_and_says_how_long_it_stood() -> None:
    clock = Clock()
    assert clock.go(1.0) == 0.0
    clock.stop(5.0)
    assert clock.go(7.5) == 2.5
    assert clock.read(8.0) == 8.0
    assert clock.go(9.0) == 0.0
