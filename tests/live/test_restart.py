"""A shared broker that is lost: all find the next one, and nothing is missing."""

import asyncio
import errno
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import zmq

import actors
from broker import supervisor, tree
from broker.link import Link
from broker.wire import Kind
from tests.helpers import (
    FOREVER,
    NOT_BLOCKED,
    alive,
    end,
    eventually,
    go,
    gone,
    parent,
    python,
    stop,
    tag,
    tagged,
)
from tests.live.children import arrived, program, until
from tests.parts import (
    Identities,
    Parts,
    Program,
    client,
    daemons,
    running,
    serving,
)

pytestmark = pytest.mark.live

STREAM = """
import random, sys
seeded = random.Random(int(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    sys.stdout.buffer.write(seeded.randbytes(4096))
"""
"""python(STREAM, seed, pieces): writes so many pieces of 4 KiB, known by the seed."""

STEPS = """
import os, random, sys, time
told, gate, last = os.open(sys.argv[1], os.O_WRONLY), sys.argv[2], int(sys.argv[3])
taken = 0
def step():
    global taken
    while taken == last and not os.path.exists(gate):
        time.sleep(0.005)
    taken += 1
    os.write(told, b".")
"""
"""What `Way.command` puts before a program, which calls step() before each piece."""

STEPPING_CAT = """
while True:
    step()
    if not (data := os.read(0, 16384)):
        break
    os.write(1, data)
"""

STEPPING_STREAM = """
seeded = random.Random(3)
for _ in range(8000):
    step()
    sys.stdout.buffer.write(seeded.randbytes(4096))
"""


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/shared/broker.sock"


@pytest.fixture
def shared(endpoint: str) -> Iterator[Program]:
    """A broker with a grace in which another one comes up on any machine."""
    with serving(endpoint, grace=NOT_BLOCKED) as program:
        yield program


class Brokers:
    """The brokers of a supervisor, one after the other."""

    def __init__(self, program: Program) -> None:
        self.supervisor = program.pid

    def find(self) -> tuple[int, int]:
        """Return the pool and the broker that live now."""
        found: dict[bool, int] = {}

        def both() -> bool:
            found.clear()
            for pid in tree.children(self.supervisor):
                if alive(pid):
                    found[_is_pool(pid)] = pid
            return len(found) == 2

        eventually(both)
        return found[True], found[False]

    async def lose(self) -> int:
        """SIGKILL the broker that lives now, and return its pid."""
        _, broker = await asyncio.to_thread(self.find)
        end([broker])
        await asyncio.to_thread(eventually, lambda: not alive(broker))
        return broker


class Way:
    """How far a program is: it waits after so many steps until it is let by.

    So whatever is lost before `let_by` is lost in its middle.
    """

    def __init__(self, place: Path, last: int) -> None:
        self._told, self._gate, self._last = place / "steps", place / "gate", last
        place.mkdir()
        self._told.touch()

    def command(self, code: str) -> list[str]:
        """Return the command of a program that goes this way."""
        return python(STEPS + code, str(self._told), str(self._gate), str(self._last))

    async def lose_within(self, brokers: Brokers, losses: int) -> None:
        """Lose so many brokers, each after a random step of the program."""
        seed = random.randrange(2**32)
        print(f"the steps are of random.Random({seed})", flush=True)
        steps = random.Random(seed).sample(range(1, self._last), losses)
        for step in sorted(steps):
            await self.gets_to(step)
            await brokers.lose()
        assert self._steps() <= self._last

    async def gets_to(self, step: int) -> None:
        """Wait until the program has come to this step."""
        await asyncio.to_thread(eventually, lambda: self._steps() >= step)

    def let_by(self) -> None:
        """Let the program go on to its end."""
        self._gate.touch()

    def _steps(self) -> int:
        return self._told.stat().st_size


def _is_pool(pid: int) -> bool:
    try:
        return b"broker.pool" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False


def holds(log: Path, mark: str) -> None:
    """Wait until a file holds a text."""
    eventually(lambda: mark in log.read_text())


async def usable(engine: actors.Engine) -> float:
    """Return the seconds that a command takes from now on."""
    started = time.monotonic()
    assert (await engine.run(["echo", "on"])).stdout == b"on\n"
    return time.monotonic() - started


