"""The SQLite engine: one writer with a queue, a few readers; the only file that imports aiosqlite.

`database_file` creates, checks and migrates the file.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiosqlite

from ksi_daemon.errors import BadData, Unavailable
from ksi_daemon.storage.database_file import prepare_file, statements

READERS = 2
GROUP_LIMIT = 256
CLOSE_LIMIT_S = 2.0

Row = sqlite3.Row
DatabaseError = sqlite3.DatabaseError


Statement = tuple[str, Sequence[Sequence[Any]]]  # SQL, and the parameters of each run of it


@dataclass(slots=True)
class _Write:
    """Statements that wait for their turn in a group commit: all of them, or none."""

    statements: Sequence[Statement]
    done: asyncio.Future["_Write"]
    changed: int = 0
    returned: list[Row] = field(default_factory=list)
    error: Exception | None = None


class _WriterConnection(sqlite3.Connection):
    """The writer's connection. Its `commit` writes the whole `group` first: in one visit to its thread, instead of one for each statement."""

    group: Sequence[_Write] = ()

    def commit(self) -> None:
        if not self.group:
            super().commit()
            return
        group, self.group = self.group, ()
        self.execute("BEGIN IMMEDIATE")
        for write in group:
            if not write.done.cancelled():
                self._run(write)
        self.execute("COMMIT")

    def _run(self, write: _Write) -> None:
        """Run one write; if it fails, nothing of it stays."""
        try:
            self.execute("SAVEPOINT one_write")
            for sql, rows in write.statements:
                for params in rows:
                    cursor = self.execute(sql, params)
                    write.returned += cursor.fetchall()
                    write.changed += max(0, cursor.rowcount)
            self.execute("RELEASE one_write")
        except Exception as error:
            if not self.in_transaction:
                raise
            self.execute("ROLLBACK TO one_write")
            self.execute("RELEASE one_write")
            write.error = error


@dataclass(slots=True)
class _Turn:
    """A transaction's turn at the writer: it owns the connection from `granted` until `ended`."""

    granted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    ended: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    closed: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Transaction:
    """What runs inside `Database.transaction()`: all of it is committed, or nothing."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    async def execute(self, sql: str, *params: Any) -> int:
        """Run one statement; returns how many rows it changed."""
        async with self._connection.execute(sql, params) as cursor:
            return cursor.rowcount

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run one statement for each row; returns how many rows changed."""
        if not rows:
            return 0
        async with self._connection.executemany(sql, rows) as cursor:
            return max(0, cursor.rowcount)

    async def fetch(self, sql: str, *params: Any) -> list[Row]:
        """All rows, seeing this transaction's own changes."""
        return list(await self._connection.execute_fetchall(sql, params))


