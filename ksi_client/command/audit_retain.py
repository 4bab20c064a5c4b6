"""`ksi audit retain`: asks before rows are dropped, and offers to export those that were never exported.

What is confirmed is what is dropped: rows that are written meanwhile stay.
"""

from datetime import UTC, datetime
from typing import Any

from ksi_client.command.audit import LONG_S
from ksi_client.command.confirm import can_ask, confirm, is_answered_yes
from ksi_client.command.fault import CONFLICT, Fault
from ksi_client.command.screen import Screen
from ksi_client.sync_client import SyncClient
from ksi_client.terminal import visible


def drop_old_rows(screen: Screen, measure: dict[str, Any], *, unexported: bool, yes: bool) -> None:
    """Drop what exceeds the measure (`keep_days`, `keep_rows`), once a person or `yes` confirms it."""
    with SyncClient(timeout_s=LONG_S) as client:
        plan = client.send("audit:retain", {**measure, "dry_run": True})
        if plan["dropped"] == 0:
            _show(screen, plan)
            return
        through = plan["first_seq"] - 1
        if plan["unexported"] and not unexported:
            unexported = _export_or_drop(screen, client, plan)
        confirm(f"Drop {plan['dropped']:,} rows, up to row {through}, for good?", force=yes, option="--yes")
        made = client.send("audit:retain", {**measure, "through": through, "unexported": unexported})
    _show(screen, made)


def _export_or_drop(screen: Screen, client: SyncClient, plan: dict[str, Any]) -> bool:
    """Export the audit now, or have it confirmed that rows are dropped without an export; whether they are."""
    share = f"{plan['unexported']:,} of the {plan['dropped']:,} rows to drop were never exported"
    if not can_ask():
        raise Fault(
            f"{share}, so nothing was dropped",
            exit_code=CONFLICT,
            hint="export them first: ksi audit export NAME.jsonl; or drop them all the same with --unexported",
        )
    if is_answered_yes(f"{share}. Export the audit first?"):
        name = f"audit-{datetime.now(UTC):%Y%m%dT%H%M%S}.jsonl"
        made = client.send("audit:export", {"name": name, "format": "jsonl"})
        screen.note(f"exported {made.get('rows', 0):,} rows to {visible(str(made['path']))}")
        return False
    confirm("Drop them without an export? They cannot be recovered.", force=False)
    return True


def _show(screen: Screen, made: dict[str, Any]) -> None:
    if screen.json:
        screen.document(made)
    else:
        screen.line(f"dropped {made['dropped']:,} rows; the first remaining row is {made.get('first_seq')}")
