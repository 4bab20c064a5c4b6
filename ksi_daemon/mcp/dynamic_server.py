"""The MCP server itself, on the SDK's low level: lists the tools that the caller may see now, and calls them.

Importing this module costs a second: `mcp_service.py` does it after the daemon is ready. Who the caller is was found by
`endpoint.py`, which also turns the status that is noted here into the HTTP status.
"""

import base64
import binascii
import bisect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import ListenHandler, ServerEvent, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_PARAM_HEADER_PREFIX, decode_header_value, validate_mcp_param_headers
from mcp_types import (
    LOG_LEVEL_META_KEY,
    CallToolRequestParams,
    CallToolResult,
    EmptyResult,
    ListToolsResult,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    NotificationParams,
    PaginatedRequestParams,
    SetLevelRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    TextContent,
    Tool,
)
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ksi_daemon import __version__
from ksi_daemon.errors import KsiError
from ksi_daemon.mcp.answers import Refusal
from ksi_daemon.mcp.calls import Calls
from ksi_daemon.mcp.feedback import LEVELS, Client, LogLevel, feedback_to
from ksi_daemon.mcp.list_changes import ListChanges
from ksi_daemon.mcp.listing import Listings
from ksi_daemon.mcp.refusals import INVALID_PARAMS, error_object
from ksi_daemon.mcp.request import PRINCIPAL, REFUSAL, SESSION, VIEW
from ksi_daemon.mcp.sessions import Session, Sessions
from ksi_daemon.mcp.tool_calls import ToolCalls
from ksi_daemon.mcp.tools import OfferedTool, Tools
from ksi_daemon.mcp.transports import Transports
from ksi_daemon.principal import Principal
from ksi_daemon.storage.mcp_sessions import HandshakeKind

CLIENT_LIMIT = 100
PAGE = 200  # tools in one answer
BODY_LIMIT_BYTES = 2**31  # the endpoint has read the body already, within its own limit

INSTRUCTIONS = (
    "KSI is the hub of the agents on this machine. Its tools are the daemon's events: ksi_NAMESPACE_VERB. "
    "You see the tools you may use now; the operator can grant more while you work. ksi_find_tools searches them, ksi_help shows "
    "one with its whole schema, ksi_call_tool calls one that your list does not show."
)

Context = ServerRequestContext[Any]


class _Server(Server[Any]):
    """The SDK's server, which says in the handshake that it tells of changes."""

    def create_initialization_options(self, *args: Any, **options: Any) -> InitializationOptions:
        return super().create_initialization_options(NotificationOptions(tools_changed=True))


