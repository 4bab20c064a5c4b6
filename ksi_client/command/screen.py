"""How a verb prints: data to stdout as a table, readable lines or JSON; notes and errors to stderr."""

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ksi_client.command.fault import Fault
from ksi_client.command.readable import plain_table, readable
from ksi_client.errors import KsiError
from ksi_client.terminal import json_text, visible

_STYLES = {"good": "32", "bad": "31;1", "warn": "33", "name": "36", "faint": "2"}


class Screen:
    """The printing options of one run, set by the command line, and the few ways to print."""

    def __init__(self) -> None:
        self.json = False
        self.no_color = False
        self.quiet = False
        self.verbose = False
        self.utc = False
        self.started = time.monotonic()

    @property
    def on_terminal(self) -> bool:
        """Whether stdout is a terminal."""
        return sys.stdout.isatty()

    @property
    def colored(self) -> bool:
        """Whether colours are enabled and supported."""
        plain = self.no_color or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "dumb") == "dumb"
        return self.on_terminal and not plain

    def paint(self, text: str, style: str) -> str:
        """The text in one of the styles, or unchanged without colours."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.colored and style in _STYLES else text

    def document(self, data: Any) -> None:
        """Print one JSON document: on one line for a program, indented for a person."""
        print(json_text(data, indent=2 if self.on_terminal else None))

    def show(self, data: Any) -> None:
        """Print data of any shape, readable for a person; a program gets JSON."""
        if self.json or not self.on_terminal:
            self.document(data)
        else:
            print(readable(data))

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Print names and values, one per line."""
        print(readable(dict(facts)))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, styles: Mapping[str, str] = {}) -> None:
        """Print rows: a drawn table on a terminal, aligned columns into a pipe. `styles`: colours by cell text."""
        cells = [[visible("" if cell is None else str(cell)) for cell in row] for row in rows]
        if not self.colored:
            print(plain_table(columns, cells))
            return
        from ksi_client.command.drawn_table import draw

        draw(columns, cells, styles)

    def line(self, text: str = "") -> None:
        """Print one line; untrusted parts must have gone through `visible`."""
        print(text)

    def note(self, text: str) -> None:
        """Print a note that is not data to stderr."""
        if not self.quiet:
            print(visible(text, multiline=True), file=sys.stderr)

    def detail(self, text: str) -> None:
        """Print a detail to stderr, only with -v."""
        if self.verbose and not self.quiet:
            print(visible(text), file=sys.stderr)

    def fault(self, fault: Fault) -> None:
        """Print a failure of the verb itself."""
        self._failure({"code": "failed", "message": fault.message, "hint": fault.hint})

    def error(self, error: KsiError) -> None:
        """Print a failed call: the message, the fields, the hint."""
        self._failure(
            {
                "code": error.code,
                "message": error.message,
                "hint": error.hint,
                "fields": list(error.fields),
                "retry_after_s": error.retry_after_s,
                "call_id": error.call_id,
            }
        )

    def _failure(self, error: dict[str, Any]) -> None:
        known = {name: value for name, value in error.items() if value}
        if self.json:
            print(json_text({"error": known}), file=sys.stderr)
            return
        print(f"ksi: {visible(str(error['message']), multiline=True)}", file=sys.stderr)
        for field in known.get("fields", ()):
            if str(field.get("problem")) in error["message"]:
                continue  # the message already contains it
            print(f"  {visible(field.get('field', ''))}: {visible(field.get('problem', ''))}", file=sys.stderr)
        if "hint" in known:
            print(f"  next: {visible(str(known['hint']))}", file=sys.stderr)
        if "retry_after_s" in known:
            print(f"  try again in {known['retry_after_s']:g} s", file=sys.stderr)
        if "call_id" in known and (self.verbose or error["code"] == "internal"):
            print(f"  call: {visible(str(known['call_id']))}", file=sys.stderr)

    def moment(self, iso: str | None) -> str:
        """A time from the daemon, shown as local time, or UTC with --utc."""
        from datetime import UTC, datetime

        try:
            moment = datetime.fromisoformat(iso or "")
        except ValueError:
            return visible(iso or "")
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC if self.utc else None).isoformat(timespec="milliseconds")
