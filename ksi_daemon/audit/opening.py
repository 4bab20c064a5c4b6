"""The audit's files at a start: created on the first start, and checked on every later one before anything is added.

The check is quick whatever the length of the audit: that no row is missing, that the last signed checkpoint is in the chain, and
that the rows after it follow. `verification.py` checks every row.
"""

import secrets
import sqlite3
from pathlib import Path

import msgspec

from ksi_daemon.audit.anchor import (
    KEY_BYTES,
    Anchor,
    BrokenAnchor,
    Checkpoint,
    cut_unfinished_line,
    read_key,
    read_last_line,
    write_key,
)
from ksi_daemon.audit.chain import NO_MAC, START, Broken, Head, Macs, checked, group_mac, link
from ksi_daemon.audit.contents import refuse_foreign_rows, refuse_foreign_schema
from ksi_daemon.audit.entry import COLUMNS, Entry, fields_after_seq
from ksi_daemon.audit.files import MIGRATIONS, Files, rows_after
from ksi_daemon.audit.signed_head import SignedHead, sign_head
from ksi_daemon.audit.witnesses import Witness, refuse_deleted_audit, witnesses
from ksi_daemon.errors import BadData, BadSettings
from ksi_daemon.notice import iso_time
from ksi_daemon.storage.database_file import (
    APPLICATION_ID,
    create_file,
    migrate_file,
    opened,
    refuse_damage,
    sync_folder,
)

INSERT = f"INSERT INTO entries VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608 - only question marks


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """An intact audit, ready for new rows."""

    files: Files
    daemon_id: str
    head: Head
    macs: Macs
    anchor: Anchor
    open_intents: dict[str, int]  # the seq of each intent that has no outcome, by call id


def open_files(files: Files, now_s: float) -> Opened:
    """Check the audit, or create it on the first start. Raises `BadData` when it was changed or damaged."""
    try:
        if not files.key.exists():
            _begin(files, now_s)
        return _check(files)
    except (Broken, BrokenAnchor) as error:
        raise BadData(
            f"the audit in {files.database} was changed or damaged: {error}. {files.recovery_hint}"
        ) from error
    except sqlite3.DatabaseError as error:
        raise BadData(f"the audit in {files.database} cannot be read: {error}. {files.recovery_hint}") from error


def _begin(files: Files, now_s: float) -> None:
    """The first start. The key is written last: until it exists, nothing was audited and a new start may begin again."""
    if not files.key.parent.is_dir():
        raise BadSettings(
            f"the folder of audit_key_file = {files.key} does not exist or is not a folder. Create it, or change the setting."
        )
    if not _never_finished(files):
        elsewhere = Files.under(files.database.parent.parent).key
        if elsewhere.exists():
            raise BadData(
                f"{files.key} (setting audit_key_file) is missing, but this audit has a key in {elsewhere}. "
                f"Run: mv '{elsewhere}' '{files.key}'"
            )
        raise BadData(
            f"{files.key} is missing (or the database was not made by an unfinished first start), "
            f"so the audit's checkpoints cannot be checked. {files.recovery_hint}"
        )
    refuse_deleted_audit(files)
    for leftover in (*_database_files(files.database), files.anchor):
        leftover.unlink(missing_ok=True)
    create_files(files, now_s, Entry(type="system", event="audit:created"))


def create_files(files: Files, now_s: float, first_entry: Entry) -> SignedHead:
    """Create an audit with one row, the key last. Returns its head."""
    daemon_id, key = secrets.token_hex(8), secrets.token_bytes(KEY_BYTES)
    create_file(files.database)
    with opened(files.database) as connection:
        migrate_file(connection, MIGRATIONS)
        connection.execute("PRAGMA journal_mode = WAL")
        first = fields_after_seq(first_entry, now_s)
        fields = (daemon_id, 1, *first)
        first_hash = link(fields, START.hash)
        mac = group_mac(key, START.mac, daemon_id=daemon_id, seq=1, row_hash=first_hash)
        connection.execute(INSERT, (*fields, START.hash, first_hash, mac))
    sync_folder(files.database.parent)
    line = Checkpoint(
        kind="first", daemon_id=daemon_id, seq=1, hash=first_hash.hex(), rows=1, group_mac=mac.hex(), macs_from=1,
        time=iso_time(now_s),
    )  # fmt: skip
    Anchor(files.anchor, key, None).append(line)
    sync_folder(files.anchor.parent)
    write_key(files.key, key)
    return sign_head(key, daemon_id, Head(1, first_hash))


def _never_finished(files: Files) -> bool:
    """Whether there are no files yet, or only those of a first start that was killed."""
    if files.anchor.exists() and files.anchor.read_bytes().count(b"\n") > 1:
        return False
    if not files.database.exists():
        return not files.anchor.exists()
    if files.database.stat().st_size == 0:
        return False  # the daemon creates databases under a temporary name, never empty
    with opened(files.database) as connection:
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            return False
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            return True
        return bool(connection.execute("SELECT count(*) <= 1 FROM entries").fetchone()[0])


def _database_files(path: Path) -> tuple[Path, ...]:
    return tuple(path.with_name(path.name + ending) for ending in ("", "-wal", "-shm"))


