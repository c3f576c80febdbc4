"""The agent tools as a server of the Model Context Protocol. Only this imports `mcp`.

What a caller did wrong, and what went wrong in a way that is no surprise, is a result
that is marked as an error and holds one sentence, for the model to read. Only a mistake
of ours is an error of the protocol.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

import actors
from actors.agents import tools
from actors.agents.toolbox import Toolbox

INSTRUCTIONS: Final = (
    "exec_command runs a shell command; what has not ended in time goes on as a "
    "session, which write_stdin talks to and looks at. All sessions end with this "
    "connection."
)

Context = ServerRequestContext[Any]


def server(toolbox: Toolbox) -> Server[Any]:
    """Return a server that offers a client its tools."""

    async def list_tools(
        _ctx: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool(t) for t in tools.TOOLS.values()])

    async def call_tool(
        _ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        try:
            answer = await toolbox.call(params.name, params.arguments)
        except actors.EngineError as error:
            return types.CallToolResult(content=_texts([str(error)]), is_error=True)
        document = json.dumps(answer.result, ensure_ascii=False)
        return types.CallToolResult(
            content=_texts([document, *answer.notes]), structured_content=answer.result
        )

    return Server(
        "creche",
        version=actors.__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _tool(tool: tools.Tool) -> types.Tool:
    hints = types.ToolAnnotations(
        read_only_hint=tool.harmless, destructive_hint=not tool.harmless
    )
    return types.Tool(
        name=tool.name,
        description=tool.says,
        input_schema=tool.schema,
        output_schema=dict(tool.result),
        annotations=hints,
    )


def _texts(lines: Iterable[str]) -> list[types.ContentBlock]:
    return [types.TextContent(type="text", text=line) for line in lines]


async def serve(scope: actors.Scope) -> None:
    """Serve the client at our stdin and stdout until it goes; then end the scope.

    The scope ends first: what is still to be written may wait for a client that reads
    no more.
    """
    made = server(Toolbox(scope))
    try:
        async with stdio_server() as (reading, writing):
            try:
                await made.run(reading, writing, made.create_initialization_options())
            finally:
                await scope.aclose()
    except* BrokenPipeError:
        pass  # the client went in the middle of an answer
