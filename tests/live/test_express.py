"""The short way of a line through a worker, against the long one: no difference."""

import fcntl
import os
import signal
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import Limits, Watch
from actors.express import ATOMIC
from actors.outlet import INLINE
from broker.wire import Kind, Message, unpack
from tests.helpers import NOT_BLOCKED, eventually, go, stop
from tests.live.children import program
from tests.live.driven import CLIENT, EPOCH, READER, SESSION, WINDOW, Driven
from tests.parts import running

pytestmark = pytest.mark.live

READ = {"reader": 8, "stream": "stdout", "wait": 30.0, "limit": 99}
WRITES_WHEN_TOLD = """
while os.read(0, 2):
    write(b".")
"""


@pytest.fixture
def cat() -> Iterator[Driven]:
    """`cat` with one reader that has had its first line: all is as short as can be."""
    driven = Driven(["/bin/cat"])
    body = {"after": None, "newest": False, "capture": False, **WINDOW}
    driven.ask(Kind.OPEN, body)
    driven.write(b"first\n")
    assert driven.output(6) == b"first\n"
    yield driven
    driven.close()


def test_lines_go_in_and_out(cat: Driven) -> None:
    for number in range(300):
        line = b"line %d\n" % number
        asked = cat.write(line)
        said = cat.messages()
        got = [next(said), next(said)]
        assert [m.request for m in got] == [asked, READER]
        assert got[0].body == {"accepted": len(line), "state": "running"}
        assert got[1].payload == line
        taken = {"chunks": number + 2, "sequence": got[1].body["sequence"] + len(line)}
        cat.ask(Kind.CREDIT, {**taken, "local": False})


def test_a_write_is_answered_either_way_alike(cat: Driven) -> None:
    for size in (1, ATOMIC, ATOMIC + 1, 65536, 2):
        body = cat.answer(cat.write(b"y" * size)).body
        assert body == {"accepted": size, "state": "running"}


def test_input_that_does_not_fit_waits_in_the_queue() -> None:
    driven = Driven(program("write(b'up'); signal.pause()", "x"))
    numbers = [driven.write(b"x" * ATOMIC) for _ in range(20)]
    said = driven.messages()
    assert [next(said).request for _ in range(16)] == numbers[:16]  # so many fit
    state = driven.ask(Kind.STATS, {})
    assert driven.answer(state).kind is Kind.REPLY
    driven.close()


def test_an_offset_is_looked_at_after_input_that_went_the_short_way(
    cat: Driven,
) -> None:
    asked = cat.ask(Kind.WRITE, {"at": 0}, b"first\nsecond\n")
    assert cat.answer(asked).body["accepted"] == 13
    assert cat.output(7) == b"second\n"


def test_a_poll_that_waits_is_answered(cat: Driven) -> None:
    cursor = {"reader": 1, "stdout": 6, "stderr": 0}
    body = {**cursor, "wait": 30.0, "mode": "output", "limit": 99}
    asked = cat.ask(Kind.POLL, body)
    cat.write(b"polled\n")
    assert unpack(cat.answer(asked).payload or b"") == [["stdout", 0, b"polled\n"]]
    cat.write(b"after\n")
    while (output := cat.output(1)) == b"polled\n":
        pass  # it may come before the answer or behind it
    assert output == b"after\n"


def test_much_output_arrives_whole(cat: Driven) -> None:
    data = os.urandom(40 * INLINE + 1)
    for at in range(0, len(data), 2048):
        cat.write(data[at : at + 2048])
    assert cat.output(len(data)) == data


def test_a_reader_gets_no_more_than_its_credit() -> None:
    driven = Driven(program(WRITES_WHEN_TOLD, "x"))
    body = {"after": None, "newest": False, "capture": False}
    driven.ask(Kind.OPEN, {**body, "chunks": 3, "bytes": 1 << 20})
    for number in range(5):  # each is in the log before the next
        driven.answer(driven.write(b"x\n"))
        asked = driven.ask(Kind.READ, READ | {"offset": number})
        assert driven.answer(asked).body["eof"] is False
    driven.ask(Kind.CREDIT, {"chunks": 3, "sequence": 3, "local": False})
    said = driven.messages()
    rest = next(message for message in said if message.kind is Kind.CHUNK)
    assert (rest.body["offset"], rest.payload) == (3, b"..")
    driven.close()


def test_the_end_of_output_is_told_after_it(cat: Driven) -> None:
    cat.write(b"last\n")
    cat.ask(Kind.CLOSE_STDIN, {})
    kinds: list[Kind] = []
    for message in cat.messages():
        if message.request == READER:
            kinds.append(message.kind)
        if kinds[-1:] == [Kind.CLOSED]:
            break
    assert kinds[0] is Kind.CHUNK
    assert sorted(kinds[1:-1]) == [Kind.EOF, Kind.EXITED]  # as they come


