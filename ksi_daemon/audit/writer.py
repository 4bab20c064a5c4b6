"""The one writer of the audit: a thread that takes entries from the event loop and makes them durable in groups.

It assigns sequence numbers and hashes, so the order of the chain is the order of the commits. Each append waits for its group: one
wake-up of the loop per group. When a group cannot be written, all its appends fail with `AuditUnavailable`, and so do all later
ones until a probe row was written.
"""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

import msgspec

from ksi_daemon.audit.checkpoints import Checkpoints
from ksi_daemon.audit.entry import Entry, Row, fields_after_seq
from ksi_daemon.audit.ledger import Ledger, Replaced
from ksi_daemon.audit.mirror import Mirror
from ksi_daemon.errors import AuditUnavailable
from ksi_daemon.notice import iso_time

GROUP_LIMIT = 512
RETRY_S = 1.0

Answer = TypeVar("Answer")
WRITE_FAILURES = (sqlite3.Error, OSError, Replaced)


class _Waiting(NamedTuple):
    entry: Entry
    time_s: float
    done: "asyncio.Future[None]"


class _Job(NamedTuple):
    """A function to run between two groups."""

    function: Callable[[], Any]
    done: "asyncio.Future[Any]"


class Writer:
    """Owns the ledger from `start` to `close`."""

    def __init__(
        self,
        ledger: Ledger,
        checkpoints: Checkpoints,
        mirror: Mirror,
        *,
        on_alarm: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        retry_s: float = RETRY_S,
    ) -> None:
        self.problem: str | None = None
        self.ledger = ledger
        self.checkpoints = checkpoints
        self._mirror = mirror
        self._on_alarm = on_alarm
        self._clock = clock
        self._monotonic = monotonic
        self._retry_s = retry_s
        self._failed_since = 0.0
        self._failed_entries = 0
        self._lost_outcomes: dict[str, Entry] = {}  # by call; shared by both threads
        self._lost_lock = threading.Lock()
        self._crashed_calls = False  # whether calls of an earlier daemon still need their "unknown" outcome
        self._next_probe = 0.0
        self._closed = False
        self._batch: list[_Waiting] = []
        self._queue: SimpleQueue[list[_Waiting] | _Job | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="audit writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def append(self, entry: Entry) -> None:
        """Returns when the entry's row is durable. Raises `AuditUnavailable` when it could not be made so."""
        if (self.problem is not None or self._closed) and not self._keep_outcome(entry):
            raise self.unavailable()
        waiting = _Waiting(entry, self._clock(), self._loop.create_future())
        if not self._batch:
            self._loop.call_soon(
                self._enqueue_batch
            )  # after all tasks that are ready now, so that they share one commit
        self._batch.append(waiting)
        await waiting.done

    def _keep_outcome(self, entry: Entry) -> bool:
        """Keep the outcome of a call that ends during an outage for the recovery; False when there is no outage any more."""
        with self._lost_lock:
            if self.problem is None and not self._closed:
                return True
            if entry.phase == "outcome" and entry.call_id is not None:
                self._lost_outcomes[entry.call_id] = entry
        return False

    def _enqueue_batch(self) -> None:
        if self._batch:
            self._queue.put(self._batch)
            self._batch = []

    async def record_unknown_outcomes(self) -> None:
        """Write an outcome row with the status unknown for every call interrupted by a crash; now, or as soon as rows can be written."""
        await self.run(self._record_unknown_outcomes)

    def _record_unknown_outcomes(self) -> None:
        self._crashed_calls = bool(self.ledger.open_intents)
        try:
            if self._crashed_calls:
                self._after_write(self.ledger.append(self._rows_of_crashed_calls()))
                self._crashed_calls = False
        except WRITE_FAILURES as error:
            self._fail([], error)

    def _rows_of_crashed_calls(self) -> list[Row]:
        now = iso_time(self._clock())
        return [(now, *row[1:]) for row in self.ledger.unknown_outcomes()]

    async def run(self, function: Callable[[], Answer]) -> Answer:
        """Run something on the writer's thread, between two groups."""
        if self._closed:
            raise self.unavailable()
        self._enqueue_batch()
        job = _Job(function, self._loop.create_future())
        self._queue.put(job)
        answer: Answer = await job.done
        return answer

    async def close(self) -> None:
        """Write the queued entries, sign the end, stop the thread."""
        if not self._closed:
            self._closed = True
            self._enqueue_batch()
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
            self.ledger.close()

    def unavailable(self) -> AuditUnavailable:
        return AuditUnavailable(
            f"the audit cannot be written: {self.problem or 'it is closed'}",
            hint="calls are refused until it can be; see `ksi status` and var/log/ksi.jsonl",
        )

    def _run(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=self._idle_s())
            except Empty:
                self._between_groups()
                continue
            group: list[_Waiting] = []
            while isinstance(item, list):
                group += item
                if len(group) >= GROUP_LIMIT or self._queue.empty():
                    break
                item = self._queue.get()
            if group:
                self._commit(group)
            if isinstance(item, _Job):
                self._do(item)
            self._between_groups()
            if item is None:
                if self.problem is None:
                    self.checkpoints.sign(self.ledger, "closed")
                return

    def _idle_s(self) -> float:
        return self._retry_s if self.problem is not None else self.checkpoints.due_in_s(self._monotonic())

    def _between_groups(self) -> None:
        now = self._monotonic()
        if self.problem is not None:
            if now >= self._next_probe:
                self._probe()
        elif self.checkpoints.is_due(now):
            self.checkpoints.sign(self.ledger, "checkpoint")

    def _commit(self, group: list[_Waiting]) -> None:
        entries: list[Row] = []
        refused: list[tuple[asyncio.Future[None], Exception]] = []
        for waiting in group:
            try:
                entries.append(fields_after_seq(waiting.entry, waiting.time_s))
            except Exception as error:  # noqa: BLE001 - arguments that cannot be encoded fail only their own caller
                refused.append((waiting.done, error))
        try:
            if self.problem is not None:
                raise self.unavailable()
            rows = self.ledger.append(entries) if entries else []
        except (*WRITE_FAILURES, AuditUnavailable) as error:
            self._fail(group, error)
            return
        self._loop.call_soon_threadsafe(_settle, [waiting.done for waiting in group], refused)
        if rows:
            self._after_write(rows)

    def _fail(self, group: list[_Waiting], error: Exception) -> None:
        self._failed_entries += len(group)
        with self._lost_lock:
            for waiting in group:
                if waiting.entry.phase == "outcome" and waiting.entry.call_id is not None:
                    self._lost_outcomes[waiting.entry.call_id] = waiting.entry
            began, self.problem = self.problem is None, self.problem or str(error)
        if began:
            self._failed_since = self._monotonic()
            self._next_probe = self._failed_since + self._retry_s
            self._on_alarm(f"the audit cannot be written, so calls are refused: {error}")
        self._loop.call_soon_threadsafe(_settle, [], [(waiting.done, self.unavailable()) for waiting in group])

    def _probe(self) -> None:
        """Try a real row: it shows later readers the gap in the service. Outcomes lost meanwhile follow in the same transaction."""
        taken: dict[str, Entry] = {}
        try:
            self.ledger.reconnect()
            entries = [self._recovery()]
            crashed = self._rows_of_crashed_calls() if self._crashed_calls else []
            while True:
                with self._lost_lock:
                    taken, self._lost_outcomes = taken | self._lost_outcomes, {}
                entries += self._unknown_outcomes(taken)
                if entries or crashed:
                    rows = [fields_after_seq(entry, self._clock()) for entry in entries] + crashed
                    self._after_write(self.ledger.append(rows))
                taken, entries, crashed, self._crashed_calls = {}, [], [], False
                with self._lost_lock:
                    if not self._lost_outcomes:
                        self.problem = None
                        break
        except WRITE_FAILURES as error:
            with self._lost_lock:
                self._lost_outcomes = taken | self._lost_outcomes
                self.problem = str(error)
            self._next_probe = self._monotonic() + self._retry_s
            return
        self._failed_entries = 0

    def _after_write(self, rows: list[Row]) -> None:
        self.checkpoints.count(len(rows))
        self._mirror.put(rows)

    def _recovery(self) -> Entry:
        details = {
            "unavailable_s": round(self._monotonic() - self._failed_since, 3),
            "refused_entries": self._failed_entries,
        }
        return Entry(type="system", event="audit:recovered", reason=self.problem, details=details)

    def _unknown_outcomes(self, lost: Mapping[str, Entry]) -> list[Entry]:
        """Calls that ended while the outcome could not be recorded; their callers got `audit_unavailable`."""
        reason = "its end came while the audit could not be written"
        return [
            msgspec.structs.replace(entry, status="unknown", reason=reason, details={"ended_as": entry.status})
            for call_id, entry in lost.items()
            if call_id in self.ledger.open_intents
        ]

    def _do(self, job: _Job) -> None:
        try:
            answer = job.function()
        except WRITE_FAILURES as error:
            failure = AuditUnavailable(f"the audit operation failed: {error}", hint="`ksi status` shows the alarms")
            self._loop.call_soon_threadsafe(_settle, [], [(job.done, failure)])
        except Exception as error:  # noqa: BLE001 - it is raised in the task that submitted the job
            self._loop.call_soon_threadsafe(_settle, [], [(job.done, error)])
        else:
            self._loop.call_soon_threadsafe(_answer, job.done, answer)


def _settle(
    written: Sequence["asyncio.Future[None]"], refused: Sequence[tuple["asyncio.Future[Any]", Exception]]
) -> None:
    for future, error in refused:
        if not future.done():
            future.set_exception(error)
    for future in written:
        if not future.done():
            future.set_result(None)


def _answer(future: "asyncio.Future[Any]", answer: Any) -> None:
    if not future.done():
        future.set_result(answer)
