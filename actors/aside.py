"""Work that would hold up the event loop, in a thread of its own."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def aside(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Return what `work` does, in a thread that ends with it.

    The loop's own executor would stay, and be waited for as the loop ends; by a pipe
    that goes from the loop of a process as soon as a forked copy of it has ended its
    own. Such a program would never end.

    As the interpreter ends there are no new threads: then the loop is held up.
    """
    executor = ThreadPoolExecutor(1)
    try:
        try:
            call = executor.submit(work, *args, **options)
        except RuntimeError:
            return work(*args, **options)
        return await asyncio.wrap_future(call)
    finally:
        executor.shutdown(wait=False)
