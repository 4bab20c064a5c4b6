"""Notices on their way: patterns, one bounded mailbox per subscriber, and honest counts of what did not fit.

Delivering never waits: a mailbox that is full drops the newcomer and counts it, so that a slow, failing or looping subscriber
hurts only itself. What a subscriber does with its notices is its own business.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from ksi_daemon.errors import Invalid
from ksi_daemon.identifiers import PATTERN, matches
from ksi_daemon.notice import Notice

PATTERNS_LIMIT = 100
WAITING_LIMIT_BYTES = 8_000_000  # per mailbox


class Mailbox:
    """One subscriber's waiting notices."""

    __slots__ = (
        "_bus",
        "_limit",
        "_waiter",
        "delivered",
        "dropped",
        "name",
        "patterns",
        "permits",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, bus: "Bus", name: str, limit: int) -> None:
        self.name = name
        self.patterns: set[str] = set()
        self.permits: Callable[[str], bool] | None = (
            None  # asked about each notice, for subscribers with limited rights
        )
        self.waiting: deque[Notice] = deque()
        self.waiting_bytes = 0
        self.delivered = 0
        self.dropped = 0
        self._bus = bus
        self._limit = limit
        self._waiter: asyncio.Future[None] | None = None

    def subscribe(self, patterns: Iterable[str]) -> None:
        """Hear these patterns too."""
        wanted = set(patterns)
        bad = sorted(pattern for pattern in wanted if not PATTERN.fullmatch(pattern))
        if bad:
            raise Invalid(f"{bad[0][:80]!r} is no pattern", hint="use a notice's name, namespace:* or *")
        if len(self.patterns | wanted) > PATTERNS_LIMIT:
            raise Invalid(
                f"a subscriber may have at most {PATTERNS_LIMIT} patterns", hint="use namespace:* or * instead"
            )
        self.patterns |= wanted
        self._bus.forget_routes()

    def unsubscribe(self, patterns: Iterable[str]) -> None:
        """Hear these patterns no more."""
        self.patterns -= set(patterns)
        self._bus.forget_routes()

    def put(self, notice: Notice) -> bool:
        """Leave a notice; False when the mailbox is full and the notice was dropped."""
        if len(self.waiting) >= self._limit or self.waiting_bytes + notice.size > WAITING_LIMIT_BYTES:
            self.dropped += 1
            self._bus.dropped += 1
            return False
        self.waiting.append(notice)
        self.waiting_bytes += notice.size
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        return True

    async def take(self) -> Notice:
        """The oldest notice, waiting for one if there is none."""
        while not self.waiting:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        notice = self.waiting.popleft()
        self.waiting_bytes -= notice.size
        self.delivered += 1
        return notice

    def close(self) -> None:
        """Stop hearing; what still waits is dropped and counted."""
        self.dropped += len(self.waiting)
        self._bus.dropped += len(self.waiting)
        self.waiting.clear()
        self.waiting_bytes = 0
        self._bus.remove(self)


class Bus:
    """All mailboxes, and who hears what."""

    def __init__(self, inbox_limit: int) -> None:
        self.dropped = 0
        self._inbox_limit = inbox_limit
        self._mailboxes: dict[str, Mailbox] = {}
        self._routes: dict[str, tuple[Mailbox, ...]] = {}

    def open(self, name: str) -> Mailbox:
        """A mailbox that hears nothing yet."""
        if name in self._mailboxes:
            raise ValueError(f"the mailbox {name!r} is already open")
        mailbox = self._mailboxes[name] = Mailbox(self, name, self._inbox_limit)
        return mailbox

    def mailbox(self, name: str) -> Mailbox | None:
        """An open mailbox by its name."""
        return self._mailboxes.get(name)

    def mailboxes(self) -> list[Mailbox]:
        """All open ones."""
        return list(self._mailboxes.values())

    def deliver(self, notice: Notice) -> tuple[int, int]:
        """Leave a notice with everyone who hears it; returns how many did, and how many were too full."""
        route = self._routes.get(notice.event)
        if route is None:
            route = self._routes[notice.event] = self._route(notice.event)
        hearing = [box for box in route if box.permits is None or box.permits(notice.event)]
        kept = sum([mailbox.put(notice) for mailbox in hearing])
        return len(hearing), len(hearing) - kept

    def remove(self, mailbox: Mailbox) -> None:
        """Used by `Mailbox.close`."""
        if self._mailboxes.get(mailbox.name) is mailbox:
            del self._mailboxes[mailbox.name]
            self.forget_routes()

    def forget_routes(self) -> None:
        """Patterns changed: work out anew who hears what."""
        self._routes.clear()

    def _route(self, event: str) -> tuple[Mailbox, ...]:
        if len(self._routes) > 10_000:
            self._routes.clear()
        return tuple(
            box for box in self._mailboxes.values() if any(matches(pattern, event) for pattern in box.patterns)
        )
