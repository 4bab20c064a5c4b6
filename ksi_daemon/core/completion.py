"""Completions: runs of an agent's model that the daemon starts, queues, watches and remembers."""

from typing import Any, Literal

from ksi_daemon.completion.completions import Completions
from ksi_daemon.completion.providers import installed
from ksi_daemon.core.reach import agent_within_reach, require_own, within_reach
from ksi_daemon.core.token import ID
from ksi_daemon.gate.rights import Rights
from ksi_daemon.notice import iso_time, iso_time_if
from ksi_daemon.plugin import Context, Field, NotFound, Nothing, Params, Plugin, Result
from ksi_daemon.process.control import Control
from ksi_daemon.storage.completions import StoredCompletion, UsageGroup

plugin = Plugin("completion", uses=[Completions, Rights, Control])
plugin.announces(
    "completion:started", "An attempt of a completion has begun; data has its ids and the attempt's number."
)
plugin.announces(
    "completion:progress",
    "A completion's program printed something: text, at which character of the answer it begins, tools that it calls.",
)
plugin.announces("completion:result", "A completion is done; completion:status has its text.")
plugin.announces("completion:failed", "A completion failed or was interrupted; data says why.")
plugin.announces("completion:cancelled", "A completion was cancelled.")

State = Literal["queued", "running", "done", "failed", "cancelled", "interrupted"]
PROMPT_CHARACTERS = 1_000_000
WAIT_LIMIT_S = 3_600.0


class Request(Params):
    agent_id: str | None = Field(None, max_length=64, description="Which agent; an agent may leave it out for itself.")
    prompt: str = Field(min_length=1, max_length=PROMPT_CHARACTERS, description="What its model is to do.")
    conversation_id: str | None = Field(
        None, pattern=ID, description="Go on with this conversation; without, a new one."
    )
    model: str | None = Field(
        None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]{0,127}$", description="Another model than the agent's own."
    )
    timeout_s: float | None = Field(
        None, gt=0, le=86_400, description="End it after so long. Default: the setting completion_timeout_s."
    )
    first_output_s: float | None = Field(None, gt=0, le=86_400, description="End it if it has printed nothing by then.")
    attempts: int = Field(3, ge=1, le=10, description="How often to try when it fails for a passing reason.")


class Requested(Result):
    completion_id: str
    agent_id: str
    conversation_id: str
    state: State


@plugin.handles("completion:async")
async def request(ctx: Context, params: Request) -> Requested:
    """Queue a completion and return its id at once; completion:wait waits for it."""
    agent = agent_within_reach(ctx, params.agent_id)
    settings = ctx.capability(Control).read.settings
    completion = await ctx.capability(Completions).request(
        agent.agent_id,
        params.prompt,
        conversation_id=params.conversation_id,
        model=params.model,
        timeout_s=params.timeout_s or settings.completion_timeout_s,
        first_output_s=params.first_output_s,
        attempts=params.attempts,
        by=ctx.principal.label,
    )
    return Requested(
        completion_id=completion.completion_id,
        agent_id=completion.agent_id,
        conversation_id=completion.conversation_id,
        state=completion.state,
    )


class Shown(Result):
    completion_id: str
    agent_id: str
    conversation_id: str
    state: State
    place: int | None = Field(description="How many of its conversation are before it, while it waits.")
    attempt: int
    requested_by: str
    created_at: str
    started_at: str | None
    ended_at: str | None
    model: str | None
    pid: int | None
    resumed: bool = Field(description="Whether its model had the conversation's history.")
    text: str = Field(description="The answer; what there is of it while it runs, and when it failed.")
    error: dict[str, Any] | None
    usage: dict[str, Any] | None = Field(description="Tokens and cost, if the provider reports them.")


class Wait(Params):
    completion_id: str = Field(max_length=64, description="The id that completion:async returned.")
    timeout_s: float = Field(60.0, gt=0, le=WAIT_LIMIT_S, description="Return it as it is then, ended or not.")


@plugin.handles("completion:wait", reads=True, timeout_s=WAIT_LIMIT_S + 60)
async def wait(ctx: Context, params: Wait) -> Shown:
    """Wait until a completion has ended."""
    completions = ctx.capability(Completions)
    await _own(ctx, params.completion_id)
    return _shown(completions, await completions.wait(params.completion_id, params.timeout_s))


class Which(Params):
    completion_id: str = Field(max_length=64, description="The id that completion:async returned.")


@plugin.handles("completion:status", reads=True)
async def status(ctx: Context, params: Which) -> Shown:
    """Show one completion."""
    return _shown(ctx.capability(Completions), await _own(ctx, params.completion_id))


