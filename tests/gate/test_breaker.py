"""Circuit breakers: when they open, how they are tried, when they close, and what counts."""

import asyncio

import pytest

from ksi_daemon.errors import (
    CircuitOpen,
    Conflict,
    Forbidden,
    Internal,
    Invalid,
    NotFound,
    TimedOut,
    TooMany,
    Unavailable,
)
from ksi_daemon.gate.breaker import Breaker, Breakers, verdict
from tests.gate.conftest import FakeClock


@pytest.fixture
def breaker(clock: FakeClock) -> Breaker:
    return Breaker("notes", clock)


def call(breaker: Breaker, error: BaseException | None = None) -> None:
    """One call that ends so; a refusal by the breaker is raised."""
    breaker.guard().end(error)


def state(breaker: Breaker) -> str:
    return breaker.state


def open_it(breaker: Breaker) -> None:
    for _ in range(5):
        call(breaker, Internal("broke"))


def test_the_fifth_failure_within_a_minute_opens_it_for_half_a_minute(breaker: Breaker, clock: FakeClock) -> None:
    """L07, L067."""
    for _ in range(4):
        call(breaker, RuntimeError())
        clock.pass_s(14)
    assert state(breaker) == "closed"
    call(breaker, RuntimeError())
    assert state(breaker) == "open"
    clock.pass_s(10)
    with pytest.raises(CircuitOpen) as refused:
        call(breaker)
    assert refused.value.as_dict() == {
        "code": "circuit_open",
        "message": "notes has failed 5 times within 60 s and is not called for now",
        "hint": "wait 20.001 s; everything else works meanwhile",
        "retry_after_s": pytest.approx(20.0, abs=0.002),
    }
    assert refused.value.status == 503


def test_failures_further_apart_than_a_minute_do_not_open_it(breaker: Breaker, clock: FakeClock) -> None:
    for _ in range(50):
        call(breaker, RuntimeError())
        clock.pass_s(15.1)
    assert state(breaker) == "closed"


def test_half_open_lets_one_probe_at_a_time_through_and_three_successes_close_it(
    breaker: Breaker, clock: FakeClock
) -> None:
    """L07."""
    open_it(breaker)
    clock.pass_s(30)
    assert state(breaker) == "half_open"
    probe = breaker.guard()
    with pytest.raises(CircuitOpen) as refused:
        call(breaker)
    assert refused.value.retry_after_s == 1.0
    probe.end(None)
    call(breaker)
    assert state(breaker) == "half_open"
    call(breaker)
    assert state(breaker) == "closed"
    assert breaker.recent_failures == 0
    for _ in range(4):
        call(breaker, RuntimeError())
    assert state(breaker) == "closed"


def test_a_failing_probe_opens_it_for_another_half_minute(breaker: Breaker, clock: FakeClock) -> None:
    open_it(breaker)
    clock.pass_s(30)
    call(breaker)
    call(breaker)
    call(breaker, TimedOut("late"))
    assert state(breaker) == "open"
    assert breaker.opened == 2
    clock.pass_s(30)
    call(breaker)
    call(breaker)
    assert state(breaker) == "half_open"
    call(breaker)
    assert state(breaker) == "closed"


def test_a_probe_that_is_cancelled_or_refused_decides_nothing_and_makes_room_for_the_next(
    breaker: Breaker, clock: FakeClock
) -> None:
    open_it(breaker)
    clock.pass_s(30)
    for nothing in (asyncio.CancelledError(), Invalid("bad"), Forbidden("no")):
        call(breaker, nothing)
        assert state(breaker) == "half_open"
        assert breaker.retry_after_s == 0
    for _ in range(3):
        call(breaker)
    assert state(breaker) == "closed"


def test_calls_made_before_it_opened_change_nothing_when_they_end(breaker: Breaker, clock: FakeClock) -> None:
    late = [breaker.guard() for _ in range(6)]
    open_it(breaker)
    clock.pass_s(20)
    late[0].end(RuntimeError())
    assert breaker.retry_after_s == pytest.approx(10, abs=0.002)
    clock.pass_s(10)
    for guard in late[1:]:
        guard.end(None)
    assert state(breaker) == "half_open"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (None, "success"),
        (NotFound("x"), "success"),
        (Conflict("x"), "success"),
        (Internal("x"), "failure"),
        (TimedOut("x"), "failure"),
        (Unavailable("x"), "failure"),
        (ValueError("x"), "failure"),
        (SystemExit(), "failure"),
        (Invalid("x"), "neither"),
        (Forbidden("x"), "neither"),
        (TooMany("x", retry_after_s=1), "neither"),
        (CircuitOpen("x", retry_after_s=1), "neither"),
        (asyncio.CancelledError(), "neither"),
        (GeneratorExit(), "neither"),
    ],
)
def test_only_what_the_backend_did_counts(error: BaseException | None, said: str) -> None:
    assert verdict(error) == said


def test_refusals_and_answers_never_open_it(breaker: Breaker) -> None:
    for error in (Invalid("x"), NotFound("x"), Conflict("x"), Forbidden("x")) * 20:
        call(breaker, error)
    assert state(breaker) == "closed"


def test_a_backend_that_fails_leaves_the_others_alone(clock: FakeClock) -> None:
    """L07: other tools unaffected."""
    breakers = Breakers(clock)
    open_it(breakers.of("notes"))
    call(breakers.of("memory"))
    assert [breaker.backend for breaker in breakers.troubled()] == ["notes"]
    assert breakers.of("notes").as_dict() == {
        "backend": "notes",
        "state": "open",
        "recent_failures": 5,
        "retry_after_s": pytest.approx(30, abs=0.002),
        "opened": 1,
    }
    breakers.forget("notes")
    call(breakers.of("notes"))
    assert breakers.troubled() == []


def test_the_wall_clock_moves_neither_breakers_nor_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """F05: with the clock they use in earnest, jumps of the wall clock change nothing."""
    from ksi_daemon.gate.limits import Buckets, Rate

    breaker, buckets = Breaker("notes"), Buckets()
    open_it(breaker)
    for _ in range(20):
        buckets.check("a", Rate())
    for jump_s in (3_600, -3_600, -10 * 365 * 86_400, 50 * 365 * 86_400):
        monkeypatch.setattr("time.time", lambda jump_s=jump_s: 1_700_000_000.0 + jump_s)
        assert state(breaker) == "open"
        assert not buckets.check("a", Rate()).allowed
