"""Where the hierarchy of cgroups is mounted, as the kernel tells it."""

from pathlib import Path

import pytest

from broker import cgroup


def test_a_path_may_have_any_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(r"41 31 0:38 /a\040b /c\011d\134040 rw - cgroup2 cgroup2 rw")
    monkeypatch.setattr(cgroup, "MOUNTS", str(table))
    assert cgroup._find_mount("") == ("/a b", "/c\td\\040")
