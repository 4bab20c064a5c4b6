"""The servers that the daemon is measured beside: `peers.py "bare ASGI"|"bare SDK"` prints its port and serves until terminated."""

import contextlib
import json
import socket
import sys
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"text":"x"},"isError":false}}'
TOOL = "ksi_system_echo"


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, write a constant."""
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode()),
               (b"mcp-session-id", b"none")]  # fmt: skip
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


@contextlib.asynccontextmanager
async def sdk() -> Any:
    """The SDK's own server with one tool."""
    from mcp.server.lowlevel.server import Server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

    tool = Tool(name=TOOL, description="Echo.", input_schema={"type": "object"})

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[tool])

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        result = dict(params.arguments or {})
        return CallToolResult(content=[TextContent(text=json.dumps(result))], structured_content=result)

    server: Server[Any] = Server(
        "peer", on_list_tools=list_tools, on_call_tool=call_tool, get_tool_input_schema=lambda name: {}
    )
    manager = StreamableHTTPSessionManager(server)
    async with manager.run():
        yield manager.handle_request


async def serve(app: ASGIApp) -> None:
    """Serve on any port of loopback."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(app, http="httptools", interface="asgi3", lifespan="off", access_log=False, log_config=None)
    await uvicorn.Server(config).serve(sockets=[listener])


async def main() -> None:
    """Serve one of the two."""
    if sys.argv[1] == "bare ASGI":
        await serve(bare)
    else:
        async with sdk() as app:
            await serve(app)


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
