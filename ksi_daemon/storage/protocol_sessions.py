"""Stores the sessions of MCP clients of the revisions that have them, so that a session id outlives the daemon that gave it out."""

from typing import Protocol

import msgspec

from ksi_daemon.storage.sqlite import Database, Row

CREATE_SESSIONS = """
    CREATE TABLE sessions (
        session_id TEXT PRIMARY KEY,
        agent_id TEXT NOT NULL,
        initialize BLOB NOT NULL,
        seen TEXT,
        opened_at REAL NOT NULL,
        used_at REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX sessions_by_use ON sessions (agent_id, used_at);
    """

ADD_LOG_LEVEL = "ALTER TABLE sessions ADD COLUMN log_level TEXT"


class StoredSession(msgspec.Struct, frozen=True):
    """One session: whose it is, and what opens it again."""

    session_id: str
    agent_id: str
    initialize: bytes  # the params of the client's own initialize request, as JSON
    seen: str | None  # the fingerprint of the last list of tools that was sent
    opened_at: float
    used_at: float
    log_level: str | None = None  # of the lowest log lines that the client asked for, if it did


class SessionStore(Protocol):
    """What a backend must do. The contract suite is tests/storage/test_protocol_sessions_contract.py."""

    async def get(self, session_id: str) -> StoredSession | None: ...
    async def add(self, session: StoredSession, *, keep: int) -> None: ...
    async def set_seen(self, session_id: str, seen: str) -> None: ...
    async def set_log_level(self, session_id: str, level: str) -> None: ...
    async def touch(self, session_ids: list[str], used_at: float) -> None: ...
    async def delete(self, session_id: str) -> None: ...
    async def drop_idle(self, *, before: float, keep: int) -> int: ...
    async def count(self) -> int: ...


class SqliteSessions:
    """The embedded backend."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, session_id: str) -> StoredSession | None:
        """One session."""
        row = await self._database.fetch_one("SELECT * FROM sessions WHERE session_id = ?", session_id)
        return None if row is None else _session(row)

    async def add(self, session: StoredSession, *, keep: int) -> None:
        """Add a session; its agent's longest unused ones go when it has more than `keep`."""
        async with self._database.transaction() as transaction:
            await transaction.execute(
                "INSERT INTO sessions (session_id, agent_id, initialize, seen, opened_at, used_at, log_level)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                *msgspec.structs.astuple(session),
            )
            await transaction.execute(
                "DELETE FROM sessions WHERE session_id IN"
                " (SELECT session_id FROM sessions WHERE agent_id = ? ORDER BY used_at DESC LIMIT -1 OFFSET ?)",
                session.agent_id,
                keep,
            )

    async def set_seen(self, session_id: str, seen: str) -> None:
        """Another list of tools was sent."""
        await self._database.execute("UPDATE sessions SET seen = ? WHERE session_id = ?", seen, session_id)

    async def set_log_level(self, session_id: str, level: str) -> None:
        """The client asked for log lines."""
        await self._database.execute("UPDATE sessions SET log_level = ? WHERE session_id = ?", level, session_id)

    async def touch(self, session_ids: list[str], used_at: float) -> None:
        """These sessions were used."""
        await self._database.execute_many(
            "UPDATE sessions SET used_at = ? WHERE session_id = ?",
            [(used_at, session_id) for session_id in session_ids],
        )

    async def delete(self, session_id: str) -> None:
        """Forget a session."""
        await self._database.execute("DELETE FROM sessions WHERE session_id = ?", session_id)

    async def drop_idle(self, *, before: float, keep: int) -> int:
        """Forget sessions that were not used since `before`, and the longest unused ones beyond `keep`; returns how many."""
        return await self._database.execute(
            "DELETE FROM sessions WHERE used_at < ? OR session_id IN"
            " (SELECT session_id FROM sessions ORDER BY used_at DESC LIMIT -1 OFFSET ?)",
            before,
            keep,
        )

    async def count(self) -> int:
        """How many sessions are stored."""
        row = await self._database.fetch_one("SELECT count(*) AS stored FROM sessions")
        assert row is not None
        return int(row["stored"])


def _session(row: Row) -> StoredSession:
    return StoredSession(**dict(row))
