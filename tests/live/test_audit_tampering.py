"""A record that was touched while the daemon slept is recognised; one that is damaged is refused, with the way out."""

import json
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ksi_daemon.audit.chain import link
from ksi_daemon.audit.entry import COLUMNS, FIELDS
from tests.live.daemon_process import Daemon, short_folder

ROWS = 400
VICTIM = 57  # a row in the middle


@pytest.fixture(scope="module")
def first_life() -> Iterator[Path]:
    """The var folder that a daemon left behind after a few hundred calls and a clean stop."""
    with short_folder() as folder:
        daemon = Daemon(folder)
        try:
            daemon.start()
            with daemon.connect() as connection:
                for request in [
                    connection.post("state:set", {"key": f"k{n}", "value": "x" * 100}) for n in range(ROWS)
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


def _execute(daemon: Daemon, *statements: str) -> None:
    with closing(sqlite3.connect(daemon.audit_database)) as connection:
        for statement in statements:
            assert connection.execute(statement, {"victim": VICTIM}).rowcount != 0, statement
        connection.commit()


def _flip_a_bit(daemon: Daemon) -> None:
    _execute(daemon, "UPDATE entries SET status = 'Ok' WHERE seq = :victim")


def _delete_a_row(daemon: Daemon) -> None:
    _execute(daemon, "DELETE FROM entries WHERE seq = :victim")


def _swap_two_rows(daemon: Daemon) -> None:
    _execute(
        daemon,
        "UPDATE entries SET seq = -1 WHERE seq = :victim",
        "UPDATE entries SET seq = :victim WHERE seq = :victim + 1",
        "UPDATE entries SET seq = :victim + 1 WHERE seq = -1",
    )


def _cut_the_tail(daemon: Daemon) -> None:
    _execute(daemon, "DELETE FROM entries WHERE seq > (SELECT max(seq) - 5 FROM entries)")


def _recompute_the_chain(daemon: Daemon) -> None:
    """Change a row, and every hash after it, as somebody would who has read our source but not our key."""
    with closing(sqlite3.connect(daemon.audit_database)) as connection:
        connection.execute("UPDATE entries SET agent_id = 'somebody else' WHERE seq = ?", (VICTIM,))
        before = connection.execute("SELECT hash FROM entries WHERE seq = ?", (VICTIM - 1,)).fetchone()[0]
        query = f"SELECT {', '.join(COLUMNS)} FROM entries WHERE seq >= ? ORDER BY seq"  # noqa: S608 - ours
        for row in connection.execute(query, (VICTIM,)).fetchall():
            after = link(row[: len(FIELDS)], before)
            connection.execute("UPDATE entries SET prev_hash = ?, hash = ? WHERE seq = ?", (before, after, row[1]))
            before = after
        connection.commit()


TAMPERINGS: dict[str, tuple[Callable[[Daemon], None], bool]] = {  # and whether the quick look at a start sees it
    "a flipped bit": (_flip_a_bit, False),
    "a deleted row": (_delete_a_row, True),
    "two swapped rows": (_swap_two_rows, False),
    "a cut tail": (_cut_the_tail, True),
    "a recomputed chain": (_recompute_the_chain, True),
}


def _ksi(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[bytes]:
    words = (sys.executable, "-m", "ksi_client", *words)
    return subprocess.run(words, env=daemon.environment(), capture_output=True, timeout=60, check=False)


def _failed_checks(daemon: Daemon) -> set[str]:
    checks = json.loads(_ksi(daemon, "doctor", "--json").stdout)["checks"]
    return {found["check"] for found in checks if found["status"] == "fail"}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_touched_record_is_found_out(filled: Daemon, name: str) -> None:
    """U03"""
    tamper, seen_at_start = TAMPERINGS[name]
    last = filled.audit_rows()[-1]["seq"]
    whole = filled.verify_audit()
    assert (whole["ok"], whole["exit_code"]) == (True, 0)
    tamper(filled)
    verdict = filled.verify_audit()
    assert (verdict["ok"], verdict["exit_code"]) == (False, 1)
    latest = {"a cut tail": last - 4, "a recomputed chain": VICTIM}.get(name)
    assert "audit chain" in _failed_checks(filled)
    if latest is not None:
        assert verdict["first_bad_seq"] <= latest, "the first row of the commit group that is not intact any more"
    else:
        assert verdict["first_bad_seq"] == VICTIM
    if seen_at_start:
        code, message = filled.refusal()
        assert code == 65
        assert "ksi audit new-chain --reason" in message
    else:
        filled.start()
        told = filled.call("audit:verify")
        assert (told["ok"], told["first_bad_seq"]) == (False, VICTIM)


def _garbage_header(daemon: Daemon) -> None:
    with daemon.audit_database.open("r+b") as file:
        file.write(random.Random(1).randbytes(100))


def _garbage_page(daemon: Daemon) -> None:
    with daemon.audit_database.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(random.Random(2).randbytes(4096))


def _cut_in_half(daemon: Daemon) -> None:
    with daemon.audit_database.open("r+b") as file:
        file.truncate(daemon.audit_database.stat().st_size // 2)


def _empty(daemon: Daemon) -> None:
    daemon.audit_database.write_bytes(b"")


def _gone(daemon: Daemon) -> None:
    daemon.audit_database.unlink()


def _emptied(daemon: Daemon) -> None:
    _execute(daemon, "DELETE FROM entries")


def _without_key(daemon: Daemon) -> None:
    (daemon.var / "run" / "audit.key").unlink()


def _without_anchor(daemon: Daemon) -> None:
    (daemon.var / "log" / "audit.anchor.jsonl").unlink()


def _of_another_hub(daemon: Daemon) -> None:
    with short_folder() as folder:
        other = Daemon(folder)
        try:
            other.start()
            assert other.stop() == 0
        finally:
            other.end()
        shutil.copy(other.audit_database, daemon.audit_database)


def _other_key(daemon: Daemon) -> None:
    key = daemon.var / "run" / "audit.key"
    key.chmod(0o600)
    key.write_bytes(random.Random(3).randbytes(len(key.read_bytes())))


def _without_database_anchor_and_key(daemon: Daemon) -> None:
    for damage in (_gone, _without_anchor, _without_key):
        damage(daemon)


DAMAGES = [
    _without_database_anchor_and_key,
    _garbage_header, _garbage_page, _cut_in_half, _empty, _gone, _emptied, _without_key, _without_anchor, _of_another_hub, _other_key,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_refused(filled: Daemon, damage: Callable[[Daemon], None]) -> None:
    """F04"""
    damage(filled)
    code, message = filled.refusal()
    assert code == 65
    assert "Traceback" not in message
    assert "ksi audit new-chain --reason" in message


@pytest.mark.parametrize("damage", [_garbage_page, _gone, _without_key, _without_database_anchor_and_key])
def test_the_way_out_of_a_refusal_leads_out(filled: Daemon, damage: Callable[[Daemon], None]) -> None:
    """F04"""
    damage(filled)
    assert filled.refusal()[0] == 65
    assert filled.verify_audit("--deep")["exit_code"] == 1
    verified = _ksi(filled, "audit", "verify", "--deep", "--json")
    assert (verified.returncode, json.loads(verified.stdout)["ok"]) == (1, False)
    damaged = "databases" if damage is _garbage_page else "audit chain"  # that page is an index's
    assert damaged in _failed_checks(filled)
    made = json.loads(_ksi(filled, "audit", "new-chain", "--reason", "it was damaged", "--json").stdout)
    assert made["set_aside"].startswith(str(filled.var / "audit-set-aside"))
    filled.start()
    first = filled.audit_rows("seq = 1")[0]
    assert (first["event"], first["reason"]) == ("audit:new_chain", "it was damaged")
    assert made["old_head"] in first["details"]
    assert filled.call("state:get", {"key": "k1"})["value"] == "x" * 100, "only the record began anew"
    assert filled.call("audit:verify")["ok"] is True
