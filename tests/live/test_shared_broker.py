"""One broker, several clients: who sees what, who ends what, and who is refused."""

import asyncio
import errno
import os
import secrets
import signal
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

import actors
from actors.ambient import Surroundings
from actors.spec import Spec
from broker import auth, errors, tree, wire
from broker.keeper import IDLE_WORKERS
from broker.link import Link, in_time
from broker.wire import Kind, Message
from tests.helpers import (
    FOREVER,
    NOT_BLOCKED,
    SPAWN,
    alive,
    end,
    eventually,
    go,
    gone,
    python,
    stop,
    tag,
    tagged,
)
from tests.parts import (
    COUNTING_TREE,
    DAEMONS,
    Identities,
    Parts,
    Program,
    client,
    daemons,
    running,
    serving,
)

pytestmark = pytest.mark.live

KEY = "c0ffee"
TICKET = 16


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/shared/broker.sock"


@pytest.fixture
def shared(endpoint: str) -> Iterator[Program]:
    with serving(endpoint) as program:
        yield program


def last_words(place: Path) -> str:
    """Take what a broker said as it ended out of the log, where it is a failure."""
    log = place / "engine.log"
    words = log.read_text()
    log.unlink()
    return words


async def up(child: actors.Child) -> None:
    """Wait until the child's daemons are started."""
    seen = b""
    while b"up\n" not in seen:
        seen += (await child.poll(wait=10, mode="output", max_bytes=4096)).stdout


async def went(word: str) -> None:
    await asyncio.to_thread(gone, word)


@asynccontextmanager
async def linked(
    endpoint: str, owner: bytes, *, operator: bool = False
) -> AsyncIterator[Link]:
    """Connect with an owner key, and maybe the broker's operator key beside it."""
    link = Link(endpoint, lambda _: None, lambda: None)
    await link.open(owner, operator=operator, lease=0.0, renewal=1.0)
    try:
        yield link
    finally:
        link.close()


# -- how long a client waits for its welcome ----------------------------------------


async def test_what_came_while_this_process_stood_still_is_not_too_late() -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    def stand_still() -> None:
        theirs.send(b"x")
        time.sleep(0.3)  # noqa: TID251 - this process stands still, that is the test

    with ours, theirs:
        loop.call_later(0.01, stand_still)
        assert await in_time(loop.sock_recv(ours, 1), 0.2) == b"x"


async def test_who_does_not_answer_in_time_is_not_waited_for() -> None:
    waits = asyncio.Event()
    ended: list[str] = []

    async def endless() -> None:
        try:
            await waits.wait()
        finally:
            ended.append("cancelled")

    with pytest.raises(TimeoutError):
        await in_time(endless(), 0.01)
    waiting = asyncio.ensure_future(in_time(endless(), NOT_BLOCKED))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == ["cancelled"] * 2


async def test_a_client_that_finds_a_full_queue_waits_for_its_turn(
    endpoint: str,
) -> None:
    directory = auth.RunDirectory.create(os.path.dirname(auth.endpoint_path(endpoint)))
    link = Link(endpoint, lambda _: None, lambda: None)
    with ExitStack() as stack:
        stack.callback(link.close)
        stack.callback(directory.close)
        queue = stack.enter_context(socket.socket(socket.AF_UNIX))
        lifeline, ahead = directory.path(auth.LIFELINE_SOCKET), list[socket.socket]()
        queue.bind(lifeline)
        queue.listen(0)
        queue.settimeout(NOT_BLOCKED)
        with suppress(BlockingIOError):
            while True:
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(lifeline)
                ahead.append(client)
        taking = asyncio.ensure_future(link._take_ticket())
        await asyncio.sleep(0)  # it finds no room
        for _ in ahead:
            queue.accept()[0].close()
        line = stack.enter_context((await asyncio.to_thread(queue.accept))[0])
        line.send(TICKET * b"t")
        assert await taking == TICKET * b"t"


async def test_a_client_looks_again_once_its_backlog_is_sent(
    shared: Program, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    async with linked(endpoint, b"me") as link:
        monkeypatch.setattr(link, "_look_soon", lambda: looks.append("soon"))
        monkeypatch.setattr(link, "_events", lambda _: zmq.POLLIN)
        info = Message(Kind.INFO, link.client, epoch=link.epoch)
        link._unsent.append(wire.encode(info))
        link._drain()
        assert not link._unsent
        assert looks == ["soon"]


# -- the broker itself ----------------------------------------------------------


@pytest.mark.parametrize("name", ["broker.sock", "own.sock"])
def test_a_broker_says_that_it_is_ready_and_ends_when_asked(
    endpoint: str, name: str
) -> None:
    endpoint = endpoint.replace("broker.sock", name)
    with serving(endpoint) as broker:
        directory = Path(endpoint.removeprefix("ipc://")).parent
        assert directory.stat().st_mode & 0o777 == 0o700
        broker.signal(signal.SIGTERM)
        assert broker.process.wait(15) == 0
        assert list(directory.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("broker.sock", "at ipc://{directory}/broker.sock"),
        ("other.sock", "in {directory}: give each a directory of its own"),
        ("dead.sock", "in {directory}: give each a directory of its own"),
    ],
)
def test_a_second_broker_is_refused_and_the_first_stays(
    endpoint: str, name: str, where: str
) -> None:
    path = Path(endpoint.removeprefix("ipc://"))
    other = f"ipc://{path.parent}/{name}"
    with serving(endpoint) as first:
        inode = path.stat().st_ino
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
            dead.bind(str(path.parent / "dead.sock"))
        command = [sys.executable, "-m", "broker", "--endpoint", other]
        with running(*command, stderr=-1) as second:
            assert second.process.wait(15) == 1
            assert second.process.stderr is not None
            said = second.process.stderr.read().decode()
        where = where.format(directory=path.parent)
        assert said == f"creche: a broker is already running {where}\n"
        assert path.stat().st_ino == inode
        assert alive(first.pid)
        asyncio.run(one_command(endpoint))


