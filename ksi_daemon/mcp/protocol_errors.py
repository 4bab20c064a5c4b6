"""Errors that the SDK replies with, completed: the code word, the reason without a library's details, and what to do next."""

from typing import Any

import msgspec

from ksi_daemon.mcp.refusals import INVALID_REQUEST, error_body

METHOD_NOT_FOUND = -32601
LIBRARY_MARKS = (
    "validation error",
    "Validation error",
)  # how pydantic begins; the rest names classes and echoes what was sent
REASONS = {
    404: ("not_found", "this was not found", "initialize again: a session ends by DELETE, is forgotten when unused, and is its agent's alone"),
    405: ("invalid", "this HTTP method is not allowed here", "send a POST; GET and DELETE are for sessions and name one in Mcp-Session-Id"),
    406: ("invalid", "no type in the header Accept can be replied with", "send Accept: application/json, text/event-stream"),
}  # fmt: skip
NO_REASON = (
    "invalid", "this is not a valid request of the protocol",
    "send one JSON-RPC request as its revision has it; initialize opens a session, and without MCP-Protocol-Version none is needed",
)  # fmt: skip
UNKNOWN_METHOD = (
    "not_found",
    "there is no such method",
    "the methods are those of the capabilities that server/discover or initialize names",
)

_decode = msgspec.json.Decoder().decode


def explained(status: int, body: bytes, request_id: str | int | None) -> bytes:
    """The body to send instead of the SDK's. Its code, its words and its data stay, where they are the protocol's."""
    answer = _decoded(body)
    error: dict[str, Any] = answer.get("error") or {}
    known = error.get("code") == METHOD_NOT_FOUND
    word, reason, hint = UNKNOWN_METHOD if known else REASONS.get(status, NO_REASON)
    message = error.get("message") or reason
    if any(mark in message for mark in LIBRARY_MARKS):
        message = reason
    data = error.get("data")
    details = data if isinstance(data, dict) else {}
    shown = {
        "code": error.get("code", INVALID_REQUEST),
        "message": message,
        "data": {**details, "code": word, "hint": hint},
    }
    return error_body(shown, answer.get("id") if answer.get("id") is not None else request_id)


def _decoded(body: bytes) -> dict[str, Any]:
    """A JSON-RPC answer; nothing of a body that is none."""
    try:
        answer = _decode(body) if body else {}
    except msgspec.DecodeError:
        return {}
    return answer if isinstance(answer, dict) else {}
