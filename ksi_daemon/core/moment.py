"""Moments as people write them: an ISO time, or a number of seconds ago."""

import time
from datetime import UTC, datetime

from ksi_daemon.errors import Invalid

Moment = float | str
FURTHEST_S = 1e11


def moment(name: str, said: Moment | None) -> float | None:
    """Seconds since the epoch. A time without a zone is UTC."""
    if said is None:
        return None
    if isinstance(said, int | float):
        if abs(said) > FURTHEST_S:
            raise Invalid(f"{name} lies too far away: {said:g} s")
        return time.time() - said
    try:
        parsed = datetime.fromisoformat(said)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise Invalid(f"{name} is neither an ISO time nor a number of seconds: {said[:60]!r}") from error
