"""Witnesses of the chain outside its database and anchor: the checkpoints in the log, the mirror, and the head in `ksi.db`.

A cut tail leaves a chain that is valid in itself. It is found unless every witness was rolled back with it.
"""

import re
import sqlite3
from pathlib import Path
from typing import NamedTuple

from ksi_daemon.audit.files import Files
from ksi_daemon.audit.mirror import last_mirrored
from ksi_daemon.audit.signed_head import PATTERN, SignedHead, parse_head
from ksi_daemon.errors import BadData
from ksi_daemon.storage.audit_head import read_audit_head

LOG_TAIL_BYTES = 4_000_000  # a checkpoint is logged every 1,000 rows or 60 s
_HEAD = re.compile(PATTERN.encode())


class Witness(NamedTuple):
    """That the chain has, or had, this row with this hash; `source` is the name of what shows it."""

    source: str
    seq: int
    hash: str


def witnesses(files: Files, daemon_id: str, key: bytes) -> list[Witness]:
    """What each witness shows about this daemon's chain. Raises `BadData` when `ksi.db` knows of another chain."""
    found: list[Witness] = []
    if (in_core := read_core_head(files)) is not None:
        if in_core.daemon_id != daemon_id or not in_core.is_signed_with(key):
            raise BadData(
                f"{files.core_database} knows of the audit {in_core.daemon_id} with row {in_core.seq}, but {files.anchor} and "
                f"{files.key} are those of the audit {daemon_id}: they were replaced. {files.recovery_hint}"
            )
        found.append(Witness(str(files.core_database), in_core.seq, in_core.hash.hex()))
    if (logged := _last_head_in_log(files.log, daemon_id, key)) is not None:
        found.append(Witness(str(files.log), logged.seq, logged.hash.hex()))
    row = last_mirrored(files.mirror) or last_mirrored(files.mirror.with_name(f"{files.mirror.name}.1"))
    if row is not None and row.daemon_id == daemon_id:
        found.append(Witness(str(files.mirror), row.seq, row.hash))
    return found


def read_core_head(files: Files) -> SignedHead | None:
    """The head in `ksi.db`. Raises `BadData` when it is not a head."""
    try:
        text = read_audit_head(files.core_database)
        return None if text is None else parse_head(text)
    except (ValueError, sqlite3.Error) as error:
        raise BadData(
            f"the audit's head in {files.core_database} cannot be read: {error}. {files.recovery_hint}"
        ) from error


def refuse_deleted_audit(files: Files) -> None:
    """Raises `BadData` when `ksi.db` knows of an audit. Called when the audit's own files are missing."""
    if (head := read_core_head(files)) is not None:
        raise BadData(
            f"{files.core_database} knows of the audit {head.daemon_id} with {head.seq} rows, but {files.database}, {files.anchor} "
            f"and {files.key} are missing: they were deleted. {files.recovery_hint}"
        )


def _last_head_in_log(path: Path, daemon_id: str, key: bytes) -> SignedHead | None:
    """The last head that this daemon signed in the log, or in the file before it when it has just been rotated."""
    for file in (path, path.with_name(f"{path.name}.1")):
        for found in reversed(_HEAD.findall(_tail(file))):
            head = parse_head(f"ksi-audit-head:{b':'.join(found).decode()}")
            if head.daemon_id == daemon_id and head.is_signed_with(key):
                return head
    return None


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - LOG_TAIL_BYTES))
            return file.read()
    except OSError:  # a log that cannot be read shows no more than one that is gone; `ksi doctor` and an alarm name it
        return b""
