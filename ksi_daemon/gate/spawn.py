"""What a parent cannot give: the rules asked for a child, held against the parent's own.

At call time the intersection decides and a child can never do more than its parent. This module says so beforehand, and errs to
the safe side: a rule it calls covered is covered in every case.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from ksi_daemon.gate.grants import Chain, Rule, RuleSet, Whose, gives, strongest
from ksi_daemon.gate.resources import Segments, intersection, parse_resource, specificity, subsumes

Groups = dict[Segments, list[Rule]]  # rules about the same pattern: they decide together


class Shortfall(msgspec.Struct, frozen=True):
    """A requested rule that the parent does not fully hold, and why. `part`: some of what it covers would work."""

    rule: Rule
    missing: Literal["all", "part"]
    because: str
    whose: Whose


def validate_spawn(parent: Chain, requested: Sequence[Rule], now: float) -> list[Shortfall]:
    """Every requested rule that some link of the parent's chain lacks, wholly or in part, in the order requested."""
    found = [shortfall for link in parent.links for shortfall in shortfalls(link, requested, now)]
    return sorted(found, key=lambda shortfall: requested.index(shortfall.rule))


def shortfalls(parent: RuleSet, requested: Sequence[Rule], now: float) -> list[Shortfall]:
    """The same for one link. Parts that the requested rules themselves close again are not counted as missing."""
    held, asked = _groups(parent.rules, now), _groups(requested, now)
    found: list[Shortfall] = []
    for rule in requested:
        if rule.access != "none" and rule.holds(now):
            missing = _missing(held, asked, rule)
            if missing is not None:
                found.append(Shortfall(rule=rule, missing=missing[0], because=missing[1], whose=parent.whose))
    return found


def _missing(held: Groups, asked: Groups, rule: Rule) -> tuple[Literal["all", "part"], str] | None:
    pattern = parse_resource(rule.resource)
    base = _widest_decider(held, pattern)
    if base is None or not gives(held[base], rule.access):
        some = any(gives(rules, rule.access) and intersection(own, pattern) for own, rules in held.items())
        if base is None:
            because = f"the parent has no rule that takes in all of {rule.resource}"
        else:
            because = f"the parent's rule {_shown(held[base])} does not give {rule.access}"
        return ("part" if some else "all"), because
    for own, rules in held.items():
        region = intersection(own, pattern)
        if region is None or specificity(own) <= specificity(base) or gives(rules, rule.access):
            continue
        decider = _widest_decider(asked, region)
        if decider is not None and specificity(decider) > specificity(pattern):
            continue  # there another requested rule decides, and that one is held against the parent by itself
        if not _always(asked, region, lambda theirs: not gives(theirs, rule.access)):
            return "part", f"the parent's rule {_shown(rules)} does not give {rule.access}"
    return None


def _always(groups: Groups, region: Segments, holds: Callable[[list[Rule]], bool]) -> bool:
    """Whether the deciding rules hold to something everywhere in a region. May say no where the answer is yes."""
    base = _widest_decider(groups, region)
    if not holds([] if base is None else groups[base]):
        return False
    return all(
        holds(rules)
        for pattern, rules in groups.items()
        if (base is None or specificity(pattern) > specificity(base)) and intersection(pattern, region) is not None
    )


def _widest_decider(groups: Groups, region: Segments) -> Segments | None:
    """The most specific pattern that takes in the whole region: it decides wherever nothing more specific does."""
    return max((pattern for pattern in groups if subsumes(pattern, region)), key=specificity, default=None)


def _groups(rules: Sequence[Rule], now: float) -> Groups:
    groups: Groups = {}
    for rule in rules:
        if rule.holds(now):
            groups.setdefault(parse_resource(rule.resource), []).append(rule)
    return {pattern: strongest(group) for pattern, group in groups.items()}


def _shown(rules: list[Rule]) -> str:
    return f"{rules[0].resource} ({' and '.join(sorted({rule.access for rule in rules}))})"
