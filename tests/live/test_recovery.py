"""Every engine process is killed at once; the next engine finds what they left."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import actors
from actors import ignition, rehearsal, session
from actors.launch import Launch
from actors.process import Process
from actors.services import command
from broker import aftermath, cgroup, journal, kinship, tree
from tests.helpers import (
    FOREVER,
    NOT_BLOCKED,
    alive,
    end,
    eventually,
    gone,
    python,
    tag,
    tagged,
)
from tests.parts import (
    NARROW,
    PRELUDE,
    ROOT,
    Parts,
    Program,
    client,
    daemons,
    running,
    serving,
)

pytestmark = pytest.mark.live

ENGINE = """
async def main():
    settings = actors.Settings(containment=sys.argv[1])
    async with actors.Engine(settings=settings) as engine:
        kept = [await engine.spawn(argv) for argv in eval(heard())]
        for child in kept:
            say("pid", child.pid)
        await asyncio.Event().wait()

asyncio.run(main())
"""

WAITS = python("os = __import__('os'); os.write(1, b'up\\n'); signal.pause()")

PAUSES = f"import signal; signal.alarm({FOREVER}); signal.pause()"

ESCAPES = """
import os, sys
if os.fork():
    os.wait()
    signal.pause()
os.setsid()
if os.fork():
    os._exit(0)
