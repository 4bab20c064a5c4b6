"""The MCP server's life: it is started after the daemon is ready, because importing the SDK takes a second, and ends with it."""

import asyncio
import importlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ksi_daemon.config import Settings
from ksi_daemon.errors import Unavailable
from ksi_daemon.gate.gate import Gate
from ksi_daemon.gate.resolvers import Resolvers
from ksi_daemon.mcp.calls import Calls
from ksi_daemon.mcp.endpoint import Endpoint
from ksi_daemon.mcp.handshakes import Handshakes
from ksi_daemon.mcp.list_changes import ListChanges
from ksi_daemon.mcp.listing import Listings
from ksi_daemon.mcp.sessions import Sessions
from ksi_daemon.mcp.tool_search import ToolSearch
from ksi_daemon.mcp.tools import Tools
from ksi_daemon.mcp.transports import Transports
from ksi_daemon.routing.router import Router
from ksi_daemon.storage.protocol_sessions import SessionStore
from ksi_daemon.view import View
from ksi_daemon.workers.worker import in_thread

IMPORT_AFTER_S = 2.0  # a daemon that is stopped before needs none of it
START_LIMIT_S = 5.0  # that a request waits for the import
FINISH_CHECK_S = 0.01


class McpService:
    """Runs the server; `endpoint` is what the web application serves."""

    def __init__(
        self,
        router: Router,
        gate: Gate,
        resolvers: Resolvers,
        log: Any,
        *,
        settings: Callable[[], Settings],
        views: Callable[[], Mapping[str, View]],
        handshakes: Handshakes,
        stored_sessions: SessionStore,
    ) -> None:
        self._log = log
        self.tools = Tools(router, gate, views)
        self.search = ToolSearch()
        self.handshakes = handshakes
        self.list_changes = ListChanges(self.tools, gate.rights)
        self.sessions = Sessions(stored_sessions, self.list_changes, log)
        self._listings = Listings(self.tools, handshakes, self.sessions, router, log)
        self._calls = Calls(router)
        self._running: Transports | None = None
        self._wanted = asyncio.Event()
        self._started = asyncio.Event()
        self.endpoint = Endpoint(router, gate, resolvers, self.tools, self.sessions, self._transports, settings)

    @property
    def is_serving(self) -> bool:
        """Whether the server has started."""
        return self._running is not None

    async def run(self) -> None:
        """Import the server, at the first request or when the daemon has run for a moment, and serve until cancelled."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wanted.wait(), IMPORT_AFTER_S)
        server = await in_thread(importlib.import_module, "ksi_daemon.mcp.dynamic_server")
        serving = server.serving(self.tools, self._listings, self.list_changes, self._calls, self.sessions, self._log)
        async with serving as transports:
            self._running = transports
            self.sessions.attach(transports.sessions)
            self._started.set()
            self._log.info("MCP is served")
            try:
                await asyncio.Event().wait()
            finally:
                self._started.clear()
                self._running = None

    async def finish(self, limit_s: float) -> None:
        """End the streams and let the replies under way be written; new requests are refused already."""
        self.list_changes.end_all()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self.endpoint.requests:  # noqa: ASYNC110 - a counter has nothing to wait for
                    await asyncio.sleep(FINISH_CHECK_S)

    async def _transports(self) -> Transports:
        if self._running is None:
            self._wanted.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._started.wait(), START_LIMIT_S)
        if self._running is None:
            raise Unavailable("the MCP server is starting", hint="try again in a second")
        return self._running
