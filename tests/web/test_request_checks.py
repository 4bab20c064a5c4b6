"""Host, Origin and content type: the same on every route, before a route is looked for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from ksi_daemon.web.app import make_app, own_hosts
from ksi_daemon.web.request_checks import RequestChecks, refusal
from tests.cases import case
from tests.web.raw_http import site

HOSTS = own_hosts(8080)
OWN = (b"host", b"127.0.0.1:8080")
JSON = (b"content-type", b"application/json")

FOREIGN_HOSTS = (
    "", "evil.example", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil:8080", "localhost:1@evil", "localhost:8080@evil",
    "evil@localhost:8080", "localhost.:8080", "2130706433:8080", "0x7f.1:8080", "0.0.0.0:8080", "[::]:8080",
    "[0:0:0:0:0:0:0:1]:8080", "[::ffff:127.0.0.1]:8080", "::1:8080", "127.0.0.1:08080", "127.0.0.1:8080, evil", "127.1:8080",
)  # fmt: skip
FOREIGN_ORIGINS = (
    "", "null", "http://evil.example", "http://localhost", "http://localhost:1", "https://localhost:8080", "localhost:8080",
    "http://localhost.evil:8080", "http://localhost:8080.evil", "HTTP://localhost:8080", "http://LOCALHOST:8080",
    "http://user@localhost:8080", "http://localhost:8080@evil", "http://localhost:8080/", "http://localhost:8080 ",
    "http://http://localhost:8080", "http://[0:0:0:0:0:0:0:1]:8080", "http://::1:8080", "http://[::1%25lo]:8080",
    "http://[::ffff:127.0.0.1]:8080", "http://localhost.:8080", "http://2130706433:8080", "file://localhost:8080",
    "http://localhost:8080,http://localhost:8080", "chrome-extension://localhost:8080",
)  # fmt: skip
FOREIGN_TYPES = (
    "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonevil",
    "application/json-patch+json", "text/json", "application/json, text/plain", "application/json;", "application/json; charset",
    "application/json; charset=utf-16", "application/json; charset=utf-7", "application/json; charset=utf-8; x=y",
    "application/json; x=y; charset=utf-8", "application/json; charset=utf-8, text/plain", "text/plain; application/json",
    "APPLICATION/JSON", "application/json charset=utf-8", "application/json; charset=utf-8x", "application /json",
)  # fmt: skip


def status(*headers: tuple[bytes, bytes], method: str = "GET") -> int:
    refused = refusal(method, headers, hosts=HOSTS)
    return 200 if refused is None else refused[0]


def routes_of_the_app() -> Iterator[tuple[str, str]]:
    """Every method of every route that the daemon's application has, and a path that it does not have."""
    app: Any = make_app(lambda: "ready", HOSTS, lambda: None)
    assert isinstance(app, RequestChecks)
    assert isinstance(app.app, Starlette)
    yield "GET", "/elsewhere"
    for route in app.app.routes:
        path = getattr(route, "path", "/elsewhere")
        for method in getattr(route, "methods", None) or ("GET", "POST"):
            yield method, path
        yield "POST", path


def test_only_the_own_hosts_are_served_with_one_host_header() -> None:
    """H02"""
    for name in HOSTS:
        assert status((b"host", name.encode())) == 200
        assert status((b"host", name.upper().encode())) == 200
        assert status((b"host", name.encode()), (b"host", name.encode())) == 421
    assert status() == 421
    for foreign in FOREIGN_HOSTS:
        with case(foreign):
            assert status((b"host", foreign.encode())) == 421


def test_only_the_own_origins_are_allowed_and_no_origin_is_fine() -> None:
    """H01"""
    for name in HOSTS:
        origin = (b"origin", f"http://{name}".encode())
        assert status(OWN, origin) == 200
        assert status(OWN, origin, origin) == 403
    for foreign in FOREIGN_ORIGINS:
        with case(foreign):
            assert status(OWN, (b"origin", foreign.encode())) == 403


