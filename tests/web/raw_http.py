"""A served application and raw connections to it, every wait bounded."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
from starlette.types import ASGIApp

from ksi_daemon.routing.slow_readers import SlowReaders
from ksi_daemon.web.app import make_app, own_hosts
from ksi_daemon.web.http_protocol import HttpLimits
from ksi_daemon.web.listener import bind, serving

WAIT_S = 20.0


class Site:
    """An application that is being served."""

    def __init__(self, port: int) -> None:
        self.port = port

    def head(self, request_line: str = "GET /healthz HTTP/1.1", *headers: str) -> bytes:
        """The head of a request, with the right Host."""
        return "\r\n".join([request_line, f"Host: 127.0.0.1:{self.port}", *headers, "", ""]).encode("latin-1")

    @asynccontextmanager
    async def connection(self) -> AsyncIterator["RawConnection"]:
        """A new connection, closed afterwards."""
        async with asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield RawConnection(reader, writer)
        finally:
            writer.transport.abort()

    async def ask(self, raw: bytes) -> tuple[int, bool]:
        """The status of the answer to these bytes, and whether the connection was closed after it."""
        async with self.connection() as connection:
            connection.send(raw)
            status, headers, _ = await connection.answer()
            closes = "connection: close" in headers
            if closes:
                await connection.closed()
            return status, closes


class RawConnection:
    """Bytes out, responses in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, raw: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(raw)

    async def answer(self) -> tuple[int, str, bytes]:
        """Status, headers in lower case, and body of the next response."""
        async with asyncio.timeout(WAIT_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = re.search(r"content-length: (\d+)", head)
            body = await self.reader.readexactly(int(length[1]) if length else 0)
        return int(head.split()[1]), head, body

    async def closed(self) -> bytes:
        """Wait until the server closes; what it still sent."""
        async with asyncio.timeout(WAIT_S):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""


@asynccontextmanager
async def site(tmp_path: Path, app: ASGIApp | None = None, *, limits: HttpLimits | None = None) -> AsyncIterator[Site]:
    """Serve the daemon's application, or another one."""
    listener: socket.socket = bind("127.0.0.1", 0, tmp_path / "http_port")
    port = listener.getsockname()[1]
    app = app or make_app(lambda: "ready", own_hosts(port), lambda: None)
    async with serving(app, listener, slow_readers=SlowReaders(structlog.get_logger()), limits=limits):
        yield Site(port)
