"""Refuses requests that a web page could have caused: foreign hosts, foreign origins, bodies that are not JSON.

Every route is behind it. No CORS header is ever sent: no other origin may read an answer.
"""

from collections.abc import Iterable
from contextlib import suppress

from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

METHODS_WITH_BODY = frozenset(("POST", "PUT", "PATCH"))


def refusal(method: str, headers: Iterable[tuple[bytes, bytes]], *, hosts: frozenset[str]) -> tuple[int, str] | None:
    """Status and reason when the request is not served; headers are compared exactly and may not occur twice."""
    values: dict[bytes, list[str]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value.decode("latin-1"))
    host, origin = values.get(b"host", []), values.get(b"origin", [])
    if len(host) != 1 or host[0].lower() not in hosts:
        return 421, "this host is not served here"
    if origin and (len(origin) != 1 or origin[0] not in {f"http://{name}" for name in hosts}):
        return 403, "requests from this origin are not allowed"
    if method in METHODS_WITH_BODY or _has_body(values):
        if not _is_json(values.get(b"content-type", [])):
            return 415, "the content type must be application/json"
        if values.get(b"content-encoding", ["identity"]) != ["identity"]:
            return 415, "a content encoding is not supported"
    return None


def _has_body(values: dict[bytes, list[str]]) -> bool:
    return b"transfer-encoding" in values or values.get(b"content-length", ["0"]) != ["0"]


def _is_json(content_types: list[str]) -> bool:
    if len(content_types) != 1:
        return False
    kind, semicolon, parameter = content_types[0].partition(";")
    return kind.rstrip(" \t") == "application/json" and (
        not semicolon or parameter.strip(" \t").lower() in ("charset=utf-8", 'charset="utf-8"')
    )


class RequestChecks:
    """The checks in front of an application."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self.app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refused = refusal(scope["method"], scope["headers"], hosts=self._hosts)
            if refused is not None:
                status, reason = refused
                await PlainTextResponse(reason + "\n", status_code=status)(scope, receive, send)
                return
        with suppress(ClientDisconnect):  # nobody is left to answer, and uvicorn would log a traceback
            await self.app(scope, receive, send)
