"""The operator's unix socket: one JSON object a line, for the daemon's own user only.

docs/socket.md is the protocol. Every request ends in `router.call`; notices come back through the connection's mailbox.
"""

import asyncio
import os
import select
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from ksi_daemon.errors import (
    Cancelled,
    Forbidden,
    Internal,
    Invalid,
    KsiError,
    NotFound,
    TooLarge,
    Unauthenticated,
)
from ksi_daemon.gate.rights import Rights
from ksi_daemon.identifiers import new_id
from ksi_daemon.operator_socket.request import Request, id_of, parse_request
from ksi_daemon.operator_socket.unfinished_lines import UnfinishedLines
from ksi_daemon.principal import Principal
from ksi_daemon.process.forked import close_in_forked_children
from ksi_daemon.routing.bus import NOTICE_BYTES, Mailbox
from ksi_daemon.routing.router import Router
from ksi_daemon.routing.slow_readers import SlowReaders

LINE_LIMIT_BYTES = 1_000_000
IN_FLIGHT_LIMIT = 64  # per connection; beyond it the connection is not read until some are answered
BACKLOG = 1024
IDLE_WORKERS = 4
TURN = 64  # lines one connection may have served before others get a turn
CLOSE_LIMIT_S = 0.5
HANGUP_CHECK_S = 1.0
SOCKET_PATH_LIMIT = 107


LINE_TOO_LONG = TooLarge(f"a line may have at most {LINE_LIMIT_BYTES:,} bytes", hint="send less at once")

_encode = msgspec.json.Encoder().encode


