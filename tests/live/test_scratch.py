"""Scratch directories: private, made once, gone with their scope, however it ends."""

import asyncio
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors import (
    Engine,
    EngineError,
    InvalidRequest,
    Scope,
    SessionNotFound,
    Settings,
    WrongProcess,
    scratch,
)
from actors.connection import Connection
from actors.scratch import LEVELS
from tests.helpers import (
    FOREVER,
    NOT_BLOCKED,
    alive,
    end,
    eventually,
    tag,
    tagged,
)
from tests.live.children import REST, client, program
from tests.parts import serving

pytestmark = pytest.mark.live


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


def engine(root: Path, **options: Any) -> Engine:
    return Engine(settings=Settings(scratch_root=root), **options)


@pytest.fixture
def loose_umask() -> Iterator[None]:
    before = os.umask(0o277)
    yield
    os.umask(before)


# --- what it is ----------------------------------------------------------------------


async def test_s8_a_scratch_directory_is_private_the_same_each_time_and_removed(
    root: Path,
) -> None:
    async with engine(root) as e, e.scope("build") as scope:
        path, again = await asyncio.gather(scope.scratch(), scope.scratch())
        assert path == again == await scope.scratch()
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert path.parent == root
        assert "build" not in path.name
        done = await scope.run("echo hello >file; pwd", shell=True, cwd=path)
        assert done.stdout == bytes(path) + b"\n"
        assert (path / "file").read_text() == "hello\n"
    assert list(root.iterdir()) == []


