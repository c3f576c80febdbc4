"""An owner goes, in every way it can: its trees go with it, and nobody else's.

The trees are daemons that were forked twice, lead sessions of their own and ignore
SIGTERM: only a search for descendants finds them.
"""

import asyncio
import gc
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import actors
from tests.helpers import NOT_BLOCKED, alive, end, gone, python, tag, tagged
from tests.parts import DAEMONS, Identities, Parts, client, daemons

pytestmark = pytest.mark.live


async def up(child: actors.Child) -> None:
    """Wait until the child's daemons are started."""
    seen = b""
    while b"up\n" not in seen:
        result = await child.poll(wait=10, mode="output", max_bytes=4096)
        assert not result.done
        seen += result.stdout


async def went(word: str) -> None:
    """Wait until no process with this word lives, and let the loop run meanwhile."""
    await asyncio.to_thread(gone, word)


@contextmanager
def collecting() -> Iterator[None]:
    """Collect what is let go in the block: it is a child that nobody closed."""
    warned = pytest.warns(ResourceWarning, match="never closed")
    with warned:
        yield
        gc.collect()


def failing() -> AbstractContextManager[object, bool]:
    """Expect the block to end by an exception of its own."""
    return pytest.raises(ZeroDivisionError)


# -- within one client ----------------------------------------------------------


async def test_a_tree_is_what_these_tests_take_it_for() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word))
        await up(child)
        assert len(tagged(word)) == DAEMONS + 1
        await child.signal(signal.SIGTERM, group=True)
        assert len(tagged(word)) == DAEMONS + 1
        await child.aclose()


async def test_a_closed_handle_has_ended_its_tree_when_aclose_returns() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word))
        await up(child)
        waiting = asyncio.create_task(child.wait())
        polling = asyncio.create_task(child.poll(wait=30))
        await child.snapshot()
        await child.aclose()
        assert not tagged(word)
        assert (await waiting).cause == "owner-drop"
        with pytest.raises(actors.SessionNotFound):
            await polling


async def test_the_block_of_a_handle_ends_its_tree_also_by_an_exception() -> None:
    word = tag()
    async with actors.Engine() as engine:
        with failing():
            async with await engine.spawn(daemons(word)) as child:
                await up(child)
                raise ZeroDivisionError
        assert not tagged(word)


async def test_s42_a_collected_handle_ends_its_tree_and_warns() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word))
        await up(child)
        with collecting():
            del child
        await went(word)
        assert await engine.children() == []


async def test_a_handle_in_a_cycle_ends_its_tree_once_it_is_collected() -> None:
    word = tag()
    async with actors.Engine() as engine:
        gc.disable()
        try:
            child = await engine.spawn(daemons(word))
            await up(child)
            child.itself = child  # type: ignore[attr-defined]
            del child
            assert len(await engine.children()) == 1
            assert len(tagged(word)) == DAEMONS + 1
            with pytest.warns(ResourceWarning, match="never closed"):
                gc.collect()
        finally:
            gc.enable()
        await went(word)


def test_a_warning_that_is_an_error_does_not_save_a_collected_tree(
    tmp_path: Path,
) -> None:
    word = tag()
    body = f"""
import warnings
warnings.simplefilter("error")
sys.unraisablehook = lambda raised: say("warned", raised.exc_type.__name__)

async def main():
    async with actors.Engine() as engine:
        await start(engine, {word!r})
        gc.collect()
        await asyncio.to_thread(heard)

asyncio.run(main())
"""
    with client(tmp_path, body) as program:
        program.number("pid")
        assert program.said("warned") == ["ResourceWarning"]
        gone(word)
        assert alive(program.pid)


async def test_s42_only_the_last_of_several_handles_owns() -> None:
    word = tag()
    async with actors.Engine() as engine:
        first = await engine.spawn(daemons(word), request_id="one")
        second = await engine.spawn(daemons(word), request_id="one")
        assert first.id == second.id
        await up(first)
        del first
        gc.collect()
        assert len(await engine.children()) == 1
        assert len(tagged(word)) == DAEMONS + 1
        with collecting():
            del second
        await went(word)


