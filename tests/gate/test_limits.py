"""Token buckets: the rate, bursts, costs, refusals that say when to come back, and what is remembered."""

import math

import pytest

from ksi_daemon.errors import TooMany
from ksi_daemon.gate.limits import SWEEP_FROM, Buckets, Rate
from tests.gate.conftest import FakeClock

USUAL = Rate()  # 100 a minute, burst 20


def calls_allowed(buckets: Buckets, agent: str, offered: int, rate: Rate = USUAL) -> int:
    return sum(buckets.check(agent, rate).allowed for _ in range(offered))


def test_twenty_at_once_and_a_hundred_a_minute_after_that(clock: FakeClock) -> None:
    """L091."""
    buckets = Buckets(clock)
    assert calls_allowed(buckets, "a", 50) == 20
    allowed = 0
    for _ in range(480):
        clock.pass_s(0.125)
        allowed += calls_allowed(buckets, "a", 5)
    assert allowed == 100


def test_a_refusal_says_when_to_come_back_and_that_is_soon_enough(clock: FakeClock) -> None:
    """L066: allowed, resetMs."""
    buckets = Buckets(clock)
    calls_allowed(buckets, "a", 20)
    refused = buckets.check("a", USUAL)
    assert not refused.allowed
    assert refused.retry_after_s == pytest.approx(0.6, abs=0.002)
    assert refused.reset_ms == math.ceil(refused.retry_after_s * 1000)
    clock.pass_s(refused.retry_after_s - 0.002)
    assert not buckets.check("a", USUAL).allowed
    clock.pass_s(0.002)
    assert buckets.check("a", USUAL).allowed


def test_require_raises_too_many_with_the_wait_and_a_hint(clock: FakeClock) -> None:
    buckets = Buckets(clock)
    for _ in range(20):
        buckets.require("a", USUAL)
    with pytest.raises(TooMany) as refused:
        buckets.require("a", USUAL)
    assert refused.value.as_dict()["retry_after_s"] == pytest.approx(0.6, abs=0.002)
    assert "wait 0.60" in str(refused.value.hint)
    assert refused.value.message == "a and its children may make 100 calls a minute (bursts of 20)"


def test_refused_calls_cost_nothing_and_dear_calls_cost_more(clock: FakeClock) -> None:
    buckets = Buckets(clock)
    assert buckets.check("a", USUAL, cost=10).allowed
    assert buckets.check("a", USUAL, cost=8).allowed
    assert not buckets.check("a", USUAL, cost=10).allowed
    assert buckets.check("a", USUAL, cost=2).allowed


def test_a_cost_above_the_burst_waits_for_a_full_bucket_and_is_paid_off(clock: FakeClock) -> None:
    buckets, small = Buckets(clock), Rate(calls_per_minute=60, burst=5)
    assert buckets.check("a", small, cost=8).allowed
    refused = buckets.check("a", small)
    assert refused.retry_after_s == pytest.approx(4.0, abs=0.002)
    clock.pass_s(refused.retry_after_s)
    assert buckets.check("a", small).allowed


def test_without_a_rate_nothing_is_counted(clock: FakeClock) -> None:
    """What KSI_RATE_LIMIT=off and the profile trusted mean."""
    buckets = Buckets(clock)
    for rate in (None, Rate(calls_per_minute=None)):
        assert all(buckets.check("a", rate).allowed for _ in range(1_000))
        assert buckets.peek("a", rate).remaining == math.inf
    assert len(buckets) == 0


def test_peeking_takes_nothing_and_remembers_nobody(clock: FakeClock) -> None:
    buckets = Buckets(clock)
    assert buckets.peek("a", USUAL).remaining == 20
    assert len(buckets) == 0
    calls_allowed(buckets, "a", 20)
    assert not buckets.peek("a", USUAL).allowed
    assert buckets.peek("a", USUAL).retry_after_s == buckets.check("a", USUAL).retry_after_s
    assert not buckets.peek("a", USUAL, cost=100).allowed


def test_a_changed_profile_counts_at_once_and_fills_no_bucket(clock: FakeClock) -> None:
    """K021."""
    buckets, generous = Buckets(clock), Rate(calls_per_minute=6_000, burst=1_000)
    calls_allowed(buckets, "a", 20)
    assert not buckets.check("a", generous).allowed
    clock.pass_s(1)
    assert calls_allowed(buckets, "a", 500, generous) == 100
    clock.pass_s(100)
    assert buckets.peek("a", USUAL).remaining == 20


@pytest.mark.parametrize("jump_s", [3_600, -3_600, -10 * 365 * 86_400, 50 * 365 * 86_400])
def test_a_clock_that_jumps_gives_at_most_one_burst_and_takes_nothing(clock: FakeClock, jump_s: float) -> None:
    """F05: the clock is monotonic; and if one were handed in that is not, no harm."""
    buckets = Buckets(clock)
    calls_allowed(buckets, "a", 10)
    clock.pass_s(jump_s)
    assert 10 <= calls_allowed(buckets, "a", 1_000) <= 20
    clock.pass_s(60)
    assert calls_allowed(buckets, "a", 1_000) == 20


def test_idle_agents_are_forgotten_and_busy_ones_never(clock: FakeClock) -> None:
    buckets = Buckets(clock)
    for number in range(SWEEP_FROM - 1):
        buckets.check(f"idle{number}", USUAL)
    clock.pass_s(60)
    calls_allowed(buckets, "busy", 20)
    for number in range(SWEEP_FROM * 3):
        buckets.check(f"passing{number}", USUAL)
        clock.pass_s(0.01)
    assert len(buckets) <= SWEEP_FROM + 2
    buckets.forget("busy")
    assert buckets.peek("busy", USUAL).remaining == 20


def test_flooding_with_names_does_not_refill_a_spent_bucket(clock: FakeClock) -> None:
    buckets = Buckets(clock)
    calls_allowed(buckets, "a", 20)
    for number in range(SWEEP_FROM * 2):
        buckets.check(f"other{number}", USUAL)
    assert not buckets.check("a", USUAL).allowed


def test_a_noisy_agent_is_refused_and_the_others_do_not_notice(clock: FakeClock) -> None:
    """L05: 1,000 calls a second offered by one, one a second by each of twenty others, one server of 4 ms a call."""

    def worst_wait_s(noisy_per_s: int) -> tuple[float, float]:
        buckets, free_at, worst, refused, offered = Buckets(clock), clock(), 0.0, 0, 0
        for millisecond in range(60_000):
            now = clock()
            arrivals = [f"quiet{n}" for n in range(20) if millisecond % 1_000 == n * 50]
            if noisy_per_s and millisecond % (1_000 // noisy_per_s) == 0:
                arrivals.insert(0, "noisy")
            for agent in arrivals:
                allowance = buckets.check(agent, USUAL)
                if agent == "noisy":
                    offered += 1
                    refused += not allowance.allowed
                    assert allowance.allowed or allowance.retry_after_s > 0
                else:
                    assert allowance.allowed
                if allowance.allowed:
                    free_at = max(now, free_at) + 0.004
                if agent != "noisy":
                    worst = max(worst, free_at - now)
            clock.pass_s(0.001)
        return worst, refused / max(1, offered)

    quiet_alone, _ = worst_wait_s(0)
    quiet_beside_noise, share_refused = worst_wait_s(1_000)
    assert share_refused >= 0.9
    # One burst of twenty at the very beginning is the noisy agent's right; the rest of the minute must be as before.
    assert quiet_beside_noise <= quiet_alone + 20 * 0.004 + 1e-9
