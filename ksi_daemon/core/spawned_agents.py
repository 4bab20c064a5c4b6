"""Agents that the daemon runs: spawned with a provider, shown as a tree, terminated with all below them, restarted."""

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from ksi_daemon.audit import Audit
from ksi_daemon.completion.completions import Completions
from ksi_daemon.completion.provider import Provider
from ksi_daemon.completion.providers import PROVIDERS, find_provider
from ksi_daemon.core.agent import NAME, Name, State, plugin, state_of
from ksi_daemon.core.reach import agent_within_reach, within_reach
from ksi_daemon.core.token import ID
from ksi_daemon.gate.rights import Rights, RunBy
from ksi_daemon.handler import invalid_params
from ksi_daemon.identifiers import new_id
from ksi_daemon.plugin import Conflict, Context, Field, Forbidden, Invalid, JsonValue, Nothing, Params, Result
from ksi_daemon.storage.agents import Agent

plugin.announces(
    "agent:spawned", "An agent that the daemon runs was added; data has its id, its parent and its provider."
)
plugin.announces("agent:terminated", "An agent was ended: its tokens are dead, its processes and their configs gone.")
plugin.announces("agent:restarted", "An agent may act again, after it was terminated or its processes were ended.")

LOG_PAGE_BYTES = 64 * 1024


class Spawn(Params):
    agent_id: str | None = Field(None, max_length=64, description="The new agent's id; without, one is made.")
    profile: str = Field("standard", max_length=32, description="What it may do, within what its parent may.")
    parent_id: str | None = Field(
        None, max_length=64, description="Its parent; an agent that spawns is the parent itself."
    )
    provider: Literal["claude", "codex", "command"] | None = Field(
        None, description="What runs it. Default: its parent's."
    )
    options: dict[str, JsonValue] = Field(
        {}, max_length=50, description="Options of the provider, over the parent's if it has the same provider."
    )
    workspace: str | None = Field(
        None, max_length=4_000, description="The folder that it works in. Default: its parent's, or one of its own."
    )
    note: str = Field("", max_length=500, description="What it is for.")
    prompt: str | None = Field(
        None, min_length=1, max_length=1_000_000, description="Start its first completion with this."
    )
    conversation_id: str | None = Field(None, pattern=ID, description="The id of that completion's conversation.")


class Spawned(Result):
    agent_id: str
    profile: str
    parent_id: str | None
    provider: str
    workspace: str
    completion_id: str | None = Field(description="The first completion, if there is a prompt.")
    conversation_id: str | None


@plugin.handles("agent:spawn")
async def spawn(ctx: Context, params: Spawn) -> Spawned:
    """Add an agent that the daemon runs. Its rights never exceed its parent's; an agent spawns below itself only."""
    rights, completions = ctx.capability(Rights), ctx.capability(Completions)
    parent = _parent(ctx, params)
    provider = _provider(ctx, params, parent)
    options = _options(ctx, provider, params, parent)
    program = provider.program(options)
    agent_id = params.agent_id or f"agent-{new_id()[-20:-12]}{os.urandom(2).hex()}"
    workspace = _workspace(ctx, params, parent)
    agent = await rights.add_agent(
        agent_id,
        params.profile,
        parent_id=None if parent is None else parent.agent_id,
        note=params.note,
        by=ctx.principal.label,
        run=RunBy(
            provider=provider.name,
            workspace=None if workspace is None else str(workspace),
            options=options,
            daemon_id=ctx.capability(Audit).daemon_id,
        ),
    )
    ctx.log.info("agent spawned", agent=agent_id, provider=provider.name, program=program)
    ctx.notify("agent:spawned", {"agent_id": agent_id, "parent_id": agent.parent_id, "provider": provider.name})
    first = None
    if params.prompt is not None:
        wanted = {"agent_id": agent_id, "prompt": params.prompt, "conversation_id": params.conversation_id}
        first = await ctx.call("completion:async", wanted)
    return Spawned(
        agent_id=agent_id,
        profile=agent.profile,
        parent_id=agent.parent_id,
        provider=provider.name,
        workspace=str(completions.workspace_of(agent)),
        completion_id=None if first is None else first["completion_id"],
        conversation_id=None if first is None else first["conversation_id"],
    )


def _parent(ctx: Context, params: Spawn) -> Agent | None:
    own = ctx.principal.agent_id
    if own is None and params.parent_id is None:
        return None
    return agent_within_reach(ctx, params.parent_id)


def _provider(ctx: Context, params: Spawn, parent: Agent | None) -> Provider:
    if ctx.principal.agent_id is not None and (parent is None or parent.provider is None):
        raise Conflict(
            "what an agent spawns is run as it is itself, and this one connects by itself",
            hint="ask the operator: ksi agents spawn NAME --parent AGENT",
        )
    if params.provider is not None:
        return find_provider(params.provider)
    if parent is None or parent.provider is None:
        raise Invalid("what is to run it?", hint="provider=NAME, one of " + ", ".join(PROVIDERS))
    return find_provider(parent.provider)


