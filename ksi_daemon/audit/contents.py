"""Whether the database holds the audit's schema and rows of this daemon only.

A trigger could change rows while they are written, a view could show others than there are; rows of other daemons are in no chain.
"""

import functools
import sqlite3
from collections import deque
from contextlib import closing

from ksi_daemon.audit.chain import Broken, Head, checked
from ksi_daemon.audit.files import MIGRATIONS, rows_after
from ksi_daemon.storage.database_file import statements

SCHEMA = "SELECT type, name, tbl_name FROM sqlite_schema"
COLUMNS = "SELECT name, type, hidden FROM pragma_table_xinfo('entries')"


def refuse_foreign_schema(connection: sqlite3.Connection) -> None:
    """Raise `DatabaseError` for a trigger, view, table or index that is not the audit's, or one that is missing."""
    schema, columns = _own_schema()
    for found, own in ((connection.execute(SCHEMA), schema), (connection.execute(COLUMNS), columns)):
        differing = sorted(set(found) ^ own)
        if differing:
            what = ", ".join(" ".join(map(str, item[:2])) for item in differing[:3])
            raise sqlite3.DatabaseError(f"its schema was changed by another program: {what}")


@functools.cache
def _own_schema() -> tuple[frozenset[tuple[str, ...]], frozenset[tuple[str, ...]]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for script in MIGRATIONS:
            for statement in statements(script):
                connection.execute(statement)
        return frozenset(connection.execute(SCHEMA)), frozenset(connection.execute(COLUMNS))


def refuse_foreign_rows(connection: sqlite3.Connection, daemon_id: str) -> None:
    """Raise `Broken` for a row of another daemon, or with a number that no row of a chain has."""
    found = connection.execute(
        "SELECT daemon_id, seq FROM entries WHERE daemon_id < ?1 OR daemon_id > ?1 OR (daemon_id = ?1 AND seq < 1) LIMIT 1",
        (daemon_id,),
    ).fetchone()
    if found is not None:
        what = f"row {found[1]} of daemon {found[0]!r}"
        raise Broken(max(1, found[1]), f"{what} is not of this daemon's chain: another program inserted it")


def refuse_changed_leftovers(connection: sqlite3.Connection, daemon_id: str, base: Head) -> None:
    """Check rows that an interrupted retention has not dropped yet: they must lead to the signed base."""
    oldest = connection.execute(
        "SELECT seq, prev_hash FROM entries WHERE daemon_id = ? AND seq <= ? ORDER BY seq LIMIT 1",
        (daemon_id, base.seq),
    ).fetchone()
    if oldest is None:
        return
    leftovers = rows_after(connection, daemon_id, oldest[0] - 1, base.seq)
    last = deque(checked(leftovers, daemon_id=daemon_id, after=Head(oldest[0] - 1, oldest[1])), maxlen=1)
    if last.pop() != (base.seq, base.hash):
        raise Broken(oldest[0], f"rows {oldest[0]} to {base.seq} are not those that retention was to drop")
