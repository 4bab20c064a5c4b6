"""Stores completions, the conversations that they belong to with their messages, and the tokens that they used."""

import time
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from ksi_daemon.storage.sqlite import Database, Row, Statement

CompletionState = Literal["queued", "running", "done", "failed", "cancelled", "interrupted"]
Role = Literal["user", "assistant"]
UsageGroup = Literal["agent", "conversation", "handshake", "day"]


CREATE_COMPLETIONS = """
    CREATE TABLE conversations (
        agent_id TEXT NOT NULL,
        conversation_id TEXT NOT NULL,
        session TEXT,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        PRIMARY KEY (agent_id, conversation_id)
    ) WITHOUT ROWID;
    CREATE INDEX conversations_by_id ON conversations (conversation_id);
    CREATE INDEX conversations_by_time ON conversations (updated_at);
    CREATE TABLE messages (
        agent_id TEXT NOT NULL,
        conversation_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        role TEXT NOT NULL,
        text TEXT NOT NULL,
        completion_id TEXT NOT NULL,
        at REAL NOT NULL,
        PRIMARY KEY (agent_id, conversation_id, seq),
        FOREIGN KEY (agent_id, conversation_id) REFERENCES conversations ON DELETE CASCADE
    ) WITHOUT ROWID;
    CREATE TABLE completions (
        completion_id TEXT PRIMARY KEY,
        agent_id TEXT NOT NULL,
        conversation_id TEXT NOT NULL,
        state TEXT NOT NULL,
        record TEXT NOT NULL,
        FOREIGN KEY (agent_id, conversation_id) REFERENCES conversations ON DELETE CASCADE
    ) WITHOUT ROWID;
    CREATE INDEX completions_by_agent ON completions (agent_id, conversation_id, completion_id);
    CREATE INDEX completions_unfinished ON completions (completion_id) WHERE state IN ('queued', 'running');
    CREATE TABLE token_usage (
        completion_id TEXT PRIMARY KEY,
        agent_id TEXT NOT NULL,
        conversation_id TEXT NOT NULL,
        handshake TEXT,
        day TEXT NOT NULL,
        input_tokens INTEGER NOT NULL,
        cache_creation_tokens INTEGER NOT NULL,
        cache_read_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        cost_usd REAL,
        listing_bytes INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX token_usage_by_agent ON token_usage (agent_id, day);
    """

MIGRATIONS: tuple[str, ...] = (CREATE_COMPLETIONS,)

GROUPS: dict[UsageGroup, str] = {
    "agent": "agent_id",
    "conversation": "agent_id || '/' || conversation_id",
    "handshake": "coalesce(handshake, 'none')",
    "day": "day",
}


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens that one completion used, as its provider reports them."""

    input_tokens: int = 0
    cache_creation_tokens: int = 0
    cache_read_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None


class StoredCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """One completion: a prompt in a conversation, and what became of it."""

    completion_id: str
    agent_id: str
    conversation_id: str
    state: CompletionState
    prompt: str
    requested_by: str
    created_at: float
    model: str | None = None
    timeout_s: float | None = None
    first_output_s: float | None = None
    attempts: int = 1  # at most
    attempt: int = 0  # the last one that was begun
    not_before: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    credential_id: str | None = None
    resumes: str | None = None  # the provider's session that it continues
    resumed: bool = False  # whether the provider really continued it
    exit_code: int | None = None
    text: str = ""
    error: dict[str, Any] | None = None  # code, message, and hint if there is one
    usage: TokenUsage | None = None


class StoredConversation(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation of an agent. `session` is what its provider continues it by."""

    agent_id: str
    conversation_id: str
    session: str | None
    created_at: float
    updated_at: float
    messages: int = 0


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation."""

    seq: int
    role: Role
    text: str
    completion_id: str
    at: float


class UsageSum(msgspec.Struct, frozen=True, kw_only=True):
    """Token usage added up over a group of completions."""

    group: str
    completions: int
    input_tokens: int
    cache_creation_tokens: int
    cache_read_tokens: int
    output_tokens: int
    cost_usd: float | None
    listing_bytes: int


class Used(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt of a completion used, and the list of tools that its model was shown."""

    usage: TokenUsage
    handshake: str | None
    listing_bytes: int


class CompletionStore(Protocol):
    """What a backend must do. The contract suite is tests/storage/test_completions_contract.py."""

    async def add(self, completion: StoredCompletion) -> None: ...
    async def save(self, completion: StoredCompletion) -> None: ...
    async def begin(self, completion: StoredCompletion) -> None: ...
    async def finish(
        self, completion: StoredCompletion, *, session: str | None = None, used: "Used | None" = None
    ) -> None: ...
    async def get(self, completion_id: str) -> StoredCompletion | None: ...
    async def unfinished(self) -> list[StoredCompletion]: ...
    async def find(
        self, agents: Sequence[str] | None, conversation_id: str | None, state: CompletionState | None, *, limit: int
    ) -> list[StoredCompletion]: ...
    async def last_of(self, agent_id: str) -> StoredCompletion | None: ...
    async def conversation(self, agent_id: str, conversation_id: str) -> StoredConversation | None: ...
    async def conversations(self, agents: Sequence[str] | None, *, limit: int) -> list[StoredConversation]: ...
    async def owners(self, conversation_id: str) -> list[str]: ...
    async def messages(self, agent_id: str, conversation_id: str, *, after: int, limit: int) -> list[Message]: ...
    async def forget_session(self, agent_id: str, conversation_id: str) -> None: ...
    async def usage(
        self, group: UsageGroup, agents: Sequence[str] | None, *, since_day: str | None
    ) -> list[UsageSum]: ...
    async def delete_agent(self, agent_id: str) -> None: ...


