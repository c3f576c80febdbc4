"""Services: started once, ready with a line, used by many, and stopped in any case."""

import asyncio
import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import actors
from actors import Engine, ServiceFailed, ServiceSpec, Settings, SpawnFailed, ignition
from actors.child import Child
from actors.connection import Connection
from actors.outlet import MOST_PIECES
from actors.services import files
from broker.auth import RunDirectory
from tests.helpers import (
    DAEMON_TREE,
    FOREVER,
    NOT_BLOCKED,
    alive,
    end,
    eventually,
    go as go_on,
    gone,
    parent,
    python,
    stop as hold,
    tag,
    tagged,
)
from tests.live.children import Opened
from tests.parts import NARROW, Parts, client, serving

pytestmark = pytest.mark.live

STAYS = "echo ready; exec sleep 150"


class Helper:
    """A service of a test, whose commands write down what they do.

    Args:
        directory: where they write.
        start: what the start command does, in shell language.
        stop: the same for the stop command.
    """

    def __init__(self, directory: Path, start: str = STAYS, stop: str = "") -> None:
        self.log = directory / "log"
        self.word = tag()
        self.directory = directory
        self.start = start
        self.stop = stop

    def spec(self, name: str = "helper", owner: str = "test", **more: Any) -> Any:
        started = f"cat >{self.directory}/start.json; echo started >>{self.log}"
        stopped = f"cat >{self.directory}/stop.json; echo stopped >>{self.log}"
        return ServiceSpec(
            name,
            owner,
            ["/bin/sh", "-c", f"{started}; {self.start}", self.word],
            ["/bin/sh", "-c", f"{stopped}; {self.stop}", self.word],
            **more,
        )

    def said(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []

    def read(self, which: str) -> Any:
        return json.loads((self.directory / f"{which}.json").read_text())


@pytest.fixture
def helper(tmp_path: Path) -> Helper:
    return Helper(tmp_path)


async def refused(engine: Engine, spec: Any, **options: Any) -> ServiceFailed:
    with pytest.raises(ServiceFailed) as caught:
        await engine.service(spec, **options)
    return caught.value


# --- one for all ---------------------------------------------------------------------


async def test_s47_it_starts_once_for_all_and_stops_with_the_last(
    opened: Opened, helper: Helper
) -> None:
    async with opened() as engine:
        assert helper.said() == []
        first, *others = await asyncio.gather(
            *(engine.service(helper.spec()) for _ in range(5))
        )
        assert {one.pid for one in others} == {first.pid}
        for one in others:
            await one.aclose()
        assert helper.said() == ["started"]
        assert alive(first.pid)
        await first.aclose()
        assert helper.said() == ["started", "stopped"]
        assert not alive(first.pid)
        again = await engine.service(helper.spec())
        assert again.pid != first.pid
        await again.aclose()
        await again.aclose()
    assert helper.said() == ["started", "stopped"] * 2


async def test_s47_each_name_and_owner_has_its_own(
    opened: Opened, tmp_path: Path
) -> None:
    helper = Helper(tmp_path)
    async with opened() as engine:
        a = await engine.service(helper.spec("a"))
        b = await engine.service(helper.spec("b"))
        other = await engine.service(helper.spec("a", "other"))
        assert len({a.pid, b.pid, other.pid}) == 3
        assert (other.name, other.owner) == ("a", "other")
        with pytest.raises(actors.InvalidRequest) as wrong:
            await engine.service(helper.spec("a", args={"port": 1}))
        assert wrong.value.field == "spec"
    assert helper.said().count("stopped") == 3


async def test_s47_declaring_and_listing_start_nothing(
    opened: Opened, helper: Helper
) -> None:
    async with opened() as engine:
        helper.spec()
        assert await engine.services([]) == []
        assert await engine.children() == []
    assert helper.said() == []


async def test_services_that_have_ended_are_forgotten(
    helper: Helper, tmp_path: Path
) -> None:
    (tmp_path / "bad").mkdir()
    bad = Helper(tmp_path / "bad", "exit 3")
    async with Engine() as engine:
        for name in ("one", "two"):
            await (await engine.service(helper.spec(name))).aclose()
        both = (refused(engine, bad.spec()), refused(engine, bad.spec()))
        for failure in await asyncio.gather(*both):
            assert failure.reason == "exited"
        service = await engine.service(helper.spec("last"))
        assert engine._services is not None
        assert list(engine._services._running) == [("last", "test")]
        await service.aclose()
        assert engine._services._running == {}


async def test_several_services_are_given_by_any_iterable_of_specs(
    opened: Opened, tmp_path: Path
) -> None:
    helper = Helper(tmp_path)
    async with opened() as engine:
        found = await engine.services(helper.spec(name) for name in ("a", "b"))
        assert [service.name for service in found] == ["a", "b"]
        wrong: Any
        for wrong in (helper.spec("c"), "c", b"c", None):
            with pytest.raises(actors.InvalidRequest, match="specs: must be an iter"):
                await engine.services(wrong)
        named: Any = iter(["c"])
        with pytest.raises(actors.InvalidRequest, match="ServiceSpec"):
            await engine.services(named)
    assert helper.said() == ["started", "started", "stopped", "stopped"]


async def test_s47_if_one_of_several_fails_those_before_it_are_stopped(
    opened: Opened, tmp_path: Path
) -> None:
    helpers = []
    for name, start, stop in (
        ("one", STAYS, ""),
        ("two", STAYS, "echo no >&2; exit 7"),
        ("three", "exit 3", ""),
        ("four", STAYS, ""),
    ):
        (tmp_path / name).mkdir()
        helpers.append(Helper(tmp_path / name, start, stop))
    async with opened() as engine:
        with pytest.raises(ServiceFailed) as failed:
            await engine.services([h.spec(h.directory.name) for h in helpers])
        assert [h.said() for h in helpers] == [["started", "stopped"]] * 3 + [[]]
        for helper in helpers:
            gone(helper.word)
    assert failed.value.reason == "exited"
    assert failed.value.status.code == 3
    message = str(failed.value)
    assert message.index("'three'") < message.index("clean-up failed")
    assert "'two'" in message
    assert "code 7" in message


async def test_s47_the_clean_up_of_several_goes_on_when_it_is_cancelled(
    opened: Opened, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    helpers = []
    for name, start, stop in (
        ("one", STAYS, ""),
        ("two", STAYS, f"read x <{go}"),
        ("three", "exit 3", ""),
    ):
        (tmp_path / name).mkdir()
        helpers.append(Helper(tmp_path / name, start, stop))
    one, two, _ = helpers
    async with opened() as engine:
        specs = [helper.spec(helper.directory.name) for helper in helpers]
        starting = asyncio.ensure_future(engine.services(specs))
        await asyncio.to_thread(eventually, lambda: "stopped" in two.said())
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert one.said() == ["started"]
        await asyncio.to_thread(go.write_text, "now\n")
        await asyncio.to_thread(
            eventually, lambda: one.said() == ["started", "stopped"]
        )


# --- the start -----------------------------------------------------------------------


async def test_s48_both_commands_read_one_document_and_its_end(
    opened: Opened, helper: Helper
) -> None:
    spec = helper.spec(args={"port": 5, "deep": [1, None]}, context={"user": "me"})
    async with opened() as engine:
        service = await engine.service(spec)
        seen = helper.read("start")
        directories = [seen["context"].pop(d) for d in ("output_dir", "tmp_dir")]
        assert seen == {
            "version": 1,
            "context": {"user": "me"},
            "args": {"port": 5, "deep": [1, None]},
        }
        for directory in directories:
            assert os.stat(directory).st_mode & 0o777 == 0o700
            (Path(directory) / "file").touch()
        await service.aclose()
        assert not any(os.path.lexists(directory) for directory in directories)
    stop = helper.read("stop")
    assert stop["context"].pop("output_dir") == directories[0]
    assert stop["context"].pop("tmp_dir") == directories[1]
    assert stop == seen


ANOTHER_LOCALE = """
import actors
shell = ["/bin/sh", "-c"]
start = 'cat >/dev/null; printf %s "$HELPER_WORD" >seen; echo up; exec sleep 150'
stop = "cat >/dev/null; printf %s \\xfc >stopped".encode()
spec = actors.ServiceSpec("helper", "test", [*shell, start], [*shell, stop])
with actors.blocking.Engine() as engine:
    service = engine.service(spec)
    print(ascii(service.environment["HELPER_WORD"]))
    print(ascii(engine.run(["printf", "\\xfc"]).argv))
"""


def test_a_service_gets_the_bytes_of_its_client_in_any_locale(
    latin: dict[str, str], tmp_path: Path
) -> None:
    directory = tmp_path / "ü"
    directory.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_LOCALE],
        cwd=directory,
        env={**ignition.environment(), **latin, "HELPER_WORD": "ü"},
        capture_output=True,
        timeout=2 * NOT_BLOCKED,
        check=False,
    )
    assert done.stderr == b""
    assert done.stdout == b"'\\xfc'\n('printf', '\\xfc')\n"
    assert (directory / "seen").read_bytes() == "ü".encode()
    assert (directory / "stopped").read_bytes() == "ü".encode()


