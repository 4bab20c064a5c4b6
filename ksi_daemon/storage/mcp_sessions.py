"""Stores what agents were shown of their tools: for each completion of a conversation whether the list was full or thin, and delivered."""

from typing import Literal, Protocol

import msgspec

from ksi_daemon.storage.protocol_sessions import ADD_LOG_LEVEL, CREATE_SESSIONS
from ksi_daemon.storage.sqlite import Database, Row

HandshakeKind = Literal["full", "thin"]

CREATE_COMPLETIONS = """
    CREATE TABLE completions (
        agent_id TEXT NOT NULL,
        conversation_id TEXT NOT NULL,
        completion_id TEXT NOT NULL,
        kind TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        delivered INTEGER NOT NULL,
        listings INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        tokens INTEGER NOT NULL,
        client TEXT NOT NULL,
        started_at REAL NOT NULL,
        listed_at REAL NOT NULL,
        PRIMARY KEY (agent_id, conversation_id, completion_id)
    ) WITHOUT ROWID;
    CREATE INDEX completions_by_time ON completions (agent_id, conversation_id, started_at);
    """

MIGRATIONS: tuple[str, ...] = (CREATE_COMPLETIONS, CREATE_SESSIONS, ADD_LOG_LEVEL)


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """What one completion of a conversation was shown."""

    agent_id: str
    conversation_id: str
    completion_id: str
    kind: HandshakeKind
    fingerprint: str  # of everything that the agent might see then
    delivered: bool = False  # whether the client's machine took the last byte
    listings: int = 0
    bytes: int = 0  # of one listing, all pages
    tokens: int = 0  # the same, estimated
    client: str = ""
    started_at: float
    listed_at: float


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """All completions of one conversation, in short."""

    agent_id: str
    conversation_id: str
    completions: int
    full: int
    thin: int
    last_kind: HandshakeKind
    client: str
    bytes: int
    tokens: int
    started_at: float
    listed_at: float


class HandshakeStore(Protocol):
    """What a backend must do. The contract suite is tests/storage/test_mcp_sessions_contract.py."""

    async def get(self, agent_id: str, conversation_id: str, completion_id: str) -> Completion | None: ...
    async def last_full(self, agent_id: str, conversation_id: str) -> Completion | None: ...
    async def save(self, completion: Completion) -> None: ...
    async def mark_delivered(self, completion: Completion) -> None: ...
    async def conversations(self, agent_id: str | None, *, limit: int) -> list[Conversation]: ...
    async def completions(self, agent_id: str, conversation_id: str, *, limit: int) -> list[Completion]: ...
    async def clear(self, agent_id: str | None, conversation_id: str | None) -> int: ...
    async def drop_old(self, *, before: float, keep: int) -> int: ...


class SqliteHandshakes:
    """The embedded backend."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, agent_id: str, conversation_id: str, completion_id: str) -> Completion | None:
        """One completion."""
        row = await self._database.fetch_one(
            "SELECT * FROM completions WHERE agent_id = ? AND conversation_id = ? AND completion_id = ?",
            agent_id,
            conversation_id,
            completion_id,
        )
        return None if row is None else _completion(row)

    async def last_full(self, agent_id: str, conversation_id: str) -> Completion | None:
        """The last completion of a conversation that was delivered a full list."""
        row = await self._database.fetch_one(
            "SELECT * FROM completions WHERE agent_id = ? AND conversation_id = ? AND kind = 'full' AND delivered"
            " ORDER BY started_at DESC, completion_id DESC LIMIT 1",
            agent_id,
            conversation_id,
        )
        return None if row is None else _completion(row)

    async def save(self, completion: Completion) -> None:
        """Insert a completion, or replace what is stored of it."""
        await self._database.execute(
            "INSERT OR REPLACE INTO completions (agent_id, conversation_id, completion_id, kind, fingerprint, delivered,"
            " listings, bytes, tokens, client, started_at, listed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *msgspec.structs.astuple(completion),
        )

    async def mark_delivered(self, completion: Completion) -> None:
        """The client's machine took the last byte of this list, unless another one was begun meanwhile."""
        await self._database.execute(
            "UPDATE completions SET delivered = 1 WHERE agent_id = ? AND conversation_id = ? AND completion_id = ?"
            " AND kind = ? AND fingerprint = ?",
            completion.agent_id,
            completion.conversation_id,
            completion.completion_id,
            completion.kind,
            completion.fingerprint,
        )

    async def conversations(self, agent_id: str | None, *, limit: int) -> list[Conversation]:
        """The conversations that were listed to last, the newest first."""
        rows = await self._database.fetch(
            "SELECT agent_id, conversation_id, count(*) AS completions, sum(kind = 'full') AS full, sum(kind = 'thin') AS thin,"
            " kind AS last_kind, client, sum(bytes * listings) AS bytes, sum(tokens * listings) AS tokens,"
            # SQLite takes the other columns from the row with the greatest value
            " min(started_at) AS started_at, max(listed_at) AS listed_at"
            " FROM completions WHERE ?1 IS NULL OR agent_id = ?1"
            " GROUP BY agent_id, conversation_id ORDER BY max(listed_at) DESC LIMIT ?2",
            agent_id,
            limit,
        )
        return [Conversation(**dict(row)) for row in rows]

    async def completions(self, agent_id: str, conversation_id: str, *, limit: int) -> list[Completion]:
        """The last completions of a conversation, the newest first."""
        rows = await self._database.fetch(
            "SELECT * FROM completions WHERE agent_id = ? AND conversation_id = ?"
            " ORDER BY started_at DESC, completion_id DESC LIMIT ?",
            agent_id,
            conversation_id,
            limit,
        )
        return [_completion(row) for row in rows]

    async def clear(self, agent_id: str | None, conversation_id: str | None) -> int:
        """Forget conversations: of one agent, of one conversation, or all. Returns how many completions were stored."""
        return await self._database.execute(
            "DELETE FROM completions WHERE (?1 IS NULL OR agent_id = ?1) AND (?2 IS NULL OR conversation_id = ?2)",
            agent_id,
            conversation_id,
        )

    async def drop_old(self, *, before: float, keep: int) -> int:
        """Delete conversations that are idle since `before`, and of the others all but the last `keep` thin completions."""
        idle = await self._database.execute(
            "DELETE FROM completions WHERE (agent_id, conversation_id) IN"
            " (SELECT agent_id, conversation_id FROM completions GROUP BY 1, 2 HAVING max(listed_at) < ?)",
            before,
        )
        return idle + await self._database.execute(
            "DELETE FROM completions WHERE (agent_id, conversation_id, completion_id) IN (SELECT agent_id, conversation_id,"
            " completion_id FROM (SELECT *, row_number() OVER (PARTITION BY agent_id, conversation_id ORDER BY started_at DESC)"
            " AS place FROM completions WHERE kind = 'thin') WHERE place > ?)",
            keep,
        )


def _completion(row: Row) -> Completion:
    return Completion(**(dict(row) | {"delivered": bool(row["delivered"])}))
