"""Deadlines for everything that runs: one sweep cancels what is overdue, instead of one timer per call.

A timer costs several times what a small call does. The sweep is coarse (50 ms) and repeats: a handler that swallows its
cancellation is cancelled again at the next sweep. After a second of that it counts as uncancellable, and `on_uncancellable` is
called once, so that whoever waits for the scope can go on without it.
"""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import msgspec

from ksi_daemon.errors import TimedOut

SWEEP_S = 0.05
CANCELLATIONS_LIMIT = 20  # of one scope; after that it is left to itself


class Deadlines:
    """The running deadlines of one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.running: set[Deadline] = set()
        self.uncancellable = 0  # scopes under way that ignored every cancellation
        self.loop: asyncio.AbstractEventLoop | None = None  # once known, finding the current task is cheaper

    def within(self, limit_s: float, on_uncancellable: Callable[[], None] | None = None) -> "Deadline":
        """A scope that is cancelled when `limit_s` have passed from now."""
        return Deadline(self, self.clock() + limit_s, limit_s, on_uncancellable)

    def sweep(self) -> None:
        """Cancel what is overdue."""
        now = self.clock()
        for deadline in [deadline for deadline in self.running if now >= deadline.at]:
            deadline.expire()

    async def run(self) -> None:
        """Sweep until cancelled."""
        self.loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sweep()


class Deadline(msgspec.Struct, eq=False, gc=False):
    """One scope. Leaving it by its own cancellation raises `TimedOut`; any other exception passes through."""

    deadlines: Deadlines
    at: float
    limit_s: float
    on_uncancellable: Callable[[], None] | None = None
    task: asyncio.Task[Any] | None = None
    cancellations: int = 0

    def __enter__(self) -> Self:
        self.task = asyncio.current_task(self.deadlines.loop)
        self.deadlines.running.add(self)
        return self

    def expire(self) -> None:
        """Cancel the task inside the scope (again, if it ignored that)."""
        if self.task is None or self.cancellations > CANCELLATIONS_LIMIT:
            return
        self.cancellations += 1
        if self.cancellations <= CANCELLATIONS_LIMIT:
            self.task.cancel()
            return
        self.deadlines.uncancellable += 1
        if self.on_uncancellable is not None:
            self.on_uncancellable()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.deadlines.running.discard(self)
        if self.cancellations and self._uncancel() == 0 and kind is asyncio.CancelledError:
            raise TimedOut(
                f"no answer within {self.limit_s:g} s", hint="try again; if it stays slow, ask for less at once"
            )

    def _uncancel(self) -> int:
        """Take our own cancellations back; what is left came from elsewhere."""
        left = 0
        if self.cancellations > CANCELLATIONS_LIMIT:
            self.deadlines.uncancellable -= 1
        for _ in range(min(self.cancellations, CANCELLATIONS_LIMIT)):
            left = self.task.uncancel() if self.task is not None else 0
        return left
