"""The process of an MCP server at the stdin and stdout of its client.

The SDK takes 650 ms to import and the engine 150 to start, so they do that side by
side.

=========================  ========================================================
the client                 what follows
=========================  ========================================================
closes our stdin, or ends  calls are cancelled, every session ends, then we do
sends SIGTERM or SIGINT    we end at once, and the engine ends every session
sends SIGKILL              the same
=========================  ========================================================
"""

import asyncio
import signal
from importlib import import_module
from typing import Final

import actors
from actors.agents import tools
from actors.agents.toolbox import SETTINGS

SERVER: Final = "actors.agents.server"


def run(endpoint: str | None) -> None:
    """Serve the client at our stdin and stdout until it goes.

    Args:
        endpoint: of a running broker; None starts a private one.

    Raises:
        EngineError: there is no engine to be had.
    """
    # Python would raise in the middle of a call, and wait for a thread that reads.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(_run(endpoint))


async def _run(endpoint: str | None) -> None:
    loading = asyncio.ensure_future(asyncio.to_thread(import_module, SERVER))
    async with actors.Engine(endpoint, settings=SETTINGS) as engine:
        server = await loading
        async with engine.scope(capacity=tools.SESSIONS) as scope:
            await server.serve(scope)
