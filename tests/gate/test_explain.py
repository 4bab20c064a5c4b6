"""Judgements and explanations: one record decides, lists and refuses; the operator reads every rule and condition in it."""

import pytest

from ksi_daemon.errors import ApprovalRequired, Forbidden
from ksi_daemon.gate.breaker import Breaker
from ksi_daemon.gate.explain import (
    Condition,
    Explanation,
    active_condition,
    breaker_condition,
    operator_only_condition,
    rate_condition,
    slots_condition,
)
from ksi_daemon.gate.grants import Chain, Rule, RuleSet
from ksi_daemon.gate.judgement import Judgement, judge, unseen
from ksi_daemon.gate.limits import Buckets, Rate
from tests.gate.conftest import FakeClock, handler

NOW = 1_700_000_000.0
OWN = RuleSet([
    Rule("events/*", "write", "profile researcher"),
    Rule("events/notes:*", "none", "grant g12"),
    Rule("events/notes:add", "write", "grant g7", expires_at=NOW - 60),
])  # fmt: skip
OPEN = RuleSet([Rule("events/*", "write", "profile trusted")])
PARENT = RuleSet([Rule("events/notes:*", "none", "grant g99 of agent boss")], whose="parent")
ADD = handler("notes:add")


def judged(*links: RuleSet, operator_only: bool = False, inactive_reason: str | None = None) -> Judgement:
    asked = handler("notes:add", operator_only=operator_only)
    return judge("a1", asked, Chain(links), now=NOW, inactive_reason=inactive_reason)


def about(conditions: list[Condition], *links: RuleSet) -> Explanation:
    decisions = Chain(links).decisions("events/notes:add", "write", NOW)
    return Explanation("a1", "notes:add", judged(*links), decisions, tuple(conditions))


def test_the_winning_rule_the_ones_it_beat_and_every_condition_are_shown() -> None:
    explanation = about([active_condition(None), rate_condition("a1", Rate(), Buckets().peek("a1", Rate()))], OWN)
    assert explanation.text() == (
        "a1 may not call notes:add (tool ksi_notes_add)\n"
        "  no: needs write on events/notes:add: events/notes:* none forbids it\n"
        "      decided by  events/notes:* none (grant g12)\n"
        "      beats       events/* write (profile researcher)\n"
        "      expired     events/notes:add write (grant g7, until 2023-11-14T22:12:20.000000Z)\n"
        "  ok: the agent is active\n"
        "  ok: 100 calls a minute, bursts of 20, for a1 and its children: 20 left now"
    )
    parts = explanation.as_dict()
    assert (parts["allowed"], parts["event"], parts["tool"]) == (False, "notes:add", "ksi_notes_add")
    assert parts["decisions"][0]["rule"]["source"] == "grant g12"
    assert parts["decisions"][0]["beaten"][0]["resource"] == "events/*"
    assert parts["decisions"][0]["expired"][0]["source"] == "grant g7"
    assert parts["conditions"][0] == {"about": "agent", "ok": True, "text": "the agent is active"}


def test_a_call_is_allowed_only_if_it_is_known_every_rule_allows_it_and_every_condition_holds() -> None:
    active, frozen = active_condition(None), active_condition("the agent is frozen")
    assert about([active], OPEN).allowed
    assert not about([active, frozen], OPEN).allowed
    assert not about([active], OPEN, PARENT).allowed
    assert not Explanation("a1", "notes:add").allowed
    assert not Explanation("a1", "notes:add").known
    assert not judged(OPEN, inactive_reason="the agent is frozen").allowed


def test_a_caller_cannot_tell_what_it_may_not_see_from_what_does_not_exist() -> None:
    """P03: the same words, whether forbidden, closed to the parent, the operator's own, or not there at all."""
    unknown = unseen("a1", "notes:add", None).message
    for hidden in (judged(OWN), judged(OPEN, PARENT), judged(OPEN, operator_only=True)):
        assert not hidden.listed
        assert hidden.refusal().message == unknown
    assert unknown == (
        "no such tool for this agent; ask the operator to grant it: ksi permissions grant a1 'events/notes:add'"
    )
    assert "no plugin owns" in Explanation("a1", "notes:add").text()


def test_what_a_caller_sent_is_only_repeated_when_it_could_be_a_name() -> None:
    """P04, W05."""
    odd = "x'; rm -rf \x1b[31m"
    assert "rm -rf" not in unseen("a1", odd, None).message
    assert "\x1b" not in Explanation("a1", odd).text()


def test_a_listed_tool_that_needs_more_is_refused_with_what_is_missing() -> None:
    """P04: no source of a rule, no other agent's name."""
    own = RuleSet([*OPEN.rules, Rule("knowledge/maintainer", "execute", "grant g3")])
    boss = RuleSet([*OPEN.rules, Rule("knowledge/maintainer", "none", "grant g99 of agent boss")], whose="parent")
    further = handler("notes:add", needs=[("knowledge/maintainer", "execute")])
    judgement = judge("a1", further, Chain([own, boss]), now=NOW)
    assert (judgement.listed, judgement.allowed) == (True, False)
    refusal = judgement.refusal()
    assert isinstance(refusal, Forbidden)
    assert refusal.message == "notes:add also needs execute on knowledge/maintainer"
    assert refusal.hint == "ask the operator: ksi permissions grant a1 knowledge/maintainer --access execute"
    consent = judge("a1", handler("notes:add", needs=[("operation/wipe", "execute")]), Chain([own]), now=NOW)
    assert isinstance(consent.refusal(), ApprovalRequired)
    assert judge("a1", further, Chain([own]), now=NOW).rule == "events/* write (profile trusted)"


def test_limits_and_breakers_say_when_to_try_again(clock: FakeClock) -> None:
    buckets, breaker = Buckets(clock), Breaker("notes", clock)
    for _ in range(20):
        buckets.check("a1", Rate())
    for _ in range(5):
        breaker.leave(breaker.enter(), "failure")
    rate, part = rate_condition("a1", Rate(), buckets.peek("a1", Rate())), breaker_condition(breaker)
    assert (rate.ok, part.ok) == (False, False)
    explanation = about([rate, part], OPEN)
    assert explanation.retry_after_s == pytest.approx(30, abs=0.01)
    assert explanation.as_dict()["retry_after_s"] == explanation.retry_after_s
    assert "the circuit breaker of notes is open, opened 1 times; try again in 30" in explanation.text()
    assert about([rate, active_condition("the agent is frozen")], OPEN).retry_after_s is None
    assert about([rate], OWN).retry_after_s is None
    clock.pass_s(31)
    assert breaker_condition(breaker).ok
    assert "half open" in breaker_condition(breaker).text


def test_each_condition_says_what_it_found() -> None:
    for condition, ok, text in (
        (active_condition("the agent is frozen"), False, "the agent is frozen"),
        (rate_condition("a", None, Buckets().peek("a", None)), True, "no rate limit"),
        (slots_condition(None, 5), True, "no limit on calls at once"),
        (slots_condition(8, 3), True, "3 of 8 calls at once are under way"),
        (slots_condition(8, 8), True, "8 of 8 calls at once are under way; the next one waits"),
        (operator_only_condition(operator_only=True), False, "only for the operator"),
        (operator_only_condition(operator_only=False), True, "open to agents"),
    ):
        assert (condition.ok, text in condition.text) == (ok, True), condition
