"""Migrations killed at any step leave the old schema or the new one, never something between, and go on the next time."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.live.daemon_process import ROOT, Daemon, until
from tests.live.migration_killer import STEPS


def _expected_tables(version: int) -> list[str]:
    names = [
        name for number in range(1, version + 1) for name in (f"first_{number}", f"second_{number}", f"index_{number}")
    ]
    return sorted([*names, *(["history"] if version else [])])


def _reports(folder: Path, begin_with: int) -> list[dict[str, Any]]:
    finished = subprocess.run(
        [sys.executable, "-m", "tests.live.migration_killer", str(folder), str(begin_with)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    reports: list[dict[str, Any]] = json.loads(finished.stdout)
    return reports


@pytest.mark.parametrize("begin_with", [0, 1, 3])
def test_a_kill_at_any_step_leaves_the_old_schema_or_the_new_one(folder: Path, begin_with: int) -> None:
    """F10"""
    reports = _reports(folder, begin_with)
    assert len(reports) >= (50 if begin_with < 3 else 30), "kills at every statement and every file operation"
    assert [report["survived"] for report in reports] == [False] * (len(reports) - 1) + [True]
    for report in reports:
        left, afterwards = report["left"], report["afterwards"]
        assert left["tables"] == _expected_tables(left["version"]), report
        assert left["history"] == list(range(1, left["version"] + 1)), report
        assert left["version"] >= begin_with
        assert afterwards["version"] == STEPS
        assert afterwards["tables"] == _expected_tables(STEPS)
        assert afterwards["history"] == list(range(1, STEPS + 1)), report
        assert afterwards["sound"] == "ok"
    versions = [report["left"]["version"] for report in reports]
    assert versions == sorted(versions), "a later kill never leaves less"


def test_a_daemon_killed_while_it_starts_for_the_first_time_starts_the_next_time(daemon: Daemon) -> None:
    """F10"""
    chance = random.Random(10)
    daemon.plugin(
        "keeps", "", arguments=', migrations=["CREATE TABLE a (x)", "CREATE TABLE b (x)", "CREATE TABLE c (x)"]'
    )
    for _ in range(6):
        daemon.spawn()
        wanted = chance.choice(
            ["run/ksi.lock", "run/http_port", "db/ksi.db", "db/ksi.db.created", "plugins/keeps/keeps.db"]
        )
        until((daemon.var / wanted).exists, what=wanted)
        daemon.kill()
    daemon.start()
    assert daemon.call("plugin:inspect", {"name": "keeps"})["database"]["version"] == 3
