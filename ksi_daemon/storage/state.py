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

# The sums are kept by triggers, so that they are right whoever changes a row, and a write need not add up thousands of rows.
ADD_OWNERS = """
    ALTER TABLE state ADD COLUMN owner TEXT;
    ALTER TABLE state ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE state_usage (
        owner TEXT PRIMARY KEY,
        keys INTEGER NOT NULL,
        bytes INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TRIGGER state_inserted AFTER INSERT ON state WHEN NEW.owner IS NOT NULL BEGIN
        INSERT INTO state_usage (owner, keys, bytes) VALUES (NEW.owner, 1, NEW.bytes)
            ON CONFLICT DO UPDATE SET keys = keys + 1, bytes = bytes + excluded.bytes;
    END;
    CREATE TRIGGER state_deleted AFTER DELETE ON state WHEN OLD.owner IS NOT NULL BEGIN
        UPDATE state_usage SET keys = keys - 1, bytes = bytes - OLD.bytes WHERE owner = OLD.owner;
    END;
    CREATE TRIGGER state_updated AFTER UPDATE ON state BEGIN
        UPDATE state_usage SET keys = keys - 1, bytes = bytes - OLD.bytes WHERE owner = OLD.owner;
        INSERT INTO state_usage (owner, keys, bytes) SELECT NEW.owner, 1, NEW.bytes WHERE NEW.owner IS NOT NULL
            ON CONFLICT DO UPDATE SET keys = keys + 1, bytes = bytes + excluded.bytes;
    END;
    """

# ?1 namespace, ?2 key, ?3 value, ?4 metadata, ?5 now, ?6 owner, ?7 bytes of this row, ?8 and ?9 the owner's most keys and bytes
SET = """
    INSERT INTO state (namespace, key, value, metadata, updated_at, owner, bytes, revision)
    SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, 1
    FROM (SELECT 1)
        LEFT JOIN state_usage AS used ON used.owner = ?6
        LEFT JOIN state AS old ON old.namespace = ?1 AND old.key = ?2 AND old.owner = ?6
    WHERE ?6 IS NULL
        OR (old.key IS NOT NULL AND ?7 <= old.bytes)
        OR (
            coalesce(used.keys, 0) + (old.key IS NULL) <= ?8
            AND coalesce(used.bytes, 0) - coalesce(old.bytes, 0) + ?7 <= ?9
        )
    ON CONFLICT DO UPDATE SET value = excluded.value, metadata = excluded.metadata, updated_at = excluded.updated_at,
        owner = excluded.owner, bytes = excluded.bytes, revision = revision + 1
    RETURNING revision
    """


class Quota(msgspec.Struct, frozen=True):
    """Who stores, and how much that agent may store in all. A key counts for whoever set it last."""

    owner: str
    keys: int
    bytes: int


class QuotaUsed(Exception):
    """A write would exceed the quota of its owner; says how much is stored already."""

    def __init__(self, keys: int, stored_bytes: int) -> None:
        super().__init__(f"{keys} keys and {stored_bytes} bytes are stored")
        self.keys = keys
        self.stored_bytes = stored_bytes


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
    async def set(
        self, namespace: str, key: str, *, value: Any, metadata: dict[str, Any], quota: Quota | None = None
    ) -> bool: ...
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

    async def set(
        self, namespace: str, key: str, *, value: Any, metadata: dict[str, Any], quota: Quota | None = None
    ) -> bool:
        """Set a value; True if the key is new. Raises `QuotaUsed`, unless the key is the owner's already and does not grow."""
        texts = (namespace, key, _json(value), _json(metadata))
        size_bytes = sum(len(text.encode()) for text in texts)
        limits = (None, size_bytes, 0, 0) if quota is None else (quota.owner, size_bytes, quota.keys, quota.bytes)
        rows = await self._database.execute_returning(SET, *texts, time.time(), *limits)
        if not rows:
            raise await self._quota_used(limits[0])
        return bool(rows[0]["revision"] == 1)

    async def _quota_used(self, owner: str | None) -> QuotaUsed:
        used = await self._database.fetch_one("SELECT keys, bytes FROM state_usage WHERE owner = ?", owner)
        return QuotaUsed(0, 0) if used is None else QuotaUsed(used["keys"], used["bytes"])

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
