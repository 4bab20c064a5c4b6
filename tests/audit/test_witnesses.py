"""A chain that was cut where a group ends is valid in itself: what lies outside it shows that it was longer."""

import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from ksi_daemon.audit import Audit, open_audit, verification, verify_export
from ksi_daemon.audit.files import Files
from ksi_daemon.audit.new_chain import begin_new_chain
from ksi_daemon.audit.reading import Filter
from ksi_daemon.audit.signed_head import parse_head
from ksi_daemon.errors import BadData, Unavailable
from ksi_daemon.logs.log import Log
from ksi_daemon.storage.audit_head import AuditHead, read_audit_head
from ksi_daemon.storage.migrations import MIGRATIONS
from ksi_daemon.storage.sqlite import open_database
from tests.audit.conftest import FakeLog, Open, happening
from tests.cases import case


@asynccontextmanager
async def life(var_dir: Path) -> AsyncIterator[Audit]:
    """The audit as the daemon opens it: with its log, and with `ksi.db`."""
    log = Log(var_dir / "log" / "ksi.jsonl", "info")
    try:
        async with (
            open_database(var_dir / "db" / "ksi.db", MIGRATIONS) as database,
            open_audit(var_dir, log=log.logger, save_head=AuditHead(database).save) as audit,
        ):
            yield audit
    finally:
        log.file.close()


@pytest.fixture
async def lived(var_dir: Path) -> Path:
    """A var folder after two runs: rows 1 to 11, then 12 to 21, each a group of its own."""
    for _ in range(2):
        async with life(var_dir) as audit:
            for number in range(10):
                await audit.append(happening(number))
    return var_dir


def cut_after(files: Files, seq: int) -> None:
    """Cut the tail, and roll the anchor back to its first line, which is signed."""
    with closing(sqlite3.connect(files.database, isolation_level=None)) as connection:
        connection.execute("DELETE FROM entries WHERE seq > ?", (seq,))
    files.anchor.write_bytes(files.anchor.read_bytes().splitlines(keepends=True)[0])


def forget_in_core(files: Files) -> None:
    with closing(sqlite3.connect(files.core_database, isolation_level=None)) as connection:
        connection.execute("DELETE FROM audit_head")


FORGET: dict[str, Callable[[Files], None]] = {
    "ksi.jsonl": lambda files: files.log.unlink(),
    "audit.jsonl": lambda files: files.mirror.unlink(),
    "ksi.db": forget_in_core,
}


async def test_each_witness_alone_shows_that_rows_were_erased(lived: Path, files: Files, tmp_path: Path) -> None:
    """U03, F04: all rows but one are erased and the anchor is rolled back; any one witness that is left is enough."""
    shutil.copytree(lived, tmp_path / "good")
    for left in FORGET:
        with case(left):
            cut_after(files, 1)
            for name, forget in FORGET.items():
                if name != left:
                    forget(files)
            verdict = verification.verify(files)
            assert (verdict.ok, verdict.first_bad_seq) == (False, 2)
            assert verdict.problem is not None
            assert left in verdict.problem
            signed = files.anchor.read_bytes()
            with pytest.raises(BadData, match=f"tail was cut.*{left}") as refused:
                async with life(lived):
                    pass
            assert refused.value.exit_code == 65
            assert files.anchor.read_bytes() == signed
            shutil.rmtree(lived)
            shutil.copytree(tmp_path / "good", lived)
            assert verification.verify(files).ok


async def test_a_cut_is_not_found_when_every_witness_was_rolled_back_with_it(lived: Path, files: Files) -> None:
    """U03: the limit that docs/audit.md names; a head kept elsewhere would show it."""
    cut_after(files, 11)
    for forget in FORGET.values():
        forget(files)
    assert verification.verify(files).ok


async def test_a_witness_that_others_wrote_into_the_log_is_ignored(lived: Path, files: Files) -> None:
    """U03: only signed heads of this chain count there."""
    head = read_audit_head(files.core_database)
    assert head is not None
    known = parse_head(head)
    with files.log.open("a") as log:
        for forged in (head.replace(f":{known.seq}:", ":99:"), head.replace(known.daemon_id, "f" * 16)):
            log.write(f'{{"event": "audit checkpoint", "head": "{forged}"}}\n')
    assert verification.verify(files).ok


async def test_the_signed_head_is_saved_at_the_start_with_each_checkpoint_and_at_the_end(
    var_dir: Path, files: Files
) -> None:
    """U03."""
    async with life(var_dir) as audit:
        await audit.append(happening())
    for row in (2, 3):
        head = read_audit_head(files.core_database)
        assert head is not None
        assert parse_head(head).seq == row
        assert parse_head(head).is_signed_with(files.key.read_bytes())
        async with life(var_dir) as audit:
            await audit.append(happening())


