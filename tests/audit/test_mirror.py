"""The copy for people: every row a line, in order; its failure is an alarm and no more."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from ksi_daemon.audit import Audit
from ksi_daemon.audit import mirror as mirror_module
from ksi_daemon.audit.files import Files
from ksi_daemon.logs import log as log_module
from tests.audit.conftest import Open, happening, until


def lines_of(path: Path) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines() if line]


async def test_every_row_is_a_line_in_order(opened: Open, files: Files) -> None:
    async with opened() as audit:
        await asyncio.gather(*(audit.append(happening(number, arguments={"n": number})) for number in range(100)))
    lines = lines_of(files.mirror)
    assert [line["seq"] for line in lines] == list(range(2, 102))
    assert lines[0]["arguments"] == {"n": 0}
    assert "agent_id" not in lines[0]


async def test_a_dead_mirror_is_an_alarm_and_the_service_goes_on_and_the_gap_is_noted(
    opened: Open, files: Files
) -> None:
    """U10."""
    alarms: list[str] = []
    async with opened(on_alarm=alarms.append) as audit:
        await audit.append(happening(1))
        await mirrored(audit)
        files.mirror.rename(files.mirror.with_name("away"))
        files.mirror.mkdir()
        await audit.append(happening(2))
        await audit.append(happening(3))
        await mirrored(audit)
        assert audit.available
        assert "rows are missing" in audit.alarms()[0]
        assert len(alarms) == 1
        files.mirror.rmdir()
        files.mirror.with_name("away").rename(files.mirror)
        await audit.append(happening(4))
        await mirrored(audit)
        assert audit.alarms() == []
    lines = lines_of(files.mirror)
    assert [line.get("seq") for line in lines] == [2, None, 5]
    gap = lines[1]["gap"]
    assert isinstance(gap, dict)
    assert (gap["first_seq"], gap["last_seq"], gap["rows"]) == (3, 4, 2)


async def mirrored(audit: Audit) -> None:
    """Wait until the mirror has every durable row."""
    await audit._writer.run(lambda: None)
    await until(lambda: audit._mirror.waiting == 0)
    await asyncio.sleep(0)


async def test_rows_that_a_crash_kept_from_the_mirror_are_noted_at_the_next_start(opened: Open, files: Files) -> None:
    async with opened() as audit:
        for number in range(5):
            await audit.append(happening(number))
    lines = files.mirror.read_bytes().splitlines(keepends=True)
    files.mirror.write_bytes(b"".join(lines[:2]) + lines[2][:30])
    async with opened() as audit:
        await audit.append(happening())
    assert b'{"gap":{"first_seq":4,"last_seq":6' in files.mirror.read_bytes()


async def test_the_mirror_rotates_and_follows_an_outside_rotation(
    opened: Open, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U08."""
    monkeypatch.setattr(log_module, "ROTATE_AT_BYTES", 4_000)
    async with opened() as audit:
        for number in range(20):
            await audit.append(happening(number))
            await mirrored(audit)
        files.mirror.rename(files.mirror.with_name("taken-away"))
        await audit.append(happening())
    seen = [line["seq"] for path in files.mirror.parent.glob("audit.jsonl*") for line in lines_of(path)]
    seen += [line["seq"] for line in lines_of(files.mirror.with_name("taken-away"))]
    assert sorted(map(str, seen)) == sorted(map(str, range(2, 23)))
    assert files.mirror.with_name("audit.jsonl.1").exists()


async def test_a_mirror_that_is_too_slow_leaves_rows_out_and_says_so(
    opened: Open, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U10: memory is bounded."""
    monkeypatch.setattr(mirror_module, "WAITING_ROWS_LIMIT", -1)
    async with opened() as audit:
        await audit.append(happening())
        await mirrored(audit)
        assert "too slow" in audit.alarms()[0]
        monkeypatch.setattr(mirror_module, "WAITING_ROWS_LIMIT", 100)
        await audit.append(happening())
        await mirrored(audit)
        assert audit.alarms() == []
