"""A database that is not what it should be is recognised at the start, explained, and left exactly as it was found."""

import hashlib
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.live.daemon_process import Daemon, Refused
from tests.live.storms import integrity

PAGE = 4096


def _fill(daemon: Daemon, *, kill: bool = False) -> None:
    """A first life that leaves a database of many pages; killed, it leaves a write-ahead log too."""
    daemon.start()
    with daemon.connect() as connection:
        for request in [
            connection.post("state:set", {"key": f"key-{number}", "value": "x" * 300}) for number in range(300)
        ]:
            assert connection.answer(request)["ok"]
    if kill:
        daemon.kill()
    else:
        assert daemon.stop() == 0


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
    """What holds data in a folder of databases; looking at one may leave an index and an empty log beside it."""
    holding = [
        path for path in folder.iterdir() if path.is_file() and path.stat().st_size and not path.name.endswith("-shm")
    ]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in holding} | {
        path.name: "" for path in folder.glob("*.db") if not path.stat().st_size
    }


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_database_is_refused_with_the_way_out_and_left_untouched(
    daemon: Daemon, damage: Callable[[Path], None]
) -> None:
    """F04"""
    _fill(daemon)
    damage(daemon.database)
    before = _prints(daemon.database.parent)
    code, message = daemon.refusal()
    assert code == 65
    assert str(daemon.database) in message
    assert "backup" in message
    assert "Traceback" not in message
    assert _prints(daemon.database.parent) == before


def test_a_database_that_is_gone_is_missed_because_it_was_once_there(daemon: Daemon) -> None:
    """F04"""
    _fill(daemon)
    daemon.database.unlink()
    code, message = daemon.refusal()
    assert code == 65
    assert f"remove '{daemon.database}.created'" in message
    assert not daemon.database.exists(), "never silently replaced by an empty one"


def test_the_way_out_in_the_message_leads_out(daemon: Daemon) -> None:
    """F04"""
    _fill(daemon)
    daemon.database.unlink()
    daemon.refusal()
    daemon.database.with_name("ksi.db.created").unlink()
    daemon.start()
    assert daemon.call("state:list")["entries"] == []


@pytest.mark.parametrize(
    "damage", [_garbage_log, _random_page(1), Path.unlink], ids=["garbage log", "random page", "gone"]
)
def test_what_the_message_tells_to_move_away_is_enough_even_after_a_crash(
    daemon: Daemon, damage: Callable[[Path], None]
) -> None:
    """F04: a log that stays behind must not be played into the new database."""
    _fill(daemon)
    daemon.start()
    with daemon.connect() as connection:
        for number in range(30):
            connection.call("state:set", {"key": f"last words {number}", "value": "x" * 3000})
    daemon.kill()
    damage(daemon.database)
    code, message = daemon.refusal()
    assert code == 65
    for path in sorted(daemon.database.parent.iterdir()):
        if f"'{path}'" in message or f"'{path.name}'" in message:
            path.rename(daemon.folder / path.name)
    daemon.start()
    assert daemon.call("state:list")["entries"] == []
    assert daemon.call("state:set", {"key": "k", "value": 1})["created"] is True
    daemon.kill()
    assert integrity(daemon.database) == "ok"
    daemon.start()
    assert [entry["key"] for entry in daemon.call("state:list")["entries"]] == ["k"]


@pytest.mark.parametrize("name", ["garbage header", "random page 1", "cut in half", "empty"])
def test_a_database_damaged_after_a_crash_keeps_the_log_that_could_mend_it(daemon: Daemon, name: str) -> None:
    """F04"""
    _fill(daemon)
    daemon.start()
    daemon.call("state:set", {"key": "last words", "value": 1})
    daemon.kill()
    DAMAGES[name](daemon.database)
    before = _prints(daemon.database.parent)
    assert "ksi.db-wal" in before
    code, _ = daemon.refusal()
    assert code == 65
    assert _prints(daemon.database.parent) == before


KEEPS = '''
@plugin.handles("keeps:count")
async def count(ctx: Context, params: Nothing) -> Done:
    """Touch the database."""
    await ctx.database.fetch("SELECT count(*) FROM kept")
    return Done()
'''


@pytest.mark.parametrize("name", ["garbage header", "cut in half", "empty", "newer", "foreign"])
def test_a_plugins_damaged_database_sets_only_that_plugin_aside(daemon: Daemon, name: str) -> None:
    """F04"""
    daemon.plugin("keeps", KEEPS, arguments=', migrations=["CREATE TABLE kept (thing TEXT)"]')
    daemon.start()
    daemon.call("keeps:count")
    assert daemon.stop() == 0
    database = daemon.var / "plugins" / "keeps" / "keeps.db"
    DAMAGES[name](database)
    before = _prints(database.parent)
    daemon.start()
    health = daemon.call("system:health")
    assert health["status"] == "degraded"
    assert health["plugins"]["keeps"]["state"] == "broken"
    assert str(database) in health["plugins"]["keeps"]["reason"]
    assert daemon.call("state:set", {"key": "rest", "value": "serves"})["created"] is True
    with pytest.raises(Refused) as refused:
        daemon.call("keeps:count")
    assert refused.value.code in ("unknown_event", "unavailable")
    assert _prints(database.parent) == before
