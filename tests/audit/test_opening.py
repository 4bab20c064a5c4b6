"""A start with an audit that is damaged, cut, gone or half made: refused with exit code 65 and the way out, or begun anew."""

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ksi_daemon.audit import verification
from ksi_daemon.audit.files import Files
from ksi_daemon.audit.new_chain import begin_new_chain
from ksi_daemon.audit.opening import open_files
from ksi_daemon.audit.reading import Filter
from ksi_daemon.errors import BadData
from tests.audit.conftest import FakeClock, FakeLog, Open, happening, intent, outcome


def empty_the_table(files: Files) -> None:
    connection = sqlite3.connect(files.database)
    connection.execute("DELETE FROM entries")
    connection.commit()
    connection.close()


def another_database(files: Files) -> None:
    files.database.unlink()
    connection = sqlite3.connect(files.database)
    connection.execute("CREATE TABLE entries (seq)")
    connection.close()


def newer_schema(files: Files) -> None:
    connection = sqlite3.connect(files.database)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def remove(*paths: Path) -> None:
    for path in paths:
        path.unlink()


DAMAGES: dict[str, Callable[[Files], object]] = {
    "garbage": lambda files: files.database.write_bytes(b"garbage" * 1_000),
    "an overwritten page": lambda files: files.database.write_bytes(
        files.database.read_bytes()[:8_192] + b"\x5a" * 4_096 + files.database.read_bytes()[12_288:]
    ),
    "cut in the middle": lambda files: files.database.write_bytes(files.database.read_bytes()[:20_000]),
    "an empty file": lambda files: files.database.write_bytes(b""),
    "a database without rows": empty_the_table,
    "another database": another_database,
    "a newer schema": newer_schema,
    "a garbage write-ahead log": lambda files: files.database.with_name("audit.db-wal").write_bytes(b"garbage" * 1_000),
    "no database": lambda files: files.database.unlink(),
    "no anchor": lambda files: files.anchor.unlink(),
    "an empty anchor": lambda files: files.anchor.write_bytes(b""),
    "no key": lambda files: files.key.unlink(),
    "a short key": lambda files: files.key.write_bytes(b"short"),
    "another key": lambda files: files.key.write_bytes(b"k" * 32),
    "a readable key": lambda files: files.key.chmod(0o644),
    "no key and no anchor": lambda files: remove(files.key, files.anchor),
    "no key and no database": lambda files: remove(files.key, files.database),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_audit_is_refused_with_the_way_out(
    record: FakeLog, files: Files, opened: Open, damage: str
) -> None:
    """F04."""
    DAMAGES[damage](files)
    with pytest.raises(BadData) as refused:
        async with opened():
            pass
    assert refused.value.exit_code == 65
    assert any(word in str(refused.value) for word in ("backup", "chmod", "newer KSI"))


async def test_the_way_out_works(record: FakeLog, files: Files, opened: Open, var_dir: Path) -> None:
    """F04: what the message tells the operator to do gives a new record."""
    files.database.write_bytes(b"")
    with pytest.raises(BadData, match="ksi audit new-chain --reason"):
        async with opened():
            pass
    made = begin_new_chain(var_dir, reason="the disk was full", now_s=1_800_000_000.0)
    assert {path.name for path in Path(made.set_aside).iterdir()} == {
        path.name for path in (files.database, files.anchor, files.mirror, files.key)
    }
    async with opened() as audit:
        assert audit.head.seq == 1


def test_an_empty_file_at_the_very_first_start_is_no_beginning(files: Files) -> None:
    """F04: it would open as a valid empty database."""
    files.database.touch()
    with pytest.raises(BadData):
        open_files(files, 0.0)


def test_a_first_start_that_was_killed_before_its_end_starts_over(files: Files) -> None:
    first = open_files(files, 0.0)
    files.key.unlink()  # it is made last
    again = open_files(files, 0.0)
    assert again.daemon_id != first.daemon_id
    assert verification.verify(files).ok


async def test_a_line_of_the_anchor_that_a_crash_left_unfinished_does_not_count(
    record: FakeLog, files: Files, opened: Open
) -> None:
    whole = files.anchor.read_bytes()
    files.anchor.write_bytes(whole + whole.splitlines()[-1][:40])
    assert verification.verify(files).ok
    async with opened() as audit:
        await audit.append(happening())
    assert verification.verify(files).ok


async def test_a_long_record_is_checked_from_its_last_checkpoint_on_only(
    record: FakeLog, files: Files, opened: Open
) -> None:
    """A change before it does not stop the start (it may be long), but is found by `verify`."""
    connection = sqlite3.connect(files.database)
    connection.execute("UPDATE entries SET event = 'test:forged' WHERE seq = 3")
    connection.commit()
    connection.close()
    async with opened() as audit:
        assert (await audit.verify()).first_bad_seq == 3


async def test_a_call_that_a_crash_cut_short_gets_an_unknown_outcome(
    opened: Open, files: Files, clock: FakeClock
) -> None:
    """U05: also one begun before the last checkpoint; one that ended gets none."""
    async with opened(clock=clock) as audit:
        await audit.append(intent("early", event="notes:add", tool="ksi_notes_add", agent_id="a7", arguments={"n": 1}))
        await audit._writer.run(lambda: audit._writer.checkpoints.sign(audit._writer.ledger, "checkpoint"))
        await audit.append(intent("ended"))
        await audit.append(outcome("ended"))
        await audit.append(intent("late"))
        copy = files.database.parent.parent.parent / "crashed"
        shutil.copytree(files.database.parent.parent, copy)
    shutil.rmtree(files.database.parent.parent)
    shutil.move(copy, files.database.parent.parent)
    clock.now_s += 100
    async with opened(clock=clock) as audit:
        unknown = (await audit.query(Filter(status="unknown"))).rows
        assert [row["call_id"] for row in unknown] == ["late", "early"]
        assert (unknown[1]["event"], unknown[1]["agent_id"], unknown[1]["phase"]) == ("notes:add", "a7", "outcome")
        assert unknown[1]["details"] == {"intent": 2}
        assert unknown[1]["time"].startswith("2027-01-15T08:01:40")
        assert (await audit.verify()).ok
    async with opened() as audit:
        assert len((await audit.query(Filter(status="unknown"))).rows) == 2


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_the_tail_is_read_in_blocks_however_long_its_last_line(files: Files) -> None:
    """A checkpoint with very many open calls is longer than one block."""
    opened_ = open_files(files, 0.0)
    last = opened_.anchor.last
    assert last is not None
    opened_.anchor.append(msgspec.structs.replace(last, kind="checkpoint", open=tuple(range(10_000, 40_000))))
    with pytest.raises(BadData, match="row 10000"):
        open_files(files, 0.0)