async def read(
    child: actors.Child, begun: asyncio.Event | None = None
) -> tuple[str, actors.ExitStatus]:
    """Read all output, check its order; return its hash, and how the child ended.

    `begun` is set at the first piece.
    """
    digest, at, status = hashlib.sha256(), 0, None
    async with child.events() as events:
        async for event in events:
            if isinstance(event, actors.Chunk):
                if begun is not None:
                    begun.set()
                assert event.offset == at
                at += len(event.data)
                digest.update(event.data)
            elif isinstance(event, actors.Exited):
                status = event.status
            else:
                assert not isinstance(event, actors.Gap)
    assert status is not None
    return digest.hexdigest(), status


def expected(seed: int, pieces: int) -> str:
    seeded = random.Random(seed)
    digest = hashlib.sha256()
    for _ in range(pieces):
        digest.update(seeded.randbytes(4096))
    return digest.hexdigest()


async def test_s46_readers_go_on_where_they_were(
    shared: Program, endpoint: str
) -> None:
    brokers = Brokers(shared)
    settings = actors.Settings(retention=actors.OutputPolicy.block(65536))
    async with actors.Engine(endpoint, settings=settings) as engine:
        child = await engine.spawn(python(STREAM, "1", "20000"))
        begun = asyncio.Event()
        reading = asyncio.create_task(read(child, begun))
        await begun.wait()
        for _ in range(3):
            await brokers.lose()
            await usable(engine)
        digest, status = await asyncio.wait_for(reading, 4 * NOT_BLOCKED)
        assert digest == expected(1, 20000)
        assert status.code == 0
        assert (await child.wait()).code == 0


async def test_s46_what_a_reader_has_not_got_is_kept_for_it_meanwhile(
    shared: Program, endpoint: str, tmp_path: Path
) -> None:
    brokers, way = Brokers(shared), Way(tmp_path / "way", 2)
    settings = actors.Settings(retention=actors.OutputPolicy.block(65536))
    async with actors.Engine(endpoint, settings=settings) as engine:
        child = await engine.spawn(way.command(STEPPING_STREAM))
        begun = asyncio.Event()
        reading = asyncio.create_task(read(child, begun))
        await begun.wait()
        shared.signal(signal.SIGSTOP)  # nobody replaces it yet
        await brokers.lose()
        way.let_by()
        await way.gets_to(20)  # more than is retained of what nobody is to read
        shared.signal(signal.SIGCONT)
        digest, status = await asyncio.wait_for(reading, 4 * NOT_BLOCKED)
        assert digest == expected(3, 8000)
        assert status.code == 0


async def test_s46_what_is_asked_meanwhile_waits_for_the_next_broker(
    shared: Program, endpoint: str
) -> None:
    brokers = Brokers(shared)
    async with actors.Engine(endpoint) as engine:
        child = await engine.spawn(["cat"], stdin="pipe")
        waiting = asyncio.create_task(child.wait())
        polling = asyncio.create_task(child.poll(wait=NOT_BLOCKED, mode="output"))
        await engine.info()
        await brokers.lose()
        assert (await child.write(b"hello\n")).accepted == 6
        assert (await asyncio.wait_for(polling, NOT_BLOCKED)).stdout == b"hello\n"
        assert [s.id for s in await engine.children()] == [child.id]
        await child.close_stdin()
        assert (await asyncio.wait_for(waiting, NOT_BLOCKED)).code == 0
        other = await engine.spawn(["true"])
        assert other.id > child.id


async def test_a_kill_of_many_that_is_cancelled_goes_on_at_the_next_broker(
    shared: Program, endpoint: str
) -> None:
    brokers = Brokers(shared)
    async with actors.Engine(endpoint) as engine, engine.scope() as scope:
        one, other = [await scope.spawn(["sleep", "150"]) for _ in range(2)]
        shared.signal(signal.SIGSTOP)  # nobody replaces it yet
        await brokers.lose()
        for kill in (engine.kill([one.id]), scope.kill()):
            killing = asyncio.ensure_future(kill)
            await asyncio.sleep(0)
            killing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await killing
        shared.signal(signal.SIGCONT)
        for child in (one, other):
            assert (await child.wait(2 * NOT_BLOCKED)).cause == "killed"


WRITES_ON_CUE = """
def cue(*_):
    write(b"new")
    open(sys.argv[2], "w").close()
signal.signal(signal.SIGUSR1, cue)
write(b"old")
rest()
"""


