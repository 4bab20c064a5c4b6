"""The SQLite engine: what was acknowledged is there, what failed left nothing, and a damaged file is refused with its bytes untouched."""

import asyncio
import contextlib
import shutil
import sqlite3
import stat
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksi_daemon.errors import BadData
from ksi_daemon.storage.database_file import statements
from ksi_daemon.storage.sqlite import Database, open_database
from tests.cases import case
from tests.in_process import WAIT_S, soon, until

NUMBERS = ["CREATE TABLE numbers (number INTEGER PRIMARY KEY, word TEXT)"]
INSERT = "INSERT INTO numbers (number, word) VALUES (?, ?)"


async def numbers(database: Database) -> list[int]:
    return [row["number"] for row in await soon(database.fetch("SELECT number FROM numbers ORDER BY number"))]


def bytes_of(path: Path) -> dict[str, bytes]:
    """Everything that belongs to a database, but for the log's index, which is only a cache, and a log that holds nothing."""
    found = {file.name: file.read_bytes() for file in sorted(path.parent.iterdir()) if not file.name.endswith("-shm")}
    return {name: content for name, content in found.items() if content or not name.endswith("-wal")}


# --- writing


async def test_a_write_is_durable_when_it_returns_and_seen_by_every_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with open_database(path, NUMBERS) as database:
        assert await database.execute(INSERT, 1, "one") == 1
        with sqlite3.connect(path) as other:
            assert other.execute("SELECT word FROM numbers").fetchall() == [("one",)]
        other.close()
        row = await database.fetch_one("SELECT * FROM numbers WHERE number = ?", 1)
        assert row is not None
        assert row["word"] == "one"
        assert await database.fetch_one("SELECT * FROM numbers WHERE number = ?", 2) is None
        assert await database.execute("UPDATE numbers SET word = 'uno'") == 1
        assert [row["word"] for row in await database.execute_returning("DELETE FROM numbers RETURNING word")] == [
            "uno"
        ]


async def test_writes_are_kept_in_the_order_they_were_sent(tmp_path: Path) -> None:
    async with open_database(
        tmp_path / "a.db", ["CREATE TABLE log (id INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER)"]
    ) as database:
        await soon(
            asyncio.gather(*(database.execute("INSERT INTO log (number) VALUES (?)", number) for number in range(600)))
        )
        rows = await database.fetch("SELECT number FROM log ORDER BY id")
        assert [row["number"] for row in rows] == list(range(600))


BAD_WRITES: dict[str, Callable[[Database], Awaitable[Any]]] = {
    "a constraint": lambda database: database.execute(INSERT, 1, "again"),
    "no such table": lambda database: database.execute("INSERT INTO nowhere VALUES (1)"),
    "no SQL": lambda database: database.execute("nonsense"),
    "two statements": lambda database: database.execute("DELETE FROM numbers; DELETE FROM numbers"),
    "too few parameters": lambda database: database.execute(INSERT, 1),
    "an object": lambda database: database.execute(INSERT, 5, object()),
    "a number too large": lambda database: database.execute(INSERT, 2**70, "x"),
    "a lone surrogate": lambda database: database.execute(INSERT, 5, "\ud800"),
    "a lone surrogate in the SQL": lambda database: database.execute("SELECT '\ud800'"),
    "a zero in the SQL": lambda database: database.execute("DELETE FROM numbers \0"),
    "rows that are none": lambda database: database.execute_many(INSERT, 5),  # type: ignore[arg-type]
    "a row that is none": lambda database: database.execute_many(INSERT, [5]),  # type: ignore[list-item]
    "half of many": lambda database: database.execute_many(INSERT, [(6, "x"), (7, "x"), (1, "again")]),
}


