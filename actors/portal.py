"""One thread with one event loop, and the way into it for every other thread.

A call turns into a task of that loop; its caller waits for the outcome. What interrupts
the caller, such as a KeyboardInterrupt, cancels the task and is raised once that has
ended, so that nothing goes on unseen; a second interruption goes through at once. A
result that arrived at that very moment is handed to the call's `undo`.

::

    opened ──stop──▶ stopping ──the engine closed, every task ended──▶ stopped
      └────collected, or the interpreter ends: the same, and a ResourceWarning──▶

A forked copy has no such thread: whatever it calls raises `WrongProcess`, and its exit
and its collector leave the original's engine alone.
"""

import asyncio
import atexit
import concurrent.futures
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeVar

from broker import errors

EXIT_PATIENCE: Final = 5.0
"""Seconds that the end of the interpreter waits for an engine nobody closed."""
LOOK: Final = 0.02
"""Seconds between two looks at a `threading.Event`, which calls nobody back."""

T = TypeVar("T")
Call = Callable[[], Coroutine[Any, Any, T]]
Known = weakref.WeakKeyDictionary[Future[Any], asyncio.Future[None]]
"""Futures of other threads that a loop has asked, and what they settle in it."""


class Closable(Protocol):
    """What lives in the loop, and is closed before it stops."""

    async def aclose(self) -> None:
        """Close it; harmless to repeat."""


class Portal:
    """An event loop in a thread of its own, in which `resident` lives.

    Everything that needs the loop holds the portal: once nothing does, it stops.

    Attributes:
        known: for `settled`, in the loop alone; what waits there holds no portal.
    """

    def __init__(self, resident: Closable) -> None:
        check_context()
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._lock = threading.Lock()
        self._stopping = False
        self.known: Known = weakref.WeakKeyDictionary()
        self._thread = threading.Thread(
            target=_serve,
            args=(self._loop, self._stop, resident),
            name="creche-engine",
            daemon=True,  # the end of the interpreter does not wait for it
        )
        self._thread.start()
        self._finalizer = weakref.finalize(
            self, _abandoned, self._loop, self._stop, self._process
        )
        self._finalizer.atexit = False
        _opened.add(self)

    def here(self) -> bool:
        """Return whether this process has the thread: a forked copy has not."""
        return os.getpid() == self._process

    @property
    def stopping(self) -> bool:
        """Whether no call is taken any more."""
        return self._stopping

    def call(self, call: Call[T], undo: Callable[[T], object] | None = None) -> T:
        """Run a coroutine in the loop, and return what it returns.

        Args:
            call: makes the coroutine, in the loop.
            undo: gets the result when the caller was interrupted just as it came.

        Raises:
            WrongProcess: this is a forked copy.
            RuntimeContext: an event loop runs in this thread; waiting would stop it.
            BrokerLost: the engine is closed.
        """
        task = _Task(call)
        try:
            if not self._run(task, undo):
                raise errors.BrokerLost("the engine is closed")
            return task.outcome.result()
        finally:
            del task  # an error's traceback leads to it, and it to the error

    def _run(self, task: "_Task[T]", undo: Callable[[T], object] | None) -> bool:
        """Wait until a task has ended; return False if the loop takes none any more."""
        try:
            if not self._posted(task.start):
                return False
            wait_for(task.outcome)
        except errors.EngineError:  # it was refused
            raise
        except BaseException:
            self._interrupt(task, undo)
            raise
        return True

    def _posted(self, action: Callable[[], object]) -> bool:
        """Have the loop run `action`; return False if it takes none any more."""
        if not self.here():
            raise errors.WrongProcess
        check_context()
        with self._lock:  # what is posted before the stop is still run
            if not self._stopping:
                self._loop.call_soon_threadsafe(action)
            return not self._stopping

    def _interrupt(self, task: "_Task[T]", undo: Callable[[T], object] | None) -> None:
        try:
            self._loop.call_soon_threadsafe(task.cancel)
        except RuntimeError:  # the loop is closed: so the task has ended, if it began
            return
        wait_for(task.outcome)
        if undo is not None and task.outcome.exception() is None:
            undo(task.outcome.result())

    def plain(
        self, function: Callable[[], T], undo: Callable[[T], object] | None = None
    ) -> T:
        """Run a function in the loop, and return what it returns."""

        async def call() -> T:
            return function()

        return self.call(call, undo)

    def close(self, aclose: Call[T], ended: T) -> T:
        """Run a coroutine that ends a part of the resident, and return what it returns.

        Or `ended`, when the resident has ended and that part with it.

        Raises:
            WrongProcess, RuntimeContext: as for `call`.
        """
        if self._stopping and self.here():
            return ended
        task = _Task(aclose)
        try:
            return task.outcome.result() if self._run(task, None) else ended
        finally:
            del task  # as in `call`

    def stop(self) -> None:
        """Close the resident, end every task, and wait for it; harmless to repeat."""
        with self._lock:
            if not self._stopping:
                self._stopping = True
                self._finalizer.detach()
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def stop_at_exit(self) -> None:
        """End what nobody closed, as the interpreter ends."""
        if self._stopping or not self.here():
            return
        self._finalizer.detach()  # finalizers do nothing any more at this time
        try:
            _abandoned(self._loop, self._stop, self._process)
        finally:  # the warning may be made an error
            self._thread.join(EXIT_PATIENCE)


