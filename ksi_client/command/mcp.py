"""`ksi mcp`: the hub's MCP server, for clients that cannot reach it over HTTP by themselves."""

import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksi_client.command import mcp_sessions
from ksi_client.command.complete import complete_agents
from ksi_client.command.durations import seconds
from ksi_client.command.fault import USAGE, Fault
from ksi_client.command.screen import Screen
from ksi_client.command.verb import Verb, verb_app
from ksi_client.errors import Unreachable
from ksi_client.sync_client import SyncClient

if TYPE_CHECKING:
    from ksi_client.mcp_stdio.http_request import Address

app = verb_app("The MCP server: serve a client that speaks only stdio, show what conversations were shown.")
app.add_typer(mcp_sessions.app, name="sessions")

TOKEN_VARIABLE = "KSI_TOKEN"  # noqa: S105 - the name of a variable
STATUS_LIMIT_S = 2
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@app.command("stdio", cls=Verb)
def serve_stdio(
    context: typer.Context,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="The hub's MCP address (default: the hub of this var folder).")
    ] = None,
    view: Annotated[str | None, typer.Option(metavar="NAME", help="Only the tools of this view.")] = None,
    agent: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The agent that the token must belong to.", autocompletion=complete_agents),
    ] = None,
    conversation: Annotated[
        str | None, typer.Option(metavar="ID", help="Send this conversation's id with each request.")
    ] = None,
    wait: Annotated[
        str, typer.Option(metavar="TIME", help="How long a request waits for a hub that is away: 15s, 1m.")
    ] = "15s",
) -> None:
    """Serve an MCP client on standard input and output, with the token from the variable KSI_TOKEN. Ends with its input."""
    import asyncio

    screen: Screen = context.obj
    headers = _identity(agent, conversation)
    locate = _locator(url, "" if view is None else f"/{_identifier('--view', view)}")
    wait_s = seconds(wait, "--wait")
    code = asyncio.run(_serve(screen, locate, headers, wait_s))
    if code:
        raise typer.Exit(code)


async def _serve(screen: Screen, locate: "Callable[[], Address]", headers: dict[str, str], wait_s: float) -> int:
    from ksi_client.mcp_stdio.bridge import Bridge
    from ksi_client.mcp_stdio.hub import Hub
    from ksi_client.mcp_stdio.lines import input_lines, write_line

    def note(text: str) -> None:
        screen.note(f"ksi mcp stdio: {text}")

    hub = Hub(locate, headers, wait_s=wait_s, note=note, detail=screen.detail)
    await Bridge(hub, write=write_line, note=note).run(input_lines(sys.stdin.fileno()))
    return 0 if hub.exit_error is None else hub.exit_error.exit_code


def _identity(agent: str | None, conversation: str | None) -> dict[str, str]:
    """The headers that say who calls. Without a token the hub refuses each request, which says more to the client than an early end."""
    headers = {}
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Fault(
            f"the variable {TOKEN_VARIABLE} holds characters that no token has",
            exit_code=USAGE,
            hint="set it to a whole token, as `ksi tokens create AGENT` prints it",
        )
    if token:
        headers["authorization"] = f"Bearer {token}"
    if agent is not None:
        headers["x-ksi-agent-id"] = _identifier("--agent", agent)
    if conversation is not None:
        headers["x-ksi-conversation-id"] = _identifier("--conversation", conversation)
    return headers


def _identifier(option: str, value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", value):
        raise Fault(f"{option} takes 1 to 64 letters, digits and any of . _ -, not {value!r}", exit_code=USAGE)
    return value


def _locator(url: str | None, path: str) -> "Callable[[], Address]":
    """A function that returns the hub's address: the given one, or where the daemon of the var folder serves at that moment."""
    from ksi_client.mcp_stdio.http_request import Address

    if url is not None:
        try:
            given = Address.parse(url.rstrip("/"))
        except ValueError as error:
            raise Fault(f"--url: {error}", exit_code=USAGE) from error
        if not given.secure and given.host not in LOOPBACK:
            raise Fault(
                f"--url: the token would go unencrypted to {given.host}",
                exit_code=USAGE,
                hint="use https, or a tunnel to an address of this machine",
            )
        whole = given._replace(path=("/mcp" if given.path == "/" else given.path) + path)
        return lambda: whole

    def locate() -> Address:
        with SyncClient(timeout_s=STATUS_LIMIT_S) as client:
            status: dict[str, Any] = client.send("system:status")
        if not status.get("url"):
            raise Unreachable("the daemon serves no MCP over HTTP", hint="ksi doctor")
        return Address.parse(status["url"] + path)

    return locate
