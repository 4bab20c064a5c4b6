"""Queries of the audit: rows by caller, event, status and time, and statistics."""

from typing import Any, Literal

import msgspec

from ksi_daemon.audit.entry import COLUMNS, JSON_FIELDS, Row
from ksi_daemon.audit.files import SELECT, Files, reading
from ksi_daemon.errors import Invalid
from ksi_daemon.notice import iso_time

LIMIT = 10_000


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows to select; None matches all. `since` and `until` are seconds since the epoch."""

    type: str | None = None
    phase: str | None = None
    status: str | None = None
    agent: str | None = None
    session_id: str | None = None
    event: str | None = None  # event or tool
    call_id: str | None = None
    correlation_id: str | None = None
    since: float | None = None
    until: float | None = None
    after: int | None = None  # rows with a higher seq
    before: int | None = None  # rows with a lower seq


_CONDITION_OF = {
    "type": "type = ?", "phase": "phase = ?", "status": "status = ?", "agent": "agent_id = ?", "session_id": "session_id = ?",
    "event": "? IN (event, tool)", "call_id": "call_id = ?", "correlation_id": "correlation_id = ?",
    "after": "seq > ?", "before": "seq < ?",
}  # fmt: skip


class Page(msgspec.Struct, frozen=True):
    """Rows by field name. `more` says that the limit left some out."""

    rows: list[dict[str, Any]]
    more: bool


class Stats(msgspec.Struct, frozen=True, rename="camel"):
    """Statistics over events: a call counts once, at its outcome; a summary row counts as its `count`."""

    total_events: int
    by_type: dict[str, int]
    by_status: dict[str, int]
    unique_sessions: int
    avg_tool_duration_ms: float | None
    error_rate: float  # percent of events whose status is not ok
    rows: int


def query(files: Files, wanted: Filter, *, limit: int = 100, order: Literal["newest", "oldest"] = "newest") -> Page:
    """The matching rows. For the next page use `before` the last row, or `after` it when the oldest come first."""
    if not 1 <= limit <= LIMIT:
        raise Invalid(f"limit is {limit}: it must be between 1 and {LIMIT:,}")
    where, values = conditions(wanted)
    direction = "DESC" if order == "newest" else "ASC"
    with reading(files.database) as connection:
        rows = connection.execute(
            f"{SELECT} WHERE {where} ORDER BY daemon_id {direction}, seq {direction} LIMIT ?", (*values, limit + 1)
        ).fetchall()
    return Page([as_dict(row) for row in rows[:limit]], more=len(rows) > limit)


def stats(files: Files, wanted: Filter) -> Stats:
    """Statistics of the matching rows."""
    where, values = conditions(wanted)
    with reading(files.database) as connection:
        connection.execute("BEGIN")  # one snapshot for all figures
        kinds = connection.execute(
            "SELECT type, status, phase = 'intent', count(*), sum(count), "  # noqa: S608 - conditions are constant, values are bound
            f"count(duration_ms), sum(duration_ms) FROM entries WHERE {where} GROUP BY 1, 2, 3",
            values,
        ).fetchall()
        sessions = connection.execute(
            f"SELECT count(DISTINCT session_id) FROM entries WHERE {where} AND session_id IS NOT NULL",  # noqa: S608
            values,
        ).fetchone()[0]
    by_type: dict[str, int] = {}
    by_status: dict[str, int] = {}
    timed, duration_ms = 0, 0.0
    for type_, status, is_intent, _, events, durations, sum_ms in kinds:
        if is_intent:
            continue
        by_type[type_] = by_type.get(type_, 0) + events
        by_status[status] = by_status.get(status, 0) + events
        if type_ == "tool_call":
            timed, duration_ms = timed + durations, duration_ms + (sum_ms or 0.0)
    total = sum(by_type.values())
    return Stats(
        total_events=total,
        by_type=by_type,
        by_status=by_status,
        unique_sessions=sessions,
        avg_tool_duration_ms=round(duration_ms / timed, 3) if timed else None,
        error_rate=round(100 * (total - by_status.get("ok", 0)) / total, 3) if total else 0.0,
        rows=sum(kind[3] for kind in kinds),
    )


def as_dict(row: Row) -> dict[str, Any]:
    """A row as plain data: every field that is set, arguments and details decoded, the hash in hex."""
    fields: dict[str, Any] = {name: value for name, value in zip(COLUMNS, row, strict=True) if value is not None}
    for name in JSON_FIELDS:
        if name in fields:
            fields[name] = msgspec.json.decode(fields[name])
    del fields["prev_hash"]
    fields.pop("mac", None)
    fields["hash"] = fields["hash"].hex()
    return fields


def conditions(wanted: Filter) -> tuple[str, list[Any]]:
    """The filter as SQL: a constant condition, and the values bound to it."""
    found: list[str] = ["1"]
    values: list[Any] = []
    for name, condition in _CONDITION_OF.items():
        value = getattr(wanted, name)
        if name == "status" and value == "unknown":
            found.append("status = 'unknown'")  # a literal, so that SQLite uses the partial index
        elif value is not None:
            found.append(condition)
            values.append(_bound(value))
    for condition, time_s in (("time >= ?", wanted.since), ("time < ?", wanted.until)):
        if time_s is not None:
            found.append(condition)
            values.append(_moment(time_s))
    return " AND ".join(found), values


def _bound(value: str | int) -> str | int:
    """A value that SQLite accepts: 64-bit integers, text that is valid UTF-8."""
    if isinstance(value, int):
        return max(-(2**63), min(value, 2**63 - 1))
    return value.encode("utf-8", "backslashreplace").decode()


def _moment(time_s: float) -> str:
    try:
        return iso_time(time_s)
    except (ValueError, OverflowError, OSError) as error:
        raise Invalid(f"{time_s!r} is not a valid time") from error