class OperatorSocket:
    """The listener and its connections."""

    def __init__(self, router: Router, rights: Rights, slow_readers: SlowReaders, log: Any) -> None:
        self.router = router
        self.rights = rights
        self.slow_readers = slow_readers
        self.log = log
        self.connections: set[_Connection] = set()
        self.unfinished_lines = UnfinishedLines(log)

    @asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Serve on `path` until left; then refuse new connections and close all."""
        listener = _bind(path)
        close_in_forked_children(listener.fileno())
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: _Connection(self), sock=listener, backlog=BACKLOG
        )
        try:
            yield
        finally:
            server.close()
            await asyncio.gather(*(connection.close() for connection in list(self.connections)))
            with suppress(FileNotFoundError):
                path.unlink()


class _Connection(asyncio.Protocol):
    """One client: lines in, answers and notices out, several calls under way at once."""

    def __init__(self, server: OperatorSocket) -> None:
        self._server = server
        self._rest = b""  # the beginning of a line
        self._skipping = False  # inside a line that was too long
        self._lines: deque[bytes | None] = deque()  # None: a line that was too long
        self._workers: set[_Worker] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._waking = False  # a worker was woken that does not run yet: one at a time is enough
        self._flushing = False
        self._input_over = False
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._unsent: list[bytes] = []  # answers of this turn of the loop, sent in one write
        self._transport: asyncio.Transport
        self._mailbox: Mailbox
        self._pump: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        uid = _peer_uid(transport)
        if uid not in (os.geteuid(), 0):
            self._server.log.warning("another user was refused at the socket", uid=uid)
            self._answer(None, Forbidden(f"this daemon belongs to uid {os.geteuid()}, you are uid {uid}"))
            self._flush()
            transport.close()
            return
        self._server.slow_readers.opened(self)
        self._mailbox = self._server.router.bus.open(f"operator/{new_id()}")
        self._principal = Principal(kind="operator", name="operator", transport="socket", mailbox=self._mailbox.name)
        self._pump = asyncio.get_running_loop().create_task(self._send_notices(), name="notices to an operator")
        self._server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if self._skipping:
                self._skipping = False
            elif len(line) > LINE_LIMIT_BYTES:
                self._lines.append(None)
            elif line and not line.isspace():
                self._lines.append(line)
        if len(self._rest) > LINE_LIMIT_BYTES:
            if not self._skipping:
                self._lines.append(None)
            self._skipping = True
        if self._skipping:
            self._rest = b""
        self._server.unfinished_lines.received(self, len(self._rest), new_line=bool(lines))
        self._start_calls()

    def eof_received(self) -> bool:
        """A client that has sent everything may still wait for its replies."""
        self._input_over = True
        if self._pump is not None:
            self._close_when_done()
            self._check_for_hangup()
        return True

    def _check_for_hangup(self) -> None:
        """After the end of its input a client may still read or may be gone; only the kernel knows, and only when asked."""
        if self._transport.is_closing():
            return
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), 0)
        if any(seen & (select.POLLHUP | select.POLLERR) for _, seen in poll.poll(0)):
            self._transport.abort()
        else:
            asyncio.get_running_loop().call_later(HANGUP_CHECK_S, self._check_for_hangup)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._lines.clear()
        self._rest = b""
        self._server.unfinished_lines.forget(self)
        self._server.slow_readers.closed(self)
        if self._pump is None:
            return
        self._pump.cancel()
        self._mailbox.close()
        for worker in self._workers:
            worker.task.cancel()

    def pause_writing(self) -> None:
        """More than its share waits to be read: read no more from this client, and disconnect it if that lasts."""
        self._may_write.clear()
        self._transport.pause_reading()
        self._server.slow_readers.fell_behind(self)

    def resume_writing(self) -> None:
        self._may_write.set()
        self._server.slow_readers.caught_up(self)
        self._start_calls()

    def unread_bytes(self) -> int:
        """What was written and the kernel has not taken."""
        return self._transport.get_write_buffer_size()

    def set_share(self, limit_bytes: int) -> None:
        """From how many unread bytes on this client is behind."""
        self._transport.set_write_buffer_limits(high=limit_bytes)

    def disconnect(self) -> None:
        """Close at once; what is unread is lost."""
        self._transport.abort()

    async def close(self) -> None:
        """Cancel the calls still under way, let them reply, then close the connection."""
        tasks = [worker.task for worker in self._workers]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_LIMIT_S)
        self._transport.close()

    def _start_calls(self) -> None:
        """Give waiting lines to a worker, and read no more lines than can be worked on."""
        if self._lines and self._may_write.is_set() and not self._waking:
            self._wake_worker()
        if self._transport.is_closing():
            return
        if len(self._lines) > IN_FLIGHT_LIMIT or not self._may_write.is_set():
            self._transport.pause_reading()
        elif not self._transport.is_reading():
            self._transport.resume_reading()

    def _wake_worker(self) -> None:
        if self._idle:
            self._waking = True
            self._idle.pop().set_result(None)
        elif len(self._workers) < IN_FLIGHT_LIMIT:
            self._waking = True
            self._workers.add(_Worker(self))

    async def work(self, worker: "_Worker") -> None:
        """Serve lines one after the other; whenever one has to wait for something, another worker goes on with the next.

        A task for each line would be simpler, but costs as much as a small call itself.
        """
        loop = asyncio.get_running_loop()
        while True:
            self._waking = False
            served = 0
            while self._lines and self._may_write.is_set():
                line = self._lines.popleft()
                if self._lines:
                    self._start_calls()
                if self._unsent and not self._flushing:  # this line may have to wait; those answers must not
                    self._flushing = True
                    loop.call_soon(self._flush)
                worker.busy = True
                await self._serve(line, worker)
                worker.busy = False
                if worker.abandoned:
                    return
                served += 1
                if served % TURN == 0:
                    await asyncio.sleep(0)
            self._flush()
            if self._lines or not self._transport.is_reading():
                self._start_calls()
            if self._input_over:
                self._close_when_done()
            if len(self._idle) >= IDLE_WORKERS:
                return
            waiting = loop.create_future()
            self._idle.append(waiting)
            await waiting

    async def _serve(self, line: bytes | None, worker: "_Worker") -> None:
        if line is None:
            await self._refuse(None, LINE_TOO_LONG)
            return
        try:
            request = parse_request(line)
        except Invalid as error:
            await self._refuse(id_of(line), error)
            return
        worker.request = request
        try:
            answer = await self._server.router.call(
                request.event,
                request.data,
                principal=await self._caller(request),
                correlation_id=request.correlation_id,
                timeout_s=request.timeout_s,
                on_abandoned=worker.abandon,
            )
        except KsiError as error:
            self.fail(worker, error)
        except asyncio.CancelledError:
            self.fail(
                worker,
                Cancelled(f"{request.event} was cancelled: the daemon stops", hint="part of it may have been done"),
            )
            self._flush()
            raise
        except Exception:
            self._server.log.exception("a call could not be answered", called=request.event)
            self.fail(worker, Internal(f"{request.event} could not be answered", hint="the log has the details"))
        else:
            if not worker.abandoned:
                self._unsent.append(b'{"id":%b,"ok":true,"data":%b}\n' % (_encode(request.id), answer))
        worker.request = None

    async def _caller(self, request: Request) -> Principal:
        """The operator, unless the line brings an agent's token or asks to act as one."""
        try:
            if request.as_agent is not None:
                return self._server.rights.impersonate(request.as_agent, mailbox=self._mailbox.name)
            if request.token is not None:
                return self._server.rights.credentials.principal(
                    request.token, transport="socket", mailbox=self._mailbox.name
                )
            return self._principal
        except (Unauthenticated, NotFound) as error:
            await self._server.router.record_unauthenticated(self._principal, request.event, error)
            raise

    def fail(self, worker: "_Worker", error: KsiError) -> None:
        """Answer a worker's request with an error, if it is not answered yet."""
        if worker.request is not None and not worker.abandoned:
            self._answer(worker.request.id, error)

    def worker_ended(self, worker: "_Worker") -> None:
        """A worker ended, or was abandoned with a handler that does not end: another may take its place."""
        self._workers.discard(worker)
        self._flush()
        if self._pump is not None and not self._pump.cancelled():
            self._start_calls()
            self._close_when_done()

    def _close_when_done(self) -> None:
        busy = any(worker.busy for worker in self._workers)
        if self._input_over and not busy and not self._lines and not self._mailbox.patterns:
            self._flush()
            self._transport.close()

    def _flush(self) -> None:
        self._flushing = False
        if self._unsent and not self._transport.is_closing():
            self._transport.write(b"".join(self._unsent))
            if not self._may_write.is_set():  # replies of calls that were under way when it fell behind
                self._server.slow_readers.make_room()
        self._unsent.clear()

    def _answer(self, request_id: str | int | None, error: KsiError) -> None:
        self._unsent.append(_encode({"id": request_id, "ok": False, "error": error.as_dict()}) + b"\n")

    async def _refuse(self, request_id: str | int | None, refusal: KsiError) -> None:
        """Refuse a line that is not a request: on record first, then the reply."""
        try:
            await self._server.router.record_bad_request(self._principal, refusal)
        except KsiError as unavailable:
            refusal = unavailable
        self._answer(request_id, refusal)

    async def _send_notices(self) -> None:
        reported, mailbox = 0, self._mailbox
        while True:
            await self._may_take_notice()
            notice = await mailbox.take()
            if mailbox.dropped > reported:
                self._transport.write(b'{"dropped":%d}\n' % (mailbox.dropped - reported))
                reported = mailbox.dropped
            self._transport.write(b'{"notice":%b}\n' % _encode(notice.as_dict()))

    async def _may_take_notice(self) -> None:
        """Wait until a notice waits and may be written: what is taken out of the mailbox is not counted there any more."""
        mailbox = self._mailbox
        while True:
            if not mailbox.waiting:
                await mailbox.filled()
            if not self._may_write.is_set():
                await self._may_write.wait()
            if not mailbox.waiting:
                continue
            notice = mailbox.waiting[0]
            await self._server.slow_readers.room_for(notice.size + NOTICE_BYTES)
            if self._may_write.is_set() and mailbox.waiting and mailbox.waiting[0] is notice:
                return


