"""Exports that verify alone, retention that leaves the rest verifiable, checkpoints on time."""

import asyncio
import csv
import itertools
import sqlite3
from pathlib import Path

import msgspec
import pytest

from ksi_daemon.audit import Audit, verification, verify_export
from ksi_daemon.audit.anchor import read_key, read_lines
from ksi_daemon.audit.files import Files
from ksi_daemon.audit.reading import Filter
from ksi_daemon.errors import Conflict, Invalid
from ksi_daemon.notice import iso_time
from tests.audit.conftest import FakeClock, Open, happening, intent, outcome


async def fill(audit: Audit, rows: int) -> None:
    await asyncio.gather(
        *(audit.append(happening(number, arguments={"text": "é\n", "n": 1.5})) for number in range(rows))
    )


async def test_an_export_verifies_alone_and_with_the_key(opened: Open, files: Files, tmp_path: Path) -> None:
    """U08."""
    out = tmp_path / "all.jsonl"
    async with opened() as audit:
        await fill(audit, 300)
        exported = await audit.export_jsonl(out)
        assert (exported.rows, exported.first_seq, exported.last_seq) == (301, 1, 301)
        with pytest.raises(Conflict):
            await audit.export_jsonl(out)
        part = await audit.export_jsonl(tmp_path / "part.jsonl", after=100, through=150)
        assert (part.rows, part.first_seq, part.last_seq) == (50, 101, 150)
        with pytest.raises(Invalid):
            await audit.export_jsonl(tmp_path / "none.jsonl", after=9_999)
    assert out.stat().st_mode & 0o777 == 0o600
    for path in (out, tmp_path / "part.jsonl"):
        assert verify_export(path).ok
        assert verify_export(path, read_key(files.key)).ok
    assert not verify_export(out, b"another key of thirty-two bytes!").ok


@pytest.mark.parametrize(
    ("how", "bad"),
    [
        ("change", 5),
        ("delete", 5),
        ("swap", 5),
        ("cut", 20),
        ("no end", 31),
        ("more", 32),
        ("not json", 5),
        ("another end", 31),
    ],
)
async def test_a_changed_export_is_found(opened: Open, tmp_path: Path, how: str, bad: int) -> None:
    """U08."""
    out = tmp_path / "all.jsonl"
    async with opened() as audit:
        await fill(audit, 29)
        await audit.export_jsonl(out)
    lines = out.read_bytes().splitlines(keepends=True)
    row = 5  # the first line is the beginning, so row 5 is at place 5
    match how:
        case "change":
            lines[row] = lines[row].replace(b'"n":1.5', b'"n":1.6')
        case "delete":
            del lines[row]
        case "swap":
            lines[row], lines[row + 1] = lines[row + 1], lines[row]
        case "cut":
            lines = lines[:20]
        case "no end":
            lines = lines[:-1]
        case "more":
            lines.append(lines[-2])
        case "not json":
            lines[row] = lines[row][:50] + b"\n"
        case "another end":
            lines[-1] = lines[-1].replace(b'"rows":30', b'"rows":29')
    out.write_bytes(b"".join(lines))
    verdict = verify_export(out)
    assert (verdict.ok, verdict.first_bad_seq) == (False, bad if how != "more" else verdict.first_bad_seq)


async def test_a_bad_row_is_not_exported(opened: Open, files: Files, tmp_path: Path) -> None:
    """U03, U08."""
    async with opened() as audit:
        await fill(audit, 20)
        connection = sqlite3.connect(files.database)
        connection.execute("UPDATE entries SET event = 'test:forged' WHERE seq = 7")
        connection.commit()
        connection.close()
        with pytest.raises(Conflict, match="row 7"):
            await audit.export_jsonl(tmp_path / "a.jsonl")
    assert list(tmp_path.glob("a.jsonl*")) == []


async def test_csv_holds_no_formula_and_no_escape(opened: Open, tmp_path: Path) -> None:
    async with opened() as audit:
        for reason in ("=1+1", "+1", "-1", "@x", "\tx", "plain", "two\nlines \x1b[31m"):
            await audit.append(happening(type="error", reason=reason))
        await audit.export_csv(tmp_path / "out.csv", Filter(type="error"))
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as text:
        cells = [row["reason"] for row in csv.DictReader(text)]
    assert cells == ["'=1+1", "'+1", "'-1", "'@x", "\\tx", "plain", "two\\nlines \\x1b[31m"]


