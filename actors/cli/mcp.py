"""`creche mcp`: tools for an agent."""

from importlib.util import find_spec

import click

from actors.cli import words


@click.command()
@words.ENDPOINT
def mcp(endpoint: str | None) -> None:
    """Be an MCP server at stdin and stdout.

    It gives an agent six tools: exec_command runs a shell command, write_stdin talks to
    one that goes on; list_sessions, kill_session, interrupt_session and resize_session
    do what they say. Whatever they started ends with the client that started this.
    """
    if find_spec("mcp") is None:
        raise click.ClickException("it needs the MCP SDK: pip install 'creche[mcp]'")
    from actors.agents import stdio  # noqa: PLC0415 - see the package's docstring
    from broker.errors import EngineError  # noqa: PLC0415

    try:
        stdio.run(endpoint or None)
    except EngineError as error:
        raise click.ClickException(str(error)) from error