async def test_s48_it_is_ready_with_its_first_line_and_not_before(
    opened: Opened, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    helper = Helper(tmp_path, f"printf words; read x <{go}; {STAYS}")
    async with opened() as engine:
        starting = asyncio.ensure_future(engine.service(helper.spec()))
        await asyncio.to_thread(eventually, lambda: helper.said() == ["started"])
        assert not starting.done()
        await asyncio.to_thread(go.write_text, "now\n")
        await (await starting).aclose()


async def test_s48_one_that_exits_first_tells_its_status_and_last_output(
    opened: Opened, tmp_path: Path
) -> None:
    noise = "head -c 100000 /dev/zero | tr '\\0' x; echo bad luck >&2; exit 4"
    helper = Helper(tmp_path, noise)
    async with opened() as engine:
        failure = await refused(engine, helper.spec())
    assert failure.reason == "exited"
    assert failure.status.code == 4
    assert len(failure.stdout + failure.stderr) == 64 * 1024
    assert failure.stderr == b"bad luck\n"
    assert "code 4" in str(failure)
    assert helper.said() == ["started", "stopped"]


async def test_s48_one_that_says_nothing_in_time_is_ended(
    opened: Opened, tmp_path: Path
) -> None:
    helper = Helper(tmp_path, "exec >&-; printf oops >&2; exec sleep 150")
    async with opened(settings=Settings(service_start=3.0)) as engine:
        failure = await refused(engine, helper.spec())
        gone(helper.word)
    assert failure.reason == "timed-out"
    assert failure.stderr == b"oops"
    assert helper.said() == ["started", "stopped"]


async def test_s48_a_line_of_a_leader_that_is_gone_makes_nothing_ready(
    opened: Opened, tmp_path: Path
) -> None:
    waits = "while kill -0 $$ 2>/dev/null; do sleep 0.02; done"
    helper = Helper(tmp_path, f"({waits}; echo ready; sleep 150) & exit 0")
    async with opened() as engine:
        assert (await refused(engine, helper.spec())).reason == "exited"
        gone(helper.word)


async def test_s48_a_leader_that_ends_with_its_first_line_makes_nothing_ready(
    opened: Opened, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    helper = Helper(tmp_path, f"read x <{go}; echo ready")
    async with opened() as engine:
        waiting = asyncio.ensure_future(refused(engine, helper.spec()))
        await asyncio.to_thread(eventually, lambda: helper.said() == ["started"])
        (leader,) = tagged(helper.word)
        worker = parent(leader)
        hold(worker)  # it is to see both at once
        await asyncio.to_thread(go.write_text, "now\n")
        await asyncio.to_thread(eventually, lambda: not alive(leader))
        go_on(worker)
        assert (await waiting).reason == "exited"


async def test_s48_a_start_that_is_given_up_is_cancelled(
    opened: Opened, tmp_path: Path
) -> None:
    helper = Helper(tmp_path, "exec sleep 150")
    async with opened() as engine:
        cancel = asyncio.Event()
        waiting = asyncio.ensure_future(refused(engine, helper.spec(), cancel=cancel))
        await asyncio.to_thread(eventually, lambda: helper.said() == ["started"])
        cancel.set()
        assert (await waiting).reason == "cancelled"
        assert helper.said() == ["started", "stopped"]
        gone(helper.word)


async def test_s48_a_start_whose_engine_closes_is_dropped(helper: Helper) -> None:
    helper.start = "exec sleep 150"
    engine = Engine()
    async with engine:
        waiting = asyncio.ensure_future(refused(engine, helper.spec()))
        await asyncio.to_thread(eventually, lambda: helper.said() == ["started"])
    assert (await waiting).reason == "dropped"
    assert helper.said() == ["started", "stopped"]


async def test_s48_a_command_that_cannot_be_executed_is_no_failed_service(
    opened: Opened, helper: Helper
) -> None:
    spec = ServiceSpec("x", "test", ["/nowhere/at/all"], helper.spec().stop)
    async with opened() as engine:
        with pytest.raises(SpawnFailed) as failed:
            await engine.service(spec)
        assert failed.value.path == "/nowhere/at/all"
    assert helper.said() == []


async def test_s48_a_flood_after_readiness_is_drained(
    opened: Opened, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    flood = f"echo ready; head -c 5000000 /dev/zero; touch {done}; exec sleep 150"
    helper = Helper(tmp_path, flood)
    async with opened() as engine:
        service = await engine.service(helper.spec())
        await asyncio.to_thread(eventually, done.exists)
        await service.aclose()


async def test_s48_the_umask_takes_nothing_from_a_service(
    opened: Opened, helper: Helper
) -> None:
    before = os.umask(0o277)
    try:
        async with opened() as engine:
            service = await engine.service(helper.spec())
            os.umask(before)
            (record,) = directories("record")
            assert record.stat().st_mode & 0o777 == 0o600
            for name in ("output", "tmp"):
                (directory,) = directories(name)
                assert directory.stat().st_mode & 0o777 == 0o700
            await service.aclose()
    finally:
        os.umask(before)


def directories(name: str) -> list[Path]:
    root = Path(os.environ["XDG_RUNTIME_DIR"]) / "creche" / "services"
    return list(root.glob(f"run-*/{name}"))


# --- calls ---------------------------------------------------------------------------


async def test_s49_calls_inherit_the_environment_that_the_start_saw(
    opened: Opened, helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELPER_SECRET", "then")
    helper.start = f"env -0 >{helper.directory}/env; {STAYS}"
    async with opened() as engine:
        service = await engine.service(helper.spec())
        monkeypatch.setenv("HELPER_SECRET", "now")
        text = (helper.directory / "env").read_text().split("\0")
        seen = dict(line.split("=", 1) for line in text if line)
        assert seen["HELPER_SECRET"] == "then"
        assert service.environment["CRECHE_MARK"] == seen["CRECHE_MARK"]
        assert service.environment["HELPER_SECRET"] == "then"
        done = await service.run(
            'echo "$HELPER_SECRET $MORE"', shell=True, extra_env={"MORE": "1"}
        )
        assert done.stdout == b"then 1\n"
        await service.aclose()
        with pytest.raises(actors.SessionNotFound):
            await service.run(["true"])


async def test_s49_stopping_waits_for_calls_and_lets_no_new_one_begin(
    opened: Opened, tmp_path: Path
) -> None:
    helper = Helper(tmp_path)
    go = tmp_path / "go"
    os.mkfifo(go)
    async with opened() as engine:
        service = await engine.service(helper.spec())
        call = f"echo called >>{helper.log}; read x <{go}; echo returned >>{helper.log}"
        calling = asyncio.ensure_future(service.run(call, shell=True))
        await asyncio.to_thread(eventually, lambda: "called" in helper.said())
        closing = asyncio.ensure_future(service.aclose())
        again = asyncio.ensure_future(engine.service(helper.spec()))
        await asyncio.sleep(0)
        with pytest.raises(actors.EngineError):
            await service.run(["true"])
        for _ in range(5):  # longer than a stop command would take
            await engine.run("true", shell=True)
        assert "stopped" not in helper.said()
        assert alive(service.pid)
        assert not closing.done()
        await asyncio.to_thread(go.write_text, "now\n")
        assert (await calling).returncode == 0
        await closing
        await (await again).aclose()
    assert helper.said()[:4] == ["started", "called", "returned", "stopped"]
    assert helper.said()[4:] == ["started", "stopped"]


async def test_s49_an_engine_that_closes_ends_the_calls(
    opened: Opened, helper: Helper
) -> None:
    word = tag()
    async with opened() as engine:
        service = await engine.service(helper.spec())
        call = python("signal.pause()", word)
        calls = [
            asyncio.ensure_future(service.run(call, timeout=timeout))
            for timeout in (None, 2 * NOT_BLOCKED)
        ]
        await asyncio.to_thread(eventually, lambda: len(tagged(word)) == len(calls))
        await asyncio.wait_for(engine.aclose(), NOT_BLOCKED)
        for ended in calls:
            with pytest.raises(ServiceFailed) as dropped:
                await ended
            assert dropped.value.reason == "dropped"
    assert helper.said() == ["started", "stopped"]
    gone(word)


async def test_s49_the_leaders_own_end_fences_calls_and_ends_its_tree(
    opened: Opened, tmp_path: Path
) -> None:
    helper = Helper(tmp_path)
    word = tag()
    daemons = " ".join(
        f"'{part}'" for part in [sys.executable, "-S", f"{tmp_path}/tree.py", word, "2"]
    )
    (tmp_path / "tree.py").write_text("import signal\n" + DAEMON_TREE)
    helper.start = f"{daemons} & {STAYS}"
    async with opened() as engine:
        service = await engine.service(helper.spec())
        await asyncio.to_thread(eventually, lambda: len(tagged(word)) == 3)
        end([service.pid])
        await asyncio.to_thread(gone, word)

        async def fenced() -> bool:
            try:
                await service.run(["true"])
            except ServiceFailed as failed:
                return failed.reason == "exited"
            return False

        while not await fenced():
            pass
        assert helper.said() == ["started"]
        assert (await refused(engine, helper.spec())).reason == "exited"
        await service.aclose()
        assert helper.said() == ["started", "stopped"]


async def test_s49_the_leaders_own_end_is_told_with_its_status_and_output(
    opened: Opened, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    helper = Helper(tmp_path, f"echo ready; read x <{go}; echo bad luck >&2; exit 7")
    async with opened() as engine:
        service = await engine.service(helper.spec())
        await asyncio.to_thread(go.write_text, "now\n")

        async def fenced() -> ServiceFailed | None:
            try:
                await service.run(["true"])
            except ServiceFailed as failed:
                return failed
            return None

        while (failed := await fenced()) is None or not failed.stderr:
            await asyncio.sleep(0)
        assert (failed.stdout, failed.stderr) == (b"ready\n", b"bad luck\n")
        for failure in (failed, await refused(engine, helper.spec())):
            assert (failure.reason, failure.status.code) == ("exited", 7)
            assert "code 7; stdout ends with" in str(failure)
        await service.aclose()


# --- the stop ------------------------------------------------------------------------


async def test_s50_the_stop_command_has_the_environment_and_directory_of_the_start(
    opened: Opened, helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELPER_SECRET", "then")
    monkeypatch.chdir("/proc")
    helper.stop = f'echo "$HELPER_SECRET $PWD" >{helper.directory}/seen'
    async with opened() as engine:
        service = await engine.service(helper.spec())
        monkeypatch.setenv("HELPER_SECRET", "now")
        monkeypatch.chdir("/")
        await service.aclose()
    assert (helper.directory / "seen").read_text() == "then /proc\n"


async def test_s50_what_is_left_is_killed_whatever_the_stop_command_says(
    opened: Opened, helper: Helper
) -> None:
    helper.stop = "exit 9"
    async with opened() as engine:
        service = await engine.service(helper.spec())
        directory = helper.read("start")["context"]["tmp_dir"]
        with pytest.raises(ServiceFailed) as failed:
            await service.aclose()
        assert failed.value.status.code == 9
        assert not os.path.lexists(directory)
        gone(helper.word)
        await service.aclose()


IN_MANY_PIECES = f"""
import array, fcntl, os, termios
for n in range({MOST_PIECES} + 500):
    left = array.array("i", [1])
    while left[0]:  # it was not read yet
        fcntl.ioctl(2 - n % 2, termios.FIONREAD, left)
        os.sched_yield()
    os.write(1 + n % 2, b"%d\\n" % n)
os._exit(9)
"""


@pytest.mark.timeout(2 * FOREVER)
async def test_a_stop_command_that_failed_is_told_with_the_last_of_its_output(
    opened: Opened, helper: Helper
) -> None:
    stop = python(IN_MANY_PIECES, helper.word)
    spec = ServiceSpec("x", "test", helper.spec().start, stop)
    async with opened(settings=Settings(service_stop=FOREVER)) as engine:
        service = await engine.service(spec)
        with pytest.raises(ServiceFailed) as failed:
            await service.aclose()
    assert failed.value.status.code == 9
    said = failed.value.stdout + failed.value.stderr
    assert sorted(map(int, said.split())) == list(range(MOST_PIECES + 500))


async def test_s50_a_stop_command_has_its_own_time(
    opened: Opened, helper: Helper
) -> None:
    helper.stop = "exec sleep 150"
    async with opened(settings=Settings(service_stop=0.5)) as engine:
        service = await engine.service(helper.spec())
        with pytest.raises(ServiceFailed) as failed:
            await service.aclose()
        assert failed.value.reason == "timed-out"
        gone(helper.word)


async def test_s50_the_stop_command_runs_before_the_tree_is_ended(
    opened: Opened, helper: Helper
) -> None:
    helper.start = f"echo $$ >{helper.directory}/pid; {STAYS}"
    helper.stop = f"kill -0 $(cat {helper.directory}/pid) && echo there >>{helper.log}"
    async with opened() as engine:
        service = await engine.service(helper.spec())
        await service.aclose()
        assert not alive(service.pid)
    assert helper.said() == ["started", "stopped", "there"]


async def test_s50_it_runs_although_who_closes_is_cancelled(helper: Helper) -> None:
    async with Engine() as engine:
        service = await engine.service(helper.spec())
        closing = asyncio.ensure_future(service.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await service.aclose()
        assert helper.said() == ["started", "stopped"]


async def test_s50_it_runs_although_who_waits_for_the_start_is_cancelled(
    opened: Opened, helper: Helper
) -> None:
    helper.start = "exec sleep 150"
    async with opened() as engine:
        waiting = asyncio.ensure_future(engine.service(helper.spec()))
        await asyncio.to_thread(eventually, lambda: helper.said() == ["started"])
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert helper.said() == ["started", "stopped"]


async def test_s50_one_of_several_who_wait_can_give_up(
    opened: Opened, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    helper = Helper(tmp_path, f"read x <{go}; {STAYS}")
    async with opened() as engine:
        cancel = asyncio.Event()
        stays = asyncio.ensure_future(engine.service(helper.spec()))
        goes = asyncio.ensure_future(refused(engine, helper.spec(), cancel=cancel))
        await asyncio.to_thread(eventually, lambda: helper.said() == ["started"])
        cancel.set()
        assert (await goes).reason == "cancelled"
        await asyncio.to_thread(go.write_text, "now\n")
        await (await stays).aclose()
    assert helper.said() == ["started", "stopped"]


async def test_s50_an_engine_that_closes_stops_what_is_used_and_tells_what_failed(
    helper: Helper,
) -> None:
    helper.stop = "exit 9"
    with pytest.raises(ExceptionGroup) as caught:
        async with Engine() as engine:
            await engine.service(helper.spec())
    (failed,) = caught.value.exceptions
    assert isinstance(failed, ServiceFailed)
    assert failed.status.code == 9
    await engine.aclose()
    gone(helper.word)


async def test_one_of_those_who_close_an_engine_is_told_what_failed(
    helper: Helper,
) -> None:
    helper.stop = "exit 9"
    engine = await Engine().__aenter__()
    await engine.service(helper.spec())
    told = await asyncio.gather(
        engine.aclose(), engine.aclose(), engine.aclose(), return_exceptions=True
    )
    assert [type(one) for one in told] == [ExceptionGroup, type(None), type(None)]


async def test_s50_a_lost_engine_leaves_the_stop_command_to_the_next(
    helper: Helper,
) -> None:
    async with Engine() as engine:
        service = await engine.service(helper.spec())
        word = tag()
        child = await engine.spawn(python("signal.pause()", word))
        Parts.of(child.pid).crash()
        with pytest.raises(actors.BrokerLost):
            await service.aclose()
    assert helper.said() == ["started"]
    async with Engine() as engine:
        (found,) = engine.recovered.services
        assert (found.kind, found.name, found.owner) == ("stopped", "helper", "test")
        assert helper.said() == ["started", "stopped"]
        gone(helper.word)
        gone(word)


async def test_a_start_that_is_cancelled_on_its_way_leaves_a_record(
    helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Connection.start

    async def never(*words: Any, **options: Any) -> None:
        await start(*words, **options)
        await asyncio.Event().wait()

    async with Engine() as engine:
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "start", never)
            waiting = asyncio.ensure_future(refused(engine, helper.spec()))
            await asyncio.to_thread(eventually, lambda: helper.said() == ["started"])
            (life,) = (t for t in asyncio.all_tasks() if "Running._live" in repr(t))
            life.cancel()  # as the end of its loop does
            assert (await waiting).reason == "dropped"
    await stopped_by_the_next(helper)


# --- a stop command that is refused --------------------------------------------------


async def stopped_by_the_next(helper: Helper, endpoint: str | None = None) -> None:
    (record,) = directories("record")
    assert json.loads(record.read_bytes())["stopped"] is False
    async with Engine(endpoint) as engine:
        (found,) = engine.recovered.services
        assert (found.kind, found.name) == ("stopped", "helper")
        assert helper.said() == ["started", "stopped"]
    assert directories("") == []


async def test_a_stop_command_needs_no_room_within_the_clients_capacity(
    opened: Opened, helper: Helper
) -> None:
    async with opened(settings=Settings(capacity=1)) as engine:
        service = await engine.service(helper.spec())
        with pytest.raises(actors.CapacityExceeded):
            await service.run(["true"])
        await service.aclose()
        assert helper.said() == ["started", "stopped"]
        await engine.run(["true"])


async def test_a_stop_command_that_a_full_broker_refuses_is_left_to_the_next_engine(
    helper: Helper, tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    with serving(endpoint, *NARROW):
        async with Engine(endpoint) as engine:
            service = await engine.service(helper.spec())
            with pytest.raises(actors.CapacityExceeded) as full:
                await service.aclose()
            assert "stop command of the service 'helper'" in full.value.__notes__[0]
            assert helper.said() == ["started"]
            gone(helper.word)
        await stopped_by_the_next(helper, endpoint)


@pytest.mark.parametrize(
    "refusal",
    [
        SpawnFailed(errno.EAGAIN, "fork"),
        SpawnFailed(errno.EMFILE, "pipe"),
        SpawnFailed(errno.ENOSPC, "journal"),
        SpawnFailed(errno.ENOMEM, "exec", "/bin/sh"),
        actors.WorkerLost(),
    ],
    ids=lambda refusal: getattr(refusal, "step", refusal.code),
)
async def test_a_stop_command_that_cannot_start_now_is_left_to_the_next_engine(
    refusal: actors.EngineError, helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine() as engine:
        service = await engine.service(helper.spec())

        async def refuse(*_: Any, **__: Any) -> None:
            raise refusal

        with monkeypatch.context() as patch:
            patch.setattr(Connection, "start", refuse)
            with pytest.raises(type(refusal)):
                await service.aclose()
        gone(helper.word)
        assert helper.said() == ["started"]
        # Its name is free, although its record is left.
        other = ServiceSpec("helper", "test", ["true"], ["true"])
        assert (await refused(engine, other)).reason == "exited"
    await stopped_by_the_next(helper)


async def test_a_stop_command_that_can_never_be_executed_leaves_no_record(
    opened: Opened, helper: Helper
) -> None:
    spec = ServiceSpec("x", "test", helper.spec().start, ["/nowhere/at/all"])
    async with opened() as engine:
        service = await engine.service(spec)
        with pytest.raises(SpawnFailed):
            await service.aclose()
        gone(helper.word)
    assert directories("") == []


# --- a session that is gone ----------------------------------------------------------

HANGS = """
async def main():
    settings = actors.Settings(on_hung="kill", lease=3.0, lease_renewal=0.2)
    async with actors.Engine(settings=settings) as engine:
        shell = ["/bin/sh", "-c"]
        spec = actors.ServiceSpec(
            "helper", "test", [*shell, heard()], [*shell, heard()]
        )
        service = await engine.service(spec)
        say("pid", service.pid)
        while True:
            try:
                await service.run(["true"])
            except actors.ServiceFailed:
                break
            except actors.EngineError:
                pass  # the end of this call may be told before that of the service
        try:
            await engine.service(spec)
        except actors.ServiceFailed as fenced:
            say("fenced", fenced.reason)
        await service.aclose()
        say("closed")

asyncio.run(main())
"""


def test_the_stop_command_runs_after_a_lease_has_ended_the_service(
    helper: Helper, tmp_path: Path
) -> None:
    with client(tmp_path, HANGS) as program:
        program.tell(f"echo started >>{helper.log}; {STAYS} # {helper.word}")
        program.tell(f"echo stopped >>{helper.log}")
        pid = program.number("pid")
        hold(program.pid)
        eventually(lambda: not alive(pid))
        go_on(program.pid)
        assert program.said("fenced") == ["exited"]
        program.said("closed")
    assert helper.said() == ["started", "stopped"]


@pytest.mark.parametrize("gone_as", [actors.SessionNotFound, actors.WorkerLost])
async def test_a_leader_whose_session_is_gone_is_stopped_all_the_same(
    gone_as: type[actors.EngineError],
    opened: Opened,
    helper: Helper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = []

    async def fail(_: Child) -> None:
        failed.append(gone_as)
        raise gone_as

    async with opened() as engine:
        service = await engine.service(helper.spec())
        monkeypatch.setattr(Child, "kill", fail)
        end([service.pid])
        await asyncio.to_thread(eventually, lambda: failed)
        await service.aclose()
        assert helper.said() == ["started", "stopped"]
        gone(helper.word)


@pytest.mark.parametrize("gone_as", [actors.SessionNotFound, actors.WorkerLost])
async def test_a_session_that_goes_behind_its_first_line_makes_nothing_ready(
    gone_as: type[actors.EngineError],
    opened: Opened,
    helper: Helper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(_: Child) -> None:
        raise gone_as

    async with opened() as engine:
        monkeypatch.setattr(Child, "snapshot", fail)
        failure = await refused(engine, helper.spec())
        assert failure.reason == "exited"
        assert failure.stdout == b"ready\n"
        assert helper.said() == ["started", "stopped"]
        gone(helper.word)


async def test_a_stop_command_whose_worker_is_lost_is_left_to_the_next_engine(
    helper: Helper,
) -> None:
    once = helper.directory / "once"
    helper.stop = f"test -e {once} || {{ touch {once}; sleep 150; }}"
    async with Engine() as engine:
        service = await engine.service(helper.spec())
        closing = asyncio.ensure_future(service.aclose())
        await asyncio.to_thread(eventually, once.exists)
        # A shell's fork is tagged as well until it is another program.
        stopping = {p for p in tagged(helper.word) if p != service.pid}
        (worker,) = {parent(p) for p in stopping} - stopping
        end([worker])
        with pytest.raises(actors.WorkerLost):
            await closing
        gone(helper.word)
        assert helper.said() == ["started", "stopped"]
    async with Engine() as engine:
        (found,) = engine.recovered.services
        assert found.kind == "stopped"
    assert helper.said() == ["started", "stopped", "stopped"]


# --- its files -----------------------------------------------------------------------


def abandoned() -> list[str]:
    """Return the directories of services whose lock is free; they stay."""
    root = Path(os.environ["XDG_RUNTIME_DIR"]) / "creche" / "services"
    found = RunDirectory.abandoned(bytes(root))
    for directory in found:
        directory.close()
    return [os.path.basename(os.fsdecode(one.location)) for one in found]


class Halt:
    """Holds up a function of the files where it begins, until it is told to go on."""

    def __init__(self, patch: pytest.MonkeyPatch, where: Any, name: str) -> None:
        self.reached, self.on = threading.Event(), threading.Event()
        work = getattr(where, name)

        def held(*words: Any) -> Any:
            self.reached.set()
            assert self.on.wait(NOT_BLOCKED)
            return work(*words)

        patch.setattr(where, name, held)


def test_files_that_are_left_during_their_removal_stay_open_until_its_end(
    helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    halt = Halt(monkeypatch, files, "clear")
    mine = files.ServiceFiles.new()
    mine.make()
    (Path(mine.own(files.TEMPORARY)) / "file").touch()
    bystander = helper.directory / "bystander"
    (bystander / "tmp" / "kept").mkdir(parents=True)
    removing = threading.Thread(target=mine.remove)
    removing.start()
    assert halt.reached.wait(NOT_BLOCKED)
    mine.leave()
    others = [os.open(bystander, os.O_DIRECTORY) for _ in range(3)]
    assert abandoned() == []
    halt.on.set()
    removing.join()
    for fd in others:
        os.close(fd)
    assert (bystander / "tmp" / "kept").exists()
    assert directories("") == []
    with pytest.raises(actors.EngineError, match="was left"):
        mine.remove()


def test_files_that_are_left_while_they_are_made_are_free_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    halt = Halt(monkeypatch, RunDirectory, "lock")
    mine = files.ServiceFiles.new()
    making = threading.Thread(target=mine.make)
    making.start()
    assert halt.reached.wait(NOT_BLOCKED)
    mine.leave()
    halt.on.set()
    making.join()
    (name,) = abandoned()
    assert name == os.path.basename(mine.path)
    (left,) = RunDirectory.abandoned(os.path.dirname(os.fsencode(mine.path)))
    files.ServiceFiles(left).remove()


async def test_an_engine_that_is_cancelled_in_recovery_lets_a_removal_come_to_its_end(
    helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine() as engine:
        service = await engine.service(helper.spec())
        child = await engine.spawn(python("signal.pause()", helper.word))
        Parts.of(child.pid).crash()
        with pytest.raises(actors.BrokerLost):
            await service.aclose()
    halt = Halt(monkeypatch, files, "clear")
    entering = asyncio.ensure_future(Engine().__aenter__())
    assert await asyncio.to_thread(halt.reached.wait, NOT_BLOCKED)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert abandoned() == []
    halt.on.set()
    await asyncio.to_thread(eventually, lambda: directories("") == [])
    assert helper.said() == ["started", "stopped"]


def unclearable(*_: Any) -> None:
    raise PermissionError(errno.EACCES, "Permission denied")


async def test_a_directory_that_cannot_be_removed_is_told_beside_the_first_failure(
    helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper.stop = "exit 9"
    async with Engine() as engine:
        with monkeypatch.context() as patch:
            patch.setattr(files, "clear", unclearable)
            service = await engine.service(helper.spec())
            with pytest.raises(ServiceFailed, match=r"code 9.*cannot be removed"):
                await service.aclose()
            spec = ServiceSpec("x", "test", ["/nowhere/at/all"], ["true"])
            with pytest.raises(SpawnFailed) as failed:
                await engine.service(spec)
            assert failed.value.path == "/nowhere/at/all"
            assert "cannot be removed" in failed.value.__notes__[0]
            helper.stop = ""
            service = await engine.service(helper.spec())
            with pytest.raises(actors.EngineError, match="cannot be removed"):
                await service.aclose()
    gone(helper.word)
    async with Engine() as engine:
        # Two have stopped, the third one's start command has never run.
        (found,) = engine.recovered.services
        assert (found.kind, found.name) == ("stopped", "x")
    assert directories("") == []


async def test_recovery_tells_both_how_a_service_stopped_and_that_its_files_stay(
    helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper.stop = "exit 9"
    async with Engine() as engine:
        service = await engine.service(helper.spec())
        child = await engine.spawn(python("signal.pause()", helper.word))
        Parts.of(child.pid).crash()
        with pytest.raises(actors.BrokerLost):
            await service.aclose()
    with monkeypatch.context() as patch:
        patch.setattr(files, "clear", unclearable)
        for words in ("code 9", "it has stopped"):
            async with Engine() as engine:
                (found,) = engine.recovered.services
                assert (found.kind, found.name, found.owner) == (
                    "kept",
                    "helper",
                    "test",
                )
                assert words in found.reason
                assert "cannot be removed" in found.reason
    async with Engine() as engine:
        assert engine.recovered.services == ()
    assert helper.said() == ["started", "stopped"]


@pytest.mark.parametrize(
    ("call", "name"), [("mkdir", files.TEMPORARY), ("open", files.NEW)]
)
async def test_a_service_whose_files_cannot_be_made_is_not_started_and_leaves_none(
    call: str,
    name: bytes,
    opened: Opened,
    helper: Helper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = getattr(os, call)

    def full(path: Any, *words: Any, **options: Any) -> Any:
        if path == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return work(path, *words, **options)

    async with opened() as engine:
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(SpawnFailed) as failed:
                await engine.service(helper.spec())
        assert (failed.value.errno, failed.value.step) == (errno.ENOSPC, "journal")
        assert directories("") == []
        assert helper.said() == []
        await (await engine.service(helper.spec())).aclose()


# --- a real one ----------------------------------------------------------------------


SERVER = """
import http.server, json, os, sys
asked = json.load(sys.stdin)
os.chdir(asked["context"]["output_dir"])
with open("index.html", "w") as page:
    page.write(asked["args"]["text"])
handler = http.server.SimpleHTTPRequestHandler
with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
    with open(asked["args"]["port_file"], "w") as file:
        file.write(str(server.server_address[1]))
    print("ready", flush=True)
    server.serve_forever()
"""

ASK = """
import sys, urllib.request
port = open(sys.argv[1]).read()
print(urllib.request.urlopen(f"http://127.0.0.1:{port}/").read().decode())
"""


async def test_a_real_server_is_started_used_and_stopped(
    opened: Opened, tmp_path: Path
) -> None:
    port = tmp_path / "port"
    spec = ServiceSpec(
        "web",
        "test",
        [sys.executable, "-u", "-c", SERVER],
        ["rm", str(port)],
        args={"text": "served", "port_file": str(port)},
    )
    async with opened() as engine:
        service = await engine.service(spec)
        for _ in range(3):
            done = await service.run([sys.executable, "-c", ASK, str(port)])
            assert done.stdout == b"served\n", done.stderr
        pid = service.pid
        await service.aclose()
        assert not alive(pid)
        assert not port.exists()
