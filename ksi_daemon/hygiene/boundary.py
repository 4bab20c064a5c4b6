"""The error boundary: turns any exception into a code, a message and a hint, without internal details.

The caller logs the original error; the router does it for every handler.
"""

import re
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

from ksi_daemon.errors import KsiError
from ksi_daemon.logs.redaction import redact

MESSAGE_LIMIT = 500
TRACEBACK = re.compile(
    r"Traceback \(most recent call last\).*|File \"[^\"\n]{1,500}\", line \d+.*",
    re.DOTALL,
)
STATEMENT = re.compile(
    r"\b(?:SELECT\b[^;\n]{1,2000}?\bFROM\b|INSERT (?:OR [A-Z]{1,20} )?INTO\b|DELETE FROM\b|UPDATE \w{1,64} SET\b|PRAGMA \w"
    r"|(?:CREATE|DROP|ALTER) (?:TABLE|INDEX|VIEW|TRIGGER|VIRTUAL)\b).*",
    re.DOTALL,
)
QUOTED_PATH = re.compile(r"(['\"])(?:file://)?[~/](?=[^'\"\n/]{0,1000}/)[^'\"\n]{0,1500}\1")
# Two parts at least: "/mcp" is a URL path that a message may contain.
BARE_PATH = re.compile(
    r"(?<![\w/.])(?:file://)?(?:~|/[\w.+@~-]{1,255})(?:/[\w.+@~-]{1,255})+|\b[A-Za-z]:\\[^\s\"']{1,500}"
)
CLEANED = ((TRACEBACK, "[inside]"), (STATEMENT, "[statement]"), (QUOTED_PATH, "[path]"), (BARE_PATH, "[path]"))

PLAIN: tuple[tuple[type[BaseException], str, str, str | None], ...] = (
    (TimeoutError, "timed_out", "it took too long", "try again; if it stays slow, ask for less at once"),
    (FileNotFoundError, "not_found", "a required file does not exist", None),
    (PermissionError, "forbidden", "the system does not allow this", None),
    (RecursionError, "invalid", "the request is nested too deep", None),
    (UnicodeError, "invalid", "a text is not valid Unicode", None),
    (MemoryError, "too_large", "there is not enough memory for this", "ask for less at once"),
    (sqlite3.OperationalError, "unavailable", "the database could not be used", "try again a little later"),
    (ConnectionError, "unavailable", "a required service could not be reached", "try again a little later"),
)
UNKNOWN: tuple[str, str, str | None] = ("internal", "an internal error occurred", "the log has the details")


def normalize_error(error: BaseException, *, expose_details: bool = False) -> dict[str, Any]:
    """`{success: false, error: {code, message, hint}}` without paths, secrets, SQL or tracebacks.

    `expose_details` adds the type and the message of the error, cleaned in the same way.
    """
    if isinstance(error, KsiError):
        facts = {name: redact(fact) for name, fact in error.facts().items()}
        return _failure(error.code, clean(error.message), error.hint and clean(error.hint), facts)
    code, message, hint = next((known[1:] for known in PLAIN if isinstance(error, known[0])), UNKNOWN)
    if expose_details:
        message = f"{message}: {type(error).__name__}: {clean(str(error))}"
    return _failure(code, message, hint, {})


async def with_error_boundary(
    operation: Callable[[], Awaitable[Any]], *, expose_details: bool = False
) -> dict[str, Any]:
    """`{success: true, value}` or the result of `normalize_error`. Cancellation is not caught."""
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
    body: dict[str, Any] = {"code": code, "message": message}
    if hint:
        body["hint"] = hint
    return {"success": False, "error": body | facts}
