"""Limits the rows that a flood of refusals writes: over a budget they are counted exactly, one row per second and kind.

Up to `BUDGET` refusals a second of one agent have a row each, durable before the reply. Those over it are counted in memory and the
reply is sent at once; the row with their number is written at the end of that second, so a crash can lose the count of one second. The
counts of all rows together are always the number of refusals.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from ksi_daemon.audit.entry import Entry
from ksi_daemon.notice import iso_time

BUDGET = 50
KINDS_LIMIT = 64  # summary rows of one agent in one second; further event names share one row
MANY_EVENTS = "(many)"

_Kind = tuple[str, str, str, str, str | None, str | None]


@dataclass(slots=True)
class _Second:
    """One agent's refusals in one second."""

    number: int
    rows: int = 0
    kinds: dict[_Kind, "_Count"] = field(default_factory=dict)


@dataclass(slots=True)
class _Count:
    first: Entry
    count: int
    first_s: float
    last_s: float


class Flood:
    """The budget and the counts. Not thread-safe: for the event loop only. Seconds are monotonic."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._agents: dict[tuple[str, str | None], _Second] = {}
        self._finished: list[_Second] = []
        self._unwritten: list[Entry] = []

    def count_over_budget(self, entry: Entry, *, now: float, time_s: float) -> bool:
        """Count a refusal that is over the budget; True when it was counted, False when it needs its own row."""
        agent = (entry.principal, entry.agent_id)
        second = self._agents.get(agent)
        if second is None or second.number != int(now):
            if second is not None and second.kinds:
                self._finished.append(second)
            second = self._agents[agent] = _Second(int(now))
        if second.rows < self._budget:
            second.rows += 1
            return False
        self._count(second, entry, time_s)
        return True

    @property
    def has_counts(self) -> bool:
        """Whether any counted refusal is not yet in a summary that was taken."""
        return bool(self._finished or self._unwritten) or any(second.kinds for second in self._agents.values())

    def take_due(self, now: float) -> list[Entry]:
        """The summary rows of all finished seconds; removes them, and agents without refusals."""
        for agent, second in list(self._agents.items()):
            if second.number < int(now):
                del self._agents[agent]
                self._finished.append(second)
        finished, self._finished = self._finished, []
        due, self._unwritten = self._unwritten, []
        return due + [_summary(count) for second in finished for count in second.kinds.values()]

    def put_back(self, summaries: Iterable[Entry]) -> None:
        """Summaries that could not be written: they are due again."""
        self._unwritten += summaries

    def _count(self, second: _Second, entry: Entry, time_s: float) -> None:
        kind = (entry.type, entry.status, entry.transport, entry.phase, entry.event, entry.tool)
        if kind not in second.kinds and len(second.kinds) >= KINDS_LIMIT:
            kind = (entry.type, entry.status, entry.transport, entry.phase, MANY_EVENTS, None)
            entry = msgspec.structs.replace(entry, event=MANY_EVENTS, tool=None)
        counted = second.kinds.get(kind)
        if counted is None:
            second.kinds[kind] = _Count(entry, entry.count, time_s, time_s)
        else:
            counted.count += entry.count
            counted.last_s = time_s


def _summary(counted: _Count) -> Entry:
    """One row for many refusals: what they have in common, without what belongs to a single call."""
    return msgspec.structs.replace(
        counted.first,
        call_id=None,
        correlation_id=None,
        parent_id=None,
        session_id=None,
        credential_id=None,
        conversation_id=None,
        arguments=None,
        duration_ms=None,
        result_bytes=None,
        count=counted.count,
        time_s=counted.first_s,
        details={"summary": "refusals beyond the budget of one second", "until": iso_time(counted.last_s)},
    )
