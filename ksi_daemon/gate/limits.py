"""How much an agent may do: a token bucket for its rate, and slots for its calls under way.

Both take the agent's limits at each use, so a changed profile counts from the next call on; without limits (None) nothing is counted.
Time is monotonic and never the wall clock.
"""

import math
import time
from collections.abc import Callable

import msgspec

from ksi_daemon.errors import TooMany

ROUNDING = 1e-9  # what adding many small refills may lose
SWEEP_FROM = 1_000  # buckets; below that it is not worth looking for idle ones


class Rate(msgspec.Struct, frozen=True):
    """An agent's limits, from its profile; None means without limit."""

    calls_per_minute: int | None = 100
    burst: int = 20
    concurrent_calls: int | None = 8


class Allowance(msgspec.Struct, frozen=True):
    """Whether a call may go ahead, what is left, and if not, when to come back."""

    allowed: bool
    remaining: float
    retry_after_s: float = 0.0

    @property
    def reset_ms(self) -> int:
        """`retry_after_s` in the unit that the librarian's specification uses (row L066)."""
        return math.ceil(self.retry_after_s * 1000)


UNLIMITED = Allowance(allowed=True, remaining=math.inf)


class _Bucket:
    __slots__ = ("at_s", "burst", "per_second", "tokens")

    def __init__(self, rate: Rate, per_second: float, at_s: float) -> None:
        self.burst = self.tokens = float(rate.burst)
        self.per_second = per_second
        self.at_s = at_s

    def refill(self, now_s: float) -> None:
        self.tokens = min(self.burst, self.tokens + max(0.0, now_s - self.at_s) * self.per_second)
        self.at_s = now_s


class Buckets:
    """One token bucket per agent, refilled continuously."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._sweep_at = SWEEP_FROM

    def __len__(self) -> int:
        return len(self._buckets)

    def check(self, agent: str, rate: Rate | None, cost: float = 1.0) -> Allowance:
        """Take the cost if it is there. A cost above the burst waits for a full bucket and is paid off afterwards."""
        if rate is None or rate.calls_per_minute is None:
            return UNLIMITED
        bucket = self._current(agent, rate, rate.calls_per_minute)
        wanted = min(cost, bucket.burst)
        if bucket.tokens >= wanted - ROUNDING:
            bucket.tokens -= cost
            return Allowance(allowed=True, remaining=max(0.0, bucket.tokens))
        return Allowance(
            allowed=False,
            remaining=max(0.0, bucket.tokens),
            retry_after_s=_rounded_up((wanted - bucket.tokens) / bucket.per_second),
        )

    def peek(self, agent: str, rate: Rate | None, cost: float = 1.0) -> Allowance:
        """What `check` would return, without taking anything: for explaining."""
        if rate is None or rate.calls_per_minute is None:
            return UNLIMITED
        if agent not in self._buckets:
            return Allowance(allowed=True, remaining=float(rate.burst))
        bucket = self._current(agent, rate, rate.calls_per_minute)
        missing = min(cost, bucket.burst) - bucket.tokens
        return Allowance(
            allowed=missing <= ROUNDING,
            remaining=max(0.0, bucket.tokens),
            retry_after_s=_rounded_up(missing / bucket.per_second) if missing > ROUNDING else 0.0,
        )

    def require(self, agent: str, rate: Rate | None, cost: float = 1.0) -> None:
        """`check`, raising `TooMany` with the time to wait."""
        self.refuse(agent, rate, self.check(agent, rate, cost))

    def refuse(self, agent: str, rate: Rate | None, allowance: Allowance) -> None:
        """Raise `TooMany` for an allowance that is used up."""
        if not allowance.allowed and rate is not None:
            raise TooMany(
                f"{agent} and its children may make {rate.calls_per_minute} calls a minute (bursts of {rate.burst})",
                retry_after_s=allowance.retry_after_s,
                hint=f"wait {allowance.retry_after_s:g} s; several things can often be asked for in one call",
            )

    def forget(self, agent: str) -> None:
        """The agent is gone."""
        self._buckets.pop(agent, None)

    def _current(self, agent: str, rate: Rate, calls_per_minute: int) -> _Bucket:
        now_s, per_second = self._clock(), calls_per_minute / 60
        bucket = self._buckets.get(agent)
        if bucket is None:
            if len(self._buckets) >= self._sweep_at:
                self._drop_idle(now_s)
            bucket = self._buckets[agent] = _Bucket(rate, per_second, now_s)
            return bucket
        bucket.refill(now_s)
        if bucket.burst != rate.burst or bucket.per_second != per_second:
            bucket.burst, bucket.per_second = float(rate.burst), per_second
            bucket.tokens = min(bucket.tokens, bucket.burst)
        return bucket

    def _drop_idle(self, now_s: float) -> None:
        """A full bucket equals a new one and can go; any other must stay, or a flood of agents would reset the counts."""
        for agent, bucket in list(self._buckets.items()):
            bucket.refill(now_s)
            if bucket.tokens >= bucket.burst - ROUNDING:
                del self._buckets[agent]
        self._sweep_at = max(SWEEP_FROM, 2 * len(self._buckets))


def _rounded_up(seconds: float) -> float:
    """To the millisecond, never to a moment at which it would still be too early."""
    return math.ceil(seconds * 1000 + 1e-6) / 1000
