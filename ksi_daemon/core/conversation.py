"""Conversations: lines of completions of one agent, kept with their messages."""

from typing import Any, Literal

from ksi_daemon.completion.completions import Completions
from ksi_daemon.completion.export import as_markdown
from ksi_daemon.core.reach import agent_within_reach, within_reach
from ksi_daemon.core.token import ID
from ksi_daemon.gate.rights import Rights
from ksi_daemon.notice import iso_time
from ksi_daemon.plugin import Context, Field, NotFound, Params, Plugin, Result
from ksi_daemon.storage.completions import Message, StoredConversation

plugin = Plugin("conversation", uses=[Completions, Rights])

PAGE = 100
PAGE_CHARACTERS = 400_000
EXPORT_PAGE = 1_000


class Some(Params):
    agent_id: str | None = Field(None, max_length=64, description="Only this agent's.")
    limit: int = Field(50, ge=1, le=500, description="At most so many, the last changed first.")


class Shown(Result):
    agent_id: str
    conversation_id: str
    created_at: str
    updated_at: str
    messages: int
    can_resume: bool = Field(description="Whether the next completion's model has the history.")


class Conversations(Result):
    conversations: list[Shown]


@plugin.handles("conversation:list", reads=True)
async def list_conversations(ctx: Context, params: Some) -> Conversations:
    """List conversations, the last changed first."""
    agents = within_reach(ctx) if params.agent_id is None else [agent_within_reach(ctx, params.agent_id).agent_id]
    found = await ctx.capability(Completions).store.conversations(agents, limit=params.limit)
    return Conversations(conversations=[_shown(each) for each in found])


class Which(Params):
    conversation_id: str = Field(pattern=ID, description="Which conversation.")
    agent_id: str | None = Field(None, max_length=64, description="Whose; an agent may leave it out for its own.")


class Page(Which):
    after: int = Field(0, ge=0, description="Messages after the one with this number.")
    limit: int = Field(PAGE, ge=1, le=1_000, description="At most so many.")


class Said(Result):
    seq: int
    role: Literal["user", "assistant"]
    text: str
    completion_id: str
    at: str


class Messages(Shown):
    page: list[Said]
    next_after: int | None = Field(description="Ask with this as `after` for the next page; null at the end.")


@plugin.handles("conversation:get", reads=True)
async def get(ctx: Context, params: Page) -> Messages:
    """Show one conversation with its messages, in pages."""
    conversation = await _find(ctx, params)
    found, next_after = await _page(ctx, conversation, params.after, params.limit)
    return Messages(
        **_shown(conversation).model_dump(),
        page=[
            Said(seq=each.seq, role=each.role, text=each.text, completion_id=each.completion_id, at=iso_time(each.at))
            for each in found
        ],
        next_after=next_after,
    )


async def _page(
    ctx: Context, conversation: StoredConversation, after: int, limit: int
) -> tuple[list[Message], int | None]:
    """So many messages as fit into one result, and after which one the next page begins."""
    found = await ctx.capability(Completions).store.messages(
        conversation.agent_id, conversation.conversation_id, after=after, limit=limit
    )
    page: list[Message] = []
    characters = 0
    for message in found:
        characters += len(message.text)
        if page and characters > PAGE_CHARACTERS:
            break
        page.append(message)
    more = page and (len(page) < len(found) or (len(found) == limit and page[-1].seq < conversation.messages))
    return page, page[-1].seq if more else None


class Export(Which):
    after: int = Field(0, ge=0, description="Messages after the one with this number: the next part of a long one.")
    format: Literal["markdown", "json"] = Field("markdown", description="What `content` is to be.")


class Exported(Result):
    format: Literal["markdown", "json"]
    messages: int
    content: Any = Field(description="Text, or an object with the conversation and its messages.")
    next_after: int | None = Field(description="Ask with this as `after` for the next part; null at the end.")


@plugin.handles("conversation:export", reads=True)
async def export(ctx: Context, params: Export) -> Exported:
    """A conversation as Markdown or JSON; a long one in parts."""
    conversation = await _find(ctx, params)
    messages, next_after = await _page(ctx, conversation, params.after, EXPORT_PAGE)
    content: Any = as_markdown(conversation, messages)
    if params.format == "json":
        content = _shown(conversation).model_dump() | {"messages": [_as_data(each) for each in messages]}
    return Exported(format=params.format, messages=len(messages), content=content, next_after=next_after)


def _as_data(message: Message) -> dict[str, Any]:
    return {
        "seq": message.seq,
        "role": message.role,
        "text": message.text,
        "completion_id": message.completion_id,
        "at": iso_time(message.at),
    }


async def _find(ctx: Context, which: Which) -> StoredConversation:
    agents = within_reach(ctx) if which.agent_id is None else [agent_within_reach(ctx, which.agent_id).agent_id]
    store = ctx.capability(Completions).store
    if agents is None:
        agents = await store.owners(which.conversation_id)
    for agent_id in agents:
        conversation = await store.conversation(agent_id, which.conversation_id)
        if conversation is not None:
            return conversation
    raise NotFound(f"there is no conversation {ascii(which.conversation_id)[:80]}", hint="conversation:list shows them")


def _shown(conversation: StoredConversation) -> Shown:
    return Shown(
        agent_id=conversation.agent_id,
        conversation_id=conversation.conversation_id,
        created_at=iso_time(conversation.created_at),
        updated_at=iso_time(conversation.updated_at),
        messages=conversation.messages,
        can_resume=conversation.session is not None,
    )
