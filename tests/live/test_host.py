"""What the machine offers, and what a tree uses."""

import dataclasses
import os
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker import cgroup, host, tree

pytestmark = pytest.mark.live

WELL = host.Host(
    kernel="6.18",
    python="3.11.7",
    zmq="27.0",
    msgpack="1.1",
    psutil="6.0",
    containment="cgroup",
    subreaper=True,
    cgroup=True,
    pid_namespaces=False,
    files_soft=None,
    files_hard=None,
    pid_max=4194304,
    processes_user=None,
    processes_cgroup=None,
    memory_total=8 << 30,
    memory_available=4 << 30,
    shm_free=1 << 30,
    ptys_used=3,
    ptys_max=4096,
    pidfd=True,
    peer_pidfd=True,
    children_files=True,
    pipe_soft_limit=None,
)


def test_the_report_agrees_with_the_machine() -> None:
    found = host.report()
    assert found.kernel == os.uname().release
    assert found.files_soft == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert found.containment in {"cgroup", "subreaper"}
    assert 0 < found.memory_available <= found.memory_total
    assert found.pid_max is not None
    assert os.getpid() < found.pid_max
    assert found.zmq[0].isdecimal()
    assert found.pidfd is tree.PIDFD


def test_the_report_leaves_no_descriptor_and_no_cgroup() -> None:
    before = os.listdir("/proc/self/fd"), cgroup.own_directory()
    host.report()
    assert (os.listdir("/proc/self/fd"), cgroup.own_directory()) == before


def test_a_machine_that_offers_everything_is_not_degraded() -> None:
    assert WELL.degraded == ()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"subreaper": False}, "prctl"),
        ({"cgroup": False}, "Delegate"),
        ({"pidfd": False}, "pidfd_open"),
        ({"peer_pidfd": False}, "6.5"),
        ({"children_files": False}, "CONFIG_PROC_CHILDREN"),
        ({"files_hard": 1024}, "ulimit -Hn"),
        ({"pid_max": 301}, "pid_max"),
        ({"processes_user": 100}, "ulimit -u"),
        ({"processes_cgroup": 100}, "pids.max"),
        ({"shm_free": 0}, "/dev/shm"),
        ({"ptys_used": 4090}, "pty"),
    ],
)
def test_each_shortcoming_is_told_with_its_remedy(
    change: dict[str, Any], word: str
) -> None:
    host = dataclasses.replace(WELL, **change)
    (sentence,) = host.degraded
    assert [found.advice for found in host.capabilities if found.advice] == [sentence]
    assert word in sentence
    assert sentence.endswith(".")


def test_containment_is_what_was_tried_and_not_what_was_hoped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cgroup, "MOUNTS", os.devnull)
    assert host.report().containment == "subreaper"
    monkeypatch.setattr(tree, "can_adopt", lambda: False)
    assert host.report().containment == "pgroup"


@pytest.mark.parametrize(("refused", "can"), [((), True), ((1, 1), False)])
def test_namespaces_are_tried_in_a_process_apart(
    refused: tuple[int, ...], can: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = list(refused) or [0]
    libc = SimpleNamespace(unshare=lambda _: answers.pop(0))
    monkeypatch.setattr("ctypes.CDLL", lambda _: libc)
    assert host._can_make_pid_namespace() is can


def test_a_kernel_without_peer_pidfds_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "SO_PEERPIDFD", 9999)
    assert host.report().peer_pidfd is False


def test_what_is_absent_is_reported_as_absent(tmp_path: Path) -> None:
    assert host._version("no-such-package-anywhere") == "missing"
    assert host._free(str(tmp_path / "none")) == 0
    assert host._number(str(tmp_path / "none")) is None


def test_the_lowest_limit_of_the_cgroups_around_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "outer" / "pids.max").write_text("500\n")
    (inner / "pids.max").write_text("max\n")
    monkeypatch.setattr(cgroup, "own_directory", lambda _: str(inner))
    assert host._cgroup_pids() == 500
    (inner / "pids.max").write_text("40\n")
    assert host._cgroup_pids() == 40
