"""What a child may use, what a session says it used, and what ended it."""

import ast
import asyncio
import errno
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import actors
from actors import Limits, Settings, Watch
from actors.ambient import Surroundings
from actors.session import Session
from actors.spec import Spec
from broker.wire import Kind, Message
from tests.helpers import NOT_BLOCKED, end, gone, parent, tag, tagged
from tests.live.children import (
    FLOOD,
    LEAVES_POOL,
    REST,
    drained,
    program,
    until,
)
from tests.parts import serving

pytestmark = pytest.mark.live

MIB = 1024 * 1024
PIPE = 65536
"""Bytes that a pipe holds."""

IGNORES_TERM = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"

FAMILY = """
for _ in range(int(sys.argv[2])):
    forked(rest)
write(b'ready\\n')
rest()
"""

FILLS_MEMORY = """
full = bytearray(int(sys.argv[2]))
for page in range(0, len(full), 4096):
    full[page] = 1
write(b'ready\\n')
"""

LEAVES_A_FAMILY = """
leader = os.getpid()
def heir():
    while os.getppid() == leader:
        time.sleep(0.1)
    for _ in range(int(sys.argv[2]) - 1):
        forked(rest)
    rest()
forked(heir)
os._exit(0)
"""

IMPATIENT = Settings(terminate_grace=0.2)


async def ended(child: actors.Child) -> actors.ExitStatus:
    """Return how a child ended, and close it."""
    status = await child.wait(NOT_BLOCKED)
    await child.aclose()
    return status


# Output


async def test_s17_a_flood_is_cut_close_to_its_budget() -> None:
    limits = Limits(output=200_000)
    async with actors.Engine(settings=IMPATIENT) as engine:
        for manners in ("", IGNORES_TERM):
            child = await engine.spawn(program(manners + FLOOD, tag()), limits=limits)
            seen, last = await drained(child)
            assert last.status is not None
            assert last.status.cause == "limit"
            assert 200_000 < len(seen) <= 200_001 + PIPE
            assert (await child.stats()).stdout.produced == len(seen)
            await child.aclose()


async def test_s17_a_budget_of_both_streams_is_over_with_the_first_byte_too_much() -> (
    None
):
    async with actors.Engine() as engine:
        for more, cause, code in ((400, "exited", 0), (401, "limit", None)):
            words = (
                f"write(b'a' * 600); write(b'b' * {more}, 2); {more} > 400 and rest()"
            )
            done = await engine.run(program(words, tag()), limits=Limits(output=1000))
            assert (done.status.code, done.status.cause) == (code, cause)
            assert (len(done.stdout), len(done.stderr)) == (600, more)


async def test_s24_last_words_over_the_budget_are_not_lost() -> None:
    polite = """
def last(*_):
    write(b'last words')
    os._exit(3)
signal.signal(signal.SIGTERM, last)
write(b'x' * 11)
rest()
"""
    async with actors.Engine() as engine:
        done = await engine.run(program(polite, tag()), limits=Limits(output=10))
        assert (done.status.code, done.status.cause) == (3, "limit")
        assert done.stdout == b"x" * 11 + b"last words"


async def test_s17_a_budget_that_only_tells_ends_nobody() -> None:
    told: dict[str, tuple[Any, str, int]] = {
        "output": (Watch(1000, "notify"), "write(b'x' * 100_000)", 100_000),
        "tree_processes": (Watch(1, "notify"), "forked(rest); time.sleep(0.6)", 0),
    }
    async with actors.Engine() as engine:
        children = [
            engine.run(program(body, tag()), limits=Limits(**{name: watch}))
            for name, (watch, body, _) in told.items()
        ]
        for done, (_, _, size) in zip(
            await asyncio.gather(*children), told.values(), strict=True
        ):
            assert (done.returncode, done.status.cause) == (0, "exited")
            assert len(done.stdout) == size


class Ears:
    """A leg that keeps what is sent to the broker."""

    def __init__(self) -> None:
        self.heard: list[Message] = []

    def send(self, message: Message) -> None:
        self.heard.append(message)

    def room(self) -> bool:
        return True


