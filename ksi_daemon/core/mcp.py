"""MCP: the state of the server that agents connect to, and what their conversations were shown."""

from typing import Any

import msgspec

from ksi_daemon.errors import Invalid, NotFound
from ksi_daemon.mcp.endpoint import SESSION_REVISIONS, STATELESS_REVISION
from ksi_daemon.mcp.mcp_service import McpService
from ksi_daemon.notice import iso_time
from ksi_daemon.plugin import Context, Field, Nothing, Params, Plugin, Result
from ksi_daemon.process.control import Control
from ksi_daemon.storage.mcp_sessions import HandshakeKind

plugin = Plugin("mcp", uses=[McpService, Control])


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
