"""Explanations: all of it for the operator, the same less what it may not know for the caller."""

import pytest

from ksi_daemon.gate.breaker import Breaker
from ksi_daemon.gate.explain import (
    Condition,
    Explanation,
    agent_condition,
    approval_condition,
    breaker_condition,
    explain,
    operator_only_condition,
    rate_condition,
    slots_condition,
    token_condition,
)
from ksi_daemon.gate.grants import Chain, Decision, Rule, RuleSet
from ksi_daemon.gate.limits import Buckets, Rate
from tests.gate.conftest import FakeClock

NOW = 1_700_000_000.0
OWN = RuleSet([
    Rule("events/*", "write", "profile researcher"),
    Rule("events/notes:*", "none", "grant g12"),
    Rule("events/notes:add", "write", "grant g7", expires_at=NOW - 60),
])  # fmt: skip
OPEN = RuleSet([Rule("events/*", "write", "profile trusted")])
PARENT = RuleSet([Rule("events/notes:*", "none", "grant g99 of agent boss")], whose="parent")


def decisions(*links: RuleSet, resource: str = "events/notes:add") -> tuple[Decision, ...]:
    return Chain(links).decisions(resource, "write", NOW)


def about(conditions: list[Condition], *links: RuleSet) -> Explanation:
    return explain("a1", "notes:add", known=True, decisions=decisions(*links), conditions=conditions)


def test_the_winning_rule_the_ones_it_beat_and_every_condition_are_told() -> None:
    told = about([agent_condition(frozen=False), rate_condition(Rate(), Buckets().peek("a1", Rate()))], OWN)
    assert told.text() == (
        "a1 may not call notes:add (tool ksi_notes_add)\n"
        "  no: needs write on events/notes:add: events/notes:* none forbids it\n"
        "      decided by  events/notes:* none (grant g12)\n"
        "      beats       events/* write (profile researcher)\n"
        "      expired     events/notes:add write (grant g7, until 2023-11-14T22:12:20.000000Z)\n"
        "  ok: the agent is not frozen\n"
        "  ok: 100 calls a minute, bursts of 20: 20 left now"
    )
    parts = told.as_dict()
    assert (parts["allowed"], parts["event"], parts["tool"]) == (False, "notes:add", "ksi_notes_add")
    assert parts["decisions"][0]["rule"]["source"] == "grant g12"
    assert parts["decisions"][0]["beaten"][0]["resource"] == "events/*"
    assert parts["decisions"][0]["expired"][0]["source"] == "grant g7"
    assert parts["conditions"][0] == {"about": "agent", "ok": True, "text": "the agent is not frozen"}


def test_it_is_allowed_only_if_it_is_known_every_rule_says_yes_and_every_condition_holds() -> None:
    fine, bad = agent_condition(frozen=False), agent_condition(frozen=True)
    assert about([fine], OPEN).allowed
    assert not about([fine, bad], OPEN).allowed
    assert not about([fine], OPEN, PARENT).allowed
    assert not explain("a1", "notes:add", known=False, decisions=decisions(OPEN)).allowed
    assert not explain("a1", "notes:add", known=True).allowed


def test_a_caller_cannot_tell_what_it_may_not_see_from_what_does_not_exist() -> None:
    """P03: same words, whether forbidden, closed to the parent, the operator's own, or not there at all."""
    unknown = explain("a1", "notes:add", known=False)
    for hidden in (
        about([], OWN),
        about([agent_condition(frozen=True)], OPEN, PARENT),
        about([operator_only_condition(operator_only=True)], OPEN),
    ):
        assert not hidden.listed
        assert hidden.for_caller() == unknown.for_caller()
    assert unknown.for_caller() == (
        "no such tool for this agent; ask the operator to grant it: ksi permissions grant a1 'events/notes:add'"
    )
    assert "no plugin owns" in unknown.text()


def test_what_a_caller_sent_is_only_repeated_when_it_could_be_a_name() -> None:
    """P04, W05."""
    odd = explain("a1", "x'; rm -rf \x1b[31m", known=False)
    assert "rm -rf" not in odd.for_caller()
    assert "\x1b" not in odd.text() + odd.for_caller(names_are_public=True)


