"""A database as a file: made so that a kill half-way leaves nothing odd, checked before it is trusted, migrated step by step.

A file is never silently replaced: one that is corrupt, cut, empty, foreign, newer, or gone though it once existed is refused
with the way out in the message, and keeps its bytes.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ksi_daemon.errors import BadData

APPLICATION_ID = 0x4B534931  # "KSI1": tells our files from any other SQLite database
QUICK_CHECK_LIMIT_BYTES = 256_000_000  # above this a whole check would delay the start; `ksi doctor` still makes it
WAL_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")


def prepare_file(path: Path, migrations: Sequence[str]) -> None:
    """Check what is there, make what is not, migrate what is old."""
    marker = path.with_name(path.name + ".created")
    if path.exists():
        refuse_damage(path, len(migrations))
    elif marker.exists():
        raise BadData(
            f"{path} is gone, though {marker.name} shows that it once held data. Restore it from a backup; "
            f"or, to start with an empty one, move {_all_of_it(path)} away."
        )
    else:
        _refuse_leftover_log(path)
        create_file(path)
    with opened(path) as connection:
        migrate_file(connection, migrations)
        connection.execute("PRAGMA journal_mode = WAL")
    if not marker.exists():
        write_durably(marker, b"The database beside this file holds data: it must not be missing.\n")


def refuse_damage(path: Path, newest: int, *, way_out: str | None = None) -> None:
    """Raise `BadData`, with the way out, unless the file is a whole database of ours with a schema this program knows."""
    way_out = way_out or f"Restore it from a backup; or, to start with an empty one, move {_all_of_it(path)} away."
    size = path.stat().st_size
    if size == 0:
        raise BadData(f"{path} is empty: it was cut or replaced. {way_out}")
    if not _starts_with(path, b"SQLite format 3\x00"):
        raise BadData(f"{path} is not a database any more: its beginning was overwritten. {way_out}")
    wal = path.with_name(path.name + "-wal")
    has_log = wal.exists() and wal.stat().st_size > 0
    if has_log and not _starts_with(wal, *WAL_MAGIC):
        raise BadData(f"{wal} is not a write-ahead log: changes that were in it are lost. {way_out}")
    if not has_log and size % _page_bytes(path):
        raise BadData(f"{path} ends in the middle of a page: it was cut. {way_out}")
    try:
        with _opened_to_look(path, has_log=has_log) as connection:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            sound = "ok"
            if size <= QUICK_CHECK_LIMIT_BYTES:
                sound = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise BadData(f"{path} is damaged ({error}). {way_out}") from error
    if sound != "ok":
        raise BadData(f"{path} is damaged ({sound}). {way_out}")
    if application != APPLICATION_ID:
        raise BadData(f"{path} is a SQLite database, but none that KSI made. {way_out}")
    if version > newest:
        raise BadData(
            f"{path} has schema {version}, this program knows {newest}: a newer KSI wrote it. "
            "Run that version, or restore an older backup."
        )


def _all_of_it(path: Path) -> str:
    """Every file that belongs to a database: one left behind would be taken for a part of the next."""
    files = [Path(f"{path}{ending}") for ending in ("", ".created", "-wal", "-shm")]
    return ", ".join(f"'{file}'" for file in files if file.exists())


def _refuse_leftover_log(path: Path) -> None:
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size > 0:
        raise BadData(
            f"'{wal}' holds changes to a database that is not there. Put the database back beside it; or, to start with an "
            f"empty one, move {_all_of_it(path)} away."
        )


def _page_bytes(path: Path) -> int:
    """The page size that the file's header names; 1 when it names none, which the next check will tell."""
    with path.open("rb") as file:
        header = file.read(18)
    size = int.from_bytes(header[16:18], "big")
    return 65_536 if size == 1 else max(size, 1)


@contextmanager
def _opened_to_look(path: Path, *, has_log: bool) -> Iterator[sqlite3.Connection]:
    """Read-only: a file that is refused must keep its bytes, and its log, for whoever mends it."""
    how = "mode=ro" if has_log else "immutable=1"
    connection = sqlite3.connect(f"{path.as_uri()}?{how}", uri=True, isolation_level=None)
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
    """Under another name first, so that a kill half-way never leaves an empty file that looks like lost data."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    with opened(unfinished) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    unfinished.rename(path)
    sync_folder(path.parent)


def migrate_file(connection: sqlite3.Connection, migrations: Sequence[str]) -> None:
    """Each step in one transaction with its number: after a kill it is all there or not at all."""
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
                f"migration {number} of {connection_path(connection)} failed: {error}. Nothing of it was kept."
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
    """A blocking connection for the start, closed at the end."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        yield connection
    finally:
        connection.close()


def write_durably(path: Path, content: bytes) -> None:
    """Write a small private file, there to stay when this returns."""
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
