"""Clients and children that do what nobody should, and calls left in odd ways."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import actors
from broker import tree
from tests.helpers import NOT_BLOCKED, alive, end, eventually, parent, python, state
from tests.parts import running

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parent.parent.parent


async def bounded(call: "asyncio.Future[Any]") -> Any:
    return await asyncio.wait_for(call, NOT_BLOCKED)


# -- calls that are left --------------------------------------------------------


async def test_closing_a_stream_wakes_who_waits_for_its_next_event() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(python("signal.pause()"))
        stream = child.events()
        steps = [asyncio.ensure_future(anext(stream)) for _ in range(2)]
        await asyncio.sleep(0)
        await stream.aclose()
        for step in steps:
            with pytest.raises(StopAsyncIteration):
                await bounded(step)
        await child.aclose()


async def test_two_steps_of_one_stream_share_its_events() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(python("signal.pause()"))
        stream = child.events()
        taken: list[actors.Event] = []

        async def take() -> None:
            taken.extend([event async for event in stream])

        takers = [asyncio.ensure_future(take()) for _ in range(3)]
        await asyncio.sleep(0)
        await child.kill()
        for taker in takers:
            await bounded(taker)
        assert sorted(type(event).__name__ for event in taken) == [
            "Closed",
            "Exited",
            "StreamEof",
            "StreamEof",
        ]
        await child.aclose()


async def test_writes_that_were_cancelled_make_the_next_one_wait() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(python("signal.pause()"), stdin="pipe")
        for _ in range(4):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(child.write(b"x" * (1 << 20)), 0.2)
        await child.close_stdin()
        with pytest.raises(actors.StdinUnavailable):
            await child.write(b"y")
        await child.aclose()


async def test_calls_that_were_taken_back_leave_nothing_in_the_client() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(python("signal.pause()"))
        reader = child.reader()
        for _ in range(20):
            for call in (child.poll(wait=100), reader.read(wait=100)):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(call, 0.001)
        waiting = engine._connection().link._waiting
        await child.poll(wait=0)
        assert not waiting
        await child.aclose()


@pytest.mark.parametrize("text", ["\ud800", b"name", 5, ""])
async def test_a_scope_of_no_name_is_refused_at_once(text: object) -> None:
    async with actors.Engine() as engine:
        with pytest.raises(actors.InvalidRequest) as refused:
            engine.scope(text)  # type: ignore[arg-type]
        assert refused.value.field == "name"


async def test_a_scope_that_nothing_could_cancel_is_refused_at_once() -> None:
    async with actors.Engine() as engine:
        with pytest.raises(actors.InvalidRequest) as refused:
            engine.scope(cancel=5)  # type: ignore[arg-type]
        assert refused.value.field == "cancel"


# -- children against their worker ----------------------------------------------

TRACER = """
import ctypes, os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
attached = ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)
os.write(1, b"%d" % attached)
signal.pause()
"""


async def test_a_child_that_traces_its_worker_ends_with_it(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with actors.Engine() as engine:
        child = await engine.spawn(python(TRACER, str(gate)))
        gate.touch()  # its worker has answered: from now on it will not
        worker = parent(child.pid)
        state = Path(f"/proc/{worker}/status")
        await asyncio.to_thread(
            eventually, lambda: b"TracerPid:\t0\n" not in state.read_bytes()
        )
        receipt = await asyncio.wait_for(child.kill(timeout=0.2), NOT_BLOCKED)
        assert receipt.survivors == ()
        assert not alive(child.pid)
        assert not alive(worker)
        await child.aclose()


TRACED = """
import ctypes
assert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0  # PTRACE_TRACEME
"""


AFTERWARDS = {
    "signal": """
signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
signal.raise_signal(signal.SIGUSR1)
""",
    "exec": "os.execvp('sh', ['sh', '-c', 'exit 7'])",
    "child": """
if os.fork() == 0:
    os._exit(1)
os.wait()
os._exit(7)
""",
}


@pytest.mark.parametrize("then", AFTERWARDS.values(), ids=AFTERWARDS)
async def test_s39_a_child_that_is_to_be_traced_has_not_ended(then: str) -> None:
    async with actors.Engine() as engine:
        done = await engine.run(python("import os, signal\n" + TRACED + then))
        assert (done.status.code, done.status.cause) == (7, "exited")
        assert done.status.leftovers == ()


async def test_a_traced_child_that_is_stopped_stays_so_until_it_is_continued() -> None:
    stops = "signal.raise_signal(signal.SIGSTOP)\nos._exit(7)"
    async with actors.Engine() as engine:
        child = await engine.spawn(python("import os, signal\n" + TRACED + stops))
        await asyncio.to_thread(eventually, lambda: state(child.pid) == "T")
        await child.signal(signal.SIGCONT)
        assert (await child.wait(NOT_BLOCKED)).code == 7
        await child.aclose()


FOREIGN = """
import json, os
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        break
os.setgid(12345)
os.setuid(12345)
if os.getpid() == os.getsid(0):
    os.write(1, b"up")
os.read(0, 1)
os._exit(7)
"""

# A program that is root, but may not signal the processes of other users.
CAPTIVE = f"""
import asyncio, ctypes, json, os, signal, sys
assert ctypes.CDLL(None).prctl(24, 5, 0, 0, 0) == 0  # CAP_KILL, from the next exec on
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, __file__, "again"])
import actors
from broker import tree
from tests.helpers import parent, python

