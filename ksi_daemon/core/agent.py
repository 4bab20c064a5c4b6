"""Agents: which may connect, with which profile, and how to freeze one or all of them."""

from typing import Any, Literal

from ksi_daemon.agents.client_config import (
    KEEPS_TOKEN_OUTSIDE,
    Client,
    Connection,
    Format,
    TransportType,
    render,
)
from ksi_daemon.audit import Audit
from ksi_daemon.completion.completions import Completions
from ksi_daemon.core.token import ID
from ksi_daemon.gate.gate import Gate
from ksi_daemon.gate.rights import Rights
from ksi_daemon.identifiers import new_id, time_of
from ksi_daemon.notice import iso_time, iso_time_if
from ksi_daemon.plugin import Context, Field, Invalid, Nothing, Params, Plugin, Result
from ksi_daemon.process.control import Control
from ksi_daemon.storage.agents import Agent, Credential

plugin = Plugin("agent", uses=[Rights, Gate, Control, Completions, Audit])
plugin.announces("agent:registered", "An agent was added; data has its id and profile.")
plugin.announces("agent:removed", "An agent is gone, with its tokens and grants.")
plugin.announces("agent:frozen", "Agents may do nothing until they are unfrozen; data names them.")
plugin.announces("agent:unfrozen", "Agents may act again; data names them.")

NAME = Field(max_length=64, description="The agent's id: letters, digits and . _ -")


class Register(Params):
    agent_id: str = NAME
    profile: str = Field(
        "standard", max_length=32, description="restricted, standard, researcher, trusted, or your own."
    )
    parent_id: str | None = Field(None, max_length=64, description="An agent that this one may never exceed.")
    note: str = Field("", max_length=500, description="What it is for.")
    first_token: bool = Field(True, description="Make its first token too; false when agent:config will make one.")


class Registered(Result):
    agent_id: str
    profile: str
    token: str | None = Field(description="Its secret, shown this once; null without a first token.")
    credential_id: str | None
    url: str = Field(description="Where it connects.")


@plugin.handles("agent:register", operator_only=True)
async def register(ctx: Context, params: Register) -> Registered:
    """Add an agent and make its first token, which is shown only in this answer."""
    rights = ctx.capability(Rights)
    agent = await rights.add_agent(
        params.agent_id, params.profile, parent_id=params.parent_id, note=params.note, by=ctx.principal.label
    )
    credential_id = token = None
    if params.first_token:
        credential_id, token = await _add_token(ctx, agent.agent_id, label="first")
    ctx.notify("agent:registered", {"agent_id": agent.agent_id, "profile": agent.profile})
    return Registered(
        agent_id=agent.agent_id,
        profile=agent.profile,
        token=token,
        credential_id=credential_id,
        url=ctx.capability(Control).mcp_url,
    )


class Config(Params):
    agent_id: str = NAME
    client: Client = Field("claude-code", description="Which client the configuration is for.")
    type: TransportType = Field(
        "streamable-http",
        description="The transport's name in JSON; some clients want http. With stdio the client starts the bridge.",
    )
    conversation_id: str | None = Field(
        None, pattern=ID, description="Send this conversation with each request, and bind the token to it."
    )
    token_in_environment: bool | None = Field(
        None,
        description="Whether the token is not in the text: the client takes it from the variable KSI_TOKEN, or asks for it "
        "(vscode). Default: codex, cursor and vscode.",
    )
    entry_name: str = Field("ksi", pattern=r"^[A-Za-z0-9_-]{1,64}$", description="The server's name in the file.")
    label: str = Field("", max_length=100, description="Label of the token. Default: the client's name.")


class Configured(Result):
    agent_id: str
    client: Client
    format: Format
    text: str = Field(description="A whole file with this one server.")
    entry_name: str
    entry: dict[str, Any] = Field(description="The server's entry as data, for merging into a file.")
    credential_id: str = Field(description="The id of the token made for it.")
    token: str | None = Field(description="The token, shown this once, if it is not in the text.")
    token_variable: str | None = Field(description="The variable that must hold the token when the client starts.")
    token_input: str | None = Field(description="The input for which the client asks the user for the token.")
    inputs: list[dict[str, Any]] = Field(description="The inputs of the file, for merging into it.")
    url: str


@plugin.handles("agent:config", operator_only=True)
async def config(ctx: Context, params: Config) -> Configured:
    """Render the configuration with which an MCP client connects as this agent, with a new token."""
    credential_id, token = await _add_token(
        ctx, params.agent_id, label=params.label or params.client, conversation_id=params.conversation_id
    )
    in_environment = params.token_in_environment
    if in_environment is None:
        in_environment = KEEPS_TOKEN_OUTSIDE[params.client]
    url = ctx.capability(Control).mcp_url
    rendered = render(
        params.client,
        Connection(
            entry_name=params.entry_name,
            url=url,
            agent_id=params.agent_id,
            token=token,
            token_outside=in_environment,
            transport_type=params.type,
            conversation_id=params.conversation_id,
        ),
    )
    return Configured(
        agent_id=params.agent_id,
        client=params.client,
        format=rendered.format,
        text=rendered.text,
        entry_name=params.entry_name,
        entry=rendered.entry,
        credential_id=credential_id,
        token=token if in_environment else None,
        token_variable=rendered.token_variable,
        token_input=rendered.token_input,
        inputs=rendered.inputs,
        url=url,
    )


