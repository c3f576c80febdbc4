"""Where this package lies, so that its processes find it from any directory."""

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
"""The directory that holds this package and what it measures."""


def environment() -> dict[str, str]:
    """Return our environment, in which Python finds this package."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(ROOT), *(os.path.abspath(path) for path in given if path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
