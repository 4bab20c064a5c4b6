"""Stores the last signed head of the audit, so that `ksi.db` shows when the audit's own files were cut, replaced or deleted.

Reading and replacing are blocking functions: they are needed before the daemon has opened its databases, and without a daemon.
"""

from pathlib import Path

from ksi_daemon.storage.database_file import opened, opened_read_only
from ksi_daemon.storage.sqlite import Database

CREATE_AUDIT_HEAD = """
    CREATE TABLE audit_head (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        head TEXT NOT NULL
    )
    """

_TABLE = "SELECT 1 FROM sqlite_schema WHERE name = 'audit_head'"
_SAVE = "INSERT INTO audit_head (one, head) VALUES (1, ?) ON CONFLICT DO UPDATE SET head = excluded.head"


class AuditHead:
    """The head's place in an open database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, head: str) -> None:
        """Replace the head; it is durable when this returns."""
        await self._database.execute(_SAVE, head)


def read_audit_head(path: Path) -> str | None:
    """The head in this file; None when there is no file, or an older program made it. Raises `DatabaseError` for a damaged one."""
    if not path.exists():
        return None
    with opened_read_only(path) as connection:
        if connection.execute(_TABLE).fetchone() is None:
            return None
        found = connection.execute("SELECT head FROM audit_head").fetchone()
        return None if found is None else str(found[0])


def replace_audit_head(path: Path, head: str) -> None:
    """Replace the head while no daemon runs."""
    if not path.exists():
        return
    with opened(path) as connection:
        if connection.execute(_TABLE).fetchone() is not None:
            connection.execute(_SAVE, (head,))