class SqliteCompletions:
    """The embedded backend."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, completion: StoredCompletion) -> None:
        """A new completion, and its conversation if there is none yet."""
        conversation = (
            "INSERT INTO conversations (agent_id, conversation_id, created_at, updated_at) VALUES (?1, ?2, ?3, ?3)"
            " ON CONFLICT DO UPDATE SET updated_at = excluded.updated_at",
            [(completion.agent_id, completion.conversation_id, completion.created_at)],
        )
        row = (
            "INSERT INTO completions (completion_id, agent_id, conversation_id, state, record) VALUES (?, ?, ?, ?, ?)",
            [
                (
                    completion.completion_id,
                    completion.agent_id,
                    completion.conversation_id,
                    completion.state,
                    _encoded(completion),
                )
            ],
        )
        await self._database.execute_all([conversation, row])

    async def save(self, completion: StoredCompletion) -> None:
        """What has changed of a completion."""
        await self._database.execute_all([_update(completion)])

    async def begin(self, completion: StoredCompletion) -> None:
        """Save a completion as it begins an attempt. Its prompt becomes a message, once."""
        await self._database.execute_all([_update(completion), *_message(completion, "user", completion.prompt)])

    async def finish(
        self, completion: StoredCompletion, *, session: str | None = None, used: Used | None = None
    ) -> None:
        """Save what an attempt led to, with what it `used`. An answer becomes a message; `session` continues the conversation."""
        statements = [_update(completion)]
        if completion.state == "done":
            statements += _message(completion, "assistant", completion.text)
            statements.append(
                (
                    "UPDATE conversations SET session = ? WHERE agent_id = ? AND conversation_id = ?",
                    [(session, completion.agent_id, completion.conversation_id)],
                )
            )
        if used is not None:
            statements.append(_usage(completion, used))
        await self._database.execute_all(statements)

    async def get(self, completion_id: str) -> StoredCompletion | None:
        """One completion."""
        row = await self._database.fetch_one("SELECT record FROM completions WHERE completion_id = ?", completion_id)
        return None if row is None else _decoded(row)

    async def unfinished(self) -> list[StoredCompletion]:
        """Those that wait or are under way, oldest first."""
        rows = await self._database.fetch(
            "SELECT record FROM completions WHERE state IN ('queued', 'running') ORDER BY completion_id"
        )
        return [_decoded(row) for row in rows]

    async def find(
        self, agents: Sequence[str] | None, conversation_id: str | None, state: CompletionState | None, *, limit: int
    ) -> list[StoredCompletion]:
        """The newest completions, of these agents only if any are named."""
        rows = await self._database.fetch(
            "SELECT record FROM completions WHERE (?1 IS NULL OR agent_id IN (SELECT value FROM json_each(?1)))"
            " AND (?2 IS NULL OR conversation_id = ?2) AND (?3 IS NULL OR state = ?3)"
            " ORDER BY completion_id DESC LIMIT ?4",
            _names(agents),
            conversation_id,
            state,
            limit,
        )
        return [_decoded(row) for row in rows]

    async def last_of(self, agent_id: str) -> StoredCompletion | None:
        """The newest completion of an agent."""
        row = await self._database.fetch_one(
            "SELECT record FROM completions WHERE agent_id = ? ORDER BY completion_id DESC LIMIT 1", agent_id
        )
        return None if row is None else _decoded(row)

    async def conversation(self, agent_id: str, conversation_id: str) -> StoredConversation | None:
        """One conversation."""
        row = await self._database.fetch_one(
            CONVERSATIONS + " WHERE agent_id = ? AND conversation_id = ?", agent_id, conversation_id
        )
        return None if row is None else StoredConversation(**dict(row))

    async def conversations(self, agents: Sequence[str] | None, *, limit: int) -> list[StoredConversation]:
        """The conversations that changed last, the newest first."""
        rows = await self._database.fetch(
            CONVERSATIONS + " WHERE ?1 IS NULL OR agent_id IN (SELECT value FROM json_each(?1))"  # noqa: S608 - a constant
            " ORDER BY updated_at DESC LIMIT ?2",
            _names(agents),
            limit,
        )
        return [StoredConversation(**dict(row)) for row in rows]

    async def owners(self, conversation_id: str) -> list[str]:
        """The agents that have a conversation with this id, the last changed first."""
        rows = await self._database.fetch(
            "SELECT agent_id FROM conversations WHERE conversation_id = ? ORDER BY updated_at DESC", conversation_id
        )
        return [row["agent_id"] for row in rows]

    async def messages(self, agent_id: str, conversation_id: str, *, after: int, limit: int) -> list[Message]:
        """Messages of a conversation in order, after the one with this number."""
        rows = await self._database.fetch(
            "SELECT seq, role, text, completion_id, at FROM messages"
            " WHERE agent_id = ? AND conversation_id = ? AND seq > ? ORDER BY seq LIMIT ?",
            agent_id,
            conversation_id,
            after,
            limit,
        )
        return [Message(**dict(row)) for row in rows]

    async def forget_session(self, agent_id: str, conversation_id: str) -> None:
        """The provider cannot continue this conversation: the next completion begins anew."""
        await self._database.execute(
            "UPDATE conversations SET session = NULL WHERE agent_id = ? AND conversation_id = ?",
            agent_id,
            conversation_id,
        )

    async def usage(self, group: UsageGroup, agents: Sequence[str] | None, *, since_day: str | None) -> list[UsageSum]:
        """Token usage added up, in the order of the groups' names."""
        rows = await self._database.fetch(
            f'SELECT {GROUPS[group]} AS "group", count(*) AS completions, sum(input_tokens) AS input_tokens,'  # noqa: S608 - from a table above
            " sum(cache_creation_tokens) AS cache_creation_tokens, sum(cache_read_tokens) AS cache_read_tokens,"
            " sum(output_tokens) AS output_tokens, sum(cost_usd) AS cost_usd, sum(listing_bytes) AS listing_bytes"
            " FROM token_usage WHERE (?1 IS NULL OR agent_id IN (SELECT value FROM json_each(?1)))"
            " AND (?2 IS NULL OR day >= ?2) GROUP BY 1 ORDER BY 1",
            _names(agents),
            since_day,
        )
        return [UsageSum(**dict(row)) for row in rows]

    async def delete_agent(self, agent_id: str) -> None:
        """Delete an agent's conversations and completions. What they used stays in the sums."""
        await self._database.execute("DELETE FROM conversations WHERE agent_id = ?", agent_id)


