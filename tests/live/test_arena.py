"""Much output: what lies in the arena, and what becomes of it."""

import asyncio
import errno
import fcntl
import hashlib
import mmap
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import actors
from actors import Chunk, Gap, OutputPolicy, mapped, streams
from actors.arena import BLOCK, Arena
from actors.mapped import Mapped
from tests.helpers import eventually, parent, tag
from tests.live.children import MIB, Opened, program

pytestmark = pytest.mark.live

SIZE = 24 * MIB
COUNTS = """
for number in range(int(sys.argv[2])):
    write(b"%08d" % number * 131072)
"""
"""Writes as many MiB, each full of its number."""
LASTS = COUNTS + "sys.stdin.buffer.read()"
LASTS_ON_CUE = LASTS.replace("    write", "    number > 1 or os.read(0, 1)\n    write")
"""It waits for a byte before each of the first two."""

POLICIES = [
    OutputPolicy("tail", 2 * MIB),
    OutputPolicy("head_tail", 3 * MIB),
    OutputPolicy("block", 4 * MIB),
]


def counts(size: int = SIZE, body: str = COUNTS) -> list[str]:
    return program(body, tag(), str(size // MIB))


WHOLE = b"".join(b"%08d" % number * 131072 for number in range(SIZE // MIB))


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Return the lengths of what was copied out of arenas; afterwards none is open."""
    lengths: list[int] = []
    copy = Mapped.copy

    def counted(self: Mapped, place: int, length: int, sequence: int) -> bytes | None:
        lengths.append(length)
        return copy(self, place, length, sequence)

    monkeypatch.setattr(Mapped, "copy", counted)
    yield lengths
    assert len(Mapped._open) == 0


async def followed(events: Any) -> tuple[int, int]:
    """Return how many bytes came, each where it belongs, and how many were missed."""
    seen = missed = 0
    async for event in events:
        if isinstance(event, Chunk):
            assert event.offset == seen + missed
            stop = event.offset + len(event.data)
            assert event.data == WHOLE[event.offset : stop]
            assert len(event.data) <= 65536
            seen += len(event.data)
        elif isinstance(event, Gap):
            assert event.start == seen + missed
            missed += event.end - event.start
    return seen, missed


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: str(policy.kind))
async def test_a_reader_gets_every_byte_or_is_told_that_it_missed_it(
    opened: Opened, policy: OutputPolicy, copied: list[int]
) -> None:
    async with opened() as engine:
        child = await engine.spawn(counts(), retention=policy)
        seen, missed = await followed(child.events())
        assert seen + missed == SIZE
        assert missed == 0 or policy.kind != "block"
        assert any(copied)
        await child.aclose()


async def test_two_readers_at_once_get_the_same(copied: list[int]) -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(counts(), retention=OutputPolicy("block", 4 * MIB))
        both = await asyncio.gather(followed(child.events()), followed(child.events()))
        assert set(both) == {(SIZE, 0)}
        assert any(copied)
        await child.aclose()


async def test_a_late_reader_gets_what_is_kept(copied: list[int]) -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(counts(), retention=OutputPolicy("tail", 2 * MIB))
        await child.wait()
        assert await followed(child.events()) == (2 * MIB, SIZE - 2 * MIB)
        assert any(copied)
        await child.aclose()


async def test_a_reader_that_stands_still_gets_its_window_and_costs_no_more(
    copied: list[int],
) -> None:
    window = 4 * MIB
    async with actors.Engine() as engine:
        # It waits, or the reader would miss what came before it.
        child = await engine.spawn(counts(body=LASTS_ON_CUE), stdin="pipe")
        events = child.events(window=window)
        await child.write(b"!")
        first = await anext(events)
        while (await child.stats()).stdout.produced < MIB:
            pass
        await child.write(b"!")  # behind the word that this client maps the arena
        while (await child.stats()).stdout.produced < SIZE:
            pass
        assert shared_memory(parent(child.pid)) <= window + 2 * MIB + 3 * BLOCK
        await child.close_stdin()
        assert isinstance(first, Chunk)
        rest = await followed(following(first, events))
        assert sum(rest) == SIZE
        assert rest[0] >= window
        assert sum(copied) >= window
        await child.aclose()


async def following(first: Any, events: Any) -> Any:
    yield first
    async for event in events:
        yield event


def shared_memory(pid: int) -> int:
    """Return the bytes of files in memory that a process uses."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [one for one in status.splitlines() if one.startswith("RssShmem")]
    return int(line.split()[1]) * 1024


async def test_output_is_whole_and_its_memory_goes_with_it(
    opened: Opened, copied: list[int]
) -> None:
    async with opened() as engine:
        done = await engine.run(counts())
        assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(WHOLE).digest()
        assert sum(copied) > SIZE // 2
        kept = OutputPolicy("block", MIB)
        child = await engine.spawn(counts(body=LASTS), stdin="pipe", retention=kept)
        worker = parent(child.pid)
        assert (await child.output()).stdout == WHOLE
        assert "memfd:creche-log" in files(worker)
        await child.aclose()
        eventually(lambda: "memfd:creche-log" not in files(worker))


def files(pid: int) -> str:
    """Return what a process has open, in one text."""
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(fd))
        except FileNotFoundError:
            continue
    return " ".join(found)


async def test_what_was_sent_survives_its_worker(copied: list[int]) -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(counts(body=LASTS), stdin="pipe")
        events = child.events()
        async for _ in events:
            if copied:
                break
        os.kill(parent(child.pid), signal.SIGKILL)  # noqa: TID251 - that is the test
        status = await child.wait()
        assert status.cause == "worker-lost"
        kinds = []
        async for event in events:
            kinds.append(type(event).__name__)
            if isinstance(event, Chunk):
                stop = event.offset + len(event.data)
                assert event.data == WHOLE[event.offset : stop]
        assert kinds[-4:] == ["Exited", "StreamError", "StreamError", "Closed"]
        await child.aclose()


def no_map(_: Any) -> Mapped:
    raise OSError(errno.EACCES, "not here")


async def test_where_nothing_can_be_mapped_the_bytes_travel(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, copied: list[int]
) -> None:
    monkeypatch.setattr(streams, "Mapped", no_map)
    async with opened() as engine:
        child = await engine.spawn(counts(), retention=OutputPolicy("block", 4 * MIB))
        assert await followed(child.events()) == (SIZE, 0)
        await child.aclose()
        assert (await engine.run(counts())).stdout == WHOLE
    assert copied == []


async def test_only_so_many_arenas_are_open_at_once(
    monkeypatch: pytest.MonkeyPatch, copied: list[int]
) -> None:
    monkeypatch.setattr(mapped, "MOST_OPEN", 0)
    async with actors.Engine() as engine:
        assert (await engine.run(counts())).stdout == WHOLE
    assert copied == []


async def test_a_stream_that_is_left_early_lets_the_arena_go(
    copied: list[int],
) -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(counts(body=LASTS), stdin="pipe")
        async with child.events() as events:
            async for _ in events:
                if copied:
                    break
            assert len(Mapped._open) == 1
        assert len(Mapped._open) == 0
        await child.aclose()


# The file itself


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(BLOCK)
    yield made
    made.close()
    made.close()


def filled(arena: Arena, text: bytes, sequence: int) -> int:
    """Put `text` into a new block; return its place."""
    taken = arena.take(sequence)
    assert taken is not None
    block, place = taken
    block[: len(text)] = text
    return place


def test_a_copy_is_what_was_written(arena: Arena) -> None:
    places = [filled(arena, b"one", 100), filled(arena, b"two", 200)]
    seen = Mapped(arena.address)
    assert seen.copy(places[1], 3, 200) == b"two"
    assert seen.copy(places[0] + 1, 2, 101) == b"ne"
    seen.close()
    seen.close()


def test_a_copy_of_what_was_replaced_is_none(arena: Arena) -> None:
    place = filled(arena, b"one", 100)
    seen = Mapped(arena.address)
    arena.give_back(place)
    assert filled(arena, b"two", 200) == place
    assert seen.copy(place, 3, 100) is None
    assert seen.copy(place, 3, 200) == b"two"
    seen.close()


def test_nobody_else_can_write_or_cut_it(arena: Arena) -> None:
    filled(arena, b"one", 0)
    assert arena.address is not None
    fd = os.open(f"/proc/self/fd/{arena.address['fd']}", os.O_RDWR)
    try:
        for act in (
            lambda: os.pwrite(fd, b"x", BLOCK),
            lambda: os.ftruncate(fd, 0),
            lambda: mmap.mmap(fd, BLOCK),
        ):
            with pytest.raises(PermissionError):
                act()
    finally:
        os.close(fd)


def test_an_arena_ends_with_its_size(arena: Arena) -> None:
    taken = 0
    while arena.take(0) is not None:
        taken += 1
    assert taken == 33
    arena.give_back(5 * BLOCK)
    assert filled(arena, b"again", 0) == 5 * BLOCK


@pytest.mark.parametrize("call", ["memfd_create", "ftruncate"])
def test_without_such_a_file_there_are_no_blocks(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, call, no_map)
    monkeypatch.setattr(os, call, lambda *_: no_map(None))
    assert arena.take(0) is None
    monkeypatch.undo()
    assert arena.take(0) is None
    assert arena.address is None
    assert os.listdir("/proc/self/fd") == before


def test_another_file_is_never_opened(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(arena, b"one", 0)
    assert arena.address is not None
    before = os.listdir("/proc/self/fd")
    read, write = os.pipe()
    wrong: list[dict[str, int]] = [
        {"inode": arena.address["inode"] + 1},
        {"device": arena.address["device"] + 1},
        {"fd": read},
        {"fd": 9999},
        {"pid": 2**22},
    ]
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lambda *_: pytest.fail("opened"))
        for change in wrong:
            with pytest.raises(OSError, match=r"another file|No such file"):
                Mapped({**arena.address, **change})
    os.close(read)
    os.close(write)
    assert os.listdir("/proc/self/fd") == before


def test_a_file_that_could_be_cut_is_never_mapped() -> None:
    fd = os.memfd_create("x", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, BLOCK)
        fcntl.fcntl(fd, 1033, 0x16)
        found = os.fstat(fd)
        address = {"pid": os.getpid(), "fd": fd}
        address |= {"device": found.st_dev, "inode": found.st_ino}
        with pytest.raises(OSError, match="not sealed"):
            Mapped(address)
    finally:
        os.close(fd)
