"""The session of a client older than the revision 2026-07-28: its id, its stream of notices, and a new one when the hub has forgotten it."""

import asyncio
from collections.abc import Callable
from typing import Any

from ksi_client.mcp_stdio.http_request import Interrupted, NotSent
from ksi_client.mcp_stdio.hub import Answer, Hub
from ksi_client.mcp_stdio.message import encode
from ksi_client.protocol import backoff_s

INITIALIZED = encode({"jsonrpc": "2.0", "method": "notifications/initialized"})
TOOLS_CHANGED = encode({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
NO_STREAM = (401, 403, 405)  # replies after which asking for the stream again is of no use
STREAM = {"accept": "text/event-stream"}
CLOSE_LIMIT_S = 2


class NotRenewed(Exception):
    """The hub forgot the session and does not open another; `answer` says why."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"the hub answered initialize with HTTP status {answer.status}")
        self.answer = answer


class Session:
    """At most one session, opened by the client's `initialize`. `write` takes lines for the client."""

    def __init__(self, hub: Hub, write: Callable[[bytes], None], note: Callable[[str], None]) -> None:
        self.id: str | None = None
        self._hub = hub
        self._write = write
        self._note = note
        self._revision = ""
        self._has_changing_tools = False
        self._initialize = b""
        self._is_initialized = False
        self._renewing = asyncio.Lock()
        self._stream: asyncio.Task[None] | None = None

    def headers(self) -> dict[str, str]:
        """What requests within the session carry; nothing while there is none."""
        return {} if self.id is None else {"mcp-session-id": self.id, "mcp-protocol-version": self._revision}

    def opened(self, initialize: bytes, answer: Answer) -> None:
        """Take the session that the hub has opened for the client's `initialize`."""
        session_id, result = answer.headers.get("mcp-session-id"), answer.fields.get("result")
        if session_id is None or not isinstance(result, dict):
            return
        self.id = session_id
        self._revision = str(result.get("protocolVersion", ""))
        self._has_changing_tools = _has_changing_tools(result)
        self._initialize = initialize

    def start_stream(self, tasks: asyncio.TaskGroup) -> None:
        """Listen for notices: the client is ready for them."""
        self._is_initialized = True
        if self._stream is None and self.id is not None:
            self._stream = tasks.create_task(self._follow())

    async def renew(self, lost_id: str) -> None:
        """Open a session in place of one that the hub does not know any more, as the client did."""
        async with self._renewing:
            if self.id != lost_id:
                return  # another request has done it
            answer = await self._hub.send(self._initialize, headers={}, repeatable=True, on_notice=self._write)
            self.opened(self._initialize, answer)
            if self.id == lost_id:
                raise NotRenewed(answer)
            if self._is_initialized:
                await self._hub.send(INITIALIZED, headers=self.headers(), repeatable=True, on_notice=self._write)
            self._note("the hub had ended the session; it was opened again")

    async def close(self) -> None:
        """End the session at the hub, if that is quick; otherwise the hub ends it when it has been idle."""
        if self._stream is not None:
            self._stream.cancel()
            await asyncio.wait([self._stream])
        if self.id is None:
            return
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S), self._hub.requested("DELETE", headers=self.headers()):
                pass
        except (NotSent, Interrupted, TimeoutError) as error:
            self._note(f"the session was not ended at the hub, which will do so by itself: {error}")

    async def _follow(self) -> None:
        """Pass on the notices of the session's stream, and open it again whenever it ends."""
        was_open, attempt = False, 0
        while True:
            lost_id = self.id or ""
            try:
                async with self._hub.requested("GET", headers={**self.headers(), **STREAM}) as reply:
                    status = reply.status
                    if status == 200:
                        if was_open and self._has_changing_tools:
                            self._write(TOOLS_CHANGED)  # whether they did in between is not known
                        was_open, attempt = True, 0
                        async for line, _ in self._hub.events(reply):
                            self._write(line)
                if status in NO_STREAM:
                    self._note(f"no notices in this session: the hub answered with HTTP status {status}")
                    return
                if status == 404:
                    await self.renew(lost_id)
            except (NotSent, Interrupted) as error:
                self._hub.detail(f"the stream of notices is opened again: {error}")
            except NotRenewed as error:
                self._note(f"no notices in this session: {error}")
                return
            await asyncio.sleep(backoff_s(attempt))
            attempt += 1


def _has_changing_tools(initialized: dict[str, Any]) -> bool:
    match initialized:
        case {"capabilities": {"tools": {"listChanged": True}}}:
            return True
    return False