def test_a_budget_is_told_with_the_output_that_is_too_much() -> None:
    driven = Driven(["/bin/cat"], limits=Limits(output=Watch(20, "notify")))
    driven.ask(Kind.OPEN, {"after": None, "newest": False, "capture": False, **WINDOW})
    told = []
    for _ in range(4):
        driven.write(b"7 bytes")
        told.append(Kind.NOTICE in [said.kind for said in driven.until(Kind.CHUNK)])
    assert told == [False, False, True, False]
    driven.close()


def test_input_behind_what_was_refused_does_not_go_the_short_way() -> None:
    full, piece = "capacity-exceeded", bytes(65536)
    driven = Driven(program("while os.read(0, 65536): pass", "x"))
    stop(driven.pid)
    pieces = [driven.write(piece) for _ in range(20)]
    eventually(driven.leg.flush)
    said = iter(driven.messages())
    refused = next(m for m in said if m.kind is Kind.ERROR and m.request in pieces)
    assert refused.body["code"] == full
    go(driven.pid)
    taken = pieces[pieces.index(refused.request) - 1]
    while next(said).request != taken:  # then the queue is empty
        pass
    with open(f"/proc/{driven.pid}/fd/0", "rb", buffering=0) as pipe:
        eventually(lambda: fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) == bytes(4))
    assert driven.answer(driven.write(b"behind\n")).body["code"] == full
    driven.answer(driven.ask(Kind.WRITE, {"at": 0}, b""))
    assert driven.answer(driven.write(b"behind\n")).body["accepted"] == 7
    driven.close()


def test_a_command_for_another_session_is_refused(cat: Driven) -> None:
    ids = CLIENT, 9, SESSION + 1, EPOCH
    cat.leg.send(Message(Kind.WRITE, *ids, 0.0, {"at": None}, b"x"))
    assert cat.answer(9).body["code"] == "session-not-found"


TOLD_BY_A_SIGNAL = """
def tell(*_):
    write(b"told")
    open(sys.argv[-1], "w").close()
signal.signal(signal.SIGUSR1, tell)
write(b"up")
while data := os.read(0, 99):
    write(data)
"""


def test_a_command_that_comes_with_output_gets_it(tmp_path: Path) -> None:
    """Both wait for the worker, whose turn begins with the command."""
    written = tmp_path / "written"
    driven = Driven([*program(TOLD_BY_A_SIGNAL, "x"), str(written)])
    driven.ask(Kind.OPEN, {"after": None, "newest": False, "capture": False, **WINDOW})
    assert driven.output(2) == b"up"
    driven.write(b"short way")
    assert driven.output(9) == b"short way"
    with driven.stopped():
        os.kill(driven.pid, signal.SIGUSR1)  # noqa: TID251 - it is asked to write
        eventually(written.exists)
        asked = driven.ask(Kind.READ, READ | {"offset": 11})
    assert driven.answer(asked).payload == b"told"
    driven.close()


def test_input_behind_the_end_of_input_is_refused(cat: Driven) -> None:
    with cat.stopped():
        cat.ask(Kind.CLOSE_STDIN, {})
        asked = cat.write(b"late")
    assert cat.answer(asked).body["code"] == "stdin-unavailable"


IN_TIME = """
import select, signal, time
from contextlib import closing
from dataclasses import replace
from actors import rehearsal
from actors.launch import Launch
from broker.wire import Kind

signal.signal(signal.SIGCHLD, lambda *_: None)
order = Launch.from_wire(rehearsal.launch(rehearsal.LIVES))
kill = {"grace": None, "timeout": 5.0, "cause": "killed", "release": True}
with closing(rehearsal.Stage()) as stage:
    payload = replace(order, timeout=0.2).to_wire()
    stage.ask(Kind.START, rehearsal._terms(reader=None), payload)
    stage.until(Kind.REPLY)
    due = stage.worker._due
    while time.monotonic() <= due:
        select.poll().poll(1)
    stage.ask(Kind.WRITE, {"at": None}, b"x")
    stage.worker.turn()
    print(stage.worker._due != due, flush=True)
    stage.ask(Kind.KILL, kill)
    stage.until(Kind.IDLE)
"""
"""A worker in a process of its own, whose child is written to as its time is over."""


def test_what_is_due_happens_although_all_goes_the_short_way() -> None:
    with running(sys.executable, "-c", IN_TIME) as program:
        assert program.line() == "True"
        assert program.process.wait(NOT_BLOCKED) == 0
