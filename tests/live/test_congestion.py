"""Output that waits because the leg to the broker is full."""

from pathlib import Path

import pytest

from actors import OutputPolicy
from broker.wire import Kind
from tests.helpers import eventually
from tests.live.children import MIB, program
from tests.live.driven import READER, Driven

pytestmark = pytest.mark.live

SIZE = 4 * MIB
KEPT = OutputPolicy("tail", 2 * SIZE)
WINDOW = {"chunks": 1000, "bytes": 8 * MIB}
"""All that the children here write: no credit is ever wanted."""
OPEN = {"after": None, "newest": False, "capture": False, **WINDOW}

NO_ARENA = """
from actors.arena import Arena
Arena._open = lambda arena: False
"""
"""All output travels."""
READ_IN_BETWEEN = """
import select
from actors.worker import Leg, Worker
flush, room = Leg.flush, Worker.room

def nothing_goes(leg):
    return False

def all_goes(leg):
    while not flush(leg):
        poller = select.poll()
        poller.register(leg.fileno(), select.POLLOUT)
        poller.poll()
    return True

def looked_for_room(worker):
    Leg.flush = nothing_goes
    try:
        return room(worker)
    finally:
        Leg.flush = all_goes

Leg.flush, Worker.room = all_goes, looked_for_room
"""
"""The broker reads all there is whenever a worker has just found that nothing goes."""

WRITES_AND_RESTS = "write(bytes(int(sys.argv[2]))); rest()"
WRITES_AND_ENDS = "write(bytes(int(sys.argv[2])))"


def test_output_goes_on_after_a_broker_that_reads_in_the_wrong_moment() -> None:
    worker = NO_ARENA + READ_IN_BETWEEN
    argv = program(WRITES_AND_RESTS, "x", str(SIZE))
    driven = Driven(argv, worker=worker, retention=KEPT)
    read = {"reader": 8, "stream": "stdout", "wait": 30.0, "limit": 99}
    driven.answer(driven.ask(Kind.READ, read | {"offset": SIZE - 1}))
    driven.ask(Kind.OPEN, OPEN)
    assert driven.output(SIZE) == bytes(SIZE)
    driven.close()


def test_a_run_is_over_once_its_last_output_had_room() -> None:
    terms = {"reader": READER, "release": True, **WINDOW}
    argv = program(WRITES_AND_ENDS, "x", str(SIZE))
    driven = Driven(argv, terms, NO_ARENA, retention=KEPT)
    child = Path(f"/proc/{driven.pid}")
    eventually(lambda: not child.exists())
    kinds = [message.kind for message in driven.until(Kind.IDLE)]
    assert kinds[-2:] == [Kind.CLOSED, Kind.IDLE]
    driven.close()
