"""Rules one by one: what a resource may look like, which rule wins, what is told about it."""

import math
import time
import unicodedata

import pytest

from ksi_daemon.errors import Invalid
from ksi_daemon.gate.grants import DECISIONS_KEPT, Chain, Rule, RuleSet, parse_resource
from ksi_daemon.gate.spawn import shortfalls, validate_spawn


def rule(resource: str, access: str = "write", source: str = "grant g1", expires_at: float | None = None) -> Rule:
    return Rule(resource, access, source, expires_at)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("events/notes:add", ("events", "notes", "add")),
        ("events/notes/add", ("events", "notes", "add")),
        ("events/*", ("events", "*")),
        ("events/*:list", ("events", "*", "list")),
        ("tables/Meals", ("tables", "Meals")),
        ("workspace/a.b-c_9", ("workspace", "a.b-c_9")),
        ("operation/librarian:bootstrap", ("operation", "librarian", "bootstrap")),
        ("*", ("*",)),
    ],
)
def test_slash_and_colon_separate_and_case_is_kept(text: str, segments: tuple[str, ...]) -> None:
    assert parse_resource(text) == segments


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("events/notes:*\u0441", "CYRILLIC SMALL LETTER ES"),
        ("tables/me\u0430ls", "CYRILLIC SMALL LETTER A"),
        ("tables/\uff4deals", "FULLWIDTH"),
        (unicodedata.normalize("NFC", "tables/caf\u00e9"), "U+00E9"),
        (unicodedata.normalize("NFD", "tables/caf\u00e9"), "COMBINING ACUTE"),
        ("tables/me\u200bals", "ZERO WIDTH SPACE"),
        ("tables/\u202emeals", "RIGHT-TO-LEFT"),
        ("tables\u2215meals", "DIVISION SLASH"),
        ("tables/meals ", "begins or ends with a blank"),
        (" tables/meals", "begins or ends with a blank"),
        ("tables/meals\n", "begins or ends with a blank"),
        ("tables/me als", "a blank"),
        ("tables/me\u00a0als", "a blank"),
        ("tables/me\x00als", "control character"),
        ("tables//meals", "empty segment"),
        ("/tables", "empty segment"),
        ("tables/", "empty segment"),
        ("tables/" + "m" * 65, "longer than 64"),
        ("a/" * 8 + "a", "9 segments"),
        ("x" * 10_000, "10,000 characters"),
        ("tables/me*", "a whole segment"),
        ("tables/**", "a whole segment"),
        ("tables/me$als", "$ cannot stand"),
        ("tables/..", "only '..'"),
        ("tables\\meals", "cannot stand"),
        ("Events/notes:add", "case matters"),
        ("KNOWLEDGE/maintainer", "case matters"),
        ("events/Notes:add", "lower-case"),
        ("events/notes:Add", "lower-case"),
        ("events/no-tes:*", "lower-case"),
        ("events", "did you mean 'events/*'"),
        ("events/notes", "did you mean 'events/notes:*'"),
        ("events/notes:add:more", "no further segments"),
    ],
)
def test_a_name_that_could_pass_for_another_is_refused_at_creation_with_the_reason(text: str, why: str) -> None:
    """P10."""
    with pytest.raises(Invalid) as refused:
        rule(text)
    assert why in refused.value.message
    assert refused.value.message.isascii()
    assert len(refused.value.message) < 400
    assert not RuleSet([rule("*")]).decide(text, "read", 0).allowed


def test_something_that_is_no_text_is_no_resource() -> None:
    with pytest.raises(Invalid, match="not int"):
        parse_resource(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("access", ["Read", "admin", "", "write "])
def test_an_unknown_access_is_refused(access: str) -> None:
    with pytest.raises(Invalid, match="is not a valid access"):
        rule("tables/meals", access)


@pytest.mark.parametrize("moment", [math.nan, math.inf, -math.inf])
def test_a_rule_that_expires_at_no_moment_is_refused(moment: float) -> None:
    with pytest.raises(Invalid, match="cannot expire"):
        rule("tables/meals", expires_at=moment)


def test_an_empty_set_denies_and_says_that_nothing_matches() -> None:
    """P05."""
    decision = RuleSet([]).decide("events/notes:add", "write", 0)
    assert not decision.allowed
    assert decision.rule is None
    assert decision.reason == "no rule gives write on events/notes:add"


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ("events/notes:add", "events/notes:*"),
        ("events/notes:*", "events/*"),
        ("events/*:add", "events/*"),
        ("events/notes:*", "events/*:add"),
        ("events/*", "*"),
        ("events/*:*", "events/*"),
    ],
)
@pytest.mark.parametrize(("wins", "loses"), [("none", "write"), ("write", "none")])
def test_the_more_specific_rule_wins_whatever_it_says(more: str, less: str, wins: str, loses: str) -> None:
    decision = RuleSet([rule(less, loses), rule(more, wins)]).decide("events/notes:add", "write", 0)
    assert decision.allowed == (wins == "write")
    assert decision.rule == rule(more, wins)
    assert decision.beaten == (rule(less, loses),)


def test_none_beats_at_equal_specificity_even_when_written_with_the_other_mark() -> None:
    """P05."""
    decision = RuleSet([rule("tables/a:b", "write"), rule("tables/a/b", "none", "grant g2")]).decide(
        "tables/a/b", "read", 0
    )
    assert not decision.allowed
    assert decision.rule == rule("tables/a/b", "none", "grant g2")
    assert decision.reason == "tables/a/b none forbids it"


