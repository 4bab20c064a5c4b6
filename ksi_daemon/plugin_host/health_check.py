"""Asks a plugin how it is. The plugin's function has little time, and one that raises or hangs is itself a failed part."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ksi_daemon.logs.failures import Failures, described
from ksi_daemon.logs.redaction import hide_shapes
from ksi_daemon.plugin import HealthFunction, HealthPart, Home

LIMIT_S = 2.0
PARTS_LIMIT = 50
REASON_LIMIT = 300  # characters


class HealthCheck:
    """Of one running plugin. Callers at the same time share one answer; while a call ignores its cancellation there is no second."""

    def __init__(self, function: HealthFunction, home: Home, failures: Failures) -> None:
        self._function = function
        self._home = home
        self._failures = failures
        self._asking: asyncio.Task[list[HealthPart]] | None = None
        self._too_late = False

    async def parts(self) -> list[HealthPart]:
        """What the plugin answers within its time, bounded and without secrets."""
        if self._asking is None or self._asking.done():
            self._too_late = False
            self._asking = asyncio.create_task(self._ask(), name=f"health of the plugin {self._home.plugin}")
        asking = self._asking
        if not self._too_late:
            await asyncio.wait({asking}, timeout=LIMIT_S)
        if asking.done() and not asking.cancelled():
            return asking.result()
        if not self._too_late:
            self._too_late = True
            self._failures.note("health", "health", TimeoutError(_LATE))
            asking.cancel()
        return [_failed(_LATE)]

    def end(self) -> None:
        """The plugin stops."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> list[HealthPart]:
        try:
            answer = await ask_health(lambda: self._function(self._home))
            parts = list(answer)
            if not all(isinstance(part, HealthPart) for part in parts):
                raise TypeError("the health function must return a list of HealthPart")
        except BaseException as error:  # an exit too: this task has nobody else to raise it to
            if isinstance(error, asyncio.CancelledError) and self._is_ending():
                raise
            self._failures.note("health", "health", error)
            return [_failed(f"it raised {described(error)}")]
        shown = [_shown(part) for part in parts[:PARTS_LIMIT]]
        if len(parts) > PARTS_LIMIT:
            shown.append(_failed(f"it returned {len(parts)} parts; {PARTS_LIMIT} are shown"))
        return shown

    def _is_ending(self) -> bool:
        return self._asking is not None and self._asking.cancelling() > 0


async def ask_health(function: Callable[[], Awaitable[Sequence[HealthPart]]]) -> Sequence[HealthPart]:
    """One call, in a function of its own: the watchdog may interrupt what it calls."""
    return await function()


_LATE = f"it did not answer within {LIMIT_S:g} s"


def _failed(reason: str) -> HealthPart:
    return HealthPart(name="health", state="failed", reason=reason[:REASON_LIMIT])


def _shown(part: HealthPart) -> HealthPart:
    reason = None if part.reason is None else hide_shapes(part.reason)[:REASON_LIMIT]
    return part.model_copy(update={"reason": reason})
