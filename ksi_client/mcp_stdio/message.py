"""One JSON-RPC message as a line: what the bridge must know of it, the HTTP headers it needs, and the errors the bridge answers with."""

import base64
import json
import re
from typing import Any

CONNECTION_CLOSED = -32000
PARSE_ERROR = -32700
INVALID_REQUEST = -32600
INTERNAL_ERROR = -32603

REVISION_KEY = "io.modelcontextprotocol/protocolVersion"
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
LISTEN = "subscriptions/listen"
# Methods that change nothing, so that sending one twice does no harm. A call of a tool is not among them.
REPEATABLE = {
    "initialize", "ping", "server/discover", LISTEN, "tools/list", "prompts/list", "prompts/get", "resources/list",
    "resources/read", "resources/templates/list", "resources/subscribe", "resources/unsubscribe", "completion/complete",
    "logging/setLevel",
}  # fmt: skip
_NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_HEADER_SAFE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_ENCODED = re.compile(r"=\?base64\?.*\?=")


class BadLine(Exception):
    """A line that is not one JSON-RPC message."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Message:
    """A message from the client."""

    def __init__(self, line: bytes, fields: dict[str, Any]) -> None:
        self.line = line
        self.id = fields.get("id")
        self.method = fields.get("method") if isinstance(fields.get("method"), str) else None
        self.params: dict[str, Any] = fields["params"] if isinstance(fields.get("params"), dict) else {}
        self.is_request = self.method is not None and "id" in fields

    @property
    def revision(self) -> str | None:
        """The protocol revision that the message itself names, as all do since 2026; None for one of a session."""
        meta = self.params.get("_meta")
        revision = meta.get(REVISION_KEY) if isinstance(meta, dict) else None
        return revision if isinstance(revision, str) else None

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be sent again although it may have arrived."""
        return not self.is_request or self.method in REPEATABLE

    def routing_headers(self) -> dict[str, str]:
        """The HTTP headers that must repeat parts of a message of 2026 or later; none for one of a session."""
        if self.revision is None or self.method is None:
            return {}
        headers = {"mcp-protocol-version": _encoded(self.revision), "mcp-method": _encoded(self.method)}
        name = self.params.get(_NAMED_BY.get(self.method, ""))
        if isinstance(name, str):
            headers["mcp-name"] = _encoded(name)
        return headers


def parse(line: bytes) -> Message:
    """The message on a line, or BadLine."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLine(PARSE_ERROR, f"this line is not JSON: {str(error)[:200]}") from None
    if not isinstance(fields, dict):
        raise BadLine(INVALID_REQUEST, "send one JSON-RPC message a line; batches are not supported")
    return Message(line, fields)


def id_key(message_id: Any) -> str:
    """A key under which 1 and "1" differ."""
    return json.dumps(message_id)


def one_line(text: bytes) -> bytes:
    """JSON on one line: line ends can only be between its parts."""
    return text.replace(b"\r", b" ").replace(b"\n", b" ").strip()


def encode(fields: dict[str, Any]) -> bytes:
    """A message as a line without its end."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def answer(message_id: Any, error: dict[str, Any]) -> bytes:
    """An error as the answer to a request."""
    return encode({"jsonrpc": "2.0", "id": message_id, "error": error})


def error(code: int, message: str, *, word: str, hint: str, **facts: str) -> dict[str, Any]:
    """A JSON-RPC error in the form of the hub's own."""
    return {"code": code, "message": message, "data": {"code": word, **facts, "hint": hint}}


def _encoded(value: str) -> str:
    """A value that survives in an HTTP header, by the rule of the protocol."""
    if _HEADER_SAFE.fullmatch(value) and not _ENCODED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'surrogatepass')).decode()}?="