async def test_a_socket_that_is_not_beside_a_brokers_lifeline_is_told(
    endpoint: str,
) -> None:
    other = actors.Engine(endpoint.replace("broker.sock", "other.sock"))
    absent = pytest.raises(errors.BrokerLost, match=r"other\.sock: No such file")
    with serving(endpoint), absent:
        await other.__aenter__()


async def one_command(endpoint: str) -> None:
    async with actors.Engine(endpoint) as engine:
        assert (await engine.run(["echo", "on"])).stdout == b"on\n"


async def test_a_broker_outlives_its_terminal_where_it_is_told_to(
    endpoint: str,
) -> None:
    nohup = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]
    with serving(endpoint, *nohup) as broker:
        broker.signal(signal.SIGHUP)
        async with actors.Engine(endpoint) as engine:
            default = "print(signal.getsignal(signal.SIGHUP) is signal.SIG_DFL)"
            assert (await engine.run(python(default))).stdout == b"True\n"
        assert alive(broker.pid)


def test_a_broker_takes_the_place_of_one_that_was_killed(endpoint: str) -> None:
    with serving(endpoint) as first:
        others = Identities(*tree.children(first.pid))
        first.kill()
        others.gone()  # its broker listens until it notices
    with serving(endpoint):
        asyncio.run(one_command(endpoint))


@pytest.mark.parametrize("where", ["tcp://127.0.0.1:0", "ipc://relative", "nonsense"])
def test_a_broker_refuses_an_endpoint_that_it_cannot_guard(where: str) -> None:
    command = [sys.executable, "-m", "broker", "--endpoint", where]
    with running(*command, stderr=-1) as program:
        assert program.process.wait(15) == 1
        assert program.process.stderr is not None
        said = program.process.stderr.read().decode()
    assert said.startswith("creche: endpoint: ")
    assert "Traceback" not in said


def test_a_client_refuses_tcp_without_keys() -> None:
    with pytest.raises(actors.InvalidRequest) as refused:
        actors.Engine("tcp://127.0.0.1:5555")
    assert refused.value.field == "keys"


@pytest.mark.parametrize("where", [None, "ipc:///tmp/broker.sock"])
def test_keys_are_not_ignored_where_none_are_used(where: str | None) -> None:
    with pytest.raises(actors.InvalidRequest, match="tcp://") as refused:
        actors.Engine(where, keys="/keys")
    assert refused.value.field == "keys"


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("other", "must be bytes, or text of hexadecimal digits"),
        (5, "must be bytes, or text of hexadecimal digits"),
        ("", "must be 1 to 64 bytes"),
        (b"x" * 65, "must be 1 to 64 bytes"),
    ],
)
def test_an_owner_key_that_is_none_is_refused_with_what_would_be(
    key: Any, why: str
) -> None:
    with pytest.raises(actors.InvalidRequest, match=f"owner_key: {why}"):
        actors.Engine(owner_key=key)


@pytest.mark.parametrize("settings", [{}, 3, False])
def test_an_engine_refuses_what_is_not_settings(settings: Any) -> None:
    with pytest.raises(actors.InvalidRequest, match="settings: must be Settings"):
        actors.Engine(settings=settings)


async def test_a_client_of_no_broker_is_told_so(endpoint: str, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o700)
    with pytest.raises(actors.BrokerLost, match=r"no broker at \S+: No such file"):
        await actors.Engine(endpoint).__aenter__()


async def test_a_client_that_gets_no_socket_is_told_so(
    shared: Program, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq.Context, "socket", no_room)
    with pytest.raises(actors.BrokerLost, match=r"no broker at \S+: Too many open"):
        await actors.Engine(endpoint).__aenter__()


def no_room(*_: object) -> None:
    raise zmq.ZMQError(errno.EMFILE)


@pytest.mark.parametrize(
    ("part", "grace"), [("supervisor", 0), ("broker", 0), ("supervisor", 3)]
)
def test_a_shared_broker_that_is_killed_ends_everybodys_trees(
    part: str, grace: float, endpoint: str, tmp_path: Path
) -> None:
    async def main(broker: Program) -> None:
        word = tag()
        async with actors.Engine(endpoint) as one, actors.Engine(endpoint) as two:
            held = [await engine.spawn(daemons(word)) for engine in (one, two)]
            for child in held:
                await up(child)
            parts = Parts.of(held[0].pid)
            assert parts.supervisor == broker.pid
            everybody = Identities(*parts)
            waiting = [asyncio.create_task(child.wait()) for child in held]
            await asyncio.gather(one.info(), two.info())
            end([getattr(parts, part)])
            for task in waiting:
                with pytest.raises(actors.BrokerLost):
                    await asyncio.wait_for(task, 10)
            await went(word)
            await asyncio.to_thread(everybody.gone)

    with serving(endpoint, grace=grace) as broker:
        asyncio.run(main(broker))
        broker.process.wait(15)
    if part == "broker":
        assert broker.process.returncode == 1
        alone = "the broker died, and there is no grace for another"
        assert last_words(tmp_path) == f"creche: {alone}: everything ends\n"
    with serving(endpoint):
        pass  # it takes the journal of the killed one away


_FRAIL = """
import runpy, sys
from broker import supervisor
supervisor.POOL_STARTS = 0
sys.argv = sys.argv[3:]
runpy.run_module("broker", run_name="__main__")
"""


