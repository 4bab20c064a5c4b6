"""A notice: says what has happened, has any number of subscribers and no answer."""

import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from ksi_daemon.identifiers import new_id
from ksi_daemon.principal import DAEMON, Principal


class Notice(msgspec.Struct, frozen=True, gc=False):
    """One notice. Its data is kept encoded, so that no listener can change what the next one reads."""

    event: str
    raw: msgspec.Raw = msgspec.field(name="data")
    sender: str
    origin: str
    correlation_id: str
    parent_id: str | None = None
    depth: int = 0
    size: int = 0  # of the data, in bytes
    principal: Principal = DAEMON  # who caused it: listeners act with this principal's rights
    id: str = msgspec.field(default_factory=new_id)
    time_s: float = msgspec.field(name="at", default_factory=time.time)

    @property
    def data(self) -> Any:
        """A fresh copy of the data."""
        return msgspec.json.decode(self.raw)

    def without_data(self) -> "Notice":
        """A copy without the data, to save memory."""
        return msgspec.structs.replace(self, raw=msgspec.Raw(b"null"))

    def as_dict(self) -> dict[str, Any]:
        """For the wire: every field, the time as ISO text."""
        return {
            "id": self.id,
            "event": self.event,
            "data": self.raw,
            "at": iso_time(self.time_s),
            "sender": self.sender,
            "origin": self.origin,
            "correlation_id": self.correlation_id,
            "parent_id": self.parent_id,
            "depth": self.depth,
        }


def iso_time(time_s: float) -> str:
    """Seconds since the epoch as ISO text in UTC, to the microsecond."""
    second, microseconds = divmod(round(time_s * 1_000_000), 1_000_000)
    return f"{_second_text(second)}.{microseconds:06}Z"


def iso_time_if(time_s: float | None) -> str | None:
    """The same for an optional time."""
    return None if time_s is None else iso_time(time_s)


@lru_cache(maxsize=64)
def _second_text(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
