"""Circuit breakers: a backend that keeps failing is not called for a while, then tried with single calls.

Closed: calls pass, failures are counted. Open: calls are refused at once. Half open: one call at a time is let through as a probe.
Time is monotonic. What a backend is (a plugin, or something behind it) is the caller's choice of name.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from ksi_daemon.errors import CircuitOpen, KsiError

FAILURES = 5
WINDOW_S = 60.0
OPEN_S = 30.0
SUCCESSES = 3
PROBE_RETRY_S = 1.0

State = Literal["closed", "open", "half_open"]
Verdict = Literal["success", "failure", "neither"]

FAILING = frozenset({"internal", "timed_out", "unavailable"})
ANSWERED = frozenset({"not_found", "conflict"})  # the backend looked and refused: it works


def verdict(error: BaseException | None, *, caller_limited: bool = False) -> Verdict:
    """What the end of a call says about the backend. A refusal, or a caller who went away or would not wait, says nothing."""
    if error is None:
        return "success"
    if isinstance(error, KsiError):
        if caller_limited and error.code == "timed_out":
            return "neither"
        if error.code in FAILING:
            return "failure"
        return "success" if error.code in ANSWERED else "neither"
    return "neither" if isinstance(error, asyncio.CancelledError | GeneratorExit) else "failure"


class Breaker:
    """The circuit breaker of one backend. `guard` refuses a call or lets it through and counts how it ended."""

    def __init__(self, backend: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.backend = backend
        self.opened = 0  # how often, in all
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=FAILURES)
        self._opened_at_s: float | None = None
        self._successes = 0
        self._probing = False
        self._guard = Guard(self, caller_limited=False)  # while closed all calls share these two
        self._limited_guard = Guard(self, caller_limited=True)

    @property
    def state(self) -> State:
        """As of now: an open breaker becomes half open by the passing of time alone."""
        if self._opened_at_s is None:
            return "closed"
        return "open" if self._clock() - self._opened_at_s < OPEN_S else "half_open"

    @property
    def retry_after_s(self) -> float:
        """When a refused call is worth trying again; 0 when it would be let through."""
        if self._opened_at_s is None:
            return 0.0
        left_s = self._opened_at_s + OPEN_S - self._clock()
        if left_s > 0:
            return math.ceil(left_s * 1000 + 1e-6) / 1000
        return PROBE_RETRY_S if self._probing else 0.0

    @property
    def recent_failures(self) -> int:
        """Failures within the window."""
        since_s = self._clock() - WINDOW_S
        return sum(at_s > since_s for at_s in self._failures)

    def guard(self, *, caller_limited: bool = False) -> "Guard":
        """Ask to make a call; tell the guard how it ended. Raises `CircuitOpen`."""
        if self._opened_at_s is None:
            return self._limited_guard if caller_limited else self._guard
        return Guard(self, caller_limited=caller_limited, probe=self.enter())

    def as_dict(self) -> dict[str, Any]:
        """For health, statistics and explanations."""
        return {
            "backend": self.backend,
            "state": self.state,
            "recent_failures": self.recent_failures,
            "retry_after_s": self.retry_after_s,
            "opened": self.opened,
        }

    def enter(self) -> bool:
        """Ask to make a call; True when it is the probe of a half-open breaker. Raises `CircuitOpen`."""
        if self._opened_at_s is None:
            return False
        wait_s = self.retry_after_s
        if wait_s > 0:
            raise CircuitOpen(
                f"{self.backend} has failed {FAILURES} times within {WINDOW_S:g} s and is not called for now",
                retry_after_s=wait_s,
                hint=f"wait {wait_s:g} s; everything else works meanwhile",
            )
        self._probing = True
        return True

    def leave(self, probe: bool, ended: Verdict) -> None:
        """Count how a call ended. Calls made before the breaker opened change nothing after it has."""
        if probe:
            self._end_probe(ended)
        elif self._opened_at_s is None and ended == "failure":
            self._failures.append(self._clock())
            if self.recent_failures >= FAILURES:
                self._open()

    def _end_probe(self, ended: Verdict) -> None:
        self._probing = False
        if ended == "failure":
            self._open()
        elif ended == "success":
            self._successes += 1
            if self._successes >= SUCCESSES:
                self._opened_at_s = None
                self._failures.clear()

    def _open(self) -> None:
        self._opened_at_s = self._clock()
        self._successes = 0
        self.opened += 1


class Guard:
    """One call that a breaker let through. `caller_limited`: the caller set a shorter deadline than the handler has."""

    __slots__ = ("_breaker", "_caller_limited", "_probe")

    def __init__(self, breaker: Breaker, *, caller_limited: bool, probe: bool = False) -> None:
        self._breaker = breaker
        self._caller_limited = caller_limited
        self._probe = probe

    def end(self, error: BaseException | None) -> None:
        """Count how the call ended."""
        if error is not None or self._probe:
            self._breaker.leave(self._probe, verdict(error, caller_limited=self._caller_limited))


class Breakers:
    """One breaker per backend, made when first asked for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._breakers: dict[str, Breaker] = {}

    def of(self, backend: str) -> Breaker:
        """The backend's breaker."""
        breaker = self._breakers.get(backend)
        if breaker is None:
            breaker = self._breakers[backend] = Breaker(backend, self._clock)
        return breaker

    def forget(self, backend: str) -> None:
        """The backend is gone, or was replaced by a new version that starts afresh."""
        self._breakers.pop(backend, None)

    def troubled(self) -> list[Breaker]:
        """Those that are not closed."""
        return [breaker for breaker in self._breakers.values() if breaker.state != "closed"]
