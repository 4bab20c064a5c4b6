"""A live subscription for asyncio: notices in order, a count of those missed, re-subscribed after a restart."""

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from ksi_client.connection import close_writer, open_streams
from ksi_client.errors import ConnectionLost, KsiError, TimedOut, unreachable
from ksi_client.notice import Notice
from ksi_client.protocol import Answer, Dropped, backoff_s, decode_line, encode_request


class NoticeStream:
    """An endless async iterator of notices.

    `dropped` counts the notices the daemon dropped for this reader; `reconnects` counts the reconnects, during which
    missed notices are not counted. Nothing is read ahead, so that the daemon can detect a slow reader.
    """

    def __init__(
        self,
        socket_path: Path,
        patterns: tuple[str, ...],
        *,
        timeout_s: float,
        reconnect: bool,
        on_status: Callable[[str], None] | None,
        registry: "set[NoticeStream]",
    ) -> None:
        self.patterns = patterns
        self.dropped = 0
        self.reconnects = 0
        self._path = socket_path
        self._timeout_s = timeout_s
        self._reconnect = reconnect
        self._on_status = on_status or (lambda _: None)
        self._registry = registry
        self._pending: deque[Notice] = deque()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._subscribe()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Notice:
        while not self._closed:
            if self._pending:
                return self._pending.popleft()
            if self._streams is None:
                await self._subscribe()
                continue
            try:
                line = await self._streams[0].readline()
            except (OSError, ValueError):
                line = b""
            if line:
                self._take(decode_line(line))
            elif not self._closed:
                await self._subscribe_again()
        raise StopAsyncIteration

    async def close(self) -> None:
        """End the subscription; iteration ends."""
        self._closed = True
        self._registry.discard(self)
        await self._disconnect()

    async def _disconnect(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            await close_writer(streams[1])

    def _take(self, message: Answer | Notice | Dropped) -> None:
        if isinstance(message, Notice):
            self._pending.append(message)
        elif isinstance(message, Dropped):
            self.dropped += message.notices
            self._on_status(f"{message.notices} notices dropped: this reader is too slow ({self.dropped} in all)")

    async def _subscribe(self) -> None:
        try:
            reader, writer = await open_streams(self._path)
        except OSError as error:
            raise unreachable(self._path, error) from error
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._confirm(reader, writer)
        except TimeoutError:
            await close_writer(writer)
            raise TimedOut(f"message:subscribe did not answer within {self._timeout_s:g} s") from None
        except BaseException:
            writer.close()
            raise
        self._streams = (reader, writer)
        self._registry.add(self)

    async def _confirm(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send the subscription and wait until it is active. Notices may arrive before the answer; they are kept."""
        writer.write(
            encode_request(
                "message:subscribe", {"patterns": list(self.patterns)}, request_id=0, timeout_s=self._timeout_s
            )
        )
        while line := await reader.readline():
            message = decode_line(line)
            if isinstance(message, Answer):
                message.unwrap()
                return
            self._take(message)
        raise ConnectionLost("the daemon closed the connection while subscribing", hint="ksi status")

    async def _subscribe_again(self) -> None:
        await self._disconnect()
        if not self._reconnect:
            raise ConnectionLost("the connection for notices ended", hint="ksi status")
        self._on_status("connection lost, waiting for the daemon")
        attempt = 0
        while not self._closed:
            try:
                await self._subscribe()
            except KsiError as error:
                if not _is_temporary(error):
                    raise
                await asyncio.sleep(backoff_s(attempt))
                attempt += 1
            else:
                self.reconnects += 1
                self._on_status("connected again; notices in between are missed")
                return


def _is_temporary(error: KsiError) -> bool:
    """Whether a retry can help: the daemon is stopped or starting, as opposed to refusing the subscription."""
    return error.code in {
        "unreachable",
        "unavailable",
        "circuit_open",
        "audit_unavailable",
        "timed_out",
        "too_many",
        "cancelled",
    }
