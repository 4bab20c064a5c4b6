"""Whatever is done to the record behind the daemon's back is found, by `verify` and (where quick) by the next start."""

import asyncio
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ksi_daemon.audit import verification
from ksi_daemon.audit.anchor import Checkpoint, read_key, read_lines
from ksi_daemon.audit.chain import HASH, NO_HASH, link
from ksi_daemon.audit.entry import COLUMNS, FIELDS
from ksi_daemon.audit.files import SELECT, Files
from ksi_daemon.audit.opening import INSERT
from ksi_daemon.errors import BadData
from tests.audit.conftest import FakeLog, Open, happening
from tests.cases import case


def change(files: Files, *statements: str) -> None:
    connection = sqlite3.connect(files.database, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def recompute_from(files: Files, seq: int) -> None:
    """What somebody does who knows how hashes are made but has not the key."""
    connection = sqlite3.connect(files.database, isolation_level=None)
    rows = connection.execute(SELECT + " ORDER BY seq").fetchall()
    previous = NO_HASH
    connection.execute("BEGIN")
    for row in rows:
        if row[1] < seq:
            previous = row[HASH]
            continue
        row_hash = link(row[: len(FIELDS)], previous)
        connection.execute("UPDATE entries SET prev_hash = ?, hash = ? WHERE seq = ?", (previous, row_hash, row[1]))
        previous = row_hash
    connection.execute("COMMIT")
    connection.close()


def first_bad(files: Files) -> int | None:
    verdict = verification.verify(files)
    assert not verdict.ok
    assert verdict.problem
    return verdict.first_bad_seq


async def test_an_untouched_record_is_whole(record: FakeLog, files: Files) -> None:
    verdict = verification.verify(files, deep=True)
    assert (verdict.ok, verdict.first_seq, verdict.first_bad_seq, verdict.problem) == (True, 1, None, None)
    assert verdict.rows == verdict.last_seq == verdict.last_checkpoint_seq


def flipped(value: object) -> object:
    """The value with a bit changed, or the least that can be changed about it."""
    match value:
        case bytes():
            return bytes([value[0] ^ 1]) + value[1:]
        case str():
            return chr(ord(value[0]) ^ 1) + value[1:]
        case int() | float():
            return value + 1
        case _:
            return "0"


async def test_a_change_to_any_column_is_found_at_its_row(record: FakeLog, files: Files) -> None:
    """U03: a flipped bit, wherever it is."""
    good = files.database.read_bytes()
    for column in COLUMNS:
        if column in ("seq", "daemon_id", "mac"):
            continue
        with case(column):
            connection = sqlite3.connect(files.database, isolation_level=None)
            value = connection.execute(f"SELECT {column} FROM entries WHERE seq = 7").fetchone()[0]  # noqa: S608
            connection.execute(f"UPDATE entries SET {column} = ? WHERE seq = 7", (flipped(value),))  # noqa: S608
            connection.close()
            assert first_bad(files) == 7
            files.database.write_bytes(good)
            assert verification.verify(files).ok


async def test_text_that_is_no_longer_text_is_found_at_its_row(record: FakeLog, files: Files) -> None:
    """U03."""
    change(files, "UPDATE entries SET reason = CAST(x'ff41' AS TEXT) WHERE seq = 9")
    assert first_bad(files) == 9


async def test_flipped_bits_in_the_file_are_found_or_changed_nothing(
    record: FakeLog, files: Files, tmp_path: Path
) -> None:
    """U03, F04: bits anywhere in the file; a verdict of ok means that every row is as it was."""
    connection = sqlite3.connect(files.database)
    before = connection.execute(SELECT).fetchall()
    connection.close()
    good, chance = files.database.read_bytes(), random.Random(3)
    found = 0
    for _ in range(40):
        bad = bytearray(good)
        bad[chance.randrange(100, len(bad))] ^= 1 << chance.randrange(8)
        files.database.write_bytes(bad)
        if verification.verify(files).ok:
            connection = sqlite3.connect(files.database)
            assert connection.execute(SELECT).fetchall() == before
            connection.close()
        else:
            found += 1
    assert found > 10


async def test_a_deleted_row_is_found(record: FakeLog, files: Files, opened: Open) -> None:
    """U03."""
    change(files, "DELETE FROM entries WHERE seq = 12")
    assert first_bad(files) == 12
    with pytest.raises(BadData, match="should exist"):
        async with opened():
            pass


async def test_two_swapped_rows_are_found(record: FakeLog, files: Files) -> None:
    """U03."""
    change(
        files,
        "UPDATE entries SET seq = 1000 WHERE seq = 5",
        "UPDATE entries SET seq = 5 WHERE seq = 8",
        "UPDATE entries SET seq = 8 WHERE seq = 1000",
    )
    assert first_bad(files) == 5


async def test_a_tail_cut_after_a_clean_stop_is_found_by_verify_and_by_the_next_start(
    record: FakeLog, files: Files, opened: Open
) -> None:
    """U03, F04: what remains of the last group, rows 32 to 60, has no MAC any more."""
    change(files, "DELETE FROM entries WHERE seq = (SELECT max(seq) FROM entries)")
    assert first_bad(files) == 32
    with pytest.raises(BadData, match="tail was cut"):
        async with opened():
            pass


@pytest.mark.parametrize("from_seq", [1, 3, 15])
async def test_a_recomputed_chain_is_found_though_every_hash_fits(
    record: FakeLog, files: Files, opened: Open, from_seq: int
) -> None:
    """U03, F04: the first row that cannot be vouched for is the one after the last checkpoint that fits."""
    change(files, f"UPDATE entries SET agent_id = 'somebody-else' WHERE seq = {from_seq}")  # noqa: S608
    recompute_from(files, from_seq)
    bad = first_bad(files)
    assert bad is not None
    assert bad <= from_seq
    with pytest.raises(BadData, match=r"recomputed|replaced"):
        async with opened():
            pass


async def test_a_whole_database_of_another_hub_is_found(
    record: FakeLog, files: Files, opened: Open, tmp_path: Path
) -> None:
    """U03, F04."""
    change(files, "UPDATE entries SET daemon_id = 'ffffffffffffffff'")
    recompute_from(files, 1)
    assert first_bad(files) == 1
    with pytest.raises(BadData, match="not of this daemon"):
        async with opened():
            pass


async def test_while_it_runs_the_daemon_also_vouches_for_rows_after_the_last_checkpoint(
    opened: Open, files: Files
) -> None:
    async with opened() as audit:
        for number in range(10):
            await audit.append(happening(number))
        change(files, "UPDATE entries SET event = 'test:forged' WHERE seq = 11")
        recompute_from(files, 11)
        verdict = await audit.verify()
    assert (verdict.ok, verdict.first_bad_seq) == (False, 11)


def forge_checkpoint(lines: list[bytes]) -> list[bytes]:
    last = msgspec.json.decode(lines[-1], type=Checkpoint)
    return [*lines[:-1], msgspec.json.encode(msgspec.structs.replace(last, seq=last.seq - 2))]


ANCHOR_CHANGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "a forged last line": forge_checkpoint,
    "a line less in the middle": lambda lines: [lines[0], *lines[2:]],
    "its beginning gone": lambda lines: lines[1:],
    "two lines swapped": lambda lines: [lines[1], lines[0], *lines[2:]],
    "nonsense": lambda lines: [*lines, b"{}"],
    "emptied": lambda lines: [],
}


