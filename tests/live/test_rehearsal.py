"""What a pool does before its first fork: real sessions, of which nothing stays."""

import subprocess
import sys
from collections.abc import Sequence

import pytest

from actors import Engine, rehearsal
from actors.ambient import Surroundings
from actors.settings import Settings
from actors.spec import MARK_DIGITS, Spec
from broker import opening
from broker.wire import unpack
from tests.live.children import command_line, engine_processes

pytestmark = pytest.mark.live

FACTS = """
import sys
sys.path.extend(sys.argv[1:])
import os, signal
from actors import rehearsal

def facts():
    wake = signal.set_wakeup_fd(-1)
    alarm = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    return sorted(os.listdir("/proc/self/fd")), wake, alarm

CHILDREN = f"/proc/self/task/{os.getpid()}/children"
ended = []
until = rehearsal.Stage.until

def counted(stage, kind):
    until(stage, kind)
    ended.append(kind.name)

rehearsal.Stage.until = counted
before = facts()
%s
rehearsal.rehearse()
assert facts() == before, (before, facts())
assert open(CHILDREN).read() == ""
print(*ended)
"""


def rehearsed(change: str = "") -> Sequence[str]:
    """Rehearse in a process like a pool's; return what its sessions came to."""
    program = [sys.executable, "-I", "-S", "-c", FACTS % change]
    done = subprocess.run(
        [*program, *opening.import_roots()],
        capture_output=True,
        env={},
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_rehearsal_goes_through_whole_sessions_and_leaves_nothing() -> None:
    assert (
        rehearsed("rehearsal.ROUNDS, rehearsal.PATIENCE = 2, 15.0")
        == ["IDLE", "REPLY", "IDLE"] * 2
    )


def test_a_rehearsal_does_without_a_program_that_is_missing() -> None:
    assert rehearsed('rehearsal.LIVES = (b"/no/such",)') == ["IDLE"]


def test_a_rehearsal_is_given_up_when_a_program_hangs() -> None:
    hanging = 'rehearsal.ENDS, rehearsal.PATIENCE = (b"/bin/sleep", b"300"), 1.0'
    assert rehearsed(hanging) == []


def test_a_rehearsal_is_given_the_terms_that_most_children_have() -> None:
    surroundings = Surroundings()
    ambient = surroundings.read()
    surroundings.close()
    usual = Spec(["x"]).launch(ambient, Settings(), "", "0" * MARK_DIGITS)
    terms, _ = unpack(usual.to_wire())
    rehearsed_terms, _ = unpack(rehearsal.launch((b"x",)))
    assert rehearsed_terms == terms


@pytest.mark.parametrize(
    ("warm", "worker"), [(1, opening.LONE_WORKER), (2, opening.WORKER)]
)
async def test_a_pool_rehearses_if_it_keeps_workers_ready(
    warm: int, worker: str
) -> None:
    async with Engine(settings=Settings(warm=warm)) as engine:
        (pool,) = engine_processes(engine)["pool"]
        assert worker.encode() in command_line(pool).split(b"\0")
