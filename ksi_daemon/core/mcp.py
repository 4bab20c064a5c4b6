"""MCP: the state of the server that agents connect to, what their conversations were shown, and the tools about tools."""

import difflib
from typing import Any

import msgspec
from pydantic import ConfigDict

from ksi_daemon.errors import Invalid, KsiError, NotFound, NotVisible
from ksi_daemon.mcp.calling_tools import Anything, Batch, Element, Elements, RawEvent, ToolCall, failed, run_batch
from ksi_daemon.mcp.endpoint import SESSION_REVISIONS, STATELESS_REVISION
from ksi_daemon.mcp.mcp_service import McpService
from ksi_daemon.mcp.tool_search import ToolSearch
from ksi_daemon.mcp.tools import OfferedTool
from ksi_daemon.notice import iso_time
from ksi_daemon.plugin import Context, Field, Nothing, Params, Plugin, Result
from ksi_daemon.process.control import Control
from ksi_daemon.routing.describe import signature
from ksi_daemon.routing.router import Router
from ksi_daemon.storage.mcp_sessions import HandshakeKind

plugin = Plugin("mcp", uses=[McpService, Control, Router])


class Status(Result):
    state: str = Field(description="starting until the protocol's library is imported, then serving.")
    url: str = Field(description="Where agents connect; the views are below it.")
    revisions: list[str] = Field(description="The revisions of the protocol that are spoken, oldest first.")
    tools: int = Field(description="How many tools there are, for all agents together.")
    views: list[str] = Field(description="The views, each at its own address: URL/VIEW.")
    requests: dict[str, int] = Field(description="Requests under way, by agent.")
    streams: dict[str, int] = Field(description="Open streams, by agent.")
    sessions: int = Field(description="Sessions of older revisions that are in memory.")
    stored_sessions: int = Field(description="Sessions that go on when their client comes back, those in memory too.")


@plugin.handles("mcp:status", reads=True, operator_only=True)
async def status(ctx: Context, params: Nothing) -> Status:
    """Say what the MCP server serves and who uses it at this moment."""
    service = ctx.capability(McpService)
    return Status(
        state="serving" if service.is_serving else "starting",
        url=ctx.capability(Control).mcp_url,
        revisions=[*SESSION_REVISIONS, STATELESS_REVISION],
        tools=len(service.tools.own_names),
        views=service.tools.view_names,
        requests=dict(sorted(service.endpoint.requests.items())),
        streams=dict(sorted(service.endpoint.streams.items())),
        sessions=len(service.sessions.live),
        stored_sessions=await service.sessions.store.count(),
    )


class Which(Params):
    agent_id: str | None = Field(None, max_length=64, description="Only this agent's.")
    limit: int = Field(200, ge=1, le=1_000, description="At most this many.")


class Session(Result):
    agent_id: str
    conversation_id: str
    completions: int = Field(description="How many completions were shown a list.")
    full: int = Field(description="How many of them were shown every schema.")
    thin: int = Field(description="How many were shown names and signatures only.")
    last_kind: HandshakeKind
    client: str = Field(description="The program that asked last, as it calls itself.")
    bytes: int = Field(description="Of all lists together.")
    tokens: int = Field(description="The same, estimated.")
    started_at: str
    listed_at: str


class Sessions(Result):
    sessions: list[Session]


@plugin.handles("mcp:list_sessions", reads=True, operator_only=True)
async def list_sessions(ctx: Context, params: Which) -> Sessions:
    """List the conversations whose handshakes are remembered, the last used first."""
    store = ctx.capability(McpService).handshakes.store
    found = await store.conversations(params.agent_id, limit=params.limit)
    return Sessions(sessions=[Session(**_with_times(row)) for row in found])


class Conversation(Params):
    agent_id: str = Field(max_length=64, description="Whose.")
    conversation_id: str = Field(max_length=64, description="Which.")
    limit: int = Field(200, ge=1, le=1_000, description="At most this many completions, the newest.")


class Completion(Result):
    completion_id: str
    kind: HandshakeKind
    delivered: bool = Field(description="Whether the client's machine took the whole list.")
    listings: int = Field(description="How often the completion asked.")
    bytes: int = Field(description="Of one list.")
    tokens: int = Field(description="The same, estimated.")
    fingerprint: str = Field(description="Equal when the agent could see the same tools.")
    client: str
    started_at: str
    listed_at: str


class Completions(Result):
    agent_id: str
    conversation_id: str
    completions: list[Completion]


@plugin.handles("mcp:get_session", reads=True, operator_only=True)
async def get_session(ctx: Context, params: Conversation) -> Completions:
    """Show what each completion of a conversation was shown, the newest first."""
    store = ctx.capability(McpService).handshakes.store
    found = await store.completions(params.agent_id, params.conversation_id, limit=params.limit)
    if not found:
        raise NotFound(
            f"no handshake of the conversation {params.conversation_id} of {params.agent_id} is remembered",
            hint="mcp:list_sessions names those that are",
        )
    fields = Completion.model_fields.keys()
    completions = [
        Completion(**{key: value for key, value in _with_times(row).items() if key in fields}) for row in found
    ]
    return Completions(agent_id=params.agent_id, conversation_id=params.conversation_id, completions=completions)


