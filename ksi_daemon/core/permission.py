"""Permissions: profiles, grants, and why an agent may or may not call an event."""

from typing import Any

import msgspec

from ksi_daemon.access import Access
from ksi_daemon.gate.grants import Rule
from ksi_daemon.gate.profiles import find_profile
from ksi_daemon.gate.rights import Rights
from ksi_daemon.gate.spawn import validate_spawn
from ksi_daemon.notice import iso_time_if
from ksi_daemon.plugin import Context, Field, Nothing, Params, Plugin, Result
from ksi_daemon.routing.agent_tools import AgentTools

plugin = Plugin("permission", uses=[Rights, AgentTools])
plugin.announces(
    "permission:changed", "Agents may do more or less than before, from their next call on; data names them."
)

AGENT = Field(max_length=64, description="The agent's id.")
RESOURCE = Field(
    min_length=1,
    max_length=256,
    description="events/notes:*, knowledge/maintainer, tables/meals; * is one segment, at the end one or more.",
)


class Agent(Params):
    agent_id: str = AGENT


class Held(Result):
    agent_id: str
    profile: str
    allowed_tools: list[str]
    allowed_modules: list[str]
    disallowed_tools: list[str]
    needs_grant: dict[str, list[str]] = Field(
        description="Tools that are listed but whose call needs a further right, and which."
    )
    grants: list[dict[str, Any]]
    frozen: bool
    version: int


@plugin.handles("permission:get_agent", reads=True, operator_only=True)
async def get_agent(ctx: Context, params: Agent) -> Held:
    """Say what an agent may do at this moment: profile, grants, and every tool as allowed or not."""
    return _held(ctx, params.agent_id)


class SetAgent(Params):
    agent_id: str = AGENT
    profile: str = Field("restricted", max_length=32, description="The profile it gets.")


@plugin.handles("permission:set_agent", operator_only=True)
async def set_agent(ctx: Context, params: SetAgent) -> Held:
    """Give an agent another profile, from its next call on."""
    await ctx.capability(Rights).set_profile(params.agent_id, params.profile)
    return _held(ctx, params.agent_id)


@plugin.handles("permission:remove_agent", operator_only=True)
async def remove_agent(ctx: Context, params: Agent) -> Held:
    """Take everything back: profile restricted, no grants. The agent and its tokens stay."""
    rights = ctx.capability(Rights)
    for resource in list(rights.grants.get(rights.agent(params.agent_id).agent_id, {})):
        await rights.revoke(params.agent_id, resource)
    await rights.set_profile(params.agent_id, "restricted")
    return _held(ctx, params.agent_id)


class Profiles(Result):
    profiles: list[dict[str, Any]]


@plugin.handles("permission:list_profiles", reads=True, operator_only=True)
async def list_profiles(ctx: Context, params: Nothing) -> Profiles:
    """List the profiles, shipped and your own."""
    return Profiles(profiles=[profile.as_dict() for profile in ctx.capability(Rights).profiles.values()])


class Level(Params):
    level: str = Field(max_length=32, description="The profile's name.")


class ProfileShown(Result):
    profile: dict[str, Any]


@plugin.handles("permission:get_profile", reads=True, operator_only=True)
async def get_profile(ctx: Context, params: Level) -> ProfileShown:
    """Show one profile: its grants and its rate."""
    return ProfileShown(profile=find_profile(ctx.capability(Rights).profiles, params.level).as_dict())


class GrantOne(Params):
    agent_id: str = AGENT
    resource: str = RESOURCE
    access: Access | None = Field(
        None,
        description="read, write (includes read), execute, or none to forbid. Without: execute for scopes and operations, else write.",
    )
    for_s: float | None = Field(None, gt=0, le=315_360_000, description="How long it holds; without, until revoked.")
    dry_run: bool = Field(False, description="Only say what would change.")


class Changed(Result):
    agent_id: str
    resource: str
    access: str | None
    expires_at: str | None
    applied: bool
    gained: list[str] = Field(description="Tools the agent may use now and could not before.")
    lost: list[str] = Field(description="Tools the agent could use before and may not now.")


