"""The error boundary: whatever breaks inside, what goes out is a code word, a message and a hint, without anything of the inside.

Logging the true error is left to whoever calls; the router does it for every handler.
"""

import re
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

from ksi_daemon.errors import KsiError
from ksi_daemon.logs.redaction import redact

MESSAGE_LIMIT = 500
INSIDE = re.compile(
    r"Traceback \(most recent call last\).*|File \"[^\"\n]{1,500}\", line \d+.*",
    re.DOTALL,
)
STATEMENT = re.compile(
    r"\b(?:SELECT\b[^;\n]{1,2000}?\bFROM\b|INSERT (?:OR [A-Z]{1,20} )?INTO\b|DELETE FROM\b|UPDATE \w{1,64} SET\b|PRAGMA \w"
    r"|(?:CREATE|DROP|ALTER) (?:TABLE|INDEX|VIEW|TRIGGER|VIRTUAL)\b).*",
    re.DOTALL,
)
QUOTED_PATH = re.compile(r"(['\"])(?:file://)?[~/](?=[^'\"\n/]{0,1000}/)[^'\"\n]{0,1500}\1")
# Two parts at least: "/mcp" is an address that a message may name.
BARE_PATH = re.compile(
    r"(?<![\w/.])(?:file://)?(?:~|/[\w.+@~-]{1,255})(?:/[\w.+@~-]{1,255})+|\b[A-Za-z]:\\[^\s\"']{1,500}"
)
CLEANED = ((INSIDE, "[inside]"), (STATEMENT, "[statement]"), (QUOTED_PATH, "[path]"), (BARE_PATH, "[path]"))

PLAIN: tuple[tuple[type[BaseException], str, str, str | None], ...] = (
    (TimeoutError, "timed_out", "it took too long", "try again; if it stays slow, ask for less at once"),
    (FileNotFoundError, "not_found", "a file that is needed is not there", None),
    (PermissionError, "forbidden", "the system does not allow this", None),
    (RecursionError, "invalid", "what was sent is nested too deep", None),
    (UnicodeError, "invalid", "a text is not valid Unicode", None),
    (MemoryError, "too_large", "there is not enough memory for this", "ask for less at once"),
    (sqlite3.OperationalError, "unavailable", "the database could not be used", "try again a little later"),
    (ConnectionError, "unavailable", "something that is needed could not be reached", "try again a little later"),
)
UNKNOWN: tuple[str, str, str | None] = ("internal", "something broke inside", "the log has the details")


def normalize_error(error: BaseException, *, expose_details: bool = False) -> dict[str, Any]:
    """`{success: false, error: {code, message, hint}}` with nothing in it of paths, secrets, SQL or tracebacks.

    `expose_details` adds the kind of the error and its own words, cleaned in the same way.
    """
    if isinstance(error, KsiError):
        facts = {name: redact(fact) for name, fact in error.facts().items()}
        return _failure(error.code, clean(error.message), error.hint and clean(error.hint), facts)
    code, message, hint = next((told[1:] for told in PLAIN if isinstance(error, told[0])), UNKNOWN)
    if expose_details:
        message = f"{message}: {type(error).__name__}: {clean(str(error))}"
    return _failure(code, message, hint, {})


async def with_error_boundary(
    operation: Callable[[], Awaitable[Any]], *, expose_details: bool = False
) -> dict[str, Any]:
    """`{success: true, value}` or what `normalize_error` makes of the failure. Cancellation passes through."""
    try:
        return {"success": True, "value": await operation()}
    except Exception as error:  # noqa: BLE001 - the point of a boundary
        return normalize_error(error, expose_details=expose_details)


def clean(text: str) -> str:
    """A message without secrets, tracebacks, statements and paths, on one line, of bounded length."""
    text = str(redact(text[: MESSAGE_LIMIT * 20]))
    for pattern, instead in CLEANED:
        text = pattern.sub(instead, text)
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"


def _failure(code: str, message: str, hint: str | None, facts: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"code": code, "message": message}
    if hint:
        told["hint"] = hint
    return {"success": False, "error": told | facts}
