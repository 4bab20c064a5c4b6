"""The recent calls and notices in memory: a bounded ring buffer, counters, and lines for the log.

It is lost at a restart; the durable log of calls is the audit.
"""

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ksi_daemon.identifiers import time_of
from ksi_daemon.notice import Notice, iso_time

FLUSH_S = 0.1
DURATIONS_KEPT = 512
NOTICE_DATA_LIMIT_BYTES = 4_096
NAMES_LIMIT = 1_000  # of notices with a counter of their own
OTHERS = "(others)"


class CallRecord(msgspec.Struct, frozen=True, gc=False):
    """One finished call."""

    id: str
    event: str
    correlation_id: str
    parent_id: str | None
    depth: int
    principal: str
    outcome: str  # ok, or the code word of its error
    duration_us: int
    result_bytes: int

    @property
    def time_s(self) -> float:
        """When it began."""
        return time_of(self.id)

    def as_dict(self) -> dict[str, Any]:
        """For `monitor:get_events` and the log."""
        return {
            "kind": "call",
            "id": self.id,
            "event": self.event,
            "at": iso_time(self.time_s),
            "correlation_id": self.correlation_id,
            "parent_id": self.parent_id,
            "depth": self.depth,
            "principal": self.principal,
            "outcome": self.outcome,
            "duration_ms": self.duration_us / 1000,
            "result_bytes": self.result_bytes,
        }


def notice_as_dict(notice: Notice) -> dict[str, Any]:
    """A notice as the monitor shows it; for large data only the size is shown."""
    shown = notice.as_dict() | {"kind": "notice", "principal": notice.sender}
    del shown["sender"]
    if notice.size > NOTICE_DATA_LIMIT_BYTES:
        del shown["data"]
        shown["data_left_out_bytes"] = notice.size
    return shown


class EventCounts:
    """Counters of one event: calls, errors, and the last durations."""

    __slots__ = ("calls", "durations_us", "errors")

    def __init__(self) -> None:
        self.calls = 0
        self.errors = 0
        self.durations_us: deque[int] = deque(maxlen=DURATIONS_KEPT)

    def quantile_ms(self, share: float) -> float | None:
        """A quantile of the last durations (nearest rank), in milliseconds."""
        if not self.durations_us:
            return None
        ordered = sorted(self.durations_us)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] / 1000


class Journal:
    """The ring and the counters. A call only appends; lines are written later, in batches."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.failures: dict[str, int] = {}
        self.counts: dict[str, EventCounts] = {}
        self.notices: dict[str, int] = {}
        self._seen = 0
        self._written = 0
        self._ring: deque[CallRecord | Notice] = deque(maxlen=limit)

    @property
    def size(self) -> int:
        """How many entries the ring holds now."""
        return len(self._ring)

    @property
    def forgotten(self) -> int:
        """How many entries were dropped from the ring."""
        return self._seen - len(self._ring)

    @property
    def outcomes(self) -> dict[str, int]:
        """How calls ended: ok, or the code word of their error."""
        return {"ok": sum(counts.calls - counts.errors for counts in self.counts.values()), **self.failures}

    def add_call(self, record: CallRecord, counts: EventCounts | None) -> None:
        """Remember a finished call."""
        self._seen += 1
        self._ring.append(record)
        if counts is not None:
            counts.calls += 1
            counts.durations_us.append(record.duration_us)
        if record.outcome != "ok":
            self.failures[record.outcome] = self.failures.get(record.outcome, 0) + 1
            if counts is not None:
                counts.errors += 1

    def add_notice(self, notice: Notice) -> None:
        """Remember a notice."""
        self._seen += 1
        self._ring.append(notice if notice.size <= NOTICE_DATA_LIMIT_BYTES else notice.without_data())
        name = notice.event if notice.event in self.notices or len(self.notices) < NAMES_LIMIT else OTHERS
        self.notices[name] = self.notices.get(name, 0) + 1

    def counts_of(self, event: str) -> EventCounts:
        """The counters of a known event; they outlive a reload of its plugin."""
        return self.counts.setdefault(event, EventCounts())

    def newest_first(self) -> Iterator[CallRecord | Notice]:
        """Everything still in the ring."""
        return reversed(self._ring)

    async def write_lines(self, write: Callable[[list[CallRecord | Notice], int], None]) -> None:
        """Hand new records (and how many were dropped) to `write` in a thread until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(FLUSH_S)
                if self._written < self._seen:
                    await asyncio.to_thread(write, *self._take_unwritten())
        finally:
            write(*self._take_unwritten())

    def _take_unwritten(self) -> tuple[list[CallRecord | Notice], int]:
        new = self._seen - self._written
        kept = min(new, len(self._ring))
        self._written = self._seen
        taken = list(itertools.islice(reversed(self._ring), kept))
        taken.reverse()
        return taken, new - kept
