"""Minutes-long runs: thousands of spawns, kills and streams. Counts are options."""

import asyncio
import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest

import actors
from broker import tree
from tests.helpers import DAEMON_TREE, alive, eventually, python, tag, tagged

pytestmark = [pytest.mark.live, pytest.mark.soak, pytest.mark.timeout(3000)]

MIB = 1 << 20


def engine_pids() -> dict[str, int]:
    """Return the supervisor, pool and broker below this process."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes()
            parent = int(
                Path(f"/proc/{name}/stat").read_text().rsplit(")")[1].split()[1]
            )
            if b"--keeper" in words and parent == os.getpid():
                found["supervisor"] = int(name)
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes()
            parent = int(
                Path(f"/proc/{name}/stat").read_text().rsplit(")")[1].split()[1]
            )
            if parent == found["supervisor"]:
                found["broker" if b"--keeper" in words else "pool"] = int(name)
    return found


def measure(pid: int) -> dict[str, int]:
    status = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if ":" in line
    )
    return {
        "fds": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
        "rss": int(status["VmRSS"].split()[0]) * 1024,
    }


def workers(pool: int) -> list[int]:
    return [
        int(pid)
        for pid in Path(f"/proc/{pool}/task/{pool}/children").read_text().split()
    ]


async def test_ten_thousand_spawns_leave_nothing(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    count = request.config.getoption("--spawns")
    async with actors.Engine() as engine:
        left = iter(range(500 + count))

        async def some(number: int) -> None:
            for _ in islice(left, number):
                done = await engine.run(["/bin/true"])
                assert (done.returncode, done.status.cause) == (0, "exited")

        await asyncio.gather(*(some(500 // 64) for _ in range(64)))  # all is warm
        parts = {**engine_pids(), "client": os.getpid()}
        before = {name: measure(pid) for name, pid in parts.items()}
        await asyncio.gather(*(some(count) for _ in range(64)))
        assert next(left, None) is None
        eventually(lambda: len(workers(parts["pool"])) <= 64)
        after = {name: measure(pid) for name, pid in parts.items()}
        for name in parts:
            grown = after[name]["rss"] - before[name]["rss"]
            with capsys.disabled():
                print(f"\n{name}: {before[name]} -> {after[name]}", end="")
            assert after[name]["fds"] <= before[name]["fds"] + (name == "client")
            assert after[name]["threads"] == before[name]["threads"]
            assert grown <= max(before[name]["rss"] // 10, 16 * MIB)
        for pid in workers(parts["pool"]):
            assert measure(pid)["fds"] <= 10


CLIENT = """
import asyncio, sys, actors
sys.path.insert(0, {root!r})
from tests.helpers import DAEMON_TREE, python