async def test_s42_an_iterator_counts_as_a_reference() -> None:
    word = tag()
    async with actors.Engine() as engine:
        stream = (await engine.spawn(daemons(word))).events()
        gc.collect()
        event = await anext(stream)
        assert isinstance(event, actors.Chunk)
        assert len(tagged(word)) == DAEMONS + 1
        with collecting():
            del stream
        await went(word)


async def test_input_of_a_poll_that_does_not_go_in_keeps_no_handle_alive() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word), stdin="pipe")
        await up(child)
        await child.poll(bytes(200_000), wait=0)
        with collecting():
            del child
        await went(word)


async def test_a_cursor_counts_as_a_reference() -> None:
    word = tag()
    async with actors.Engine() as engine:
        reader = (await engine.spawn(daemons(word))).reader()
        gc.collect()
        assert (await reader.read()).data == b"up\n"
        assert len(tagged(word)) == DAEMONS + 1
        with collecting():
            del reader
        await went(word)


async def test_a_handle_collected_while_its_engine_is_left_makes_no_noise() -> None:
    word = tag()
    noise: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: noise.append(context))
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word))
        await up(child)
        with collecting():
            del child
    assert not tagged(word)
    assert not noise


async def test_leaving_a_scope_ends_its_trees_and_no_others() -> None:
    inside, outside = tag(), tag()
    async with actors.Engine() as engine:
        other = await engine.spawn(daemons(outside))
        await up(other)
        async with engine.scope() as scope:
            for _ in range(3):
                await up(await scope.spawn(daemons(inside)))
        assert not tagged(inside)
        assert len(tagged(outside)) == DAEMONS + 1
        await other.aclose()


async def test_s42_leaving_a_scope_by_an_exception_ends_its_trees() -> None:
    word = tag()
    async with actors.Engine() as engine:
        with failing():
            async with engine.scope() as scope:
                await up(await scope.spawn(daemons(word)))
                raise ZeroDivisionError
        assert not tagged(word)


@pytest.mark.parametrize("kind", ["event", "future", "task"])
async def test_what_cancels_a_scope_ends_its_trees(kind: str) -> None:
    word = tag()
    event = asyncio.Event()
    cancel: asyncio.Event | asyncio.Future[Any] = event
    if kind == "future":
        cancel = asyncio.get_running_loop().create_future()
    elif kind == "task":
        cancel = asyncio.create_task(asyncio.Event().wait())
    async with actors.Engine() as engine:
        scope = engine.scope(cancel=cancel)
        child = await scope.spawn(daemons(word))
        await up(child)
        if isinstance(cancel, asyncio.Event):
            cancel.set()
        else:
            cancel.cancel()
        assert (await child.wait(15)).cause == "owner-drop"
        await went(word)
        with pytest.raises(actors.SessionNotFound):
            await scope.spawn(["true"])


async def test_leaving_the_engine_ends_its_trees() -> None:
    word = tag()
    async with actors.Engine() as engine:
        held = [await engine.spawn(daemons(word)) for _ in range(3)]
        scope = engine.scope()
        held.append(await scope.spawn(daemons(word)))
        for child in held:
            await up(child)
        parts = Identities(*Parts.of(held[0].pid))
        waiting = asyncio.create_task(held[0].wait())
        await held[0].snapshot()
    assert not tagged(word)
    assert not parts.alive()
    assert (await waiting).cause == "owner-drop"


async def test_s42_leaving_the_engine_by_an_exception_ends_its_trees() -> None:
    word = tag()
    with failing():
        async with actors.Engine() as engine:
            child = await engine.spawn(daemons(word))
            await up(child)
            raise ZeroDivisionError
    assert not tagged(word)


