"""What the router keeps of each event: its handler, the plugin that owns it, its counters, and the bounds every call is held to."""

import asyncio

import msgspec

from ksi_daemon.gate.breaker import Breaker
from ksi_daemon.handler import Handler
from ksi_daemon.logs.failures import Failures
from ksi_daemon.logs.journal import EventCounts
from ksi_daemon.plugin import Home


class Limits(msgspec.Struct):
    """The bounds every call is held to; changed in place when settings are reloaded."""

    call_timeout_s: float = 30.0
    result_bytes: int = 1_000_000
    expose_error_details: bool = False


class Owner:
    """A running plugin as the router sees it: its home, and how many of its calls are under way."""

    __slots__ = ("_idle", "failures", "home", "in_flight")

    def __init__(self, home: Home, failures: Failures | None = None) -> None:
        self.home = home
        self.failures = Failures() if failures is None else failures
        self.in_flight = 0
        self._idle: asyncio.Event | None = None  # made at the first wait: most plugins are never waited for

    def end_call(self) -> None:
        """One call less; the last one wakes `idle`."""
        self.in_flight -= 1
        if self._idle is not None and self.in_flight == 0:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until no call is under way."""
        self._idle = self._idle or asyncio.Event()
        while self.in_flight:
            self._idle.clear()
            await self._idle.wait()


class Route:
    """An event's handler, its owner, its counters, and the breaker of the plugin behind it (the daemon's own have none)."""

    __slots__ = ("breaker", "counts", "handler", "owner")

    def __init__(self, handler: Handler, owner: Owner, counts: EventCounts, breaker: Breaker | None = None) -> None:
        self.handler = handler
        self.owner = owner
        self.counts = counts
        self.breaker = breaker
