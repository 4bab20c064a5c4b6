"""Verifies a whole audit: the chain row by row, and the signed checkpoints against it.

Detects a flipped bit, a missing row, swapped rows, a recomputed chain, and a tail cut
behind a row that a checkpoint, the log, the mirror or `ksi.db` shows.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from ksi_daemon.audit.anchor import BrokenAnchor, Checkpoint, read_key, read_last_line, read_lines
from ksi_daemon.audit.chain import Broken, Head, checked
from ksi_daemon.audit.contents import refuse_changed_leftovers, refuse_foreign_rows, refuse_foreign_schema
from ksi_daemon.audit.files import Files, reading, rows_after
from ksi_daemon.audit.signed_head import SignedHead
from ksi_daemon.audit.witnesses import Witness, refuse_deleted_audit, witnesses
from ksi_daemon.errors import BadData

PROGRESS_ROWS = 20_000

Progress = Callable[[int, int], None]  # rows checked, rows in all


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification found. `first_bad_seq` is the first row that may have been changed."""

    ok: bool
    rows: int
    daemon_id: str | None = None
    first_seq: int | None = None
    last_seq: int | None = None
    first_bad_seq: int | None = None
    problem: str | None = None
    without_mac: int = 0  # rows written before MACs were: only checkpoints cover them
    dropped: int = 0  # rows that retention dropped
    dropped_at: str | None = None  # when it last did
    checkpoints: int = 0
    last_checkpoint_seq: int | None = None
    duration_s: float = 0.0
    rows_per_s: int = 0


def verify(
    files: Files,
    *,
    progress: Progress | None = None,
    deep: bool = False,
    head: Head | None = None,
    against: SignedHead | None = None,
) -> Verdict:
    """Verify every row, on a separate read-only connection. `deep` also runs SQLite's integrity check, which includes the indexes.

    `head` is the last row that the running daemon has written; `against` is a head that was kept elsewhere.
    """
    started = time.perf_counter()
    reader = _Reader(files, progress, head, against)
    try:
        reader.read()
        if deep:
            reader.check_indexes()
    except (Broken, BrokenAnchor, BadData, OSError, sqlite3.Error) as error:
        if reader.base_has_moved():
            return verify(files, progress=progress, deep=deep, against=against)  # retention dropped rows meanwhile
        return reader.verdict(started, error)
    return reader.verdict(started, None)


def _witness_of(against: SignedHead, last: Checkpoint, key: bytes) -> Witness:
    if against.daemon_id != last.daemon_id:
        raise BadData(f"the head is of the chain {against.daemon_id}, but the audit is the chain {last.daemon_id}")
    if not against.is_signed_with(key):
        raise BadData("the head is not signed with the key of this daemon")
    if against.seq <= last.base_seq:
        raise BadData(
            f"the head's row {against.seq} was dropped by retention: only rows from {last.base_seq + 1} on remain"
        )
    return Witness("the given head", against.seq, against.hash.hex())