os.execve(sys.executable, [sys.executable, "-S", "-c", sys.argv[2], sys.argv[1]], {})
"""
"""python(ESCAPES, word, code): a leader, and a daemon with an empty environment."""


def records(runtime_dir: Path) -> dict[Path, journal.Entry]:
    """Return what the records of all engines say of the sessions there are."""
    found = {}
    for path in (runtime_dir / "creche" / "journal").glob("run-*/w*"):
        with suppress(FileNotFoundError):
            text = path.read_bytes()
            if not text:
                continue  # its worker is just beginning
            entry = journal.parse(text)
            assert entry is not None
            if entry.session:
                found[path] = entry
    return found


def leftovers(runtime_dir: Path) -> list[Path]:
    return list((runtime_dir / "creche" / "journal").glob("run-*"))


class Crashed:
    """An engine with children, in a program of its own, to be killed as a whole."""

    def __init__(self, program: Program, pids: list[int]) -> None:
        self.program = program
        self.children = pids
        self.parts = Parts.of(pids[0])

    def crash(self) -> None:
        """Kill the client and all engine processes; none has time to do anything."""
        self.parts.crash(self.program.pid)
        self.program.process.wait()


@contextmanager
def crashing(
    directory: Path, *commands: list[str], containment: str = "auto"
) -> Iterator[Crashed]:
    """Run an engine with these children; whatever is left is killed in the end."""
    script = directory / "engine.py"
    script.write_text(PRELUDE + ENGINE)
    with running(sys.executable, str(script), containment) as program:
        program.tell(repr(list(commands)))
        pids = [program.number("pid") for _ in commands]
        try:
            yield Crashed(program, pids)
        finally:
            end(pids)


async def recovered() -> actors.Recovery:
    async with actors.Engine() as engine:
        return engine.recovered


def marked(word: str, count: int) -> None:
    """Wait until a tree has so many processes, and none of them is another's child.

    A tree that grows passes through that number; its daemons hang below the worker.
    """

    def settled() -> bool:
        found = tagged(word)
        stats = [tree.stat(pid) for pid in found]
        apart = all(stat and stat.parent not in found for stat in stats)
        return len(found) == count and apart

    eventually(settled, what=lambda: str(tagged(word)))


def emptied(word: str) -> None:
    """Wait until one of two processes has executed itself with no environment."""

    def done() -> bool:
        found = tagged(word)
        bare = [pid for pid in found if not tree.environment(pid) and alive(pid)]
        return len(found) == 2 and len(bare) == 1

    eventually(done, what=lambda: str(tagged(word)))


# --- the journal ---------------------------------------------------------------------


def test_s51_a_record_is_written_before_the_child_can_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[bytes] = []
    start = session._started

    def started(launch: Launch, fds: tuple[int, ...]) -> Process:
        seen.append(os.pread(stage.worker.record._fd, 100, 0))
        return start(launch, fds)

    monkeypatch.setattr(session, "_started", started)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        stage = rehearsal.Stage()
        rehearsal._play(stage)
        assert os.pread(stage.worker.record._fd, 100, 0) == journal.IDLE
        stage.close()
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mark = b"0" * 32
    assert [text.split() for text in seen] == [[b"1", b"0", b"0", mark]] * 2


async def test_s51_a_record_names_the_session_until_its_tree_is_gone(
    runtime_dir: Path,
) -> None:
    word = tag()
    async with actors.Engine() as engine:
        assert records(runtime_dir) == {}
        child = await engine.spawn(daemons(word), leftover="keep")
        marked(word, 4)
        ((path, entry),) = records(runtime_dir).items()
        assert entry.session == child.id
        assert entry.leader == tree.identify(child.pid)
        assert entry.worker == tree.identify(Parts.of(child.pid).worker)
        assert entry.mark == journal.mark_in(tree.environment(child.pid))
        assert entry.cgroup.startswith("/sys/fs/cgroup")
        end([child.pid])
        await child.wait()
        assert records(runtime_dir) == {path: entry}
        await child.aclose()
        gone(word)
        assert records(runtime_dir) == {}
    assert leftovers(runtime_dir) == []


async def test_s51_what_cannot_be_recorded_is_not_started(runtime_dir: Path) -> None:
    settings = actors.Settings(warm=0)
    async with actors.Engine(settings=settings) as engine:
        (directory,) = leftovers(runtime_dir)
        directory.rename(runtime_dir / "away")
        with pytest.raises(actors.SpawnFailed) as failed:
            await engine.spawn(["true"])
        (runtime_dir / "away").rename(directory)
        assert failed.value.step == "journal"


async def test_s51_a_lost_worker_and_a_lost_pool_leave_no_record(
    runtime_dir: Path,
) -> None:
    word = tag()
    async with actors.Engine() as engine:
        for part in ("worker", "pool"):
            child = await engine.spawn(daemons(word))
            marked(word, 4)
            end([getattr(Parts.of(child.pid), part)])
            await child.wait()
            gone(word)
            eventually(lambda: records(runtime_dir) == {})
            await child.aclose()


# --- recovery ------------------------------------------------------------------------


@pytest.mark.parametrize("containment", ["auto", "subreaper"])
async def test_s51_the_next_engine_ends_every_tree(
    containment: str, tmp_path: Path, runtime_dir: Path
) -> None:
    words = [tag() for _ in range(3)]
    trees = [daemons(word) for word in words]
    with crashing(tmp_path, *trees, containment=containment) as crashed:
        for word in words:
            marked(word, 4)
        before = records(runtime_dir)
        assert len(before) == 3
        crashed.crash()
        assert sum(len(tagged(word)) for word in words) == 12
        assert records(runtime_dir) == before
        findings = (await recovered()).trees
        assert [tagged(word) for word in words] == [[], [], []]
        assert [finding.kind for finding in findings] == ["killed"] * 3
        assert {f.session for f in findings} == {e.session for e in before.values()}
        assert set(crashed.children) <= {pid for f in findings for pid in f.pids}
        assert leftovers(runtime_dir) == []
        assert await recovered() == actors.Recovery()


async def test_s51_a_shared_broker_that_was_killed_is_recovered_by_the_next(
    tmp_path: Path, runtime_dir: Path
) -> None:
    word, endpoint = tag(), f"ipc://{tmp_path}/shared/broker.sock"
    body = SHARED.format(endpoint=endpoint)
    with serving(endpoint) as broker, client(tmp_path, body) as program:
        program.tell(repr(daemons(word)))
        parts = Parts.of(program.number("pid"))
        marked(word, 4)
        parts.crash(program.pid)
        broker.process.wait()
    assert len(tagged(word)) == 4
    with serving(endpoint):
        assert tagged(word) == []
        assert [e.session for e in records(runtime_dir).values()] == []


SHARED = """
async def main():
    async with actors.Engine({endpoint!r}) as engine:
        child = await engine.spawn(eval(heard()))
        say("pid", child.pid)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_s51_what_emptied_its_environment_is_found_by_its_cgroup(
    tmp_path: Path,
) -> None:
    word = tag()
    command = python(ESCAPES, word, PAUSES)
    with crashing(tmp_path, command) as crashed:
        emptied(word)
        crashed.crash()
        (finding,) = (await recovered()).trees
        assert (finding.kind, len(finding.pids)) == ("killed", 2)
        assert tagged(word) == []