async def test_a_write_that_fails_fails_alone_in_its_group_and_leaves_nothing(tmp_path: Path) -> None:
    for name, bad_write in BAD_WRITES.items():
        with case(name):
            async with open_database(tmp_path / f"{name}.db", NUMBERS) as database:
                await soon(database.execute(INSERT, 1, "one"))
                before, bad, after, later = await asyncio.wait_for(
                    asyncio.gather(
                        database.execute(INSERT, 2, "two"),
                        bad_write(database),
                        database.execute(INSERT, 3, "three"),
                        database.execute_many(INSERT, [(4, "four"), (5, "five")]),
                        return_exceptions=True,
                    ),
                    WAIT_S,
                )
                assert isinstance(bad, Exception)
                assert (before, after, later) == (1, 1, 2)
                assert await numbers(database) == [1, 2, 3, 4, 5]
                assert await soon(database.execute(INSERT, 9, "the writer lives")) == 1


async def test_statements_that_would_end_the_group_can_take_no_acknowledged_write_with_them(tmp_path: Path) -> None:
    """What was acknowledged is there, whatever a neighbour in the group tries."""
    for statement in ("ROLLBACK", "COMMIT", "BEGIN", "ROLLBACK TO one_write", "RELEASE one_write", "SAVEPOINT mine"):
        path = tmp_path / f"{statement.replace(' ', '_')}.db"
        async with open_database(path, NUMBERS) as database:
            outcomes = await asyncio.wait_for(
                asyncio.gather(
                    *(database.execute(INSERT, number, "x") for number in (1, 2)),
                    database.execute(statement),
                    *(database.execute(INSERT, number, "x") for number in (3, 4)),
                    return_exceptions=True,
                ),
                WAIT_S,
            )
            acknowledged = {
                number for number, outcome in zip((1, 2, 0, 3, 4), outcomes, strict=True) if outcome == 1 and number
            }
            assert await soon(database.execute(INSERT, 9, "the writer lives")) == 1
            assert acknowledged | {9} <= set(await numbers(database))


async def test_a_write_whose_caller_went_away_before_its_turn_is_not_made(tmp_path: Path) -> None:
    async with open_database(tmp_path / "a.db", NUMBERS) as database, database.transaction() as transaction:
        waiting = asyncio.create_task(database.execute(INSERT, 1, "x"))
        await asyncio.sleep(0)
        waiting.cancel()
        await transaction.execute(INSERT, 2, "x")
    async with open_database(tmp_path / "a.db", NUMBERS) as database:
        assert await numbers(database) == [2]


# --- transactions


async def test_a_transaction_is_all_or_nothing(tmp_path: Path) -> None:
    async with open_database(tmp_path / "a.db", NUMBERS) as database:
        async with database.transaction() as transaction:
            await transaction.execute(INSERT, 1, "x")
            await transaction.execute(INSERT, 2, "x")
            assert await transaction.execute_many(INSERT, [(11, "x"), (12, "x")]) == 2
            assert await transaction.execute_many(INSERT, []) == 0
            assert await transaction.execute("DELETE FROM numbers WHERE number > 10") == 2
            assert len(await transaction.fetch("SELECT * FROM numbers")) == 2
            assert await numbers(database) == []
        assert await numbers(database) == [1, 2]

        async def fail() -> None:
            async with database.transaction() as transaction:
                await transaction.execute(INSERT, 3, "x")
                raise ZeroDivisionError

        async def collide() -> None:
            async with database.transaction() as transaction:
                await transaction.execute(INSERT, 4, "x")
                await transaction.execute(INSERT, 1, "again")

        with pytest.raises(ZeroDivisionError):
            await fail()
        with pytest.raises(sqlite3.IntegrityError):
            await collide()
        assert await soon(database.execute(INSERT, 5, "x")) == 1
        assert await numbers(database) == [1, 2, 5]


