"""Errors on the wire of MCP: which failures are JSON-RPC errors with an HTTP status, and how they are written."""

import math
from typing import Any

import msgspec

from ksi_daemon.errors import (
    ApprovalRequired,
    AuditUnavailable,
    Forbidden,
    KsiError,
    NotVisible,
    TooMany,
    Unauthenticated,
    Unavailable,
    bounded,
)

INVALID_REQUEST = -32600
INVALID_PARAMS = -32602
HEADER_MISMATCH = -32020  # defined by the protocol revision 2026-07-28

REFUSALS = (Unauthenticated, Forbidden, ApprovalRequired, TooMany, Unavailable, AuditUnavailable)
NAME_LIMIT = 100

_encode = msgspec.json.Encoder().encode


def is_refusal(error: KsiError) -> bool:
    """Whether the daemon refused the call. What a handler raises is the tool's own answer, for the model to read."""
    return isinstance(error, REFUSALS) and not error.by_handler


def refused_tool(error: KsiError, tool: str, agent_id: str | None) -> KsiError:
    """A refusal in terms of the name that the caller used: the event behind a tool would show that it exists."""
    if not isinstance(error, NotVisible):
        return error
    shown = bounded(ascii(tool[:NAME_LIMIT]))
    return NotVisible(
        f"no such tool for this agent: {shown}",
        hint=f"call a tool that tools/list names, or ask the operator: ksi explain {agent_id} TOOL shows what is missing",
    )


def error_object(error: KsiError) -> dict[str, Any]:
    """The JSON-RPC error of a refusal. Codes of the daemon's own are HTTP statuses, outside the range that JSON-RPC reserves."""
    data = error.as_dict()
    message = data.pop("message")
    return {"code": INVALID_PARAMS if isinstance(error, NotVisible) else error.status, "message": message, "data": data}


def error_body(error: dict[str, Any], request_id: str | int | None = None) -> bytes:
    """A JSON-RPC error response."""
    return _encode({"jsonrpc": "2.0", "id": request_id, "error": error})


def refusal_headers(error: KsiError) -> dict[str, str]:
    """The HTTP headers that say what to do next."""
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, TooMany | Unavailable):
        return {"retry-after": str(math.ceil(error.facts().get("retry_after_s", 1)))}
    return {}