def _check(files: Files) -> Opened:
    if not files.anchor.exists():
        raise BadData(f"{files.anchor} is missing, so the audit cannot be shown to be complete. {files.recovery_hint}")
    if not files.database.exists():
        raise BadData(f"{files.database} is missing, but {files.key.name} shows that it existed. {files.recovery_hint}")
    key = read_key(files.key)
    last = read_last_line(files.anchor, key)
    cut_unfinished_line(files.anchor)
    witnessed = witnesses(files, last.daemon_id, key)
    refuse_damage(files.database, len(MIGRATIONS), recovery_hint=files.recovery_hint)
    with opened(files.database) as connection:
        migrate_file(connection, MIGRATIONS)
        refuse_foreign_schema(connection)
        refuse_foreign_rows(connection, last.daemon_id)
        _finish_retention(connection, last)
        _refuse_missing_rows(connection, last)
        for witness in witnessed:
            _refuse_other_row(connection, last, witness)
        seq, row_hash = last.seq, last.head.hash
        rows = rows_after(connection, last.daemon_id, last.seq)
        for position in checked(rows, daemon_id=last.daemon_id, after=last.head, macs=last.macs(key)):
            seq, row_hash = position
        mac = connection.execute(
            "SELECT mac FROM entries WHERE daemon_id = ? AND seq = ?", (last.daemon_id, seq)
        ).fetchone()[0]
        open_intents = _open_intents(connection, last)
    anchor = Anchor(files.anchor, key, last)
    if not last.macs_from:
        anchor.begin_macs(seq + 1)
    return Opened(
        files=files,
        daemon_id=last.daemon_id,
        head=Head(seq, row_hash, last.head.mac if seq == last.seq else mac or NO_MAC),
        macs=Macs(key, last.macs_from or seq + 1),
        anchor=anchor,
        open_intents=open_intents,
    )


def _finish_retention(connection: sqlite3.Connection, last: Checkpoint) -> None:
    """Drop the rows that an interrupted retention had already signed off."""
    connection.execute("DELETE FROM entries WHERE daemon_id = ? AND seq <= ?", (last.daemon_id, last.base_seq))


def _refuse_missing_rows(connection: sqlite3.Connection, last: Checkpoint) -> None:
    rows = connection.execute("SELECT count(*) FROM entries").fetchone()[0]
    oldest, newest = connection.execute(
        "SELECT (SELECT seq FROM entries WHERE daemon_id = ?1 ORDER BY seq LIMIT 1), "
        "(SELECT seq FROM entries WHERE daemon_id = ?1 ORDER BY seq DESC LIMIT 1)",
        (last.daemon_id,),
    ).fetchone()
    if oldest is None:
        raise Broken(last.base_seq + 1, "the database has no row of this daemon: it was emptied or replaced")
    if newest < last.seq:
        raise Broken(newest + 1, f"the tail was cut: rows up to {last.seq} were signed")
    if oldest != last.base_seq + 1 or rows != newest - last.base_seq:
        raise Broken(
            last.base_seq + 1,
            f"rows {last.base_seq + 1} to {newest} should exist, but there are {rows} rows from {oldest} on",
        )
    signed = connection.execute(
        "SELECT hash FROM entries WHERE daemon_id = ? AND seq = ?", (last.daemon_id, last.seq)
    ).fetchone()
    if signed[0] != last.head.hash:
        raise Broken(last.seq, "the chain was recomputed or replaced: its hash is not that of the signed checkpoint")


def _refuse_other_row(connection: sqlite3.Connection, last: Checkpoint, witness: Witness) -> None:
    if witness.seq <= last.base_seq:
        return
    found = connection.execute(
        "SELECT hash FROM entries WHERE daemon_id = ? AND seq = ?", (last.daemon_id, witness.seq)
    ).fetchone()
    if found is None:
        newest = connection.execute("SELECT max(seq) FROM entries").fetchone()[0]
        raise Broken(newest + 1, f"the tail was cut: {witness.source} shows that there was a row {witness.seq}")
    if found[0].hex() != witness.hash:
        raise Broken(
            witness.seq, f"the chain was recomputed or replaced: its hash is not the one that {witness.source} shows"
        )


def _open_intents(connection: sqlite3.Connection, last: Checkpoint) -> dict[str, int]:
    """Intents without an outcome: those open at the last checkpoint or begun after it, minus those that ended after it."""
    pending: dict[str, int] = {}
    for seq in last.open:
        row = connection.execute(
            "SELECT call_id FROM entries WHERE daemon_id = ? AND seq = ?", (last.daemon_id, seq)
        ).fetchone()
        if row is None:
            raise Broken(seq, "it is missing, though its call had not ended at the last checkpoint")
        pending[row[0]] = seq
    for seq, phase, call_id in connection.execute(
        "SELECT seq, phase, call_id FROM entries WHERE daemon_id = ? AND seq > ? ORDER BY seq",
        (last.daemon_id, last.seq),
    ):
        if phase == "intent":
            pending[call_id] = seq
        elif phase == "outcome":
            pending.pop(call_id, None)
    return pending