class _Worker:
    """A task that serves one connection's lines, and what it is serving now."""

    __slots__ = ("_connection", "abandoned", "busy", "request", "task")

    def __init__(self, connection: _Connection) -> None:
        self.request: Request | None = None
        self.busy = False  # with any line, also one that is not a request
        self.abandoned = False
        self._connection = connection
        self.task = asyncio.get_running_loop().create_task(connection.work(self), name="operator's calls")
        self.task.add_done_callback(self._ended)

    def abandon(self, error: KsiError) -> None:
        """The handler ignores its cancellation: its caller is answered, and the next line goes to another worker."""
        self._connection.fail(self, error)
        self.abandoned = True
        self._connection.worker_ended(self)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connection.worker_ended(self)


def _peer_uid(transport: asyncio.Transport) -> int:
    connection = transport.get_extra_info("socket")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return int(uid)


def _bind(path: Path) -> socket.socket:
    """A listening socket with mode 0600 from its first moment. We hold the lock, so an old one is a leftover."""
    with suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    umask = os.umask(0o177)
    try:
        if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
            listener.bind(str(path))
        else:
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                listener.bind(f"/proc/self/fd/{folder}/{path.name}")
            finally:
                os.close(folder)
    finally:
        os.umask(umask)
    listener.listen(BACKLOG)
    return listener