async def test_a_reader_of_the_newest_begins_where_it_did_before_the_loss(
    shared: Program, endpoint: str, tmp_path: Path
) -> None:
    brokers, written = Brokers(shared), tmp_path / "written"
    async with actors.Engine(endpoint) as engine:
        child = await engine.spawn(program(WRITES_ON_CUE, tag(), str(written)))
        await until(child, b"old")
        reader = child.reader(after="newest")
        reading = asyncio.create_task(reader.read(wait=2 * NOT_BLOCKED))
        await arrived(child)
        shared.signal(signal.SIGSTOP)  # nobody replaces it yet
        await brokers.lose()
        os.kill(child.pid, signal.SIGUSR1)  # noqa: TID251 - it is asked to write
        await asyncio.to_thread(eventually, written.exists)
        shared.signal(signal.SIGCONT)
        assert (await asyncio.wait_for(reading, 3 * NOT_BLOCKED)).data == b"new"


async def test_s46_input_is_neither_lost_nor_repeated(
    shared: Program, endpoint: str, tmp_path: Path
) -> None:
    brokers = Brokers(shared)
    data = random.Random(7).randbytes(4 * 1024 * 1024)
    settings = actors.Settings(retention=actors.OutputPolicy.block(65536))
    async with actors.Engine(endpoint, settings=settings) as engine:
        for turn in range(3):
            way = Way(tmp_path / str(turn), 96)
            command = way.command(STEPPING_CAT)
            async with await engine.spawn(command, stdin="pipe") as child:
                reading = asyncio.create_task(read(child))
                writing = asyncio.create_task(child.write(data))
                await way.lose_within(brokers, 1)
                assert not writing.done()  # at the gate more is left than can wait
                way.let_by()
                written = await asyncio.wait_for(writing, 2 * NOT_BLOCKED)
                assert written.accepted == len(data)
                await child.close_stdin()
                digest, _ = await asyncio.wait_for(reading, NOT_BLOCKED)
                assert digest == hashlib.sha256(data).hexdigest()


async def test_s46_a_start_without_an_answer_is_not_repeated(
    shared: Program, endpoint: str, tmp_path: Path
) -> None:
    brokers, log = Brokers(shared), tmp_path / "started"
    log.touch()
    async with actors.Engine(endpoint) as engine:
        for turn in range(3):
            words = [f"{turn}-{number}" for number in range(24)]
            runs = [
                asyncio.create_task(
                    engine.run(["sh", "-c", f"echo {word} >> {log}; echo {word}"])
                )
                for word in words
            ]
            mark = f"{turn}-"
            await asyncio.to_thread(holds, log, mark)
            await brokers.lose()
            done = await asyncio.wait_for(asyncio.gather(*runs), 2 * NOT_BLOCKED)
            assert [one.stdout.decode().strip() for one in done] == words
            begun = [word for word in log.read_text().split() if word[:2] == mark]
            assert sorted(begun) == sorted(words)


async def test_a_start_whose_worker_waited_in_vain_is_not_repeated(
    endpoint: str, tmp_path: Path
) -> None:
    log = tmp_path / "started"
    with serving(endpoint, grace=2) as program:
        brokers = Brokers(program)
        async with actors.Engine(endpoint) as engine:
            pool, broker = brokers.find()
            await usable(engine)
            while (counts := (await engine.info()).counts)["sessions"]:
                pass  # it has yet to be released
            eventually(lambda: len(tree.children(pool)) == counts["workers"])
            idle = tree.children(pool)
            stop(*idle)
            command = ["sh", "-c", f"echo started >> {log}; exec sleep {FOREVER}"]
            spawning = asyncio.create_task(engine.spawn(command))
            while not (await engine.info()).counts["sessions"]:
                pass  # the broker has yet to pass it on
            stop(program.pid)  # nobody replaces it yet; this client stands still, too
            end([broker])
            go(*idle)
            eventually(log.exists)
            eventually(lambda: not set(idle) & set(tree.children(pool)))
            go(program.pid)
            brokers.find()
            with pytest.raises(actors.WorkerLost):
                await asyncio.wait_for(spawning, 2 * NOT_BLOCKED)
    assert log.read_text() == "started\n"


