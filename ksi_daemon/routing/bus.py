"""Delivery of notices: patterns, one bounded mailbox per stream, and counts of what was dropped.

Delivering never waits: a full mailbox drops the new notice and counts it, so that a slow, failing or looping subscriber hurts only
itself. All mailboxes together are bounded too; when that is used up, those in which most waits lose it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from ksi_daemon.errors import Invalid
from ksi_daemon.identifiers import PATTERN, matches
from ksi_daemon.notice import Notice

PATTERNS_LIMIT = 100
WAITING_LIMIT_BYTES = 8_000_000  # per mailbox
ALL_WAITING_LIMIT_BYTES = 64_000_000  # of all mailboxes; a notice that waits in several counts once, as in memory
NOTICE_BYTES = 700  # what a notice takes besides its data
ROUTES_KEPT = 10_000


Permits = Callable[[str], bool]  # whether a notice of this name may reach a subscriber, asked about each one


class Subscriber(msgspec.Struct):
    """One principal's subscription on a mailbox. Without `permits` it may receive everything."""

    name: str
    patterns: set[str]
    permits: Permits | None = None


class Mailbox:
    """Waiting notices of one stream. Several principals may subscribe on it, each within its own rights."""

    __slots__ = ("_bus", "_limit", "_waiter", "delivered", "dropped", "name", "subscribers", "waiting", "waiting_bytes")

    def __init__(self, bus: "Bus", name: str, limit: int) -> None:
        self.name = name
        self.subscribers: dict[str, Subscriber] = {}
        self.waiting: deque[Notice] = deque()
        self.waiting_bytes = 0
        self.delivered = 0
        self.dropped = 0
        self._bus = bus
        self._limit = limit
        self._waiter: asyncio.Future[None] | None = None

    @property
    def patterns(self) -> set[str]:
        """The patterns of all subscribers."""
        return {pattern for subscriber in self.subscribers.values() for pattern in subscriber.patterns}

    def patterns_of(self, name: str) -> set[str]:
        """The patterns of one subscriber."""
        subscriber = self.subscribers.get(name)
        return set() if subscriber is None else set(subscriber.patterns)

    def subscribe(self, patterns: Iterable[str], *, name: str = "", permits: Permits | None = None) -> None:
        """Receive notices of these patterns too, on behalf of the subscriber `name`."""
        wanted = set(patterns)
        bad = sorted(pattern for pattern in wanted if not PATTERN.fullmatch(pattern))
        if bad:
            raise Invalid(f"{bad[0][:80]!r} is not a valid pattern", hint="use a notice's name, namespace:* or *")
        if len(self.patterns | wanted) > PATTERNS_LIMIT:
            raise Invalid(
                f"a subscriber may have at most {PATTERNS_LIMIT} patterns", hint="use namespace:* or * instead"
            )
        known = self.patterns_of(name)
        self.subscribers[name] = Subscriber(name, known | wanted, permits)
        self._bus.forget_routes()

    def unsubscribe(self, patterns: Iterable[str], *, name: str = "") -> None:
        """Receive no more notices of these patterns on behalf of the subscriber `name`."""
        subscriber = self.subscribers.get(name)
        if subscriber is not None:
            subscriber.patterns -= set(patterns)
            if not subscriber.patterns:
                del self.subscribers[name]
        self._bus.forget_routes()

    def put(self, notice: Notice) -> bool:
        """Add a notice; False when the mailbox is full and the notice was dropped."""
        if (
            len(self.waiting) >= self._limit
            or self.waiting_bytes + notice.size > WAITING_LIMIT_BYTES
            or not self._bus.has_room(notice, self)
        ):
            self.dropped += 1
            self._bus.dropped += 1
            return False
        self._bus.keep(notice)
        self.waiting.append(notice)
        self.waiting_bytes += notice.size
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        return True

    async def filled(self) -> None:
        """Wait until a notice waits here."""
        while not self.waiting:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def take(self) -> Notice:
        """The oldest notice, waiting for one if there is none."""
        await self.filled()
        notice = self.waiting.popleft()
        self._bus.release(notice)
        self.waiting_bytes -= notice.size
        self.delivered += 1
        return notice

    def drop_waiting(self) -> None:
        """Drop and count everything that waits."""
        self.dropped += len(self.waiting)
        self._bus.dropped += len(self.waiting)
        for notice in self.waiting:
            self._bus.release(notice)
        self.waiting.clear()
        self.waiting_bytes = 0

    def close(self) -> None:
        """Receive nothing more; what still waits is dropped and counted."""
        self.drop_waiting()
        self._bus.remove(self)


