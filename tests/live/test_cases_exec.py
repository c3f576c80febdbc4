"""Starting programs, good and bad, and what they inherit: situations users reported."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import actors
from broker import tree
from tests.helpers import NOT_BLOCKED, gone, state, tag, tagged
from tests.live.children import (
    REST,
    client,
    engine_processes,
    program,
    repeated,
    until,
)
from tests.parts import running, serving

pytestmark = pytest.mark.live

SERVES = [sys.executable, "-m", "broker", "--endpoint"]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory of files that can and cannot be started."""
    place = tmp_path / "programs"
    place.mkdir()
    files = {
        "ok.sh": "#!/bin/sh\nexit 0\n",
        "sp ace.sh": "#!/bin/sh\nexit 0\n",
        "notext": "echo no interpreter is named\n",
        "badinterp": "#!/nowhere/interpreter\n",
        "crlf": "#!/bin/sh\r\nexit 0\r\n",
        "empty": "",
        "garbage": "\x7fELF\x02 not really\n",
        "noexec.sh": "#!/bin/sh\nexit 0\n",
    }
    for name, text in files.items():
        (place / name).write_text(text, newline="")
        (place / name).chmod(0o755)
    (place / "noexec.sh").chmod(0o644)
    (place / "adir").mkdir()
    return place


BAD_PROGRAMS = {
    "missing": errno.ENOENT,
    "noexec.sh": errno.EACCES,
    "adir": errno.EACCES,
    "notext": errno.ENOEXEC,
    "badinterp": errno.ENOENT,
    "crlf": errno.ENOENT,
    "empty": errno.ENOEXEC,
    "garbage": errno.ENOEXEC,
    "ok.sh/below": errno.ENOTDIR,
}


async def descriptors(engine: actors.Engine) -> dict[int, int]:
    every = [pid for kind in engine_processes(engine).values() for pid in kind]
    return {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in [*every, os.getpid()]}


# -- bad starts ----------------------------------------------------------------


async def test_s11_each_bad_program_is_an_error_of_the_start_itself(
    programs: Path,
) -> None:
    async with actors.Engine() as engine:
        for name, number in BAD_PROGRAMS.items():
            path = str(programs / name)
            async with asyncio.timeout(NOT_BLOCKED):
                with pytest.raises(actors.SpawnFailed) as failed:
                    await engine.spawn([path])
            told = failed.value
            assert (told.errno, told.step, told.path) == (number, "exec", path), name
            assert path in str(told)
            with pytest.raises(actors.SpawnFailed) as failed:
                await engine.run([path])
            assert failed.value.errno == number
            assert (await engine.run([str(programs / "ok.sh")])).returncode == 0
        assert (await engine.run([programs / "sp ace.sh"])).returncode == 0
        assert await engine.children() == []


async def test_s11_a_bad_directory_is_told_from_a_bad_program(programs: Path) -> None:
    (programs / "notadir").write_text("")
    async with actors.Engine() as engine:
        for name, number in (("nodir", errno.ENOENT), ("notadir", errno.ENOTDIR)):
            with pytest.raises(actors.SpawnFailed) as failed:
                await engine.spawn([programs / "ok.sh"], cwd=programs / name)
            told = failed.value
            assert (told.errno, told.step) == (number, "cwd")
            assert told.path == str(programs / name)
            assert isinstance(told, OSError)
        done = await engine.run([programs / "ok.sh"], cwd=programs)
        assert done.returncode == 0


async def test_s12_a_name_is_looked_up_in_the_path_of_the_child(programs: Path) -> None:
    async with actors.Engine() as engine:
        with pytest.raises(actors.SpawnFailed) as failed:
            await engine.spawn(["ok.sh"])
        assert (failed.value.errno, failed.value.path) == (errno.ENOENT, "ok.sh")
        found = await engine.run(["ok.sh"], extra_env={"PATH": str(programs)})
        assert found.returncode == 0
        with pytest.raises(actors.SpawnFailed) as failed:
            await engine.run(["noexec.sh"], extra_env={"PATH": str(programs)})
        assert failed.value.errno == errno.EACCES


async def test_data_with_nul_bytes_passes_unharmed() -> None:
    data = b"\0a\0\0b\xff\0" * 1000
    async with actors.Engine() as engine:
        assert (await engine.run(["cat"], input=data)).stdout == data


