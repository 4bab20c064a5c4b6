"""Tokens: the secrets agents prove themselves with. A secret is shown once, when it is made."""

from ksi_daemon.gate.profiles import find_profile
from ksi_daemon.gate.rights import Rights
from ksi_daemon.identifiers import new_id, time_of
from ksi_daemon.notice import iso_time, iso_time_if
from ksi_daemon.plugin import Context, Field, Params, Plugin, Result
from ksi_daemon.storage.agents import Credential

plugin = Plugin("token", uses=[Rights])
plugin.announces("token:revoked", "A token is not valid any more; data has its id and its agent's.")

ID = r"^[A-Za-z0-9._-]{1,64}$"  # what the identity headers of MCP can say


class Create(Params):
    agent_id: str = Field(max_length=64, description="Whose token.")
    label: str = Field("", max_length=100, description="What it is for.")
    expires_in_s: float | None = Field(
        None, gt=0, le=315_360_000, description="How long it works; without, until revoked."
    )
    conversation_id: str | None = Field(None, pattern=ID, description="Bind it to one conversation.")
    completion_id: str | None = Field(None, pattern=ID, description="Bind it to one completion of that conversation.")
    resumes: bool = Field(
        False, description="Whether that completion's model has the conversation's history; then its list may be thin."
    )
    ceiling: str | None = Field(
        None, max_length=32, description="A profile that its holder's rights do not exceed, whatever the agent may do."
    )
    view: str | None = Field(
        None, max_length=32, description="The view that its holder sees at /mcp; without, all its tools."
    )


class Created(Result):
    credential_id: str
    agent_id: str
    token: str = Field(description="The secret, shown this once.")
    expires_at: str | None


@plugin.handles("token:create", operator_only=True)
async def create(ctx: Context, params: Create) -> Created:
    """Make a token for an agent. Its secret is in this answer only."""
    rights = ctx.capability(Rights)
    credential_id = new_id()
    now = time_of(credential_id)
    credential = Credential(
        credential_id=credential_id,
        agent_id=params.agent_id,
        digest="",
        label=params.label,
        conversation_id=params.conversation_id,
        completion_id=params.completion_id,
        resumes=params.resumes,
        default_view=params.view,
        ceiling=None if params.ceiling is None else find_profile(rights.profiles, params.ceiling).name,
        created_at=now,
        created_by=ctx.principal.label,
        expires_at=None if params.expires_in_s is None else now + params.expires_in_s,
    )
    return _created(*await rights.credentials.add(credential))


class Which(Params):
    agent_id: str | None = Field(None, max_length=64, description="Only this agent's.")


class Listed(Result):
    credential_id: str
    agent_id: str
    kind: str
    label: str
    state: str = Field(description="live, or why it is not valid any more.")
    conversation_id: str | None
    completion_id: str | None
    created_at: str
    expires_at: str | None
    last_used_at: str | None


class Tokens(Result):
    tokens: list[Listed]


@plugin.handles("token:list", reads=True, operator_only=True)
async def list_tokens(ctx: Context, params: Which) -> Tokens:
    """List tokens and sessions by their ids; secrets are not kept, so they cannot be shown."""
    credentials = ctx.capability(Rights).credentials
    return Tokens(
        tokens=[
            Listed(
                credential_id=credential.credential_id,
                agent_id=credential.agent_id,
                kind=credential.kind,
                label=credential.label,
                state=credentials.ended_reason(credential) or "live",
                conversation_id=credential.conversation_id,
                completion_id=credential.completion_id,
                created_at=iso_time(credential.created_at),
                expires_at=iso_time_if(credential.expires_at),
                last_used_at=iso_time_if(credentials.last_used(credential)),
            )
            for credential in (credentials.all() if params.agent_id is None else credentials.of(params.agent_id))
        ]
    )


class Id(Params):
    credential_id: str = Field(max_length=64, description="The token's id, as token:list shows it.")


class Revoked(Result):
    credential_id: str
    agent_id: str
    revoked: bool


@plugin.handles("token:revoke", operator_only=True)
async def revoke(ctx: Context, params: Id) -> Revoked:
    """Revoke a token: from the next call on it is refused."""
    credential = await ctx.capability(Rights).credentials.end(params.credential_id)
    ctx.notify("token:revoked", {"credential_id": credential.credential_id, "agent_id": credential.agent_id})
    return Revoked(credential_id=credential.credential_id, agent_id=credential.agent_id, revoked=True)


@plugin.handles("token:rotate", operator_only=True)
async def rotate(ctx: Context, params: Id) -> Created:
    """Make a new token with everything the old one had, and revoke the old one."""
    credential, secret = await ctx.capability(Rights).credentials.rotate(params.credential_id, by=ctx.principal.label)
    ctx.notify("token:revoked", {"credential_id": params.credential_id, "agent_id": credential.agent_id})
    return _created(credential, secret)


def _created(credential: Credential, secret: str) -> Created:
    return Created(
        credential_id=credential.credential_id,
        agent_id=credential.agent_id,
        token=secret,
        expires_at=iso_time_if(credential.expires_at),
    )
