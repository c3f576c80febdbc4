"""What a broker has room for: the scarcest resource says it."""

import pytest

from broker.capacity import least
from broker.registry import Capacity


@pytest.mark.parametrize(
    ("files", "processes", "capacity"),
    [
        (1024, None, Capacity(412, "descriptors")),
        (1_000_000, 32768, Capacity(16334, "processes")),
        (20_000, 1_000_000, Capacity(9900, "descriptors")),
        (100, 32768, Capacity(1, "descriptors")),
        (1_000_000, 50, Capacity(1, "processes")),
    ],
)
def test_the_scarcest_resource_says_how_many_sessions_there_can_be(
    files: int, processes: int | None, capacity: Capacity
) -> None:
    assert least(files, processes) == capacity