class Clear(Params):
    agent_id: str | None = Field(None, max_length=64, description="Only this agent's; without, of all agents.")
    conversation_id: str | None = Field(None, max_length=64, description="Only this conversation of the agent.")


class Cleared(Result):
    completions: int = Field(description="How many were forgotten.")


@plugin.handles("mcp:clear_sessions", operator_only=True)
async def clear_sessions(ctx: Context, params: Clear) -> Cleared:
    """Forget what conversations were shown: the next list of each is full again. Nothing is disconnected."""
    if params.conversation_id is not None and params.agent_id is None:
        raise Invalid("conversation_id needs agent_id: two agents may have conversations of one name")
    store = ctx.capability(McpService).handshakes.store
    return Cleared(completions=await store.clear(params.agent_id, params.conversation_id))


def _with_times(row: msgspec.Struct) -> dict[str, Any]:
    fields = msgspec.structs.asdict(row)
    return fields | {name: iso_time(fields[name]) for name in ("started_at", "listed_at")}


class ToolName(Params):
    name: str = Field(max_length=100, description="A tool, such as ksi_state_set, or an event, such as state:set.")


class ToolHelp(Result):
    """A tool as a full list shows it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    event: str
    description: str
    signature: str


@plugin.handles("mcp:help", reads=True, tool="ksi_help", every_agent=True, title="Help on a tool")
async def help_on_tool(ctx: Context, params: ToolName) -> ToolHelp:
    """Show one tool or event completely: description, input schema and result schema."""
    tools = ctx.capability(McpService).tools
    tool = tools.seen(ctx.principal, params.name)
    if tool is None:
        seen = tools.visible(ctx.principal, ctx.principal.default_view)
        raise NotFound(
            f"no such tool for this agent: {params.name!a}",
            hint=_near(params.name, seen, ctx.capability(McpService).search),
        )
    wire = tool.full.wire
    return ToolHelp.model_validate({**wire, "event": tool.handler.event, "signature": signature(wire["inputSchema"])})


class Words(Params):
    query: str = Field(min_length=1, max_length=500, description="What the tool should do, in a few words.")
    limit: int = Field(10, ge=1, le=50, description="At most this many, the best first.")


class FoundTool(Result):
    name: str
    description: str = Field(description="One line, which ends in the signature.")


class FoundTools(Result):
    tools: list[FoundTool]
    searched: int = Field(description="How many tools this agent may use now.")


@plugin.handles("mcp:find_tools", reads=True, tool="ksi_find_tools", every_agent=True, title="Find tools")
async def find_tools(ctx: Context, params: Words) -> FoundTools:
    """Search the tools that you may use now by words, the best first, each with its signature."""
    visible = ctx.capability(McpService).tools.visible(ctx.principal, ctx.principal.default_view)
    found = ctx.capability(McpService).search.find(params.query, visible, params.limit)
    return FoundTools(
        tools=[FoundTool(name=tool.name, description=tool.thin.wire["description"]) for tool in found],
        searched=len(visible),
    )


@plugin.handles("mcp:call_tool", tool="ksi_call_tool", every_agent=True, title="Call a tool")
async def call_tool(ctx: Context, params: ToolCall) -> Anything:
    """Call a tool by its name, also one that was granted after your list of tools was made. The call counts as the tool's own."""
    return Anything.model_validate(await _call(ctx, params.name, params.arguments))


@plugin.handles("mcp:batch_call", tool="ksi_batch_call", every_agent=True, title="Call several tools")
async def batch_call(ctx: Context, params: Batch) -> Elements:
    """Call up to 20 tools, in order or side by side; each has its own result or error and counts as a call of its own."""

    async def call(name: str, arguments: dict[str, Any]) -> Element:
        try:
            return Element(name=name, ok=True, result=await _call(ctx, name, arguments))
        except KsiError as error:
            return failed(name, error)

    return await run_batch(params, call, limit_bytes=ctx.capability(Router).limits.result_bytes)


@plugin.handles("mcp:raw_event", tool="ksi_raw_event", needs=[("raw/events", "execute")], title="Send an event")
async def raw_event(ctx: Context, params: RawEvent) -> Anything:
    """Send an event by its own name, with its parameters as data. It needs the event's own right too."""
    return Anything.model_validate(await ctx.call(params.event, params.data))


async def _call(ctx: Context, name: str, arguments: dict[str, Any]) -> Any:
    """Call a tool as part of this call. Over MCP the server makes the call in this one's place (`tool_calls.py`)."""
    tool = ctx.capability(McpService).tools.find(name, ctx.principal.default_view)
    if tool is None:
        raise NotVisible(f"no such tool for this agent: {name!a}", hint="mcp:find_tools finds those there are")
    return await ctx.call(tool.handler.event, arguments)


def _near(name: str, seen: list[OfferedTool], search: ToolSearch) -> str:
    """Which tools may have been meant."""
    names = {tool.name: tool.name for tool in seen} | {tool.handler.event: tool.name for tool in seen}
    alike = [names[close] for close in difflib.get_close_matches(name, names, n=5)]
    found = [tool.name for tool in search.find(name, seen, limit=5)]
    near = list(dict.fromkeys([*alike, *found]))[:5]
    return f"did you mean {', '.join(near)}?" if near else "ksi_find_tools searches by words"
