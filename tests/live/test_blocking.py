"""What only the blocking face has: threads, Ctrl-C, forks, the interpreter's end."""

import asyncio
import concurrent.futures
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import actors
from actors import RuntimeContext, WrongProcess, embedded, ignition, portal
from actors.blocking import Child, Engine
from tests.helpers import NOT_BLOCKED, eventually, gone, tag, tagged
from tests.live.children import REST, client, program
from tests.parts import serving

pytestmark = pytest.mark.live


def python(*words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *words],
        env=ignition.environment(),
        capture_output=True,
        text=True,
        timeout=NOT_BLOCKED,
        check=False,
        **options,
    )


def test_s55_one_call_runs_a_command() -> None:
    done = actors.run(["cat"], input="plum", check=True, timeout=NOT_BLOCKED)
    assert done.stdout == b"plum"


def test_s55_many_threads_may_call_at_once() -> None:
    with Engine() as engine, concurrent.futures.ThreadPoolExecutor(8) as threads:
        calls = threads.map(lambda n: engine.run(["echo", str(n)]).text, range(24))
        assert list(calls) == [f"{n}\n" for n in range(24)]


async def test_s55_a_blocking_call_in_a_running_loop_is_refused() -> None:
    engine = Engine()
    with pytest.raises(RuntimeContext, match="loop"):
        engine.__enter__()
    with pytest.raises(RuntimeContext, match="loop"):
        actors.run(["true"])
    with pytest.raises(RuntimeContext, match="enter"):
        engine.scope()
    await asyncio.to_thread(engine.__enter__)
    try:
        with pytest.raises(RuntimeContext, match="loop"):
            engine.info()
        with pytest.raises(RuntimeContext, match="loop"):
            engine.aclose()
    finally:
        await asyncio.to_thread(engine.aclose)


def test_every_thread_that_closes_an_engine_returns_once_all_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop, threads, happened = embedded.Embedded.stop, 4, []
    entered = threading.Barrier(threads)

    async def held_up(self: embedded.Embedded) -> None:
        await asyncio.to_thread(entered.wait, NOT_BLOCKED)
        await stop(self)
        happened.append("ended")

    def close(number: int) -> None:
        if number:  # the others come while the first one is at it
            entered.wait(NOT_BLOCKED)
        engine.aclose()
        happened.append("returned")

    monkeypatch.setattr(embedded.Embedded, "stop", held_up)
    word = tag()
    engine = Engine().__enter__()
    engine.scope().spawn(program(REST, word))
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(close, range(threads)))
    assert happened == ["ended"] + threads * ["returned"]
    gone(word)