async def test_s51_without_a_cgroup_it_is_not_found_as_doctor_says(
    tmp_path: Path,
) -> None:
    word = tag()
    command = python(ESCAPES, word, PAUSES)
    with crashing(tmp_path, command, containment="subreaper") as crashed:
        emptied(word)
        crashed.crash()
        (finding,) = (await recovered()).trees
        assert (finding.kind, finding.pids) == ("killed", tuple(crashed.children))
        (escaped,) = tagged(word)
        end([escaped])


THREADED = """
import os
from broker import cgroup
place = cgroup.own_directory() + "/threaded"
os.mkdir(place)
for name, word in ("type", "threaded"), ("threads", "0"):
    with open(f"{place}/cgroup.{name}", "w") as file:
        file.write(word)
signal.pause()
"""


async def test_s51_a_threaded_cgroup_below_a_workers_is_no_trouble(
    tmp_path: Path,
) -> None:
    with crashing(tmp_path, python(THREADED)) as crashed:
        (pid,) = crashed.children
        place = Path(f"/proc/{pid}/cgroup")
        eventually(lambda: "/threaded\n" in place.read_text())
        home = cgroup.own_directory()
        assert home is not None
        engine = Path(home) / f"{cgroup.PREFIX}{crashed.parts.supervisor}"
        assert engine.exists()
        crashed.crash()
        (finding,) = (await recovered()).trees
        assert (finding.kind, finding.pids) == ("killed", (pid,))
        eventually(lambda: not alive(pid))
        eventually(lambda: reaped(crashed.parts.supervisor))
        await recovered()  # which removes what was not reaped in time
        assert not engine.exists()


async def test_s51_living_engines_are_left_alone(runtime_dir: Path) -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word))
        marked(word, 4)
        assert await recovered() == actors.Recovery()
        assert len(tagged(word)) == 4
        assert len(records(runtime_dir)) == 1
        await child.aclose()


def force(pid: int, command: list[str]) -> "subprocess.Popen[bytes]":
    """Start a program as the leader of a session, under this pid.

    Raises:
        Skipped: the machine does not allow it.
    """
    for _ in range(200):
        try:
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        except OSError:
            pytest.skip("pids cannot be chosen here")
        process = subprocess.Popen(command, start_new_session=True)
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    pytest.skip("somebody else takes the pids here")