class DynamicServer:
    """Answers `tools/list` and `tools/call` on the state of the moment."""

    def __init__(
        self, tools: Tools, listings: Listings, list_changes: ListChanges, calls: Calls, sessions: Sessions, log: Any
    ) -> None:
        self._tools = tools
        self._listings = listings
        self._list_changes = list_changes
        self._tool_calls = ToolCalls(tools, calls, log)
        self._log = log
        self._sessions = sessions
        self._definitions: dict[tuple[str, str | None, str], tuple[OfferedTool, Tool]] = {}  # by kind, view and name
        self.server: Server[Any] = _Server(
            "ksi",
            version=__version__,
            title="KSI",
            instructions=INSTRUCTIONS,
            # Without this the SDK would list the tools before each call. `_compare_headers` does what it is for.
            get_tool_input_schema=lambda name: {},
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._listen,
        )
        self.server.add_notification_handler("notifications/initialized", NotificationParams, self._initialized)
        # Not by the constructor, which warns that the revision 2026 has another way to ask for log lines: both are spoken here.
        self.server.add_request_handler("logging/setLevel", SetLevelRequestParams, self._set_level)
        self.server.middleware.clear()  # only spans for OpenTelemetry, which nothing collects

    async def _list_tools(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        scope, client = _scope(context), _client(context)
        try:
            listing = await self._listings.make(scope, client=client)
            visible = listing.tools
            start = _position(params.cursor, visible) if params is not None and params.cursor is not None else 0
            page = visible[start : start + PAGE]
            await self._listings.record(scope, page, listing.kind, client=client)
        except KsiError as error:
            scope[REFUSAL] = error
            raise MCPError(**error_object(error)) from None
        return ListToolsResult(
            tools=[self._definition(tool, listing.kind) for tool in page],
            next_cursor=_cursor(page[-1].name) if start + PAGE < len(visible) else None,
            ttl_ms=0,  # rights change at any moment
            cache_scope="private",
        )

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        scope = _scope(context)
        principal: Principal = scope[PRINCIPAL]
        arguments = params.arguments or {}
        self._compare_headers(self._tools.find(params.name, scope[VIEW]), arguments, context)
        async with feedback_to(self._client_of(context), self._log) as feedback:
            answer = await self._tool_calls.answer(params.name, arguments, principal, scope[VIEW], feedback)
        if isinstance(answer, Refusal):
            scope[REFUSAL] = answer.error
            raise MCPError(**answer.rpc_error)
        return CallToolResult(
            content=[TextContent(text=answer.text)], structured_content=answer.structured, is_error=answer.is_error
        )

    def _compare_headers(self, tool: OfferedTool | None, arguments: Mapping[str, Any], context: Context) -> None:
        """Raise the protocol's error when an `Mcp-Param-` header contradicts the argument that it repeats.

        One that is missing does not: a client that was shown the thin definition does not know of it.
        """
        if tool is None or not tool.mirrored or not self._tools.allows(_scope(context)[PRINCIPAL], tool):
            return
        headers, properties = _request(context).headers, tool.handler.input_schema["properties"]
        sent = {
            name: properties[name]
            for name, header in tool.mirrored.items()
            if f"{MCP_PARAM_HEADER_PREFIX}{header}" in headers
        }
        rejection = validate_mcp_param_headers({"type": "object", "properties": sent}, arguments, headers)
        if rejection is not None:
            raise MCPError(rejection.code, rejection.message)

    async def _initialized(self, context: Context, params: NotificationParams) -> None:
        """A client with a session is ready: from now on it can be told of changes."""
        session: Session | None = _scope(context).get(SESSION)
        if session is not None:
            session.tell = context.session.send_tool_list_changed

    async def _listen(self, context: Context, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """The stream of a client of 2026, until it leaves or its token ends."""
        scope, bus = _scope(context), _OneStream()
        handler = ListenHandler(bus)
        with self._list_changes.watching(scope[PRINCIPAL], scope[VIEW], bus.tell, handler.close):
            return await handler(context, params)

    async def _set_level(self, context: Context, params: SetLevelRequestParams) -> EmptyResult:
        """The client of a session asks for log lines."""
        session: Session | None = _scope(context).get(SESSION)
        if session is not None:
            await self._sessions.asked_for_lines(session, params.level)
        return EmptyResult()

    def _client_of(self, context: Context) -> Client:
        """What the client of a call asked to be told while it runs."""
        meta = context.meta or {}
        session: Session | None = _scope(context).get(SESSION)
        asked = meta.get(LOG_LEVEL_META_KEY) if session is None else session.log_level
        level = next((known for known in LEVELS if known == asked), None)

        async def send_line(level: LogLevel, line: Mapping[str, Any]) -> None:
            told = LoggingMessageNotificationParams(level=level, logger="ksi", data=dict(line))
            await context.session.send_notification(LoggingMessageNotification(params=told), context.request_id)

        return Client(
            None if "progress_token" not in meta else context.session.report_progress,
            None if level is None else send_line,
            level or LEVELS[0],
        )

    def _definition(self, offered: OfferedTool, kind: HandshakeKind) -> Tool:
        key = (kind, None if offered.view is None else offered.view.name, offered.name)
        known = self._definitions.get(key)
        if known is None or known[0] is not offered:
            definition = offered.full if kind == "full" else offered.thin
            known = self._definitions[key] = (offered, Tool.model_validate(definition.wire))
        return known[1]


class _OneStream:
    """The SDK's way to reach a stream, for a single one."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[ServerEvent], None]] = []

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return self._listeners.clear

    async def publish(self, event: ServerEvent) -> None:
        for listener in self._listeners:
            listener(event)

    def tell(self) -> None:
        """The list of tools has changed."""
        for listener in self._listeners:
            listener(ToolsListChanged())


@asynccontextmanager
async def serving(
    tools: Tools, listings: Listings, list_changes: ListChanges, calls: Calls, known: Sessions, log: Any
) -> AsyncIterator[Transports]:
    """The transports of one server: with sessions and streams, and without either for requests that have none."""
    server = DynamicServer(tools, listings, list_changes, calls, known, log).server
    sessions = StreamableHTTPSessionManager(
        server,
        max_request_body_size=BODY_LIMIT_BYTES,
        session_idle_timeout=None,  # sessions.py unloads them
        max_sessions=None,  # and limits them for each agent
    )
    stateless = StreamableHTTPSessionManager(
        server, stateless=True, json_response=True, max_request_body_size=BODY_LIMIT_BYTES
    )
    async with sessions.run(), stateless.run():
        yield Transports(_owned(sessions), _owned(stateless), decode_header_value)


def _owned(manager: StreamableHTTPSessionManager) -> ASGIApp:
    """The transport, with the caller named so that its session is of no use to any other."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        agent_id = scope[PRINCIPAL].agent_id or ""
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=agent_id, scopes=[]))
        await manager.handle_request(scope, receive, send)

    return handle


def _client(context: Context) -> str:
    """The program that calls, as it calls itself."""
    params = context.session.client_params
    return "" if params is None else f"{params.client_info.name} {params.client_info.version}"[:CLIENT_LIMIT]


def _request(context: Context) -> Request:
    return cast(Request, context.request)  # of this very message, in both eras


def _scope(context: Context) -> Scope:
    return _request(context).scope


def _cursor(tool: str) -> str:
    return base64.urlsafe_b64encode(tool.encode()).decode()


def _position(cursor: str, visible: list[OfferedTool]) -> int:
    """Where the page after a cursor begins. The tool that it names may be gone by now; then the next page is the one after its place."""
    try:
        after = base64.b64decode(cursor.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise MCPError(INVALID_PARAMS, "this cursor is not one that tools/list returned") from None
    names = [tool.name for tool in visible]
    return names.index(after) + 1 if after in names else bisect.bisect(names, after)