class _Carried(Exception):
    """Carries a KeyboardInterrupt or SystemExit, which is its cause, out of a task."""


async def _carried(call: Call[T]) -> T:
    """Return what a call does; what would end the loop as well is for its caller."""
    try:
        return await call()
    except (KeyboardInterrupt, SystemExit) as raised:
        raise _Carried from raised


class _Task(Generic[T]):
    """A coroutine on its way through the loop; `outcome` is seen by other threads."""

    def __init__(self, call: Call[T]) -> None:
        self.outcome: Future[T] = Future()
        self._call: Call[T] | None = call
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        assert self._call is not None
        self._task = asyncio.ensure_future(_carried(self._call))
        self._call = None
        self._task.add_done_callback(self._settle)

    def _settle(self, task: "asyncio.Task[T]") -> None:
        if task.cancelled():
            # An interrupted caller raises what interrupted it instead.
            self.outcome.set_exception(errors.BrokerLost("the engine is closed"))
        elif error := task.exception():
            ours = isinstance(error, _Carried)
            self.outcome.set_exception((ours and error.__cause__) or error)
        else:
            self.outcome.set_result(task.result())

    def cancel(self) -> None:
        """Cancel it behind its first step: what goes on by itself has begun by then."""
        if self._task is None:  # its caller was interrupted before it was posted
            self.outcome.set_exception(errors.BrokerLost("it never began"))
        else:
            self._task.get_loop().call_soon(self._task.cancel)


def wait_for(outcome: "Future[Any]") -> None:
    """Wait in the calling thread; a signal's handler may raise out of it."""
    concurrent.futures.wait((outcome,))


def check_context() -> None:
    """Refuse to block a thread in which an event loop runs.

    Raises:
        RuntimeContext: one does.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise errors.RuntimeContext(
        "a blocking call would stop this event loop: use actors.Engine in it"
    )


async def fired(event: threading.Event) -> None:
    """Return once a `threading.Event` is set."""
    while not event.is_set():  # noqa: ASYNC110 - there is no other way to hear of it
        await asyncio.sleep(LOOK)


async def settled(future: "Future[Any]", known: Known) -> None:
    """Return once a future of other threads is done.

    Whatever asks one stays in it until it is done: the loop does so once.
    """
    if future not in known:
        known[future] = _asked(future)
    # `wait` leaves it alone when it is cancelled itself.
    await asyncio.wait([known[future]])


def _asked(future: "Future[Any]") -> "asyncio.Future[None]":
    """Return what is settled in this loop when a future of other threads is done."""
    ours = asyncio.get_running_loop().create_future()
    found = weakref.ref(ours)  # which goes with its loop, and may do so before

    def tell(_: object) -> None:
        ours = found()
        if ours is not None:
            with suppress(RuntimeError):  # its loop is closed
                ours.get_loop().call_soon_threadsafe(ours.set_result, None)

    future.add_done_callback(tell)
    return ours


def _serve(
    loop: asyncio.AbstractEventLoop, stop: asyncio.Event, resident: Closable
) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(_live(stop, resident))


async def _live(stop: asyncio.Event, resident: Closable) -> None:
    await stop.wait()
    await resident.aclose()


def _abandoned(
    loop: asyncio.AbstractEventLoop, stop: asyncio.Event, process: int
) -> None:
    """Stop a loop that nothing can reach any more; any thread, any moment."""
    if os.getpid() != process:
        return
    loop.call_soon_threadsafe(stop.set)
    warnings.warn(
        "an engine was never closed: its children end", ResourceWarning, stacklevel=2
    )


_opened: "weakref.WeakSet[Portal]" = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for portal in list(_opened):
        portal.stop_at_exit()
