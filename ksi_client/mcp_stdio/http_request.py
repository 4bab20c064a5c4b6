"""One HTTP/1.1 request on a connection of its own, so that closing the connection cancels it and no reply is mistaken for another.

Knows nothing of MCP.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

CONNECT_LIMIT_S = 10
PIECE_BYTES = 65536


class NotSent(Exception):
    """No connection was made: the request cannot have had an effect."""


class Interrupted(Exception):
    """The connection ended after the request was sent and before its reply was complete."""


class Address(NamedTuple):
    """Where requests go."""

    host: str
    port: int
    path: str
    secure: bool

    @classmethod
    def parse(cls, url: str) -> "Address":
        """The parts of a URL. ValueError when it is not an HTTP address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not an address such as http://127.0.0.1:8080/mcp")
        if parts.username is not None or not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError(f"{url!r} has a user name or characters that an address cannot have")
        secure = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if secure else 80), parts.path or "/", secure)

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Reply:
    """A reply whose head has arrived; its body is read as it comes."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.headers: dict[str, str] = {}
        self._reader = reader
        self._parser = HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._has_head = False
        self._is_complete = False

    @property
    def status(self) -> int:
        """The HTTP status."""
        return int(self._parser.get_status_code())

    @property
    def content_type(self) -> str:
        """The media type of the body, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def read_head(self) -> None:
        """Wait until status and headers are there."""
        while not self._has_head:
            await self._receive()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        while True:
            while self._pieces:
                yield self._pieces.pop(0)
            if self._is_complete:
                return
            await self._receive()

    async def body(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces()])

    async def _receive(self) -> None:
        try:
            received = await self._reader.read(PIECE_BYTES)
            if not received:
                raise Interrupted("the hub closed the connection")
            self._parser.feed_data(received)
        except OSError as error:
            raise Interrupted(f"the connection broke: {error.strerror or error}") from error
        except HttpParserError as error:
            raise Interrupted(f"the reply is not valid HTTP: {error}") from error

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._has_head = True

    def on_body(self, piece: bytes) -> None:
        """Called by the parser."""
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self._is_complete = True


@asynccontextmanager
async def requested(
    address: Address, method: str, *, headers: Mapping[str, str], body: bytes = b""
) -> AsyncIterator[Reply]:
    """Send a request and wait for the head of its reply. Leaving the block closes the connection."""
    try:
        async with asyncio.timeout(CONNECT_LIMIT_S):
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=address.secure or None)
    except OSError as error:  # TimeoutError is one
        raise NotSent(f"no hub answers at {address.authority}: {error.strerror or type(error).__name__}") from error
    try:
        lines = [f"{method} {address.path} HTTP/1.1", f"host: {address.authority}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if method == "POST":
            lines.append(f"content-length: {len(body)}")
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        reply = Reply(reader)
        await reply.read_head()
        yield reply
    finally:
        writer.close()