def test_a_body_must_be_json_in_utf_8_without_an_encoding() -> None:
    """H03 E008"""
    for method in ("POST", "PUT", "PATCH"):
        assert status(OWN, method=method) == 415
        assert status(OWN, JSON, method=method) == 200
        assert status(OWN, JSON, JSON, method=method) == 415
        for kind in ("application/json; charset=utf-8", "application/json;charset=UTF-8"):
            assert status(OWN, (b"content-type", kind.encode()), method=method) == 200
        for foreign in FOREIGN_TYPES:
            with case(method, foreign):
                assert status(OWN, (b"content-type", foreign.encode()), method=method) == 415
    for encoding in (b"gzip", b"br", b"identity, gzip", b""):
        with case(encoding):
            assert status(OWN, JSON, (b"content-encoding", encoding), method="POST") == 415
    assert status(OWN, JSON, (b"content-encoding", b"identity"), method="POST") == 200
    assert status(OWN, (b"content-length", b"1")) == 415
    assert status(OWN, (b"transfer-encoding", b"chunked"), method="DELETE") == 415


async def test_every_route_of_the_application_refuses_the_same_and_never_allows_another_origin(tmp_path: Path) -> None:
    """H04 H01 H02 H03"""
    async with site(tmp_path) as served:
        own = f"Host: 127.0.0.1:{served.port}"
        empty = "Content-Length: 0"
        for method, path in routes_of_the_app():
            wrong = {
                421: [["Host: evil.example", empty], [own, own, empty], ["Host: localhost", empty]],
                403: [
                    [own, f"Origin: {origin}", empty]
                    for origin in ("null", "http://evil.example", "http://localhost:1")
                ],
            }
            if method in ("POST", "PUT", "PATCH"):
                kinds = ("text/plain", "multipart/form-data; boundary=x", "application/jsonevil")
                wrong[415] = [[own, empty], *([own, empty, f"Content-Type: {kind}"] for kind in kinds)]
            for expected, requests in wrong.items():
                for headers in requests:
                    with case(method, path, headers):
                        async with served.connection() as connection:
                            connection.send("\r\n".join([f"{method} {path} HTTP/1.1", *headers, "", ""]).encode())
                            found, head, _ = await connection.answer() if method != "HEAD" else await _head(connection)
                            assert found == expected
                            assert "access-control" not in head
            async with served.connection() as connection:
                connection.send(served.head(f"OPTIONS {path} HTTP/1.1", f"Origin: http://localhost:{served.port}"))
                assert "access-control" not in (await connection.answer())[1]


async def _head(connection: Any) -> tuple[int, str, bytes]:
    """The answer to HEAD announces a body that does not come."""
    head = (await connection.reader.readuntil(b"\r\n\r\n")).decode().lower()
    return int(head.split()[1]), head, b""


async def test_a_refused_request_never_reaches_its_route(tmp_path: Path) -> None:
    """H03"""
    reached: list[str] = []

    async def endpoint(request: Any) -> Any:
        reached.append(request.url.path)
        raise AssertionError("reached")

    hosts: set[str] = set()
    inner = Starlette(routes=[Route("/mcp", endpoint, methods=["POST"])])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await RequestChecks(inner, frozenset(hosts))(scope, receive, send)

    async with site(tmp_path, app) as served:
        hosts.add(f"127.0.0.1:{served.port}")
        for header in ("Content-Type: text/plain", "Content-Type: application/json\r\nOrigin: null"):
            refused, _ = await served.ask(served.head("POST /mcp HTTP/1.1", header, "Content-Length: 2") + b"{}")
            assert refused in (403, 415)
    assert reached == []


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
async def test_what_is_not_http_is_left_to_the_application(kind: str) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await RequestChecks(app, HOSTS)({"type": kind}, None, None)  # type: ignore[arg-type]
    assert seen == [kind]
