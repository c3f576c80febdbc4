"""What a record says, and what is none."""

import errno
import os
from pathlib import Path

import pytest

from broker import journal
from broker.cgroup import Cgroup
from broker.errors import SpawnFailed
from broker.journal import Journal, Record, mark_in, parse
from broker.tree import Identity, identify

MARK = b"0123456789abcdef" * 2


def text(directory: Path, worker: int) -> bytes:
    return (directory / f"w{worker}").read_bytes()


def test_a_record_says_what_was_written(tmp_path: Path) -> None:
    group = Cgroup(str(tmp_path))
    record = Journal(str(tmp_path)).open(5, group)
    idle = parse(text(tmp_path, 5))
    boot, space = journal.here()
    assert idle is not None
    assert (idle.session, idle.leader, idle.mark) == (0, None, b"")
    assert idle.worker == identify(os.getpid())
    assert (idle.boot, idle.namespace) == (boot, space)
    assert (idle.cgroup, idle.cgroup_id) == (str(tmp_path), group.inode())
    record.begin(1000, MARK)
    assert parse(text(tmp_path, 5)) == idle._replace(session=1000, mark=MARK)
    record.born(1000, MARK, os.getpid())
    born = idle._replace(session=1000, mark=MARK, leader=identify(os.getpid()))
    assert parse(text(tmp_path, 5)) == born
    record.clear()
    assert parse(text(tmp_path, 5)) == idle
    record.close()


def test_a_session_without_a_mark_and_a_worker_without_a_cgroup(tmp_path: Path) -> None:
    record = Journal(str(tmp_path)).open(5, None)
    record.begin(1000, b"")
    record.born(1000, b"", 2**22 + 1)  # there is no such process
    entry = parse(text(tmp_path, 5))
    assert entry is not None
    assert (entry.session, entry.leader, entry.mark) == (1000, None, b"")
    assert (entry.cgroup, entry.cgroup_id) == ("", 0)
    record.close()


def test_numbers_as_large_as_they_come_fit_in_their_place() -> None:
    line = journal._FIRST % (10**16 - 1, 2**22, 2**63 - 1, MARK)
    assert len(line) == len(journal.IDLE)
    entry = parse(line + b"1 2 " + b"a" * 36 + b" 4 5 -\n")
    assert entry is not None
    assert entry.leader == Identity(2**22, 2**63 - 1)


def test_every_torn_record_is_known_as_such(tmp_path: Path) -> None:
    Journal(str(tmp_path)).open(5, None).close()
    whole = text(tmp_path, 5)
    assert parse(whole) is not None
    for cut in range(len(whole)):
        assert parse(whole[:cut]) is None
    assert parse(b"x" + whole) is None
    assert parse(whole + b"x") is None


def test_what_cannot_be_written_starts_nothing(tmp_path: Path) -> None:
    record = Journal(str(tmp_path / "missing")).open(5, None)
    with pytest.raises(SpawnFailed) as failed:
        record.begin(1000, MARK)
    assert (failed.value.errno, failed.value.step) == (2, "journal")
    record.clear()
    record.close()
    read_only = Record(os.open(os.devnull, os.O_RDONLY))
    with pytest.raises(SpawnFailed) as failed:
        read_only.begin(1000, MARK)
    assert failed.value.step == "journal"
    read_only.close()


def test_what_could_not_be_written_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space is left")

    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        record = Journal(str(tmp_path)).open(5, None)
        with pytest.raises(SpawnFailed) as failed:
            record.begin(1000, MARK)
        record.clear()
    assert (failed.value.errno, failed.value.step) == (errno.ENOSPC, "journal")
    assert os.listdir("/proc/self/fd") == before
    record.begin(1001, MARK)
    entry = parse(text(tmp_path, 5))
    assert entry is not None
    assert (entry.session, entry.mark) == (1001, MARK)
    assert entry.worker == identify(os.getpid())
    record.close()


def test_records_are_removed_one_by_one_and_all_at_once(tmp_path: Path) -> None:
    records = Journal(str(tmp_path))
    for worker in (1, 2, 3):
        records.open(worker, None).close()
    (tmp_path / "lock").touch()
    records.remove(2)
    records.remove(2)
    assert sorted(os.listdir(tmp_path)) == ["lock", "w1", "w3"]
    records.clear()
    assert os.listdir(tmp_path) == ["lock"]
    Journal(str(tmp_path / "gone")).clear()


@pytest.mark.parametrize(
    ("environment", "mark"),
    [
        (b"", b""),
        (b"A=1\0", b""),
        (b"CRECHE_MARK=" + MARK + b"\0B=2\0", MARK),
        (b"A=1\0CRECHE_MARK=" + MARK, MARK),
        (b"MY_CRECHE_MARK=x\0", b""),
        (b"MY_CRECHE_MARK=x\0CRECHE_MARK=" + MARK + b"\0", MARK),
    ],
)
def test_the_mark_is_found_in_an_environment(environment: bytes, mark: bytes) -> None:
    assert mark_in(environment) == mark