@plugin.handles("permission:grant", operator_only=True)
async def grant(ctx: Context, params: GrantOne) -> Changed:
    """Give an agent one right (or forbid one), from its next call on; says which tools that opens and closes."""
    rights, tools = ctx.capability(Rights), ctx.capability(AgentTools)
    expires_at = None if params.for_s is None else tools.now() + params.for_s
    access = params.access or usual_access(params.resource)
    rule = Rule(params.resource, access, "this grant", expires_at, overrides=True)
    before = tools.usable(params.agent_id)
    after = tools.usable(params.agent_id, without=params.resource, plus=[rule])
    if not params.dry_run:
        await rights.grant(params.agent_id, params.resource, access, expires_at=expires_at, by=ctx.principal.label)
    return _changed(params.agent_id, params.resource, access, expires_at, not params.dry_run, before, after)


class Revoke(Params):
    agent_id: str = AGENT
    resource: str = RESOURCE
    dry_run: bool = Field(False, description="Only say what would change.")


@plugin.handles("permission:revoke", operator_only=True)
async def revoke(ctx: Context, params: Revoke) -> Changed:
    """Take a grant back, from the agent's next call on; says which tools that opens and closes."""
    rights, tools = ctx.capability(Rights), ctx.capability(AgentTools)
    rights.held(params.agent_id, params.resource)
    before = tools.usable(params.agent_id)
    after = tools.usable(params.agent_id, without=params.resource)
    if not params.dry_run:
        await rights.revoke(params.agent_id, params.resource)
    return _changed(params.agent_id, params.resource, None, None, not params.dry_run, before, after)


class Explain(Params):
    agent_id: str = AGENT
    event: str = Field(max_length=100, description="An event (notes:read) or a tool (ksi_notes_read).")


class Explained(Result):
    agent_id: str
    event: str
    allowed: bool
    text: str
    explanation: dict[str, Any]


@plugin.handles("permission:explain", reads=True, operator_only=True)
async def explain(ctx: Context, params: Explain) -> Explained:
    """Say why an agent may or may not call something: the winning rule, those it beat, limits, every other condition."""
    explanation = ctx.capability(AgentTools).explain(params.agent_id, params.event)
    return Explained(
        agent_id=params.agent_id,
        event=explanation.asked,
        allowed=explanation.allowed,
        text=explanation.text(),
        explanation=explanation.as_dict(),
    )


class ChildPermissions(Params):
    parent_id: str = Field(max_length=64, description="The agent that would spawn.")
    profile: str = Field("standard", max_length=32, description="The profile the child would have.")


class Spawn(Result):
    valid: bool
    shortfalls: list[dict[str, str]] = Field(
        description="What the child would ask for and never get, because its parent lacks it."
    )


@plugin.handles("permission:validate_spawn", reads=True, operator_only=True)
async def validate_child(ctx: Context, params: ChildPermissions) -> Spawn:
    """Say whether a parent holds everything a child with this profile would ask for."""
    rights = ctx.capability(Rights)
    requested = find_profile(rights.profiles, params.profile).rules
    found = validate_spawn(
        rights.chain(rights.agent(params.parent_id).agent_id), requested, ctx.capability(AgentTools).now()
    )
    return Spawn(
        valid=not found,
        shortfalls=[
            {
                "resource": shortfall.rule.resource,
                "access": shortfall.rule.access,
                "missing": shortfall.missing,
                "because": shortfall.because,
            }
            for shortfall in found
        ],
    )


def usual_access(resource: str) -> Access:
    """The access of a grant that names none: scopes and operations are executed, everything else is written."""
    executed = ("knowledge/", "librarian/", "operation/", "raw/")
    return "execute" if resource.startswith(executed) else "write"


def _held(ctx: Context, agent_id: str) -> Held:
    rights, tools = ctx.capability(Rights), ctx.capability(AgentTools)
    agent = rights.agent(agent_id)
    return Held(
        agent_id=agent_id,
        profile=agent.profile,
        **msgspec.structs.asdict(tools.tool_list(agent_id)),
        grants=[
            {
                "resource": grant.resource,
                "access": grant.access,
                "expires_at": iso_time_if(grant.expires_at),
                "created_by": grant.created_by,
            }
            for grant in rights.grants.get(agent_id, {}).values()
        ],
        frozen=agent.frozen,
        version=rights.version,
    )


def _changed(
    agent_id: str,
    resource: str,
    access: str | None,
    expires_at: float | None,
    applied: bool,
    before: set[str],
    after: set[str],
) -> Changed:
    return Changed(
        agent_id=agent_id,
        resource=resource,
        access=access,
        expires_at=iso_time_if(expires_at),
        applied=applied,
        gained=sorted(after - before),
        lost=sorted(before - after),
    )