@pytest.mark.parametrize("turns", range(0, 40, 2))
async def test_a_read_cancelled_while_its_connection_opens_leaves_no_thread_behind(tmp_path: Path, turns: int) -> None:
    """A thread of a connection that nobody closes keeps the whole process from ending."""
    before = set(threading.enumerate())
    async with open_database(tmp_path / "a.db", NUMBERS) as database:
        task = asyncio.create_task(database.fetch("SELECT * FROM numbers"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=WAIT_S)
        assert task.done()
        assert await numbers(database) == []
    await until(
        lambda: all(thread.name.startswith("asyncio_") for thread in set(threading.enumerate()) - before)
    )  # the loop's own pool stays


async def test_other_writes_wait_for_a_transaction_and_are_not_part_of_it(tmp_path: Path) -> None:
    async with open_database(tmp_path / "a.db", NUMBERS) as database:

        async def fail() -> asyncio.Task[int]:
            with contextlib.suppress(ZeroDivisionError):
                async with database.transaction() as transaction:
                    late = asyncio.create_task(database.execute(INSERT, 3, "x"))
                    await transaction.execute(INSERT, 1, "x")
                    assert not late.done()
                    raise ZeroDivisionError
            return late

        assert await soon(await fail()) == 1
        assert await numbers(database) == [3]


async def test_a_transaction_cancelled_at_any_moment_is_whole_or_absent_and_the_writer_lives(tmp_path: Path) -> None:
    """A deadline may strike while it waits, while it begins, inside, or while it commits."""
    for turns in range(0, 40, 2):
        with case(turns):
            async with open_database(tmp_path / f"{turns}.db", NUMBERS) as database:

                async def work(database: Database) -> None:
                    async with database.transaction() as transaction:
                        await transaction.execute(INSERT, 1, "x")
                        await transaction.execute(INSERT, 2, "x")

                task = asyncio.create_task(work(database))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task], timeout=WAIT_S)
                assert task.done()
                assert await soon(database.execute(INSERT, 9, "the writer lives")) == 1
                assert await numbers(database) in ([9], [1, 2, 9])
                if not task.cancelled():
                    assert await numbers(database) == [1, 2, 9]


