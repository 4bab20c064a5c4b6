"""The audit's files under var/, its table, and the connections to its database."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ksi_daemon.audit.entry import COLUMNS, Row

# No index by agent or session: 64 agents at once would dirty 64 pages of each in every commit, and halve the daemon's throughput.
MIGRATIONS = [
    """
    CREATE TABLE entries (
        daemon_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        time TEXT NOT NULL,
        type TEXT NOT NULL,
        phase TEXT NOT NULL,
        status TEXT NOT NULL,
        call_id TEXT,
        correlation_id TEXT,
        parent_id TEXT,
        door TEXT NOT NULL,
        principal TEXT NOT NULL,
        agent_id TEXT,
        user_id TEXT,
        session_id TEXT,
        credential_id TEXT,
        conversation_id TEXT,
        event TEXT,
        tool TEXT,
        arguments TEXT,
        arguments_bytes INTEGER,
        arguments_sha256 TEXT,
        rule TEXT,
        reason TEXT,
        duration_ms REAL,
        result_bytes INTEGER,
        count INTEGER NOT NULL,
        details TEXT,
        prev_hash BLOB NOT NULL,
        hash BLOB NOT NULL,
        PRIMARY KEY (daemon_id, seq)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX entries_by_time ON entries (time);
    CREATE INDEX entries_of_unknown_outcome ON entries (seq) WHERE status = 'unknown';
    """,
    "ALTER TABLE entries RENAME COLUMN door TO transport",  # hashes are made of values in order, so they stay valid
    "ALTER TABLE entries ADD COLUMN mac BLOB",  # set in the last row of each commit group: see chain.py
]

BUSY_TIMEOUT_MS = 1_000  # callers wait that long for a database that another process has locked, then they are refused
SLICE_ROWS = 10_000  # read at once: a longer read transaction would let the write-ahead log grow
SELECT = f"SELECT {', '.join(COLUMNS)} FROM entries"  # noqa: S608 - only constant column names


class Files(NamedTuple):
    """The audit's four files, and the two that hold its heads."""

    database: Path
    key: Path
    anchor: Path
    mirror: Path
    log: Path
    core_database: Path

    @classmethod
    def under(cls, var_dir: Path, key: Path | None = None) -> "Files":
        """The files of the daemon that uses `var_dir`; the key may be elsewhere."""
        return cls(
            database=var_dir / "db" / "audit.db",
            key=key or var_dir / "run" / "audit.key",
            anchor=var_dir / "log" / "audit.anchor.jsonl",
            mirror=var_dir / "log" / "audit.jsonl",
            log=var_dir / "log" / "ksi.jsonl",
            core_database=var_dir / "db" / "ksi.db",
        )

    @property
    def key_is_under_var(self) -> bool:
        """Whether the key is where it is without the setting `audit_key_file`."""
        return self.key == Files.under(self.database.parent.parent).key

    @property
    def recovery_hint(self) -> str:
        """What an operator can do about an audit that is broken."""
        key = "" if self.key_is_under_var else f" --key '{self.key}'"
        return (
            f"`python -m ksi_daemon.audit verify '{self.database.parent.parent}' --deep{key}` names the first bad row. "
            "Restore all of var/ from one backup; or begin a new chain, which sets the old files aside as evidence: "
            "ksi audit new-chain --reason TEXT"
        )


def connect_writer(path: Path) -> sqlite3.Connection:
    """The one connection that writes. A commit has reached the disk when it returns."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False
    )
    for pragma in (
        "journal_mode = WAL",
        "synchronous = FULL",
        f"busy_timeout = {BUSY_TIMEOUT_MS}",
        "trusted_schema = OFF",
        "secure_delete = ON",  # dropped rows are also overwritten in the file
        "wal_autocheckpoint = 4000",
        "journal_size_limit = 67108864",
    ):
        connection.execute(f"PRAGMA {pragma}")
    return connection


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that can only read, beside the writer."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA trusted_schema = OFF")
        yield connection
    finally:
        connection.close()


def rows_after(connection: sqlite3.Connection, daemon_id: str, seq: int, through: int = 2**62) -> Iterator[Row]:
    """A daemon's rows in order, read a slice at a time; for checking and for export."""
    while True:
        slice_ = connection.execute(
            f"{SELECT} NOT INDEXED WHERE daemon_id = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
            (daemon_id, seq, through, SLICE_ROWS),
        )
        count = 0
        for row in slice_:
            count += 1
            seq = row[1]
            yield row
        if count < SLICE_ROWS:
            return
