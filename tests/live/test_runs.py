"""What becomes of the session of a run beside its capture."""

import pytest

from broker.wire import Kind
from tests.live.children import program
from tests.live.driven import READER, WINDOW, Driven

pytestmark = pytest.mark.live


def test_a_run_whose_capture_is_stopped_stays_and_tells_of_its_end() -> None:
    terms = {"reader": READER, "release": True, **WINDOW}
    driven = Driven(program("os.read(0, 1)"), terms)
    driven.answer(driven.ask(Kind.STOP, {"target": READER}))
    driven.write(b"x")
    said = driven.until(Kind.CLOSED)
    ends = [(m.kind, m.request) for m in said if m.kind in (Kind.EXITED, Kind.CLOSED)]
    assert ends == [(Kind.EXITED, 0), (Kind.CLOSED, 0)]
    assert driven.answer(driven.ask(Kind.SNAPSHOT, {})).kind is Kind.REPLY
    driven.close()