async def test_a_broker_that_lost_too_many_pools_ends_with_an_error(
    endpoint: str, tmp_path: Path
) -> None:
    with serving(endpoint, sys.executable, "-c", _FRAIL) as broker:
        async with actors.Engine(endpoint) as engine:
            child = await engine.spawn(["sleep", str(FOREVER)])
            end([Parts.of(child.pid).pool])
            with pytest.raises(actors.BrokerLost):
                await asyncio.wait_for(child.wait(), 2 * NOT_BLOCKED)
            assert await asyncio.to_thread(broker.process.wait, NOT_BLOCKED) == 1
    assert last_words(tmp_path).startswith("creche: the pool died more than 0 times")


# -- keys -----------------------------------------------------------------------


async def test_s1_a_foreign_session_looks_like_none_at_all(
    shared: Program, endpoint: str
) -> None:
    word = tag()
    async with (
        actors.Engine(endpoint, owner_key=b"me") as mine,
        linked(endpoint, b"me") as own,
        linked(endpoint, b"you") as foreign,
    ):
        child = await mine.spawn(daemons(word), stdin="pipe")
        await up(child)
        reply = await foreign.ask(Kind.LIST, body={"scope": None, "readable": False})
        assert wire.unpack(reply.payload or b"") == []
        closed = await mine.spawn(["true"])
        await closed.aclose()
        refused = await answers(own, closed.id)
        assert set(refused.values()) == {str(errors.SessionNotFound())}
        for number in (child.id, closed.id, child.id + 999):
            assert await answers(foreign, number) == refused
        assert not child.ended
        assert len(tagged(word)) == DAEMONS + 1
        assert (await child.write(b"still mine")).accepted == 10
        await child.aclose()


COMMANDS: dict[Kind, tuple[dict[str, Any], bytes | None]] = {
    Kind.WRITE: ({"at": None}, b"x"),
    Kind.CLOSE_STDIN: ({}, None),
    Kind.POLL: (
        {
            "reader": 1,
            "stdout": 0,
            "stderr": 0,
            "wait": 0.0,
            "mode": "output",
            "limit": 1,
        },
        None,
    ),
    Kind.READ: (
        {"reader": 1, "stream": "stdout", "offset": 0, "wait": 0.0, "limit": 1},
        None,
    ),
    Kind.OPEN: (
        {"after": None, "newest": False, "chunks": 1, "bytes": 65536, "capture": False},
        None,
    ),
    Kind.STOP: ({"target": 1}, None),
    Kind.KILL: (
        {"grace": None, "timeout": 1.0, "cause": "killed", "release": True},
        None,
    ),
    Kind.SIGNAL: ({"number": 9, "group": True, "interrupt": False}, None),
    Kind.SNAPSHOT: ({}, None),
}
"""Every command to a session that is answered, in a form that would do harm."""


async def answers(link: Link, number: int) -> dict[str, str]:
    """Return what each command to this session says."""
    said = {}
    for kind, (body, payload) in COMMANDS.items():
        try:
            await asyncio.wait_for(link.ask(kind, number, body, payload), 10)
            said[kind.name] = "went through"
        except errors.EngineError as error:
            said[kind.name] = str(error)
    return said


async def test_a_foreign_drop_does_nothing(shared: Program, endpoint: str) -> None:
    word = tag()
    async with actors.Engine(endpoint) as mine, linked(endpoint, b"you") as foreign:
        child = await mine.spawn(daemons(word), request_id="known")
        await up(child)
        body = {"sessions": [child.id], "tokens": ["known"]}
        await foreign.ask(Kind.DROP, body=body)
        assert (await child.snapshot()).state == "running"
        assert len(tagged(word)) == DAEMONS + 1
        await child.aclose()


async def test_a_request_id_means_nothing_under_another_key(
    shared: Program, endpoint: str
) -> None:
    async with actors.Engine(endpoint) as mine, actors.Engine(endpoint) as yours:
        first = await mine.spawn(python("signal.pause()"), request_id="same")
        second = await yours.spawn(python("signal.pause()"), request_id="same")
        assert first.id != second.id
        await first.aclose()
        assert (await second.snapshot()).state == "running"
        await second.aclose()


async def test_clients_of_one_key_see_and_end_each_others_sessions(
    shared: Program, endpoint: str
) -> None:
    word = tag()
    async with (
        actors.Engine(endpoint, owner_key=KEY) as one,
        actors.Engine(endpoint, owner_key=bytes.fromhex(KEY)) as two,
    ):
        child = await one.spawn(daemons(word), metadata={"who": "one"})
        await up(child)
        [seen] = await two.children()
        assert (seen.id, seen.pid, seen.metadata) == (
            child.id,
            child.pid,
            {"who": "one"},
        )
        assert seen.owner_alive
        [receipt] = await two.kill([child.id])
        assert isinstance(receipt, actors.KillReceipt)
        assert receipt.survivors == ()
        assert not tagged(word)
        assert (await child.wait(10)).cause == "killed"


async def test_a_client_that_leaves_ends_only_what_it_started(
    shared: Program, endpoint: str
) -> None:
    mine, yours = tag(), tag()
    async with actors.Engine(endpoint, owner_key=KEY) as one:
        kept = await one.spawn(daemons(mine))
        await up(kept)
        async with actors.Engine(endpoint, owner_key=KEY) as two:
            left = await two.spawn(daemons(yours))
            await up(left)
        assert not tagged(yours)
        assert len(tagged(mine)) == DAEMONS + 1
        assert [s.id for s in await one.children()] == [kept.id]
        await kept.aclose()


