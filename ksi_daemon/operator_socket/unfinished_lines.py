"""Bounds what all connections of the socket together have sent of lines that are not finished.

One line has a limit of its own; without a sum, some hundred clients that never finish theirs would fill the memory.
"""

from typing import Any, Protocol

ALL_UNFINISHED_LIMIT_BYTES = 64_000_000


class Sender(Protocol):
    """A connection whose client has begun a line."""

    def disconnect(self) -> None: ...


class UnfinishedLines:
    """The connections with an unfinished line, those that began first in front, and how much each has sent of it."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._bytes: dict[Sender, int] = {}
        self._total_bytes = 0

    def received(self, sender: Sender, size_bytes: int, *, new_line: bool) -> None:
        """So much of a line waits for its end. Disconnects whoever began first when all together have sent too much."""
        known = self._bytes.pop(sender, 0) if new_line or not size_bytes else self._bytes.get(sender, 0)
        if size_bytes:
            self._bytes[sender] = size_bytes
        self._total_bytes += size_bytes - known
        while self._total_bytes > ALL_UNFINISHED_LIMIT_BYTES:
            first = next(iter(self._bytes))
            unfinished_bytes = self._bytes[first]
            self.forget(first)
            self._log.warning(
                "a client that does not finish its line was disconnected", unfinished_bytes=unfinished_bytes
            )
            first.disconnect()

    def forget(self, sender: Sender) -> None:
        """The connection is gone."""
        self._total_bytes -= self._bytes.pop(sender, 0)