async def test_a_changed_anchor_is_found(record: FakeLog, files: Files) -> None:
    """U03."""
    good = files.anchor.read_bytes()
    for name, change_lines in ANCHOR_CHANGES.items():
        with case(name):
            lines = change_lines(good.splitlines())
            files.anchor.write_bytes(b"".join(line + b"\n" for line in lines))
            assert not verification.verify(files).ok
            files.anchor.write_bytes(good)
            assert verification.verify(files).ok


async def test_the_command_names_the_first_bad_row_without_a_daemon(
    record: FakeLog, files: Files, var_dir: Path
) -> None:
    """U03: exit 0 when whole, 1 when not."""
    command = [sys.executable, "-m", "ksi_daemon.audit", "verify", str(var_dir)]
    assert (await asyncio.to_thread(subprocess.run, command, capture_output=True)).returncode == 0
    change(files, "UPDATE entries SET count = 5 WHERE seq = 6")
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True)
    assert done.returncode == 1
    assert msgspec.json.decode(done.stdout)["first_bad_seq"] == 6


async def test_checkpoints_go_to_the_log_and_are_signed_with_the_key(record: FakeLog, files: Files) -> None:
    lines = list(read_lines(files.anchor, read_key(files.key)))
    assert [line.kind for line in lines] == ["first", "closed", "closed"]
    assert [facts["mac"] for event, facts in record.lines if event == "audit checkpoint"] == [
        line.mac for line in lines[1:]
    ]


async def test_a_wal_that_is_taken_away_after_a_crash_is_found(opened: Open, files: Files, tmp_path: Path) -> None:
    """F04: signed rows that were still in the write-ahead log."""
    async with opened() as audit:
        for number in range(5):
            await audit.append(happening(number))
        await audit._writer.run(lambda: audit._writer.checkpoints.sign(audit._writer.ledger, "checkpoint"))
        crashed = tmp_path / "crashed"
        shutil.copytree(files.database.parent.parent, crashed)
    copy = Files.under(crashed)
    assert verification.verify(copy).ok
    for ending in ("-wal", "-shm"):
        copy.database.with_name(copy.database.name + ending).unlink()
    assert not verification.verify(copy).ok


def test_the_statement_for_one_row_has_a_place_for_each_column() -> None:
    assert INSERT.count("?") == len(COLUMNS)
