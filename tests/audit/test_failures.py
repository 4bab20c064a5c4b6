"""No audit, no service: when a row cannot be written its caller is refused, nothing is half kept, and the service comes back."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ksi_daemon.audit import Audit, verification
from ksi_daemon.audit.files import Files, connect_writer
from ksi_daemon.audit.reading import Filter
from ksi_daemon.errors import AuditUnavailable
from tests.audit.conftest import FakeLog, Open, happening, intent, outcome, until

SOON_S = 0.02


class Faulty(sqlite3.Connection):
    """A connection whose statements fail when told to."""

    failures: Iterator[bool]

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if not sql.startswith(("PRAGMA", "SELECT")) and next(self.failures):
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *parameters)


def faulty(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Faulty)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


async def recovered(audit: Audit) -> None:
    """Wait until rows can be written again."""
    await until(lambda: audit.available)


@pytest.mark.parametrize("nth", range(1, 13))
async def test_whichever_write_fails_nothing_is_half_kept_and_the_chain_goes_on(
    opened: Open, files: Files, nth: int
) -> None:
    """U02, F03: the Nth statement fails; what was acknowledged is there, what was refused raised, the chain is whole."""
    statements = iter(range(1, 10_000))
    Faulty.failures = (next(statements) == nth for _ in iter(int, 1))
    kept: list[str] = []
    refused: list[str] = []

    async def caller(name: int) -> None:
        for number in range(4):
            event = f"test:c{name}_{number}"
            try:
                await audit.append(happening(event=event))
                kept.append(event)
            except AuditUnavailable:
                refused.append(event)
                await recovered(audit)

    async with opened(connect=faulty, retry_s=SOON_S) as audit:
        await asyncio.gather(*(caller(name) for name in range(3)))
        await recovered(audit)
        await audit.append(happening(event="test:last"))
        rows = (await audit.query(Filter(), limit=1000)).rows
    events = [row["event"] for row in rows]
    assert set(kept) <= set(events)
    assert not set(refused) & set(events)
    assert len(kept) + len(refused) == 12
    assert events.count("audit:recovered") == (1 if refused else 0)
    assert verification.verify(files).ok


async def test_while_the_audit_is_down_everyone_is_refused_at_once_and_an_alarm_says_why(
    opened: Open, log: FakeLog
) -> None:
    """U02."""
    alarms: list[str] = []
    broken = True
    Faulty.failures = (broken for _ in iter(int, 1))
    async with opened(connect=faulty, retry_s=SOON_S, on_alarm=alarms.append) as audit:
        for _ in range(5):
            with pytest.raises(AuditUnavailable, match="disk I/O error") as refused:
                await audit.append(happening())
            assert (refused.value.code, refused.value.status) == ("audit_unavailable", 503)
        with pytest.raises(AuditUnavailable):
            await audit.append_refusal(happening(status="forbidden"))
        assert not audit.available
        assert "calls are refused" in audit.alarms()[0]
        await asyncio.sleep(0)
        assert len(alarms) == 1
        broken = False
        await recovered(audit)
        assert audit.alarms() == []
        note = (await audit.query(Filter(event="audit:recovered"))).rows[0]
        assert note["details"]["refused_entries"] == 1
        assert "disk I/O error" in note["reason"]


async def test_an_outcome_that_could_not_be_recorded_is_unknown_after_the_recovery(opened: Open) -> None:
    """U02: the call ran, its end is recorded nowhere, and its caller was told so."""
    broken = False
    Faulty.failures = (broken for _ in iter(int, 1))
    async with opened(connect=faulty, retry_s=SOON_S) as audit:
        await audit.append(intent("c1"))
        await audit.append(intent("c2"))
        broken = True
        with pytest.raises(AuditUnavailable):
            await audit.append(outcome("c1"))
        broken = False
        await recovered(audit)
        unknown = (await audit.query(Filter(status="unknown"))).rows
        assert [(row["call_id"], row["details"]) for row in unknown] == [("c1", {"ended_as": "ok"})]
        await audit.append(outcome("c2"))
        assert audit._writer.ledger.open_intents == {}


async def test_calls_that_end_at_any_moment_of_an_outage_have_an_outcome_after_it(opened: Open) -> None:
    """U02: not only those whose write failed: also those that ended later, when nothing was tried any more, and during the recovery."""
    broken = False
    Faulty.failures = (broken for _ in iter(int, 1))
    async with opened(connect=faulty, retry_s=SOON_S) as audit:
        calls = [f"c{number}" for number in range(200)]
        for call_id in calls:
            await audit.append(intent(call_id))
        broken = True
        with pytest.raises(AuditUnavailable):
            await audit.append(outcome("c0"))
        for number, call_id in enumerate(calls[1:], start=1):
            if number == 100:
                broken = False
            with suppress(AuditUnavailable):
                await audit.append(outcome(call_id))
            await asyncio.sleep(SOON_S / 50)
        await recovered(audit)
        assert audit._writer.ledger.open_intents == {}
        rows = (await audit.query(Filter(), limit=10_000)).rows
        ended = [row["call_id"] for row in rows if row["phase"] == "outcome"]
        assert sorted(ended) == sorted(calls), "each call has one outcome"
        unknown = {row["call_id"] for row in rows if row["status"] == "unknown"}
        assert {"c0", "c1", "c99"} <= unknown
        assert (await audit.verify()).ok


async def test_a_full_disk_refuses_and_recovers_when_there_is_room(opened: Open, files: Files) -> None:
    """U02, F03: SQLITE_FULL."""
    limit = 0

    def small(path: Path) -> sqlite3.Connection:
        connection = connect_writer(path)
        connection.execute(f"PRAGMA max_page_count = {limit or 1_000_000}")
        return connection

    limit = files.database.stat().st_size // 4096 + 12 if files.database.exists() else 24
    async with opened(connect=small, retry_s=SOON_S) as audit:
        acknowledged = 0

        async def fill() -> None:
            nonlocal acknowledged
            while acknowledged < 10_000:
                await audit.append(happening(acknowledged, reason="x" * 900))
                acknowledged += 1

        with pytest.raises(AuditUnavailable, match="full"):
            await fill()
        limit = 0
        await recovered(audit)
        await audit.append(happening(event="test:after"))
        assert audit.head.seq == 1 + acknowledged + 2
    assert verification.verify(files).ok


async def test_a_database_locked_by_another_process_refuses_and_recovers(opened: Open, files: Files) -> None:
    """U02."""
    async with opened(retry_s=SOON_S) as audit:
        await audit.append(happening())
        script = (
            "import sqlite3, sys\n"
            "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
            "c.execute('BEGIN IMMEDIATE'); print('locked', flush=True); sys.stdin.read()"
        )
        locker = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, str(files.database), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert locker.stdout is not None
        await locker.stdout.readline()
        with pytest.raises(AuditUnavailable, match="locked"):
            await audit.append(happening())
        await locker.communicate(b"")
        await recovered(audit)
        await audit.append(happening())
        assert (await audit.verify()).ok


async def test_a_read_only_database_refuses_and_recovers(opened: Open, files: Files) -> None:
    """U02."""
    read_only = False

    def connect(path: Path) -> sqlite3.Connection:
        connection = connect_writer(path)
        connection.execute(f"PRAGMA query_only = {'ON' if read_only else 'OFF'}")
        return connection

    async with opened(connect=connect, retry_s=SOON_S) as audit:
        read_only = True
        await audit._writer.run(audit._writer.ledger.reconnect)
        with pytest.raises(AuditUnavailable, match="readonly"):
            await audit.append(happening())
        read_only = False
        await recovered(audit)
        await audit.append(happening())
        assert (await audit.verify()).ok


async def test_a_database_that_is_moved_away_under_the_daemon_stops_the_service(opened: Open, files: Files) -> None:
    """U02: rows written to a file without a name would be lost at the next start."""
    async with opened(retry_s=SOON_S) as audit:
        await audit.append(happening())
        away = files.database.with_name("away.db")
        files.database.rename(away)
        with pytest.raises(AuditUnavailable):
            await audit.append(happening())
        files.database.write_bytes(b"")
        await asyncio.sleep(5 * SOON_S)
        assert not audit.available
        away.rename(files.database)
        await recovered(audit)
        await audit.append(happening())
    assert verification.verify(files).ok


async def test_a_start_on_a_full_disk_serves_nothing_until_the_crashed_calls_are_recorded(opened: Open) -> None:
    """U02, U05."""
    async with opened() as audit:
        await audit.append(intent("c1"))
    broken = True
    Faulty.failures = (broken for _ in iter(int, 1))
    async with opened(connect=faulty, retry_s=SOON_S) as audit:
        assert not audit.available
        broken = False
        await recovered(audit)
        assert [row["call_id"] for row in (await audit.query(Filter(status="unknown"))).rows] == ["c1"]


async def test_an_anchor_that_cannot_be_written_is_an_alarm_and_is_made_up_for(opened: Open, files: Files) -> None:
    async with opened() as audit:
        writer = audit._writer
        await audit.append(happening())
        files.anchor.rename(files.anchor.with_name("away"))
        files.anchor.mkdir()
        await writer.run(lambda: writer.checkpoints.sign(writer.ledger, "checkpoint"))
        assert "checkpoints cannot be written" in audit.alarms()[0]
        await audit.append(happening())
        files.anchor.rmdir()
        files.anchor.with_name("away").rename(files.anchor)
        await writer.run(lambda: writer.checkpoints.sign(writer.ledger, "checkpoint"))
        assert audit.alarms() == []
    assert verification.verify(files).ok


async def test_a_closed_audit_refuses(opened: Open) -> None:
    async with opened() as audit:
        pass
    with pytest.raises(AuditUnavailable, match="closed"):
        await audit.append(happening())


async def test_what_waits_at_the_end_is_written_before_the_end(opened: Open, files: Files) -> None:
    async with opened() as audit:
        waiting = [asyncio.create_task(audit.append(happening(number))) for number in range(100)]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert verification.verify(files).rows == 101
