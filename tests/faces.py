"""Both faces under one test: the blocking one made to look like the async one.

A test takes the fixture `opened` and says `async with opened(...) as engine:`. It runs
once with `actors.Engine` itself, and once with `actors.blocking.Engine` behind the
adapter of this module: every call runs in a thread of its own, and a cancelled one ends
as a KeyboardInterrupt there.
"""

from typing import Any

from actors import Engine


def async_face(**options: Any) -> Engine:
    """Return an async engine, to be entered."""
    return Engine(**options)


FACES = {"async": async_face}
