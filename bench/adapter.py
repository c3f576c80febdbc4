"""An adapter for an external harness: `peerbench.py --engine bench/adapter.py`.

That harness loads this file by its path, and registers what is decorated with its
`adapter`. Its names are imported inside `register`, so that this file is a module like
any other to everybody else.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[1])
if _ROOT not in sys.path:  # the harness knows the path of this file alone
    sys.path.append(_ROOT)

import actors  # noqa: E402 - found by the line above
from bench.rivals.creche import Creche, Session  # noqa: E402 - likewise


class Engine:
    """The harness's calls, answered by an engine of ours."""

    name = "engine"

    def __init__(self) -> None:
        self._system = Creche()

    async def setup(self) -> None:
        """Start the engine."""
        await self._system.start()

    async def teardown(self) -> None:
        """End it, and all that it has."""
        await self._system.stop()

    async def run(self, argv: Sequence[str]) -> int | None:
        """Run a command without output to its end; return its code."""
        done = await self._system.engine.run(argv, stdout="null", stderr="null")
        return done.returncode

    async def capture(self, argv: Sequence[str]) -> tuple[int | None, bytes]:
        """Run a command to its end; return its code and its output."""
        done = await self._system.engine.run(argv)
        return done.returncode, done.stdout + done.stderr

    async def open(self, argv: Sequence[str]) -> Session:
        """Start a child with stdin and stdout connected."""
        return await self._system.open(tuple(argv))

    async def roundtrip(self, session: Session, line: bytes) -> bytes:
        """Write a line; return the one that comes back."""
        return await self._system.trip(session, line)

    async def close(self, session: Session) -> None:
        """End an opened session."""
        await self._system.close(session)

    async def stream(self, argv: Sequence[str]) -> int:
        """Read all output of a command; return how much came."""
        return await self._system.drain(tuple(argv))

    async def hold(self, argv: Sequence[str]) -> actors.Child:
        """Start a child that stays."""
        return await self._system.hold(tuple(argv))

    async def kill_all(self, sessions: Sequence[actors.Child]) -> None:
        """End all that were held, by one command."""
        await self._system.kill(sessions)


def register() -> None:
    """Enter the engine into the harness that loads this file."""
    from peerbench import AsyncAdapter, adapter  # noqa: PLC0415 - see above

    adapter(type("Engine", (Engine, AsyncAdapter), {}))


if "peerbench" in sys.modules:
    register()
