"""Reads HTTP requests with limits that uvicorn lacks: sizes, times, connections, memory for bodies.

A refused request is answered and its connection closed. Responses are uvicorn's; a client that does not read its response is
disconnected by `SlowReaders`.
"""

import asyncio
import fcntl
import http
import itertools
import logging
import resource
import struct
import termios
from asyncio.events import TimerHandle
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ksi_daemon.mcp.request import FLUSHED, HAS_LEFT
from ksi_daemon.routing.slow_readers import SlowReaders
from ksi_daemon.web.request_head import HEAD_END, BadHead, RequestHead, checked_head

MOST_CONNECTIONS = 2_048
FREE_DESCRIPTORS = 128  # for databases, the socket, plugins
REPORT_EVERY_S = 10.0
UNREAD_SHARE_BYTES = 64 * 1024  # of a response, before the application has to wait; uvicorn's own figure
FLUSH_PAUSES_S = (0.0, 0.0, 0.0, 0.001, 0.01)

_log = logging.getLogger(__name__)


def connection_limit() -> int:
    """How many connections leave enough descriptors for the rest of the process."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(16, min(MOST_CONNECTIONS, descriptors - FREE_DESCRIPTORS))


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a client may send, and how long it may take."""

    head_bytes: int = 32 * 1024
    headers: int = 100
    body_bytes: int = 1024 * 1024  # of a chunked body with its framing
    all_bodies_bytes: int = 24 * 1024 * 1024  # of all requests at once; parsing takes up to eight times as much
    head_s: float = 10.0
    body_s: float = 30.0
    keep_alive_s: int = 75
    unread_s: float = 2.0  # how long input is discarded after a refusal, so that the client can read the answer
    connections: int = field(default_factory=connection_limit)