@pytest.mark.parametrize("what", ["engine", "scope", "child"])
def test_to_close_what_another_thread_just_closed_is_harmless(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine().__enter__()
    scope = engine.scope()
    child = scope.spawn(["sleep", "150"])
    close = {"engine": engine.aclose, "scope": scope.aclose, "child": child.aclose}
    with concurrent.futures.ThreadPoolExecutor(1) as another:

        def another_is_faster() -> None:
            monkeypatch.undo()
            another.submit(engine.aclose).result(NOT_BLOCKED)

        monkeypatch.setattr(portal, "check_context", another_is_faster)
        close[what]()


def test_s55_an_engine_is_entered_once() -> None:
    with Engine() as engine, pytest.raises(RuntimeContext, match="once"):
        engine.__enter__()


SCRIPT = """
import actors
with actors.blocking.Engine() as engine:
    print(engine.run(["echo", "plum"]).text, end="")
"""


@pytest.mark.parametrize("way", ["file", "-c", "stdin"])
def test_s55_it_works_without_a_main_guard(way: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = {"file": [str(script)], "-c": ["-c", SCRIPT], "stdin": ["-"]}[way]
    done = python("-W", "error", *words, input=SCRIPT)
    assert (done.stdout, done.stderr, done.returncode) == ("plum\n", "", 0)


LEAVES_OPEN = """
import actors, sys
engine = actors.blocking.Engine().__enter__()
child = engine.spawn(["sleep", "150"], arg0=sys.argv[1])
print(child.pid, flush=True)
"""


@pytest.mark.parametrize("warn", ["ignore", "default"])
def test_s55_an_engine_nobody_closed_ends_with_the_interpreter(warn: str) -> None:
    word = tag()
    done = python("-W", warn, "-c", LEAVES_OPEN, word)
    assert done.returncode == 0
    assert ("never closed" in done.stderr) is (warn == "default")
    assert "Traceback" not in done.stderr
    gone(word)


LEAVES_DIRECTORIES = """
import actors, sys
engine = actors.blocking.Engine().__enter__()
scope = engine.scope()
(scope.scratch() / "file").touch()
start = ["/bin/sh", "-c", "cat >/dev/null; echo up; exec sleep 150", sys.argv[1]]
stop = ["/bin/sh", "-c", "cat >/dev/null; echo stopped >$0", sys.argv[2]]
service = engine.service(actors.ServiceSpec("helper", "test", start, stop))
"""


def test_an_engine_nobody_closed_removes_its_directories(tmp_path: Path) -> None:
    word, log = tag(), tmp_path / "log"
    done = python("-W", "ignore", "-c", LEAVES_DIRECTORIES, word, str(log))
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    assert log.read_text() == "stopped\n"
    gone(word)
    root = Path(os.environ["XDG_RUNTIME_DIR"]) / "creche"
    for of in ("scratch", "services"):
        assert list((root / of).iterdir()) == []


def test_s42_a_collected_engine_ends_its_children() -> None:
    word = tag()
    engine = Engine().__enter__()
    child = engine.spawn(program(REST, word))
    held = [engine, child]
    del engine, child
    with pytest.warns(ResourceWarning, match="never closed"):
        held.clear()
    gone(word)


def test_what_exits_while_it_takes_output_is_the_callers() -> None:
    def leave(_stream: str, _data: bytes) -> None:
        sys.exit(7)

    with Engine() as engine:
        with pytest.raises(SystemExit) as left:
            engine.run(["echo", "x"], into=leave)
        assert left.value.code == 7
        assert engine.run(["echo", "on"]).stdout == b"on\n"


INTERRUPTED = """
def up():
    print("up", flush=True)
def main(engine, word):
    argv = ["sleep", "150"]
    try:
        {call}
    except KeyboardInterrupt:
        print("interrupted", len(engine.children()), flush=True)
with actors.blocking.Engine() as engine:
    main(engine, sys.argv[1])
    print(engine.run(["echo", "fine"]).text, flush=True)
"""


@pytest.mark.parametrize(
    ("call", "left"),
    [
        ("up(); engine.run(argv, arg0=word)", 0),
        ("kept = engine.spawn(argv, arg0=word); up(); kept.wait()", 1),
    ],
)
def test_s56_ctrl_c_interrupts_what_waits(call: str, left: int) -> None:
    word = tag()
    with client(INTERRUPTED.format(call=call), word) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        # Its own command line holds the word as well.
        eventually(lambda: len(tagged(word)) == 2)
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == b"interrupted %d\nfine\n\n" % left
    assert process.returncode == 0
    gone(word)


def interrupted_as_it_comes(call: Callable[[], Any]) -> None:
    """Make a call whose answer is there when its thread is interrupted."""
    calls = []

    def wait_for(outcome: "concurrent.futures.Future[Any]") -> None:
        concurrent.futures.wait((outcome,))
        calls.append(outcome)
        if len(calls) == 1:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portal, "wait_for", wait_for)
        with pytest.raises(KeyboardInterrupt):
            call()


@pytest.mark.parametrize("posted", [True, False])
def test_a_call_interrupted_around_its_start_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, *, posted: bool
) -> None:
    post, word = portal.Portal._posted, tag()

    def interrupted(self: portal.Portal, action: Callable[[], object]) -> bool:
        if posted:
            post(self, action)
        raise KeyboardInterrupt

    with Engine() as engine, engine.scope() as scope:
        with monkeypatch.context() as patch:
            patch.setattr(portal.Portal, "_posted", interrupted)
            with pytest.raises(KeyboardInterrupt):
                scope.spawn(program(REST, word))
        assert scope.children() == []