async def test_retention_leaves_the_rest_verifiable_and_never_drops_what_was_not_exported(
    opened: Open, files: Files, tmp_path: Path
) -> None:
    """U08."""
    clock = FakeClock()
    async with opened(clock=clock) as audit:
        await fill(audit, 99)
        with pytest.raises(Conflict, match="never exported"):
            await audit.retain(keep_rows=20)
        await audit.export_jsonl(tmp_path / "a.jsonl", through=50)
        with pytest.raises(Conflict, match="30 of the rows"):
            await audit.retain(keep_rows=20)
        retained = await audit.retain(keep_rows=50)
        assert (retained.dropped, retained.first_seq) == (50, 51)
        verdict = await audit.verify()
        assert (verdict.ok, verdict.rows, verdict.first_seq) == (True, 50, 51)
        assert (verdict.dropped, verdict.dropped_at) == (50, iso_time(clock.now_s))
        clock.now_s += 60
        plan = await audit.retain(keep_rows=20, dry_run=True)
        assert (plan.dropped, plan.first_seq, plan.unexported) == (30, 81, 30)
        assert (await audit.verify()).rows == 50
        forced = await audit.retain(keep_rows=20, unexported=True)
        assert (forced.dropped, forced.first_seq, forced.unexported) == (30, 81, 30)
        assert (await audit.retain(keep_rows=20, unexported=True)).dropped == 0
        assert (await audit.retain(keep_rows=1, through=80, unexported=True)).dropped == 0
        assert (await audit.verify()).dropped_at == iso_time(clock.now_s)
        await audit.append(happening())
    async with opened() as audit:
        assert (await audit.verify()).rows == 21
        await audit.export_jsonl(tmp_path / "b.jsonl")
    assert verify_export(tmp_path / "b.jsonl", read_key(files.key)).ok
    assert next(iter(read_lines(files.anchor, read_key(files.key)))).kind == "base"


async def test_retention_by_age_keeps_the_chain_without_holes_and_calls_that_have_not_ended(opened: Open) -> None:
    """U08, F05: an old row behind a younger one stays, whatever made the clock jump."""
    clock = FakeClock()
    async with opened(clock=clock) as audit:
        await audit.append(happening())  # 2
        await audit.append(intent("open"))  # 3
        await audit.append(happening())  # 4
        clock.now_s += 10 * 86_400
        await audit.append(happening())  # 5
        clock.now_s -= 10 * 86_400
        await audit.append(happening())  # 6, old again
        clock.now_s += 10 * 86_400
        assert (await audit.retain(keep_days=7, unexported=True)).first_seq == 3
        await audit.append(outcome("open"))  # 7
        assert (await audit.retain(keep_days=7, unexported=True)).first_seq == 5
        assert (await audit.retain(keep_rows=0, unexported=True)).first_seq == 7
        with pytest.raises(Invalid):
            await audit.retain()
        assert (await audit.verify()).ok


async def test_rows_that_retention_was_killed_before_dropping_are_dropped_at_the_next_start(
    opened: Open, files: Files
) -> None:
    """U08."""
    async with opened() as audit:
        await fill(audit, 50)
        writer = audit._writer
        base = writer.ledger.position(20, writer.checkpoints.base)
        assert base is not None
        signed = {"base_seq": 20, "base_hash": base.hash.hex(), "base_mac": base.mac.hex()}
        await writer.run(lambda: writer.checkpoints.sign(writer.ledger, "base", **signed))
        assert (await audit.verify()).ok
    async with opened() as audit:
        verdict = await audit.verify()
        assert (verdict.ok, verdict.rows, verdict.first_seq) == (True, 31, 21)


async def test_a_base_that_nobody_signed_is_found(opened: Open, files: Files) -> None:
    """U08, U03: dropping old rows without retention."""
    async with opened() as audit:
        await fill(audit, 50)
    connection = sqlite3.connect(files.database)
    connection.execute("DELETE FROM entries WHERE seq <= 20")
    connection.commit()
    connection.close()
    assert verification.verify(files).first_bad_seq == 1


async def test_retention_export_and_verification_go_on_beside_the_callers(
    opened: Open, files: Files, tmp_path: Path
) -> None:
    """U08."""
    done = asyncio.Event()

    async def caller() -> int:
        rows = 0
        while not done.is_set():
            await audit.append(happening())
            rows += 1
        return rows

    async with opened() as audit:
        await fill(audit, 1_000)
        callers = [asyncio.create_task(caller()) for _ in range(8)]
        for number in range(3):
            exported = await audit.export_jsonl(tmp_path / f"{number}.jsonl")
            newer = audit.head.seq - (exported.last_seq or 0)
            await audit.retain(keep_rows=newer + 800)  # callers go on: some rows more are not exported yet
            assert (await audit.verify()).ok
        done.set()
        assert sum(await asyncio.gather(*callers)) > 3
    assert verification.verify(files).ok
    exports = [verify_export(tmp_path / f"{number}.jsonl", read_key(files.key)) for number in range(3)]
    assert all(export.ok for export in exports)
    assert all(late.first_seq <= early.last_seq + 1 for early, late in itertools.pairwise(exports))  # type: ignore[operator]


async def test_checkpoints_come_every_thousand_rows_and_after_a_minute(opened: Open, files: Files) -> None:
    monotonic = FakeClock(50.0)

    def places() -> list[tuple[str, int]]:
        return [(line.kind, line.seq) for line in read_lines(files.anchor, read_key(files.key))]

    async with opened(monotonic=monotonic) as audit:
        for _ in range(30):
            await fill(audit, 50)
        assert len(places()) == 2
        assert places()[1][1] >= 1_001
        monotonic.now_s += 61
        await audit.append(happening())
        await audit._writer.run(lambda: None)
        assert places()[2] in (("checkpoint", 1_501), ("checkpoint", 1_502))  # the thread may look before the row comes
    assert places()[3] == ("closed", 1_502)


async def test_the_open_calls_are_part_of_a_checkpoint(opened: Open, files: Files) -> None:
    """U05."""
    async with opened() as audit:
        await audit.append(intent("c1"))
    last = msgspec.json.decode(files.anchor.read_bytes().splitlines()[-1])
    assert last["open"] == [2]
