"""Parses times as people write them: an ISO time, or a number of seconds ago."""

import time
from datetime import UTC, datetime

from ksi_daemon.errors import Invalid

Moment = float | str
FURTHEST_S = 1e11


def moment(name: str, value: Moment | None) -> float | None:
    """Seconds since the epoch. A time without a zone is UTC."""
    if value is None:
        return None
    if isinstance(value, int | float):
        if abs(value) > FURTHEST_S:
            raise Invalid(f"{name} is too far in the past or future: {value:g} s")
        return time.time() - value
    try:
        parsed = datetime.fromisoformat(value)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise Invalid(f"{name} is neither an ISO time nor a number of seconds: {value[:60]!r}") from error
