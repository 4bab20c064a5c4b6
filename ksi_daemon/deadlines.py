"""Deadlines for everything that runs: one sweep cancels what is overdue, instead of one timer per call.

A timer costs several times what a small call does. The sweep is coarse (50 ms) and stubborn: a handler that swallows its
cancellation is cancelled again at the next sweep.
"""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ksi_daemon.errors import TimedOut

SWEEP_S = 0.05


class Deadlines:
    """The running deadlines of one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.running: set[Deadline] = set()

    def within(self, limit_s: float) -> "Deadline":
        """A scope that is cancelled when `limit_s` have passed from now."""
        return Deadline(self, self.clock(), limit_s)

    def sweep(self) -> None:
        """Cancel what is overdue."""
        now = self.clock()
        for deadline in [deadline for deadline in self.running if now >= deadline.at]:
            deadline.expire()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sweep()


class Deadline:
    """One scope. Leaving it by its own cancellation raises `TimedOut`; any other exception passes through."""

    __slots__ = ("_cancellations", "_deadlines", "_task", "at", "expired", "limit_s")

    def __init__(self, deadlines: Deadlines, from_s: float, limit_s: float) -> None:
        self.limit_s = limit_s
        self.at = from_s + limit_s
        self.expired = False
        self._deadlines = deadlines
        self._cancellations = 0

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline needs a task to cancel")
        self._task = task
        self._deadlines.running.add(self)
        return self

    def expire(self) -> None:
        """Cancel the task inside the scope (again, if it did not listen)."""
        self.expired = True
        self._cancellations += 1
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deadlines.running.discard(self)
        if not self.expired:
            return
        for _ in range(self._cancellations):
            left = self._task.uncancel()
        if left == 0 and kind is asyncio.CancelledError:
            raise TimedOut(
                f"no answer within {self.limit_s:g} s", hint="try again; if it stays slow, ask for less at once"
            )