class Database:
    """One SQLite file. Writes queue for the one writer and commit in groups; reads run beside them."""

    def __init__(
        self, path: Path, writer: aiosqlite.Connection, connection: _WriterConnection, migrations: Sequence[str]
    ) -> None:
        self.path = path
        self.migrations = tuple(migrations)
        self._writer = writer
        self._connection = connection  # what the writer wraps
        self._waiting: deque[_Write | _Turn] = deque()
        self._arrived = asyncio.Event()
        self._closing = False
        self._readers: asyncio.LifoQueue[aiosqlite.Connection | None] = asyncio.LifoQueue()
        self._open_readers: list[aiosqlite.Connection] = []
        for _ in range(READERS):
            self._readers.put_nowait(None)

    async def fetch(self, sql: str, *params: Any) -> list[Row]:
        """All rows of a query."""
        reader = await self._readers.get()
        try:
            if reader is None:
                reader = await self._open_reader()
            return list(await reader.execute_fetchall(sql, params))
        finally:
            self._readers.put_nowait(reader)

    async def fetch_one(self, sql: str, *params: Any) -> Row | None:
        """The first row of a query, or None."""
        rows = await self.fetch(sql, *params)
        return rows[0] if rows else None

    async def execute(self, sql: str, *params: Any) -> int:
        """Run one statement; returns how many rows it changed, once that is durable."""
        return (await self._write([(sql, [params])])).changed

    async def execute_all(self, statements: Sequence[Statement]) -> int:
        """Run several statements, all or none, without holding up other writes as `transaction` does; returns how many rows changed."""
        return (await self._write(statements)).changed

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run one statement for each row, all or none; returns how many rows changed, once that is durable."""
        return (await self._write([(sql, rows)])).changed

    async def execute_returning(self, sql: str, *params: Any) -> list[Row]:
        """Run one statement that ends in RETURNING; its rows, once they are durable."""
        return (await self._write([(sql, [params])])).returned

    async def _write(self, statements: Sequence[Statement]) -> _Write:
        write = _Write(statements, asyncio.get_running_loop().create_future())
        self._enqueue(write)
        return await write.done

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Several statements, all or none. Other writes wait meanwhile: keep it short."""
        turn = _Turn()
        self._enqueue(turn)
        try:
            await turn.granted
            yield Transaction(self._writer)
        except BaseException:
            turn.ended.set_result(False)
            raise
        turn.ended.set_result(True)
        await turn.closed

    async def migrate(self, migrations: Sequence[str]) -> None:
        """Apply new migrations while open. Changed earlier migrations are refused."""
        known = len(self.migrations)
        if tuple(migrations[:known]) != self.migrations:
            raise BadData(
                f"the first {known} migrations of {self.path.name} are already applied: add new ones at the end and change none of these"
            )
        for number, script in enumerate(migrations[known:], start=known + 1):
            try:
                async with self.transaction() as step:
                    for statement in statements(script):
                        await step.execute(statement)
                    await step.execute(f"PRAGMA user_version = {number}")
            except sqlite3.Error as error:
                raise BadData(f"migration {number} of {self.path.name} failed: {error}. It was rolled back.") from error
            self.migrations = tuple(migrations[:number])

    async def _open_reader(self) -> aiosqlite.Connection:
        opening = asyncio.create_task(_connect(self.path))
        try:
            reader = await asyncio.shield(opening)
        except asyncio.CancelledError:  # otherwise nothing closes it, and its thread keeps the process alive
            await (await opening).close()
            raise
        self._open_readers.append(reader)
        await reader.execute("PRAGMA query_only = ON")
        return reader

    async def _write_forever(self) -> None:
        """Serve the queue in order until the database is closed and the queue is empty."""
        while self._waiting or not self._closing:
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            job = self._waiting.popleft()
            if isinstance(job, _Turn):
                await self._give_turn(job)
                continue
            group = [job]
            while self._waiting and len(group) < GROUP_LIMIT and isinstance(following := self._waiting[0], _Write):
                group.append(following)
                self._waiting.popleft()
            await self._commit(group)

    def _enqueue(self, job: _Write | _Turn) -> None:
        if self._closing:
            raise Unavailable(f"the database {self.path.name} is closed")
        self._waiting.append(job)
        self._arrived.set()

    async def _commit(self, group: list[_Write]) -> None:
        """One transaction for the whole group; a failing statement fails only its own caller."""
        try:
            self._connection.group = group
            await self._writer.commit()
        except BaseException as error:
            _fail([write.done for write in group], error)
            with suppress(sqlite3.Error):
                await self._writer.rollback()
            if not isinstance(error, Exception):
                raise
        for write in group:
            if write.error is not None:
                _fail([write.done], write.error)
            elif not write.done.done():
                write.done.set_result(write)

    async def _give_turn(self, turn: _Turn) -> None:
        """Grant the connection to a transaction and wait until it ends. The caller may be cancelled at any time."""
        try:
            await self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            _fail([turn.granted], error)
            return
        keep = False
        if not turn.granted.done():
            turn.granted.set_result(None)
            keep = await turn.ended
        try:
            await (self._writer.commit() if keep else self._writer.rollback())
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                await self._writer.rollback()
            if keep:
                _fail([turn.closed], error)
        if not turn.closed.done():
            turn.closed.set_result(None)

    async def _close(self, writing: asyncio.Task[None]) -> None:
        """Let the writer finish the queue; a transaction that is still open after that is rolled back."""
        self._closing = True
        self._arrived.set()
        _, late = await asyncio.wait([writing], timeout=CLOSE_LIMIT_S)
        if late:
            writing.cancel()
            await asyncio.wait(late)
        for job in self._waiting:
            (job.granted if isinstance(job, _Turn) else job.done).cancel()
        for reader in self._open_readers:
            await reader.close()


def _fail(waiting: list[asyncio.Future[Any]], error: BaseException) -> None:
    for future in waiting:
        if not future.done():
            future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())


@asynccontextmanager
async def open_database(path: Path, migrations: Sequence[str]) -> AsyncIterator[Database]:
    """Open a database, created or migrated first. Raises `BadData` if the file is damaged."""
    await asyncio.to_thread(prepare_file, path, migrations)
    async with AsyncExitStack() as stack:
        made: list[_WriterConnection] = []

        def make(*args: Any, **kwargs: Any) -> _WriterConnection:
            made.append(_WriterConnection(*args, **kwargs))
            return made[0]

        writer = await _connect(path, factory=make)
        stack.push_async_callback(writer.close)
        database = Database(path, writer, made[0], migrations)
        writing = asyncio.create_task(database._write_forever(), name=f"writer of {path.name}")
        stack.push_async_callback(database._close, writing)
        yield database


async def _connect(path: Path, **options: Any) -> aiosqlite.Connection:
    connection = await aiosqlite.connect(path, isolation_level=None, **options)
    try:
        await _configure(connection)
    except BaseException:  # its thread would keep the process from ending
        await connection.close()
        raise
    return connection


async def _configure(connection: aiosqlite.Connection) -> None:
    connection.row_factory = sqlite3.Row
    for pragma in (
        "synchronous = FULL",
        "busy_timeout = 5000",
        "foreign_keys = ON",
        "trusted_schema = OFF",
        "journal_size_limit = 67108864",
    ):
        await connection.execute(f"PRAGMA {pragma}")
