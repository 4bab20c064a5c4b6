"""A hub that serves MCP over real HTTP inside a test, and clients for it: raw requests and the SDK's own client."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from ksi_daemon.mcp.mcp_service import McpService
from ksi_daemon.plugin import Plugin
from ksi_daemon.routing.slow_readers import SlowReaders
from ksi_daemon.testing import TestHub, running
from ksi_daemon.web.app import make_app, own_hosts
from ksi_daemon.web.http_protocol import HttpLimits
from ksi_daemon.web.listener import bind, serving
from tests.in_process import soon

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
BOTH = "application/json, text/event-stream"


class McpHub:
    """A hub, the port it serves MCP on, and a raw HTTP client."""

    def __init__(self, hub: TestHub, service: McpService, port: int, http: httpx2.AsyncClient) -> None:
        self.hub = hub
        self.service = service
        self.port = port
        self.http = http

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def agent(self, agent_id: str = "bot", profile: str = "standard", **options: Any) -> str:
        """A new agent's token."""
        made = await self.hub.call("agent:register", agent_id=agent_id, profile=profile, **options)
        return str(made["token"])

    async def post(
        self, token: str | None, body: Any, *, path: str = "/mcp", headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        """One POST, as curl would send it. A body that is bytes goes as it is."""
        sent: dict[str, str] = {"content-type": "application/json", "accept": BOTH}
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        data = {"content": body} if isinstance(body, bytes) else {"json": body}
        return await soon(
            self.http.post(f"http://127.0.0.1:{self.port}{path}", headers={**sent, **(headers or {})}, **data)
        )

    async def request_2026(
        self,
        token: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """One request of the revision 2026-07-28."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META, **(params or {})}}
        named = {"mcp-name": str(params["name"])} if params is not None and "name" in params else {}
        version = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
        return await self.post(token, body, headers={**version, **named, **(headers or {})})

    async def call_2026(self, token: str, tool: str, **arguments: Any) -> httpx2.Response:
        return await self.request_2026(token, "tools/call", {"name": tool, "arguments": arguments})

    async def call(self, token: str, tool: str, **arguments: Any) -> httpx2.Response:
        """A call without a session or a version."""
        params = {"name": tool, "arguments": arguments}
        return await self.post(token, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})

    @asynccontextmanager
    async def client(
        self, token: str, mode: str = "auto", *, path: str = "/mcp", **headers: str
    ) -> AsyncIterator[Client]:
        """The SDK's client: `auto` speaks the newest revision, `legacy` opens a session."""
        sent = {"authorization": f"Bearer {token}", **headers}
        async with httpx2.AsyncClient(headers=sent, timeout=30) as http:
            transport = streamable_http_client(f"http://127.0.0.1:{self.port}{path}", http_client=http)
            async with Client(transport, mode=mode) as client:
                yield client


@asynccontextmanager
async def serving_mcp(
    *plugins: Path | Plugin, limits: HttpLimits | None = None, **settings: Any
) -> AsyncIterator[McpHub]:
    """A hub with these plugins, behind the listener that the daemon uses."""
    async with running(*plugins, **settings) as hub:
        inner = hub.hub
        service = inner.mcp
        inner.background.start("the MCP server", service.run)
        listener = bind("127.0.0.1", 0, inner.control.read.settings.var_dir / "run" / "http_port")
        port = listener.getsockname()[1]
        app = make_app(lambda: "ready", own_hosts(port), lambda: service.endpoint)
        slow_readers = SlowReaders(inner.log.logger)
        async with (
            serving(app, listener, slow_readers=slow_readers, limits=limits),
            httpx2.AsyncClient(timeout=30) as http,
        ):
            yield McpHub(hub, service, port, http)
