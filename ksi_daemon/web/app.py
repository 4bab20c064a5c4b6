"""The HTTP application: liveness and readiness, for callers on this machine only."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

NO_STORE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


def own_hosts(port: int) -> frozenset[str]:
    """The Host headers of this listener."""
    return frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))


def make_app(state: Callable[[], str], hosts: frozenset[str]) -> ASGIApp:
    """The application. `state` returns starting, ready or stopping; `hosts` are the allowed Host headers."""

    async def healthz(request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok\n", headers=NO_STORE)

    async def readyz(request: Request) -> PlainTextResponse:
        word = state()
        return PlainTextResponse(word + "\n", status_code=200 if word == "ready" else 503, headers=NO_STORE)

    return OwnHostOnly(Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz)]), hosts)


class OwnHostOnly:
    """Refuses requests for any other host: protects against DNS rebinding."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            named = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            if len(named) != 1 or named[0].lower() not in self._hosts:
                await PlainTextResponse("this host is not served here\n", status_code=421)(scope, receive, send)
                return
        await self._app(scope, receive, send)
