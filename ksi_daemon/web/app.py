"""The HTTP application: liveness and readiness, for callers on this machine only."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from ksi_daemon.web.request_checks import RequestChecks

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

    return RequestChecks(Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz)]), hosts)
