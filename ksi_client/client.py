"""The asyncio client: calls that share one connection, live notices, and automatic reconnection after a daemon restart."""

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ksi_client.connection import Connection, NotWritten
from ksi_client.errors import TimedOut, unreachable
from ksi_client.notice_stream import NoticeStream
from ksi_client.paths import socket_file
from ksi_client.protocol import GRACE_S, backoff_s, encode_request

RECONNECT_LIMIT_S = 10.0


class Client:
    """A client of one daemon. Opens its connection on first use and reopens it after a daemon restart.

    async with Client() as ksi:
        await ksi.send("system:echo", {"text": "hello"})
        async with ksi.subscribe("agent:*") as notices:
            async for notice in notices:
                print(notice.event, notice.data)
    """

    def __init__(self, socket_path: str | Path | None = None, *, timeout_s: float = 30, reconnect: bool = True) -> None:
        self.socket_path = Path(socket_path) if socket_path else socket_file()
        self.timeout_s = timeout_s
        self.reconnect = reconnect
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._was_connected = False
        self._streams: set[NoticeStream] = set()
        self._ids = count(1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; calls still in flight raise ConnectionLost."""
        for stream in list(self._streams):
            await stream.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def send(
        self,
        event: str,
        data: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        correlation_id: str | None = None,
        as_agent: str | None = None,
        token: str | None = None,
    ) -> Any:
        """Send an event and return its answer's data, or raise the typed error.

        A request that was not written yet when the daemon stopped is sent again after the reconnect. One that was written
        and not answered raises ConnectionLost: it may have run, so it is never sent twice.

        `as_agent` makes the operator impersonate an agent, `token` makes the call on behalf of the token's agent.
        """
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        request_id = next(self._ids)
        request = encode_request(
            event,
            data,
            request_id=request_id,
            timeout_s=wait_s,
            correlation_id=correlation_id,
            as_agent=as_agent,
            token=token,
        )
        deadline = asyncio.timeout(wait_s + GRACE_S)
        try:
            async with deadline:
                while True:
                    connection = await self._connected()
                    try:
                        return await connection.ask(request_id, request)
                    except NotWritten:
                        continue
        except TimeoutError:
            if not deadline.expired():
                raise
            raise TimedOut(f"{event} did not answer within {wait_s:g} s", hint="try a longer timeout") from None

    def subscribe(self, *patterns: str, on_status: Callable[[str], None] | None = None) -> NoticeStream:
        """The notices that match the patterns (all, without a pattern), on a separate connection.

        Use it in `async with`, which returns once the subscription is active, or iterate it directly.
        `on_status` receives status messages for people: notices dropped, connection lost, connected again.
        """
        return NoticeStream(
            self.socket_path,
            patterns or ("*",),
            timeout_s=self.timeout_s,
            reconnect=self.reconnect,
            on_status=on_status,
            registry=self._streams,
        )

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._connection is not None and not self._connection.ended:
                return self._connection
            previous, self._connection = self._connection, None
            if previous is not None:
                await previous.finish()
            self._connection = await self._open()
            self._was_connected = True
            return self._connection

    async def _open(self) -> Connection:
        """Connect. Retries for a while if it was connected before (the daemon may be restarting), else fails at once."""
        clock = asyncio.get_running_loop()
        retry_until = clock.time() + (RECONNECT_LIMIT_S if self._was_connected and self.reconnect else 0)
        attempt = 0
        while True:
            try:
                return await Connection.open(self.socket_path)
            except OSError as error:
                pause_s = backoff_s(attempt)
                if clock.time() + pause_s > retry_until:
                    raise unreachable(self.socket_path, error) from error
            await asyncio.sleep(pause_s)
            attempt += 1
