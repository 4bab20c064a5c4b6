"""Runs one call for a caller who may leave: the reply, the error, or the word that the handler does not end, whichever is first."""

import asyncio
from typing import Any

from ksi_daemon.errors import KsiError
from ksi_daemon.plugin import Feedback
from ksi_daemon.principal import Principal
from ksi_daemon.routing.router import Router


class Calls:
    """Calls under way, each in a task of its own: a handler that ignores its cancellation must not hold its caller."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._running: set[asyncio.Task[bytes]] = set()

    @property
    def result_limit_bytes(self) -> int:
        """How large a result may be."""
        return self._router.limits.result_bytes

    async def record_bad_request(self, principal: Principal, error: KsiError) -> None:
        """Record a call that never reaches the router."""
        await self._router.record_bad_request(principal, error)

    async def run(self, event: str, data: Any, principal: Principal, feedback: Feedback | None = None) -> bytes:
        """`router.call`. When the caller leaves, the call is cancelled; its record is finished without the caller."""
        abandoned: asyncio.Future[KsiError] = asyncio.get_running_loop().create_future()

        def abandon(error: KsiError) -> None:
            if not abandoned.done():
                abandoned.set_result(error)

        call = self._router.call(event, data, principal=principal, on_abandoned=abandon, feedback=feedback)
        task = asyncio.create_task(call, name=f"call of {event[:100]}")
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            either: set[asyncio.Future[Any]] = {task, abandoned}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            return task.result()
        raise abandoned.result()

    def _ended(self, task: asyncio.Task[bytes]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have left: whatever it was is in the audit and the log