def run_session(session: Session) -> None:
    """Be the worker of a session until its child is reaped."""
    session.start(time.monotonic, ())
    pid = session.process.pid
    while not session.progress.closed:
        poller = select.poll()
        readable, writable = session.watched()
        assert writable is None
        for fd in readable:
            poller.register(fd, select.POLLIN)
        for fd, _ in poller.poll(10):
            session.ready(fd, time.monotonic())
        due = session.next_deadline()
        if due is not None and due <= time.monotonic():
            session.tick(time.monotonic())
        if session.progress.status is None and os.waitid(
            os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
        ):
            reaped = os.wait4(pid, 0)
            session.on_reaped(*reaped, time.monotonic())
            session.on_reaped_all(time.monotonic(), empty=True)
    session.finish()


def test_s17_the_broker_is_told_once_of_each_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    surroundings = Surroundings()
    limits = Limits(
        output=Watch(10, "notify"),
        tree_memory=Watch(1, "notify"),
        tree_processes=Watch(99, "notify"),
    )
    words = program("write(b'x' * 11); time.sleep(2); write(b'x' * 11)", tag())
    order = Spec(words, limits=limits).launch(
        surroundings.read(), Settings(), "", "0" * 32
    )
    surroundings.close()
    # Else a descriptor stays open for as long as the process, as it may in a worker.
    monkeypatch.setattr("actors.process._oom_score", lambda: order.oom_score_adj)
    ears = Ears()
    run_session(Session(1000, 7, order, ears, None))
    notices = [message for message in ears.heard if message.kind is Kind.NOTICE]
    assert sorted(m.body["limit"] for m in notices) == ["output", "tree_memory"]
    assert {(m.client, m.request, m.session, m.epoch) for m in notices} == {
        (0, 0, 1000, 7)
    }


# The tree


async def test_s17_a_tree_that_grows_over_its_budget_is_ended() -> None:
    word = tag()
    too_much: dict[str, tuple[int, list[str]]] = {
        "tree_processes": (3, program(FAMILY, word, "3")),
        "tree_memory": (64 * MIB, program(FILLS_MEMORY + "rest()", word, f"{1 << 26}")),
    }
    async with actors.Engine() as engine:
        for name, (value, command) in too_much.items():
            limits: dict[str, Any] = {name: value}
            child = await engine.spawn(command, limits=Limits(**limits))
            status = await ended(child)
            assert (status.cause, status.signal) == ("limit", signal.SIGTERM)
            assert status.usage.tree_peak is not None
            assert name != "tree_memory" or status.usage.tree_peak > value
            await asyncio.to_thread(gone, word)


async def test_s17_a_tree_within_its_budget_is_left_alone() -> None:
    limits = Limits(tree_processes=3, tree_memory=1 << 30)
    async with actors.Engine() as engine:
        body = "forked(rest); forked(rest); time.sleep(2)"
        child = await engine.spawn(program(body, tag()), limits=limits)
        status = await ended(child)
        assert (status.code, status.cause) == (0, "exited")
        assert MIB < (status.usage.tree_peak or 0) < 1 << 30


async def test_s17_what_a_leader_leaves_is_held_to_its_budget() -> None:
    word = tag()
    command = program(LEAVES_A_FAMILY, word, "3")
    async with actors.Engine() as engine:
        child = await engine.spawn(
            command, leftover="keep", limits=Limits(tree_processes=2)
        )
        status = await child.wait(NOT_BLOCKED)
        assert (status.code, status.cause) == (0, "exited")
        await asyncio.to_thread(gone, word)
        await child.aclose()


async def test_s17_a_tree_that_ignores_the_signal_is_killed_after_the_grace() -> None:
    async with actors.Engine(settings=IMPATIENT) as engine:
        child = await engine.spawn(
            program(IGNORES_TERM + FAMILY, tag(), "2"), limits=Limits(tree_processes=1)
        )
        status = await ended(child)
        assert (status.cause, status.signal) == ("limit", signal.SIGKILL)


# What the system enforces