async def test_every_pending_call_is_answered_when_the_engine_is_left() -> None:
    word = tag()
    async with actors.Engine() as engine:
        child = await engine.spawn(daemons(word), stdin="pipe")
        await up(child)
        calls: dict[str, asyncio.Task[Any]] = {
            "wait": asyncio.create_task(child.wait()),
            "poll": asyncio.create_task(child.poll(wait=30)),
            "write": asyncio.create_task(child.write(bytes(8 << 20))),
            "events": asyncio.create_task(anext(child.events("newest"))),
            "read": asyncio.create_task(child.reader(after="newest").read(wait=30)),
        }
        await child.snapshot()
    _done, pending = await asyncio.wait(calls.values(), timeout=NOT_BLOCKED)
    assert not pending, [name for name, call in calls.items() if call in pending]
    assert calls["wait"].result().cause == "owner-drop"
    assert isinstance(calls["poll"].exception(), actors.SessionNotFound)


# -- the client's process -------------------------------------------------------

ENDINGS = {
    "returns": "return",
    "raises": "raise ZeroDivisionError",
    "sys.exit": "sys.exit(3)",
    "os._exit": "os._exit(3)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "SIGINT": "os.kill(os.getpid(), signal.SIGINT); await asyncio.sleep(150)",
    "SIGSEGV": "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); "
    "os.kill(os.getpid(), signal.SIGSEGV)",
}


@pytest.mark.parametrize("how", ENDINGS)
def test_s42_a_client_that_ends_without_closing_leaves_nothing(
    how: str, tmp_path: Path
) -> None:
    word = tag()
    body = f"""
async def main():
    global engine, child
    engine = actors.Engine()
    await engine.__aenter__()
    child = await start(engine, {word!r})
    assert heard() == "go"
    {ENDINGS[how]}

asyncio.run(main())
"""
    with client(tmp_path, body) as program:
        parts = Identities(*Parts.of(program.number("pid")))
        assert len(tagged(word)) == DAEMONS + 1
        program.tell("go")
        program.process.wait(15)
        gone(word)
        parts.gone()


@pytest.mark.parametrize("how", ["raises", "sys.exit", "SIGINT"])
def test_a_client_that_unwinds_leaves_nothing_at_its_end(
    how: str, tmp_path: Path
) -> None:
    word = tag()
    body = f"""
async def main():
    async with actors.Engine() as engine:
        child = await start(engine, {word!r})
        assert heard() == "go"
        {ENDINGS[how]}

asyncio.run(main())
"""
    with client(tmp_path, body) as program:
        program.number("pid")
        program.tell("go")
        program.process.wait(15)
        assert not tagged(word)


STATES = {
    "during a spawn": """
    for _ in range(8):
        asyncio.ensure_future(engine.spawn(daemons(WORD)))
    await asyncio.sleep(0)
""",
    "with a full stdin queue": """
    child = await start(engine, WORD, stdin="pipe")
    asyncio.ensure_future(child.write(bytes(8 << 20)))
    while (await child.snapshot()).state != "running":
        pass
""",
    "with a flooding child": """
    child = await start(engine, WORD)
    stream = child.events()
    async def take():
        async for _ in stream:
            pass
    flood = await engine.spawn(daemons(WORD, FLOODING_TREE))
    stream = flood.events()
    taking = asyncio.ensure_future(take())
    await flood.snapshot()
""",
    "with a stalled reader": """
    flood = await engine.spawn(
        daemons(WORD, FLOODING_TREE), retention=actors.OutputPolicy.block(65536)
    )
    stream = flood.events()
    await anext(stream)
    await flood.snapshot()
""",
    "with a pending poll": """
    child = await start(engine, WORD)
    asyncio.ensure_future(child.poll(wait=30))
    await child.snapshot()
""",
    "with many sessions": """
    held = await asyncio.gather(*(engine.spawn(daemons(WORD)) for _ in range(24)))
    await asyncio.gather(*map(up, held))
""",
}