def test_an_interruption_is_raised_though_the_engine_is_closed_meanwhile() -> None:
    with Engine() as engine, engine.scope() as scope:
        opened = engine._portal

        def wait_for(outcome: "concurrent.futures.Future[Any]") -> None:
            concurrent.futures.wait((outcome,))
            if not opened._stopping:
                opened._stopping = True  # another thread has just begun to close it
                raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(portal, "wait_for", wait_for)
            try:
                with pytest.raises(KeyboardInterrupt):
                    scope.spawn(["sleep", "150"])
            finally:
                opened._stopping = False


def test_s56_what_came_as_its_thread_was_interrupted_is_not_lost() -> None:
    with Engine() as engine, engine.scope() as scope:
        child = scope.spawn(["cat"], stdin="pipe")
        events, reader = child.events(), child.reader()
        child.write("one")
        interrupted_as_it_comes(lambda: next(events))
        interrupted_as_it_comes(reader.read)
        interrupted_as_it_comes(lambda: child.poll(mode="output"))
        assert next(events).data == b"one"  # type: ignore[union-attr]  # a chunk
        assert reader.read().data == b"one"
        assert child.poll(mode="output").stdout == b"one"
        seen = child.poll("two", wait=NOT_BLOCKED)
        assert (seen.stdout, seen.text) == (b"two", "two")
        interrupted_as_it_comes(lambda: child.poll("six", wait=NOT_BLOCKED))
        assert child.poll().stdout == b"six"


def test_s56_a_spawn_interrupted_as_it_succeeds_leaves_no_child() -> None:
    word = tag()
    with Engine() as engine, engine.scope() as scope:
        interrupted_as_it_comes(lambda: scope.spawn(program(REST, word)))
        gone(word)
        interrupted_as_it_comes(scope.shell)
        assert scope.children() == []


def test_s56_a_match_that_came_as_its_thread_was_interrupted_is_found_again() -> None:
    with Engine() as engine, engine.scope() as scope:
        child = scope.spawn(["printf", "one two two"])
        assert child.expect("one", timeout=NOT_BLOCKED).offset == 0

        def expect() -> actors.Match:
            return child.expect("t.o", timeout=NOT_BLOCKED)

        interrupted_as_it_comes(expect)
        assert expect().offset == len("one ")
        assert expect().offset == len("one two ")


def test_s56_what_was_made_as_its_thread_was_interrupted_is_undone() -> None:
    with Engine() as engine:
        interrupted_as_it_comes(lambda: engine.scope("taken"))
        with engine.scope("taken") as scope:
            interrupted_as_it_comes(scope.pause)
            with pytest.raises(actors.InvalidRequest, match="none"):
                scope.resume()