async def test_s1_the_operator_sees_and_ends_everything(
    shared: Program, endpoint: str
) -> None:
    word = tag()
    async with (
        actors.Engine(endpoint) as one,
        actors.Engine(endpoint) as two,
        linked(endpoint, b"root", operator=True) as link,
    ):
        held = [await engine.spawn(daemons(word)) for engine in (one, two)]
        for child in held:
            await up(child)
        reply = await link.ask(Kind.LIST, body={"scope": None, "readable": False})
        assert wire.unpack(reply.payload or b"") == [child.id for child in held]
        body = {"grace": None, "timeout": 5.0, "cause": "killed", "release": False}
        for child in held:
            await link.ask(Kind.KILL, child.id, body)
            assert (await child.wait(10)).cause == "killed"
        assert not tagged(word)


async def test_a_wrong_operator_key_opens_nothing(
    shared: Program, endpoint: str
) -> None:
    async with peer(endpoint) as raw:
        refused = await raw.hello(operator=secrets.token_hex(32).encode())
        assert refused.kind is Kind.ERROR
        assert "operator key" in str(refused.body["values"])
    await one_command(endpoint)


# -- another client's end -------------------------------------------------------

NEIGHBOUR = """
async def main():
    global engine, child, flood
    engine = actors.Engine({endpoint!r}{more})
    await engine.__aenter__()
    child = await start(engine, {word!r}{options})
    {then}
    say("now")
    await asyncio.sleep(150)

asyncio.run(main())
"""


def neighbour(
    endpoint: str, word: str, then: str = "pass", more: str = "", options: str = ""
) -> str:
    return NEIGHBOUR.format(
        endpoint=endpoint, word=word, then=then, more=more, options=options
    )


async def counted(stream: actors.EventStream, start: int, numbers: int) -> int:
    """Read this many numbers of a counting child, and none may be missing."""
    text, seen = b"", start
    while seen < start + numbers or not text.endswith(b"\n"):
        event = await asyncio.wait_for(anext(stream), 15)
        assert isinstance(event, actors.Chunk), event
        text += event.data
        seen = start + text.replace(b"up\n", b"").count(b"\n")
    lines = [int(line) for line in text.split() if line != b"up"]
    assert lines == list(range(start, seen))
    return seen


@pytest.mark.parametrize(
    "then",
    [
        "pass",
        "asyncio.ensure_future(child.poll(wait=30))",
        """flood = await engine.spawn(daemons(child.argv[4], FLOODING_TREE))
    stream = flood.events()
    await anext(stream)""",
    ],
    ids=["idle", "polling", "flooded"],
)
async def test_one_clients_death_is_no_gap_in_anothers_stream(
    then: str, shared: Program, endpoint: str, tmp_path: Path
) -> None:
    mine, theirs = tag(), tag()
    async with actors.Engine(endpoint) as engine:
        retention = actors.OutputPolicy.block(65536)
        child = await engine.spawn(daemons(mine, COUNTING_TREE), retention=retention)
        stream = child.events()
        seen = await counted(stream, 0, 200)
        with client(tmp_path, neighbour(endpoint, theirs, then)) as program:
            parts = Identities(*Parts.of(program.number("pid"))[1:])
            await asyncio.to_thread(program.said, "now")
            program.kill()
            seen = await counted(stream, seen, 500)
        await went(theirs)
        await counted(stream, seen, 200)
        assert len(parts.alive()) == 3
        assert len(tagged(mine)) == DAEMONS + 1
        await child.aclose()


async def test_a_killed_client_leaves_nothing_although_a_copy_of_it_lives(
    shared: Program, endpoint: str, tmp_path: Path
) -> None:
    word = tag()
    then = """copy = os.fork()
    if copy == 0:
        signal.alarm(150)
        signal.pause()
    say("copy", copy)"""
    with client(tmp_path, neighbour(endpoint, word, then)) as program:
        await asyncio.to_thread(program.number, "pid")
        copy = Identities(int(program.said("copy")[0]))
        program.said("now")
        program.kill()
        await went(word)
        assert copy.alive()
        end(copy.alive())


async def test_s43_a_child_that_is_to_stay_stays_until_somebody_ends_it(
    shared: Program, endpoint: str, tmp_path: Path
) -> None:
    word, proof = tag(), tmp_path / "drained"
    code = f"""
import os, sys
os.read(0, 1)
for _ in range(64):
    os.write(1, b"x" * 65536)
open({str(proof)!r}, "w").close()
signal.pause()
"""
    body = f"""
async def main():
    engine = actors.Engine({endpoint!r}, owner_key={KEY!r})
    await engine.__aenter__()
    child = await engine.spawn(
        python({code!r}, {word!r}), stdin="pipe", kill_on_drop=False
    )
    say("pid", child.pid)
    await asyncio.sleep(150)

asyncio.run(main())
"""
    with client(tmp_path, body) as program:
        pid = await asyncio.to_thread(program.number, "pid")
        program.kill()
    # Its stdin ends with its owner, and what it writes then goes somewhere.
    await asyncio.to_thread(eventually, proof.exists)
    assert tagged(word) == [pid]
    async with actors.Engine(endpoint, owner_key=KEY) as engine:
        [left] = await engine.children()
        assert not left.owner_alive
        assert left.dropped > 0
        await engine.kill([left.id])
        assert not tagged(word)


