"""Exports the audit, or a part of it: JSON lines that keep the chain and can be verified on their own, or CSV for a spreadsheet.

A JSON export has a first line with the position before its first row, and a last line signed like a checkpoint: without it the
export is incomplete. Without the key the chain can be checked, with the key also that this daemon wrote it.
"""

import csv
import hashlib
import hmac
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ksi_daemon.audit.chain import Broken, Head, Macs, checked
from ksi_daemon.audit.entry import COLUMNS, Row
from ksi_daemon.audit.files import SELECT, Files, reading, rows_after
from ksi_daemon.audit.line import line_of, row_of
from ksi_daemon.audit.reading import Filter, conditions
from ksi_daemon.audit.signed_head import SignedHead
from ksi_daemon.audit.verification import Verdict
from ksi_daemon.errors import Conflict
from ksi_daemon.logs.log import printable
from ksi_daemon.storage.database_file import sync_folder

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


class Exported(msgspec.Struct, frozen=True):
    """A finished export."""

    path: str
    rows: int
    first_seq: int | None
    last_seq: int | None


class _Beginning(msgspec.Struct, frozen=True, kw_only=True):
    export: str = "ksi audit 1"
    daemon_id: str
    after_seq: int
    after_hash: str


class _End(msgspec.Struct, frozen=True, kw_only=True):
    end: int  # the last row's seq
    hash: str
    rows: int
    mac: str = ""

    def signature(self, key: bytes, beginning: _Beginning) -> str:
        signed = msgspec.json.encode([beginning, msgspec.structs.replace(self, mac="")])
        return hmac.new(key, signed, hashlib.sha256).hexdigest()


def export_jsonl(
    files: Files, path: Path, *, daemon_id: str, after: Head, through: int, group_end: int, macs: Macs
) -> Exported:
    """Write the rows after `after` up to `through`, checking each on the way. Raises `Broken` at an invalid row.

    `group_end` is the last row of the last group: the MAC there covers the rows up to `through`.
    """
    beginning = _Beginning(daemon_id=daemon_id, after_seq=after.seq, after_hash=after.hash.hex())
    end = _End(end=after.seq, hash=after.hash.hex(), rows=0)
    with _new_file(path) as out, reading(files.database) as connection:
        out.write(msgspec.json.encode(beginning) + b"\n")
        rows = _written(rows_after(connection, daemon_id, after.seq, group_end), out, through)
        for seq, row_hash in checked(rows, daemon_id=daemon_id, after=after, macs=macs):
            if seq <= through:
                end = _End(end=seq, hash=row_hash.hex(), rows=end.rows + 1)
        end = msgspec.structs.replace(end, mac=end.signature(macs.key, beginning))
        out.write(msgspec.json.encode(end) + b"\n")
    return Exported(str(path), end.rows, after.seq + 1 if end.rows else None, end.end if end.rows else None)


def _written(rows: Iterator[Row], out: BinaryIO, through: int) -> Iterator[Row]:
    for row in rows:
        if row[1] <= through:  # type: ignore[operator]
            out.write(line_of(row) + b"\n")
        yield row


def verify_export(path: Path, key: bytes | None = None, *, against: SignedHead | None = None) -> Verdict:
    """Check an export by itself; with the daemon's key also that this daemon wrote it; also against a head kept elsewhere."""
    good, rows, beginning = 0, 0, None
    try:
        with path.open("rb") as lines:
            beginning = msgspec.json.decode(next(lines, b""), type=_Beginning)
            after = Head(beginning.after_seq, bytes.fromhex(beginning.after_hash))
            good, last_hash = after.seq, after.hash
            reader = _ExportLines(lines)
            for seq, row_hash in checked(reader.rows(after.seq), daemon_id=beginning.daemon_id, after=after):
                good, last_hash, rows = seq, row_hash, rows + 1
                if against is not None and seq == against.seq and row_hash != against.hash:
                    raise Broken(after.seq + 1, f"the chain was recomputed: row {seq} is not the one of the given head")
            if against is not None:
                _refuse_other_chain(against, key, beginning=beginning, last=good)
        end = reader.end
        if end is None or (end.end, end.hash, end.rows) != (good, last_hash.hex(), rows):
            raise Broken(good + 1, "the end is missing: the export was truncated")
        if key is not None and not hmac.compare_digest(end.mac, end.signature(key, beginning)):
            raise Broken(after.seq + 1, "the chain was recomputed: its end is not signed by this daemon")
    except (Broken, msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        bad = error.seq if isinstance(error, Broken) else good + 1
        return Verdict(ok=False, rows=rows, last_seq=good, first_bad_seq=bad, problem=str(error))
    return Verdict(ok=True, rows=rows, daemon_id=beginning.daemon_id, first_seq=after.seq + 1, last_seq=good)


def _refuse_other_chain(against: SignedHead, key: bytes | None, *, beginning: _Beginning, last: int) -> None:
    if against.daemon_id != beginning.daemon_id:
        raise ValueError(f"the head is of the chain {against.daemon_id}, but the export is of {beginning.daemon_id}")
    if not beginning.after_seq < against.seq <= last:
        raise ValueError(
            f"the head's row {against.seq} is not in the export: it has rows {beginning.after_seq + 1} to {last}"
        )
    if key is not None and not against.is_signed_with(key):
        raise ValueError("the head is not signed with the key of this daemon")


class _ExportLines:
    """The rows of an export's lines, and its last line, once it was read."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines
        self.end: _End | None = None

    def rows(self, seq: int) -> Iterator[Row]:
        for line in self._lines:
            if self.end is not None:
                raise Broken(seq + 1, "there are lines after the end")
            if line.startswith(b'{"end":'):
                self.end = msgspec.json.decode(line, type=_End)
                continue
            seq += 1
            try:
                row = row_of(line)
            except ValueError as error:
                raise Broken(seq, str(error)) from error
            yield row


def export_csv(files: Files, path: Path, wanted: Filter) -> Exported:
    """Write the matching rows as CSV, oldest first. Cells cannot be spreadsheet formulas or terminal escapes."""
    where, values = conditions(wanted)
    rows: int = 0
    first: int | None = None
    last: int | None = None
    with _new_file(path) as out, reading(files.database) as connection:
        text = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=True)
        table = csv.writer(text)
        table.writerow(COLUMNS)
        for row in connection.execute(f"{SELECT} WHERE {where} ORDER BY daemon_id, seq", values):
            table.writerow([_cell(value) for value in row])
            rows, first, last = rows + 1, first or row[1], row[1]
        text.detach()
    return Exported(str(path), rows, first, last)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.hex()
    if not isinstance(value, str):
        return str(value)
    shown = value if value.isprintable() else printable(value)
    return "'" + shown if value.startswith(FORMULA_STARTS) else shown


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """A private file that appears under its name only when it is complete and durable. Never overwrites."""
    if path.exists():
        raise Conflict(f"{path} already exists", hint="choose another file name")
    unfinished = path.with_name(path.name + ".unfinished")
    handle = os.open(unfinished, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb", buffering=1_000_000) as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.link(unfinished, path)  # unlike a rename, fails if the file was created meanwhile
        sync_folder(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)
