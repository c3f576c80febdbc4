"""What files changed while a child ran: from both sights, bounds included."""

import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import actors
from actors import observe
from actors.observe import Sight, changes
from tests.helpers import tag
from tests.live.children import program

pytestmark = pytest.mark.live

EDITS = """
os.rename("moved", "here")
write(b"longer", os.open("edited", os.O_WRONLY))
os.unlink("gone")
os.mkdir("new")
os.symlink("/proc", "new/link")
os.close(os.open("new/file", os.O_CREAT))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "place"
    place.mkdir()
    for name in ("moved", "edited", "gone", "same"):
        (place / name).write_text(name)
    return place


def named(found: list[object]) -> list[tuple[str, str]]:
    pairs, _ = found
    assert isinstance(pairs, list)
    return [(os.path.basename(path).decode(), kind) for path, kind in pairs]


async def test_s53_a_result_tells_what_files_changed(place: Path) -> None:
    expected = [
        ("edited", "modified"),
        ("gone", "deleted"),
        ("here", "created"),
        ("moved", "deleted"),
        ("new/file", "created"),
        ("new/link", "created"),
    ]
    async with actors.Engine() as engine:
        done = await engine.run(
            program(EDITS, tag()),
            cwd=place,
            observe=[".", place / "nowhere", str(place)],
        )
        assert done.returncode == 0, done.stderr
        found = [(os.path.relpath(c.path, place), c.kind) for c in done.changes]
        assert (found, done.changes_truncated) == (expected, False)
        plain = await engine.run(["touch", "other"], cwd=place)
        assert (plain.changes, plain.changes_truncated) == ((), False)


async def test_s53_output_tells_changes_too_and_more_than_once(tmp_path: Path) -> None:
    async with actors.Engine() as engine:
        code = "os.close(os.open(sys.argv[2].encode() + b'/\\xff', os.O_CREAT))"
        child = await engine.spawn(
            program(code, tag(), str(tmp_path / "out")), observe=[tmp_path / "out"]
        )
        # A directory that is missing at first counts as empty.
        assert (await child.output()).changes == ()
        (tmp_path / "out").mkdir()
        await child.aclose()
        child = await engine.spawn(
            program(code, tag(), str(tmp_path / "out")), observe=[tmp_path / "out"]
        )
        change = actors.Change(f"{tmp_path}/out/\udcff", "created")
        for _ in range(2):
            assert (await child.output()).changes == (change,)
        await child.aclose()


def test_nothing_is_followed_and_no_directory_is_read_twice(place: Path) -> None:
    (place / "loop").symlink_to(place)
    os.mkfifo(place / "fifo")
    sight = Sight([bytes(place), bytes(place / "."), bytes(place / "same")])
    names = {os.path.basename(path) for path in sight.files}
    assert names == {b"moved", b"edited", b"gone", b"same", b"loop"}


def test_a_directory_behind_dots_keeps_its_name(place: Path) -> None:
    (place / "sub").mkdir()
    sight = Sight([bytes(place) + b"/sub/.."])
    assert bytes(place) + b"/sub/../same" in sight.files


def test_below_what_cannot_be_read_nothing_is_told(place: Path) -> None:
    before = Sight([bytes(place)])
    (place / "sub").mkdir()
    (place / "sub" / "x").touch()
    after = Sight([bytes(place)])
    assert named(changes(before, after)) == [("x", "created")]
    before.unread.add(bytes(place / "sub"))
    assert named(changes(before, after)) == []
    assert named(changes(after, before)) == []


def test_a_directory_that_cannot_be_read_is_left_out(place: Path) -> None:
    (place / "sub").mkdir()
    scandir = os.scandir

    def guarded(path: bytes) -> Any:
        if path.endswith(b"sub"):
            raise PermissionError(path)
        return scandir(path)

    with patch.object(os, "scandir", guarded):
        sight = Sight([bytes(place)])
    assert (len(sight.files), sight.unread) == (4, {bytes(place / "sub")})


def test_a_sight_that_was_cut_tells_no_creation_or_deletion(place: Path) -> None:
    with patch.object(observe, "ENTRIES", 2):
        cut = Sight([bytes(place)])
    assert len(cut.files) == 2
    whole = Sight([bytes(place)])
    for before, after in ((cut, whole), (whole, cut)):
        assert changes(before, after) == [[], True]


def test_changes_over_the_bound_are_only_said_to_exist(place: Path) -> None:
    before = Sight([bytes(place / "none")])
    with patch.object(observe, "CHANGES", 3):
        found, cut = changes(before, Sight([bytes(place)]))
    assert (len(found), cut) == (3, True)
    found, cut = changes(before, Sight([bytes(place)]))
    assert (len(found), cut) == (4, False)