@plugin.handles("completion:cancel")
async def cancel(ctx: Context, params: Which) -> Shown:
    """End a completion, whether it waits or runs. One that has ended stays as it is."""
    completions = ctx.capability(Completions)
    await _own(ctx, params.completion_id)
    return _shown(completions, await completions.cancel(params.completion_id))


class Some(Params):
    agent_id: str | None = Field(None, max_length=64, description="Only this agent's.")
    conversation_id: str | None = Field(None, pattern=ID, description="Only those of this conversation.")
    state: State | None = Field(None, description="Only those in this state.")
    limit: int = Field(50, ge=1, le=500, description="At most so many, the newest first.")


class Completed(Result):
    completions: list[Shown]
    waiting: int = Field(description="How many wait now, of all agents.")
    under_way: int


@plugin.handles("completion:list", reads=True)
async def list_completions(ctx: Context, params: Some) -> Completed:
    """List completions, the newest first; without their texts."""
    completions = ctx.capability(Completions)
    agents = within_reach(ctx) if params.agent_id is None else [agent_within_reach(ctx, params.agent_id).agent_id]
    found = await completions.store.find(agents, params.conversation_id, params.state, limit=params.limit)
    waiting, under_way = completions.counts
    return Completed(
        completions=[_shown(completions, each).model_copy(update={"text": ""}) for each in found],
        waiting=waiting,
        under_way=under_way,
    )


class Usage(Params):
    by: UsageGroup = Field("agent", description="Add up by agent, conversation, handshake (full, thin, none) or day.")
    agent_id: str | None = Field(None, max_length=64, description="Only this agent's.")
    since_day: str | None = Field(None, pattern=r"^\d{4}-\d{2}-\d{2}$", description="From this day on (UTC).")


class Sums(Result):
    by: UsageGroup
    usage: list[dict[str, Any]] = Field(
        description="For each group: completions, tokens of each kind, cost, bytes of lists."
    )


@plugin.handles("completion:token_usage", reads=True)
async def token_usage(ctx: Context, params: Usage) -> Sums:
    """Add up the tokens that completions used, as their providers reported them."""
    reach = within_reach(ctx)
    if params.agent_id is not None:  # sums outlive their agent, so it need not exist
        require_own(ctx, params.agent_id, f"agent {ascii(params.agent_id)[:80]}")
        reach = [params.agent_id]
    sums = await ctx.capability(Completions).store.usage(params.by, reach, since_day=params.since_day)
    return Sums(
        by=params.by,
        usage=[
            {
                "group": each.group,
                "completions": each.completions,
                "input_tokens": each.input_tokens,
                "cache_creation_tokens": each.cache_creation_tokens,
                "cache_read_tokens": each.cache_read_tokens,
                "output_tokens": each.output_tokens,
                "cost_usd": each.cost_usd,
                "listing_bytes": each.listing_bytes,
            }
            for each in sums
        ],
    )


class Found(Result):
    name: str
    program: str | None = Field(description="Its program, by the daemon's PATH; null if there is none.")
    hint: str | None = Field(description="How to install it, or what else to know.")


class Providers(Result):
    providers: list[Found]


@plugin.handles("completion:providers", reads=True)
async def list_providers(ctx: Context, params: Nothing) -> Providers:
    """List the providers, and whether their programs are installed."""
    return Providers(providers=[Found(name=each.name, program=each.program, hint=each.hint) for each in installed()])


async def _own(ctx: Context, completion_id: str) -> StoredCompletion:
    completion = await ctx.capability(Completions).get(completion_id)
    reach = within_reach(ctx)
    if reach is not None and completion.agent_id not in reach:
        raise NotFound(
            f"there is no completion {ascii(completion_id)[:80]}", hint="completion:list shows the last ones"
        )
    return completion


def _shown(completions: Completions, completion: StoredCompletion) -> Shown:
    usage = completion.usage
    return Shown(
        completion_id=completion.completion_id,
        agent_id=completion.agent_id,
        conversation_id=completion.conversation_id,
        state=completion.state,
        place=completions.place(completion.completion_id),
        attempt=completion.attempt,
        requested_by=completion.requested_by,
        created_at=iso_time(completion.created_at),
        started_at=iso_time_if(completion.started_at),
        ended_at=iso_time_if(completion.ended_at),
        model=completion.model,
        pid=completions.pid(completion.completion_id),
        resumed=completion.resumed,
        text=completion.text or completions.text_so_far(completion.completion_id),
        error=completion.error,
        usage=None
        if usage is None
        else {
            "input_tokens": usage.input_tokens,
            "cache_creation_tokens": usage.cache_creation_tokens,
            "cache_read_tokens": usage.cache_read_tokens,
            "output_tokens": usage.output_tokens,
            "cost_usd": usage.cost_usd,
        },
    )
