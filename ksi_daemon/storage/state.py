"""Stores the key-value state that agents and operators share: namespaces, keys, JSON values."""

import time
from typing import Any, Protocol

import msgspec

from ksi_daemon.storage.sqlite import Database, Row

CREATE_STATE = """
    CREATE TABLE state (
        namespace TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        metadata TEXT NOT NULL,
        updated_at REAL NOT NULL,
        revision INTEGER NOT NULL,
        PRIMARY KEY (namespace, key)
    ) WITHOUT ROWID
    """


class Entry(msgspec.Struct, frozen=True):
    """One key with its value and metadata."""

    namespace: str
    key: str
    value: Any
    metadata: dict[str, Any]
    updated_at: float


class Listed(msgspec.Struct, frozen=True):
    """One key without its value."""

    namespace: str
    key: str
    value_bytes: int
    updated_at: float


class StateStore(Protocol):
    """What a backend must do. The contract suite is tests/storage/test_state_contract.py."""

    async def get(self, namespace: str, key: str) -> Entry | None: ...
    async def set(self, namespace: str, key: str, *, value: Any, metadata: dict[str, Any]) -> bool: ...
    async def delete(self, namespace: str, key: str) -> bool: ...
    async def list(
        self, namespace: str | None, pattern: str, *, limit: int, after: tuple[str, str] | None = None
    ) -> list[Listed]: ...


class SqliteState:
    """The embedded backend."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, namespace: str, key: str) -> Entry | None:
        """The entry, or None."""
        row = await self._database.fetch_one("SELECT * FROM state WHERE namespace = ? AND key = ?", namespace, key)
        if row is None:
            return None
        return Entry(
            namespace, key, msgspec.json.decode(row["value"]), msgspec.json.decode(row["metadata"]), row["updated_at"]
        )

    async def set(self, namespace: str, key: str, *, value: Any, metadata: dict[str, Any]) -> bool:
        """Set a value; True if the key is new."""
        rows = await self._database.execute_returning(
            "INSERT INTO state (namespace, key, value, metadata, updated_at, revision) VALUES (?, ?, ?, ?, ?, 1)"
            " ON CONFLICT DO UPDATE SET value = excluded.value, metadata = excluded.metadata,"
            " updated_at = excluded.updated_at, revision = revision + 1 RETURNING revision",
            namespace,
            key,
            _json(value),
            _json(metadata),
            time.time(),
        )
        return bool(rows[0]["revision"] == 1)

    async def delete(self, namespace: str, key: str) -> bool:
        """Delete a key; True if it existed."""
        return await self._database.execute("DELETE FROM state WHERE namespace = ? AND key = ?", namespace, key) > 0

    async def list(
        self, namespace: str | None, pattern: str, *, limit: int, after: tuple[str, str] | None = None
    ) -> list[Listed]:
        """Entries in order of namespace and key, from after `after` on, whose key matches the glob `pattern`."""
        rows = await self._database.fetch(
            "SELECT namespace, key, length(CAST(value AS BLOB)) AS bytes, updated_at FROM state"
            " WHERE (?1 IS NULL OR namespace = ?1) AND key GLOB ?2 AND (namespace, key) > (?3, ?4)"
            " ORDER BY namespace, key LIMIT ?5",
            namespace,
            pattern,
            *(after or ("", "")),
            limit,
        )
        return [_listed(row) for row in rows]


def _listed(row: Row) -> Listed:
    return Listed(row["namespace"], row["key"], row["bytes"], row["updated_at"])


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
