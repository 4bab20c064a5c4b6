"""Watches the event loop from a thread: measures its lag, logs what blocks it, and interrupts a handler that does not yield.

Python cannot stop code that blocks the loop, except by a signal: its handler runs in the blocked thread, sees the stack it
interrupts, and raises only when that stack is inside a plugin's code.
"""

import asyncio
import signal
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import CodeType, FrameType
from typing import Any

BEAT_S = 0.25
BLOCKED_S = 5.0
JOIN_LIMIT_S = 1.0  # it ends at once: it only waits for the event that is set here


class LoopBlocked(BaseException):
    """A handler blocked the event loop too long and was interrupted."""


class Watchdog:
    """The loop's heartbeat and the thread that checks it. `guarded` is the code whose callees may be interrupted."""

    def __init__(self, guarded: frozenset[CodeType], log: Any) -> None:
        self.lag_s = 0.0
        self.interruptions = 0
        self._guarded = guarded
        self._log = log
        self._beat = time.monotonic()
        self._over = threading.Event()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch the running loop, which must be the main thread's."""
        loop_thread = threading.get_ident()
        previous = signal.signal(signal.SIGUSR2, self._interrupt)
        thread = threading.Thread(target=self._watch, args=(loop_thread,), name="watchdog", daemon=True)
        beating = asyncio.create_task(self._keep_beating(), name="heartbeat")
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            # Not before the thread has ended: without our handler a last signal of its would end the process.
            thread.join(JOIN_LIMIT_S)
            beating.cancel()
            signal.signal(signal.SIGUSR2, previous)

    async def _keep_beating(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(BEAT_S)
            lag = max(0.0, time.monotonic() - self._beat - BEAT_S)
            self.lag_s = max(lag, self.lag_s * 0.8)

    def _watch(self, loop_thread: int) -> None:
        while not self._over.wait(BEAT_S):
            silent_s = time.monotonic() - self._beat
            if silent_s < BLOCKED_S:
                continue
            frame = sys._current_frames().get(loop_thread)
            stack = "".join(traceback.format_stack(frame)[-6:]) if frame else ""
            self._log.error("the event loop is blocked", silent_s=round(silent_s, 1), stack=stack)
            signal.pthread_kill(loop_thread, signal.SIGUSR2)
            self._over.wait(1.0)

    def _interrupt(self, _signal: int, frame: FrameType | None) -> None:
        if time.monotonic() - self._beat < BLOCKED_S:
            return
        while frame is not None:
            if frame.f_code in self._guarded:
                self.interruptions += 1
                raise LoopBlocked(
                    f"it blocked the event loop for over {BLOCKED_S:g} s; use in_thread or in_process for work that blocks"
                )
            frame = frame.f_back
