"""Bounds what clients leave unread, over all connections: the bytes that wait in the write buffers of the operator socket and of HTTP.

A reader is behind while its buffer is above its share. One that stays behind is disconnected, and so are those that have read nothing for
the longest when all together leave too much unread: memory must not grow with the number of clients that do not read.
"""

import asyncio
from typing import Any, Protocol

UNREAD_LIMIT_BYTES = 1_000_000  # of one connection; above it the connection is behind
UNREAD_LIMIT_S = 10.0  # how long a connection may be behind
ALL_UNREAD_LIMIT_BYTES = 64_000_000  # of all that are behind
SHARES_BYTES = 32_000_000  # what all that are not behind may leave unread, in equal shares
GRACE_S = 1.0  # how long a reader that is behind may read nothing while others wait for room


class Reader(Protocol):
    """A connection whose client has to read."""

    def unread_bytes(self) -> int: ...
    def set_share(self, limit_bytes: int) -> None: ...
    def disconnect(self) -> None: ...


class SlowReaders:
    """All connections that write to clients, and which of them are behind."""

    def __init__(self, log: Any) -> None:
        self.cut = 0  # connections closed because the client did not read
        self._log = log
        self._readers: set[Reader] = set()
        self._share_bytes = UNREAD_LIMIT_BYTES
        self._behind: dict[Reader, _Behind] = {}  # those that have read nothing for the longest first
        self._waiting: list[asyncio.Future[None]] = []
        self._retry: asyncio.TimerHandle | None = None

    def opened(self, reader: Reader) -> None:
        """A connection that may be behind from now on."""
        self._readers.add(reader)
        share_bytes = _share_bytes(len(self._readers))
        if share_bytes == self._share_bytes:
            reader.set_share(share_bytes)
            return
        self._share_bytes = share_bytes
        for each in list(self._readers):
            each.set_share(share_bytes)

    def closed(self, reader: Reader) -> None:
        """A connection that is gone."""
        self._readers.discard(reader)
        self.caught_up(reader)

    def fell_behind(self, reader: Reader) -> None:
        """More than its share waits to be read."""
        if reader in self._readers and reader not in self._behind:
            self._behind[reader] = _Behind(self, reader)
        self.make_room()

    def caught_up(self, reader: Reader) -> None:
        """It has read most of what waited."""
        behind = self._behind.pop(reader, None)
        if behind is not None:
            behind.timer.cancel()
            self._wake()

    def unread_bytes(self) -> int:
        """What all that are behind leave unread."""
        return sum(reader.unread_bytes() for reader in self._behind)

    def figures(self) -> dict[str, int]:
        """For monitor:get_stats."""
        return {
            "behind": len(self._behind),
            "unread_bytes": self.unread_bytes(),
            "limit_bytes": ALL_UNREAD_LIMIT_BYTES,
            "cut": self.cut,
        }

    def make_room(self) -> None:
        """Disconnect those that have read nothing for the longest until the others are within the limit."""
        too_much = self.unread_bytes() - ALL_UNREAD_LIMIT_BYTES
        if too_much > 0:
            self._note_progress()
        while too_much > 0:
            reader = next(iter(self._behind))
            too_much -= reader.unread_bytes()
            self.cut_off(reader, "all readers together left too much unread")

    async def room_for(self, size_bytes: int) -> None:
        """Wait until that much more may be left unread. Those that have read nothing for a while must go if others wait."""
        while self._behind and self.unread_bytes() + size_bytes > ALL_UNREAD_LIMIT_BYTES:
            loop = asyncio.get_running_loop()
            self._note_progress()
            oldest = next(iter(self._behind))
            left_s = self._behind[oldest].since_s + GRACE_S - loop.time()
            if left_s <= 0:
                self.cut_off(oldest, "others waited for room")
                continue
            waiting: asyncio.Future[None] = loop.create_future()
            self._waiting.append(waiting)
            if self._retry is None:
                self._retry = loop.call_later(left_s, self._wake)
            await waiting

    def cut_off(self, reader: Reader, why: str) -> None:
        """Disconnect a client that does not read, and count it."""
        self.cut += 1
        self._log.warning("a client that does not read was disconnected", unread_bytes=reader.unread_bytes(), why=why)
        self.closed(reader)
        reader.disconnect()

    def _note_progress(self) -> None:
        """Put those that have read something since the last look behind those that have not."""
        now_s = asyncio.get_running_loop().time()
        for reader, behind in list(self._behind.items()):
            unread_bytes = reader.unread_bytes()
            if unread_bytes < behind.unread_bytes:
                behind.since_s = now_s
                self._behind[reader] = self._behind.pop(reader)
            behind.unread_bytes = unread_bytes

    def _wake(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class _Behind:
    """Since when a reader that is behind has read nothing, and the timer that disconnects it."""

    __slots__ = ("since_s", "timer", "unread_bytes")

    def __init__(self, readers: SlowReaders, reader: Reader) -> None:
        loop = asyncio.get_running_loop()
        self.since_s = loop.time()
        self.unread_bytes = reader.unread_bytes()  # when it was last looked at
        self.timer = loop.call_later(UNREAD_LIMIT_S, readers.cut_off, reader, f"for {UNREAD_LIMIT_S:g} seconds")


def _share_bytes(readers: int) -> int:
    """The same for a whole range of counts, so that it changes seldom: for 33 to 64 readers 500 kB."""
    return min(UNREAD_LIMIT_BYTES, SHARES_BYTES >> max(0, readers - 1).bit_length())