async def test_s46_a_run_gives_all_its_output(
    shared: Program, endpoint: str, tmp_path: Path
) -> None:
    way = Way(tmp_path / "run", 6000)
    async with actors.Engine(endpoint) as engine:
        run = asyncio.create_task(engine.run(way.command(STEPPING_STREAM)))
        await way.lose_within(Brokers(shared), 2)
        way.let_by()
        done = await asyncio.wait_for(run, 3 * NOT_BLOCKED)
        assert hashlib.sha256(done.stdout).hexdigest() == expected(3, 8000)
        assert await engine.children() == []


async def test_s46_descriptors_are_passed_to_the_next_broker(
    shared: Program, endpoint: str
) -> None:
    brokers = Brokers(shared)
    with tempfile.TemporaryFile() as file:
        file.write(b"passed")
        file.flush()
        async with actors.Engine(endpoint) as engine:
            await brokers.lose()
            path = f"/dev/fd/{file.fileno()}"
            done = await engine.run(["cat", path], pass_fds=(file.fileno(),))
            assert (done.stdout, done.stderr) == (b"passed", b"")


async def test_descriptors_that_find_no_room_at_once_are_passed_later(
    shared: Program, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, brokers, refused = Link._offer_fds, Brokers(shared), list[int]()

    def crowded(self: Link, request: int, fds: Sequence[int]) -> bool:
        if not self._adrift and len(refused) < 2:
            refused.append(request)
            return False
        return original(self, request, fds)

    with tempfile.TemporaryFile() as file:
        file.write(b"passed")
        file.flush()
        async with actors.Engine(endpoint) as engine:
            assert engine._opened is not None
            link, fd = engine._opened.link, file.fileno()
            shared.signal(signal.SIGSTOP)  # nobody replaces it yet
            await brokers.lose()
            while not link._adrift:
                await asyncio.sleep(0)
            monkeypatch.setattr(Link, "_offer_fds", crowded)
            run = asyncio.create_task(
                engine.run(["cat", f"/dev/fd/{fd}"], pass_fds=(fd,))
            )
            while not link.asked(Kind.SPAWN):
                await asyncio.sleep(0)
            shared.signal(signal.SIGCONT)
            done = await asyncio.wait_for(run, 2 * NOT_BLOCKED)
            assert (done.stdout, done.stderr) == (b"passed", b"")
    assert len(refused) == 2


async def test_s46_an_end_that_nobody_could_tell_is_told_later(
    shared: Program, endpoint: str
) -> None:
    brokers = Brokers(shared)
    async with actors.Engine(endpoint) as engine:
        child = await engine.spawn(["sh", "-c", "read line; exit 7"], stdin="pipe")
        await brokers.lose()
        os.kill(child.pid, signal.SIGKILL)  # noqa: TID251 - a test kills what it can
        status = await asyncio.wait_for(child.wait(), NOT_BLOCKED)
        assert (status.signal, status.cause) == (signal.SIGKILL, "exited")


async def test_s46_a_worker_lost_meanwhile_is_told_as_lost(
    shared: Program, endpoint: str
) -> None:
    brokers = Brokers(shared)
    word = tag()
    async with actors.Engine(endpoint) as engine:
        child = await engine.spawn(daemons(word))
        other = await engine.spawn(["cat"], stdin="pipe")
        events = child.events()
        _, broker = brokers.find()
        end([broker, parent(child.pid)])
        status = await asyncio.wait_for(child.wait(), NOT_BLOCKED)
        assert status.cause == "worker-lost"
        seen = [type(event) async for event in events]
        assert seen[-1] is actors.Closed
        assert (await other.write(b"x")).accepted == 1
        await asyncio.to_thread(gone, word)


async def test_s46_a_client_that_died_meanwhile_keeps_nothing(
    endpoint: str, tmp_path: Path
) -> None:
    with serving(endpoint) as program:
        await lose_client(Brokers(program), endpoint, tmp_path)


async def lose_client(brokers: Brokers, endpoint: str, place: Path) -> None:
    word = tag()
    body = f"""
async def main():
    async with actors.Engine({endpoint!r}) as engine:
        child = await start(engine, {word!r})
        await child.wait()
asyncio.run(main())
"""
    with client(place, body) as program:
        pid = await asyncio.to_thread(program.number, "pid")
        _, broker = brokers.find()
        os.kill(broker, signal.SIGSTOP)  # noqa: TID251 - it must not see the client's end
        program.kill()
        end([broker])
        await asyncio.to_thread(brokers.find)
        assert alive(pid)  # its owner may come back yet
        await asyncio.to_thread(gone, word)
    async with actors.Engine(endpoint) as engine:
        await usable(engine)


STANDS_STILL = """
async def failed(work):
    try:
        return await work
    except actors.EngineError as error:
        return type(error).__name__

async def main(endpoint, word):
    async with actors.Engine(endpoint) as engine:
        child = await start(engine, word)
        calls = child.poll(wait=200), child.wait(), engine.run(["sleep", "300"])
        asked = [asyncio.ensure_future(failed(call)) for call in calls]
        while len(await engine.children()) < 2:
            pass  # a run that its broker never heard of is begun by the next one
        say("asked")
        say("answers", *await asyncio.gather(*asked))
        say("usable", (await engine.run(["echo", "on"])).text)

"""


async def test_s46_a_client_that_stood_still_too_long_finds_no_session(
    endpoint: str, tmp_path: Path
) -> None:
    word = tag()
    body = f"{STANDS_STILL}asyncio.run(main({endpoint!r}, {word!r}))\n"
    with serving(endpoint) as shared, client(tmp_path, body) as program:
        await asyncio.to_thread(program.said, "pid")
        await asyncio.to_thread(program.said, "asked")
        brokers = Brokers(shared)
        program.signal(signal.SIGSTOP)
        await brokers.lose()
        async with actors.Engine(endpoint, operator=True) as other:
            while (await other.info()).counts["sessions"]:
                pass  # the other broker has yet to give them up
        assert not tagged(word)
        program.signal(signal.SIGCONT)
        answers = await asyncio.to_thread(program.said, "answers")
        assert answers == ["SessionNotFound"] * 3
        assert await asyncio.to_thread(program.said, "usable") == ["on"]


async def test_the_sessions_are_listed_again_once_a_broker_was_lost(
    shared: Program, endpoint: str
) -> None:
    brokers = Brokers(shared)
    watch = [sys.executable, "-m", "actors", "ps", "--watch", "--json"]
    async with actors.Engine(endpoint) as engine:
        child = await engine.spawn(["cat"], stdin="pipe")
        with running(*watch, "--endpoint", endpoint) as watching:
            listed = json.loads(await asyncio.to_thread(watching.line))
            assert (listed["id"], listed["state"]) == (child.id, "running")
            await brokers.lose()
            warning = json.loads(await asyncio.to_thread(watching.line))
            assert (warning["event"], warning["id"]) == ("warning", None)
            assert (warning["error"], warning["missed"]) == ("broker-lost", 1)
            again = json.loads(await asyncio.to_thread(watching.line))
            assert (again["id"], again["state"]) == (child.id, "running")


async def test_s52_whoever_watches_is_told_that_a_broker_was_lost(
    shared: Program, endpoint: str
) -> None:
    brokers = Brokers(shared)
    async with actors.Engine(endpoint) as engine, engine.events() as events:
        await engine.run(["true"])
        before = [await anext(events) for _ in range(4)]
        assert [event.sequence for event in before] == [1, 2, 3, 4]
        await brokers.lose()
        warning = await asyncio.wait_for(anext(events), NOT_BLOCKED)
        assert (warning.kind, warning.id, warning.missed) == ("warning", 0, 1)
        assert isinstance(warning.error, actors.BrokerLost)
        await engine.run(["true"])
        after = [await anext(events) for _ in range(4)]
        told = [warning.sequence, *(event.sequence for event in after)]
        assert told == [6, 7, 8, 9, 10]  # the fifth is the one that was missed
        assert [event.missed for event in after] == [0] * 4


async def test_s46_a_session_without_an_owner_lives_on(
    shared: Program, endpoint: str
) -> None:
    brokers = Brokers(shared)
    key = "c0ffee"
    async with actors.Engine(endpoint, owner_key=key) as engine:
        child = await engine.spawn(["cat"], stdin="pipe", detach_ttl=FOREVER)
        await child.detach()
        await brokers.lose()
        await usable(engine)
    async with actors.Engine(endpoint, owner_key=key) as engine:
        again = await engine.attach(child.id)
        await again.write(b"there\n")
        await again.close_stdin()
        assert (await again.communicate())[0] == b"there\n"


@pytest.mark.parametrize("lost", ["pool", "pool broker", "pool worker broker"])
async def test_s46_a_lost_pool_loses_its_sessions_and_no_more(
    lost: str, shared: Program, endpoint: str
) -> None:
    brokers, word = Brokers(shared), tag()
    async with actors.Engine(endpoint) as engine, actors.Engine(endpoint) as other:
        child = await engine.spawn(daemons(word))
        others = await other.spawn(daemons(word))
        parts = Parts.of(child.pid)
        end([getattr(parts, part) for part in lost.split()])
        for one in (child, others):
            status = await asyncio.wait_for(one.wait(), NOT_BLOCKED)
            assert status.cause == "worker-lost"
        await asyncio.to_thread(gone, word)
        await usable(engine)
        await usable(other)
        await asyncio.to_thread(brokers.find)


def test_a_grace_out_of_range_is_refused() -> None:
    command = [sys.executable, "-m", "actors", "serve", "--grace", "2h"]
    with running(*command, stderr=-1) as program:
        assert program.process.wait(NOT_BLOCKED) == 2
        assert program.process.stderr is not None
        said = program.process.stderr.read().decode()
    assert "'--grace': it is at most 3600 seconds" in said


async def test_s46_without_a_next_broker_calls_wait_no_longer_than_the_grace(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(endpoint, grace=0.5) as program:
        word = tag()
        async with actors.Engine(endpoint) as engine:
            child = await engine.spawn(daemons(word))
            _, broker = Brokers(program).find()
            program.signal(signal.SIGSTOP)  # nobody replaces it
            end([broker])
            started = time.monotonic()
            with pytest.raises(actors.BrokerLost, match="no other took its place"):
                await asyncio.wait_for(child.poll(wait=0), NOT_BLOCKED)
            assert time.monotonic() - started >= 0.4
            await asyncio.to_thread(gone, word)
            program.signal(signal.SIGCONT)


async def test_s46_a_client_that_stood_still_finds_the_next_broker(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Link._take_ticket

    def stand_still() -> None:
        # Past the grace, while the ticket of the next broker comes.
        time.sleep(1.5)  # noqa: TID251 - this process stands still, that is the test

    async def late(self: Link) -> bytes:
        self.loop.call_later(0.01, stand_still)
        return await original(self)

    with serving(endpoint, grace=1) as program:
        async with actors.Engine(endpoint) as engine:
            monkeypatch.setattr(Link, "_take_ticket", late)
            await Brokers(program).lose()
            assert (await engine.run(["true"])).returncode == 0


async def test_s46_a_broker_that_dies_behind_its_ticket_is_not_greeted(
    shared: Program, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, brokers, lost = Link._take_ticket, Brokers(shared), list[int]()

    async def lose(self: Link) -> bytes:
        ticket = await original(self)
        if not lost:
            lost.append(await brokers.lose())
            while self._line is not None:
                await asyncio.sleep(0)
        return ticket

    async with actors.Engine(endpoint) as engine:
        monkeypatch.setattr(Link, "_take_ticket", lose)
        await brokers.lose()
        assert (await engine.run(["true"])).returncode == 0
    assert lost


async def test_a_broker_that_dies_behind_its_welcome_is_followed_by_another(
    shared: Program, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, brokers, lost = Link._greet, Brokers(shared), list[int]()

    async def lose(self: Link, ticket: bytes) -> None:
        await original(self, ticket)
        if not lost:
            lost.append(await brokers.lose())
            while self._line is not None:
                await asyncio.sleep(0)

    async with actors.Engine(endpoint) as engine:
        monkeypatch.setattr(Link, "_greet", lose)
        await brokers.lose()
        run = engine.run(["true"])
        assert (await asyncio.wait_for(run, 2 * NOT_BLOCKED)).returncode == 0
    assert lost


async def test_a_client_that_gets_no_socket_does_not_wait_for_ever(
    shared: Program, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    async with actors.Engine(endpoint) as engine:
        monkeypatch.setattr(zmq.Context, "socket", no_room)
        await Brokers(shared).lose()
        with pytest.raises(actors.BrokerLost, match="Too many open files"):
            await asyncio.wait_for(engine.run(["true"]), NOT_BLOCKED)


async def test_a_broker_that_stands_still_is_given_up(
    shared: Program, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.link.HELLO_TIMEOUT", 0.5)
    _, broker = await asyncio.to_thread(Brokers(shared).find)
    stop(broker)
    with pytest.raises(actors.BrokerLost, match="no answer in time"):
        await actors.Engine(endpoint).__aenter__()
    go(broker)


async def test_s46_brokers_that_die_too_often_are_not_replaced_any_more(
    endpoint: str, tmp_path: Path
) -> None:
    with serving(endpoint) as program:
        word = tag()
        async with actors.Engine(endpoint) as engine:
            child = await engine.spawn(daemons(word))
            parts = Parts.of(child.pid)
            everybody = Identities(*parts)
            waiting = asyncio.create_task(child.wait())

            def given_up() -> bool:  # however long a busy machine takes for each
                if alive(program.pid):
                    end(set(tree.children(program.pid)) - {parts.pool})
                return not alive(parts.pool)

            await asyncio.to_thread(eventually, given_up, 2 * NOT_BLOCKED)
            with pytest.raises(actors.BrokerLost):
                await asyncio.wait_for(waiting, 2 * NOT_BLOCKED)
            await asyncio.to_thread(everybody.gone)
            assert tagged(word) == []
        assert program.process.wait(NOT_BLOCKED) == 1
    log = tmp_path / "engine.log"
    often = f"more than {supervisor.BROKER_STARTS} times"
    assert log.read_text().startswith(f"creche: the broker died {often} in 10 s")
    log.unlink()  # that was all that it had to say


# -- under load -------------------------------------------------------------------


@asynccontextmanager
async def engines(endpoint: str, count: int) -> AsyncIterator[list[actors.Engine]]:
    settings = actors.Settings(retention=actors.OutputPolicy.block(65536))
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(actors.Engine(endpoint, settings=settings))
            for _ in range(count)
        ]


async def under_load(
    program: Program, endpoint: str, place: Path, moments: list[float], pieces: int
) -> None:
    """Lose brokers while 32 sessions stream and 8 clients spawn.

    `moments` are seconds between the return of one broker and the loss of it.

    Each spawn appends its own word to a file once: a second process of it would show.
    """
    brokers, log, over = Brokers(program), place / "spawned", asyncio.Event()
    asked: list[str] = []

    async def spawn(engine: actors.Engine, name: int) -> None:
        number = 0
        while not over.is_set():
            word = f"{name}-{number}"
            number += 1
            asked.append(word)
            command = f"echo {word} >> {log}; echo {word}"
            assert (await engine.run(["sh", "-c", command])).stdout.split() == [
                word.encode()
            ]

    async with engines(endpoint, 9) as (first, *others):
        children = [
            await first.spawn(python(STREAM, str(seed), str(pieces)))
            for seed in range(32)
        ]
        begun = [asyncio.Event() for _ in children]
        reading = [
            asyncio.create_task(read(child, first_piece))
            for child, first_piece in zip(children, begun, strict=True)
        ]
        spawning = [
            asyncio.create_task(spawn(engine, name))
            for name, engine in enumerate(others)
        ]
        for first_piece in begun:
            await first_piece.wait()
        for moment in moments:
            await asyncio.sleep(moment)
            await brokers.lose()
            print(f"usable again after {await usable(first):.2f} s", flush=True)
        over.set()
        await asyncio.gather(*spawning)
        results = await asyncio.gather(*reading)
    for seed, (digest, status) in enumerate(results):
        assert status.code == 0
        assert digest == expected(seed, pieces)
    assert sorted(log.read_text().split()) == sorted(asked)


def moments(count: int, longest: float) -> list[float]:
    """Return random times between losses; what they come from is printed."""
    seed = random.randrange(2**32)
    print(f"the moments are of random.Random({seed})", flush=True)
    seeded = random.Random(seed)
    return [seeded.uniform(0.2, longest) for _ in range(count)]


@pytest.mark.alone
@pytest.mark.timeout(180)
async def test_s46_losses_under_load_lose_and_repeat_nothing(
    shared: Program, endpoint: str, tmp_path: Path
) -> None:
    await under_load(shared, endpoint, tmp_path, moments(5, 1.5), 2000)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_s46_twenty_losses_under_load_lose_and_repeat_nothing(
    shared: Program, endpoint: str, tmp_path: Path
) -> None:
    await under_load(shared, endpoint, tmp_path, moments(20, 3.0), 8000)