CONVERSATIONS = (
    "SELECT agent_id, conversation_id, session, created_at, updated_at, (SELECT count(*) FROM messages"
    " WHERE messages.agent_id = conversations.agent_id AND messages.conversation_id = conversations.conversation_id)"
    " AS messages FROM conversations"
)


def _update(completion: StoredCompletion) -> Statement:
    sql = "UPDATE completions SET state = ?, record = ? WHERE completion_id = ?"
    return sql, [(completion.state, _encoded(completion), completion.completion_id)]


def _usage(completion: StoredCompletion, used: Used) -> Statement:
    """Attempts of one completion are added up."""
    sql = (
        "INSERT INTO token_usage (completion_id, agent_id, conversation_id, handshake, day, input_tokens,"
        " cache_creation_tokens, cache_read_tokens, output_tokens, cost_usd, listing_bytes)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " input_tokens = input_tokens + excluded.input_tokens,"
        " cache_creation_tokens = cache_creation_tokens + excluded.cache_creation_tokens,"
        " cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens,"
        " output_tokens = output_tokens + excluded.output_tokens,"
        " cost_usd = coalesce(cost_usd + excluded.cost_usd, cost_usd, excluded.cost_usd),"
        " handshake = excluded.handshake, listing_bytes = excluded.listing_bytes"
    )
    row = (
        completion.completion_id,
        completion.agent_id,
        completion.conversation_id,
        used.handshake,
        time.strftime("%Y-%m-%d", time.gmtime(completion.ended_at or completion.created_at)),
        used.usage.input_tokens,
        used.usage.cache_creation_tokens,
        used.usage.cache_read_tokens,
        used.usage.output_tokens,
        used.usage.cost_usd,
        used.listing_bytes,
    )
    return sql, [row]


def _message(completion: StoredCompletion, role: Role, text: str) -> list[Statement]:
    """A message, written once also when an attempt is begun again after a crash."""
    at = completion.ended_at or completion.started_at or completion.created_at
    sql = (
        "INSERT INTO messages (agent_id, conversation_id, seq, role, text, completion_id, at)"
        " SELECT ?1, ?2, (SELECT coalesce(max(seq), 0) + 1 FROM messages WHERE agent_id = ?1 AND conversation_id = ?2),"
        " ?3, ?4, ?5, ?6 WHERE NOT EXISTS (SELECT 1 FROM messages"
        " WHERE agent_id = ?1 AND conversation_id = ?2 AND completion_id = ?5 AND role = ?3)"
    )
    row = (completion.agent_id, completion.conversation_id, role, text, completion.completion_id, at)
    changed = "UPDATE conversations SET updated_at = ? WHERE agent_id = ? AND conversation_id = ?"
    return [(sql, [row]), (changed, [(at, completion.agent_id, completion.conversation_id)])]


def _names(agents: Sequence[str] | None) -> str | None:
    return None if agents is None else msgspec.json.encode(list(agents)).decode()


def _encoded(completion: StoredCompletion) -> str:
    return msgspec.json.encode(completion).decode()


def _decoded(row: Row) -> StoredCompletion:
    return msgspec.json.decode(row["record"], type=StoredCompletion)
