"""One HTTP request to the MCP endpoint, read strictly: its identity and routing headers, and its body."""

import re
from collections.abc import Callable, Sequence

from starlette.types import Message, Receive, Scope

from ksi_daemon.errors import Invalid, TooLarge, Unauthenticated
from ksi_daemon.mcp.message import NAMED_BY, Rpc

PRINCIPAL = "ksi.principal"  # in the ASGI scope: who calls
VIEW = "ksi.view"  # in the ASGI scope: the name of the view that the caller looks through, or None
FLUSHED = "ksi.flushed"  # in the ASGI scope: waits until the client's machine took all that was written, or is gone
HAS_LEFT = "ksi.has_left"  # in the ASGI scope: whether the client has closed the connection
WRITTEN = "ksi.written"  # in the ASGI scope: a future, whether what is waited for was written
SESSION = "ksi.session"  # in the ASGI scope: the session that the request is in, in revisions that have them
REFUSAL = "ksi.refusal"  # in the ASGI scope: the error that decides the HTTP status

BODY_LIMIT_BYTES = 1024 * 1024  # while JSON is parsed nothing else is served
IDENTITY = (b"authorization", b"x-ksi-agent-id", b"x-ksi-conversation-id", b"x-ksi-handshake", b"mcp-session-id")
ROUTING = (b"mcp-protocol-version", b"mcp-method", b"mcp-name")
IDENTIFIER = re.compile(r"[A-Za-z0-9._-]{1,64}")
Headers = Sequence[tuple[bytes, bytes]]


class ClientLeft(Exception):
    """The client closed the connection before its request was complete."""


class HeaderMismatch(Exception):
    """A routing header that is missing, sent twice, or different from the body."""


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
        if b"_" in key and key.replace(b"_", b"-") in IDENTITY + ROUTING:
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


def check_routing_headers(headers: Headers, rpc: Rpc, decoded: Callable[[str | None], str | None]) -> None:
    """Raise `HeaderMismatch` when a routing header contradicts the body: programs on the way may have decided by the header.

    The SDK checks it too, only in the revision 2026-07-28, where the headers may also not be missing.
    """
    version, method, name = (header(headers, routing) for routing in ROUTING)
    if rpc.version is not None and version is None:
        raise HeaderMismatch(
            "the body names a protocol revision in _meta and the header MCP-Protocol-Version is missing"
        )
    if rpc.version is not None and version != rpc.version:
        raise HeaderMismatch("the header MCP-Protocol-Version names another revision than the body")
    if method is not None and method != rpc.method:
        raise HeaderMismatch("the header Mcp-Method names another method than the body")
    if name is not None and rpc.method in NAMED_BY and decoded(name) != rpc.name:
        raise HeaderMismatch(f"the header Mcp-Name differs from {NAMED_BY[rpc.method]} in the body")


def joined_header(headers: Headers, name: bytes) -> str | None:
    """The value of a header that is a list and may be sent in several lines, or None without it."""
    values = [value for key, value in headers if key == name]
    return b", ".join(values).decode("latin-1").strip(" \t") if values else None


def with_header(scope: Scope, name: bytes, value: str) -> Scope:
    """A copy of the scope in which the header has this value, in one line."""
    others = [(key, other) for key, other in scope["headers"] if key != name]
    return {**scope, "headers": [*others, (name, value.encode("latin-1"))]}