async def test_s56_a_cancelled_closing_goes_on_and_the_next_one_waits_for_it(
    root: Path,
) -> None:
    async with engine(root) as e:
        scope = e.scope("build")
        path, word = await scope.scratch(), tag()
        await scope.spawn(program(REST, word))
        closing = asyncio.ensure_future(scope.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        assert await scope.aclose() == 0
        assert not path.exists()
        assert not tagged(word)
        async with e.scope("build") as again:
            assert await again.scratch() == path


async def test_a_scope_that_is_opened_again_waits_for_the_removal_of_the_earlier_one(
    root: Path,
) -> None:
    async with engine(root) as e:
        scope = e.scope("build")
        path, word = await scope.scratch(), tag()
        (path / "old").touch()
        await scope.spawn(program(REST, word))
        closing = asyncio.ensure_future(scope.aclose())
        await asyncio.sleep(0)
        async with e.scope("build") as again:
            assert await again.scratch() == path
            assert closing.done()
            assert not tagged(word)
            assert list(path.iterdir()) == []
        third = e.scope("build")
        assert await third.scratch() == path
    assert list(root.iterdir()) == []


async def test_a_directory_of_which_not_all_is_gone_is_kept_and_waited_for_by_nobody(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def survived(*_: Any) -> None:
        raise EngineError("not proven gone")

    async with engine(root) as e:
        scope = e.scope("build")
        path = await scope.scratch()
        await scope.spawn(program(REST))
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "release", survived)
            with pytest.raises(ExceptionGroup):
                await scope.aclose()
        assert path.exists()
        async with e.scope("build") as again:
            with pytest.raises(InvalidRequest):
                await again.scratch()
    assert list(root.iterdir()) == []


async def test_a_scope_does_not_wait_for_what_a_child_that_stays_holds(
    root: Path, tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    patient = Settings(scratch_root=root, kill_timeout=FOREVER)
    with serving(endpoint):
        async with Engine(endpoint, settings=patient) as e:
            scope = e.scope()
            path = await scope.scratch()
            child = await scope.spawn(program(REST), cwd=path, detach_ttl=100.0)
            await asyncio.wait_for(scope.aclose(), NOT_BLOCKED)
            assert path.exists()
            again = await e.attach(child.id)
            await again.detach(ttl=0.0)  # it ends, and lets go
        async with asyncio.timeout(NOT_BLOCKED):
            while any(root.iterdir()):  # until the next engine has looked
                async with engine(root) as e:
                    await e.scope().scratch()
        assert list(root.iterdir()) == []


async def test_directories_are_waited_for_all_at_once(root: Path) -> None:
    scratches = scratch.Scratches(bytes(root), b"key", FOREVER)
    held, free = [await scratches.path(scope) for scope in ("held", "free")]
    holder = os.open(f"{held}.lock", os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_SH)
    closing = asyncio.ensure_future(scratches.close())
    await asyncio.to_thread(eventually, lambda: not free.exists())
    assert held.exists()
    os.close(holder)
    await closing
    assert list(root.iterdir()) == []


async def test_s8_it_lies_in_the_runtime_directory_unless_told(
    runtime_dir: Path,
) -> None:
    async with Engine() as e, e.scope() as scope:
        path = await scope.scratch()
        assert path.parent == runtime_dir / "creche" / "scratch"
    assert not path.exists()


async def test_s8_scopes_have_directories_of_their_own(root: Path) -> None:
    async with engine(root) as e, engine(root) as other:
        async with e.scope("a") as a, e.scope("b") as b, other.scope("a") as c:
            paths = {await scope.scratch() for scope in (a, b, c)}
            assert len(paths) == 3
        assert not any(path.exists() for path in paths)


@pytest.mark.usefixtures("loose_umask")
async def test_s8_the_umask_takes_nothing_from_the_owner(root: Path) -> None:
    async with engine(root) as e, e.scope() as scope:
        path = await scope.scratch()
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


# --- what is refused -----------------------------------------------------------------


async def refused(root: Path, **options: Any) -> InvalidRequest:
    async with engine(root, **options) as e, e.scope("build") as scope:
        with pytest.raises(InvalidRequest) as caught:
            await scope.scratch()
        with pytest.raises(InvalidRequest):
            await scope.scratch()
    assert caught.value.field == "settings.scratch_root"
    return caught.value


async def test_s8_a_root_that_is_a_symbolic_link_is_refused(root: Path) -> None:
    real = root.with_name("real")
    real.mkdir(0o700)
    root.symlink_to(real)
    await refused(root)
    assert list(real.iterdir()) == []


@pytest.mark.parametrize("mode", [0o770, 0o701])
async def test_s8_a_root_that_is_open_to_others_is_refused(
    root: Path, mode: int
) -> None:
    root.mkdir()
    root.chmod(mode)
    await refused(root)
    assert list(root.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
async def test_s8_a_root_of_another_user_is_refused(root: Path) -> None:
    root.mkdir(0o700)
    os.chown(root, 65534, 65534)
    await refused(root)


async def test_s8_an_existing_directory_is_never_adopted_nor_removed(
    root: Path,
) -> None:
    async with engine(root, owner_key=b"same") as e, e.scope("build") as scope:
        path = await scope.scratch()
    path.mkdir(0o700)
    (path / "mine").touch()
    await refused(root, owner_key=b"same")
    assert [str(p.name) for p in root.iterdir()] == [path.name]
    assert (path / "mine").exists()


async def test_s8_a_link_at_its_place_is_not_followed(root: Path) -> None:
    async with engine(root, owner_key=b"same") as e, e.scope("build") as scope:
        path = await scope.scratch()
    elsewhere = root.with_name("elsewhere")
    elsewhere.mkdir()
    path.symlink_to(elsewhere)
    await refused(root, owner_key=b"same")
    assert path.is_symlink()
    assert elsewhere.exists()


async def test_a_directory_in_use_is_not_given_to_a_second_engine(root: Path) -> None:
    async with engine(root, owner_key=b"same") as e, e.scope("build") as scope:
        path = await scope.scratch()
        await refused(root, owner_key=b"same")
        assert path.exists()


@pytest.mark.parametrize("step", ["write", "identify"])
async def test_a_directory_that_cannot_be_named_is_not_left(
    step: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".lock"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    def many_files(_: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with engine(root) as e, e.scope() as scope:
        with monkeypatch.context() as patch:
            if step == "write":
                patch.setattr(os, "write", full)
            else:
                patch.setattr(scratch, "_identify", many_files)
            with pytest.raises(InvalidRequest, match="cannot be made"):
                await scope.scratch()
        assert list(root.iterdir()) == []
        assert (await scope.scratch()).is_dir()


async def test_a_closed_scope_gives_no_directory(root: Path) -> None:
    async with engine(root) as e:
        scope = e.scope()
        async with scope:
            pass
        with pytest.raises(SessionNotFound):
            await scope.scratch()


# --- how it goes ---------------------------------------------------------------------


async def test_s8_it_is_removed_when_an_exception_leaves_the_scope(root: Path) -> None:
    async with engine(root) as e:
        with pytest.raises(ZeroDivisionError):
            await broken(e.scope())
        assert list(root.iterdir()) == []


async def broken(scope: Scope) -> None:
    async with scope:
        await scope.scratch()
        raise ZeroDivisionError


async def test_s8_an_engine_that_closes_removes_those_of_its_open_scopes(
    root: Path,
) -> None:
    async with engine(root) as e:
        scope = e.scope()
        path = await scope.scratch()
        child = await scope.spawn(["sleep", "100"], cwd=path)
    assert list(root.iterdir()) == []
    assert not alive(child.pid)


async def test_s8_removal_copes_with_any_tree_and_follows_no_link(root: Path) -> None:
    outside = root.with_name("outside")
    outside.mkdir()
    (outside / "kept").touch()
    async with engine(root) as e, e.scope() as scope:
        path = await scope.scratch()
        (path / "link").symlink_to(outside)
        (path / "loop").symlink_to(path)
        (path / "shut" / "inner").mkdir(parents=True)
        (path / "shut" / "inner" / "file").touch()
        (path / "shut" / "link").symlink_to(outside)
        os.mkfifo(path / "fifo")
        (path / "shut" / "inner").chmod(0)
        (path / "shut").chmod(0o500)
        path.chmod(0o500)
    assert list(root.iterdir()) == []
    assert (outside / "kept").exists()


async def test_removal_copes_with_a_tree_of_any_depth(root: Path) -> None:
    async with engine(root) as e, e.scope() as scope:
        path = await scope.scratch()
        fd = os.open(path, os.O_DIRECTORY)
        for _ in range(5 * LEVELS):
            os.mkdir("deeper", dir_fd=fd)
            below = os.open("deeper", os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.close(fd)
    assert list(root.iterdir()) == []


async def test_a_directory_that_its_user_removed_or_replaced_is_no_trouble(
    root: Path,
) -> None:
    async with engine(root) as e:
        async with e.scope() as scope:
            (await scope.scratch()).rmdir()
            assert (await scope.run(["true"])).status.ok
        async with e.scope() as scope:
            path = await scope.scratch()
            path.rename(root / "kept")
            path.mkdir()
    assert {p.name for p in root.iterdir()} == {"kept", path.name}


async def test_what_cannot_be_removed_is_told(root: Path) -> None:
    async with engine(root) as e:
        scope = e.scope()
        path = await scope.scratch()
        path.parent.chmod(0o770)
        with pytest.raises(ExceptionGroup) as caught:
            await scope.aclose()
        (fault,) = caught.value.exceptions
        assert isinstance(fault, InvalidRequest)
        assert fault.__notes__ == ["while removing the scratch directory"]


async def test_a_cancelled_call_leaves_no_directory(root: Path) -> None:
    async with engine(root) as e, e.scope() as scope:
        asked = asyncio.ensure_future(scope.scratch())
        await asyncio.sleep(0)
        asked.cancel()
    assert list(root.iterdir()) == []


async def test_a_large_tree_does_not_block_the_loop(root: Path) -> None:
    async with engine(root) as e:
        scope = e.scope()
        path = await scope.scratch()
        for name in range(300):
            (path / str(name)).touch()
        closing = asyncio.ensure_future(scope.aclose())
        turns = 0
        while not closing.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 5
    assert list(root.iterdir()) == []


async def test_a_fork_makes_and_removes_nothing(root: Path) -> None:
    async with engine(root) as e, e.scope() as scope:
        path = await scope.scratch()
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.events._set_running_loop(None)
                asyncio.run(forked(scope))
                os._exit(7)
            except WrongProcess:
                os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert path.exists()


async def forked(scope: Any) -> None:
    await scope.aclose()


# --- crashes -------------------------------------------------------------------------


DIES = """
async def main():
    settings = actors.Settings(scratch_root=sys.argv[1])
    async with actors.Engine(sys.argv[2] or None, settings=settings) as engine:
        scope = engine.scope("build")
        path = await scope.scratch()
        (path / "file").touch()
        options = {"kill_on_drop": False} if sys.argv[2] else {}
        child = await scope.spawn(
            "echo up; read x; exec sleep 100", shell=True, stdin="null", **options
        )
        await child.poll(mode="output")
        print(path, child.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def left_by_a_dead_client(root: Path, endpoint: str = "") -> tuple[Path, int]:
    with client(DIES, str(root), endpoint) as process:
        assert process.stdout is not None
        path, pid = process.stdout.read().split()
    return Path(os.fsdecode(path)), int(pid)


async def test_s8_the_next_engine_removes_what_a_killed_client_left(
    root: Path,
) -> None:
    path, _ = left_by_a_dead_client(root)
    others = root / ("scope-" + "0" * 32)
    others.mkdir()
    async with engine(root) as e:
        await asyncio.to_thread(eventually, lambda: list(root.iterdir()) == [others])
        async with e.scope("build") as scope:
            await scope.scratch()
    assert list(root.iterdir()) == [others]
    assert not path.exists()


async def test_an_engine_that_starts_leaves_alone_what_is_in_use(root: Path) -> None:
    async with engine(root) as e, e.scope() as scope:
        path = await scope.scratch()
        async with engine(root):
            assert path.exists()
        assert path.exists()


async def test_a_root_that_is_refused_is_not_swept(root: Path) -> None:
    path, _ = left_by_a_dead_client(root)
    root.chmod(0o770)
    async with engine(root):
        pass
    assert path.exists()


async def test_s8_a_child_that_outlives_its_client_keeps_the_directory(
    root: Path, tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/shared/broker.sock"
    with serving(endpoint):
        path, child = left_by_a_dead_client(root, endpoint)
        async with engine(root):
            assert path.exists()
        end([child])
        eventually(lambda: not alive(child))
        assert path.exists()
    async with engine(root):
        eventually(lambda: not path.exists())
