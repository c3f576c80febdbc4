"""Where the engines of a user live: one directory, and what lies in it by name. Pure.

Apart from `auth`, which judges these directories, because the pool is executed before
anything as large as that is imported.
"""

from collections.abc import Mapping
from typing import Final

__all__ = ["JOURNAL", "RUN_PREFIX", "SERVICES", "place", "runtime_root"]

RUN_PREFIX: Final = b"run-"
"""Names of directories of one engine, or one service, begin so."""
JOURNAL: Final = b"journal"
"""Below the root: the journals of all engines, a directory each."""
SERVICES: Final = b"services"
"""Below the root: what clients keep of their services, a directory each."""


def runtime_root(environ: Mapping[str, str], uid: int) -> bytes:
    """Return the directory below which the engines of `uid` live.

    A relative `XDG_RUNTIME_DIR` counts as none, as its specification demands.
    """
    given = environ.get("XDG_RUNTIME_DIR", "").encode("utf-8", "surrogateescape")
    if given.startswith(b"/"):
        return given.rstrip(b"/") + b"/creche"
    return b"/run/creche" if uid == 0 else b"/tmp/creche-%d" % uid


def place(name: bytes, environ: Mapping[str, str], uid: int) -> bytes:
    """Return where what is called `name` lies below that directory."""
    return runtime_root(environ, uid) + b"/" + name
