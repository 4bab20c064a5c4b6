"""A database as a file: created so that a kill cannot leave a partial file, checked before it is used, migrated step by step.

A file is never silently replaced: one that is corrupt, cut, empty, foreign, newer, or missing although it once existed is refused
with the remedy in the message, and is not modified.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ksi_daemon.errors import BadData

APPLICATION_ID = 0x4B534931  # "KSI1": distinguishes KSI's files from other SQLite databases
QUICK_CHECK_LIMIT_BYTES = 256_000_000  # above this a complete check would delay the start; `ksi doctor` still runs it
WAL_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")


def prepare_file(path: Path, migrations: Sequence[str]) -> None:
    """Check an existing database or create a new one, then migrate it."""
    marker = path.with_name(path.name + ".created")
    if path.exists():
        refuse_damage(path, len(migrations))
    elif marker.exists():
        raise BadData(
            f"{path} is missing, but {marker.name} shows that it once held data. Restore it from a backup; "
            f"or, to start with an empty one, move {_existing_files(path)} away."
        )
    else:
        _refuse_leftover_log(path)
        create_file(path)
    with opened(path) as connection:
        migrate_file(connection, migrations)
        connection.execute("PRAGMA journal_mode = WAL")
    if not marker.exists():
        write_durably(marker, b"The database beside this file holds data: it must not be missing.\n")


def refuse_damage(path: Path, newest: int, *, recovery_hint: str | None = None) -> None:
    """Raise `BadData`, with the remedy, unless the file is an intact KSI database with a schema this program knows."""
    recovery_hint = (
        recovery_hint or f"Restore it from a backup; or, to start with an empty one, move {_existing_files(path)} away."
    )
    size = path.stat().st_size
    if size == 0:
        raise BadData(f"{path} is empty: it was truncated or replaced. {recovery_hint}")
    if not _starts_with(path, b"SQLite format 3\x00"):
        raise BadData(f"{path} is not a valid database: its header was overwritten. {recovery_hint}")
    wal = path.with_name(path.name + "-wal")
    has_log = _has_log(path)
    if has_log and not _starts_with(wal, *WAL_MAGIC):
        raise BadData(f"{wal} is not a valid write-ahead log: the changes in it are lost. {recovery_hint}")
    if not has_log and size % _page_bytes(path):
        raise BadData(f"{path} ends in the middle of a page: it was truncated. {recovery_hint}")
    try:
        with opened_read_only(path) as connection:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            check = "ok"
            if size <= QUICK_CHECK_LIMIT_BYTES:
                check = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise BadData(f"{path} is damaged ({error}). {recovery_hint}") from error
    if check != "ok":
        raise BadData(f"{path} is damaged ({check}). {recovery_hint}")
    if application != APPLICATION_ID:
        raise BadData(f"{path} is a SQLite database, but was not made by KSI. {recovery_hint}")
    if version > newest:
        raise BadData(
            f"{path} has schema {version}, this program knows {newest}: a newer KSI wrote it. "
            "Run that version, or restore an older backup."
        )


def _existing_files(path: Path) -> str:
    """All existing files of a database, as text: a file left behind would be taken for a part of the next database."""
    files = [Path(f"{path}{ending}") for ending in ("", ".created", "-wal", "-shm")]
    return ", ".join(f"'{file}'" for file in files if file.exists())


def _refuse_leftover_log(path: Path) -> None:
    wal = path.with_name(path.name + "-wal")
    if _has_log(path):
        raise BadData(
            f"'{wal}' holds changes to a database that is missing. Restore the database beside it; or, to start with an "
            f"empty one, move {_existing_files(path)} away."
        )


def _page_bytes(path: Path) -> int:
    """The page size that the file's header names; 1 if it is zero, which a later check reports."""
    with path.open("rb") as file:
        header = file.read(18)
    size = int.from_bytes(header[16:18], "big")
    return 65_536 if size == 1 else max(size, 1)


def _has_log(path: Path) -> bool:
    """Whether there are changes in a write-ahead log."""
    wal = path.with_name(path.name + "-wal")
    return wal.exists() and wal.stat().st_size > 0


@contextmanager
def opened_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Read-only: a refused file and its log must stay unmodified, so that they can be repaired."""
    options = "mode=ro" if _has_log(path) else "immutable=1"
    connection = sqlite3.connect(f"{path.as_uri()}?{options}", uri=True, isolation_level=None)
    try:
        connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.OperationalError:  # a log without its index can only be read by a connection that may write
        connection.close()
        connection = sqlite3.connect(path, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def _starts_with(path: Path, *beginnings: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(max(map(len, beginnings))).startswith(beginnings)


def create_file(path: Path) -> None:
    """Create the file under a temporary name, so that a kill never leaves an empty file that looks like lost data."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    with opened(temporary) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    temporary.rename(path)
    sync_folder(path.parent)


def migrate_file(connection: sqlite3.Connection, migrations: Sequence[str]) -> None:
    """Each step in one transaction with its number: after a kill it is applied completely or not at all."""
    done: int = connection.execute("PRAGMA user_version").fetchone()[0]
    for number, script in enumerate(migrations[done:], start=done + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements(script):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise BadData(
                f"migration {number} of {connection_path(connection)} failed: {error}. It was rolled back."
            ) from error


def statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one: `executescript` would commit before it starts."""
    rest = ""
    for piece in script.split(";"):
        rest += piece
        if sqlite3.complete_statement(rest + ";"):
            if rest.strip():
                yield rest.strip()
            rest = ""
        else:
            rest += ";"
    if rest.strip(" ;\n\t"):
        yield rest.strip()


def connection_path(connection: sqlite3.Connection) -> str:
    """The file a connection has open."""
    return str(connection.execute("PRAGMA database_list").fetchone()[2])


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A blocking connection, for the start."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        yield connection
    finally:
        connection.close()


def write_durably(path: Path, content: bytes) -> None:
    """Write a small private file; it is durable when this returns."""
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, content)
        os.fsync(handle)
    finally:
        os.close(handle)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
