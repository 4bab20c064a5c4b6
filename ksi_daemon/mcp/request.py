"""One HTTP request to the MCP endpoint, read strictly: its identity headers, its body and the JSON-RPC message in it."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.types import Message, Receive, Scope

from ksi_daemon.errors import Invalid, TooLarge, Unauthenticated
from ksi_daemon.hygiene.strict_json import is_usable_id, parse_strictly

PRINCIPAL = "ksi.principal"  # in the ASGI scope: who calls
VIEW = "ksi.view"  # in the ASGI scope: the name of the view that the caller looks through, or None
REFUSAL = "ksi.refusal"  # in the ASGI scope: the error that decides the HTTP status

BODY_LIMIT_BYTES = 4 * 1024 * 1024
IDENTITY = (b"authorization", b"x-ksi-agent-id", b"x-ksi-conversation-id", b"x-ksi-handshake", b"mcp-session-id")
ROUTING = (b"mcp-protocol-version", b"mcp-method", b"mcp-name")
IDENTIFIER = re.compile(r"[A-Za-z0-9._-]{1,64}")
MESSAGE_KEYS = {"jsonrpc", "id", "method", "params", "result", "error"}
VERSION_IN_BODY = "io.modelcontextprotocol/protocolVersion"

Headers = Sequence[tuple[bytes, bytes]]


class ClientLeft(Exception):
    """The client closed the connection before its request was complete."""


class HeaderMismatch(Exception):
    """A routing header that is missing, sent twice, or different from the body."""


class Rpc(msgspec.Struct, frozen=True):
    """A JSON-RPC message, as far as the endpoint needs to know it."""

    method: str | None
    id: str | int | None
    version_in_body: bool  # it names a protocol revision in its `_meta`, as requests since 2026 do


def header(headers: Headers, name: bytes) -> str | None:
    """A header's value, or None without it. `Invalid` when it is sent twice: readers would differ in which one they take."""
    values = [value for key, value in headers if key == name]
    if len(values) > 1 and name in ROUTING:
        raise HeaderMismatch(f"the header {name.decode()} was sent {len(values)} times")
    if len(values) > 1:
        raise Invalid(f"the header {name.decode()} was sent {len(values)} times", hint="send it once")
    return values[0].decode("latin-1").strip(" \t") if values else None


def refuse_lookalike_headers(headers: Headers) -> None:
    """Refuse `X_KSI_Agent_ID`: some proxies and servers take it for the real one."""
    for key, _ in headers:
        if b"_" in key and key.replace(b"_", b"-") in IDENTITY:
            raise Invalid(f"the header {key.decode('latin-1')[:40]!r} is not allowed", hint="write it with hyphens")


def identifier(headers: Headers, name: bytes) -> str | None:
    """The value of an identity header, which must be a short name."""
    value = header(headers, name)
    if value is not None and not IDENTIFIER.fullmatch(value):
        raise Invalid(f"the header {name.decode()} is not a valid id: 1 to 64 letters, digits and any of . _ -")
    return value


def bearer_token(headers: Headers) -> str:
    """The secret in the Authorization header."""
    value = header(headers, b"authorization")
    scheme, _, secret = (value or "").partition(" ")
    if scheme.lower() != "bearer" or not secret:
        raise Unauthenticated(
            "this request has no bearer token",
            hint="send the header Authorization: Bearer ksi_…; the operator makes one with: ksi tokens create AGENT",
        )
    return secret.strip(" ")


async def read_body(receive: Receive) -> bytes:
    """The whole body, within the limit."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientLeft
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > BODY_LIMIT_BYTES:
            raise TooLarge(f"the body has more than {BODY_LIMIT_BYTES:,} bytes", hint="send less at once")
        if not message.get("more_body", False):
            return b"".join(parts)


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns a body that was read already, and then whatever the real one returns."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return waiting.pop() if waiting else await receive()

    return receive_again


def parse_message(body: bytes) -> Rpc:
    """The message in a body. Its details are for the SDK to check; here only what parsers could understand differently."""
    try:
        message = parse_strictly(body)
    except ValueError as error:
        raise Invalid(f"the body is not a valid JSON document: {str(error)[:200]}") from None
    if not isinstance(message, dict):
        raise Invalid("the body must be one JSON-RPC request or notification", hint="batches are not supported")
    if unknown := message.keys() - MESSAGE_KEYS:
        raise Invalid(f"a JSON-RPC message has no key {ascii(min(unknown))[:80]}")
    if "id" in message and not is_usable_id(message["id"]):
        raise Invalid("id: send text of at most 128 characters or an integer of 64 bits")
    method = message.get("method")
    return Rpc(method if isinstance(method, str) else None, message.get("id"), _names_version(message.get("params")))


def with_header(scope: Scope, name: bytes, value: bytes) -> Scope:
    """A copy of the scope with one more header."""
    return {**scope, "headers": [*scope["headers"], (name, value)]}


def _names_version(params: Any) -> bool:
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and VERSION_IN_BODY in meta