async def _add_token(ctx: Context, agent_id: str, *, label: str, conversation_id: str | None = None) -> tuple[str, str]:
    """The id and the secret of a new token."""
    credential_id = new_id()
    credential = Credential(
        credential_id=credential_id,
        agent_id=agent_id,
        digest="",
        label=label,
        conversation_id=conversation_id,
        created_at=time_of(credential_id),
        created_by=ctx.principal.label,
    )
    _, secret = await ctx.capability(Rights).credentials.add(credential)
    return credential_id, secret


State = Literal["running", "waiting", "idle", "frozen", "terminated"]


class Shown(Result):
    agent_id: str
    profile: str
    parent_id: str | None
    frozen: bool
    state: State = Field(
        description="running (a process lives), waiting (a completion does), idle, frozen or terminated."
    )
    provider: str | None = Field(description="What runs it; null if it connects by itself.")
    workspace: str | None
    pids: list[int] = Field(description="Its processes, by the operating system.")
    daemon_id: str | None = Field(description="The daemon that runs it.")
    note: str
    created_at: str
    created_by: str
    tokens: int
    grants: int
    last_used_at: str | None = Field(
        description="When it was last seen: any of its tokens was used, also one that has ended."
    )


class Agents(Result):
    agents: list[Shown]


@plugin.handles("agent:list", reads=True, operator_only=True)
async def list_agents(ctx: Context, params: Nothing) -> Agents:
    """List every agent."""
    rights = ctx.capability(Rights)
    return Agents(agents=[_shown(ctx, agent) for agent in rights.agents.values()])


class Name(Params):
    agent_id: str = NAME


class Details(Shown):
    children: list[str]
    rules: list[dict[str, Any]]
    credentials: list[dict[str, Any]]


@plugin.handles("agent:get", reads=True, operator_only=True)
async def get(ctx: Context, params: Name) -> Details:
    """Show one agent: its rules and where each comes from, its tokens, its children."""
    rights = ctx.capability(Rights)
    agent = rights.agent(params.agent_id)
    return Details(
        **_shown(ctx, agent).model_dump(),
        children=sorted(rights.children(agent.agent_id)),
        rules=[
            {
                "resource": rule.resource,
                "access": rule.access,
                "source": rule.source,
                "expires_at": iso_time_if(rule.expires_at),
            }
            for rule in rights.rules(agent)
        ],
        credentials=[
            {
                "credential_id": credential.credential_id,
                "kind": credential.kind,
                "label": credential.label,
                "ended": rights.credentials.ended_reason(credential),
            }
            for credential in rights.credentials.of(agent.agent_id)
        ],
    )


class Removed(Result):
    agent_id: str
    removed: bool


@plugin.handles("agent:remove", operator_only=True)
async def remove(ctx: Context, params: Name) -> Removed:
    """Remove an agent with its tokens and grants, its processes, conversations and files: its next call is refused."""
    rights, completions = ctx.capability(Rights), ctx.capability(Completions)
    rights.refuse_children(params.agent_id)
    await rights.terminate([params.agent_id])
    await completions.end_agents([params.agent_id])
    await rights.remove_agent(params.agent_id)
    await completions.remove_agent(params.agent_id)
    ctx.capability(Gate).forget(params.agent_id)
    ctx.notify("agent:removed", {"agent_id": params.agent_id})
    return Removed(agent_id=params.agent_id, removed=True)


class Some(Params):
    agent_id: str | None = Field(None, max_length=64, description="Which agent.")
    all: bool = Field(False, description="Every agent, at once.")


class Frozen(Result):
    agents: list[str]


@plugin.handles("agent:freeze", operator_only=True)
async def freeze(ctx: Context, params: Some) -> Frozen:
    """Stop one agent or all: no call of theirs begins until they are unfrozen. Calls under way go on."""
    return await _set_frozen(ctx, params, frozen=True)


@plugin.handles("agent:unfreeze", operator_only=True)
async def unfreeze(ctx: Context, params: Some) -> Frozen:
    """Let one agent or all act again."""
    return await _set_frozen(ctx, params, frozen=False)


async def _set_frozen(ctx: Context, params: Some, *, frozen: bool) -> Frozen:
    rights = ctx.capability(Rights)
    if params.all == (params.agent_id is not None):
        raise Invalid("say either which agent or all, not both", hint="agent_id=NAME, or all=true")
    chosen = list(rights.agents) if params.all else [rights.agent(params.agent_id or "").agent_id]
    await rights.freeze(chosen, frozen=frozen)
    ctx.notify("agent:frozen" if frozen else "agent:unfrozen", {"agents": chosen})
    return Frozen(agents=chosen)


def state_of(ctx: Context, agent: Agent) -> State:
    """What an agent does at this moment; whether it runs is asked of the operating system."""
    completions = ctx.capability(Completions)
    if agent.terminated_at is not None:
        return "terminated"
    if completions.pids(agent.agent_id):
        return "running"
    if agent.frozen:
        return "frozen"
    return "waiting" if completions.waiting_of(agent.agent_id) else "idle"


def _shown(ctx: Context, agent: Agent) -> Shown:
    rights = ctx.capability(Rights)
    credentials = rights.credentials.live(agent.agent_id)
    return Shown(
        agent_id=agent.agent_id,
        profile=agent.profile,
        parent_id=agent.parent_id,
        frozen=agent.frozen,
        state=state_of(ctx, agent),
        provider=agent.provider,
        workspace=agent.workspace,
        pids=ctx.capability(Completions).pids(agent.agent_id),
        daemon_id=agent.daemon_id,
        note=agent.note,
        created_at=iso_time(agent.created_at),
        created_by=agent.created_by,
        tokens=len(credentials),
        grants=len(rights.grants.get(agent.agent_id, {})),
        last_used_at=iso_time_if(rights.credentials.last_seen(agent.agent_id)),
    )
