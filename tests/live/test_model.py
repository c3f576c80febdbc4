"""A real engine against a model of it, in whatever order a user may think of.

The children are puppets: told over stdin to write so many bytes, or to end. They write
a pattern, so that each byte is known before it is read. The model knows of each session
what was written, what its cursor has had, who owns it, and how it has to end.
Two clients of one owner key, and a stranger, share a broker.
"""

import asyncio
import gc
import sys
import warnings
from collections.abc import Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    rule,
    run_state_machine_as_test,
)

import actors
from tests.helpers import FOREVER, NOT_BLOCKED, alive, eventually
from tests.parts import serving

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

STEPS = 30
CLIENTS = ("one", "two")
STREAMS = ("stdout", "stderr")
PATTERN = b"abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNO"  # 51: no power of two

PUPPET = f"""
import os, signal, sys
signal.alarm({FOREVER})
pattern = {PATTERN!r}
written = {{1: 0, 2: 0}}

def write(fd, count):
    at = written[fd] % len(pattern)
    data = (pattern * (count // len(pattern) + 2))[at : at + count]
    written[fd] += count
    while data:
        data = data[os.write(fd, data):]

if os.isatty(0):
    import termios
    mode = termios.tcgetattr(0)
    mode[1] &= ~termios.OPOST
    mode[3] &= ~termios.ECHO
    termios.tcsetattr(0, termios.TCSANOW, mode)
write(1, 1)
for line in sys.stdin:
    what, number = line.split()
    if what == "end":
        os._exit(int(number))
    write({{"stdout": 1, "stderr": 2}}[what], int(number))
os._exit(0)
"""

POLICIES = (
    actors.OutputPolicy.tail(100),
    actors.OutputPolicy.tail(1_000_000),
    actors.OutputPolicy.head_tail(200),
    actors.OutputPolicy.block(1_000_000),
)


@dataclass(eq=False)
class Modelled:
    """What has to be true of one session.

    Attributes:
        owner: the client that owns it, None while it is detached.
        written: bytes written to each stream.
        polled: bytes that the handle's poll cursor has passed.
        ended: (code, signal, cause), None while it runs.
        stays: whether it outlives its owner.
    """

    id: int
    pid: int
    tty: bool
    policy: actors.OutputPolicy
    stays: bool
    owner: str | None
    child: Any
    written: dict[str, int] = field(default_factory=lambda: {"stdout": 1, "stderr": 0})
    polled: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))
    ended: tuple[int | None, int | None, str] | None = None

    @property
    def lossless(self) -> bool:
        """Whether nothing that it may write can be dropped."""
        return self.policy.size >= 1_000_000


