"""What programs are told as JSON: dates out of stamps of another clock."""

from types import SimpleNamespace

import pytest

from actors.console import objects


def test_a_pause_between_the_two_clocks_moves_no_date(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stamps = iter([100.0, 100.5, 101.0, 101.0])  # half a second, then none
    clocks = SimpleNamespace(time=lambda: 5000.0, clock_gettime=lambda _: next(stamps))
    monkeypatch.setattr(objects, "time", clocks)
    assert objects.date(90.0) == 4989.0


def test_no_stamp_is_no_date() -> None:
    assert objects.date(None) is None
