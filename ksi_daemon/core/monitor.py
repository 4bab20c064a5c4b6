"""Monitor: recent calls and notices, counters, latencies, and correlation chains."""

from typing import Any

from pydantic import field_validator

from ksi_daemon.core.moment import Moment, moment
from ksi_daemon.identifiers import PATTERN, matches
from ksi_daemon.logs.journal import CallRecord, Journal, notice_as_dict
from ksi_daemon.notice import Notice
from ksi_daemon.plugin import Context, Field, NotFound, Nothing, Params, Plugin, Result
from ksi_daemon.routing.bus import ALL_WAITING_LIMIT_BYTES, Bus
from ksi_daemon.routing.slow_readers import SlowReaders

plugin = Plugin("monitor", uses=[Journal, Bus, SlowReaders])


class GetEvents(Params):
    event_patterns: list[str] = Field(
        ["*"],
        min_length=1,
        max_length=100,
        description="Event names, namespace:* or *.",
        json_schema_extra={"items": {"type": "string", "pattern": f"^(?:{PATTERN.pattern})$"}},
    )
    since: Moment | None = Field(None, description="Not before this ISO time, or this many seconds ago.")
    until: Moment | None = Field(None, description="Not after this ISO time, or this many seconds ago.")
    limit: int = Field(100, ge=1, le=1000, description="Maximum number of entries, the newest ones.")
    reverse: bool = Field(True, description="Newest first.")

    @field_validator("event_patterns")
    @classmethod
    def _are_patterns(cls, patterns: list[str]) -> list[str]:
        for pattern in patterns:
            if not PATTERN.fullmatch(pattern):
                raise ValueError(f"{pattern[:80]!r} is not a valid pattern: use an event's name, namespace:* or *")
        return patterns


class Events(Result):
    events: list[dict[str, Any]]
    matched: int = Field(description="How many match in the ring, including those over the limit.")
    forgotten: int = Field(description="How many older entries the ring has dropped.")


@plugin.handles("monitor:get_events", reads=True)
async def get_events(ctx: Context, params: GetEvents) -> Events:
    """List the latest calls and notices, by pattern and time, from the daemon's ring buffer."""
    journal = ctx.capability(Journal)
    since, until = (
        None if time_s is None else _microseconds(time_s)
        for time_s in (moment("since", params.since), moment("until", params.until))
    )
    found: list[dict[str, Any]] = []
    matched = 0
    for record in journal.newest_first():
        began = _microseconds(record.time_s)  # as precisely as it is shown
        if (until is not None and began > until) or (since is not None and began < since):
            continue  # and not `break`: the ring is in the order in which calls ended
        if any(matches(pattern, record.event) for pattern in params.event_patterns):
            matched += 1
            if len(found) < params.limit:
                found.append(_shown(record))
    return Events(events=found if params.reverse else found[::-1], matched=matched, forgotten=journal.forgotten)


class Stats(Result):
    calls: dict[str, dict[str, Any]]
    outcomes: dict[str, int]
    notices: dict[str, int]
    dropped_notices: int
    waiting_notices: dict[str, int] = Field(description="Bytes of notices that wait for subscribers, and their limit.")
    slow_readers: dict[str, int] = Field(
        description="Connections that are behind now, what they leave unread in bytes and its limit, and how many were cut."
    )
    ring: dict[str, int]


@plugin.handles("monitor:get_stats", reads=True)
async def get_stats(ctx: Context, params: Nothing) -> Stats:
    """Count calls, errors and notices since the start, with the latency of each event's last calls."""
    journal, bus = ctx.capability(Journal), ctx.capability(Bus)
    return Stats(
        calls={
            event: {
                "calls": counts.calls,
                "errors": counts.errors,
                "p50_ms": counts.quantile_ms(0.5),
                "p95_ms": counts.quantile_ms(0.95),
                "p99_ms": counts.quantile_ms(0.99),
            }
            for event, counts in sorted(journal.counts.items())
            if counts.calls
        },
        outcomes=journal.outcomes,
        notices=dict(sorted(journal.notices.items())),
        dropped_notices=bus.dropped,
        waiting_notices={"bytes": bus.waiting_bytes, "limit_bytes": ALL_WAITING_LIMIT_BYTES},
        slow_readers=ctx.capability(SlowReaders).figures(),
        ring={"size": journal.size, "limit": journal.limit, "forgotten": journal.forgotten},
    )


class Correlation(Params):
    correlation_id: str = Field(
        min_length=1, max_length=64, description="The correlation id that calls and notices share."
    )


class Chain(Result):
    correlation_id: str
    events: list[dict[str, Any]]


@plugin.handles("monitor:get_correlation_chain", reads=True)
async def get_correlation_chain(ctx: Context, params: Correlation) -> Chain:
    """Show everything one call caused, in order: its calls and notices, each with its parent and depth."""
    journal = ctx.capability(Journal)
    chain = [_shown(record) for record in journal.newest_first() if record.correlation_id == params.correlation_id]
    if not chain:
        raise NotFound(
            f"there are no entries of the correlation {params.correlation_id!r}",
            hint="monitor:get_events lists the recent entries",
        )
    return Chain(
        correlation_id=params.correlation_id, events=sorted(chain, key=lambda event: (event["at"], event["depth"]))
    )


def _shown(record: CallRecord | Notice) -> dict[str, Any]:
    if isinstance(record, CallRecord):
        return record.as_dict()
    shown = notice_as_dict(record)
    return shown | {"data": record.data} if "data" in shown else shown


def _microseconds(time_s: float) -> int:
    return round(time_s * 1_000_000)
