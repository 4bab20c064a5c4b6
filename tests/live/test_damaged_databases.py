"""A database that is not what it should be is recognised at the start, explained, and left exactly as it was found."""

import hashlib
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.live.daemon_process import Daemon, Refused, short_folder
from tests.live.storms import integrity

PAGE = 4096

KEEPS = '''
@plugin.handles("keeps:count")
async def count(ctx: Context, params: Nothing) -> Done:
    """Touch the database."""
    await ctx.database.fetch("SELECT count(*) FROM kept")
    return Done()
'''


@pytest.fixture(scope="module")
def first_life() -> Iterator[Path]:
    """The var folder that a daemon left behind: a database of many pages, cleanly closed."""
    with short_folder() as folder:
        daemon = Daemon(folder)
        daemon.plugin("keeps", KEEPS, arguments=', migrations=["CREATE TABLE kept (thing TEXT)"]')
        try:
            daemon.start()
            with daemon.connect() as connection:
                for request in [
                    connection.post("state:set", {"key": f"key-{number}", "value": "x" * 300}) for number in range(300)
                ]:
                    assert connection.answer(request)["ok"]
            assert daemon.stop() == 0
        finally:
            daemon.end()
        yield daemon.var


@pytest.fixture
def filled(daemon: Daemon, first_life: Path) -> Daemon:
    """A daemon that is not started yet, on a copy of that folder."""
    shutil.copytree(first_life, daemon.var)
    return daemon


def _crash(daemon: Daemon) -> None:
    """A second life that ends by kill -9, with a write-ahead log full of what it did."""
    daemon.start()
    with daemon.connect() as connection:
        for request in [
            connection.post("state:set", {"key": f"last words {number}", "value": "x" * 3000}) for number in range(30)
        ]:
            assert connection.answer(request)["ok"]
    daemon.kill()


def _garbage_header(database: Path) -> None:
    with database.open("r+b") as file:
        file.write(random.Random(1).randbytes(100))


