"""Both faces under one test: the blocking one made to look like the async one.

A test takes the fixture `opened` and says `async with opened(...) as engine:`. It runs
once with `actors.Engine` itself, and once with `actors.blocking.Engine` behind the
adapter of this module: every call runs in a thread of its own, and cancelling it
interrupts that thread as Ctrl-C does a main thread.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from actors import Engine, blocking

PLAIN = {"scope", "events", "reader", "map", "pause", "resume"}
"""Methods that the async face answers at once."""
WRAPPED = tuple(
    value
    for name in blocking.__all__
    if isinstance(value := getattr(blocking, name), type)
)
_calls = threading.local()


class Interruption:
    """Lets another thread raise KeyboardInterrupt in a call that waits."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        """The call is in the engine's loop, behind those before it, or has ended."""
        self.wake = threading.Event()
        self.wanted = False

    def interrupt(self) -> None:
        self.wanted = True
        self.wake.set()

    def wait(self, outcome: "concurrent.futures.Future[Any]") -> None:
        self.asked.set()
        outcome.add_done_callback(lambda _: self.wake.set())
        while not outcome.done() and not self.wanted:
            self.wake.wait()
            self.wake.clear()
        if self.wanted:
            self.wanted = False
            raise KeyboardInterrupt


def wait_for(outcome: "concurrent.futures.Future[Any]") -> None:
    """Wait as `portal.wait_for` does, but let `Interruption` raise."""
    interruption = getattr(_calls, "interruption", None)
    if interruption is None:
        concurrent.futures.wait((outcome,))
    else:
        interruption.wait(outcome)


async def in_thread(function: Callable[[], Any]) -> Any:
    """Call `function` in a thread of its own; a cancellation interrupts it.

    Calls reach the engine in the order in which they are made, as those of tasks do.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    interruption = Interruption()

    def settle(result: Any, error: BaseException | None) -> None:
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def work() -> None:
        _calls.interruption = interruption
        result: Any = None
        error: BaseException | None = None
        try:
            result = function()
        except StopIteration:
            error = StopAsyncIteration()
        except KeyboardInterrupt:
            error = InterruptedError()
        except BaseException as raised:  # it is the test's
            error = raised
        interruption.asked.set()
        loop.call_soon_threadsafe(settle, result, error)

    thread = threading.Thread(target=work)
    thread.start()
    interruption.asked.wait()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        interruption.interrupt()
        with suppress(InterruptedError):
            await done
        raise
    finally:
        thread.join()


class Threaded:
    """An object of the blocking face that answers as one of the async face."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value) or isinstance(value, type):
            return value
        if name in PLAIN:
            return lambda *args, **options: self._plain(value, args, options)
        return lambda *args, **options: self._call(value, args, options)

    def __repr__(self) -> str:
        return repr(self._inner)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Enter and leave a pause of a scope, as its async twin does, at once."""
        block = self._inner.paused()
        self._plain(block.__enter__)
        try:
            yield
        finally:
            self._plain(block.__exit__, (None, None, None))

    async def _call(self, method: Any, args: Any, options: Any) -> Any:
        options, watches = _with_threading_events(options)
        try:
            return _wrapped(await in_thread(lambda: method(*args, **options)))
        finally:
            for watch in watches:
                watch.cancel()

    def _plain(self, method: Any, args: Any = (), given: Any = None) -> Any:
        options, _ = _with_threading_events(given or {})
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            return _wrapped(executor.submit(method, *args, **options).result())

    async def __aenter__(self) -> Self:
        await in_thread(self._inner.__enter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        await in_thread(lambda: self._inner.__exit__(*error))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await in_thread(self._inner.__next__)


def _wrapped(result: Any) -> Any:
    return Threaded(result) if isinstance(result, WRAPPED) else result


def _with_threading_events(
    options: dict[str, Any],
) -> tuple[dict[str, Any], list["asyncio.Task[None]"]]:
    """Return options with each asyncio.Event replaced, and what sets the others."""
    given, watches = dict(options), []
    for name, value in options.items():
        if isinstance(value, asyncio.Event):
            given[name] = threading.Event()
            watches.append(asyncio.ensure_future(_pass_on(value, given[name])))
    return given, watches


async def _pass_on(source: asyncio.Event, target: threading.Event) -> None:
    await source.wait()
    target.set()


def async_face(*args: Any, **options: Any) -> Any:
    """Return an async engine, to be entered."""
    return Engine(*args, **options)


def blocking_face(*args: Any, **options: Any) -> Any:
    """Return a blocking engine that looks async, to be entered."""
    return Threaded(blocking.Engine(*args, **options))


FACES = {"async": async_face, "blocking": blocking_face}
