"""The audit's interface for the rest of the daemon: append, query, verify, export, retain; opened and closed as one unit.

    async with open_audit(var_dir, log=log.logger) as audit:
        await audit.append(Entry(type="tool_call", phase="intent", status="started", …))   # durable when it returns

An intent row is written before an effect, an outcome row before the reply; `append_refusal` is for refusals, which may be many.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from ksi_daemon.audit import export, reading, retention, verification
from ksi_daemon.audit.anchor import Checkpoint
from ksi_daemon.audit.chain import Broken, Head
from ksi_daemon.audit.checkpoints import Checkpoints
from ksi_daemon.audit.entry import Entry
from ksi_daemon.audit.files import Files, connect_writer
from ksi_daemon.audit.flood import Flood
from ksi_daemon.audit.kept_head import KeptHead, SaveHead
from ksi_daemon.audit.ledger import Connect, Ledger
from ksi_daemon.audit.mirror import Mirror
from ksi_daemon.audit.opening import open_files
from ksi_daemon.audit.signed_head import SignedHead, sign_head
from ksi_daemon.audit.writer import RETRY_S, Writer
from ksi_daemon.errors import AuditUnavailable, Conflict, Invalid, Unavailable
from ksi_daemon.workers.supervisor import supervising


class Audit:
    """The audit of one daemon. Created by `open_audit`."""

    def __init__(
        self,
        files: Files,
        writer: Writer,
        mirror: Mirror,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self.files = files
        self.daemon_id = writer.ledger.daemon_id
        self._writer = writer
        self._mirror = mirror
        self._clock = clock
        self._monotonic = monotonic
        self.alarm_sources: list[Callable[[], list[str]]] = []
        self._flood = Flood()
        self._counted = asyncio.Event()
        self._reorganising = asyncio.Lock()  # verification must not run while rows are being dropped

    @property
    def available(self) -> bool:
        """Whether entries can be made durable now. If not, no call may be served."""
        return self._writer.problem is None

    @property
    def head(self) -> Head:
        """The last durable row."""
        return self._writer.ledger.head

    def alarms(self) -> list[str]:
        """The current alarms, as sentences."""
        problem = self._writer.problem
        unavailable = f"the audit cannot be written, so calls are refused: {problem}" if problem else None
        own = [text for text in (unavailable, self._writer.checkpoints.problem, self._mirror.problem) if text]
        return own + [text for source in self.alarm_sources for text in source()]

    async def append(self, entry: Entry) -> None:
        """Returns when the entry's row is durable. Raises `AuditUnavailable` when it could not be made so."""
        await self._writer.append(entry)

    async def append_refusal(self, entry: Entry) -> None:
        """Like `append`, but refusals of one agent over the budget of a second are only counted: see `flood.py`."""
        if not self.available:
            raise self._writer.unavailable()
        if self._flood.count_over_budget(entry, now=self._monotonic(), time_s=self._clock()):
            self._counted.set()
        else:
            await self._writer.append(entry)

    async def write_summaries(self) -> None:
        """Write the counts of all finished seconds, durably."""
        await self._write_summaries(self._monotonic())

    async def _write_summaries(self, now: float) -> None:
        summaries = self._flood.take_due(now)
        results = await asyncio.gather(*map(self._writer.append, summaries), return_exceptions=True)
        self._flood.put_back(
            summary for summary, failure in zip(summaries, results, strict=True) if failure is not None
        )
        for failure in results:
            if failure is not None:
                raise failure

    async def summarise_floods(self) -> None:
        """Write each second's summaries at its end, until cancelled."""
        while True:
            await self._counted.wait()
            await asyncio.sleep(1 - self._monotonic() % 1)
            with suppress(AuditUnavailable):  # the counts are kept and tried again in a second
                await self.write_summaries()
            if not self._flood.has_counts:
                self._counted.clear()

    async def query(
        self, wanted: reading.Filter, *, limit: int = 100, order: Literal["newest", "oldest"] = "newest"
    ) -> reading.Page:
        """Matching rows, newest first by default."""
        return await asyncio.to_thread(reading.query, self.files, wanted, limit=limit, order=order)

    async def stats(self, wanted: reading.Filter | None = None) -> reading.Stats:
        """Figures over the rows that fit."""
        return await asyncio.to_thread(reading.stats, self.files, wanted or reading.Filter())

    async def verify(
        self, *, progress: verification.Progress | None = None, deep: bool = False, against: SignedHead | None = None
    ) -> verification.Verdict:
        """Verify the whole audit while the daemon runs. `progress` is called on another thread."""
        async with self._reorganising:
            return await asyncio.to_thread(
                verification.verify, self.files, progress=progress, deep=deep, head=self.head, against=against
            )

    async def checkpoint(self) -> SignedHead:
        """Sign the head now, and return it signed, to be kept elsewhere."""
        return await self._writer.run(self._checkpoint)

    def _checkpoint(self) -> SignedHead:
        ledger, checkpoints = self._writer.ledger, self._writer.checkpoints
        if not checkpoints.sign(ledger, "checkpoint"):
            raise Unavailable(
                f"no checkpoint was written: {checkpoints.problem}", hint="free disk space, then try again"
            )
        return sign_head(ledger.macs.key, ledger.daemon_id, ledger.head)

    async def export_jsonl(
        self, path: Path, *, after: int | None = None, through: int | None = None
    ) -> export.Exported:
        """Export rows (all, or those after `after` and up to `through`) with their chain; see `export.verify_export`."""
        async with self._reorganising:
            base = self._writer.checkpoints.base
            start = base if after is None else await self._position(after)
            end = self.head.seq if through is None else min(through, self.head.seq)
            group_end = await self._writer.run(lambda: self._writer.ledger.group_end(end))
            try:
                exported = await asyncio.to_thread(
                    lambda: export.export_jsonl(
                        self.files,
                        path,
                        daemon_id=self.daemon_id,
                        after=start,
                        through=end,
                        group_end=group_end,
                        macs=self._writer.ledger.macs,
                    )
                )
            except Broken as error:
                raise Conflict(
                    f"the audit is broken, so nothing was exported: {error}",
                    hint="`ksi audit verify` shows what is wrong",
                ) from error
            if exported.last_seq is not None:
                await self._writer.run(lambda: self._mark_exported(start.seq, exported.last_seq or 0))
            return exported

    async def export_csv(self, path: Path, wanted: reading.Filter | None = None) -> export.Exported:
        """Export matching rows for a spreadsheet. Does not count as an export for retention, because it does not keep the chain."""
        return await asyncio.to_thread(export.export_csv, self.files, path, wanted or reading.Filter())

    async def retain(
        self,
        *,
        keep_days: float | None = None,
        keep_rows: int | None = None,
        through: int | None = None,
        unexported: bool = False,
        dry_run: bool = False,
    ) -> retention.Retained:
        """Drop rows from the start of the chain that are too old or too many, none after `through`. The caller audits the request."""
        async with self._reorganising:
            ledger, checkpoints = self._writer.ledger, self._writer.checkpoints
            cut = await asyncio.to_thread(
                lambda: retention.last_to_drop(
                    self.files,
                    self.daemon_id,
                    head=ledger.head,
                    keep_days=keep_days,
                    keep_rows=keep_rows,
                    now_s=self._clock(),
                )
            )
            if through is not None:
                cut = min(cut, through)
            if dry_run:
                return await self._writer.run(lambda: retention.planned(ledger, checkpoints, cut))
            retained = await self._writer.run(
                lambda: retention.sign_base(ledger, checkpoints, cut, unexported=unexported)
            )
            while retained.dropped and await self._writer.run(lambda: retention.drop_slice(ledger, checkpoints)):
                pass
            return retained

    async def _position(self, seq: int) -> Head:
        base = self._writer.checkpoints.base
        if seq == base.seq:
            return base
        found = await self._writer.run(lambda: self._writer.ledger.position(seq, base))
        if found is None:
            raise Invalid(f"there is no row {seq}", hint=f"rows {base.seq + 1} to {self.head.seq} exist")
        return found

    def _mark_exported(self, start: int, last: int) -> None:
        """Store, signed, up to which row the audit was exported without a gap."""
        checkpoints = self._writer.checkpoints
        if start > max(checkpoints.exported_through, checkpoints.base.seq) or last <= checkpoints.exported_through:
            return
        if not checkpoints.sign(self._writer.ledger, "exported", exported_through=last):
            raise Unavailable(
                f"the export is complete, but could not be marked as exported for retention: {checkpoints.problem}",
                hint="free disk space for the anchor file, then export again",
            )

    async def close(self) -> None:
        """Write the last summaries, sign the end."""
        with suppress(AuditUnavailable):  # already reported by an alarm; cannot be retried
            await self._write_summaries(self._monotonic() + 1)
        await self._writer.close()
        await asyncio.to_thread(self._mirror.close)


