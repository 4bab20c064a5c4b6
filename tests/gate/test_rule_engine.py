"""The rule engine against a second, independent reading of the grammar (the oracle), on random rule sets."""

import itertools
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ksi_daemon.gate.grants import Chain, Rule, RuleSet
from ksi_daemon.gate.spawn import shortfalls

LONG = settings.get_current_profile_name() == "long"


def thorough(examples: int) -> settings:
    """As many random cases as the suite has time for, always the same ones; 20,000 new ones in the long form."""
    return settings(max_examples=20_000 if LONG else examples, deadline=None, derandomize=not LONG)


# Everything is drawn from lists made beforehand: one draw a rule keeps 2,000 rule sets within seconds.
WORDS = ["tables", "a", "B"]
NEEDS: list[Any] = ["read", "write", "execute"]
MOMENTS = [0.0, 10.0, 15.0, 20.0, 99.0]
PATTERNS = ["/".join(part) for size in (1, 2, 3) for part in itertools.product([*WORDS, "*"], repeat=size)]
RESOURCES = [
    mark.join(part) for mark in "/:" for size in (1, 2, 3, 4) for part in itertools.product(WORDS, repeat=size)
]
RULES = [
    Rule(pattern, access, source, expires_at)
    for pattern in PATTERNS
    for access in (*NEEDS, "none")
    for source, expires_at in (("profile", None), ("grant g1", None), ("grant g2", 10.0), ("grant g3", 20.0))
]
NEAR = {resource: random.Random(resource).sample(RESOURCES, 5) for resource in RESOURCES}

rules = st.sampled_from(RULES)
rule_sets = st.lists(rules, max_size=12)
questions = st.tuples(st.sampled_from(RESOURCES), st.sampled_from(NEEDS), st.sampled_from(MOMENTS))


def oracle(given_rules: list[Rule], resource: str, need: str, now: float) -> bool:
    """Thirty lines that share nothing with the engine: match by recursion, compare by pairs."""

    def fits(pattern: list[str], thing: list[str]) -> bool:
        if not pattern or not thing:
            return not pattern and not thing
        if pattern == ["*"]:
            return True
        return (pattern[0] == "*" or pattern[0] == thing[0]) and fits(pattern[1:], thing[1:])

    def beats(one: list[str], other: list[str]) -> bool:
        literals = [sum(part != "*" for part in side) for side in (one, other)]
        if literals[0] != literals[1]:
            return literals[0] > literals[1]
        for here, there in zip(one, other, strict=False):
            if here != there:
                return there == "*"
        return len(one) > len(other)

    thing = resource.replace(":", "/").split("/")
    there = [
        (rule.resource.replace(":", "/").split("/"), rule.access)
        for rule in given_rules
        if (rule.expires_at is None or rule.expires_at > now)
        and fits(rule.resource.replace(":", "/").split("/"), thing)
    ]
    top = [access for pattern, access in there if not any(beats(other, pattern) for other, _ in there)]
    if "none" in top:
        return False
    return need in top or (need == "read" and "write" in top)


@thorough(2_000)
@given(rule_sets, questions)
def test_the_engine_and_the_oracle_never_differ(some: list[Rule], question: tuple[str, Any, float]) -> None:
    """P05: the question, and every other one about the same set."""
    rule_set = RuleSet(some)
    resource, need, now = question
    decision = rule_set.decide(resource, need, now)
    assert decision.allowed == oracle(some, resource, need, now)
    shown = [*decision.beaten, *([decision.rule] if decision.rule else [])]
    assert all(rule.holds(now) for rule in shown)
    assert not any(rule.holds(now) for rule in decision.expired)
    for nearby in NEAR[resource]:
        assert rule_set.decide(nearby, need, now).allowed == oracle(some, nearby, need, now)


@thorough(500)
@given(st.lists(rule_sets, max_size=3), questions)
def test_a_chain_allows_exactly_what_every_link_allows(
    sets: list[list[Rule]], question: tuple[str, Any, float]
) -> None:
    """P05: intersection, and an empty chain denies."""
    decision = Chain([RuleSet(some) for some in sets]).decide(*question)
    assert decision.allowed == (bool(sets) and all(oracle(some, *question) for some in sets))


@thorough(500)
@given(rule_sets, questions, st.randoms(use_true_random=False))
def test_the_order_of_rules_does_not_matter_in_the_least(
    some: list[Rule], question: tuple[str, Any, float], dice: random.Random
) -> None:
    """P05: not for the answer, not for the rule that is named, not for the ones it beat."""
    shuffled = list(some)
    dice.shuffle(shuffled)
    assert RuleSet(shuffled).decide(*question) == RuleSet(some).decide(*question)


@thorough(500)
@given(rule_sets, st.lists(questions, max_size=5), st.lists(st.sampled_from(MOMENTS), max_size=5))
def test_a_remembered_decision_is_the_one_a_fresh_set_makes(
    some: list[Rule], asked: list[tuple[str, Any, float]], moments: list[float]
) -> None:
    """P05, F05: also when the clock jumps back and forth over expiries."""
    kept = RuleSet(some)
    for now in moments:
        for resource, need, _ in asked:
            assert kept.decide(resource, need, now) == RuleSet(some).decide(resource, need, now)


@thorough(500)
@given(rule_sets, rules, st.sampled_from(MOMENTS))
def test_what_is_called_covered_is_allowed_to_the_parent_in_every_case(
    parent: list[Rule], asked: Rule, now: float
) -> None:
    """Children are never told that they got more than their parent has."""
    if asked.access != "none" and not shortfalls(RuleSet(parent), [asked], now):
        for resource in RESOURCES[::7]:
            assert not oracle([asked], resource, asked.access, now) or oracle(parent, resource, asked.access, now)


@thorough(500)
@given(rule_sets, st.data(), st.sampled_from(MOMENTS))
def test_a_child_without_shortfalls_can_do_nothing_its_parent_cannot(
    parent: list[Rule], data: st.DataObject, now: float
) -> None:
    """The whole set is judged: what the child's own rules close again does not count as missing."""
    asked = data.draw(st.lists(st.sampled_from([*parent, *parent, RULES[0], RULES[-1]]), max_size=6))
    if not shortfalls(RuleSet(parent), asked, now):
        for resource in RESOURCES[::5]:
            for need in NEEDS:
                assert not oracle(asked, resource, need, now) or oracle(parent, resource, need, now)
