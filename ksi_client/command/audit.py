"""`ksi audit`: query, verify, export and trim the audit, or begin a new chain."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ksi_client.command.complete import complete_agents, complete_events
from ksi_client.command.durations import moment
from ksi_client.command.fault import FAILED, USAGE, Fault
from ksi_client.command.screen import Screen
from ksi_client.command.verb import Verb, verb_app
from ksi_client.errors import Unreachable
from ksi_client.sync_client import SyncClient
from ksi_client.terminal import visible

app = verb_app("Query, count, verify, export and trim the audit.")

LONG_S = 600  # the daemon's own limit for events that read the whole audit

_Agent = Annotated[str | None, typer.Option(help="Only rows of this agent.", autocompletion=complete_agents)]
_Event = Annotated[str | None, typer.Option(help="Only rows of this event or tool.", autocompletion=complete_events)]
_Type = Annotated[
    str | None, typer.Option("--type", help="Only rows of this type: tool_call, authorization, admin, ...")
]
_Status = Annotated[
    str | None, typer.Option(help="Only rows with this status: ok, started, unknown, or an error code.")
]
_Since = Annotated[str | None, typer.Option(metavar="TIME", help="Not before: 90s, 10m, 2h, 1d ago or an ISO time.")]
_Until = Annotated[str | None, typer.Option(metavar="TIME", help="Not after: 90s, 10m, 2h, 1d ago or an ISO time.")]


@app.command("query", cls=Verb)
def query(
    context: typer.Context,
    agent: _Agent = None,
    event: _Event = None,
    kind: _Type = None,
    status: _Status = None,
    since: _Since = None,
    until: _Until = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of rows.")] = 100,
) -> None:
    """List rows, newest first."""
    screen: Screen = context.obj
    wanted = _filter(agent, event, kind, status, since, until)
    with SyncClient() as client:
        found = client.send("audit:query", {**wanted, "limit": limit})
    if screen.json:
        screen.document(found)
        return
    screen.table(
        ("seq", "time", "type", "phase", "status", "who", "event", "ms", "reason"),
        [
            (
                row.get("seq"),
                screen.moment(row.get("time")),
                row.get("type"),
                row.get("phase"),
                row.get("status"),
                row.get("agent_id") or row.get("principal"),
                row.get("event") or row.get("tool"),
                row.get("duration_ms"),
                row.get("reason"),
            )
            for row in found["rows"]
        ],
        styles={"ok": "good", "started": "faint", "unknown": "warn", "forbidden": "bad", "unauthenticated": "bad"},
    )
    if found.get("more"):
        screen.note("there are more rows: use a higher --limit, or --until")


@app.command("stats", cls=Verb)
def stats(
    context: typer.Context,
    agent: _Agent = None,
    event: _Event = None,
    kind: _Type = None,
    status: _Status = None,
    since: _Since = None,
    until: _Until = None,
) -> None:
    """Count rows by type and status, sessions, mean duration, percent of failures."""
    screen: Screen = context.obj
    wanted = _filter(agent, event, kind, status, since, until)
    with SyncClient() as client:
        found = client.send("audit:stats", wanted)
    if screen.json:
        screen.document(found)
    else:
        screen.facts(found)


@app.command("tail", cls=Verb)
def tail(
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new rows until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last rows to print.")] = 20,
    agent: _Agent = None,
    event: _Event = None,
    kind: _Type = None,
    status: _Status = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="text|jsonl", help="Output format of each row.")
    ] = "text",
) -> None:
    """Print the last rows from var/log/audit.jsonl. Needs no daemon."""
    from ksi_client.command.audit_tail import RowFilter, show_tail

    show_tail(context.obj, RowFilter(agent, event, kind, status), lines=lines, follow=follow, output=output)


@app.command("verify", cls=Verb)
def verify(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="An export to verify instead of the audit.", show_default=False)
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also run SQLite's integrity check on the database and its indexes.")
    ] = False,
    against: Annotated[
        str | None, typer.Option(metavar="HEAD", help="Also compare with a head that `ksi audit checkpoint` printed.")
    ] = None,
) -> None:
    """Verify the whole audit (each hash, MAC and checkpoint), or an export. Exit 1 when broken. Needs no daemon."""
    from ksi_client.command.audit_offline import verify_export, verify_offline

    screen: Screen = context.obj
    if file is not None:
        verdict = verify_export(file, against=against)
    else:
        try:
            with SyncClient(timeout_s=LONG_S) as client:
                compared = {} if against is None else {"against": against}
                verdict = client.send("audit:verify", {"deep": deep, **compared})
        except Unreachable:
            screen.detail("no daemon answers, so the files are read directly")
            verdict = verify_offline(deep=deep, against=against)
    if screen.json:
        screen.document(verdict)
    elif verdict["ok"]:
        screen.line(f"{screen.paint('ok', 'good')}: {verdict['rows']:,} rows, the chain is intact")
        if verdict.get("dropped"):
            when = f", last at {screen.moment(verdict['dropped_at'])}" if verdict.get("dropped_at") else ""
            screen.note(f"{verdict['dropped']:,} older rows were dropped by retention{when}: they are only in exports")
        if verdict.get("without_mac"):
            screen.note(f"{verdict['without_mac']:,} rows are of a version without MACs: only checkpoints cover them")
    else:
        row = "" if verdict.get("first_bad_seq") is None else f" from row {verdict['first_bad_seq']} on"
        screen.line(f"{screen.paint('broken', 'bad')}{row}: {visible(str(verdict.get('problem')))}")
    if not verdict["ok"]:
        raise typer.Exit(FAILED)


@app.command("checkpoint", cls=Verb)
def checkpoint(context: typer.Context) -> None:
    """Sign the end of the chain and print it as one line, to keep on another machine for `verify --against`."""
    screen: Screen = context.obj
    with SyncClient() as client:
        made = client.send("audit:checkpoint", {})
    if screen.json:
        screen.document(made)
    else:
        screen.line(visible(str(made["head"])))


@app.command("export", cls=Verb)
def export(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The file's name; it is written to var/exports/.")],
    form: Annotated[
        str, typer.Option("--format", metavar="jsonl|csv", help="jsonl keeps the chain and can be verified on its own.")
    ] = "jsonl",
) -> None:
    """Export the audit to a new file; an existing file is never overwritten."""
    screen: Screen = context.obj
    with SyncClient(timeout_s=LONG_S) as client:
        made = client.send("audit:export", {"name": name, "format": form})
    if screen.json:
        screen.document(made)
        return
    screen.line(visible(str(made["path"])))
    screen.note(f"{made.get('rows', 0):,} rows")


@app.command("retain", cls=Verb)
def retain(
    context: typer.Context,
    keep_days: Annotated[float | None, typer.Option(metavar="DAYS", help="Drop rows older than this.")] = None,
    keep_rows: Annotated[int | None, typer.Option(min=1, metavar="N", help="Keep at most this many.")] = None,
    unexported: Annotated[bool, typer.Option("--unexported", help="Also drop rows that were never exported.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Drop the oldest rows for good, if they were exported; asks first, and offers the export."""
    from ksi_client.command.audit_retain import drop_old_rows

    if keep_days is None and keep_rows is None:
        raise Fault("nothing says how much to keep", exit_code=USAGE, hint="--keep-days 90, or --keep-rows 100000")
    drop_old_rows(context.obj, {"keep_days": keep_days, "keep_rows": keep_rows}, unexported=unexported, yes=yes)


@app.command("new-chain", cls=Verb)
def new_chain(
    context: typer.Context,
    reason: Annotated[str, typer.Option(help="Why; it is in the first row of the new chain.")],
) -> None:
    """Set a broken audit aside and begin a new chain, whose first row names the old head. Needs a stopped daemon."""
    from ksi_client.command.audit_offline import begin_new_chain

    screen: Screen = context.obj
    if not reason.strip():
        raise Fault("the reason is empty", exit_code=USAGE, hint="--reason 'the disk was replaced'")
    made = begin_new_chain(reason)
    if screen.json:
        screen.document(made)
        return
    screen.line(
        f"the new chain is {visible(str(made['daemon_id']))}; the old files are in {visible(str(made['set_aside']))}"
    )
    if made.get("old_problem"):
        screen.note(f"the old chain: {visible(str(made['old_problem']))}")


def _filter(
    agent: str | None, event: str | None, kind: str | None, status: str | None, since: str | None, until: str | None
) -> dict[str, Any]:
    wanted = {
        "agent_id": agent,
        "event": event,
        "type": kind,
        "status": status,
        "since": None if since is None else moment(since, "--since"),
        "until": None if until is None else moment(until, "--until"),
    }
    return {name: value for name, value in wanted.items() if value is not None}
