"""One asyncio connection to the daemon with several requests in flight. Reconnecting is done by `client.py`."""

import asyncio
import select
from pathlib import Path
from typing import Any

from ksi_client.errors import ConnectionLost, KsiError
from ksi_client.paths import connectable
from ksi_client.protocol import RECEIVE_LIMIT_BYTES, Answer, decode_line

_PEER_CLOSED = getattr(select, "POLLRDHUP", select.POLLHUP)


class NotWritten(Exception):
    """The connection had ended before the request was written, so it cannot have run."""


async def open_streams(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the socket, however long its path is."""
    with connectable(path) as address:
        return await asyncio.open_unix_connection(address, limit=RECEIVE_LIMIT_BYTES)


async def close_writer(writer: asyncio.StreamWriter) -> None:
    """Close and wait until it is closed. It is not an error if the peer closed first."""
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        return


class Connection:
    """Matches answers to requests by id. A task reads until the connection ends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._ended = False
        self._reading = asyncio.create_task(self._read(), name="ksi-client-reader")

    @classmethod
    async def open(cls, path: Path) -> "Connection":
        """Connect. Raises OSError when that fails."""
        return cls(*await open_streams(path))

    @property
    def ended(self) -> bool:
        """Whether the peer has closed the connection. Asks the kernel, because the event loop may not have noticed yet."""
        if self._ended or self._writer.is_closing():
            return True
        poll = select.poll()
        poll.register(self._writer.get_extra_info("socket").fileno(), _PEER_CLOSED)
        return bool(poll.poll(0))

    async def ask(self, request_id: int, request: bytes) -> Any:
        """Write the request and wait for its answer."""
        if self.ended:
            raise NotWritten
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = answer
        try:
            self._writer.write(request)
            return (await answer).unwrap()
        finally:
            self._waiting.pop(request_id, None)

    async def finish(self) -> None:
        """Read the answers that arrived before the peer closed, then close."""
        await asyncio.wait([self._reading])
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls still waiting raise ConnectionLost."""
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await close_writer(self._writer)

    async def _read(self) -> None:
        reason = "the daemon closed the connection"
        try:
            while line := await self._reader.readline():
                message = decode_line(line)
                if isinstance(message, Answer):
                    self._settle(message)
        except (OSError, ValueError, KsiError) as error:
            reason = str(error)
        finally:
            self._ended = True
            self._writer.close()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionLost(
                        f"the connection ended before the call was answered ({reason}); it may have run",
                        hint="ksi status",
                    ))  # fmt: skip

    def _settle(self, answer: Answer) -> None:
        future = self._waiting.get(answer.id)
        if answer.id is None and len(self._waiting) == 1:
            # The daemon could not parse a line, not even its id. With one request in flight it must be that one.
            (future,) = self._waiting.values()
        if future is not None and not future.done():
            future.set_result(answer)
