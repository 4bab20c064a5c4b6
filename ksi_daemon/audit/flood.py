"""Keeps a flood of refusals from becoming a flood of rows: above a budget they are counted, exactly, one row per second and kind.

Up to `BUDGET` refusals a second of one agent have a row each, durable before the reply. Those above it are counted in memory and the
reply leaves at once; the row with their number is written at the end of that second, so a crash can lose the count of one second. The
counts of all rows together are always the number of refusals.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from ksi_daemon.audit.entry import Entry
from ksi_daemon.notice import iso_time

BUDGET = 50
KINDS_LIMIT = 64  # summary rows of one agent in one second; invented event names beyond it share one
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
    like: Entry
    count: int
    first_s: float
    last_s: float


class Flood:
    """The budget and the counts. Not thread-safe: it lives on the event loop. Seconds are monotonic ones."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._agents: dict[tuple[str, str | None], _Second] = {}
        self._over: list[_Second] = []
        self._unwritten: list[Entry] = []

    def takes(self, entry: Entry, *, now: float, time_s: float) -> bool:
        """Whether this refusal was only counted. False: it is within the budget and wants a row of its own."""
        agent = (entry.principal, entry.agent_id)
        second = self._agents.get(agent)
        if second is None or second.number != int(now):
            if second is not None and second.kinds:
                self._over.append(second)
            second = self._agents[agent] = _Second(int(now))
        if second.rows < self._budget:
            second.rows += 1
            return False
        self._count(second, entry, time_s)
        return True

    @property
    def has_counts(self) -> bool:
        """Whether any refusal was counted whose summary is not yet taken."""
        return bool(self._over or self._unwritten) or any(second.kinds for second in self._agents.values())

    def take_due(self, now: float) -> list[Entry]:
        """The summary rows of all seconds that are over; forgets them, and agents that were quiet."""
        for agent, second in list(self._agents.items()):
            if second.number < int(now):
                del self._agents[agent]
                self._over.append(second)
        over, self._over = self._over, []
        due, self._unwritten = self._unwritten, []
        return due + [_summary(count) for second in over for count in second.kinds.values()]

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
    like = counted.like
    return Entry(
        type=like.type,
        phase=like.phase,
        status=like.status,
        event=like.event,
        tool=like.tool,
        transport=like.transport,
        principal=like.principal,
        agent_id=like.agent_id,
        user_id=like.user_id,
        rule=like.rule,
        reason=like.reason,
        count=counted.count,
        time_s=counted.first_s,
        details={"summary": "refusals beyond the budget of one second", "until": iso_time(counted.last_s)},
    )