class Bus:
    """All mailboxes, and which of them receive what."""

    def __init__(self, inbox_limit: int) -> None:
        self.dropped = 0
        self.waiting_bytes = 0  # in all mailboxes
        self._inbox_limit = inbox_limit
        self._waiting_in: dict[int, int] = {}  # by the identity of a waiting notice: in how many mailboxes it waits
        self._mailboxes: dict[str, Mailbox] = {}
        self._routes: dict[str, tuple[_Receiver, ...]] = {}

    def open(self, name: str) -> Mailbox:
        """A mailbox without subscribers."""
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
        """Put a notice into every mailbox that receives it; returns how many do, and how many of those were full."""
        route = self._routes.get(notice.event)
        if route is None:
            route = self._routes[notice.event] = self._route(notice.event)
        receiving = [
            mailbox
            for mailbox, permits in route
            if permits is None or any(permitted(notice.event) for permitted in permits)
        ]
        kept = sum([mailbox.put(notice) for mailbox in receiving])
        return len(receiving), len(receiving) - kept

    def has_room(self, notice: Notice, mailbox: Mailbox) -> bool:
        """Whether one more notice may wait in a mailbox. If not, the mailboxes in which more waits than in this one lose it."""
        if id(notice) in self._waiting_in:
            return True
        wanted = ALL_WAITING_LIMIT_BYTES - notice.size - NOTICE_BYTES
        while self.waiting_bytes > wanted:
            fullest = max(self._mailboxes.values(), key=lambda each: each.waiting_bytes)
            if fullest.waiting_bytes <= mailbox.waiting_bytes:
                return False
            fullest.drop_waiting()
        return True

    def keep(self, notice: Notice) -> None:
        """A notice waits in one more mailbox."""
        count = self._waiting_in.get(id(notice), 0)
        self._waiting_in[id(notice)] = count + 1
        if count == 0:
            self.waiting_bytes += notice.size + NOTICE_BYTES

    def release(self, notice: Notice) -> None:
        """A notice waits in one mailbox less."""
        count = self._waiting_in[id(notice)] - 1
        if count:
            self._waiting_in[id(notice)] = count
        else:
            del self._waiting_in[id(notice)]
            self.waiting_bytes -= notice.size + NOTICE_BYTES

    def remove(self, mailbox: Mailbox) -> None:
        """Used by `Mailbox.close`."""
        if self._mailboxes.get(mailbox.name) is mailbox:
            del self._mailboxes[mailbox.name]
            self.forget_routes()

    def forget_routes(self) -> None:
        """Patterns changed: work out again which mailboxes receive what."""
        self._routes.clear()

    def _route(self, event: str) -> "tuple[_Receiver, ...]":
        if len(self._routes) > ROUTES_KEPT:
            self._routes.clear()
        receivers: list[_Receiver] = []
        for mailbox in self._mailboxes.values():
            asked = [
                subscriber.permits
                for subscriber in mailbox.subscribers.values()
                if any(matches(pattern, event) for pattern in subscriber.patterns)
            ]
            if asked:
                limited = tuple(permits for permits in asked if permits is not None)
                receivers.append((mailbox, limited if len(limited) == len(asked) else None))
        return tuple(receivers)


_Receiver = tuple[Mailbox, tuple[Permits, ...] | None]  # None: no permission needs to be asked
