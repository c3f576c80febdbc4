"""What the figures depend on."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any, Final

_PACKAGES: Final = ("pyzmq", "trio", "running-process", "pexpect")


def facts() -> dict[str, Any]:
    """Return what this machine is, and how busy it is."""
    return {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "architecture": platform.machine(),
        "processor": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "user": "root" if os.geteuid() == 0 else "ordinary",
        "load": list(os.getloadavg()),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def line(found: dict[str, Any]) -> str:
    """Return the facts in one line."""
    return ", ".join(
        f"{key} {value}" for key, value in found.items() if key != "packages"
    )


def _field(path: str, name: str) -> str:
    """The value of the first line that begins with a name; "" if there is none."""
    for row in Path(path).read_text().splitlines():
        if row.startswith(name):
            return row.partition(":")[2].strip()
    return ""


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"