TELLS_LIMITS = """
import resource
state = {
    name: resource.getrlimit(getattr(resource, "RLIMIT_" + name))
    for name in ("NOFILE", "CORE", "AS", "CPU", "FSIZE", "NPROC")
}
state["nice"] = os.getpriority(os.PRIO_PROCESS, 0)
with open("/proc/self/oom_score_adj") as file:
    state["oom"] = int(file.read())
write(repr(state).encode())
"""


async def test_s17_every_limit_reaches_the_child_and_no_other() -> None:
    own = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = Limits(
        nofile=33,
        core=0,
        address_space=1 << 40,
        cpu=1000,
        file_size=123_456,
        processes=4000,
        nice=7,
        oom_score_adj=900,
    )
    async with actors.Engine() as engine:
        limited, free = await asyncio.gather(
            engine.run(program(TELLS_LIMITS, tag()), limits=limits),
            engine.run(program(TELLS_LIMITS, tag())),
        )
        assert ast.literal_eval(limited.text) == {
            "NOFILE": (33, 33),
            "CORE": (0, 0),
            "AS": (1 << 40, 1 << 40),
            "CPU": (1000, 1001),
            "FSIZE": (123_456, 123_456),
            "NPROC": (4000, 4000),
            "nice": 7,
            "oom": 900,
        }
        state = ast.literal_eval(free.text)
        assert (state["NOFILE"], state["CPU"]) == (own, (-1, -1))


async def test_a_score_is_set_although_no_file_can_be_opened_then() -> None:
    limits = Limits(nofile=4, oom_score_adj=900)
    async with actors.Engine() as engine:
        done = await engine.run(["true"], limits=limits)
        assert done.returncode == 0


CONFINED = """
import ctypes, os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, 4096))
os.nice(5)
for capability in 23, 24:  # CAP_SYS_NICE and CAP_SYS_RESOURCE, from the next exec on
    assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="gives privileges up")
@pytest.mark.parametrize("tty", [False, True])
async def test_a_confined_broker_passes_on_what_it_can_and_refuses_what_was_asked(
    tmp_path: Path, *, tty: bool
) -> None:
    tmp_path.chmod(0o700)
    endpoint = f"ipc://{tmp_path}/broker.sock"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard > 5000
    with serving(endpoint, sys.executable, "-c", CONFINED):
        async with actors.Engine(endpoint) as engine:
            done = await engine.run(program(TELLS_LIMITS, tag()), tty=tty)
            state = ast.literal_eval(done.text)
            assert state["NOFILE"] == (min(soft, 4096), 4096)
            assert state["nice"] == 5
            for asked in (Limits(nofile=5000), Limits(nice=0)):
                with pytest.raises(actors.SpawnFailed) as failed:
                    await engine.run(["true"], tty=tty, limits=asked)
                assert failed.value.step == "limits"
                assert failed.value.errno in (errno.EPERM, errno.EACCES)
            within = Limits(nofile=3000, nice=6)
            done = await engine.run(
                program(TELLS_LIMITS, tag()), tty=tty, limits=within
            )
            state = ast.literal_eval(done.text)
            assert state["NOFILE"] == (3000, 3000)
            assert state["nice"] == 6


FILLS_FILE = """
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
file = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)
while True:
    os.write(file, b'x' * 1000)
