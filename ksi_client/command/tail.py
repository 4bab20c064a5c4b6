"""Follows notices for `ksi events tail`: earlier ones first if asked, then live ones, each as one line."""

import sys
from collections.abc import Iterator
from itertools import islice

from ksi_client.command.durations import moment
from ksi_client.command.fault import USAGE, Fault
from ksi_client.command.screen import Screen
from ksi_client.notice import Notice
from ksi_client.sync_client import SyncClient
from ksi_client.terminal import json_text, visible

_HISTORY_LIMIT = 1000


def follow(screen: Screen, patterns: tuple[str, ...], *, since: str | None, count: int | None, output: str) -> None:
    """Print until the count is reached, the reader closes the pipe or the operator interrupts."""
    if output not in ("text", "jsonl"):
        raise Fault(f"--output takes text or jsonl, not {output!r}", exit_code=USAGE)
    as_json = screen.json or output == "jsonl"
    start = moment(since, "--since") if since is not None else None
    with SyncClient() as client, client.subscribe(*patterns, on_status=lambda text: _show_status(screen, text)) as live:
        _show_status(screen, f"following {', '.join(patterns)}; Ctrl-C ends")
        for notice in islice(_notices(client, iter(live), patterns, start), count):
            line = json_text(notice.as_dict()) if as_json else _text(screen, notice)
            print(line, flush=True)


def _notices(
    client: SyncClient, live: Iterator[Notice], patterns: tuple[str, ...], start: str | float | None
) -> Iterator[Notice]:
    """Earlier notices, then live ones. The subscription is made first, so that none is missed; duplicates are skipped."""
    seen: set[str] = set()
    if start is not None:
        history = client.send(
            "monitor:get_events",
            {"event_patterns": list(patterns), "since": start, "limit": _HISTORY_LIMIT, "reverse": False},
        )
        for record in history.get("events", ()):
            if record.get("kind") == "notice":
                seen.add(record["id"])
                yield Notice.from_wire(record)
    for notice in live:
        if notice.id not in seen:
            yield notice


def _text(screen: Screen, notice: Notice) -> str:
    at = screen.paint(screen.moment(notice.at), "faint")
    return f"{at}  {screen.paint(visible(notice.event), 'name')}  {json_text(notice.data)}"


def _show_status(screen: Screen, text: str) -> None:
    # Missing notices are part of the result, so -q does not hide them.
    if "dropped" in text or "lost" in text:
        print(f"ksi: {text}", file=sys.stderr)
    else:
        screen.note(text)
