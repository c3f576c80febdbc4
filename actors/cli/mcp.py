"""`creche mcp`: tools for an agent."""

from importlib.util import find_spec

import click

from actors.cli import words


@click.command(cls=words.Verb)
@words.ENDPOINT
def mcp(endpoint: str | None) -> None:
    """Be an MCP server at stdin and stdout.

    It gives an agent six tools: exec_command runs a shell command, write_stdin talks to
    one that goes on; list_sessions, kill_session, interrupt_session and resize_session
    do what they say. Whatever they started ends with the client that started this.
    """
    if find_spec("mcp") is None:
        raise words.Trouble("it needs the MCP SDK: pip install 'creche[mcp]'")
    from actors.agents import stdio  # noqa: PLC0415 - see the package's docstring

    stdio.run(endpoint or None)