class _Reader:
    def __init__(self, files: Files, progress: Progress | None, head: Head | None, against: SignedHead | None) -> None:
        self._files = files
        self._progress = progress
        self._head = head
        self._against = against
        self._lines: list[Checkpoint] = []
        self._witnesses: list[Witness] = []
        self._rows = 0
        self._good = 0

    def read(self) -> None:
        files = self._files
        if not any(path.exists() for path in (files.database, files.anchor, files.key)):
            refuse_deleted_audit(files)
            raise BadData(f"there is no audit in {files.database}: `ksi start` creates one")
        key = read_key(files.key)
        self._lines = list(read_lines(files.anchor, key))
        if not self._lines:
            raise BrokenAnchor(1, "is missing: the file is empty or truncated")
        if not files.database.exists() or files.database.stat().st_size == 0:
            raise Broken(self._lines[-1].base_seq + 1, "the database is missing or empty")
        last = self._lines[-1]
        self._good = last.base_seq
        self._witnesses = witnesses(files, last.daemon_id, key)  # first: rows may be added meanwhile
        if self._against is not None:
            self._witnesses.append(_witness_of(self._against, last, key))
        with reading(files.database) as connection:
            refuse_foreign_schema(connection)
            refuse_foreign_rows(connection, last.daemon_id)
            refuse_changed_leftovers(connection, last.daemon_id, last.base)
            newest = connection.execute(
                "SELECT max(seq) FROM entries WHERE daemon_id = ?", (last.daemon_id,)
            ).fetchone()[0]
            through = max(last.seq, newest or 0)
            rows = rows_after(connection, last.daemon_id, last.base_seq, through)
            good_rows = checked(rows, daemon_id=last.daemon_id, after=last.base, macs=last.macs(key))
            self._check(good_rows, total=through - last.base_seq)
        for position in self._known_positions():
            if self._good < position.seq:
                raise Broken(
                    self._good + 1, f"the tail was cut: {position.source} shows that there was a row {position.seq}"
                )

    def _check(self, good_rows: Iterable[tuple[int, bytes]], *, total: int) -> None:
        known = iter(self._known_positions())
        position = next(known, None)
        confirmed = self._good
        try:
            for seq, row_hash in good_rows:
                while position is not None and seq == position.seq:
                    if row_hash.hex() != position.hash:
                        raise Broken(
                            confirmed + 1,
                            f"the chain was recomputed: its hash at row {seq} is not the one that {position.source} shows, "
                            f"so rows {confirmed + 1} to {seq} were not written by this daemon",
                        )
                    position = next(known, None)
                    if position is None or position.seq > seq:
                        confirmed = seq
                self._good = seq
                self._rows += 1
                if self._progress is not None and self._rows % PROGRESS_ROWS == 0:
                    self._progress(self._rows, total)
        except (sqlite3.Error, UnicodeError) as error:
            raise Broken(self._good + 1, f"it cannot be read ({error})") from error
        if self._progress is not None:
            self._progress(self._rows, total)

    def _known_positions(self) -> list[Witness]:
        """The rows that the checkpoints, the witnesses and the daemon itself show, in order."""
        base_seq = self._lines[-1].base_seq
        known = {(line.seq, line.hash): "a signed checkpoint" for line in self._lines if line.seq > base_seq}
        for witness in self._witnesses:
            if witness.seq > base_seq:
                known.setdefault((witness.seq, witness.hash), witness.source)
        if self._head is not None:
            known.setdefault((self._head.seq, self._head.hash.hex()), "the running daemon")
        return [Witness(source, seq, row_hash) for (seq, row_hash), source in sorted(known.items())]

    def check_indexes(self) -> None:
        with reading(self._files.database) as connection:
            found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(f"the rows are intact, but the database is damaged: {found}")

    def base_has_moved(self) -> bool:
        with suppress(OSError, BrokenAnchor, BadData):
            key = read_key(self._files.key)
            return bool(self._lines) and read_last_line(self._files.anchor, key).base_seq != self._lines[-1].base_seq
        return False

    def _last_good(self, error: Exception | None) -> int:
        return min(self._good, error.seq - 1) if isinstance(error, Broken) else self._good

    def verdict(self, started: float, error: Exception | None) -> Verdict:
        duration_s = time.perf_counter() - started
        last = self._lines[-1] if self._lines else None
        return Verdict(
            ok=error is None,
            rows=self._rows,
            daemon_id=last.daemon_id if last else None,
            first_seq=last.base_seq + 1 if last else None,
            last_seq=self._last_good(error) if last else None,
            first_bad_seq=error.seq if isinstance(error, Broken) else None,
            without_mac=max(0, (last.macs_from - 1 if last.macs_from else self._good) - last.base_seq) if last else 0,
            dropped=last.base_seq if last else 0,
            dropped_at=max((line.time for line in self._lines if line.kind == "base"), default=None),
            problem=None if error is None else str(error),
            checkpoints=len(self._lines),
            last_checkpoint_seq=last.seq if last else None,
            duration_s=round(duration_s, 3),
            rows_per_s=int(self._rows / duration_s) if duration_s else 0,
        )
