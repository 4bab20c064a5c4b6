"""Forgeries by somebody who can write every file under var/ and has read the source, but has not the key."""

import asyncio
import hashlib
import hmac
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from ksi_daemon.audit import verification
from ksi_daemon.audit.chain import HASH, MAC, link
from ksi_daemon.audit.entry import COLUMNS, FIELDS
from ksi_daemon.audit.files import MIGRATIONS, SELECT, Files
from ksi_daemon.audit.opening import INSERT
from ksi_daemon.audit.retention import sign_base
from ksi_daemon.errors import BadData, Conflict
from tests.audit.conftest import FakeLog, Open, happening
from tests.cases import case


def change(files: Files, *statements: str) -> None:
    with closing(sqlite3.connect(files.database, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def rehash(files: Files, from_seq: int) -> None:
    """Recompute every hash from a row on; the MACs stay."""
    with closing(sqlite3.connect(files.database, isolation_level=None)) as connection:
        rows = connection.execute(f"{SELECT} WHERE seq >= ? ORDER BY seq", (from_seq - 1,)).fetchall()
        before = rows[0][HASH]
        for row in rows[1:]:
            row_hash = link(row[: len(FIELDS)], before)
            connection.execute("UPDATE entries SET prev_hash = ?, hash = ? WHERE seq = ?", (before, row_hash, row[1]))
            before = row_hash


def keep_anchor_lines(files: Files, count: int) -> None:
    """Roll the anchor back: its first lines are signed and in order."""
    files.anchor.write_bytes(b"".join(files.anchor.read_bytes().splitlines(keepends=True)[:count]))


def re_attribute(files: Files) -> None:
    change(files, "UPDATE entries SET agent_id = 'scapegoat' WHERE seq BETWEEN 10 AND 40")
    rehash(files, 10)


def re_attribute_without_macs(files: Files) -> None:
    re_attribute(files)
    change(files, "UPDATE entries SET mac = NULL WHERE seq >= 10")


def re_attribute_the_last_row(files: Files) -> None:
    change(files, "UPDATE entries SET agent_id = 'scapegoat' WHERE seq = 61")
    rehash(files, 61)


def append_a_row(files: Files, *, mac: bytes | None = None) -> None:
    with closing(sqlite3.connect(files.database, isolation_level=None)) as connection:
        last = connection.execute(f"{SELECT} ORDER BY seq DESC LIMIT 1").fetchone()
        fields = (last[0], last[1] + 1, *last[2 : len(FIELDS)])
        connection.execute(INSERT, (*fields, last[HASH], link(fields, last[HASH]), mac or last[MAC]))


def cut_inside_a_group(files: Files) -> None:
    change(files, "DELETE FROM entries WHERE seq > 50")


def set_a_mac_inside_a_group(files: Files) -> None:
    change(files, "UPDATE entries SET mac = zeroblob(32) WHERE seq = 50")


FORGERIES: dict[str, tuple[Callable[[Files], None], int]] = {  # and the first row that may have been changed
    "rows given to another agent": (re_attribute, 2),
    "rows given to another agent, without MACs": (re_attribute_without_macs, 2),
    "the last row given to another agent": (re_attribute_the_last_row, 61),
    "a row of the forger's own, with a copied MAC": (append_a_row, 62),
    "a row of the forger's own, with an invented MAC": (lambda files: append_a_row(files, mac=b"m" * 32), 62),
    "a group cut in two": (cut_inside_a_group, 32),
    "a MAC in the middle of a group": (set_a_mac_inside_a_group, 32),
}


async def test_rows_with_recomputed_hashes_are_found_though_the_anchor_was_rolled_back(
    record: FakeLog, files: Files, opened: Open, tmp_path: Path
) -> None:
    """U03: the checkpoints after the forgery are gone, so only the groups' MACs can show it; and no start signs it."""
    good = tmp_path / "good"
    shutil.copytree(files.database.parent.parent, good)
    for name, (forge, latest) in FORGERIES.items():
        with case(name):
            forge(files)
            keep_anchor_lines(files, 1)
            signed = files.anchor.read_bytes()
            verdict = verification.verify(files)
            assert (verdict.ok, verdict.last_checkpoint_seq) == (False, 1)
            assert verdict.first_bad_seq is not None
            assert verdict.first_bad_seq <= latest
            with pytest.raises(BadData):
                async with opened():
                    pass
            assert files.anchor.read_bytes() == signed
            shutil.copytree(good, files.database.parent.parent, dirs_exist_ok=True)
            for ending in ("-wal", "-shm"):
                files.database.with_name(files.database.name + ending).unlink(missing_ok=True)
            assert verification.verify(files).ok


async def test_a_forged_row_after_the_last_checkpoint_of_a_killed_daemon_is_named(
    opened: Open, files: Files, tmp_path: Path
) -> None:
    """U03."""
    async with opened() as audit:
        for number in range(10):
            await audit.append(happening(number))
        shutil.copytree(files.database.parent.parent, tmp_path / "killed")
    killed = Files.under(tmp_path / "killed")
    assert verification.verify(killed).ok
    change(killed, "UPDATE entries SET event = 'test:forged' WHERE seq = 7")
    rehash(killed, 7)
    assert verification.verify(killed).first_bad_seq == 7


COPY_OF_A_ROW = f"INSERT INTO entries SELECT {{}}, {', '.join(COLUMNS[2:])} FROM entries WHERE seq = 3"  # noqa: S608
CONTENTS: dict[str, str] = {
    "a row of another daemon": COPY_OF_A_ROW.format("'ffff', seq"),
    "a row before the first": COPY_OF_A_ROW.format("daemon_id, 0"),
    "a trigger": "CREATE TRIGGER quiet AFTER INSERT ON entries BEGIN DELETE FROM entries WHERE agent_id = 'thief'; END",
    "a view": "CREATE VIEW shown AS SELECT * FROM entries",
    "another table": "CREATE TABLE notes (text)",
    "another column": "ALTER TABLE entries ADD COLUMN note TEXT",
    "an index less": "DROP INDEX entries_by_time",
}


async def test_foreign_rows_and_a_changed_schema_are_found_by_verify_and_at_the_start(
    record: FakeLog, files: Files, opened: Open
) -> None:
    """U03, F04."""
    good = files.database.read_bytes()
    for name, statement in CONTENTS.items():
        with case(name):
            change(files, statement)
            verdict = verification.verify(files)
            assert not verdict.ok
            assert verdict.problem is not None
            assert "another program" in verdict.problem
            with pytest.raises(BadData, match="another program"):
                async with opened():
                    pass
            files.database.write_bytes(good)
            assert verification.verify(files).ok


async def test_rows_put_in_the_place_of_dropped_ones_are_found(opened: Open, files: Files) -> None:
    """U03, U08: retention is killed before it drops rows; those that are still there must be the signed ones."""
    async with opened() as audit:
        await asyncio.gather(*(audit.append(happening(number)) for number in range(20)))
        writer = audit._writer
        await writer.run(lambda: sign_base(writer.ledger, writer.checkpoints, 10, unexported=True))
    assert verification.verify(files).ok
    change(files, "UPDATE entries SET event = 'test:forged' WHERE seq = 5")
    assert verification.verify(files).first_bad_seq == 5
    rehash(files, 5)
    assert verification.verify(files).first_bad_seq == 1


async def test_a_forged_row_is_not_exported_under_the_daemons_signature(
    opened: Open, files: Files, tmp_path: Path
) -> None:
    """U03, U08."""
    async with opened() as audit:
        await asyncio.gather(*(audit.append(happening(number)) for number in range(20)))
        change(files, "UPDATE entries SET event = 'test:forged' WHERE seq = 7")
        rehash(files, 7)
        for after, through in ((None, None), (3, 12)):
            with pytest.raises(Conflict, match="MAC"):
                await audit.export_jsonl(tmp_path / "forged.jsonl", after=after, through=through)


async def test_every_row_is_covered_by_the_mac_of_its_group(opened: Open, files: Files) -> None:
    """U03: the rows of one commit have one MAC, at the last; so also after a failure and a new connection."""
    async with opened() as audit:
        await asyncio.gather(*(audit.append(happening(number)) for number in range(20)))
        await audit.append(happening())
        await audit._writer.run(audit._writer.ledger.reconnect)
        await audit.append(happening())
    with closing(sqlite3.connect(files.database)) as connection:
        ends = connection.execute("SELECT seq FROM entries WHERE mac IS NOT NULL ORDER BY seq").fetchall()
    assert ends == [(1,), (21,), (22,), (23,)]
    assert (verification.verify(files).ok, verification.verify(files).without_mac) == (True, 0)


async def test_retention_may_cut_inside_a_group(opened: Open, files: Files) -> None:
    """U08."""
    async with opened() as audit:
        await asyncio.gather(*(audit.append(happening(number)) for number in range(20)))
        await audit.retain(keep_rows=5, unexported=True)
        await asyncio.gather(*(audit.append(happening(number)) for number in range(5)))
        verdict = await audit.verify()
        assert (verdict.ok, verdict.rows, verdict.dropped) == (True, 10, 16)
    async with opened() as audit:
        await audit.retain(keep_rows=3, unexported=True)
        assert (await audit.verify()).ok


async def test_rows_from_before_macs_are_kept_and_counted(opened: Open, files: Files) -> None:
    """U03: an audit that an older version wrote is continued with MACs; its old rows are covered by checkpoints only."""
    async with opened() as audit:
        await asyncio.gather(*(audit.append(happening(number)) for number in range(9)))
    with closing(sqlite3.connect(files.database, isolation_level=None)) as connection:
        connection.execute("ALTER TABLE entries DROP COLUMN mac")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) - 1}")
    as_an_older_version_signed(files)
    async with opened() as audit:
        await audit.append(happening())
        verdict = await audit.verify()
        assert (verdict.ok, verdict.rows, verdict.without_mac) == (True, 11, 10)
    change(files, "UPDATE entries SET mac = NULL")
    for lines in (1, 2, 3):
        with case(f"{lines} lines of the anchor"):
            keep_anchor_lines(files, lines)
            assert verification.verify(files).first_bad_seq == 11


def as_an_older_version_signed(files: Files) -> None:
    """Sign the anchor's lines without the fields that came with MACs."""

    key, after, lines = files.key.read_bytes(), "", []
    for line in files.anchor.read_bytes().splitlines():
        old = msgspec.json.decode(line) | {"after": after, "mac": ""}
        for name in ("base_mac", "group_mac", "macs_from"):
            del old[name]
        after = hmac.new(key, msgspec.json.encode(old), hashlib.sha256).hexdigest()
        lines.append(msgspec.json.encode(old | {"mac": after}) + b"\n")
    files.anchor.write_bytes(b"".join(lines))
