"""The README keeps its word."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from actors import ignition
from tests.helpers import NOT_BLOCKED

pytestmark = pytest.mark.live

TOP = Path(__file__).resolve().parents[2]
README = (TOP / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_the_example_prints_what_it_says(tmp_path: Path) -> None:
    (program,), (promised, _) = blocks("python"), blocks("text")
    script = tmp_path / "example.py"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        env=ignition.environment(),
        capture_output=True,
        text=True,
        timeout=NOT_BLOCKED,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == (promised, "", 0)


def test_continuous_integration_runs_the_second_command_and_nothing_else() -> None:
    _, second = blocks("bash")
    lines = (TOP / ".ci" / "run").read_text().splitlines()
    assert lines == [
        "#!/usr/bin/env bash",
        "set -eu",
        'cd "$(dirname "$0")/.."',
        second.strip(),
    ]