def test_write_includes_read_execute_stands_alone_and_equal_allows_add_up() -> None:
    def may(need: str, *accesses: str) -> bool:
        return RuleSet([rule("tables/a", access) for access in accesses]).decide("tables/a", need, 0).allowed  # type: ignore[arg-type]

    assert may("read", "write")
    assert not may("write", "read")
    assert not may("execute", "write")
    assert not may("read", "execute")
    assert may("execute", "write", "execute")
    assert may("write", "write", "execute")
    assert not may("execute", "read", "write")


def test_a_more_specific_read_takes_the_write_of_a_wider_rule_away() -> None:
    decision = RuleSet([rule("events/*", "write"), rule("events/notes:add", "read")]).decide(
        "events/notes:add", "write", 0
    )
    assert not decision.allowed
    assert decision.reason == "the most specific rule, events/notes:add, gives read but not write"


def test_a_rule_counts_until_the_moment_it_expires_and_is_then_named_as_expired() -> None:
    lent = rule("tables/a", expires_at=100.0)
    rules = RuleSet([lent])
    assert rules.decide("tables/a", "read", 99.999).allowed
    decision = rules.decide("tables/a", "read", 100.0)
    assert not decision.allowed
    assert decision.expired == (lent,)
    assert decision.reason.endswith("the last one has expired")
    assert rules.decide("tables/a", "read", 99.0).allowed  # the clock was set back: what is remembered does not matter


def test_one_exact_thing_must_be_asked_for_and_something_must_be_needed() -> None:
    everything = RuleSet([rule("*")])
    assert not everything.decide("tables/*", "read", 0).allowed
    with pytest.raises(Invalid, match="cannot be needed"):
        everything.decide("tables/a", "none", 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="now is nan"):
        everything.decide("tables/a", "read", math.nan)


def test_a_chain_tells_the_first_refusal_and_whose_it_is() -> None:
    own = RuleSet([rule("events/*")])
    parent = RuleSet([rule("events/*"), rule("events/notes:*", "none", "grant g9")], whose="parent")
    ceiling = RuleSet([rule("events/notes:*", "read", "ceiling of token t1")], whose="ceiling")
    refused = Chain([own, parent, ceiling]).decide("events/notes:add", "write", 0)
    assert (refused.allowed, refused.whose) == (False, "parent")
    assert Chain([own, ceiling]).decide("events/notes:add", "write", 0).whose == "ceiling"
    assert Chain([own, ceiling]).decide("events/notes:list", "read", 0).rule == rule("events/*")
    assert [said.allowed for said in Chain([own, parent, ceiling]).decisions("events/notes:add", "write", 0)] == [
        True, False, False,
    ]  # fmt: skip


def test_a_decision_asked_for_again_is_a_lookup() -> None:
    """K021: live state is asked on every call, and can be: less than a microsecond even on a busy machine."""
    chain = Chain([RuleSet([rule(f"events/n{n}:*") for n in range(500)]), RuleSet([rule("events/*")])])
    decide, event = chain.decide, "events/n250:add"
    assert decide(event, "write", 0.0) is decide(event, "write", 1.0)
    best = math.inf
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(1_000):
            decide(event, "write", 1.0)
        best = min(best, time.perf_counter() - began)
    assert best / 1_000 < 1e-6


def test_what_is_remembered_is_bounded() -> None:
    rules = RuleSet([rule("tables/*")])
    first = rules.decide("tables/t0", "read", 0)
    for number in range(DECISIONS_KEPT + 1):
        assert rules.decide(f"tables/t{number}", "read", 0).allowed
    assert rules.decide("tables/t0", "read", 0) == first
    assert rules.decide("tables/t0", "read", 0) is not first


def test_a_child_of_the_same_profile_lacks_nothing() -> None:
    same = [rule("events/*", "read"), rule("events/notes:*"), rule("events/audit:*", "none")]
    assert validate_spawn(Chain([RuleSet(same)]), same, 0) == []


def test_each_requested_rule_that_the_parent_lacks_is_named_with_the_reason() -> None:
    parent = Chain([
        RuleSet([rule("events/*", "read"), rule("events/notes:*"), rule("events/notes:drop", "none")]),
        RuleSet([rule("events/*")], whose="ceiling"),
    ])  # fmt: skip
    asked = [rule("events/memory:add"), rule("events/notes:*"), rule("events/notes:add"), rule("knowledge/reader", "execute")]  # fmt: skip
    short = validate_spawn(parent, asked, 0)
    assert [(one.rule.resource, one.missing, one.whose) for one in short] == [
        ("events/memory:add", "all", "own"),
        ("events/notes:*", "part", "own"),
        ("knowledge/reader", "all", "own"),
        ("knowledge/reader", "all", "ceiling"),
    ]
    assert short[1].because == "the parent's rule events/notes:drop (none) does not give write"


def test_closing_something_and_what_has_expired_need_nothing_from_the_parent() -> None:
    nothing = RuleSet([])
    assert not shortfalls(nothing, [rule("tables/a", "none")], 0)
    assert not shortfalls(nothing, [rule("tables/a", "write", expires_at=5.0)], 6.0)
    assert shortfalls(nothing, [rule("tables/a", "read")], 0)
