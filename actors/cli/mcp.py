"""`creche mcp`: tools for an agent."""

import fcntl
import os
from importlib.util import find_spec
from typing import Final

import click

from actors.cli import words

NEEDED: Final = (("stdin", "read", os.O_WRONLY), ("stdout", "written to", os.O_RDONLY))
"""What the client talks through: the streams in their order, and what refuses that."""


@click.command(cls=words.Verb)
@words.ENDPOINT
def mcp(endpoint: str | None) -> None:
    """Be an MCP server at stdin and stdout.

    It gives an agent six tools: exec_command runs a shell command, write_stdin talks to
    one that goes on; list_sessions, kill_session, interrupt_session and resize_session
    do what they say. Whatever they started ends with the client that started this.
    """
    if find_spec("mcp") is None:
        raise words.Trouble(
            "the tools of agents need the extra `mcp`: pip install 'mcp>=2.3,<3'"
        )
    _check_streams()
    from actors.agents import stdio  # noqa: PLC0415 - see the package's docstring

    stdio.run(endpoint or None)


def _check_streams() -> None:
    for fd, (name, what, refusing) in enumerate(NEEDED):
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == refusing:
            why = f"{name} cannot be {what}: that is where the client is to be"
            raise words.Trouble(why)