@contextmanager
def innocent(pid: int) -> Iterator["subprocess.Popen[bytes]"]:
    process = force(pid, ["sleep", str(FOREVER)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_s51_a_later_process_with_the_pid_of_a_child_is_left_alone(
    tmp_path: Path, runtime_dir: Path
) -> None:
    with crashing(tmp_path, WAITS) as crashed:
        (pid,) = crashed.children
        crashed.crash()
        end([pid])
        eventually(lambda: reaped(pid))
        with innocent(pid) as process:
            assert await recovered() == actors.Recovery()
            assert process.poll() is None
            assert leftovers(runtime_dir) == []


def reaped(pid: int) -> bool:
    """Reap what came to us; return whether this pid is free."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return tree.stat(pid) is None


async def test_s51_a_record_of_another_boot_kills_nobody(
    tmp_path: Path, runtime_dir: Path
) -> None:
    word = tag()
    with crashing(tmp_path, daemons(word)) as crashed:
        marked(word, 4)
        crashed.crash()
        ((path, entry),) = records(runtime_dir).items()
        other = b"00000000-0000-0000-0000-000000000000"
        path.write_bytes(path.read_bytes().replace(entry.boot, other))
        assert await recovered() == actors.Recovery()
        assert len(tagged(word)) == 4
        assert leftovers(runtime_dir) == []
        end(tagged(word))


@pytest.mark.parametrize("damage", ["torn", "namespace"])
async def test_s51_a_record_that_says_nothing_certain_is_kept_and_told(
    damage: str, tmp_path: Path, runtime_dir: Path
) -> None:
    word = tag()
    with crashing(tmp_path, daemons(word)) as crashed:
        marked(word, 4)
        crashed.crash()
        ((path, entry),) = records(runtime_dir).items()
        text = path.read_bytes()
        space = b" %d " % entry.namespace
        torn = text[:40] if damage == "torn" else text.replace(space, b" 1 ")
        path.write_bytes(torn)
        for _ in range(2):
            (finding,) = (await recovered()).trees
            assert (finding.kind, finding.record) == ("unknown", str(path))
            assert len(tagged(word)) == 4
        path.write_bytes(text)
        (finding,) = (await recovered()).trees
        assert finding.kind == "killed"
        assert tagged(word) == []


@pytest.mark.parametrize("moment", ["listed", "read"])
async def test_s51_a_record_that_its_pool_removes_meanwhile_is_over(
    moment: str, tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = tag()
    with crashing(tmp_path, daemons(word)) as crashed:
        marked(word, 4)
        crashed.crash()
        ((path, _),) = records(runtime_dir).items()
        text, look = aftermath._text, aftermath._Case.look

        def listed(name: str, directory: int) -> bytes | None:
            path.unlink(missing_ok=True)
            return text(name, directory)

        def looked(case: aftermath._Case, *facts: Any) -> None:
            look(case, *facts)
            path.unlink(missing_ok=True)

        if moment == "listed":
            monkeypatch.setattr(aftermath, "_text", listed)
        else:
            monkeypatch.setattr(aftermath._Case, "look", looked)
        found = (await recovered()).trees
        assert [finding.kind for finding in found] == ["killed"] * (moment == "read")
        assert not path.exists()
        assert leftovers(runtime_dir) == []
        end(tagged(word))


async def test_s51_a_child_that_is_recorded_during_the_sweep_is_ended(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = tag()
    with crashing(tmp_path, daemons(word), containment="subreaper") as crashed:
        marked(word, 4)
        crashed.crash()
        ((path, _),) = records(runtime_dir).items()
        text = path.read_bytes()
        path.write_bytes(journal.IDLE + text[len(journal.IDLE) :])
        look = aftermath._Case.look

        def looked(case: aftermath._Case, *facts: Any) -> None:
            look(case, *facts)
            case.killed.add(1)  # its worker, which has just written this
            path.write_bytes(text)

        monkeypatch.setattr(aftermath._Case, "look", looked)
        await recovered()
        assert tagged(word) == []
        assert leftovers(runtime_dir) == []


async def test_s51_a_child_without_its_mark_yet_is_waited_for(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = tag()
    with crashing(tmp_path, daemons(word), containment="subreaper") as crashed:
        marked(word, 4)
        crashed.crash()
        ((path, entry),) = records(runtime_dir).items()
        begun = b"%-16d %-10d %-20d %-32s\n" % (entry.session, 0, 0, entry.mark)
        path.write_bytes(begun + path.read_bytes()[len(begun) :])
        marks, seen = journal.mark_in, iter(range(1000))
        patience = 10  # looks: all of them are over in some 20 ms

        def mark_in(environment: bytes) -> bytes:
            mark = marks(environment)
            return mark if mark != entry.mark or next(seen) > 4 * patience else b""

        monkeypatch.setattr(journal, "mark_in", mark_in)
        monkeypatch.setattr(aftermath, "EXEC", NOT_BLOCKED)
        monkeypatch.setattr(aftermath, "TIMEOUT", NOT_BLOCKED)
        (finding,) = (await recovered()).trees
        assert finding.kind == "killed"
        assert tagged(word) == []


async def test_s51_who_is_born_during_a_look_is_seen_by_the_next_one(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = tag()
    with crashing(tmp_path, daemons(word), containment="subreaper") as crashed:
        marked(word, 4)
        crashed.crash()
        seen, leader = aftermath._processes, crashed.children
        looks = iter([leader, [], *[None] * 1000])

        def scarcely() -> dict[int, kinship.Process]:
            those = next(looks)
            found = seen()
            return {p: f for p, f in found.items() if those is None or p in those}

        monkeypatch.setattr(aftermath, "_processes", scarcely)
        (finding,) = (await recovered()).trees
        assert (finding.kind, len(finding.pids)) == ("killed", 4)
        assert tagged(word) == []
        assert leftovers(runtime_dir) == []


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, partial(os.symlink, "/none")])
async def test_s51_what_is_no_record_is_told_and_holds_nothing_up(
    make: Callable[[Path], None], tmp_path: Path, runtime_dir: Path
) -> None:
    word = tag()
    with crashing(tmp_path, daemons(word)) as crashed:
        marked(word, 4)
        crashed.crash()
        ((path, _),) = records(runtime_dir).items()
        aside = path.rename(tmp_path / "record")
        make(path)
        (finding,) = (await recovered()).trees
        assert (finding.kind, finding.record) == ("unknown", str(path))
        path.rmdir() if path.is_dir() else path.unlink()
        aside.rename(path)
        (finding,) = (await recovered()).trees
        assert finding.kind == "killed"
        assert tagged(word) == []


async def test_a_start_that_fails_leaves_no_directory_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    root = tmp_path / "creche"
    root.mkdir(0o700)
    (root / "journal").touch(0o600)
    with pytest.raises(actors.InvalidRequest, match="journal"):
        await actors.Engine().__aenter__()
    assert [path.name for path in root.iterdir()] == ["journal"]


def test_the_command_ends_with_1_while_something_is_left(
    tmp_path: Path, runtime_dir: Path
) -> None:
    word = tag()
    with crashing(tmp_path, daemons(word)) as crashed:
        marked(word, 4)
        crashed.crash()
        ((path, _),) = records(runtime_dir).items()
        text = path.read_bytes()
        path.write_bytes(text[:40])
        for as_json in ([], ["--json"]):
            told = recovering(*as_json)
            assert (told.returncode, b"unknown" in told.stdout) == (1, True)
        path.write_bytes(text)
        told = recovering()
        assert (told.returncode, told.stdout[:6]) == (0, b"killed")
        assert tagged(word) == []


def recovering(*words: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-m", "actors", "recover", *words],
        env=ignition.environment(),
        capture_output=True,
        timeout=2 * NOT_BLOCKED,
        check=False,
    )


LEAVES = """
import os, sys
if os.fork():
    signal.pause()
os.execve(sys.executable, [sys.executable, "-S", "-c", sys.argv[2], sys.argv[1]], {})
"""
"""python(LEAVES, word, code): a helper with an empty environment in its session."""


async def test_s51_a_member_of_a_session_without_its_leader_is_kept_and_told(
    tmp_path: Path, runtime_dir: Path
) -> None:
    word = tag()
    command = python(LEAVES, word, PAUSES)
    with crashing(tmp_path, command, containment="subreaper") as crashed:
        emptied(word)
        crashed.crash()
        end(crashed.children)
        eventually(lambda: reaped(crashed.children[0]))
        (helper,) = tagged(word)
        (finding,) = (await recovered()).trees
        assert (finding.kind, finding.pids) == ("unknown", (helper,))
        assert alive(helper)
        end([helper])
        eventually(lambda: reaped(helper))
        assert await recovered() == actors.Recovery()
        assert leftovers(runtime_dir) == []


INSIDE = f"""
import asyncio, os, sys
sys.path.insert(0, {str(ROOT)!r})
while not os.path.exists(sys.argv[1]):
    signal.sigtimedwait([], 0.02)
import actors

async def main():
    async with actors.Engine() as engine:
        (found,) = engine.recovered.trees
        return f"{{found.kind}}: {{found.reason}}"

with open(sys.argv[1], "w") as file:
    file.write(asyncio.run(main()))
signal.pause()
"""


async def test_s51_a_program_does_not_end_the_tree_that_it_is_in(
    tmp_path: Path, runtime_dir: Path
) -> None:
    cue = tmp_path / "cue"
    command = [sys.executable, *python(INSIDE, str(cue))[2:]]
    with crashing(tmp_path, command) as crashed:
        crashed.crash()
        cue.touch()
        eventually(lambda: cue.read_text() != "")
        assert cue.read_text() == "kept: this process belongs to it"
        assert alive(crashed.children[0])
        (finding,) = (await recovered()).trees
        assert finding.kind == "killed"
        assert leftovers(runtime_dir) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
async def test_s51_who_cannot_be_ended_is_kept_and_told(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = tag()
    with crashing(tmp_path, python("signal.pause()", word)) as crashed:
        crashed.crash()

        def refused(*_: Any) -> bool:
            raise PermissionError

        with monkeypatch.context() as patch:
            patch.setattr(tree, "signal_process", refused)
            patch.setattr("broker.cgroup.Cgroup.kill", refused)
            (finding,) = (await recovered()).trees
            assert (finding.kind, finding.pids) == ("kept", tuple(crashed.children))
            assert len(records(runtime_dir)) == 1
        (finding,) = (await recovered()).trees
        assert finding.kind == "killed"
        assert leftovers(runtime_dir) == []


# --- services ------------------------------------------------------------------------

SERVICE = """
import sys
log, word = sys.argv[1:3]
STAYS = "echo up; exec sleep 150"

async def main():
    shell = 'echo {0} >>"$0"; {1}'
    spec = actors.ServiceSpec(
        "helper", "test",
        ["/bin/sh", "-c", shell.format("started", STAYS), log, word],
        ["/bin/sh", "-c", shell.format("stopping", sys.argv[3]), log, word],
    )
    async with actors.Engine() as engine:
        for place in sys.argv[4:]:
            os.chdir(place)
            os.rmdir(place)
        service = await engine.service(spec)
        say("pid", service.pid)
        if heard() == "close":
            await service.aclose()
        await asyncio.Event().wait()

asyncio.run(main())
"""

STOPS = 'sleep 0.1; echo stopped >>"$0"'


class Log:
    """What the commands of a service have written down."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "log"

    def said(self) -> list[str]:
        return self.path.read_text().split() if self.path.exists() else []


@contextmanager
def served(
    directory: Path, word: str, stop: str = STOPS, *removed: Path
) -> Iterator[Crashed]:
    """Run a program that uses a service, in a directory that it removes, if one."""
    script = directory / "service.py"
    script.write_text(PRELUDE + SERVICE)
    log = str(directory / "log")
    words = sys.executable, str(script), log, word, stop, *map(str, removed)
    with running(*words) as program:
        pid = program.number("pid")
        try:
            yield Crashed(program, [pid])
        finally:
            end([pid])


def kill_client(crashed: Crashed) -> None:
    """Kill the client alone: its engine ends what it has started."""
    crashed.program.kill()
    eventually(lambda: not any(map(alive, crashed.parts)))


@pytest.mark.parametrize("kill", [Crashed.crash, kill_client], ids=["all", "client"])
async def test_s51_the_next_engine_runs_the_stop_command_of_a_dead_client(
    kill: Callable[[Crashed], None], tmp_path: Path, runtime_dir: Path
) -> None:
    word, log = tag(), Log(tmp_path)
    with served(tmp_path, word) as crashed:
        kill(crashed)
        assert log.said() == ["started"]
        (found,) = (await recovered()).services
        assert (found.kind, found.name, found.owner) == ("stopped", "helper", "test")
        assert log.said() == ["started", "stopping", "stopped"]
        gone(word)
        assert await recovered() == actors.Recovery()
        assert list((runtime_dir / "creche" / "services").iterdir()) == []


async def test_s51_a_stop_command_is_run_although_its_directory_was_removed(
    tmp_path: Path,
) -> None:
    word, log, place = tag(), Log(tmp_path), tmp_path / "place"
    place.mkdir()
    stop = STOPS + '; pwd >>"$0"'
    with served(tmp_path, word, stop, place) as crashed:
        kill_client(crashed)
        (found,) = (await recovered()).services
        assert found.kind == "stopped"
        assert log.said() == ["started", "stopping", "stopped", "/"]


async def test_s51_a_stop_command_whose_end_is_on_record_is_not_run_again(
    tmp_path: Path, runtime_dir: Path
) -> None:
    word, log = tag(), Log(tmp_path)
    with served(tmp_path, word) as crashed:
        kill_client(crashed)
        (record,) = (runtime_dir / "creche" / "services").glob("run-*/record")
        noted = {**json.loads(record.read_bytes()), "stopped": True}
        record.write_text(json.dumps(noted))
        assert (await recovered()).services == ()
        assert log.said() == ["started"]
        assert not record.parent.exists()


FORKS = """
def in_the_copy():
    heard()  # all of its parent's engine is dead, not its parent alone
    asyncio.events._set_running_loop(None)
    (found,) = asyncio.run(recovered()).services
    say("copy", found.kind)

async def recovered():
    async with actors.Engine() as engine:
        return engine.recovered

async def main():
    async with actors.Engine() as engine:
        shell = ["/bin/sh", "-c"]
        spec = actors.ServiceSpec(
            "helper", "test", [*shell, heard()], [*shell, heard()]
        )
        service = await engine.service(spec)
        if os.fork() == 0:
            signal.alarm(60)
            try:
                in_the_copy()
            finally:
                os._exit(0)
        say("pid", service.pid)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_forked_copy_stops_the_services_of_its_dead_parent(tmp_path: Path) -> None:
    log = Log(tmp_path)
    with client(tmp_path, FORKS) as program:
        program.tell(f"echo started >>{log.path}; echo up; exec sleep 150")
        program.tell(f"echo stopped >>{log.path}")
        Crashed(program, [program.number("pid")]).crash()
        program.tell("crashed")
        assert program.said("copy") == ["stopped"]
    assert log.said() == ["started", "stopped"]


async def test_s51_engines_that_start_at_once_stop_it_once(tmp_path: Path) -> None:
    word, log = tag(), Log(tmp_path)
    with served(tmp_path, word) as crashed:
        crashed.crash()
        found = await asyncio.gather(*(recovered() for _ in range(3)))
        assert sorted(len(one.services) for one in found) == [0, 0, 1]
        assert log.said() == ["started", "stopping", "stopped"]


async def test_s51_a_stop_command_that_a_crash_broke_off_ends_before_the_next(
    tmp_path: Path,
) -> None:
    word, log = tag(), Log(tmp_path)
    once = f"mkdir {tmp_path}/first 2>&1 && exec sleep 150; {STOPS}"
    with served(tmp_path, word, once) as crashed:
        crashed.program.tell("close")
        eventually(lambda: log.said() == ["started", "stopping"])
        eventually((tmp_path / "first").exists)
        (stop,) = [pid for pid in tagged(word) if pid != crashed.program.pid][:1] or [0]
        crashed.crash()
        (found,) = (await recovered()).services
        assert found.kind == "stopped"
        assert not alive(stop)
        assert log.said() == ["started", "stopping", "stopping", "stopped"]
        gone(word)


async def test_s51_a_stop_command_that_fails_in_recovery_is_told_and_over(
    tmp_path: Path, runtime_dir: Path
) -> None:
    with served(tmp_path, tag(), "exit 5") as crashed:
        crashed.crash()
        (found,) = (await recovered()).services
        assert found.kind == "failed"
        assert "code 5" in found.reason
        assert list((runtime_dir / "creche" / "services").iterdir()) == []


def two_left(tmp_path: Path) -> list[Log]:
    """Return the logs of two services whose clients are dead."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    with served(one, tag()) as first, served(two, tag()) as second:
        first.crash()
        second.crash()
    return [Log(one), Log(two)]


async def test_services_are_stopped_beyond_the_capacity_of_who_recovers_them(
    tmp_path: Path,
) -> None:
    logs = two_left(tmp_path)
    async with actors.Engine(settings=actors.Settings(capacity=1)) as engine:
        found = engine.recovered.services
        assert [one.kind for one in found] == ["stopped", "stopped"]
    assert [log.said() for log in logs] == [["started", "stopping", "stopped"]] * 2


async def test_a_service_for_which_a_broker_has_no_room_is_kept(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, stop = asyncio.Barrier(2), command.stop

    async def together(*words: Any) -> command.Outcome:
        await both.wait()
        return await stop(*words)

    logs = two_left(tmp_path)
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    with serving(endpoint, *NARROW):
        for kinds in (["kept", "stopped"], ["stopped"]):
            monkeypatch.setattr(command, "stop", stop if len(kinds) == 1 else together)
            async with actors.Engine(endpoint) as engine:
                found = engine.recovered.services
                assert sorted(one.kind for one in found) == kinds
                assert {one.name for one in found} == {"helper"}
                if "kept" in kinds:
                    assert "this broker" in min(found).reason
    assert [log.said() for log in logs] == [["started", "stopping", "stopped"]] * 2
    assert await recovered() == actors.Recovery()
    assert list((runtime_dir / "creche" / "services").iterdir()) == []


@pytest.mark.parametrize(
    "field", ["marks", "document", "boot", "environment", "namespace", "stopped"]
)
async def test_s51_a_wrong_record_of_a_service_is_kept_and_told(
    field: str, tmp_path: Path, runtime_dir: Path
) -> None:
    word = tag()
    with served(tmp_path, word) as crashed:
        kill_client(crashed)
        (record,) = (runtime_dir / "creche" / "services").glob("run-*/record")
        text = record.read_bytes()
        record.write_bytes(json.dumps(json.loads(text) | {field: [1]}).encode())
        (found,) = (await recovered()).services
        assert (found.kind, found.record) == ("unknown", str(record.parent))
        record.unlink()
        os.mkfifo(record)
        (found,) = (await recovered()).services
        assert found.kind == "unknown"
        record.unlink()
        record.write_bytes(text)
        (found,) = (await recovered()).services
        assert found.kind == "stopped"


async def test_s51_a_torn_record_of_a_service_is_kept_and_told(
    tmp_path: Path, runtime_dir: Path
) -> None:
    word, log = tag(), Log(tmp_path)
    with served(tmp_path, word) as crashed:
        kill_client(crashed)
        (record,) = (runtime_dir / "creche" / "services").glob("run-*/record")
        text = record.read_bytes()
        record.write_bytes(text[:-9])
        (found,) = (await recovered()).services
        assert (found.kind, found.record) == ("unknown", str(record.parent))
        record.write_bytes(text)
        (found,) = (await recovered()).services
        assert found.kind == "stopped"
        assert log.said() == ["started", "stopping", "stopped"]


# --- the command ---------------------------------------------------------------------


def recover(*options: str) -> str:
    command = [sys.executable, "-m", "actors", "recover", *options]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout


async def test_recover_says_what_it_found_and_did(tmp_path: Path) -> None:
    word = tag()
    with crashing(tmp_path, python("signal.pause()", word)) as crashed:
        crashed.crash()
        said = await asyncio.to_thread(recover)
        assert said == f"killed   session 1000: pid {crashed.children[0]}\n"
        assert tagged(word) == []
    (tmp_path / "more").mkdir()
    with served(tmp_path / "more", word) as crashed:
        kill_client(crashed)
        said = await asyncio.to_thread(recover, "--json")
        (service,) = json.loads(said)["services"]
        assert service.pop("record")
        assert service == {
            "kind": "stopped",
            "name": "helper",
            "owner": "test",
            "message": "",
        }
        assert await asyncio.to_thread(recover) == "nothing was left\n"
