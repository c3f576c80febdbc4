"""Descriptors of the client that a child gets under the same numbers."""

import asyncio
import errno
import itertools
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path

import pytest

from actors import Engine, InvalidRequest, Limits, SpawnFailed
from broker import passing
from broker.wire import Kind
from tests.helpers import SPAWN, eventually, parent
from tests.live.children import client, engine_processes, program
from tests.parts import serving

pytestmark = pytest.mark.live

TELLS = """
found = [fd for fd in range(400) if os.path.exists(f"/proc/self/fd/{fd}")]
print(found[3:], [os.read(fd, 100) for fd in map(int, sys.argv[1:])])
"""


@contextmanager
def at(*numbers: int) -> Iterator[None]:
    """Put a pipe with its number to read at each of these free numbers, for a block."""
    with ExitStack() as stack:
        for number in numbers:
            read, write = os.pipe()
            os.write(write, b"%d" % number)
            os.close(write)
            if read != number:
                os.dup2(read, number, inheritable=False)
                os.close(read)
            stack.callback(os.close, number)
        yield


def free(count: int, start: int) -> list[int]:
    """Return the first numbers from `start` on that nothing has here."""
    return list(islice((n for n in itertools.count(start) if not is_open(n)), count))


def is_open(number: int) -> bool:
    return os.path.lexists(f"/proc/self/fd/{number}")


@contextmanager
def let_go(engine: Engine, *numbers: int) -> Iterator[None]:
    """Fail if a process of the engine has one of these files after the block."""
    files = {os.readlink(f"/proc/self/fd/{number}") for number in numbers}
    yield
    eventually(lambda: not files & held(engine), what=lambda: str(files & held(engine)))


def held(engine: Engine) -> set[str]:
    """Return what the processes of an engine have open."""
    processes = engine_processes(engine)
    found = set()
    for pid in itertools.chain.from_iterable(processes.values()):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # closed meanwhile
                found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def passed(numbers: list[int]) -> list[str]:
    return [str(number) for number in numbers]


# --- what the child gets -------------------------------------------------------------


async def test_s14_passed_descriptors_keep_their_numbers_and_nothing_else_comes() -> (
    None
):
    numbers = [*reversed(free(20, 3)), 200, 100]
    with at(*numbers):
        async with Engine() as engine:
            with let_go(engine, *numbers):
                done = await engine.run(
                    program(TELLS, *passed(numbers)), pass_fds=numbers
                )
            expected = sorted(numbers), [word.encode() for word in passed(numbers)]
            assert done.text == "{} {}\n".format(*expected), done.stderr


async def test_s14_descriptors_may_have_the_numbers_of_the_workers_own() -> None:
    numbers = free(20, 3)
    with at(*numbers):
        async with Engine() as engine:
            child = await engine.spawn(["sleep", "100"], pass_fds=numbers)
            own = os.listdir(f"/proc/{parent(child.pid)}/fd")
            assert len(set(numbers) & set(map(int, own))) > 1
            assert (await child.poll(wait=0)).alive  # its leg is what it was
            await child.aclose()


async def test_s14_a_pipe_and_a_socket_work_both_ways() -> None:
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    async with Engine() as engine:
        fds = (theirs.fileno(), write)
        child = await engine.spawn(
            program(UPPER, *map(str, fds)), pass_fds=fds, stderr="stdout"
        )
        theirs.close()
        os.close(write)
        ours.send(b"hello")
        assert (await child.wait()).ok, (await child.output()).text
        assert os.read(read, 100) == b"HELLO"
        assert os.read(read, 100) == b""  # nobody else holds it
        assert ours.recv(100) == b"thanks"
        assert ours.recv(100) == b""
    ours.close()
    os.close(read)


UPPER = """
end, pipe = map(int, sys.argv[1:])
os.write(pipe, os.read(end, 100).upper())
os.write(end, b"thanks")
"""


async def test_s14_a_terminal_session_gets_them_as_well() -> None:
    numbers = [*reversed(free(10, 3)), 150]
    with at(*numbers):
        async with Engine() as engine:
            with let_go(engine, *numbers):
                argv = program(TELLS, *passed(numbers))
                done = await engine.run(argv, pass_fds=numbers, tty=True)
            assert done.text.startswith(str(sorted(numbers))), done.text


async def test_s14_a_child_gets_253_descriptors(tmp_path: Path) -> None:
    numbers = list(range(100, 353))
    path = tmp_path / "file"
    path.touch()
    with ExitStack() as stack:
        for number in numbers:
            fd = os.open(path, os.O_RDONLY)
            os.dup2(fd, number)
            os.close(fd)
            stack.callback(os.close, number)
        async with Engine() as engine:
            done = await engine.run(program(TELLS), pass_fds=numbers)
            assert done.text == f"{numbers} []\n", done.stderr


async def test_s14_numbers_above_the_childs_limit_are_passed_like_by_subprocess() -> (
    None
):
    with at(300):
        async with Engine() as engine:
            argv = program("print(os.read(300, 10))")
            done = await engine.run(argv, pass_fds=(300,), limits=Limits(nofile=64))
            assert done.text == "b'300'\n", done.stderr


