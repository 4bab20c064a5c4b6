"""Begins a new chain in place of one that is broken or missing, without a daemon: the old files are set aside as evidence.

The first row of the new chain names the old head. Whoever can write var/ can do this too; a head kept elsewhere shows it.
"""

import sqlite3
from pathlib import Path

import msgspec

from ksi_daemon.audit.entry import Entry
from ksi_daemon.audit.files import Files
from ksi_daemon.audit.opening import create_files
from ksi_daemon.audit.verification import verify
from ksi_daemon.errors import BadData
from ksi_daemon.notice import iso_time
from ksi_daemon.storage.audit_head import read_audit_head, replace_audit_head
from ksi_daemon.storage.database_file import sync_folder


class NewChain(msgspec.Struct, frozen=True, kw_only=True):
    """What was done: the new chain, where the old files are, and what was known of the old chain."""

    daemon_id: str
    set_aside: str
    old_head: str | None
    old_problem: str | None


def begin_new_chain(var_dir: Path, *, reason: str, now_s: float, key_file: Path | None = None) -> NewChain:
    """Set the old chain aside and create a new one. After a kill at any step it can be run again. The caller holds the lock."""
    files = Files.under(var_dir, key_file)
    old_files = _existing_files(files)
    try:
        old_head = read_audit_head(files.core_database)
    except sqlite3.Error as error:
        raise BadData(f"{files.core_database} cannot be read: {error}. Restore it from a backup first.") from error
    if not old_files and old_head is None:
        raise BadData(f"there is no audit under {var_dir}: `ksi start` creates one.")
    verdict = verify(files)
    details = {
        "old_head": old_head,
        "old_daemon_id": verdict.daemon_id,
        "old_rows": verdict.rows,
        "old_last_seq": verdict.last_seq,
        "old_problem": verdict.problem,
    }
    aside = _new_folder(var_dir / "audit-set-aside", iso_time(now_s).replace(":", ""))
    for path in old_files:
        if path == files.key and not files.key_is_under_var:  # it stays where only its owner put it
            path.rename(path.with_name(f"{path.name}.{aside.name}"))
        else:
            path.rename(aside / path.name)
        sync_folder(path.parent)
    sync_folder(aside)
    new_head = create_files(files, now_s, Entry(type="admin", event="audit:new_chain", reason=reason, details=details))
    replace_audit_head(files.core_database, str(new_head))
    return NewChain(daemon_id=new_head.daemon_id, set_aside=str(aside), old_head=old_head, old_problem=verdict.problem)


def _existing_files(files: Files) -> list[Path]:
    """The old chain's files, the key last: without it nothing else can be checked."""
    database = (files.database.with_name(files.database.name + ending) for ending in ("", "-wal", "-shm"))
    mirrors = sorted(files.mirror.parent.glob(f"{files.mirror.name}*"))
    return [path for path in (*database, files.anchor, *mirrors, files.key) if path.exists()]


def _new_folder(parent: Path, name: str) -> Path:
    parent.mkdir(mode=0o700, exist_ok=True)
    folder, number = parent / name, 1
    while folder.exists():
        number += 1
        folder = parent / f"{name}-{number}"
    folder.mkdir(mode=0o700)
    sync_folder(parent)
    return folder
