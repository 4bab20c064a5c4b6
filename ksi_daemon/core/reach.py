"""Whom a caller may act for: the operator for every agent, an agent for itself and those below it."""

from ksi_daemon.errors import NotFound
from ksi_daemon.gate.rights import Rights
from ksi_daemon.plugin import Context
from ksi_daemon.storage.agents import Agent


def within_reach(ctx: Context) -> list[str] | None:
    """The agents within the caller's reach; None means every agent."""
    own = ctx.principal.agent_id
    if own is None:
        return None
    return [own, *sorted(ctx.capability(Rights).children(own))]


def agent_within_reach(ctx: Context, agent_id: str | None) -> Agent:
    """An agent within reach; without a name the caller itself. Others are as unknown to the caller as those that do not exist."""
    rights = ctx.capability(Rights)
    if agent_id is None:
        if ctx.principal.agent_id is None:
            raise NotFound("which agent?", hint="agent_id=NAME; `ksi agents ls` shows those there are")
        agent_id = ctx.principal.agent_id
    reach = within_reach(ctx)
    if reach is not None and agent_id not in reach:
        raise NotFound(
            f"there is no agent {ascii(agent_id)[:80]} below {reach[0]}", hint="agent:tree shows those there are"
        )
    return rights.agent(agent_id)


def require_own(ctx: Context, agent_id: str, what: str) -> None:
    """Refuse what belongs to an agent out of reach, in the words for what does not exist."""
    reach = within_reach(ctx)
    if reach is not None and agent_id not in reach:
        raise NotFound(f"there is no {what}")