@asynccontextmanager
async def open_audit(
    var_dir: Path,
    *,
    log: Any,
    key_file: Path | None = None,
    on_alarm: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    connect: Connect = connect_writer,
    retry_s: float = RETRY_S,
    save_head: SaveHead | None = None,
) -> AsyncIterator[Audit]:
    """Open the audit under `var_dir`; it is created on the first start. Raises `BadData` when it was changed or damaged.

    `save_head` stores each signed head in `ksi.db`; `key_file` is the key's place, if it is not var/run/audit.key.
    `on_alarm` is called on the event loop with a message for each new problem. Calls interrupted by a crash get an
    outcome row with status "unknown" before this yields.
    """
    loop = asyncio.get_running_loop()

    def alarm(text: str) -> None:
        log.error("audit alarm", alarm=text)
        if on_alarm is not None:
            loop.call_soon_threadsafe(on_alarm, text)

    def log_checkpoint(line: Checkpoint) -> None:
        head = str(sign_head(opened.macs.key, line.daemon_id, line.head))
        facts = {name: getattr(line, name) for name in ("kind", "daemon_id", "seq", "hash", "rows", "mac")}
        log.info("audit checkpoint", **facts, head=head)
        kept_head.put(head)

    files = Files.under(var_dir, key_file)
    opened = await asyncio.to_thread(open_files, files, clock())
    kept_head = KeptHead(save_head or _no_store, alarm)
    ledger = await asyncio.to_thread(Ledger, opened, connect)
    checkpoints = Checkpoints(opened.anchor, log_checkpoint, on_alarm=alarm, clock=clock, monotonic=monotonic)
    mirror = Mirror(files.mirror, alarm)
    writer = Writer(ledger, checkpoints, mirror, on_alarm=alarm, clock=clock, monotonic=monotonic, retry_s=retry_s)
    mirror.start()
    writer.start()
    audit = Audit(files, writer, mirror, clock=clock, monotonic=monotonic)
    audit.alarm_sources.append(lambda: [kept_head.problem] if kept_head.problem else [])
    try:
        kept_head.put(str(sign_head(opened.macs.key, opened.daemon_id, opened.head)))
        async with supervising(log) as background:
            background.start("the audit's summaries", audit.summarise_floods)
            background.start("the audit's head in ksi.db", kept_head.run)
            audit.alarm_sources.append(background.alarms)
            await writer.record_unknown_outcomes()
            yield audit
    finally:
        await audit.close()
        await kept_head.save_latest()


async def _no_store(_head: str) -> None:
    """For an audit without a daemon."""
