"""The MCP server itself, on the SDK's low level: lists the tools that the caller may see now, and calls them.

Importing this module costs a second: `mcp_service.py` does it after the daemon is ready. Who the caller is was found by
`endpoint.py`, which also turns the status that is noted here into the HTTP status.
"""

import base64
import binascii
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ksi_daemon import __version__
from ksi_daemon.errors import KsiError
from ksi_daemon.handler import Handler
from ksi_daemon.mcp.calls import Calls
from ksi_daemon.mcp.refusals import INVALID_PARAMS, error_object, is_refusal, refused_tool
from ksi_daemon.mcp.request import PRINCIPAL, REFUSAL
from ksi_daemon.mcp.tools import Tools
from ksi_daemon.mcp.transports import Transports
from ksi_daemon.principal import Principal
from ksi_daemon.routing.describe import tool_definition

PAGE = 200  # tools in one answer
BODY_LIMIT_BYTES = 2**31  # the endpoint has read the body already, within its own limit

INSTRUCTIONS = (
    "KSI is the hub of the agents on this machine. Its tools are the daemon's events: ksi_NAMESPACE_VERB. "
    "You see the tools you may use now; the operator can grant more while you work."
)

Context = ServerRequestContext[Any]

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class DynamicServer:
    """Answers `tools/list` and `tools/call` on the state of the moment."""

    def __init__(self, tools: Tools, calls: Calls) -> None:
        self._tools = tools
        self._calls = calls
        self._definitions: dict[str, tuple[Handler, Tool]] = {}  # by tool name: made once for each handler
        self.server: Server[Any] = Server(
            "ksi",
            version=__version__,
            title="KSI",
            instructions=INSTRUCTIONS,
            # Without this the SDK would list the tools before each call. No tool of ours mirrors arguments in headers.
            get_tool_input_schema=lambda name: {},
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        self.server.middleware.clear()  # only spans for OpenTelemetry, which nothing collects

    async def _list_tools(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        visible = self._tools.visible(_principal(context))
        after = _name_in(params.cursor) if params is not None and params.cursor is not None else ""
        rest = [handler for handler in visible if handler.tool > after]
        page = rest[:PAGE]
        return ListToolsResult(
            tools=[self._definition(handler) for handler in page],
            next_cursor=_cursor(page[-1].tool) if len(rest) > PAGE else None,
            ttl_ms=0,  # rights change at any moment
            cache_scope="private",
        )

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        principal = _principal(context)
        try:
            result = await self._calls.run(self._tools.event_of(params.name), params.arguments or {}, principal)
        except KsiError as error:
            if not is_refusal(error):
                return CallToolResult(content=[_text(_encode(error.as_dict()))], is_error=True)
            raise _refuse(context, refused_tool(error, params.name, principal.agent_id)) from None
        return CallToolResult(content=[_text(result)], structured_content=_decode(result))

    def _definition(self, handler: Handler) -> Tool:
        known = self._definitions.get(handler.tool)
        if known is None or known[0] is not handler:
            known = (handler, Tool.model_validate(tool_definition(handler)))
            self._definitions[handler.tool] = known
        return known[1]


@asynccontextmanager
async def serving(tools: Tools, calls: Calls) -> AsyncIterator[Transports]:
    """The transports of one server: with sessions and streams, and without either for requests that have none."""
    server = DynamicServer(tools, calls).server
    sessions = StreamableHTTPSessionManager(server, max_request_body_size=BODY_LIMIT_BYTES)
    stateless = StreamableHTTPSessionManager(
        server, stateless=True, json_response=True, max_request_body_size=BODY_LIMIT_BYTES
    )
    async with sessions.run(), stateless.run():
        yield Transports(_owned(sessions), _owned(stateless))


def _owned(manager: StreamableHTTPSessionManager) -> ASGIApp:
    """The transport, with the caller named so that its session is of no use to any other."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        agent_id = scope[PRINCIPAL].agent_id or ""
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=agent_id, scopes=[]))
        await manager.handle_request(scope, receive, send)

    return handle


def _principal(context: Context) -> Principal:
    principal: Principal = _scope(context)[PRINCIPAL]
    return principal


def _scope(context: Context) -> Scope:
    request = cast(Request, context.request)  # of this very message, in both eras
    return request.scope


def _refuse(context: Context, error: KsiError) -> MCPError:
    _scope(context)[REFUSAL] = error
    return MCPError(**error_object(error))


def _text(text: bytes) -> TextContent:
    return TextContent(text=text.decode())


def _cursor(tool: str) -> str:
    return base64.urlsafe_b64encode(tool.encode()).decode()


def _name_in(cursor: str) -> str:
    try:
        return base64.b64decode(cursor.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise MCPError(INVALID_PARAMS, "this cursor is not one that tools/list returned") from None