@pytest.mark.parametrize("state", STATES)
def test_s42_a_killed_client_leaves_nothing(state: str, tmp_path: Path) -> None:
    word = tag()
    body = f"""
WORD = {word!r}

async def main():
    global engine, child, held, flood, stream, taking
    engine = actors.Engine()
    await engine.__aenter__()
    first = await start(engine, WORD)
    {STATES[state]}
    say("now")
    await asyncio.sleep(150)

asyncio.run(main())
"""
    with client(tmp_path, body) as program:
        parts = Identities(*Parts.of(program.number("pid")))
        while program.line() != "now":
            pass
        program.kill()
        # The engine's own end comes first: a spawn that was on its way is over too.
        parts.gone()
        gone(word)


def test_a_client_killed_at_the_start_of_its_engine_leaves_nothing(
    tmp_path: Path,
) -> None:
    body = """
from broker import tree

async def main():
    engine = actors.Engine()
    opening = asyncio.ensure_future(engine.__aenter__())
    while not tree.children(os.getpid()):
        await asyncio.sleep(0)
    say("supervisor", *tree.children(os.getpid()))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    with client(tmp_path, body) as program:
        supervisor = program.number("supervisor")
        program.process.wait(15)
        Identities(supervisor).gone()


# -- a forked copy of the client ------------------------------------------------


def test_a_killed_client_leaves_nothing_although_a_copy_of_it_lives(
    tmp_path: Path,
) -> None:
    word = tag()
    body = f"""
async def main():
    global engine, child
    engine = actors.Engine()
    await engine.__aenter__()
    child = await start(engine, {word!r})
    copy = os.fork()
    if copy == 0:
        signal.alarm(150)
        while True:
            signal.pause()
    say("copy", copy)
    await asyncio.sleep(150)

asyncio.run(main())
"""
    with client(tmp_path, body) as program:
        parts = Identities(*Parts.of(program.number("pid")))
        copy = Identities(program.number("copy"))
        try:
            program.kill()
            gone(word)
            parts.gone()
            assert copy.alive()
        finally:
            end(copy.alive())


COPIES = {
    "os._exit": "os._exit(0)",
    "sys.exit": "sys.exit(0)",
    "returns": "return",
    "collects": "del child, engine; gc.collect(); os._exit(0)",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("how", COPIES)
def test_s44_the_end_of_a_copy_is_not_the_clients(how: str, tmp_path: Path) -> None:
    word = tag()
    body = f"""
async def main():
    async with actors.Engine() as engine:
        child = await start(engine, {word!r}, stdin="pipe")
        copy = os.fork()
        if copy == 0:
            signal.alarm(150)
            {COPIES[how]}
        pidfd = os.pidfd_open(copy)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, ended.set)
        await asyncio.wait_for(ended.wait(), 15)
        asyncio.get_running_loop().remove_reader(pidfd)
        say("status", os.waitpid(copy, 0)[1])
        say("live", len(await engine.children()), child.ended)
        assert heard() == "go"
        say("receipt", len((await child.kill()).survivors))

asyncio.run(main())
"""
    with client(tmp_path, body) as program:
        program.number("pid")
        assert program.number("status") in (0, signal.SIGKILL)
        assert program.said("live") == ["1", "False"]
        assert len(tagged(word)) == DAEMONS + 1
        program.tell("go")
        assert program.number("receipt") == 0
        assert not tagged(word)
        assert program.process.wait(15) == 0


def test_s44_every_call_of_a_copy_is_refused_and_does_nothing(tmp_path: Path) -> None:
    word = tag()
    body = f"""
