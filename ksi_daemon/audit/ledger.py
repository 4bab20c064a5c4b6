"""Writes the chain: one connection, the head, and groups of rows, each written completely or not at all.

Blocking and single-threaded; the thread, the queue and the waiting callers are in `writer.py`.
"""

import sqlite3
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from ksi_daemon.audit.chain import MAC, Broken, Head, checked, group_mac, link
from ksi_daemon.audit.entry import COLUMNS, FIELDS, Row
from ksi_daemon.audit.files import SELECT, connect_writer
from ksi_daemon.audit.opening import Opened

Connect = Callable[[Path], sqlite3.Connection]

PHASE, CALL_ID = FIELDS.index("phase"), FIELDS.index("call_id")
LARGEST_STATEMENT = 64
_PLACEHOLDERS = f"({', '.join('?' * len(COLUMNS))})"
# One statement inserts many rows: each statement releases the interpreter lock once, and a busy event loop may keep it for 5 ms.
_INSERTS = {
    2**power: f"INSERT INTO entries VALUES {', '.join([_PLACEHOLDERS] * 2**power)}"  # noqa: S608 - only question marks
    for power in range(LARGEST_STATEMENT.bit_length())
}


class Replaced(Exception):
    """The database file was replaced while the daemon was running."""


class Ledger:
    """Appends rows to one daemon's chain. After a failure `reconnect` finds out which rows were really written."""

    def __init__(self, opened: Opened, connect: Connect = connect_writer) -> None:
        self.daemon_id = opened.daemon_id
        self.head = opened.head
        self.macs = opened.macs
        self.open_intents: dict[str, int] = dict(opened.open_intents)
        self._path = opened.files.database
        self._connect = connect
        self._connection = connect(self._path)
        self._file = self._path.stat().st_ino

    def append(self, entries: Sequence[Row]) -> list[Row]:
        """Write rows (given without daemon_id, seq and hashes) in one durable transaction; returns the complete rows.

        Raises `sqlite3.Error`, `OSError` or `Replaced`; then nothing was written and the head has not moved.
        """
        self._refuse_replaced_file()
        rows: list[Row] = []
        seq, row_hash = self.head.seq, self.head.hash
        for entry in entries:
            seq += 1
            prev_hash, fields = row_hash, (self.daemon_id, seq, *entry)
            row_hash = link(fields, prev_hash)
            rows.append((*fields, prev_hash, row_hash, None))
        mac = group_mac(self.macs.key, self.head.mac, daemon_id=self.daemon_id, seq=seq, row_hash=row_hash)
        rows[-1] = (*rows[-1][:-1], mac)
        self._insert(rows)
        self.head = Head(seq, row_hash, mac)
        for row in rows:
            self._track_intent(row)
        return rows

    def _refuse_replaced_file(self) -> None:
        """Rows in an unlinked file are lost at the next start, and SQLite would apply its write-ahead log to the new file."""
        if self._path.stat().st_ino != self._file:
            raise Replaced(
                f"{self._path} was replaced under the running daemon: restore the original file, or restart the daemon"
            )

    def _insert(self, rows: list[Row]) -> None:
        execute = self._connection.execute
        if len(rows) in _INSERTS:
            execute(_INSERTS[len(rows)], list(chain.from_iterable(rows)))  # commits by itself
            return
        execute("BEGIN IMMEDIATE")
        try:
            start = 0
            while start < len(rows):
                size = min(LARGEST_STATEMENT, 1 << (len(rows) - start).bit_length() - 1)
                execute(_INSERTS[size], list(chain.from_iterable(rows[start : start + size])))
                start += size
            execute("COMMIT")
        except sqlite3.Error:
            if self._connection.in_transaction:
                self._connection.rollback()
            raise

    def _track_intent(self, row: Row) -> None:
        """Keep track of intents without an outcome."""
        if row[PHASE] == "intent":
            self.open_intents[str(row[CALL_ID])] = int(row[1] or 0)
        elif row[PHASE] == "outcome":
            self.open_intents.pop(str(row[CALL_ID]), None)

    def reconnect(self) -> None:
        """A new connection after a failure, and the real head: a commit that reported an error may still have been written."""
        self._refuse_replaced_file()
        self._connection.close()
        self._connection = self._connect(self._path)
        found = self._connection.execute(
            "SELECT hash FROM entries WHERE daemon_id = ? AND seq = ?", (self.daemon_id, self.head.seq)
        ).fetchone()
        if found is None or found[0] != self.head.hash:
            raise Replaced(f"row {self.head.seq}, which was durable, is missing in {self._path}")
        rows = self.rows_after_head()
        if rows:
            try:
                *_, (seq, row_hash) = checked(rows, daemon_id=self.daemon_id, after=self.head, macs=self.macs)
            except Broken as error:
                raise Replaced(f"{self._path} was changed: {error}") from error
            self.head = Head(seq, row_hash, bytes(rows[-1][MAC]))  # type: ignore[arg-type]
            for row in rows:
                self._track_intent(row)

    def rows_after_head(self) -> list[Row]:
        """Rows in the file after the known head."""
        return self._connection.execute(
            f"{SELECT} WHERE daemon_id = ? AND seq > ? ORDER BY seq", (self.daemon_id, self.head.seq)
        ).fetchall()

    def unknown_outcomes(self) -> list[Row]:
        """For each intent without an outcome, an outcome row (as `append` takes it) with the status unknown."""
        indexes = {name: FIELDS.index(name) - 2 for name in ("phase", "status", "reason", "details")}
        rows: list[Row] = []
        for seq in self.open_intents.values():
            found = self._connection.execute(
                f"{SELECT} WHERE daemon_id = ? AND seq = ?", (self.daemon_id, seq)
            ).fetchone()
            fields = list(found[2 : len(FIELDS)])
            fields[indexes["phase"]], fields[indexes["status"]] = "outcome", "unknown"
            fields[indexes["reason"]] = "the daemon ended before this call did"
            fields[indexes["details"]] = f'{{"intent":{seq}}}'
            rows.append(tuple(fields))
        return rows

    def position(self, seq: int, base: Head) -> Head | None:
        """A row as a position in the chain that begins after `base`, if the row is there."""
        found = self._connection.execute(
            "SELECT hash, (SELECT mac FROM entries WHERE daemon_id = ?1 AND seq <= ?2 AND mac IS NOT NULL"
            " ORDER BY seq DESC LIMIT 1) FROM entries WHERE daemon_id = ?1 AND seq = ?2",
            (self.daemon_id, seq),
        ).fetchone()
        return None if found is None else Head(seq, bytes(found[0]), base.mac if found[1] is None else bytes(found[1]))

    def group_end(self, seq: int) -> int:
        """The last row of the group that this row is in; the row itself when it is older than the MACs."""
        if seq < self.macs.first_seq:
            return seq
        found = self._connection.execute(
            "SELECT seq FROM entries WHERE daemon_id = ? AND seq >= ? AND mac IS NOT NULL ORDER BY seq LIMIT 1",
            (self.daemon_id, seq),
        ).fetchone()
        return self.head.seq if found is None else int(found[0])

    def drop_through(self, seq: int, limit: int) -> int:
        """Delete at most `limit` of the oldest rows up to `seq`; returns how many."""
        return self._connection.execute(
            "DELETE FROM entries WHERE daemon_id = ?1 AND seq <= ?2 AND seq < ?3 + "
            "(SELECT min(seq) FROM entries WHERE daemon_id = ?1)",
            (self.daemon_id, seq, limit),
        ).rowcount

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
