"""The HTTP application: MCP, liveness and readiness, for callers on this machine only."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ksi_daemon.errors import Unavailable
from ksi_daemon.mcp.refusals import error_body, error_object
from ksi_daemon.web.request_checks import RequestChecks

NO_STORE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


def own_hosts(port: int) -> frozenset[str]:
    """The Host headers of this listener."""
    return frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))


def make_app(
    state: Callable[[], str],
    hosts: frozenset[str],
    mcp: Callable[[], ASGIApp | None],
    *,
    degraded: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """The application. `state` returns starting, ready or stopping; `hosts` are the allowed Host headers.

    `mcp` returns the MCP endpoint, or None as long as there is none. `degraded` is whether a part of a plugin fails: the
    daemon is ready all the same, and which part it is only `system:health` says.
    """

    async def healthz(request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok\n", headers=NO_STORE)

    async def readyz(request: Request) -> PlainTextResponse:
        word = state()
        more = "degraded\n" if word == "ready" and degraded() else ""
        return PlainTextResponse(f"{word}\n{more}", status_code=200 if word == "ready" else 503, headers=NO_STORE)

    routes = [
        Route("/healthz", healthz, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/mcp", _Mcp(mcp)),
        Route("/mcp/{view}", _Mcp(mcp)),
        Route("/", _Root(_Mcp(mcp))),
    ]
    return RequestChecks(Starlette(routes=routes), hosts)


class _Mcp:
    """The MCP endpoint, or 503 before the daemon has one."""

    def __init__(self, endpoint: Callable[[], ASGIApp | None]) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoint()
        if endpoint is None:
            error = Unavailable("the daemon is starting", hint="try again in a second")
            headers = NO_STORE | {"retry-after": "1"}
            body = error_body(error_object(error))
            await Response(body, error.status, headers, "application/json")(scope, receive, send)
        else:
            await endpoint(scope, receive, send)


class _Root:
    """`/` is MCP too, because the documented configuration has no path; a browser that opens it finds nothing yet."""

    def __init__(self, mcp: ASGIApp) -> None:
        self._mcp = mcp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if request.method in ("POST", "DELETE") or request.headers.getlist("accept") == ["text/event-stream"]:
            await self._mcp(scope, receive, send)
        else:
            await PlainTextResponse("Not Found\n", status_code=404, headers=NO_STORE)(scope, receive, send)
