"""Kills the making and migrating of a database at every single step, and reports what each kill left behind.

Run as a program by test_killed_migrations.py: one import, then one fork for each step, so that hundreds of kills take seconds.
"""

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from ksi_daemon.storage import database_file

STEPS = 6
SCRIPT = """
CREATE TABLE first_NUMBER (text TEXT);
INSERT INTO first_NUMBER (text) VALUES ('made by NUMBER');
CREATE TABLE second_NUMBER (text TEXT);
CREATE INDEX index_NUMBER ON second_NUMBER (text);
INSERT INTO history (number) VALUES (NUMBER)
"""
MIGRATIONS = [SCRIPT.replace("NUMBER", str(number)) for number in range(1, STEPS + 1)]
MIGRATIONS[0] = "CREATE TABLE history (number INTEGER);" + MIGRATIONS[0]


class _Countdown:
    """Ends this process with SIGKILL just before the step with this number."""

    def __init__(self, fatal_step: int) -> None:
        self.left = fatal_step

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.step()
            return function(*args, **kwargs)

        return counted


def _doomed(path: Path, migrations: list[str], fatal_step: int) -> None:
    """Prepare the database with every statement and every file operation counted."""
    countdown = _Countdown(fatal_step)

    class Connection(sqlite3.Connection):
        def execute(self, *args: Any) -> sqlite3.Cursor:
            countdown.step()
            return super().execute(*args)

        def close(self) -> None:
            countdown.step()
            super().close()

    connect = sqlite3.connect
    database_file.sqlite3.connect = lambda *args, **kwargs: connect(*args, factory=Connection, **kwargs)  # type: ignore[attr-defined]
    for name in ("open", "close", "write", "fsync", "rename"):
        setattr(os, name, countdown.before(getattr(os, name)))
    Path.rename = countdown.before(Path.rename)  # type: ignore[method-assign]
    database_file.prepare_file(path, migrations)


def _found(path: Path) -> dict[str, Any]:
    """What is really in the file now, read without the code under test."""
    if not path.exists():
        return {"version": 0, "tables": [], "history": []}
    with closing(sqlite3.connect(path)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = sorted(row[0] for row in connection.execute("SELECT name FROM sqlite_master"))
        history = [row[0] for row in connection.execute("SELECT number FROM history")] if "history" in tables else []
        sound = connection.execute("PRAGMA integrity_check").fetchone()[0]
    return {"version": version, "tables": tables, "history": history, "sound": sound}


def kill_at_every_step(folder: Path, begin_with: int) -> list[dict[str, Any]]:
    """From a database at version `begin_with` to the newest, killed at step 1, 2, 3 … until one run gets through."""
    reports: list[dict[str, Any]] = []
    while True:
        fatal_step = len(reports) + 1
        path = folder / f"at-{begin_with}-{fatal_step}" / "test.db"
        path.parent.mkdir()
        if begin_with:
            database_file.prepare_file(path, MIGRATIONS[:begin_with])
        child = os.fork()
        if child == 0:
            _doomed(path, MIGRATIONS, fatal_step)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        survived = os.waitstatus_to_exitcode(status) == 0
        left = _found(path)
        database_file.prepare_file(path, MIGRATIONS)
        reports.append({"step": fatal_step, "survived": survived, "left": left, "afterwards": _found(path)})
        if survived:
            return reports


if __name__ == "__main__":
    print(json.dumps(kill_at_every_step(Path(sys.argv[1]), int(sys.argv[2]))))