def test_a_caller_that_sees_the_tool_reads_its_own_rules_but_not_its_parents() -> None:
    """P04: no other agent's name, no source of a rule that is not its own."""
    ceiling = RuleSet([Rule("knowledge/*", "read", "ceiling of token t1")], whose="ceiling")
    boss = RuleSet([Rule("knowledge/maintainer", "none", "grant g99 of agent boss")], whose="parent")
    own = RuleSet([Rule("knowledge/maintainer", "write", "grant g3")])
    told = explain(
        "a1",
        "notes:add",
        known=True,
        decisions=[*decisions(OPEN), *decisions(own, boss, ceiling, resource="knowledge/maintainer")],
    )
    assert told.listed
    said = told.for_caller()
    assert "boss" not in said
    assert "g99" not in said
    assert said == (
        "you may not call notes:add\n"
        "  ok: needs write on events/notes:add: events/* write gives write\n"
        "      decided by  events/* write (profile trusted)\n"
        "  ok: needs write on knowledge/maintainer: knowledge/maintainer write gives write\n"
        "      decided by  knowledge/maintainer write (grant g3)\n"
        "  no: needs write on knowledge/maintainer: whoever started this agent does not have it either\n"
        "  no: needs write on knowledge/maintainer under the ceiling of its token: "
        "the most specific rule, knowledge/*, gives read but not write\n"
        "      decided by  knowledge/* read (ceiling of token t1)"
    )
    assert "grant g99 of agent boss" in told.text()


def test_where_names_are_public_a_refusal_may_say_more() -> None:
    assert about([], OWN).for_caller(names_are_public=True).startswith("you may not call notes:add\n")
    assert (
        about([], OPEN, PARENT)
        .for_caller(names_are_public=True)
        .endswith("whoever started this agent does not have it either")
    )
    assert explain("a1", "x:y", known=False).for_caller(names_are_public=True) == "there is no 'x:y'"


def test_limits_and_breakers_say_when_to_come_back(clock: FakeClock) -> None:
    buckets, breaker = Buckets(clock), Breaker("notes", clock)
    for _ in range(20):
        buckets.check("a1", Rate())
    for _ in range(5):
        breaker.leave(breaker.enter(), "failure")
    rate, part = rate_condition(Rate(), buckets.peek("a1", Rate())), breaker_condition(breaker)
    assert (rate.ok, part.ok) == (False, False)
    told = about([rate, part], OPEN)
    assert told.retry_after_s == pytest.approx(30, abs=0.01)
    assert told.as_dict()["retry_after_s"] == told.retry_after_s
    assert "the breaker of notes is open, opened 1 times; try again in 30" in told.text()
    assert "this part failed too often and is left alone; try again in 30" in told.for_caller()
    assert "opened 1 times" not in told.for_caller()
    assert about([rate, agent_condition(frozen=True)], OPEN).retry_after_s is None
    assert about([rate], OWN).retry_after_s is None
    clock.pass_s(31)
    assert breaker_condition(breaker).ok
    assert "half open" in breaker_condition(breaker).text
    assert "recent failures" not in about([breaker_condition(Breaker("notes", clock))], OPEN).for_caller()


@pytest.mark.parametrize(
    ("condition", "ok", "text"),
    [
        (agent_condition(frozen=True), False, "the agent is frozen"),
        (token_condition(expires_at=None, revoked=False, now=NOW), True, "the token does not expire"),
        (token_condition(expires_at=NOW + 1, revoked=False, now=NOW), True, "is good until 2023-11-14T22:13:21"),
        (token_condition(expires_at=NOW, revoked=False, now=NOW), False, "the token expired at 2023-11-14T22:13:20"),
        (token_condition(expires_at=NOW + 1, revoked=True, now=NOW), False, "the token was revoked"),
        (rate_condition(None, Buckets().peek("a", None)), True, "no rate limit"),
        (slots_condition(None, 5), True, "no limit on calls at once"),
        (slots_condition(8, 3), True, "3 of 8 calls at once are under way"),
        (slots_condition(8, 8), True, "8 of 8 calls at once are under way; the next one waits"),
        (approval_condition(needed=False, given=False), True, "needs nobody's approval"),
        (approval_condition(needed=True, given=True), True, "approved"),
        (approval_condition(needed=True, given=False), False, "needs a person's approval"),
        (operator_only_condition(operator_only=True), False, "only for the operator"),
        (operator_only_condition(operator_only=False), True, "open to agents"),
    ],
)
def test_each_condition_says_what_is_the_matter(condition: Condition, ok: bool, text: str) -> None:
    assert condition.ok == ok
    assert text in condition.text