async def up(engine, count):
    command = python("import sys" + {FOREIGN!r}, str(count))
    child = await engine.spawn(command, stdin="pipe")
    await child.poll(wait=20, mode="output")
    return child

async def honest(ending, child):
    # with a cgroup it may be gone indeed
    try:
        survivors = (await ending).survivors
    except actors.WorkerLost:
        return True
    return bool(survivors) or tree.stat(child.pid) is None

async def main():
    said = {{}}
    async with actors.Engine() as engine:
        child = await up(engine, 1)
        for name, call in [("signal", child.signal(15)), ("int", child.interrupt())]:
            try:
                await call
            except actors.EngineError as error:
                said[name] = str(error)
        said["state"] = (await child.snapshot()).state
        said["honest"] = [await honest(child.terminate(0.1), child)]
        await child.close_stdin()
        ended = await child.wait()
        said["own end"] = [ended.code, ended.cause]
        many = await up(engine, 1000)
        said["honest"].append(await honest(many.kill(0.5), many))
        last = await up(engine, 1)
        os.kill(parent(parent(last.pid)), signal.SIGKILL)
        said["cause"] = (await last.wait()).cause
        said["honest"].append(await honest(last.kill(0.5), last))
        os.write(1, json.dumps(said).encode())
        os._exit(0)

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user of a child")
def test_s36_a_child_of_another_user_survives_and_is_never_called_gone(
    tmp_path: Path,
) -> None:
    script = tmp_path / "captive.py"
    script.write_text(CAPTIVE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, script],
        env=environment,
        capture_output=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    foreign = [p for p in tree.descendants(os.getpid()) if user(p) == 12345]
    for pid in foreign:
        os.kill(pid, 9)  # noqa: TID251 - the engine of this test was not allowed to
    assert json.loads(done.stdout) == {
        "signal": "the child runs as another user",
        "int": "the child runs as another user",
        "state": "running",
        "honest": [True, True, True],
        "own end": [7, "exited"],
        "cause": "worker-lost",
    }


STAYS = """
import os, signal, sys
os.setgid(12345)
os.setuid(12345)
os.write(1, b"up")
while True:
    signal.pause()
"""

# Like CAPTIVE.
STAINED = f"""
import asyncio, ctypes, json, os, signal, sys
assert ctypes.CDLL(None).prctl(24, 5, 0, 0, 0) == 0
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, __file__, "again"])
import actors
from tests.helpers import parent, python

async def main():
    settings = actors.Settings(containment="subreaper")
    async with actors.Engine(settings=settings) as engine:
        foreign = [await engine.spawn(python({STAYS!r})) for _ in range(2)]
        for child in foreign:
            await child.poll(wait=20, mode="output")
        others = [await engine.spawn(["sleep", "150"]) for _ in range(2)]
        for child in foreign:
            os.kill(parent(child.pid), signal.SIGKILL)
        said = []
        for child in foreign:
            assert (await child.wait()).cause == "worker-lost"
            try:
                said.append(len((await child.kill(0.5)).survivors))
            except actors.WorkerLost:
                said.append("lost")
        for child in others:
            os.kill(parent(child.pid), signal.SIGKILL)
            assert (await child.wait()).cause == "worker-lost"
            said.append(len((await child.kill(0.5)).survivors))
            await child.aclose()
        print(json.dumps([said, [child.pid for child in foreign]]), flush=True)
        sys.stdin.readline()
        os._exit(0)

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user of a child")
def test_what_a_lost_worker_left_for_good_is_no_trouble_for_the_next_that_is_lost(
    tmp_path: Path, runtime_dir: Path
) -> None:
    script = tmp_path / "stained.py"
    script.write_text(STAINED)

    def records() -> int:
        return len(list((runtime_dir / "creche" / "journal").glob("run-*/w*")))

    with running(sys.executable, str(script)) as program:
        said, foreign = json.loads(program.line(30))
        assert said == ["lost", "lost", 0, 0]
        before = records()
        end(foreign)
        eventually(lambda: records() == before - 2)
        program.tell("over")
        assert program.process.wait(NOT_BLOCKED) == 0


def user(pid: int) -> int:
    found = tree.survivor(pid)
    return -1 if found is None else found.uid


# -- clients against the broker -------------------------------------------------

SERVE = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (129, 129))
os.execv(sys.executable, [sys.executable, "-m", "broker", "--endpoint", sys.argv[1]])
"""


@pytest.mark.parametrize("odd", [0, 1])
def test_lifelines_without_end_do_not_end_a_broker(tmp_path: Path, odd: int) -> None:
    tmp_path.chmod(0o700)
    where = tmp_path / "broker.sock"
    serve = SERVE.replace("129", str(129 + odd))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", serve, f"ipc://{where}"],
        env=environment,
        stdout=subprocess.PIPE,
    ) as broker:
        assert broker.stdout is not None
        try:
            assert broker.stdout.readline()
            held = [connect(tmp_path / "lifeline.sock") for _ in range(120)]
            refused = [line for line in held if line.recv(16) == b""]
            assert 0 < len(refused) < len(held)
            for line in held:
                line.close()
            eventually(lambda: greeted(tmp_path / "lifeline.sock"))
        finally:
            broker.terminate()


def greeted(where: Path) -> bool:
    with connect(where) as line:
        return line.recv(16) != b""


def connect(where: Path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(NOT_BLOCKED)
    line.connect(str(where))
    return line