async def main():
    async with actors.Engine() as engine:
        async with engine.scope() as scope:
            child = await scope.spawn(python(DAEMON_TREE, {word!r}, "9"))
            seen = b""
            while b"up" not in seen:
                seen += (await child.poll(wait=10, mode="output")).stdout
            print("up", flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""


def plain_kill(word: str) -> float:
    """Return the seconds that SIGKILL and reap of the same tree take by pid."""
    child = subprocess.Popen(python(DAEMON_TREE, word, "9"), stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    pids = tagged(word)
    started = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)  # noqa: TID251 - the floor of the measurement
    left = set(pids)
    while left:
        left = {pid for pid in left if alive(pid)}
    took = time.monotonic() - started
    child.stdout.close()
    child.wait()
    for pid in pids:
        if pid != child.pid:  # ours as well: left, each look at all processes is longer
            os.waitpid(pid, 0)
    return took


def test_a_killed_client_leaves_no_process_of_a_hostile_tree(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = request.config.getoption("--kills")
    root = str(Path(__file__).resolve().parents[2])
    floors, times = [], []
    for _ in range(rounds):
        floors.append(plain_kill(tag()))
        word = tag()
        script = CLIENT.format(root=root, word=word)
        client = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": root},
        )
        assert client.stdout is not None
        assert client.stdout.readline() == b"up\n"
        pids = [pid for pid in tagged(word) if pid != client.pid]
        assert len(pids) == 10
        started = time.monotonic()
        client.kill()
        left = set(pids)
        while left:
            left = {pid for pid in left if alive(pid)}
            assert time.monotonic() < started + 30, f"alive: {left}"
        times.append(time.monotonic() - started)
        client.stdout.close()
        client.wait()
        assert not tagged(word)
    floors.sort()
    times.sort()
    median = floors[len(floors) // 2]
    with capsys.disabled():
        for share in (0.5, 0.9, 0.99, 1.0):
            at = times[min(len(times) - 1, int(len(times) * share))]
            print(f"\nlast of 10 gone, p{share * 100:g}: {at * 1e3:.1f} ms", end="")
            print(
                f" = {at / median:.1f} x a plain kill ({median * 1e3:.1f} ms)", end=""
            )


WRITER = """
import hashlib, os, random, sys
rng = random.Random(int(sys.argv[1]))
size, block = int(sys.argv[2]), 65536
sums = [hashlib.sha256(), hashlib.sha256()]
for start in range(0, size, block):
    for fd in (1, 2):
        data = rng.randbytes(min(block, size - start))
        sums[fd - 1].update(data)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view):]
"""


def expected(seed: int, size: int) -> list[str]:
    rng = random.Random(seed)
    sums = [hashlib.sha256(), hashlib.sha256()]
    for start in range(0, size, 65536):
        for total in sums:
            total.update(rng.randbytes(min(65536, size - start)))
    return [total.hexdigest() for total in sums]


async def consume(
    child: actors.Child, rate: float | None, stop: asyncio.Event
) -> list[str]:
    sums = {"stdout": hashlib.sha256(), "stderr": hashlib.sha256()}
    offsets = {"stdout": 0, "stderr": 0}
    loop = asyncio.get_running_loop()
    started, taken = loop.time(), 0
    async for event in child.events():
        assert not isinstance(event, actors.Gap)
        if isinstance(event, actors.Chunk):
            assert event.offset == offsets[event.stream]
            offsets[event.stream] += len(event.data)
            sums[event.stream].update(event.data)
            taken += len(event.data)
            ahead = taken / rate - (loop.time() - started) if rate else 0
            if ahead > 0 and not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), ahead)
    return [total.hexdigest() for total in sums.values()]


async def flow(engine: actors.Engine, sessions: int, size: int, *, slow: bool) -> float:
    """Run the writers, one of them read at 1 MiB/s; return the others' bytes/s."""
    policy = actors.OutputPolicy.block(MIB)
    command = [sys.executable, "-S", "-c", WRITER]
    async with engine.scope() as scope:
        children = [
            await scope.spawn([*command, str(seed), str(size)], retention=policy)
            for seed in range(sessions)
        ]
        stop = asyncio.Event()
        tasks = [
            asyncio.ensure_future(
                consume(child, MIB if slow and index == 0 else None, stop)
            )
            for index, child in enumerate(children)
        ]
        started = time.monotonic()
        sums = await asyncio.gather(*tasks[1:])
        took = time.monotonic() - started
        stop.set()
        sums = [await tasks[0], *sums]
        assert sums == [expected(seed, size) for seed in range(sessions)]
        assert [(await child.wait()).code for child in children] == [0] * sessions
    return 2 * size * (sessions - 1) / took


async def test_a_slow_reader_slows_nobody_else_and_no_byte_is_lost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with actors.Engine() as engine:
        without, with_slow = [], []
        for _ in range(3):
            without.append(await flow(engine, 64, 16 * MIB, slow=False))
            with_slow.append(await flow(engine, 64, 16 * MIB, slow=True))
        shares = sorted(b / a for a, b in zip(without, with_slow, strict=True))
        with capsys.disabled():
            print(f"\nshare of their throughput beside a slow reader: {shares}", end="")
        assert shares[1] >= 0.8