async def test_a_head_that_cannot_be_saved_is_an_alarm(opened: Open) -> None:
    async def fail(_head: str) -> None:
        raise Unavailable("the database ksi.db is closed")

    said: list[str] = []
    async with opened(save_head=fail, on_alarm=said.append) as audit:
        await audit.append(happening())
        await audit._writer.run(lambda: audit._writer.checkpoints.sign(audit._writer.ledger, "checkpoint"))
        await audit.append(happening())
        assert any("ksi.db" in alarm for alarm in audit.alarms())
    assert sum("ksi.db" in alarm for alarm in said) == 1


async def test_without_database_anchor_and_key_no_new_audit_is_begun(lived: Path, files: Files) -> None:
    """F04: all of the audit's own files are deleted together; `ksi.db` knows better."""
    for path in (files.database, files.anchor, files.key, files.mirror, files.log):
        path.unlink()
    with pytest.raises(BadData, match=r"ksi.db knows of the audit .* with 21 rows.* ksi audit new-chain") as refused:
        async with life(lived):
            pass
    assert refused.value.exit_code == 65
    assert not files.database.exists()
    assert not files.key.exists()
    verdict = verification.verify(files)
    assert not verdict.ok
    assert "they were deleted" in str(verdict.problem)


async def test_an_audit_put_in_the_place_of_this_one_is_refused(lived: Path, files: Files, tmp_path: Path) -> None:
    """F04: database, anchor and key of another daemon fit each other, but not `ksi.db`."""
    other = tmp_path / "other"
    for folder in ("run", "db", "log"):
        (other / folder).mkdir(parents=True, mode=0o700)
    async with open_audit(other, log=FakeLog()):
        pass
    for mine, theirs in zip(files[:3], Files.under(other)[:3], strict=True):
        shutil.copy(theirs, mine)
    assert not verification.verify(files).ok
    with pytest.raises(BadData, match="they were replaced"):
        async with life(lived):
            pass


async def test_a_new_chain_begins_with_the_old_head_and_keeps_the_old_files(lived: Path, files: Files) -> None:
    """U03, F04: also when the first try was killed after some files were moved."""
    old = read_audit_head(files.core_database)
    cut_after(files, 11)
    files.key.rename(files.key.with_name("elsewhere"))
    made = begin_new_chain(lived, reason="rows were erased", now_s=1_800_000_000.0)
    again = begin_new_chain(lived, reason="and once more", now_s=1_800_000_000.0)
    assert made.old_head == old
    assert again.set_aside != made.set_aside
    assert {path.name for path in Path(made.set_aside).iterdir()} >= {files.database.name, files.anchor.name}
    async with life(lived) as audit:
        rows = (await audit.query(Filter(event="audit:new_chain"))).rows
        assert (await audit.verify()).ok
    assert [(row["seq"], row["reason"]) for row in rows] == [(1, "and once more")]
    assert rows[0]["details"]["old_daemon_id"] == made.daemon_id
    assert parse_head(again.old_head or "").daemon_id == made.daemon_id
    assert verification.verify(files).ok


def test_a_new_chain_is_refused_where_there_is_none(var_dir: Path) -> None:
    with pytest.raises(BadData, match="ksi start"):
        begin_new_chain(var_dir, reason="why not", now_s=0.0)


async def test_a_head_kept_elsewhere_shows_a_rollback_of_everything(lived: Path, files: Files, tmp_path: Path) -> None:
    """U03: of the whole var folder, and of an export."""
    shutil.copytree(lived, tmp_path / "older")
    async with life(lived) as audit:
        await audit.append(happening())
        await audit.export_jsonl(tmp_path / "export.jsonl")
        head = await audit.checkpoint()
        assert (await audit.verify(against=head)).ok
        assert not (await audit.verify(against=parse_head(str(head).replace(":22:", ":23:")))).ok
    assert verification.verify(files, against=head).ok
    key = files.key.read_bytes()
    assert verify_export(tmp_path / "export.jsonl", key, against=head).ok
    shutil.rmtree(lived)
    shutil.copytree(tmp_path / "older", lived)
    verdict = verification.verify(files, against=head)
    assert (verdict.ok, verdict.first_bad_seq) == (False, 22)
    older = parse_head(read_audit_head(files.core_database) or "")
    assert verification.verify(files, against=older).ok
    others = {
        "of another chain": str(head).replace(head.daemon_id, "f" * 16),
        "of another row": str(older).replace(":21:", ":20:"),
        "of a row that is not there": str(head).replace(":22:", ":99:"),
    }
    for name, text in others.items():
        with case(name):
            assert not verification.verify(files, against=parse_head(text)).ok
            assert not verify_export(tmp_path / "export.jsonl", key, against=parse_head(text)).ok
    with pytest.raises(ValueError, match="form"):
        parse_head("ksi-audit-head:1")