@pytest.mark.parametrize("tty", [False, True])
async def test_a_client_in_a_removed_directory_has_its_children_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, tty: bool
) -> None:
    place = tmp_path / "removed"
    place.mkdir()
    here = place.stat().st_ino
    stands = ["stat", "-c", "%i", "."]
    async with actors.Engine() as engine:
        monkeypatch.chdir(place)
        place.rmdir()
        done = await engine.run(stands, tty=tty)
        assert (done.returncode, int(done.stdout)) == (0, here)
        with pytest.raises(actors.SpawnFailed) as failed:
            await engine.spawn(stands, tty=tty, cwd="etc")
        assert (failed.value.errno, failed.value.step) == (errno.ENOENT, "cwd")


async def test_s11_an_argument_too_long_for_the_system_is_told() -> None:
    async with actors.Engine() as engine:
        with pytest.raises(actors.SpawnFailed) as failed:
            await engine.spawn(["true", "x" * 200 * 1024])
        assert (failed.value.errno, failed.value.step) == (errno.E2BIG, "exec")
        assert (await engine.run(["true"])).returncode == 0


async def test_three_megabytes_of_arguments_and_environment_are_possible() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_STACK)
    # A quarter of the stack's limit is what arguments may take.
    resource.setrlimit(resource.RLIMIT_STACK, (64 * 1024 * 1024, before[1]))
    try:
        async with actors.Engine() as engine:
            words = [f"{n:0100000d}" for n in range(30)]
            done = await engine.run(["sh", "-c", 'echo "$# ${#30}"', "sh", *words])
            assert done.stdout == b"30 100000\n"
            env = {f"V{n}": word for n, word in enumerate(words)}
            done = await engine.run(["sh", "-c", "echo ${#V29}"], extra_env=env)
            assert done.stdout == b"100000\n"
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, before)


async def test_words_that_are_not_text_pass_unharmed(tmp_path: Path) -> None:
    odd = b"caf\xe9\xff"
    place = os.fsencode(tmp_path) + b"/" + odd
    os.mkdir(place)
    show = "import os, sys; os.write(1, os.fsencode(sys.argv[1]) + os.environb[b'ODD'])"
    async with actors.Engine() as engine:
        for word in (odd, os.fsdecode(odd)):
            done = await engine.run(
                [sys.executable, "-c", show, word], extra_env={"ODD": word}
            )
            assert done.stdout == odd + odd
        assert (await engine.run(["pwd"], cwd=place)).stdout == place + b"\n"
        assert (await engine.run(["printf", "%s", "日本\n"])).text == "日本\n"


BAD_STARTS = ["missing"] * 4 + ["noexec.sh", "adir", "badinterp"]