async def test_two_hundred_idle_children_cost_next_to_nothing(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = request.config.getoption("--idle-seconds")
    async with actors.Engine() as engine, engine.scope() as scope:
        for _ in range(200):
            await scope.spawn(["sleep", "1000"])
        parts = engine_pids()
        pids = [*parts.values(), *workers(parts["pool"])]
        used = -sum(map(cpu_time, pids))
        started = time.monotonic()
        await asyncio.sleep(seconds)
        used += sum(map(cpu_time, pids))
        share = used / (time.monotonic() - started)
        with capsys.disabled():
            print(f"\nengine of 200 idle children: {share:.2%} of a core", end="")
        assert share <= 0.05


def cpu_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- engines killed as a whole -------------------------------------------------------

BUSY = """
import asyncio, sys, actors
sys.path.insert(0, {root!r})
from tests.helpers import DAEMON_TREE, python

word, log, guard = {word!r}, {log!r}, {guard!r}
START = ["/bin/sh", "-c", "echo start >>$0; echo up; exec sleep 150", log, word]
# Two at a time would meet at the lock, which ends with whoever has it.
STOP = ["/bin/sh", "-c",
        "exec 9>$1; flock -n 9 || echo clash >>$0; echo stopping >>$0; sleep 0.02; "
        "echo stopped >>$0", log, guard, word]

async def main():
    async with actors.Engine() as engine:
        print("open", flush=True)
        spec = actors.ServiceSpec("helper", "soak", START, STOP)
        async with engine.scope() as scope:
            async def work():
                while True:
                    child = await scope.spawn(python(DAEMON_TREE, word, "2"))
                    await child.poll(wait=10, mode="output")
                    await scope.run(["true", word])
                    await child.aclose()
            async def serve():
                while True:
                    async with await engine.service(spec) as service:
                        await service.run(["true", word])
            await asyncio.gather(work(), work(), serve())

asyncio.run(main())
"""


def crash(client: "subprocess.Popen[bytes]") -> None:
    """SIGKILL a client and all processes of its engine, one right after the other."""
    (supervisor,) = tree.children(client.pid)
    parts = [supervisor, *tree.children(supervisor)]
    workers = [pid for part in parts[1:] for pid in tree.children(part)]
    everybody = [client.pid, *parts, *workers]
    for pid in everybody:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # noqa: TID251 - a test kills what it can
    client.wait()
    # As long as its supervisor has not come to end, an engine is not a dead one.
    eventually(lambda: not any(map(alive, everybody)))


async def test_engines_killed_as_a_whole_leave_nothing_to_the_next(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds, chance = request.config.getoption("--crashes"), random.Random(51)
    root = str(Path(__file__).resolve().parents[2])
    found = {"killed": 0, "stopped": 0}
    innocent = subprocess.Popen(["sleep", "3000"], start_new_session=True)
    try:
        for number in range(rounds):
            word, log = tag(), tmp_path / f"log{number}"
            guard = str(tmp_path / f"guard{number}")
            names = {"root": root, "word": word, "log": str(log), "guard": guard}
            client = subprocess.Popen(
                [sys.executable, "-c", BUSY.format(**names)], stdout=subprocess.PIPE
            )
            assert client.stdout is not None
            assert client.stdout.readline() == b"open\n"
            await asyncio.sleep(chance.uniform(0.0, 1.5))
            crash(client)
            client.stdout.close()
            async with actors.Engine() as engine:
                assert tagged(word) == []
                for tree_left in engine.recovered.trees:
                    assert tree_left.kind == "killed", tree_left
                    found["killed"] += 1
                for service in engine.recovered.services:
                    assert service.kind == "stopped", service
                    found["stopped"] += 1
            said = log.read_text().split() if log.exists() else []
            assert "clash" not in said
            if "start" in said:
                last = len(said) - 1 - said[::-1].index("start")
                assert "stopped" in said[last:], said
            async with actors.Engine() as engine:
                assert engine.recovered == actors.Recovery()
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()
    with capsys.disabled():
        print(f"\n{rounds} crashes: {found}", end="")
    assert found["killed"] > 0
    assert found["stopped"] > 0
