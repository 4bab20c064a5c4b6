"""Sessions: credentials with scopes that end by themselves, as the librarian's specification wants them."""

from typing import Literal

from ksi_daemon.gate.rights import Rights
from ksi_daemon.identifiers import new_id, time_of
from ksi_daemon.notice import iso_time, iso_time_if
from ksi_daemon.plugin import Context, Field, JsonValue, Nothing, Params, Plugin, Result
from ksi_daemon.storage.agents import Credential

plugin = Plugin("session", uses=[Rights])

Scope = Literal["read", "write", "execute", "network", "admin"]


class Create(Params):
    clientId: str = Field(
        max_length=64,
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="Who uses it: an agent's id; a new one is added as restricted.",
    )
    scopes: list[Scope] = Field(
        min_length=1, max_length=5, description="What it may do: read, write, execute, network, admin."
    )
    metadata: dict[str, JsonValue] = Field({}, max_length=50, description="Facts about the client, kept beside it.")
    ttl_s: float = Field(3600, gt=0, le=2_592_000, description="When it ends, however busy.")
    idle_s: float = Field(1800, gt=0, le=2_592_000, description="When it ends for not being used.")


class Created(Result):
    sessionId: str
    token: str = Field(description="The secret, shown this once.")
    expires_at: str


@plugin.handles("session:create", operator_only=True)
async def create(ctx: Context, params: Create) -> Created:
    """Open a session for a client: a token that carries scopes and ends by itself."""
    rights = ctx.capability(Rights)
    await rights.ensure_agent(params.clientId, "restricted", note="a session's client", by=ctx.principal.label)
    session_id = new_id()
    now = time_of(session_id)
    credential = Credential(
        credential_id=session_id,
        agent_id=params.clientId,
        digest="",
        kind="session",
        client_id=params.clientId,
        scopes=tuple(sorted(set(params.scopes))),
        metadata=params.metadata,
        created_at=now,
        created_by=ctx.principal.label,
        expires_at=now + params.ttl_s,
        idle_limit_s=params.idle_s,
    )
    credential, secret = await rights.credentials.add(credential)
    return Created(sessionId=session_id, token=secret, expires_at=iso_time(now + params.ttl_s))


class Session(Result):
    sessionId: str
    clientId: str
    scopes: list[str]
    metadata: dict[str, JsonValue]
    state: str
    created_at: str
    expires_at: str | None
    last_used_at: str | None


class Sessions(Result):
    sessions: list[Session]


@plugin.handles("session:list", reads=True, operator_only=True)
async def list_sessions(ctx: Context, params: Nothing) -> Sessions:
    """List sessions, live and ended."""
    credentials = ctx.capability(Rights).credentials
    return Sessions(
        sessions=[
            Session(
                sessionId=session.credential_id,
                clientId=session.agent_id,
                scopes=list(session.scopes),
                metadata=session.metadata,
                state=credentials.ended_reason(session) or "live",
                created_at=iso_time(session.created_at),
                expires_at=iso_time_if(session.expires_at),
                last_used_at=iso_time_if(credentials.last_used(session)),
            )
            for session in credentials.all()
            if session.kind == "session"
        ]
    )


class Id(Params):
    sessionId: str = Field(max_length=64, description="The session's id.")


class Revoked(Result):
    sessionId: str
    revoked: bool


@plugin.handles("session:revoke", operator_only=True)
async def revoke(ctx: Context, params: Id) -> Revoked:
    """End a session now."""
    await ctx.capability(Rights).credentials.end(params.sessionId)
    return Revoked(sessionId=params.sessionId, revoked=True)
