"""Running a command to its end: one spawn, one capture, one result."""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final

from actors import checks
from actors.child import Child, Data, as_bytes
from actors.connection import Connection
from actors.events import Completed
from actors.record import Record
from actors.spec import Spec
from actors.streams import Capture, Taker, completed
from broker import errors
from broker.outcomes import CommandFailed, TimedOut

RUN_INPUT: Final = 1024 * 1024
"""Bytes of a run's input that travel with the spawn; more is written while it runs."""

Deadline = Callable[[float], AbstractAsyncContextManager[object]]


async def run(
    connection: Connection,
    scope: str | None,
    argv: Any,
    *,
    input: Data | None,
    timeout: float | None,
    limit: int | None,
    check: bool,
    into: Taker | None = None,
    check_open: Callable[[], None],
    deadline: Deadline,
    options: dict[str, Any],
) -> Completed:
    """Run a command to its end, for an engine or a scope; see `Engine.run`.

    `check_open` is called once the command runs, and raises if its owner closed
    meanwhile; `deadline` limits a block to the given seconds.
    """
    data = None if input is None else as_bytes("input", input)
    checks.optional(checks.seconds)("timeout", timeout)
    checks.optional(checks.whole(0))("limit", limit)
    _check_taker(into)
    done = await run_spec(
        connection,
        scope,
        _spec(argv, data, options),
        data=data,
        timeout=timeout,
        limit=limit,
        into=into,
        check_open=check_open,
        deadline=deadline,
    )
    if check:
        _check_code(done)
    return done


async def run_spec(
    connection: Connection,
    scope: str | None,
    spec: Spec,
    *,
    data: bytes | None = None,
    timeout: float | None = None,
    limit: int | None = None,
    into: Taker | None = None,
    check_open: Callable[[], None],
    deadline: Deadline = asyncio.timeout,
) -> Completed:
    """Run a spec to its end; of `data` what did not fit into the spec is written.

    Its stdin is closed after that, as nobody else can reach it.
    """
    capture = _capture(connection, spec, limit, into)
    try:
        record = await connection.start(spec, scope, capture)
    except BaseException:
        if not capture.left:
            capture.stop()
        raise
    feeding = None
    if record.tty or spec.stdin == "pipe":
        child = Child(connection, record, owned=False)
        feeding = asyncio.ensure_future(child.feed(data or b""))
        feeding.add_done_callback(capture.fed)
    try:
        check_open()
        if timeout is None:
            await capture.closed
        else:
            child = Child(connection, record, owned=False)
            grace = connection.settings.terminate_grace
            await _await_capture(child, capture, timeout, deadline, grace)
        if capture.refused is not None:
            with suppress(errors.EngineError):  # it may have ended
                child = Child(connection, record, owned=False)
                await child.kill(connection.settings.kill_timeout)
            raise capture.refused
        if record.released:
            closed = errors.SessionNotFound("its owner closed meanwhile")
            raise record.failure or closed
        return completed(record, capture, limit)
    finally:
        if feeding is not None:
            feeding.cancel()
        record.let_go(scope)
        if connection.shares(record):  # the last of the others lets go of it
            capture.leave_to(record)
        else:
            _let_go(connection, record, capture)


def _let_go(connection: Connection, record: Record, capture: Capture) -> None:
    capture.stop()
    if capture.status is None and record.stays:
        # It goes on, and what nobody takes any more would hold it back.
        connection.link.take_back(record.id, capture.request)
    if record.released:  # by its scope, or it is another handle's by now
        return
    if capture.status is None:
        connection.drop(record)  # it did not come to its end, which releases it
    else:
        connection.finish(record)


def _check_taker(into: object) -> None:
    if into is not None and (not callable(into) or inspect.iscoroutinefunction(into)):
        wanted = "is a plain function that takes a stream's name and bytes"
        raise errors.InvalidRequest("into", wanted)


def _spec(argv: Any, data: bytes | None, options: dict[str, Any]) -> Spec:
    """Return what to run; of a `Spec` nothing may be said twice."""
    if not isinstance(argv, Spec):
        return Spec(argv, **_with_input(options, data))
    if options or data is not None:
        raise errors.InvalidRequest(
            "argv", "is a Spec, which has its options and stdin"
        )
    return argv


def _with_input(options: dict[str, Any], data: bytes | None) -> dict[str, Any]:
    """Return the options of a run that is fed `data`, as far as it fits the spawn.

    A terminal is written to: it has no input that could be given whole.
    """
    if data is None or options.get("tty", False) is not False:
        return options
    if "stdin" in options:
        raise errors.InvalidRequest("input", "and stdin exclude each other")
    return {**options, "stdin": data if len(data) <= RUN_INPUT else "pipe"}


def _capture(
    connection: Connection, spec: Spec, limit: int | None, into: Taker | None
) -> Capture:
    settings, link = connection.settings, connection.link
    # What is under way stays in the log too: a wider window would fill it unnoticed.
    size = min(settings.window_bytes, (spec.retention or settings.retention).size)
    chunks = settings.window_chunks
    return Capture(link, link.number(), chunks, size, limit, into=into)


def _check_code(done: Completed) -> None:
    if done.returncode != 0:
        raise CommandFailed(
            done.returncode or 0, list(done.argv), done.stdout, done.stderr
        )


async def _await_capture(
    child: Child, capture: Capture, timeout: float, deadline: Deadline, grace: float
) -> None:
    try:
        async with deadline(timeout):
            await asyncio.shield(capture.closed)
    except TimeoutError:
        if capture.closed.done():
            return
        try:
            receipt = await child.terminate(grace)
        except errors.SessionNotFound:  # its own end was faster, or its owner's
            await capture.closed
            return
        if not receipt.survivors:  # else its end may never come
            with suppress(errors.EngineError):
                await capture.closed
        if capture.refused is not None:
            return
        raise TimedOut(
            list(child.argv),
            timeout,
            capture.output("stdout"),
            capture.output("stderr"),
        ) from None