def _options(ctx: Context, provider: Provider, params: Spawn, parent: Agent | None) -> dict[str, Any]:
    """The options in force, checked. An agent chooses among the harmless ones only: it must not choose what is executed."""
    inherited = parent.options if parent is not None and parent.provider == provider.name else {}
    if ctx.principal.agent_id is not None:
        refused = sorted(set(params.options) - provider.chosen_by_agents)
        if refused:
            raise Forbidden(f"an agent may not choose {', '.join(refused)}", hint="ask the operator to spawn it")
        if parent is None or parent.provider != provider.name:
            raise Forbidden(
                f"an agent may spawn with its own provider only, not with {provider.name}",
                hint="ask the operator to spawn it",
            )
    try:
        return provider.options.model_validate(inherited | params.options).model_dump(mode="json", exclude_unset=True)
    except ValidationError as error:
        wrong = invalid_params("agent:spawn", error).fields
        raise Invalid(
            f"the options do not fit the provider {provider.name}: "
            + "; ".join(f"{field['field']}: {field['problem']}" for field in wrong[:5]),
            hint="its options are " + ", ".join(provider.options.model_fields),
            fields=wrong,
        ) from error


def _workspace(ctx: Context, params: Spawn, parent: Agent | None) -> Path | None:
    above = None if parent is None or parent.workspace is None else Path(parent.workspace)
    if params.workspace is None:
        return above
    chosen = Path(params.workspace)
    if not chosen.is_absolute() or not chosen.is_dir():
        raise Invalid(f"{params.workspace[:200]!r} is not an existing folder", hint="give its whole path")
    chosen = chosen.resolve()
    if ctx.principal.agent_id is not None and (above is None or not chosen.is_relative_to(above.resolve())):
        raise Forbidden(
            "an agent's children work in its own workspace", hint="leave the workspace out, or ask the operator"
        )
    return chosen


class Node(Result):
    agent_id: str
    parent_id: str | None
    depth: int = Field(description="0 for one without a parent, or for the agent that asks.")
    profile: str
    provider: str | None
    state: State


class Tree(Result):
    agents: list[Node] = Field(description="Each is followed by those below it.")


@plugin.handles("agent:tree", reads=True)
async def tree(ctx: Context, params: Nothing) -> Tree:
    """Show agents below their parents: all of them, or for an agent itself and those below it."""
    rights = ctx.capability(Rights)
    reach = within_reach(ctx)
    roots = (
        [agent.agent_id for agent in rights.agents.values() if agent.parent_id is None] if reach is None else reach[:1]
    )
    nodes: list[Node] = []
    waiting = [(agent_id, 0) for agent_id in sorted(roots, reverse=True)]
    while waiting:
        agent_id, depth = waiting.pop()
        agent = rights.agent(agent_id)
        nodes.append(
            Node(
                agent_id=agent_id,
                parent_id=agent.parent_id,
                depth=depth,
                profile=agent.profile,
                provider=agent.provider,
                state=state_of(ctx, agent),
            )
        )
        waiting += [(child, depth + 1) for child in sorted(rights.children_of(agent_id), reverse=True)]
    return Tree(agents=nodes)


class Terminated(Result):
    agents: list[str] = Field(description="The agents that were ended: the named one and those below it.")
    completions: int = Field(description="How many of their completions were ended.")


@plugin.handles("agent:terminate", timeout_s=30)
async def terminate(ctx: Context, params: Name) -> Terminated:
    """End an agent and all below it: tokens first, then processes, then their configs. Their records stay; agent:remove deletes one."""
    rights, completions = ctx.capability(Rights), ctx.capability(Completions)
    if ctx.principal.agent_id == params.agent_id:
        raise Conflict("an agent cannot terminate itself", hint="let its parent or the operator do it")
    agent = agent_within_reach(ctx, params.agent_id)
    chosen = [agent.agent_id, *sorted(rights.children(agent.agent_id))]
    already = {agent_id for agent_id in chosen if rights.agent(agent_id).terminated_at is not None}
    await rights.terminate(agent_id for agent_id in chosen if agent_id not in already)
    ended = await completions.end_agents(chosen)
    for agent_id in chosen:
        if agent_id not in already:
            ctx.notify("agent:terminated", {"agent_id": agent_id})
    return Terminated(agents=chosen, completions=ended)


class Restarted(Result):
    agent_id: str
    completions: int = Field(description="How many of its completions were ended.")


@plugin.handles("agent:restart", timeout_s=30)
async def restart(ctx: Context, params: Name) -> Restarted:
    """End an agent's processes and let it act again, also after it was terminated. Its conversations go on where they were."""
    rights, completions = ctx.capability(Rights), ctx.capability(Completions)
    agent = agent_within_reach(ctx, params.agent_id)
    if ctx.principal.agent_id == agent.agent_id:
        raise Conflict("an agent cannot restart itself", hint="let its parent or the operator do it")
    ended = await completions.end_agents([agent.agent_id])
    if agent.terminated_at is not None:
        await rights.revive(agent.agent_id)
    ctx.notify("agent:restarted", {"agent_id": agent.agent_id})
    return Restarted(agent_id=agent.agent_id, completions=ended)


class Logs(Params):
    agent_id: str = NAME
    completion_id: str | None = Field(None, pattern=ID, description="Of this completion. Default: its last one.")
    stream: Literal["stdout", "stderr"] = Field("stdout", description="What its program printed, or its complaints.")
    offset: int | None = Field(None, ge=0, description="From this byte on. Default: the last page.")


class Output(Result):
    agent_id: str
    completion_id: str
    state: str
    text: str
    next_offset: int = Field(description="Ask with this for what comes after.")
    size: int


@plugin.handles("agent:logs", reads=True)
async def logs(ctx: Context, params: Logs) -> Output:
    """Show what the program of an agent's completion printed, in pages. The last 20 completions of each agent are kept."""
    agent = agent_within_reach(ctx, params.agent_id)
    completions = ctx.capability(Completions)
    return Output(
        **await completions.output(agent.agent_id, params.completion_id, params.stream, params.offset, LOG_PAGE_BYTES)
    )
