"""What a worker reads of its cgroup, put there by hand."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import usage
from broker.cgroup import Cgroup

pytestmark = pytest.mark.live

EVENTS = "low 0\nhigh 0\nmax 7\noom 5\noom_kill {}\noom_group_kill 9\n"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Cgroup]:
    """A directory like a cgroup's; what a worker keeps open of it is closed."""
    usage._memory_events.cache_clear()
    yield Cgroup(str(tmp_path))
    kept = usage._memory_events(str(tmp_path))
    usage._memory_events.cache_clear()
    if kept is not None:
        os.close(kept)


def test_s39_the_kernels_kills_are_counted_where_it_counts_them(home: Cgroup) -> None:
    events = Path(home.path, "memory.events")
    events.write_text(EVENTS.format(3))
    before = usage.oom_kills(home)
    assert before == 3
    assert not usage.oom_killed_since(before, home)
    events.write_text(EVENTS.format(4))
    assert usage.oom_killed_since(before, home)


def test_an_old_kernel_counts_none(home: Cgroup) -> None:
    Path(home.path, "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 5\n")
    assert usage.oom_kills(home) == 0


def test_where_nobody_counts_no_kill_is_found(home: Cgroup) -> None:
    assert usage.oom_kills(None) is None
    assert usage.oom_kills(home) is None
    assert not usage.oom_killed_since(None, home)


@pytest.mark.parametrize(("count", "crowded"), [(0, False), (3, False), (4, True)])
def test_a_cgroup_is_crowded_by_more_than_the_most(
    home: Cgroup, count: int, crowded: bool
) -> None:
    pids = "".join(f"{pid}\n" for pid in range(100, 100 + count))
    Path(home.path, "cgroup.procs").write_text(pids)
    assert home.crowded(3) is crowded


def test_members_that_take_many_reads_are_counted(home: Cgroup) -> None:
    Path(home.path, "cgroup.procs").write_text("12345678\n" * 5000)
    assert home.crowded(100)