@pytest.mark.parametrize("tty", [False, True])
async def test_s14_numbers_above_the_limit_that_the_engine_began_with_are_passed(
    *, tty: bool
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
        async with Engine() as engine:
            resource.setrlimit(resource.RLIMIT_NOFILE, (2100, hard))
            with at(599, 2000):
                tells = "import resource; print(os.read(599, 9), os.read(2000, 9), "
                argv = program(tells + "resource.getrlimit(resource.RLIMIT_NOFILE))")
                done = await engine.run(argv, pass_fds=(599, 2000), tty=tty)
            assert done.text.strip() == f"b'599' b'2000' (2100, {hard})"
            argv = program(
                "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
            )
            resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
            with at(400):  # nothing was left raised
                done = await engine.run(argv, pass_fds=(400,), tty=tty)
            assert done.text.strip() == f"(600, {hard})"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("tty", [False, True])
async def test_s14_a_broker_that_was_started_with_few_numbers_passes_many(
    tmp_path: Path, *, tty: bool
) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    numbers = free(150, 100)
    few = "sh", "-c", 'ulimit -Sn 128; exec "$@"', "sh"
    tells = TELLS + "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    with at(*numbers), serving(endpoint, *few):
        async with Engine(endpoint) as engine:
            done = await engine.run(program(tells), pass_fds=numbers, tty=tty)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert done.text.splitlines() == [f"{numbers} []", str(limits)]


# --- what is refused, and what fails -------------------------------------------------


@pytest.mark.parametrize("numbers", [(0,), (3, 3), (-1,), range(3, 257), ("3",)])
async def test_s10_numbers_that_cannot_be_passed_are_refused(numbers: object) -> None:
    async with Engine() as engine:
        with pytest.raises(InvalidRequest) as caught:
            await engine.spawn(["true"], pass_fds=numbers)
        assert caught.value.field == "pass_fds"
        (closed,) = free(1, 90)
        with pytest.raises(InvalidRequest) as caught:
            await engine.spawn(["true"], pass_fds=(closed,))
        assert caught.value.field == "pass_fds"


async def test_s11_a_failed_start_is_told_and_keeps_no_descriptor() -> None:
    numbers = free(80, 60)  # where the worker would tell of the failure as well
    with at(*numbers):
        async with Engine() as engine:
            with let_go(engine, *numbers):
                with pytest.raises(SpawnFailed) as caught:
                    await engine.spawn(["/no/such/program"], pass_fds=numbers)
                assert (caught.value.errno, caught.value.step) == (errno.ENOENT, "exec")


async def test_a_cancelled_spawn_keeps_no_descriptor() -> None:
    async with Engine() as engine:
        read, write = os.pipe()
        with let_go(engine, write):
            spawning = asyncio.ensure_future(
                engine.spawn(["sleep", "100"], pass_fds=(write,))
            )
            await asyncio.sleep(0)
            spawning.cancel()
            with suppress(asyncio.CancelledError):
                await spawning
        os.close(write)
        assert await asyncio.to_thread(os.read, read, 1) == b""
        os.close(read)


@pytest.mark.soak  # for its 5 seconds
async def test_descriptors_without_a_spawn_and_a_spawn_without_them_leave_nothing() -> (
    None
):
    async with Engine() as engine:
        assert engine._opened is not None
        link = engine._opened.link
        read, write = os.pipe()
        with let_go(engine, write):
            await link.pass_fds(link.number(), (read, write))
            await link.ask(Kind.INFO)
            with pytest.raises(SpawnFailed) as caught:
                await link.ask(Kind.SPAWN, body=SPAWN | {"fds": 3}, payload=b"")
            assert caught.value.errno == errno.ETIMEDOUT
        os.close(read)
        os.close(write)


async def test_a_spawn_waits_for_descriptors_that_come_later() -> None:
    async with Engine() as engine:
        assert engine._opened is not None
        link = engine._opened.link
        request = link.number()
        answer = link.ask(
            Kind.SPAWN, body=SPAWN | {"fds": 1}, payload=b"", request=request
        )
        await link.ask(Kind.INFO)  # the broker has taken the spawn
        assert not answer.done()
        await link.pass_fds(request, (0,))
        with pytest.raises(Exception, match="document"):  # the worker has its say
            await answer


async def test_many_spawns_with_descriptors_at_once_leave_nothing() -> None:
    with at(70, 71):
        async with Engine() as engine:
            with let_go(engine, 70, 71):
                done = await asyncio.gather(
                    *(engine.run(program(TELLS), pass_fds=(70, 71)) for _ in range(8))
                )
            assert {d.text for d in done} == {"[70, 71] []\n"}


async def test_spawns_of_one_request_id_keep_no_descriptor() -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    command = ["sleep", "100"]
    async with Engine() as engine:
        spawns = [
            engine.spawn(command, pass_fds=(write,), request_id="job") for _ in range(3)
        ]
        child, *_ = await asyncio.gather(*spawns)
        await engine.spawn(command, pass_fds=(write,), request_id="job")
        os.close(write)
        await child.kill()
        await asyncio.to_thread(eventually, lambda: is_at_end(read))
    os.close(read)


async def test_a_killed_client_leaves_no_descriptor_in_a_shared_broker(
    tmp_path: Path,
) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    read, write = os.pipe()
    os.set_blocking(read, False)
    with serving(endpoint):
        with client(SENDS_AND_DIES, endpoint, str(write), pass_fds=(write,)):
            os.close(write)
        # Sooner than by its waiting in vain.
        eventually(lambda: is_at_end(read), passing.WAIT - 1.0)
    os.close(read)


def is_at_end(fd: int) -> bool:
    try:
        return os.read(fd, 1) == b""
    except BlockingIOError:
        return False


SENDS_AND_DIES = """
async def main():
    async with actors.Engine(sys.argv[1]) as engine:
        link, fd = engine._opened.link, int(sys.argv[2])
        await link.pass_fds(link.number(), [fd])
        await engine.spawn(["sleep", "100"], pass_fds=[fd])
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