def _random_page(seed: int) -> Callable[[Path], None]:
    def overwrite(database: Path) -> None:
        chance = random.Random(seed)
        page = chance.randrange(1, database.stat().st_size // PAGE)
        with database.open("r+b") as file:
            file.seek(page * PAGE)
            file.write(chance.randbytes(PAGE))

    return overwrite


def _cut_to(share: float) -> Callable[[Path], None]:
    def cut(database: Path) -> None:
        with database.open("r+b") as file:
            file.truncate(int(database.stat().st_size * share))

    return cut


def _one_byte_short(database: Path) -> None:
    with database.open("r+b") as file:
        file.truncate(database.stat().st_size - 1)


def _empty(database: Path) -> None:
    with database.open("r+b") as file:
        file.truncate(0)


def _garbage_log(database: Path) -> None:
    database.with_name("ksi.db-wal").write_bytes(random.Random(2).randbytes(50_000))


def _newer(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA user_version = 999")


def _foreign(database: Path) -> None:
    database.unlink()
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE holiday_photos (name TEXT)")
        connection.commit()


def _all_zero(database: Path) -> None:
    database.write_bytes(bytes(database.stat().st_size))


DAMAGES = {
    "garbage header": _garbage_header,
    "random page 1": _random_page(1),
    "random page 2": _random_page(2),
    "random page 3": _random_page(3),
    "cut in half": _cut_to(0.5),
    "cut to less than a page": _cut_to(0.01),
    "one byte short": _one_byte_short,
    "empty": _empty,
    "all zero": _all_zero,
    "garbage log": _garbage_log,
    "newer": _newer,
    "foreign": _foreign,
}


def _prints(folder: Path) -> dict[str, str]:
    """What holds data in a folder of databases; looking at one may leave an index and an empty log beside it.

    Not the audit: it is sound, and a start takes its log in.
    """
    holding = [
        path
        for path in folder.iterdir()
        if path.is_file() and path.stat().st_size and not path.name.endswith("-shm") and "audit" not in path.name
    ]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in holding} | {
        path.name: "" for path in folder.glob("*.db") if not path.stat().st_size
    }


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_database_is_refused_with_the_way_out_and_left_untouched(
    filled: Daemon, damage: Callable[[Path], None]
) -> None:
    """F04"""
    damage(filled.database)
    before = _prints(filled.database.parent)
    code, message = filled.refusal()
    assert code == 65
    assert str(filled.database) in message
    assert "backup" in message
    assert "Traceback" not in message
    assert _prints(filled.database.parent) == before


def test_a_database_that_is_gone_is_missed_because_it_was_once_there(filled: Daemon) -> None:
    """F04"""
    filled.database.unlink()
    code, message = filled.refusal()
    assert code == 65
    assert f"move '{filled.database}.created'" in message
    assert not filled.database.exists(), "never silently replaced by an empty one"


def test_the_way_out_in_the_message_leads_out(filled: Daemon) -> None:
    """F04"""
    filled.database.unlink()
    filled.refusal()
    filled.database.with_name("ksi.db.created").unlink()
    filled.start()
    assert filled.call("state:list")["entries"] == []


def _follow_the_advice(daemon: Daemon) -> None:
    """Move away whatever the refusal names."""
    code, message = daemon.refusal()
    assert code == 65
    for path in sorted(daemon.database.parent.iterdir()):
        if f"'{path}'" in message or f"'{path.name}'" in message:
            path.rename(daemon.folder / path.name)


@pytest.mark.parametrize(
    "damage", [_garbage_log, _random_page(1), Path.unlink], ids=["garbage log", "random page", "gone"]
)
def test_what_the_message_tells_to_move_away_is_enough_even_after_a_crash(
    filled: Daemon, damage: Callable[[Path], None]
) -> None:
    """F04: a log that stays behind must not be played into the new database."""
    _crash(filled)
    damage(filled.database)
    for _ in range(2):  # one piece of advice may uncover the next; a third would be a riddle
        if filled.database.exists() or filled.database.with_name("ksi.db-wal").exists():
            _follow_the_advice(filled)
    filled.start()
    assert filled.call("state:list")["entries"] == []
    assert filled.call("state:set", {"key": "k", "value": 1})["created"] is True
    filled.kill()
    assert integrity(filled.database) == "ok"
    filled.start()
    assert [entry["key"] for entry in filled.call("state:list")["entries"]] == ["k"]


@pytest.mark.parametrize("name", ["garbage header", "random page 1", "cut in half", "empty"])
def test_a_database_damaged_after_a_crash_keeps_the_log_that_could_mend_it(filled: Daemon, name: str) -> None:
    """F04"""
    _crash(filled)
    DAMAGES[name](filled.database)
    before = _prints(filled.database.parent)
    assert "ksi.db-wal" in before
    code, _ = filled.refusal()
    assert code == 65
    assert _prints(filled.database.parent) == before


@pytest.mark.parametrize("name", ["garbage header", "cut in half", "empty", "newer", "foreign"])
def test_a_plugins_damaged_database_sets_only_that_plugin_aside(filled: Daemon, name: str) -> None:
    """F04"""
    filled.plugin("keeps", KEEPS, arguments=', migrations=["CREATE TABLE kept (thing TEXT)"]')
    database = filled.var / "plugins" / "keeps" / "keeps.db"
    DAMAGES[name](database)
    before = _prints(database.parent)
    filled.start()
    health = filled.call("system:health")
    assert health["status"] == "degraded"
    assert health["plugins"]["keeps"]["state"] == "broken"
    assert str(database) in health["plugins"]["keeps"]["reason"]
    assert filled.call("state:set", {"key": "rest", "value": "serves"})["created"] is True
    with pytest.raises(Refused) as refused:
        filled.call("keeps:count")
    assert refused.value.code in ("unknown_event", "unavailable")
    assert _prints(database.parent) == before