"""


async def test_s39_a_child_over_a_limit_of_the_system_ended_by_itself() -> None:
    over: list[tuple[Limits, str, int]] = [
        (Limits(cpu=1), "while True:\n    pass", signal.SIGXCPU),
        (Limits(file_size=1000), FILLS_FILE, signal.SIGXFSZ),
    ]
    path = f"{os.environ['XDG_RUNTIME_DIR']}/large"
    async with actors.Engine() as engine:
        runs = [
            engine.run(program(body, tag(), path), limits=limits)
            for limits, body, _ in over
        ]
        for done, (_, _, number) in zip(await asyncio.gather(*runs), over, strict=True):
            assert (done.status.signal, done.status.cause) == (number, "exited")
    os.unlink(path)


# What descendants are left


async def test_s40_reported_descendants_live_until_their_owner_goes() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(program(LEAVES_POOL, word), leftover="report")
        status = await child.wait(NOT_BLOCKED)
        assert (status.code, status.cause) == (0, "exited")
        left = {survivor.pid for survivor in status.leftovers}
        assert left == set(tagged(word))
        assert (await child.stats()).processes == len(left) == 3
        await child.aclose()
        assert not tagged(word)


async def test_s40_what_a_run_leaves_is_named_and_ends_with_it() -> None:
    word = tag()
    async with actors.Engine() as engine:
        for leftover in ("keep", "report"):
            options: Any = {"leftover": leftover}
            done = await engine.run(program(LEAVES_POOL, word), **options)
            assert len(done.status.leftovers) == 3
            await asyncio.to_thread(gone, word)


async def test_s40_kept_descendants_end_with_their_scope() -> None:
    word = tag()
    async with actors.Engine() as engine, engine.scope() as scope:
        child = await scope.spawn(program(LEAVES_POOL, word), leftover="keep")
        await child.wait(NOT_BLOCKED)
        assert len(tagged(word)) == 3
        await scope.aclose()
        assert not tagged(word)


# Statistics


async def test_s54_statistics_tell_of_output_and_tree_and_take_nothing() -> None:
    works = "while time.process_time() < 0.03: pass\n"  # counted in ticks of 10 ms
    body = works + "write(b'e' * 7, 2); write(b'o' * 3000)\n" + FAMILY
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(body, tag(), "2"), retention=actors.OutputPolicy.tail(1000)
        )
        await until(child, b"ready\n")
        stats = await child.stats()
        assert stats.stdout.produced == 3006
        assert stats.stderr is not None
        assert stats.stderr.produced == 7
        assert stats.stdout.retained + stats.stderr.retained == 1000
        for counts in (stats.stdout, stats.stderr):
            assert counts.produced == counts.retained + counts.dropped
        assert stats.processes == 3
        assert 3 * MIB < stats.memory < 300 * MIB
        assert 0 < stats.cpu_time < NOT_BLOCKED
        assert await child.stats() == stats or (await child.stats()).processes == 3
        last = (await child.reader().read(wait=0)).data
        assert last.endswith(b"oooready\n")
        await child.kill()
        after = await child.stats()
        assert (after.memory, after.processes) == (0, 0)
        assert after.cpu_time >= stats.cpu_time
        assert after.stdout == stats.stdout
        await child.aclose()
        with pytest.raises(actors.SessionNotFound):
            await child.stats()


async def test_s54_processor_time_counts_living_and_ended_processes() -> None:
    body = """
def work():
    ends = time.process_time() + 0.12
    while time.process_time() < ends:
        pass
os.waitpid(forked(work), 0)
work()
forked(lambda: (work(), os.write(1, b'ready\\n'), rest()))
rest()
"""
    async with actors.Engine() as engine:
        child = await engine.spawn(program(body, tag()))
        await until(child, b"ready\n")
        running = (await child.stats()).cpu_time
        assert 0.3 < running < NOT_BLOCKED  # counted in ticks of 10 ms
        await child.kill()
        assert (await child.stats()).cpu_time > 0.3
        await child.aclose()


async def test_s54_a_stream_that_is_not_there_has_no_statistics() -> None:
    async with actors.Engine() as engine:
        for options in ({"stderr": "stdout"}, {"stderr": "null", "stdout": "null"}):
            given: Any = options
            child = await engine.spawn(program(REST, tag()), **given)
            stats = await child.stats()
            assert stats.stderr is None
            assert "stdout" not in options or stats.stdout == (0, 0, 0)
            await child.aclose()


async def test_s54_the_statistics_of_a_lost_worker_are_lost() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, tag()))
        end([parent(child.pid)])
        await child.wait(NOT_BLOCKED)
        with pytest.raises(actors.WorkerLost):
            await child.stats()
        await child.aclose()


async def test_s39_the_peak_of_a_tree_is_told_if_anybody_looked() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(FAMILY, tag(), "2"))
        await until(child, b"ready\n")
        seen = (await child.stats()).memory
        await child.kill()
        peak = (await ended(child)).usage.tree_peak
        assert peak is not None
        assert peak >= seen
        assert (await engine.run(["true"])).status.usage.tree_peak is None