def test_every_service_that_came_as_its_thread_was_interrupted_is_closed(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    start = ["/bin/sh", "-c", "cat >/dev/null; echo up; exec sleep 150"]
    stop = ["/bin/sh", "-c", f"cat >/dev/null; echo stopped >>{log}; exit 7"]
    specs = [actors.ServiceSpec(name, "test", start, stop) for name in ("one", "two")]
    with Engine() as engine:
        with pytest.raises(actors.ServiceFailed, match=r"'two'.*code 7.*'one'"):
            interrupted_as_it_comes(lambda: engine.services(specs))
        assert log.read_text() == "stopped\n" * 2


def test_s56_an_interrupted_attach_leaves_the_child_to_others(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    with serving(endpoint), Engine(endpoint) as engine:
        child = engine.spawn(["cat"], stdin="pipe")
        child.detach(ttl=NOT_BLOCKED)
        interrupted_as_it_comes(lambda: engine.attach(child.id))
        with engine.attach(child.id) as again:
            assert again.communicate("plum") == (b"plum", b"")


def test_s56_an_attach_interrupted_without_a_shared_broker_ends_the_child() -> None:
    word = tag()
    with Engine() as engine:
        child = engine.spawn(program(REST, word))
        interrupted_as_it_comes(lambda: engine.attach(child.id, steal=True))
        gone(word)


@pytest.mark.parametrize("end", [Child.aclose, Child.kill, Child.terminate])
def test_s56_an_end_that_was_interrupted_at_once_goes_on(
    end: Callable[[Child], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    word = tag()
    with Engine() as engine:
        child = engine.spawn(program(REST, word))
        waits: list[object] = []

        def wait_for(outcome: "concurrent.futures.Future[Any]") -> None:
            waits.append(outcome)
            if len(waits) == 1:
                raise KeyboardInterrupt
            concurrent.futures.wait((outcome,))

        with monkeypatch.context() as patch:
            patch.setattr(portal, "wait_for", wait_for)
            with pytest.raises(KeyboardInterrupt):
                end(child)
        gone(word)
        child.aclose()


def test_s57_a_result_that_came_as_its_thread_was_interrupted_is_kept() -> None:
    with Engine() as engine:
        results = engine.map([["echo", "one"]], concurrency=1)
        assert results._portal.call(results._step) is None
        results._pull()

        async def step() -> Any:
            while (found := await results._step()) is None:
                pass
            return found

        interrupted_as_it_comes(lambda: results._portal.call(step, results._keep))
        (done,) = results
        assert isinstance(done, actors.Completed)
        assert done.text == "one\n"


def test_s44_a_forked_copy_is_refused_and_harmless() -> None:
    with Engine() as engine, engine.scope() as scope:
        child = scope.spawn(["cat"], stdin="pipe")
        copy = os.fork()
        if copy == 0:
            os._exit(forked(engine, scope, child))
        assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 0
        assert child.poll("plum", wait=NOT_BLOCKED).stdout == b"plum"


def forked(*objects: Any) -> int:
    """Return 0 if every call of a forked copy was refused."""
    signal.alarm(10)
    engine, scope, child = objects
    calls = [engine.info, scope.children, scope.aclose, child.wait, child.aclose]
    for call in calls:
        try:
            call()
        except WrongProcess:
            continue
        return 1
    engine.aclose()  # nothing of it is here
    portal._at_exit()
    return 0


def test_s4_a_status_outlives_the_engine() -> None:
    with Engine() as engine:
        child = engine.spawn(["false"])
        assert child.wait(NOT_BLOCKED).code == 1
        lasting = engine.spawn(["sleep", "150"])
        reader, scope = child.reader(), engine.scope()
    assert child.wait().code == 1
    child.aclose()
    reader.aclose()
    assert scope.aclose() == 0
    with pytest.raises(actors.BrokerLost):
        child.poll()
    assert lasting.status is None or lasting.status.signal == signal.SIGKILL


def test_s7_a_future_closes_its_scope_too() -> None:
    fired: concurrent.futures.Future[None] = concurrent.futures.Future()
    word = tag()
    with Engine() as engine:
        scope = engine.scope(cancel=fired)
        scope.spawn(program(REST, word))
        fired.set_result(None)
        gone(word)
        with pytest.raises(actors.InvalidRequest, match="cancel"):
            engine.scope(cancel=asyncio.Event())  # type: ignore[arg-type]  # the test
        with pytest.raises(actors.InvalidRequest, match="name"):
            engine.scope("", cancel=threading.Event())


def test_a_future_that_cancels_much_keeps_none_of_it() -> None:
    lasting: concurrent.futures.Future[None] = concurrent.futures.Future()
    known = weakref.ref(lasting)
    with Engine() as engine:
        for _ in range(3):
            engine.scope(cancel=lasting).aclose()
        assert len(vars(lasting)["_done_callbacks"]) == 1
        del lasting

        def is_forgotten() -> bool:
            gc.collect()
            return known() is None

        eventually(is_forgotten)
