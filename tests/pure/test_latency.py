"""The histograms of the stages: what is counted where."""

from broker.latency import BUCKETS, STAGES, Latency


def test_nothing_noted_is_no_row() -> None:
    assert Latency().rows() == {stage: [] for stage in STAGES}


def test_a_time_is_counted_below_the_next_power_of_two() -> None:
    latency = Latency()
    for microseconds in (0, 1, 2, 3, 1000):
        latency.note("spawned", 10.0, 10.0 + microseconds / 1e6 + 1e-7)
    assert latency.rows()["spawned"] == [
        [1e-6, 1],
        [2e-6, 1],
        [4e-6, 2],
        [1024e-6, 1],
    ]


def test_stamps_that_crossed_count_as_no_time_at_all() -> None:
    latency = Latency()
    latency.note("leased", 10.0, 9.0)
    assert latency.rows()["leased"] == [[1e-6, 1]]


def test_what_is_not_known_is_not_counted() -> None:
    latency = Latency()
    latency.note("first_byte", 10.0, None)
    latency.note("reported", None, 10.0)
    assert latency.rows() == Latency().rows()


def test_the_longest_times_share_the_last_row() -> None:
    latency = Latency()
    latency.note("exit_seen", 0.0, 1e9)
    assert latency.rows()["exit_seen"] == [[2 ** (BUCKETS - 1) / 1e6, 1]]
