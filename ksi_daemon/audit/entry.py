"""The audit's entries as callers write them, and the rows they become: sanitized, size-limited and without secrets.

Nothing a caller sends can break a row: text is made printable, numbers bounded, and a value too large to keep is replaced by its
beginning with the length and SHA-256 of the whole. Which entries are written, and when, is decided by the callers.
"""

import math
import re
from typing import Any, Literal

import msgspec

from ksi_daemon.audit.value import shown_json
from ksi_daemon.identifiers import EVENT_NAME
from ksi_daemon.logs.log import printable
from ksi_daemon.logs.redaction import redact
from ksi_daemon.notice import iso_time

EntryType = Literal[
    "tool_call", "resource_read", "authorization", "session", "consent", "admin", "system", "error"
]  # fmt: skip
Phase = Literal["intent", "outcome", "event"]
Transport = Literal["socket", "http", "plugin", "daemon"]

TYPES = frozenset({"tool_call", "resource_read", "authorization", "session", "consent", "admin", "system", "error"})
PHASES = frozenset({"intent", "outcome", "event"})
TRANSPORTS = frozenset({"socket", "http", "plugin", "daemon"})

NAME_LIMIT = 128
RULE_LIMIT = 512
REASON_LIMIT = 1_024
CLEAN_TEXTS_KEPT = 8_192
LARGEST_INTEGER = 2**63 - 1

GENERATED_ID = re.compile(r"[0-9a-f]{16,64}")

Value = str | int | float | bytes | None
Row = tuple[Value, ...]

# A row: each field's name and type, and whether every row has it. The order is part of the format: a row's hash is made of the
# values in this order, as one JSON array. `files.py` has the table of it, `line.py` derives the JSON line from it.
ROW: tuple[tuple[str, type, bool], ...] = (
    ("daemon_id", str, True),
    ("seq", int, True),
    ("time", str, True),
    ("type", str, True),
    ("phase", str, True),
    ("status", str, True),
    ("call_id", str, False),
    ("correlation_id", str, False),
    ("parent_id", str, False),
    ("transport", str, True),
    ("principal", str, True),
    ("agent_id", str, False),
    ("user_id", str, False),
    ("session_id", str, False),
    ("credential_id", str, False),
    ("conversation_id", str, False),
    ("event", str, False),
    ("tool", str, False),
    ("arguments", msgspec.Raw, False),
    ("arguments_bytes", int, False),
    ("arguments_sha256", str, False),
    ("rule", str, False),
    ("reason", str, False),
    ("duration_ms", float, False),
    ("result_bytes", int, False),
    ("count", int, True),
    ("details", msgspec.Raw, False),
)
FIELDS = tuple(name for name, _, _ in ROW)
JSON_FIELDS = tuple(name for name, kind, _ in ROW if kind is msgspec.Raw)
COLUMNS = (*FIELDS, "prev_hash", "hash", "mac")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One audit entry. `arguments` and `details` may be anything that has a JSON form; secrets are redacted when the row is made.

    `status` is "started" for an intent, "ok" or an error's code word otherwise; "unknown" is written by the audit itself.
    `time_s` defaults to the time of the append.
    """

    type: EntryType
    phase: Phase = "event"
    status: str = "ok"
    event: str | None = None
    tool: str | None = None
    call_id: str | None = None
    correlation_id: str | None = None
    parent_id: str | None = None
    transport: Transport = "daemon"
    principal: str = "daemon"
    agent_id: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    credential_id: str | None = None
    conversation_id: str | None = None
    arguments: Any = None
    rule: str | None = None
    reason: str | None = None
    duration_ms: float | None = None
    result_bytes: int | None = None
    count: int = 1
    details: Any = None
    time_s: float | None = None


_clean_texts: set[str] = set()


def fields_after_seq(entry: Entry, time_s: float) -> Row:
    """An entry's row without daemon_id, seq and hashes. Raises `ValueError` for an unknown type, phase or transport."""
    if entry.type not in TYPES or entry.phase not in PHASES or entry.transport not in TRANSPORTS:
        raise ValueError(
            f"not a valid audit entry: type {entry.type!r}, phase {entry.phase!r}, transport {entry.transport!r}"
        )
    arguments = shown_json(entry.arguments)
    details = shown_json(entry.details)
    call_id = clean_name(entry.call_id)
    return (
        iso_time(time_s if entry.time_s is None else entry.time_s),
        entry.type,
        entry.phase,
        clean_name(entry.status),
        call_id,
        call_id if entry.correlation_id == entry.call_id else clean_name(entry.correlation_id),
        clean_name(entry.parent_id),
        entry.transport,
        clean_name(entry.principal),
        clean_name(entry.agent_id),
        clean_name(entry.user_id),
        clean_name(entry.session_id),
        clean_name(entry.credential_id),
        clean_name(entry.conversation_id),
        clean_name(entry.event),
        clean_name(entry.tool),
        arguments.text,
        arguments.full_bytes,
        arguments.full_sha256,
        clean_name(entry.rule, RULE_LIMIT),
        clean_name(entry.reason, REASON_LIMIT),
        _bounded_duration(entry.duration_ms),
        None if entry.result_bytes is None else _bounded_integer(entry.result_bytes),
        max(1, _bounded_integer(entry.count)),
        details.with_digest(),
    )


def clean_name(text: str | None, limit: int = NAME_LIMIT) -> str | None:
    """Text without secrets, printable on one line, and no longer than `limit`; a cut is marked."""
    if (
        text is None
        or (text in _clean_texts and len(text) <= limit)
        or GENERATED_ID.fullmatch(text)
        or EVENT_NAME.fullmatch(text)
    ):
        return text
    cleaned = _clean(text, limit)
    if cleaned == text:
        if len(_clean_texts) >= CLEAN_TEXTS_KEPT:
            _clean_texts.clear()
        _clean_texts.add(text)
    return cleaned


def _clean(text: str, limit: int) -> str:
    shown = str(redact(text[: limit * 4]))
    if not shown.isprintable():
        shown = printable(shown)
    if len(text) <= limit * 4 and len(shown) <= limit:
        return shown
    return f"{shown[: limit - 32]}…[cut, {len(text)} characters]"


def _bounded_duration(duration_ms: float | None) -> float | None:
    """To the microsecond. SQLite would keep NaN as NULL and lose the sign of -0.0, and the hash would no longer match."""
    if duration_ms is None or not math.isfinite(duration_ms):
        return None
    return round(max(0.0, float(duration_ms)), 3) + 0.0


def _bounded_integer(number: int) -> int:
    return max(0, min(int(number), LARGEST_INTEGER))
