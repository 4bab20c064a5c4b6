"""Audit: query, count, verify, export and trim the audit of all calls and refusals."""

from typing import Any, Literal

from ksi_daemon.audit import Audit, Filter, parse_head
from ksi_daemon.core.moment import Moment, moment
from ksi_daemon.plugin import Context, Field, Invalid, Params, Plugin, Result

plugin = Plugin("audit", uses=[Audit])


class Selection(Params):
    type: str | None = Field(
        None,
        max_length=32,
        description="tool_call, resource_read, authorization, session, consent, admin, system or error.",
    )
    agent_id: str | None = Field(None, max_length=64, description="Only rows of this agent.")
    sessionId: str | None = Field(None, max_length=64, description="Only rows of this session.")
    event: str | None = Field(None, max_length=100, description="Only rows of this event or tool.")
    status: str | None = Field(None, max_length=32, description="ok, an error's code word, started or unknown.")
    since: Moment | None = Field(None, description="Not before this ISO time, or this many seconds ago.")
    until: Moment | None = Field(None, description="Not after this ISO time, or this many seconds ago.")


class Query(Selection):
    limit: int = Field(100, ge=1, le=1000, description="Maximum number of rows.")
    after: int | None = Field(None, ge=0, description="Only rows after this seq, oldest first; for polling.")


class Rows(Result):
    rows: list[dict[str, Any]]
    more: bool


class Stats(Result):
    totalEvents: int
    byType: dict[str, int]
    byStatus: dict[str, int]
    uniqueSessions: int
    avgToolDurationMs: float
    errorRate: float = Field(description="Percent.")


class Verify(Params):
    deep: bool = Field(False, description="Also run SQLite's integrity check on the database and its indexes.")
    against: str | None = Field(
        None, max_length=300, description="Also compare with this signed head, as audit:checkpoint printed it."
    )


class Verdict(Result):
    ok: bool
    rows: int
    first_bad_seq: int | None
    problem: str | None
    dropped: int = Field(description="Rows that retention dropped; they can be verified only in exports.")
    dropped_at: str | None = Field(description="When retention last dropped rows.")
    without_mac: int = Field(description="Rows of a version without MACs; only checkpoints cover them.")


class Checkpoint(Params):
    pass


class Head(Result):
    head: str
    daemon_id: str
    seq: int


class Export(Params):
    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,100}$", description="The file's name; it is written to var/exports/.")
    format: Literal["jsonl", "csv"] = Field(
        "jsonl", description="jsonl keeps the chain and can be verified on its own."
    )


class Exported(Result):
    path: str
    rows: int


class Retain(Params):
    keep_days: float | None = Field(None, gt=0, description="Drop rows older than this.")
    keep_rows: int | None = Field(None, ge=1, description="Keep at most this many.")
    through: int | None = Field(None, ge=1, description="Drop no row after this seq.")
    unexported: bool = Field(False, description="Also drop rows that were never exported.")
    dry_run: bool = Field(False, description="Drop nothing, only say what would be dropped.")


class Retained(Result):
    dropped: int
    first_seq: int = Field(description="The first remaining row.")
    unexported: int = Field(description="How many of the dropped rows were never exported.")


@plugin.handles("audit:query", reads=True, operator_only=True)
async def query(ctx: Context, params: Query) -> Rows:
    """List rows by type, agent, session, event, status and time; newest first, or onwards from one when `after` is given."""
    order: Literal["newest", "oldest"] = "newest" if params.after is None else "oldest"
    page = await ctx.capability(Audit).query(_filter(params, after=params.after), limit=params.limit, order=order)
    return Rows(rows=page.rows, more=page.more)


@plugin.handles("audit:stats", reads=True, operator_only=True)
async def stats(ctx: Context, params: Selection) -> Stats:
    """Count what happened: by type, by status, sessions, mean duration, share of failures."""
    found = await ctx.capability(Audit).stats(_filter(params))
    return Stats(
        totalEvents=found.total_events,
        byType=found.by_type,
        byStatus=found.by_status,
        uniqueSessions=found.unique_sessions,
        avgToolDurationMs=found.avg_tool_duration_ms or 0.0,
        errorRate=found.error_rate,
    )


@plugin.handles("audit:verify", reads=True, operator_only=True, timeout_s=600)
async def verify(ctx: Context, params: Verify) -> Verdict:
    """Check the whole record: every row's hash, the chain, and the signed checkpoints outside the database."""
    try:
        against = None if params.against is None else parse_head(params.against)
    except ValueError as error:
        raise Invalid(f"against is not a signed head: {error}") from error
    found = await ctx.capability(Audit).verify(deep=params.deep, against=against)
    return Verdict(
        ok=found.ok,
        rows=found.rows,
        first_bad_seq=found.first_bad_seq,
        problem=found.problem,
        dropped=found.dropped,
        dropped_at=found.dropped_at,
        without_mac=found.without_mac,
    )


@plugin.handles("audit:checkpoint", operator_only=True)
async def checkpoint(ctx: Context, _params: Checkpoint) -> Head:
    """Sign the end of the chain now and return it as one line, to be kept on another machine for audit:verify."""
    head = await ctx.capability(Audit).checkpoint()
    return Head(head=str(head), daemon_id=head.daemon_id, seq=head.seq)


@plugin.handles("audit:export", operator_only=True, timeout_s=600)
async def export(ctx: Context, params: Export) -> Exported:
    """Write the record to a file under var/exports/; never over one that is there."""
    audit = ctx.capability(Audit)
    folder = ctx.folder.parent.parent / "exports"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / params.name
    made = await (audit.export_jsonl(path) if params.format == "jsonl" else audit.export_csv(path))
    return Exported(path=made.path, rows=made.rows)


@plugin.handles("audit:retain", operator_only=True, timeout_s=600)
async def retain(ctx: Context, params: Retain) -> Retained:
    """Drop the oldest rows, if they were exported; the rest stays verifiable."""
    made = await ctx.capability(Audit).retain(
        keep_days=params.keep_days,
        keep_rows=params.keep_rows,
        through=params.through,
        unexported=params.unexported,
        dry_run=params.dry_run,
    )
    return Retained(dropped=made.dropped, first_seq=made.first_seq, unexported=made.unexported)


def _filter(params: Selection, *, after: int | None = None) -> Filter:
    return Filter(
        type=params.type,
        agent=params.agent_id,
        session_id=params.sessionId,
        event=params.event,
        status=params.status,
        since=moment("since", params.since),
        until=moment("until", params.until),
        after=after,
    )
