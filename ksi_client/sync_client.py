"""The blocking client, on a plain socket and the standard library only: what `ksi send` uses to start fast.

For one thread at a time, with one request in flight. For concurrent requests use `ksi_client.client`.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ksi_client.errors import ConnectionLost, TimedOut, Unreachable, unreachable
from ksi_client.line_socket import LineSocket
from ksi_client.paths import socket_file
from ksi_client.protocol import GRACE_S, Answer, Dropped, backoff_s, decode_line, encode_request

if TYPE_CHECKING:
    from ksi_client.notice import Notice

RECONNECT_LIMIT_S = 10.0


class SyncClient:
    """A connection to the daemon that opens on first use and reopens after a restart.

    with SyncClient() as ksi:
        ksi.send("system:echo", {"text": "hello"})
    """

    def __init__(self, socket_path: str | Path | None = None, *, timeout_s: float = 30, reconnect: bool = True) -> None:
        self.socket_path = Path(socket_path) if socket_path else socket_file()
        self.timeout_s = timeout_s
        self.reconnect = reconnect
        self._line: LineSocket | None = None
        self._was_connected = False
        self._ids = count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. A later `send` opens a new one."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def send(
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

        A request that the daemon cannot have read whole is sent again after a reconnect. One that was sent and not
        answered raises ConnectionLost: it may have run.

        `as_agent` makes the operator impersonate an agent, `token` makes the call on behalf of the token's agent.
        """
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + wait_s + GRACE_S
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
        try:
            line = self._send_line(request, deadline)
            while True:
                message = decode_line(line.read(deadline))
                if isinstance(message, Answer) and message.id in (request_id, None):
                    return message.unwrap()
        except TimeoutError:
            self.close()  # the late answer must not be taken for the next one
            raise TimedOut(f"{event} did not answer within {wait_s:g} s", hint="try a longer timeout") from None
        except OSError as error:
            self.close()
            raise ConnectionLost(
                f"the connection ended before {event} was answered; it may have run", hint="ksi status"
            ) from error

    def subscribe(self, *patterns: str, on_status: Callable[[str], None] | None = None) -> "SyncNotices":
        """The notices that match the patterns, as they happen, on a separate connection. Subscribed when this returns.

        `on_status` receives status messages for people: notices dropped, connection lost, connected again.
        """
        return SyncNotices(self, patterns or ("*",), on_status or (lambda _: None))

    def connect(self, deadline: float, *, retry_s: float = 0) -> LineSocket:
        """A new connection. Retries with growing pauses for up to `retry_s`."""
        retry_until = min(deadline, time.monotonic() + retry_s)
        for attempt in count():
            try:
                return LineSocket(self.socket_path)
            except OSError as error:
                pause_s = backoff_s(attempt)
                if time.monotonic() + pause_s > retry_until:
                    raise unreachable(self.socket_path, error) from error
                time.sleep(pause_s)
        raise AssertionError("unreachable")

    def _send_line(self, request: bytes, deadline: float) -> LineSocket:
        """Write the whole request; returns the connection it was written to.

        The newline comes last: when writing fails, the daemon has not received the whole line and cannot have run it,
        so sending it again is safe.
        """
        while True:
            if self._line is None or self._line.ended():
                self.close()
                retry_s = RECONNECT_LIMIT_S if self._was_connected and self.reconnect else 0
                self._line = self.connect(deadline, retry_s=retry_s)
                self._was_connected = True
            try:
                self._line.write(request, deadline)
                return self._line
            except TimeoutError:
                raise
            except OSError:
                self.close()
                if not self.reconnect:
                    raise


class SyncNotices:
    """An endless iterator of notices; `dropped` counts those missed, `reconnects` the gaps. Close it when done."""

    def __init__(self, client: SyncClient, patterns: tuple[str, ...], on_status: Callable[[str], None]) -> None:
        self.patterns = patterns
        self.dropped = 0
        self.reconnects = 0
        self._client = client
        self._on_status = on_status
        self._pending: list[Notice] = []
        self._line = self._subscribed(retry_s=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the subscription."""
        self._line.close()

    def __iter__(self) -> "Iterator[Notice]":
        while True:
            while self._pending:
                yield self._pending.pop(0)
            try:
                message = decode_line(self._line.read(None))
            except OSError:
                self._resubscribe()
                continue
            self._take(message)

    def _take(self, message: "Answer | Notice | Dropped") -> None:
        if isinstance(message, Dropped):
            self.dropped += message.notices
            self._on_status(f"{message.notices} notices dropped: this reader is too slow ({self.dropped} in all)")
        elif not isinstance(message, Answer):
            self._pending.append(message)

    def _resubscribe(self) -> None:
        """Subscribe again after the connection ended. Notices sent in between are missed, which is reported."""
        self._line.close()
        if not self._client.reconnect:
            raise ConnectionLost("the connection for notices ended", hint="ksi status")
        self._on_status("connection lost, waiting for the daemon")
        self._line = self._subscribed(retry_s=float("inf"))
        self.reconnects += 1
        self._on_status("connected again; notices in between are missed")

    def _subscribed(self, *, retry_s: float) -> LineSocket:
        request = encode_request(
            "message:subscribe", {"patterns": list(self.patterns)}, request_id=0, timeout_s=self._client.timeout_s
        )
        while True:
            line = self._client.connect(float("inf"), retry_s=retry_s)
            deadline = time.monotonic() + self._client.timeout_s + GRACE_S
            try:
                line.write(request, deadline)
                while True:
                    message = decode_line(line.read(deadline))
                    if isinstance(message, Answer):
                        message.unwrap()
                        return line
                    self._take(message)
            except OSError as error:
                line.close()
                if not retry_s:
                    raise Unreachable("the daemon ended the connection while subscribing", hint="ksi status") from error
                time.sleep(backoff_s(3))
            except BaseException:
                line.close()
                raise