async def main():
    async with actors.Engine() as engine:
        scope = engine.scope("kept")
        child = await scope.spawn(daemons({word!r}), stdin="pipe")
        await up(child)
        stream, reader = child.events(), child.reader()
        happens, results = engine.events(), engine.map([["true"]])
        say("pid", child.pid)
        copy = os.fork()
        if copy:
            os.waitpid(copy, 0)
            say("alive", len(await engine.children()))
            assert heard() == "go"
            return
        calls = dict(
            spawn=lambda: engine.spawn(["true"]),
            run=lambda: engine.run(["true"]),
            children=lambda: engine.children(),
            kill_ids=lambda: engine.kill([child.id]),
            info=lambda: engine.info(),
            scope=lambda: engine.scope("fresh"),
            scope_spawn=lambda: scope.spawn(["true"]),
            scope_run=lambda: scope.run(["true"]),
            scope_children=lambda: scope.children(),
            scope_kill=lambda: scope.kill(),
            scope_close=lambda: scope.aclose(),
            poll=lambda: child.poll(wait=0),
            write=lambda: child.write(b"x"),
            close_stdin=lambda: child.close_stdin(),
            wait=lambda: child.wait(),
            kill=lambda: child.kill(),
            terminate=lambda: child.terminate(),
            interrupt=lambda: child.interrupt(),
            signal=lambda: child.signal(9),
            snapshot=lambda: child.snapshot(),
            output=lambda: child.output(),
            communicate=lambda: child.communicate(b"x"),
            events=lambda: child.events(),
            reader=lambda: child.reader(),
            close=lambda: child.aclose(),
            next_event=lambda: anext(stream),
            next_of_all=lambda: anext(happens),
            next_result=lambda: anext(results),
            read=lambda: reader.read(wait=0),
        )
        for name, call in calls.items():
            try:
                made = call()
                if asyncio.iscoroutine(made):
                    made.send(None)
                elif hasattr(made, "__await__"):
                    next(made.__await__())
                say(name, "went on")
            except StopIteration:
                say(name, "went through")
            except BaseException as error:
                say(name, type(error).__name__)
        say("done")
        os._exit(0)

asyncio.run(main())
"""
    with client(tmp_path, body) as program:
        program.number("pid")
        lines = iter(program.line, "done")
        answers = dict(line.split(" ", 1) for line in lines)
        wrong = {n: a for n, a in answers.items() if a != "WrongProcess"}
        assert not wrong
        assert len(answers) == 29
        assert program.number("alive") == 1
        assert len(tagged(word)) == DAEMONS + 1
        program.tell("go")
        assert program.process.wait(15) == 0


def test_leaving_the_engine_in_a_copy_leaves_the_clients_alone(tmp_path: Path) -> None:
    word = tag()
    body = f"""
async def main():
    async with actors.Engine() as engine:
        child = await start(engine, {word!r})
        copy = os.fork()
        if copy == 0:
            return
        os.waitpid(copy, 0)
        say("alive", len(await engine.children()))
        assert heard() == "go"

asyncio.run(main())
"""
    with client(tmp_path, body) as program:
        program.number("pid")
        assert program.number("alive") == 1
        assert len(tagged(word)) == DAEMONS + 1
        program.tell("go")
        assert program.process.wait(15) == 0


# -- what is no owner's end -----------------------------------------------------


async def test_a_child_that_leaves_daemons_behind_ends_them_too() -> None:
    word = tag()
    async with actors.Engine() as engine:
        code = "import os\nif os.fork() == 0:\n    os.setsid()\n    signal.pause()\n"
        done = await engine.run(python(code, word))
        assert done.status.leftovers
        await went(word)


def test_s14_the_engines_processes_are_out_of_reach_of_the_clients_group(
    tmp_path: Path,
) -> None:
    word = tag()
    body = f"""
async def main():
    async with actors.Engine() as engine:
        await_one = await start(engine, {word!r})
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.killpg(0, signal.SIGHUP)
        say("alive", len(await engine.children()))

asyncio.run(main())
"""
    with client(tmp_path, "os.setsid()\n" + body) as program:
        program.number("pid")
        assert program.number("alive") == 1
        assert program.process.wait(15) == 0
