"""The rule engine: which rule decides about a resource, and what it beat.

The most specific rule wins; at equal specificity `none` beats, and several allows add up; nothing matches means no. Decisions are
kept until the next rule expires, so that asking again costs a dictionary lookup. Where rules come from is left to others.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, get_args

import msgspec

from ksi_daemon.access import Access, Need
from ksi_daemon.errors import Invalid
from ksi_daemon.gate.resources import Segments, matches, parse_concrete, parse_resource, specificity

__all__ = [
    "Access", "Chain", "Decision", "Need", "Rule", "RuleSet", "Whose", "gives", "parse_resource",
]  # fmt: skip

Whose = Literal["own", "parent", "ceiling"]

DECISIONS_KEPT = 10_000
GIVES: dict[str, frozenset[str]] = {
    "read": frozenset({"read"}),
    "write": frozenset({"read", "write"}),
    "execute": frozenset({"execute"}),
    "none": frozenset(),
}


class Rule(msgspec.Struct, frozen=True):
    """One line of right: what it is about, how much, where it came from, and until when (seconds since the epoch)."""

    resource: str
    access: Access
    source: str
    expires_at: float | None = None
    overrides: bool = False  # a person's grant: on the very same resource it takes the place of a profile's rule
    expired: bool = False  # once and for all, whatever the clock says later

    def __post_init__(self) -> None:
        parse_resource(self.resource)
        if self.access not in GIVES:
            raise Invalid(f"{self.access!r} is not a valid access", hint=f"one of {', '.join(get_args(Access))}")
        if self.expires_at is not None and not math.isfinite(self.expires_at):
            raise Invalid(f"a rule about {self.resource} cannot expire at {self.expires_at}")

    def holds(self, now: float) -> bool:
        """Whether it has not expired."""
        return not self.expired and (self.expires_at is None or now < self.expires_at)


class Decision(msgspec.Struct, frozen=True):
    """Yes or no, with the rule that decided, the ones it beat and the ones that would have counted but have expired."""

    allowed: bool
    resource: str
    need: Need
    reason: str
    rule: Rule | None = None
    beaten: tuple[Rule, ...] = ()
    expired: tuple[Rule, ...] = ()
    whose: Whose = "own"


def strongest(rules: list[Rule]) -> list[Rule]:
    """Of rules about the very same pattern, those that count: a grant, if there is one, else all."""
    return [rule for rule in rules if rule.overrides] or rules


def gives(rules: Iterable[Rule], need: str) -> bool:
    """Whether rules of equal specificity, taken together, give what is needed."""
    accesses = {rule.access for rule in rules}
    return "none" not in accesses and any(need in GIVES[access] for access in accesses)


class _Memory:
    """Decisions already made. They hold while `since <= now < until`: between two expiries nothing can change."""

    __slots__ = ("_expiries", "_kept", "_since", "_until", "_work_out")

    def __init__(self, expiries: Iterable[float], work_out: Callable[[str, Need, float], Decision]) -> None:
        self._expiries = sorted(set(expiries))
        self._work_out = work_out
        self._kept: dict[tuple[str, str], Decision] = {}
        self._since = self._until = -math.inf

    def decide(self, resource: str, need: Need, now: float) -> Decision:
        if self._since <= now < self._until:
            known = self._kept.get((resource, need))
            if known is not None:
                return known
        return self._decide_anew(resource, need, now)

    def _decide_anew(self, resource: str, need: Need, now: float) -> Decision:
        if need not in get_args(Need):
            raise Invalid(f"{need!r} cannot be needed", hint=f"one of {', '.join(get_args(Need))}")
        if not math.isfinite(now):
            raise ValueError(f"now is {now}")
        if not self._since <= now < self._until:
            self._kept.clear()
            self._since = max((at for at in self._expiries if at <= now), default=-math.inf)
            self._until = min((at for at in self._expiries if at > now), default=math.inf)
        if len(self._kept) >= DECISIONS_KEPT:
            self._kept.clear()
        decision = self._kept[resource, need] = self._work_out(resource, need, now)
        return decision


class RuleSet:
    """The rules of one holder: an agent's own, its parent's, or the ceiling of a token. Never changes; replace it."""

    __slots__ = ("_by_root", "decide", "rules", "whose")

    def __init__(self, rules: Iterable[Rule], *, whose: Whose = "own") -> None:
        self.whose: Whose = whose
        ranked = sorted(((parse_resource(rule.resource), rule) for rule in rules), key=_rank, reverse=True)
        self.rules = tuple(rule for _, rule in ranked)
        self._by_root: dict[str, list[tuple[Segments, Rule]]] = {}
        for pattern, rule in ranked:
            self._by_root.setdefault(pattern[0], []).append((pattern, rule))
        self.decide = _Memory(self.expiries(), self._work_out).decide

    def expiries(self) -> list[float]:
        """The moments at which decisions may change by themselves."""
        return [rule.expires_at for rule in self.rules if rule.expires_at is not None]

    def _work_out(self, resource: str, need: Need, now: float) -> Decision:
        try:
            asked = parse_concrete(resource)
        except Invalid as error:
            return Decision(allowed=False, resource=resource, need=need, reason=error.message, whose=self.whose)
        candidates = [*self._by_root.get(asked[0], ()), *self._by_root.get("*", ())]
        found = sorted((ranked for ranked in candidates if matches(ranked[0], asked)), key=_rank, reverse=True)
        holding = [(pattern, rule) for pattern, rule in found if rule.holds(now)]
        expired = tuple(rule for _, rule in found if not rule.holds(now))
        if not holding:
            reason = f"no rule gives {need} on {resource}" + (": the last one has expired" if expired else "")
            return Decision(
                allowed=False, resource=resource, need=need, reason=reason, expired=expired, whose=self.whose
            )
        best = holding[0][0]
        equals = strongest([rule for pattern, rule in holding if pattern == best])
        allowed = gives(equals, need)
        winner = next((rule for rule in equals if allowed and need in GIVES[rule.access]), equals[0])
        return Decision(
            allowed=allowed,
            resource=resource,
            need=need,
            reason=_reason(winner, equals, need, allowed=allowed),
            rule=winner,
            beaten=tuple(rule for _, rule in holding if rule is not winner),
            expired=expired,
            whose=self.whose,
        )


class Chain:
    """Rule sets that must all say yes: an agent's own, those of its parents, the ceiling of its token. Empty: no."""

    __slots__ = ("decide", "links")

    def __init__(self, links: Sequence[RuleSet]) -> None:
        self.links = tuple(links)
        self.decide = _Memory([at for link in self.links for at in link.expiries()], self._work_out).decide

    def decisions(self, resource: str, need: Need, now: float) -> tuple[Decision, ...]:
        """What each link decides, in order: for explaining."""
        return tuple(link.decide(resource, need, now) for link in self.links)

    def _work_out(self, resource: str, need: Need, now: float) -> Decision:
        decisions = self.decisions(resource, need, now)
        if not decisions:
            return Decision(allowed=False, resource=resource, need=need, reason="there are no rules at all")
        return next((decision for decision in decisions if not decision.allowed), decisions[0])


_ACCESS_RANK = {"none": 3, "write": 2, "read": 1, "execute": 0}


def _rank(ranked: tuple[Segments, Rule]) -> tuple[object, ...]:
    """A total order, so that it never matters in which order rules were given."""
    pattern, rule = ranked
    ends = math.inf if rule.expires_at is None else rule.expires_at
    return specificity(pattern), pattern, _ACCESS_RANK[rule.access], ends, rule.source, rule.resource


def _reason(winner: Rule, equals: Sequence[Rule], need: str, *, allowed: bool) -> str:
    shown = f"{winner.resource} {winner.access}"
    if allowed:
        return f"{shown} gives {need}"
    if winner.access == "none":
        return f"{shown} forbids it"
    held = " and ".join(sorted({rule.access for rule in equals}))
    return f"the most specific rule, {winner.resource}, gives {held} but not {need}"
