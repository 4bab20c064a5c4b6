"""Long-lived tasks that must not end unnoticed: a failure is logged and raised as an alarm, and the work is started again.

The pause before each start grows, so that work which fails at once costs little. Work of limited length is left to task groups.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from ksi_daemon.logs.failures import described

PAUSES_S = (0.1, 1.0, 5.0, 30.0)
HEALTHY_AFTER_S = 60.0  # of running: then the alarm ends and the pauses begin anew

Work = Callable[[], Awaitable[None]]


class Supervisor:
    """Runs each piece of work in a task of its own, until the scope around it is left."""

    def __init__(
        self,
        log: Any,
        *,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_failure: Callable[[str, BaseException], None] = lambda name, error: None,
    ) -> None:
        self.waiting: set[str] = set()  # the names of work that has failed and is to be started again
        self._log = log
        self._clock = clock or asyncio.get_running_loop().time
        self._sleep = sleep
        self._on_failure = on_failure
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: dict[str, tuple[float, str]] = {}  # by name: when it last failed, and how

    def start(self, name: str, work: Work) -> None:
        """Run some work for as long as the scope lasts; it is not expected to return."""
        task = asyncio.get_running_loop().create_task(self._keep_running(name, work), name=name)
        self._tasks.add(task)

    def alarms(self) -> list[str]:
        """A sentence for each piece of work that failed lately."""
        return [f"{name} failed and was started again: {reason}" for name, reason in self.failing().items()]

    def failing(self) -> dict[str, str]:
        """The last failure of each piece of work that failed lately, by its name."""
        now = self._clock()
        return {
            name: reason for name, (failed_at, reason) in self._failures.items() if now - failed_at < HEALTHY_AFTER_S
        }

    def cancel(self) -> None:
        """Cancel all work, once: a second time would cut short how it ends."""
        if not self._stopping:
            self._stopping = True
            for task in self._tasks:
                task.cancel()

    async def stop(self) -> None:
        """Cancel all work and wait until it has ended."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # each has logged its own failure

    async def _keep_running(self, name: str, work: Work) -> None:
        error: BaseException
        pauses, pause_s = iter(PAUSES_S), PAUSES_S[0]
        while True:
            started = self._clock()
            try:
                await work()
            except GeneratorExit:
                raise
            except BaseException as raised:
                error = raised
                if self._stopping:
                    if not isinstance(raised, asyncio.CancelledError):
                        self._log.error("long-lived work failed as it was stopped", work=name, exc_info=raised)
                    raise
            else:
                if self._stopping:
                    return
                error = RuntimeError("it returned")
            if self._clock() - started >= HEALTHY_AFTER_S:
                pauses = iter(PAUSES_S)
            pause_s = next(pauses, pause_s)
            self._failures[name] = (self._clock(), described(error))
            self._on_failure(name, error)
            self._log.error("long-lived work failed", work=name, again_in_s=pause_s, exc_info=error)
            self.waiting.add(name)
            await self._sleep(pause_s)
            self.waiting.discard(name)


@asynccontextmanager
async def supervising(log: Any) -> AsyncIterator[Supervisor]:
    """A supervisor whose work ends with this scope."""
    supervisor = Supervisor(log)
    try:
        yield supervisor
    finally:
        await supervisor.stop()
