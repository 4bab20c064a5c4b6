"""What a client hears of a call while it runs: its progress and the lines that it logs, if the client asked for either.

Nothing here waits for the client: what comes faster than it is sent is merged (progress) or dropped and counted (lines). Handlers may
report from any thread.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, get_args

import anyio
import msgspec

from ksi_daemon.errors import KsiError
from ksi_daemon.logs.log import encoded

INTERVAL_S = 0.1  # at least, between two deliveries
LINES_LIMIT = 100  # that wait for a delivery
LINE_LIMIT_BYTES = 8_000
LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]  # of the protocol
LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)  # rising

Progress = tuple[float, float | None, str | None]


class Client(msgspec.Struct, frozen=True):
    """What one client asked for, and how to send it. None: it did not ask."""

    send_progress: Callable[[float, float | None, str | None], Awaitable[None]] | None
    send_line: Callable[[LogLevel, Mapping[str, Any]], Awaitable[None]] | None
    level: LogLevel = "debug"  # of the lowest lines that it wants

    @property
    def listens(self) -> bool:
        """Whether it asked for anything."""
        return self.send_progress is not None or self.send_line is not None


class CallFeedback:
    """The progress and lines of one call on their way to its client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lowest = LEVELS.index(client.level)
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting = asyncio.Event()
        self._ended = asyncio.Event()
        self._progress: Progress | None = None
        self._furthest = float("-inf")
        self._lines: deque[tuple[LogLevel, Mapping[str, Any]]] = deque()
        self._dropped = 0
        self._noticed = False

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        """How far the call is. Only the latest is kept, and the protocol wants each to be further than the one before."""
        if self._client.send_progress is None or self._ended.is_set():
            return
        with self._lock:
            if done <= self._furthest:
                return
            self._furthest, self._progress = done, (done, total, message)
        self._wake()

    def log(self, level: str, line: Mapping[str, Any]) -> None:
        """A line that the handler logged, redacted already."""
        known = level if level in LEVELS else "error"
        if self._client.send_line is None or self._ended.is_set() or LEVELS.index(known) < self._lowest:
            return
        with self._lock:
            if len(self._lines) >= LINES_LIMIT:
                self._dropped += 1
            else:
                self._lines.append((known, _bounded(line)))
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            noticed, self._noticed = self._noticed, True
        if not noticed:
            self._loop.call_soon_threadsafe(self._waiting.set)

    def end(self) -> None:
        """The call is over: nothing more is taken, and `deliver` returns when all is sent."""
        self._ended.set()
        self._waiting.set()

    async def deliver(self) -> None:
        """Send what there is, now and then, until the end."""
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            ended = self._ended.is_set()
            await self._send()
            if ended:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), INTERVAL_S)

    async def _send(self) -> None:
        with self._lock:
            self._noticed = False
            progress, self._progress = self._progress, None
            lines, self._lines = self._lines, deque()
            dropped, self._dropped = self._dropped, 0
        if self._client.send_line is not None:
            for level, line in lines:
                await self._client.send_line(level, line)
            if dropped:
                text = "lines came faster than they could be sent, and these were left out"
                await self._client.send_line("warning", {"event": text, "left_out": dropped})
        if self._client.send_progress is not None and progress is not None:
            await self._client.send_progress(*progress)


@asynccontextmanager
async def feedback_to(client: Client, log: Any) -> AsyncIterator[CallFeedback | None]:
    """Feedback for the calls inside; at the end the last of it is sent, before the answer. None when the client does not listen."""
    if not client.listens:
        yield None
        return
    feedback = CallFeedback(client)
    delivery = asyncio.create_task(feedback.deliver(), name="feedback of a call")
    try:
        try:
            yield feedback
        except KsiError:  # is an answer too
            await _finish(feedback, delivery)
            raise
        await _finish(feedback, delivery)
    finally:
        feedback.end()
        delivery.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([delivery])
        if not delivery.cancelled() and (error := delivery.exception()) is not None:
            log.warning("a client could not be told how its call goes", exc_info=error)


async def _finish(feedback: CallFeedback, delivery: asyncio.Task[None]) -> None:
    feedback.end()
    await asyncio.wait([delivery])


def _bounded(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Plain data of limited size; a cut is marked."""
    text = encoded(dict(line))
    if len(text) > LINE_LIMIT_BYTES:
        return {"event": text[:LINE_LIMIT_BYTES].decode("utf-8", "ignore"), "cut_from_bytes": len(text)}
    plain: dict[str, Any] = msgspec.json.decode(text)
    return plain