async def test_the_run_of_a_killed_client_gives_the_next_one_all_its_output(
    shared: Program, endpoint: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = ["sh", "-c", f"echo first; read line < {gate}; echo $line; exit 3"]
    options: dict[str, Any] = {"request_id": "job", "detach_ttl": float(FOREVER)}
    body = f"""
async def main():
    async with actors.Engine({endpoint!r}, owner_key={KEY!r}) as engine:
        def into(stream, data):
            say(data.decode().strip())
        await engine.run({command!r}, into=into, **{options!r})

asyncio.run(main())
"""
    with client(tmp_path, body) as program:
        await asyncio.to_thread(program.said, "first")
        program.kill()
    async with actors.Engine(endpoint, owner_key=KEY) as engine:
        while (await engine.children())[0].owner_alive:
            await asyncio.sleep(0.01)
        run = asyncio.create_task(engine.run(command, **options))
        await asyncio.to_thread(gate.write_text, "last\n")
        done = await asyncio.wait_for(run, NOT_BLOCKED)
        assert (done.stdout, done.returncode) == (b"first\nlast\n", 3)


async def test_runs_of_one_request_id_end_nothing_of_each_other(
    shared: Program, endpoint: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    command = ["sh", "-c", f"echo out; until test -e {gate}; do sleep 0.01; done"]
    async with actors.Engine(endpoint) as engine:
        begun = asyncio.Event()
        runs = [
            asyncio.create_task(
                engine.run(command, request_id="job", into=lambda *_: begun.set())
            ),
            *(asyncio.create_task(engine.run(command, request_id="job")) for _ in "23"),
        ]
        await asyncio.wait_for(begun.wait(), NOT_BLOCKED)
        child = await engine.spawn(command, request_id="job")
        runs[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await runs[0]
        assert (await child.snapshot()).state == "running"
        gate.touch()
        for done in await asyncio.wait_for(asyncio.gather(*runs[1:]), NOT_BLOCKED):
            assert (done.stdout, done.returncode) == (b"out\n", 0)
        assert (await child.poll(wait=0)).stdout == b"out\n"
        await child.aclose()
        assert (await engine.info()).counts["sessions"] == 0


async def test_a_cancelled_spawn_ends_nothing_that_another_client_has_started(
    shared: Program, endpoint: str
) -> None:
    word = tag()
    async with (
        actors.Engine(endpoint, owner_key=KEY) as one,
        actors.Engine(endpoint, owner_key=KEY) as two,
    ):
        child = await one.spawn(daemons(word), request_id="job", kill_on_drop=False)
        await up(child)
        for how in ("cancelled", "closed"):
            scope = two.scope()
            spawn = asyncio.create_task(scope.spawn(daemons(word), request_id="job"))
            await asyncio.sleep(0)  # it is asked for, and not answered yet
            if how == "cancelled":
                spawn.cancel()
            await scope.aclose()
            with pytest.raises((asyncio.CancelledError, actors.SessionOwned)):
                await spawn
            assert (await two.info()).counts["live"] == 1
        assert (await child.snapshot()).state == "running"
        assert len(tagged(word)) == DAEMONS + 1
        await child.kill()


async def test_a_cancelled_spawn_takes_no_other_client_out_of_the_line(
    shared: Program, endpoint: str
) -> None:
    async with (
        actors.Engine(endpoint, owner_key=KEY) as one,
        actors.Engine(endpoint, owner_key=KEY) as two,
        one.scope("x", capacity=1, queue=NOT_BLOCKED) as scope,
        two.scope("x", capacity=1, queue=NOT_BLOCKED) as other,
    ):
        first = await scope.spawn(daemons(tag()))
        spawn = asyncio.create_task(scope.spawn(["true"], request_id="job"))
        while not (await one.info()).counts["waiting"]:
            await asyncio.sleep(0.01)
        again = asyncio.create_task(other.spawn(["true"], request_id="job"))
        await asyncio.sleep(0)
        again.cancel()
        assert (await two.info()).counts["waiting"] == 1
        await first.kill()
        assert (await (await spawn).wait()).code == 0


# -- a client that stands still -------------------------------------------------


async def test_s44_only_a_hung_client_that_asked_for_it_loses_its_sessions(
    shared: Program, endpoint: str, tmp_path: Path
) -> None:
    kept, lost = tag(), tag()
    settings = (
        ", settings=actors.Settings(on_hung='kill', lease=2.0, lease_renewal=0.2)"
    )
    after = """say("now")
    await asyncio.sleep(0)
    assert heard() == "go"
    say("cause", (await child.wait(10)).cause)
    try:
        await child.poll(wait=0)
    except actors.SessionNotFound:
        say("missing")
"""
    staying = """say("now")
    assert heard() == "go"
    say("state", (await child.snapshot()).state)
"""
    with (
        client(tmp_path, neighbour(endpoint, lost, after, settings)) as hung,
        client(tmp_path, neighbour(endpoint, kept, staying)) as stopped,
    ):
        started = 0.0
        for program in (stopped, hung):
            await asyncio.to_thread(program.number, "pid")
            program.said("now")
            started = asyncio.get_running_loop().time()
            program.signal(signal.SIGSTOP)
        await went(lost)
        assert asyncio.get_running_loop().time() - started > 0.5
        assert len(tagged(kept)) == DAEMONS + 1
        for program in (hung, stopped):
            program.signal(signal.SIGCONT)
            program.tell("go")
        assert hung.said("cause") == ["owner-drop"]
        assert hung.said("missing") == []
        assert stopped.said("state") == ["running"]


async def test_a_broker_that_stood_still_holds_that_against_no_lease(
    shared: Program, endpoint: str
) -> None:
    settings = actors.Settings(on_hung="kill", lease=3.0, lease_renewal=0.1)
    async with actors.Engine(endpoint, settings=settings) as engine:
        child = await engine.spawn(daemons(tag()))
        await up(child)
        broker = Parts.of(child.pid).broker
        stop(broker)
        await asyncio.sleep(3.5)  # the lease is over for all that the broker has read
        go(broker)
        await engine.info()
        assert (await child.snapshot()).state == "running"


async def test_s44_a_busy_client_with_a_lease_keeps_its_sessions(
    shared: Program, endpoint: str, tmp_path: Path
) -> None:
    word = tag()
    settings = (
        ", settings=actors.Settings(on_hung='kill', lease=3.0, lease_renewal=0.2)"
    )
    busy = """
    import time
    ends = time.monotonic() + 4.5
    while time.monotonic() < ends:
        sum(range(1000))
    say("state", (await child.snapshot()).state)
"""
    with client(tmp_path, neighbour(endpoint, word, busy, settings)) as program:
        await asyncio.to_thread(program.number, "pid")
        assert (await asyncio.to_thread(program.said, "state")) == ["running"]
        assert len(tagged(word)) == DAEMONS + 1


# -- peers that do not play by the rules ----------------------------------------


class Peer:
    """A connection that says what a test wants."""

    def __init__(self, endpoint: str, name: bytes | None = None) -> None:
        path = auth.endpoint_path(endpoint)
        self.directory = auth.RunDirectory.open(os.path.dirname(path))
        self.line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.context = zmq.Context(io_threads=1)
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        if name is not None:
            self.socket.setsockopt(zmq.ROUTING_ID, name)
        where = self.directory.path(os.path.basename(path))
        self.socket.connect("ipc://" + os.fsdecode(where))
        self.client = 0
        self.epoch = 0

    def close(self) -> None:
        self.line.close()
        self.socket.close()
        self.context.term()
        self.directory.close()

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    async def receive(self, timeout: float = NOT_BLOCKED) -> Message:
        ready = await asyncio.to_thread(self.socket.poll, int(timeout * 1000))
        if not ready:
            raise TimeoutError
        return wire.decode(self.socket.recv())

    async def ask(self, message: Message) -> Message:
        """Send a message and return the answer to it."""
        self.send(wire.encode(message) + bytes(message.payload or b""))
        answer = await self.receive()
        assert answer.request == message.request
        return answer

    async def hello(self, operator: bytes | None = None) -> Message:
        self.line.connect(self.directory.path(auth.LIFELINE_SOCKET))
        ticket = self.line.recv(TICKET)
        return await self.greet(ticket, operator)

    async def greet(self, ticket: bytes, operator: bytes | None = None) -> Message:
        body = {"ticket": ticket, "owner": b"me", "operator": operator, "lease": 0.0}
        body |= {"proof": None}
        answer = await self.ask(Message(Kind.HELLO, request=1, body=body))
        self.client, self.epoch = answer.client, answer.epoch
        return answer

    def message(self, kind: Kind, **fields: Any) -> Message:
        """Return a message of this client and epoch unless told otherwise."""
        given = {"client": self.client, "epoch": self.epoch, "request": 7, **fields}
        return Message(kind, **given)


@asynccontextmanager
async def peer(endpoint: str, name: bytes | None = None) -> AsyncIterator[Peer]:
    made = Peer(endpoint, name)
    try:
        yield made
    finally:
        made.close()


def said(message: Message) -> str:
    assert message.kind is Kind.ERROR, message
    return f"{message.body['code']}: {message.body['values']}"


async def test_a_command_of_an_earlier_broker_is_never_carried_out(
    shared: Program, endpoint: str
) -> None:
    async with peer(endpoint) as raw:
        await raw.hello()
        info = raw.message(Kind.INFO)
        assert (await raw.ask(info)).kind is Kind.REPLY
        for epoch in (0, raw.epoch - 1, raw.epoch + 1):
            answer = await raw.ask(info._replace(epoch=epoch))
            assert "earlier broker" in said(answer)
            assert said(answer).startswith("broker-lost")


async def test_a_command_past_its_deadline_is_never_carried_out(
    shared: Program, endpoint: str
) -> None:
    async with peer(endpoint) as raw:
        welcome = await raw.hello()
        clock = welcome.body["clock"]
        late = await raw.ask(raw.message(Kind.INFO, deadline=clock - 0.001))
        assert said(late).startswith("timed-out")
        early = await raw.ask(raw.message(Kind.INFO, deadline=clock + 1000.0))
        assert early.kind is Kind.REPLY


async def test_a_late_or_stale_spawn_starts_nothing(
    shared: Program, endpoint: str, tmp_path: Path
) -> None:
    async with actors.Engine(endpoint, owner_key=b"me") as engine:
        payload = launch(["touch", str(tmp_path / "ran")])
        async with peer(endpoint) as raw:
            clock = (await raw.hello()).body["clock"]
            body = SPAWN | {"token": "late"}
            spawn = raw.message(Kind.SPAWN, body=body, payload=payload)
            for wrong in ({"epoch": raw.epoch - 1}, {"deadline": clock - 0.001}):
                assert (await raw.ask(spawn._replace(**wrong))).kind is Kind.ERROR
            assert (await engine.info()).counts["sessions"] == 0
            assert not (tmp_path / "ran").exists()
            answer = await raw.ask(spawn)
            assert answer.kind is Kind.REPLY
            await asyncio.to_thread(eventually, (tmp_path / "ran").exists)


def launch(argv: list[str]) -> bytes:
    """Return the payload of a spawn of this command."""
    surroundings = Surroundings()
    try:
        ambient = surroundings.read()
    finally:
        surroundings.close()
    made = Spec(argv).launch(ambient, actors.Settings(), "", "0" * 32)
    return made.to_wire()


async def test_a_client_number_cannot_be_borrowed(
    shared: Program, endpoint: str
) -> None:
    async with peer(endpoint) as one, peer(endpoint) as two:
        await one.hello()
        await two.hello()
        assert one.client != two.client
        answer = await two.ask(two.message(Kind.INFO, client=one.client))
        assert "not this connection's" in said(answer)


async def test_nobody_is_served_before_a_hello_that_proves_itself(
    shared: Program, endpoint: str
) -> None:
    async with peer(endpoint) as raw:
        answer = await raw.ask(Message(Kind.INFO, request=3))
        assert "say HELLO first" in said(answer)
        answer = await raw.greet(secrets.token_bytes(TICKET))
        assert "ticket" in said(answer)
        assert (await raw.hello()).kind is Kind.WELCOME


async def test_a_ticket_is_good_for_one_hello(shared: Program, endpoint: str) -> None:
    async with peer(endpoint) as one, peer(endpoint) as two:
        one.line.connect(one.directory.path(auth.LIFELINE_SOCKET))
        ticket = one.line.recv(TICKET)
        assert (await one.greet(ticket)).kind is Kind.WELCOME
        assert (await two.greet(ticket)).kind is Kind.ERROR


async def test_a_second_hello_changes_nothing(shared: Program, endpoint: str) -> None:
    async with peer(endpoint) as raw:
        await raw.hello()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.connect(raw.directory.path(auth.LIFELINE_SOCKET))
            ticket = line.recv(TICKET)
            body = {"ticket": ticket, "owner": b"you", "operator": None, "lease": 0.0}
            body |= {"proof": None}
            answer = await raw.ask(raw.message(Kind.HELLO, body=body))
            assert "said hello before" in said(answer)
        assert (await raw.ask(raw.message(Kind.INFO))).kind is Kind.REPLY


def frame(
    body: bytes = b"",
    *,
    version: int = wire.VERSION,
    kind: int = Kind.INFO,
    size: int | None = None,
    session: int = 0,
    deadline: float = 0.0,
) -> bytes:
    """Return a frame of request 5 with some items replaced."""
    size = len(body) if size is None else size
    head = struct.pack("<BBHIQQQd", version, kind, size, 0, 5, session, 0, deadline)
    return head + body


WITH_PAYLOAD = 0x8000
NONSENSE: dict[str, list[bytes]] = {
    "no frame": [b"GET / HTTP/1.1\r\n\r\n"],
    "nothing": [b""],
    "two nothings": [b"", b""],
    "an older version": [msgpack.packb([1, 4, 0, 5, 0, 0, 0.0, {}])],
    "too short": [frame()[:-1]],
    "too long": [frame() + b"9"],
    "other version": [frame(version=99)],
    "unknown kind": [frame(kind=200)],
    "kind of a worker": [frame(kind=Kind.IDLE)],
    "kind of the pool": [frame(msgpack.packb({"proven": True}), kind=Kind.POOL_GONE)],
    "output": [frame(bytes(17), kind=Kind.CHUNK, size=17 | WITH_PAYLOAD)],
    "input for nobody": [frame(bytes(8), kind=Kind.WRITE, size=8 | WITH_PAYLOAD)],
    "broken input": [frame(bytes(7), kind=Kind.WRITE, size=7 | WITH_PAYLOAD)],
    "deadline is no number": [frame(deadline=float("nan"))],
    "unknown field": [frame(msgpack.packb({"surplus": 1}))],
    "missing field": [frame(kind=Kind.HELLO)],
    "unasked payload": [frame(b"payload", size=WITH_PAYLOAD)],
    "body that is not there": [frame(size=100)],
    "no msgpack": [frame(b"\xc1")],
    "extra frames": [frame(), b"", b"", b""],
    "many frames": [b"x"] * 1000,
    "a forged frame behind": [frame(), b"\0\0\0\0\1", frame()],
    "deeply nested": [frame(b"\x91" * 12000 + b"\xc0")],
    "a large body": [frame(b"\xc0" * wire.MAX_CONTROL)],
    "a bomb of empty lists": [frame(b"\xdc\x3f\x00" + b"\x90" * 0x3F00)],
    "an array that lies": [frame(b"\xdd\xff\xff\xff\xff")],
    "a payload over the limit": [frame(size=WITH_PAYLOAD) + bytes(wire.MAX_FRAME)],
}


async def test_nonsense_costs_nobody_but_its_sender(
    shared: Program, endpoint: str
) -> None:
    word = tag()
    async with actors.Engine(endpoint) as engine:
        child = await engine.spawn(daemons(word))
        await up(child)
        parts = Identities(*Parts.of(child.pid))
        for said_hello in (False, True):
            for name, frames in NONSENSE.items():
                async with peer(endpoint) as raw:
                    if said_hello:
                        await raw.hello()
                    raw.send(*frames)
                    await answered(raw, name, frames)
                assert (await engine.info()).counts["sessions"] == 1, name
                assert len(parts.alive()) == 4, name
        assert len(tagged(word)) == DAEMONS + 1
        await child.aclose()


MISFITS: dict[str, bytes] = {
    "input that ends behind its header": frame(kind=Kind.WRITE, size=8 | WITH_PAYLOAD),
    "input over the limit": frame(
        bytes(8 + wire.MAX_PAYLOAD + 1), kind=Kind.WRITE, size=8 | WITH_PAYLOAD
    ),
    "a credit with a byte too many": frame(bytes(18), kind=Kind.CREDIT, size=17),
}
"""What would go to a session's worker unread, if its length was right."""


@pytest.mark.parametrize("name", MISFITS)
async def test_a_frame_of_a_wrong_length_costs_its_session_nothing(
    shared: Program, endpoint: str, name: str
) -> None:
    async with (
        peer(endpoint) as raw,
        actors.Engine(endpoint, owner_key=b"me") as engine,
    ):
        await raw.hello()
        child = await engine.spawn(["cat"], stdin="pipe")
        ids = struct.Struct("<IQQQ").pack(raw.client, 5, child.id, raw.epoch)
        header, rest = MISFITS[name][:4], MISFITS[name][4 + len(ids) :]
        raw.send(header + ids + rest)
        answer = await raw.receive()
        assert said(answer).startswith("protocol-error")
        assert answer.request == 5
        await child.write(b"on\n")
        await child.close_stdin()
        assert (await child.wait()).code == 0


async def answered(raw: Peer, name: str, frames: list[bytes]) -> None:
    """Check that the next answer is an ERROR, where the peer is not cut off."""
    if name == "a payload over the limit":
        return
    try:
        answer = await raw.receive()
    except TimeoutError:
        raise AssertionError(name) from None
    assert answer.kind is Kind.ERROR, name
    salvaged = wire.salvage(frames[0])
    assert answer.request == salvaged, name


async def test_bytes_that_are_no_zeromq_cost_nobody_but_their_sender(
    shared: Program, endpoint: str
) -> None:
    directory = os.path.dirname(endpoint.removeprefix("ipc://"))
    noises = [b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 10, secrets.token_bytes(4096)]
    noises.append(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + bytes(48) + b"\xff" * 64)
    async with actors.Engine(endpoint) as engine:
        child = await engine.spawn(python("signal.pause()"))
        parts = Identities(*Parts.of(child.pid))
        for name in ("broker.sock", "lifeline.sock"):
            for noise in noises:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rude:
                    rude.connect(f"{directory}/{name}")
                    rude.sendall(noise)
                    assert (await engine.info()).counts["sessions"] == 1
        assert len(parts.alive()) == 4
        assert (await child.snapshot()).state == "running"
        await child.aclose()


async def test_a_routing_id_of_ones_own_choice_is_not_heard(
    shared: Program, endpoint: str
) -> None:
    async with peer(endpoint) as raw:
        await raw.hello()
        async with peer(endpoint, b"squat") as one, peer(endpoint, b"squat") as two:
            for squatter in (one, two):
                squatter.send(wire.encode(Message(Kind.INFO, request=1)))
            # The broker took theirs before it answers this.
            for _ in range(3):
                assert (await raw.ask(raw.message(Kind.INFO))).kind is Kind.REPLY
            assert not one.socket.poll(0)
            assert not two.socket.poll(0)
        assert (await raw.ask(raw.message(Kind.INFO))).kind is Kind.REPLY


async def test_a_client_that_reads_nothing_holds_up_nobody_else(
    shared: Program, endpoint: str
) -> None:
    async with actors.Engine(endpoint) as engine, peer(endpoint) as deaf:
        await deaf.hello()
        info = wire.encode(deaf.message(Kind.INFO))
        for _ in range(5000):
            try:
                deaf.socket.send(info, zmq.NOBLOCK)
            except zmq.Again:
                break
        for _ in range(5):
            assert (await engine.run(["echo", "on"])).stdout == b"on\n"
        assert alive(shared.pid)


async def test_a_killed_broker_ends_the_trees_of_all_its_clients(
    endpoint: str, tmp_path: Path
) -> None:
    with serving(endpoint, grace=0) as broker:
        await lose_without_grace(broker, endpoint)
    assert broker.process.returncode == 1
    assert last_words(tmp_path).startswith("creche: the broker died, ")


async def lose_without_grace(broker: Program, endpoint: str) -> None:
    word = tag()
    async with actors.Engine(endpoint) as blocked, actors.Engine(endpoint) as idle:
        clients = (blocked,) * 3 + (idle,) * 3
        children = [await engine.spawn(daemons(word)) for engine in clients]
        for child in children:
            await up(child)
        waiting = asyncio.ensure_future(children[0].wait())
        await children[0].snapshot()
        end([Parts.of(children[0].pid).broker])
        with pytest.raises(actors.BrokerLost):
            await asyncio.wait_for(waiting, NOT_BLOCKED)
        with pytest.raises(actors.BrokerLost):
            await asyncio.wait_for(children[3].poll(wait=0), NOT_BLOCKED)
        await asyncio.to_thread(broker.process.wait, NOT_BLOCKED)
        assert tagged(word) == []


async def test_workers_that_are_wanted_no_more_do_not_wait_for_another_broker(
    endpoint: str,
) -> None:
    with serving(endpoint, grace=10 * NOT_BLOCKED):
        async with actors.Engine(endpoint) as engine:
            many = range(IDLE_WORKERS + 6)
            children = [await engine.spawn(["sleep", "150"]) for _ in many]
            pool = Parts.of(children[0].pid).pool
            await asyncio.gather(*(child.aclose() for child in children))
            await asyncio.to_thread(
                eventually, lambda: len(tree.children(pool)) == IDLE_WORKERS
            )


@pytest.mark.soak
@pytest.mark.timeout(120)
async def test_four_clients_start_two_thousand_children_side_by_side(
    shared: Program, endpoint: str, tmp_path: Path
) -> None:
    body = f"""
import asyncio, time
async def main():
    gate, slowest = asyncio.Semaphore(32), 0.0
    async with actors.Engine({endpoint!r}) as engine:
        async def one():
            nonlocal slowest
            async with gate:
                started = time.monotonic()
                assert (await engine.run(["true"])).returncode == 0
                slowest = max(slowest, time.monotonic() - started)
        await asyncio.gather(*(one() for _ in range(500)))
    print(slowest, flush=True)
asyncio.run(main())
"""
    with ExitStack() as stack:
        programs = [stack.enter_context(client(tmp_path, body)) for _ in range(4)]
        for program in programs:
            line = await asyncio.to_thread(program.line)
            assert float(line) < NOT_BLOCKED