async def test_a_transaction_cancelled_while_it_begins_or_commits_leaves_the_writer_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two narrow moments, hit for certain."""
    async with open_database(tmp_path / "a.db", NUMBERS) as database:
        for moment in ("BEGIN IMMEDIATE", "COMMIT"):
            reached = asyncio.Event()
            writer: Any = database._writer
            original_execute, original_commit = writer.execute, writer.commit

            def execute(
                sql: str,
                *rest: Any,
                moment: str = moment,
                original: Any = original_execute,
                reached: asyncio.Event = reached,
            ) -> Any:
                if sql == moment:
                    reached.set()
                return original(sql, *rest)

            async def commit(
                moment: str = moment, original: Any = original_commit, reached: asyncio.Event = reached
            ) -> None:
                if moment == "COMMIT":
                    reached.set()
                await original()

            with monkeypatch.context() as patch:
                patch.setattr(writer, "execute", execute)
                patch.setattr(writer, "commit", commit)

                async def work() -> None:
                    async with database.transaction() as transaction:
                        await transaction.execute(INSERT, 1, "x")

                task = asyncio.create_task(work())
                await soon(reached.wait())
                task.cancel()
                await asyncio.wait([task], timeout=WAIT_S)
            assert await soon(database.execute("DELETE FROM numbers")) in (0, 1)


async def test_reading_goes_on_beside_a_long_transaction_and_sees_nothing_of_it(tmp_path: Path) -> None:
    async with open_database(tmp_path / "a.db", NUMBERS) as database:
        await database.execute(INSERT, 1, "x")
        async with database.transaction() as transaction:
            await transaction.execute(INSERT, 2, "x")
            seen = await soon(asyncio.gather(*(numbers(database) for _ in range(20))))
            assert seen == [[1]] * 20


async def test_a_reader_cannot_write(tmp_path: Path) -> None:
    async with open_database(tmp_path / "a.db", NUMBERS) as database:
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            await database.fetch("INSERT INTO numbers VALUES (1, 'x') RETURNING number")
        assert await numbers(database) == []


async def test_a_query_that_fails_or_is_cancelled_gives_its_reader_back(tmp_path: Path) -> None:
    async with open_database(tmp_path / "a.db", NUMBERS) as database:
        for _ in range(5):
            with pytest.raises(sqlite3.OperationalError):
                await database.fetch("SELECT nonsense")
            task = asyncio.create_task(database.fetch("SELECT 1"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert await numbers(database) == []


async def test_writes_under_way_when_a_database_closes_end_one_way_or_the_other(tmp_path: Path) -> None:
    """And the one way is honest: what was acknowledged is there."""
    for turns in [0, 1, 2, 5, 10]:
        with case(turns):
            path = tmp_path / f"{turns}.db"
            async with open_database(path, NUMBERS) as database:
                writes = [asyncio.create_task(database.execute(INSERT, number, "x")) for number in range(300)]

                async def work(database: Database) -> None:
                    async with database.transaction() as transaction:
                        await transaction.execute(INSERT, 1_000, "x")

                writes.append(asyncio.create_task(work(database)))  # type: ignore[arg-type]
                for _ in range(turns):
                    await asyncio.sleep(0)
            _, stuck = await asyncio.wait(writes, timeout=2)
            for task in stuck:
                task.cancel()
            await asyncio.gather(*writes, return_exceptions=True)
            assert not stuck
            acknowledged = {
                number for number, task in enumerate(writes[:300]) if not task.cancelled() and task.exception() is None
            }
            async with open_database(path, NUMBERS) as database:
                assert acknowledged <= set(await numbers(database))


# --- migrations


async def test_migrations_run_once_in_order_and_the_number_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    first = ["CREATE TABLE one (x); INSERT INTO one VALUES ('a;b')", "CREATE TABLE two (x)"]
    for migrations in (first, first, [*first, "INSERT INTO two SELECT x FROM one"]):
        async with open_database(path, migrations) as database:
            version = (await database.fetch("PRAGMA user_version"))[0][0]
            assert version == len(migrations)
    async with open_database(path, [*first, "INSERT INTO two SELECT x FROM one"]) as database:
        assert [row["x"] for row in await database.fetch("SELECT x FROM two")] == ["a;b"]


async def test_a_migration_that_fails_leaves_nothing_of_itself_and_all_of_the_earlier_ones(tmp_path: Path) -> None:
    """F10."""
    path = tmp_path / "a.db"
    with pytest.raises(BadData, match=r"migration 2 .*It was rolled back"):
        async with open_database(path, [*NUMBERS, "CREATE TABLE half (x); INSERT INTO nowhere VALUES (1)"]):
            raise AssertionError("must not open")
    async with open_database(path, NUMBERS) as database:
        tables = [row["name"] for row in await database.fetch("SELECT name FROM sqlite_master ORDER BY name")]
        assert tables == ["numbers"]
        assert (await database.fetch("PRAGMA user_version"))[0][0] == 1


async def test_an_open_database_goes_on_to_new_migrations_but_refuses_a_rewritten_past(tmp_path: Path) -> None:
    async with open_database(tmp_path / "a.db", NUMBERS) as database:
        await database.migrate([*NUMBERS, "CREATE TABLE more (x)"])
        assert await database.fetch("SELECT * FROM more") == []
        for rewritten in (["CREATE TABLE numbers (other)", "CREATE TABLE more (x)"], NUMBERS, []):
            with pytest.raises(BadData, match="already applied"):
                await database.migrate(rewritten)
        with pytest.raises(BadData, match="migration 3"):
            await database.migrate([*database.migrations, "CREATE TABLE half (x); nonsense"])
        assert len(database.migrations) == 2
        assert (await database.fetch("SELECT name FROM sqlite_master WHERE name = 'half'")) == []
        assert await soon(database.execute(INSERT, 1, "the writer lives")) == 1


@given(
    st.lists(
        st.sampled_from(
            [
                "CREATE TABLE a (x)",
                "INSERT INTO a VALUES ('one; two')",
                'SELECT ";" FROM a',
                "SELECT 1 -- a remark; with a semicolon\n",
                "SELECT /* ; */ 2",
                "CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; SELECT 2; END",
                "INSERT INTO a VALUES ('it''s; fine')",
                "SELECT 'BEGIN; END'",
            ]
        ),
        max_size=6,
    ),
    st.sampled_from([";", " ;\n", ";;", ";\n\n-- between\n", ";\t"]),
    st.booleans(),
)
def test_a_script_is_split_into_its_statements_and_nowhere_else(parts: list[str], between: str, ended: bool) -> None:
    script = between.join(parts) + (";" if ended and parts else "")
    found = [_bare(statement) for statement in statements(script)]
    assert [statement for statement in found if statement] == [_bare(part) for part in parts]


def _bare(statement: str) -> str:
    """Without the remark that a separator may have brought, and the space around."""
    return statement.strip().removeprefix("-- between\n").strip()


@given(st.text("abc ;'\"-\n/*xBEGIND", max_size=60))
def test_splitting_never_loses_or_invents_text(script: str) -> None:
    joined = "".join(statements(script))
    assert [char for char in joined if char not in "; \n"] == [char for char in script if char not in "; \n"]


# --- files: made, found, damaged


async def test_a_new_database_is_private_marked_and_leaves_no_unfinished_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    (tmp_path / "a.db.new").write_bytes(b"left behind by a kill")
    async with open_database(path, NUMBERS) as database:
        await database.execute(INSERT, 1, "x")
        for file in tmp_path.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name
    assert not (tmp_path / "a.db.new").exists()
    assert (tmp_path / "a.db.created").exists()


async def test_a_kill_before_the_marker_was_written_is_repaired_at_the_next_start(tmp_path: Path) -> None:
    async with open_database(tmp_path / "a.db", NUMBERS):
        pass
    (tmp_path / "a.db.created").unlink()
    async with open_database(tmp_path / "a.db", NUMBERS):
        assert (tmp_path / "a.db.created").exists()


async def filled(tmp_path: Path, *, hot: bool = False) -> Path:
    """A database with two hundred rows; `hot` as a kill leaves it, with a log that was not yet taken in."""
    path = tmp_path / "made" / "a.db"
    path.parent.mkdir(parents=True)
    async with open_database(path, NUMBERS) as database:
        await database.execute_many(INSERT, [(number, "x" * 500) for number in range(200)])
    if not hot:
        return path
    killed = tmp_path / "killed"
    async with open_database(path, NUMBERS) as database:
        await database.execute(INSERT, 200, "in the log")
        shutil.copytree(path.parent, killed)
    return killed / "a.db"


def _write_at(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def _truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def _foreign(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()


def _newer(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: _truncate(path, 0),
    "one byte": lambda path: _truncate(path, 1),
    "cut in the header": lambda path: _truncate(path, 50),
    "cut after the header": lambda path: _truncate(path, 100),
    "cut to one page": lambda path: _truncate(path, 4096),
    "cut in a page": lambda path: _truncate(path, path.stat().st_size - 1000),
    "the last page gone": lambda path: _truncate(path, path.stat().st_size - 4096),
    "a garbage header": lambda path: _write_at(path, 0, b"garbage!" * 12),
    "garbage all through": lambda path: path.write_bytes(b"\xde\xad" * 50_000),
    "zeros all through": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a garbage page": lambda path: _write_at(path, 4096, b"\xff" * 4096),
    "a zero page": lambda path: _write_at(path, 4096 * 3, bytes(4096)),
    "foreign": _foreign,
    "text": lambda path: path.write_text("CREATE TABLE numbers"),
    "newer": _newer,
    "a garbage log": lambda path: path.with_name("a.db-wal").write_bytes(b"garbage" * 1000),
    "gone": lambda path: path.unlink(),
}


async def test_a_damaged_database_is_refused_with_the_way_out_and_its_bytes_stay(tmp_path: Path) -> None:
    """F04, trap 7: an empty file would open as a valid empty database."""
    for name, damage in DAMAGE.items():
        with case(name):
            path = await filled(tmp_path / name)
            damage(path)
            before = bytes_of(path)
            with pytest.raises(BadData) as caught:
                async with open_database(path, NUMBERS):
                    raise AssertionError("a damaged database was opened")
            assert str(path) in str(caught.value)
            assert "backup" in str(caught.value)
            assert bytes_of(path) == before
            assert path.exists() == ("a.db" in before)


async def test_a_damaged_database_with_a_log_that_still_waits_loses_neither(tmp_path: Path) -> None:
    """F04: the log may be all that is left to repair it with."""
    cases = ["empty", "cut to one page", "a garbage header", "a zero page", "newer", "a garbage log", "gone"]
    for name in cases:
        with case(name):
            path = await filled(tmp_path / name, hot=True)
            if name == "newer":
                _write_at(path, 60, (7).to_bytes(4, "big"))
            else:
                DAMAGE[name](path)
            before = bytes_of(path)
            try:
                async with open_database(path, NUMBERS) as database:
                    assert len(await numbers(database)) == 201, "opened, and rows are missing"
            except BadData:
                assert bytes_of(path) == before


async def test_a_database_as_a_kill_leaves_it_opens_with_everything_that_was_acknowledged(tmp_path: Path) -> None:
    """F01, in small: the log is taken in."""
    path = await filled(tmp_path, hot=True)
    async with open_database(path, NUMBERS) as database:
        assert await numbers(database) == list(range(201))


async def test_a_log_whose_last_write_was_torn_loses_that_write_alone(tmp_path: Path) -> None:
    path = await filled(tmp_path, hot=True)
    wal = path.with_name("a.db-wal")
    _truncate(wal, wal.stat().st_size - 100)
    async with open_database(path, NUMBERS) as database:
        assert await numbers(database) == list(range(200))


async def test_two_hundred_odd_cuts_are_all_noticed(tmp_path: Path) -> None:
    """F04: no length of the file but its own is taken for a sound database with rows missing."""
    path = await filled(tmp_path)
    whole = path.read_bytes()
    step = max(1, len(whole) // 60)
    for size in [*range(0, len(whole), step), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(BadData):
            async with open_database(path, NUMBERS):
                raise AssertionError(f"opened after a cut to {size} of {len(whole)} bytes")
    path.write_bytes(whole)
    async with open_database(path, NUMBERS) as database:
        assert len(await numbers(database)) == 200


async def test_an_empty_file_is_called_empty_and_not_taken_for_a_new_database(tmp_path: Path) -> None:
    """Trap 7: SQLite itself would open it without a word."""
    for marked in (True, False):
        path = tmp_path / f"{marked}.db"
        path.touch()
        if marked:
            path.with_name(path.name + ".created").touch()
        with pytest.raises(BadData, match="is empty: it was truncated or replaced"):
            async with open_database(path, NUMBERS):
                raise AssertionError("an empty file was opened")
        assert path.stat().st_size == 0


async def test_the_way_out_in_the_message_works(tmp_path: Path) -> None:
    path = await filled(tmp_path)
    _truncate(path, 0)
    for name in ("a.db", "a.db.created"):
        (path.parent / name).rename(tmp_path / name)
    async with open_database(path, NUMBERS) as database:
        assert await numbers(database) == []


async def test_no_extension_is_ever_loaded_and_none_can_be(tmp_path: Path) -> None:
    """Trap 12: many builds of Python cannot, so nothing here may depend on it."""
    import ksi_daemon

    for file in Path(ksi_daemon.__file__).parent.rglob("*.py"):
        if file.parts[-2:] != ("hygiene", "queries.py"):  # it knows the word, to refuse it
            assert "load_extension" not in file.read_text(encoding="utf-8"), file
    async with open_database(tmp_path / "a.db", NUMBERS) as database:
        with pytest.raises(sqlite3.Error):
            await database.execute("SELECT load_extension('anything')")


async def test_every_connection_is_durable_bounded_and_trusts_no_schema(tmp_path: Path) -> None:
    async with open_database(tmp_path / "a.db", NUMBERS) as database:
        await numbers(database)
        wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "trusted_schema": 0}
        for name, value in wanted.items():
            assert (await database.fetch(f"PRAGMA {name}"))[0][0] == value
            async with database.transaction() as transaction:
                assert (await transaction.fetch(f"PRAGMA {name}"))[0][0] == value


async def test_nothing_is_left_running_when_a_database_is_closed(tmp_path: Path) -> None:
    import threading

    threads = threading.active_count()
    async with open_database(tmp_path / "a.db", NUMBERS) as database:
        await asyncio.gather(*(numbers(database) for _ in range(10)))
        assert threading.active_count() > threads
    await until(lambda: threading.active_count() <= threads + 1)  # one may be asyncio's own, kept for the next use
    assert not [task for task in asyncio.all_tasks() if "writer" in task.get_name()]