def pattern(start: int, stop: int) -> bytes:
    at = start % len(PATTERN)
    count = stop - start
    return (PATTERN * (count // len(PATTERN) + 2))[at : at + count]


class Machine(RuleBasedStateMachine):
    """The rules by which the engine is driven."""

    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.loop = asyncio.new_event_loop()
        self.engines: dict[str, actors.Engine] = {}
        self.pids: set[int] = set()

    def do(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run one step to its end; nothing may block."""

        async def bounded() -> Any:
            async with asyncio.timeout(NOT_BLOCKED):
                return await coroutine

        return self.loop.run_until_complete(bounded())

    @initialize()
    def start(self) -> None:
        place = self.stack.enter_context(TemporaryDirectory())
        endpoint = f"ipc://{place}/broker.sock"
        self.stack.enter_context(serving(endpoint))
        for name in CLIENTS:
            self.engines[name] = actors.Engine(endpoint, owner_key=b"friends")
        self.engines["stranger"] = actors.Engine(endpoint, owner_key=b"stranger")
        for engine in self.engines.values():
            self.do(engine.__aenter__())

    def teardown(self) -> None:
        try:
            for engine in self.engines.values():
                self.do(engine.aclose())
        finally:
            self.stack.close()
            self.loop.close()
        eventually(lambda: not [pid for pid in self.pids if alive(pid)])

    # -- rules ------------------------------------------------------------------

    @rule(
        target=sessions,
        name=st.sampled_from(CLIENTS),
        tty=st.booleans(),
        policy=st.sampled_from(POLICIES),
        stays=st.booleans(),
    )
    def spawn(
        self, name: str, tty: bool, policy: actors.OutputPolicy, stays: bool
    ) -> Modelled:
        options: dict[str, Any] = {"tty": True} if tty else {"stdin": "pipe"}
        options |= {"retention": policy, "detach_ttl": 60.0 if stays else None}
        argv = [sys.executable, "-S", "-c", PUPPET]
        child = self.do(self.engines[name].spawn(argv, **options))
        self.pids.add(child.pid)
        session = Modelled(child.id, child.pid, tty, policy, stays, name, child)
        self.settle(session)
        return session

    @rule(
        session=sessions,
        stream=st.sampled_from(STREAMS),
        count=st.sampled_from((1, 7, 150, 4000, 70_000)),
    )
    def write(self, session: Modelled, stream: str, count: int) -> None:
        if session.owner is None:
            return
        stream = "stdout" if session.tty else stream  # a terminal is one stream
        if session.ended:
            with pytest.raises(actors.StdinUnavailable):
                self.do(session.child.write(f"{stream} {count}\n"))
            return
        self.do(session.child.write(f"{stream} {count}\n"))
        session.written[stream] += count
        self.settle(session)

    @rule(session=sessions, code=st.sampled_from((0, 1, 7, 255)))
    def end(self, session: Modelled, code: int) -> None:
        if session.owner is None or session.ended:
            return
        self.do(session.child.write(f"end {code}\n"))
        self.ends(session, (code, None, "exited"))

    @rule(session=sessions)
    def close_stdin(self, session: Modelled) -> None:
        if session.owner is None:
            return
        self.do(session.child.close_stdin())
        if not session.ended:
            self.ends(session, (0, None, "exited"))

    @rule(session=sessions)
    def kill(self, session: Modelled) -> None:
        if session.owner is None:
            return
        receipt = self.do(session.child.kill())
        assert receipt.survivors == ()
        assert not alive(session.pid)
        if not session.ended:
            self.ends(session, (None, 9, "killed"))

    @rule(session=sessions, limit=st.sampled_from((None, 1, 100)))
    def poll(self, session: Modelled, limit: int | None) -> None:
        if session.owner is None:
            return
        result = self.do(session.child.poll(wait=0, max_bytes=limit))
        got = {stream: getattr(result, stream) for stream in STREAMS}
        assert limit is None or sum(map(len, got.values())) <= limit
        if limit is None or not result.more:
            missing = result.dropped_bytes
            for stream, data in got.items():
                missing -= session.written[stream] - session.polled[stream] - len(data)
                if session.policy.kind != "head_tail":
                    end = session.written[stream]
                    assert data == pattern(end - len(data), end)
            assert missing == 0  # since its start = delivered + missed
            session.polled = dict(session.written)
            assert result.done is (session.ended is not None)
        else:
            self.catch_up(session)
        assert not session.lossless or result.dropped_bytes == 0
        assert (result.status is not None) is (session.ended is not None)

    @rule(session=sessions)
    def read_again(self, session: Modelled) -> None:
        """Another reader, from the oldest byte, takes nothing from anybody."""
        if session.owner is not None:
            for stream in STREAMS[: 1 if session.tty else 2]:
                self.do(self.read_all(session, stream))

    async def read_all(self, session: Modelled, stream: str) -> None:
        at = missed = 0
        reader = session.child.reader(stream)
        while at < session.written[stream]:
            piece = await reader.read(wait=5)
            assert piece.offset == at + piece.gap
            at, missed = piece.offset + len(piece.data), missed + piece.gap
            assert piece.data == pattern(piece.offset, at)
        await reader.aclose()
        assert not session.lossless or missed == 0

    @rule(session=sessions, rows=st.sampled_from((1, 40, 65535)))
    def resize(self, session: Modelled, rows: int) -> None:
        if session.owner is None:
            return
        if not session.tty:
            with pytest.raises(actors.NotATerminal):
                self.do(session.child.resize(rows, 80))
            return
        self.do(session.child.resize(rows, 80))
        if not session.ended:
            snapshot = self.do(session.child.snapshot())
            assert snapshot.tty == actors.TtySize(rows, 80)

    @rule(session=sessions)
    def detach(self, session: Modelled) -> None:
        if session.owner is None:
            return
        self.do(session.child.detach(ttl=60.0))
        session.owner, session.child = None, None

    @rule(session=sessions, name=st.sampled_from(CLIENTS), steal=st.booleans())
    def attach(self, session: Modelled, name: str, steal: bool) -> None:
        engine, before = self.engines[name], session.child
        if session.owner is not None and session.owner != name and not steal:
            with pytest.raises(actors.SessionOwned):
                self.do(engine.attach(session.id))
            return
        if session.owner == name:
            return
        session.child = self.do(engine.attach(session.id, steal=steal))
        if before is not None:
            self.do(self.robbed(before))
        session.owner = name
        session.polled = dict.fromkeys(STREAMS, 0)

    async def robbed(self, child: actors.Child) -> None:
        """Wait until the one that was robbed has heard of it."""
        while True:
            try:
                await child.poll(wait=0)
            except actors.SessionOwned:
                return

    @rule(session=sessions)
    def ask_as_a_stranger(self, session: Modelled) -> None:
        with pytest.raises(actors.SessionNotFound):
            self.do(self.engines["stranger"].attach(session.id, steal=True))
        (answer,) = self.do(self.engines["stranger"].kill([session.id]))
        assert isinstance(answer, actors.SessionNotFound)
        assert self.do(self.engines["stranger"].children()) == []

    @rule(target=sessions, session=consumes(sessions))
    def close(self, session: Modelled) -> Any:
        if session.owner is None:
            return session
        self.do(session.child.aclose())
        return self.left(session)

    @rule(target=sessions, session=consumes(sessions))
    def drop(self, session: Modelled) -> Any:
        """Collect the last handle."""
        if session.owner is None:
            return session
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            session.child = None
            gc.collect()
        self.do(asyncio.sleep(0))  # the collected handle is dropped by the loop
        return self.left(session)

    def left(self, session: Modelled) -> Any:
        """What has lost its owner stays for the next one, or is gone for good."""
        owner, session.owner, session.child = session.owner, None, None
        assert owner is not None
        self.do(self.engines[owner].info())  # the broker has heard of it, too
        if session.stays:
            return session
        eventually(lambda: not alive(session.pid))
        for name in CLIENTS:
            with pytest.raises(actors.SessionNotFound):
                self.do(self.engines[name].attach(session.id))
        return multiple()

    # -- what has to hold -------------------------------------------------------

    def settle(self, session: Modelled) -> None:
        """Wait until everything written is in the log, and check the law."""

        async def until_logged() -> None:
            while True:
                stats = await session.child.stats()
                found = {"stdout": stats.stdout, "stderr": stats.stderr}
                for counts in filter(None, found.values()):
                    assert counts.produced == counts.retained + counts.dropped
                made = {s: c.produced if c else 0 for s, c in found.items()}
                if made == session.written:
                    return
                await asyncio.sleep(0.002)

        self.do(until_logged())

    def ends(self, session: Modelled, how: tuple[int | None, int | None, str]) -> None:
        status = self.do(session.child.wait())
        assert (status.code, status.signal, status.cause) == how
        assert self.do(session.child.wait()) == status
        session.ended = how
        self.settle(session)

    def catch_up(self, session: Modelled) -> None:
        """Follow a poll that was cut short with whole ones."""
        self.do(session.child.poll(wait=0))
        session.polled = dict(session.written)


def test_an_engine_does_what_its_model_does(request: pytest.FixtureRequest) -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=request.config.getoption("--examples"),
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            # Each try takes seconds: a failure is told as it was found.
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        ),
    )