@repeated(140, 3500)
async def test_failed_starts_leak_nothing(runs: int, programs: Path) -> None:
    async def fail(engine: actors.Engine, name: str, *, tty: bool) -> None:
        with pytest.raises(actors.SpawnFailed) as failed:
            await engine.spawn([programs / name], stdin="pipe", tty=tty)
        assert failed.value.errno == BAD_PROGRAMS[name]

    async with actors.Engine() as engine:
        await fail(engine, "missing", tty=True)
        workers = len(engine_processes(engine)["worker"])
        before = await descriptors(engine)
        started = time.monotonic()
        for turn in range(runs):
            name = BAD_STARTS[turn % len(BAD_STARTS)]
            await fail(engine, name, tty=turn // len(BAD_STARTS) % 2 == 1)
        assert time.monotonic() - started < 120
        after = await descriptors(engine)
        for pid in before.keys() & after.keys():
            assert after[pid] - before[pid] <= 5
        assert len(engine_processes(engine)["worker"]) <= workers + 1
        for pid in after:
            assert [c for c in tree.children(pid) if state(c) == "Z"] == []
        assert (await engine.info()).counts["sessions"] == 0
        assert (await engine.run([programs / "ok.sh"])).returncode == 0


async def test_failed_starts_do_not_use_up_the_workers(programs: Path) -> None:
    async with actors.Engine() as engine:

        async def fail() -> None:
            with pytest.raises(actors.SpawnFailed):
                await engine.spawn([programs / "missing"])

        await asyncio.gather(*(fail() for _ in range(30)))
        done = await asyncio.gather(*(engine.run(["true"]) for _ in range(30)))
        assert {one.returncode for one in done} == {0}


# -- starts under load ---------------------------------------------------------


STARTS_WHILE_BUSY = """
import logging, threading
count, each = int(sys.argv[1]), float(sys.argv[2])
over = threading.Event()
log = logging.getLogger("busy")
log.addHandler(logging.NullHandler())

def busy():
    while not over.wait(0.001):
        log.warning("%s", [bytes(1000) for _ in range(10)])

async def main():
    gate = asyncio.Semaphore(32)

    async def one(engine):
        async with gate, asyncio.timeout(each):
            return (await engine.run(["true"])).returncode

    async with actors.Engine() as engine:
        codes = await asyncio.gather(*(one(engine) for _ in range(count)))
    os.write(1, b"%d\\n" % codes.count(0))

threads = [threading.Thread(target=busy) for _ in range(8)]
for thread in threads:
    thread.start()
try:
    asyncio.run(main())
finally:
    over.set()
"""


@repeated(48, 2000)
def test_no_start_hangs_in_a_busy_client_with_many_threads(runs: int) -> None:
    # Its own process: eight busy threads would leave the tests' one no turn.
    with client(STARTS_WHILE_BUSY, str(runs), str(NOT_BLOCKED)) as process:
        output, _ = process.communicate()
    assert (output, process.returncode) == (b"%d\n" % runs, 0)


WAITS_FOR_EOF = """
fds = [int(name) for name in os.listdir("/proc/self/fd")]
held = [fd for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")]
write(b"fds %s\\n" % ",".join(map(str, sorted(held))).encode())
size = 0
while data := os.read(0, 65536):
    size += len(data)
write(b"eof bytes=%d\\n" % size)
"""


async def sees_eof(child: actors.Child) -> None:
    await until(child, b"\n")
    await child.close_stdin()
    async with asyncio.timeout(NOT_BLOCKED):
        done = await child.output()
    assert done.stdout == b"fds 0,1,2\neof bytes=0\n"
    assert done.returncode == 0


@repeated(2, 10)
async def test_children_started_together_hold_no_pipe_of_each_other(
    runs: int,
) -> None:
    word = tag()
    async with actors.Engine() as engine:
        for _ in range(runs):
            starting = [
                engine.spawn(program(body, word), stdin="pipe")
                for _ in range(10)
                for body in (WAITS_FOR_EOF, REST)
            ]
            started = await asyncio.gather(*starting)
            await asyncio.gather(*map(sees_eof, started[::2]))
            assert all(child.returncode is None for child in started[1::2])
            await asyncio.gather(*(child.aclose() for child in started))
    gone(word)


# -- what a child inherits -----------------------------------------------------

STARTS_DEAF = """
for number in eval(sys.argv[1]):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, eval(sys.argv[2]))
async def main():
    async with actors.Engine() as engine:
        masks = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]
        for turn in range(6):  # more than there are workers waiting
            done = await engine.run(masks, tty=turn % 2 == 1)
            os.write(1, b" ".join(done.stdout.split()) + b"\\n")
        probe = "yes 2>/dev/null | head -n 1 >/dev/null; echo ${PIPESTATUS[*]}"
        for tty in (False, True):
            done = await engine.run(["bash", "-c", probe], tty=tty)
            os.write(1, done.stdout.strip() + b"\\n")
        child = await engine.spawn(["sleep", "100"])
        await child.terminate(10)
        os.write(1, b"%d\\n" % (await child.wait()).signal)
        await child.aclose()
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("ignored", "blocked"),
    [
        ([], []),
        (
            [signal.SIGPIPE, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR2],
            [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD],
        ),
    ],
    ids=["plain", "deaf"],
)
def test_a_child_does_not_inherit_blocked_or_ignored_signals(
    ignored: list[int], blocked: list[int]
) -> None:
    words = [repr(list(map(int, numbers))) for numbers in (ignored, blocked)]
    with client(STARTS_DEAF, *words) as process:
        output, _ = process.communicate(timeout=NOT_BLOCKED)
    *states, pipe, pipe_on_terminal, term = output.splitlines()
    assert len(states) == 6
    assert {int(word, 16) for line in states for word in line.split()[1::2]} == {0}
    assert pipe == pipe_on_terminal == b"141 0"
    assert term == b"15"


async def test_the_environment_is_the_clients_or_what_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BUG_TOKEN", "secret")
    async with actors.Engine() as engine:

        async def seen(**options: Any) -> dict[str, str]:
            done = await engine.run(["/usr/bin/env", "-0"], **options)
            pairs = done.text.split("\0")[:-1]
            return dict(pair.split("=", 1) for pair in pairs)

        mine = await seen()
        mark = mine.pop("CRECHE_MARK")
        assert mine == dict(os.environ)
        assert len(bytes.fromhex(mark)) == 16
        assert await seen(env={"A": "1"}, marker=False) == {"A": "1"}
        assert await seen(env={}, marker=False) == {}
        assert set(await seen(env={})) == {"CRECHE_MARK"}
        monkeypatch.setenv("LATER", "yes")
        monkeypatch.delenv("BUG_TOKEN")
        assert (await seen())["LATER"] == "yes"
        assert "BUG_TOKEN" not in await seen()
        over = await seen(env={"A": "1", "B": "2"}, extra_env={"A": None, "C": "3"})
        assert {name: over[name] for name in over if len(name) == 1} == {
            "B": "2",
            "C": "3",
        }


# -- where the engine lives ----------------------------------------------------


@pytest.fixture
def short() -> Iterator[str]:
    """A directory with a short path, for long ones to begin at."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="c") as place:
        yield place


def lengthened(place: str, length: int, letter: str) -> str:
    """Make directories below `place` to a path of this many bytes."""
    while (left := length - len(os.fsencode(place))) > 0:
        size = min(left, 100 if left != 101 else 99) - 1
        place += "/" + letter * (size // len(letter.encode()))
        place += "d" * (size % len(letter.encode()))
    os.makedirs(place, mode=0o700)
    return place


@pytest.mark.parametrize("length", [107, 108, 130, 300])
@pytest.mark.parametrize("letter", ["d", "ü"])
async def test_a_long_path_of_the_socket_works(
    length: int, letter: str, short: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = len("/creche/run-0123456789abcdef/broker.sock")
    place = lengthened(short, length - own, letter)
    monkeypatch.setenv("XDG_RUNTIME_DIR", place)
    async with asyncio.timeout(NOT_BLOCKED), actors.Engine() as engine:
        endpoint = (await engine.info()).endpoint
        assert len(os.fsencode(endpoint.removeprefix("ipc://"))) == length
        assert (await engine.run(["echo", "in"])).stdout == b"in\n"
    assert not list(Path(place).rglob("run-*"))


async def test_a_path_of_the_socket_need_not_be_utf_8(
    short: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = os.fsdecode(os.fsencode(short) + b"/\xff")
    os.mkdir(place, 0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", place)
    async with asyncio.timeout(NOT_BLOCKED), actors.Engine() as engine:
        assert (await engine.run(["echo", "in"])).stdout == b"in\n"


async def test_both_sides_of_a_shared_broker_shorten_a_path_alike(
    short: str,
) -> None:
    endpoint = f"ipc://{lengthened(short, 200, 'ü')}/broker.sock"
    with serving(endpoint):
        async with actors.Engine(endpoint) as engine:
            assert (await engine.run(["echo", "in"])).stdout == b"in\n"


async def test_a_name_too_long_for_any_socket_is_refused_with_the_limit(
    short: str,
) -> None:
    path = f"{short}/{'n' * 108}"
    with pytest.raises(actors.InvalidRequest) as refused:
        actors.Engine(f"ipc://{path}")
    assert refused.value.field == "endpoint"
    with running(*SERVES, f"ipc://{path}", stderr=subprocess.PIPE) as broker:
        _, told = broker.process.communicate(timeout=NOT_BLOCKED)
        assert broker.process.returncode == 1
    for text in (str(refused.value), told.decode()):
        assert path in text
        assert "107 bytes" in text
    assert os.listdir(short) == []


async def test_a_new_engine_starts_after_a_failed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        (tmp_path / "file").write_text("")
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
        patch.delenv("CRECHE_LOG")  # it is right to complain
        with pytest.raises((actors.InvalidRequest, actors.BrokerLost)):
            await actors.Engine().__aenter__()
    async with actors.Engine() as engine:
        child = await engine.spawn(program(REST, word := tag()))
        await until(child, b"ready\n")
        assert tagged(word) == [child.pid]
        await child.aclose()