class HttpConfig(uvicorn.Config):
    """uvicorn's settings, our limits, and what all connections count together."""

    def __init__(self, app: Any, limits: HttpLimits, slow_readers: SlowReaders, **settings: Any) -> None:
        super().__init__(app, http=HttpProtocol, timeout_keep_alive=limits.keep_alive_s, **settings)
        self.limits = limits
        self.slow_readers = slow_readers
        self.bodies_bytes = 0
        self._refused_connections = 0

    def count_refused_connection(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count a connection that is over the limit; the log gets one line for all in ten seconds."""
        if self._refused_connections == 0:
            loop.call_later(REPORT_EVERY_S, self._report_refused_connections)
        self._refused_connections += 1

    def _report_refused_connections(self) -> None:
        _log.warning(
            "%d HTTP connections were refused: %d are open already", self._refused_connections, self.limits.connections
        )
        self._refused_connections = 0


class _Phase(Enum):
    HEAD = auto()  # also idle between two requests
    BODY = auto()
    RESPONSE = auto()  # the request was read whole
    REFUSED = auto()  # answered by the protocol; what still comes is discarded


class _Pipelined(Exception):
    """A second request arrived before the first was answered."""


class HttpProtocol(HttpToolsProtocol):
    """One connection: one request after the other."""

    config: HttpConfig

    def __init__(
        self,
        config: HttpConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = config.limits
        self._phase = _Phase.HEAD
        self._head = bytearray()
        self._request: RequestHead | None = None
        self._headers_complete = False
        self._unread_bytes = 0  # of a body with a stated length
        self._counted_bytes = 0
        self._timer: TimerHandle | None = None
        self._lost = False
        self._has_left = False
        self._took_all = False  # what was written when the client closed its side

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self._limits.connections:
            self.config.count_refused_connection(self.loop)
            self._phase = _Phase.REFUSED
            self.transport = transport
            transport.write(_response(503, "too many connections"))
            transport.close()
            return
        super().connection_made(transport)
        self.config.slow_readers.opened(self)
        self._limit_time(self._limits.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._stop_timer()
        self._unset_keepalive_if_required()
        self._uncount_body()
        self.config.slow_readers.closed(self)
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """The client has closed its side. If nothing was on its way then, it had taken everything."""
        self._has_left = True
        self._took_all = not self.transport.get_write_buffer_size() and not _unacknowledged(self.transport)
        super().eof_received()

    def has_left(self) -> bool:
        """Whether the client has closed the connection, or it was lost."""
        return self._has_left or self._lost

    async def flushed(self) -> bool:
        """Wait until the client's machine has taken everything that was written; False when the connection was lost before.

        What was written after the client had left is for the caller to know.
        """
        pauses = itertools.chain(FLUSH_PAUSES_S, itertools.repeat(FLUSH_PAUSES_S[-1]))
        while not self._lost and (  # noqa: ASYNC110 - transports signal nothing of it
            self.transport.get_write_buffer_size() or _unacknowledged(self.transport)
        ):
            await asyncio.sleep(next(pauses))
        return self._took_all or not self._lost

    def pause_writing(self) -> None:
        super().pause_writing()
        self.config.slow_readers.fell_behind(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.config.slow_readers.caught_up(self)

    def unread_bytes(self) -> int:
        """What was written and the kernel has not taken."""
        return self.transport.get_write_buffer_size()

    def set_share(self, limit_bytes: int) -> None:
        """From how many unread bytes on this client is behind."""
        self.transport.set_write_buffer_limits(high=min(limit_bytes, UNREAD_SHARE_BYTES))

    def disconnect(self) -> None:
        """Close at once; what is unread is lost."""
        self.transport.abort()

    def shutdown(self) -> None:
        """Close, or close after the response under way. A request that was not read whole is dropped."""
        if self._phase in (_Phase.BODY, _Phase.REFUSED):
            self.transport.abort()
        else:
            super().shutdown()

    # Input

    def data_received(self, data: bytes) -> None:
        match self._phase:
            case _Phase.HEAD:
                self._receive_head(data)
            case _Phase.BODY:
                self._receive_body(data)
            case _Phase.RESPONSE:
                self._close_after_response()

    def _receive_head(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        searched = max(0, len(self._head) - 2)
        self._head += data
        end = HEAD_END.search(self._head, searched)
        size = end.end() if end else len(self._head)
        if size > self._limits.head_bytes:
            self._refuse(431, f"the headers are larger than {self._limits.head_bytes} bytes")
            return
        if end is None:
            if self._timer is None:
                self._limit_time(self._limits.head_s)
            return
        raw, body = bytes(self._head[:size]), bytes(self._head[size:])
        self._head.clear()
        try:
            self._request = checked_head(
                raw, most_headers=self._limits.headers, most_body_bytes=self._limits.body_bytes
            )
        except BadHead as error:
            self._refuse(error.status, error.reason)
            return
        if not self._count_body(self._request.body_bytes):
            return
        self._stop_timer()
        self._phase = _Phase.BODY
        self._unread_bytes = self._request.body_bytes
        self._parse(self._request.raw)
        if body:
            self.data_received(body)
        if self._phase is _Phase.BODY:
            self._limit_time(self._limits.body_s)

    def _receive_body(self, data: bytes) -> None:
        assert self._request is not None
        if self._request.chunked:
            if self._counted_bytes + len(data) > self._limits.body_bytes:
                self._refuse(413, f"the body is larger than {self._limits.body_bytes} bytes")
            elif self._count_body(len(data)):
                self._parse(data)
            return
        body, more = data[: self._unread_bytes], data[self._unread_bytes :]
        self._unread_bytes -= len(body)
        self._parse(body)
        if more:
            self.data_received(more)

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            match self._phase:
                case _Phase.RESPONSE:
                    self._close_after_response()
                case _Phase.HEAD:  # answered already, and more came with the end of its body
                    self.transport.close()
                case _:
                    self._refuse(400, "the request is not valid HTTP")

    def _count_body(self, size: int) -> bool:
        """Count bytes of a body; refuses the request and returns False when all bodies together are too large."""
        if self.config.bodies_bytes + size > self._limits.all_bodies_bytes:
            self._refuse(503, "too many large requests at once, try again")
            return False
        self.config.bodies_bytes += size
        self._counted_bytes += size
        return True

    def _uncount_body(self) -> None:
        self.config.bodies_bytes -= self._counted_bytes
        self._counted_bytes = 0

    # Calls of the parser

    def on_message_begin(self) -> None:
        if self._phase is not _Phase.BODY:
            raise _Pipelined
        self._headers_complete = False
        super().on_message_begin()
        self.scope[HAS_LEFT] = self.has_left  # type: ignore[literal-required]
        self.scope[FLUSHED] = self.flushed  # type: ignore[literal-required]

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._headers_complete:  # trailers are ignored: they come after the checks
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._headers_complete = True
        if self.expect_100_continue:
            self.cycle.keep_alive = False  # a client that is answered early need not send the body

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._stop_timer()
        self._phase = _Phase.RESPONSE
        if self.cycle.response_complete:
            self._wait_for_next_request()
            self._keep_idle()

    # Responses

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._phase is _Phase.BODY:
            self._unset_keepalive_if_required()  # the rest of the body is read and dropped, within its time
        elif self._phase is _Phase.RESPONSE:
            self._wait_for_next_request()

    def _wait_for_next_request(self) -> None:
        self._uncount_body()
        self._phase = _Phase.HEAD
        if self._request is not None and self._request.chunked:
            self.parser = httptools.HttpRequestParser(self)  # the old one may hold a trailer back for the next request

    def _keep_idle(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _close_after_response(self) -> None:
        """The client did not wait for the answer: further requests on this connection are dropped unread."""
        self.cycle.keep_alive = False

    def _refuse(self, status: int, reason: str) -> None:
        """Answer and close, but read on for a moment: closing with unread input would destroy the answer."""
        answered = self._phase is _Phase.BODY and self._headers_complete and self.cycle.response_complete
        self._phase = _Phase.REFUSED
        self._stop_timer()
        self._head.clear()
        if self._headers_complete and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.waiting_for_100_continue = False
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.abort()
                return
        if self.transport.is_closing():
            return
        if not answered:
            self.transport.write(_response(status, reason))
        self.transport.write_eof()
        self.flow.resume_reading()
        self._limit_time(self._limits.unread_s)

    # Time

    def _limit_time(self, limit_s: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(limit_s, self._time_is_over)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_is_over(self) -> None:
        self._timer = None
        if self._phase is _Phase.REFUSED:
            self.transport.abort()
        elif self._phase is _Phase.HEAD and not self._head:
            self.transport.close()  # it asked for nothing
        else:
            self._refuse(408, "the request took too long to arrive")


def _response(status: int, reason: str) -> bytes:
    text = f"{reason}\n"
    return (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
        "content-type: text/plain; charset=utf-8\r\n"
        f"content-length: {len(text)}\r\n"
        "connection: close\r\n\r\n"
        f"{text}"
    ).encode("ascii")


def _unacknowledged(transport: asyncio.Transport) -> int:
    """How many bytes the kernel still keeps because the client's machine has not acknowledged them."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return 0
    counted: int = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0]
    return counted
