"""Saves each signed head in `ksi.db`. A head that cannot be saved is an alarm; the next one is tried again."""

import asyncio
from collections.abc import Awaitable, Callable

from ksi_daemon.errors import KsiError
from ksi_daemon.storage.sqlite import DatabaseError

SaveHead = Callable[[str], Awaitable[None]]


class KeptHead:
    """Takes heads from the writer's thread and saves the latest on the event loop."""

    def __init__(self, save: SaveHead, on_alarm: Callable[[str], None]) -> None:
        self.problem: str | None = None
        self._save = save
        self._on_alarm = on_alarm
        self._loop = asyncio.get_running_loop()
        self._latest: str | None = None
        self._arrived = asyncio.Event()

    def put(self, head: str) -> None:
        """Have a head saved soon. May be called on any thread."""
        self._loop.call_soon_threadsafe(self._take, head)

    def _take(self, head: str) -> None:
        self._latest = head
        self._arrived.set()

    async def run(self) -> None:
        """Save heads as they arrive, until cancelled."""
        while True:
            await self._arrived.wait()
            await self.save_latest()

    async def save_latest(self) -> None:
        """Save the latest head, if it is not saved yet."""
        head, self._latest = self._latest, None
        self._arrived.clear()
        if head is None:
            return
        try:
            await self._save(head)
        except (DatabaseError, OSError, KsiError) as error:
            problem = f"the audit's head cannot be saved in ksi.db: {error}"
            if self.problem is None:
                self._on_alarm(problem)
            self.problem = problem
        else:
            self.problem = None
