"""Why a call is or would be refused: every rule and every other condition in one record, and the same in words.

The operator reads all of it; `for_caller` leaves out what a caller may not know. Deciding is left to the parts that are asked.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from ksi_daemon.gate.breaker import Breaker
from ksi_daemon.gate.grants import Decision, Rule
from ksi_daemon.gate.limits import Allowance, Rate
from ksi_daemon.identifiers import EVENT_NAME, tool_name
from ksi_daemon.notice import iso_time

About = Literal["agent", "token", "rate", "slots", "breaker", "approval", "operator_only", "hub"]


class Condition(msgspec.Struct, frozen=True):
    """Something besides rules that must be so. `for_caller`: the words for the caller, where they differ; "" hides it."""

    about: About
    ok: bool
    text: str
    for_caller: str | None = None
    retry_after_s: float | None = None


class Explanation(msgspec.Struct, frozen=True):
    """Whether an agent may call an event now, and everything that says so. `known`: whether anybody owns the event."""

    agent: str
    asked: str
    allowed: bool
    known: bool
    decisions: tuple[Decision, ...] = ()
    conditions: tuple[Condition, ...] = ()

    @property
    def listed(self) -> bool:
        """Whether the agent sees the event's tool: rules about the event itself decide that, unless it is the operator's."""
        if any(condition.about == "operator_only" and not condition.ok for condition in self.conditions):
            return False
        own = [decision for decision in self.decisions if decision.resource == f"events/{self.asked}"]
        return self.known and bool(own) and all(decision.allowed for decision in own)

    @property
    def retry_after_s(self) -> float | None:
        """The longest wait that a failing condition asks for; None when waiting does not help."""
        if not all(decision.allowed for decision in self.decisions):
            return None
        waits = [condition.retry_after_s for condition in self.conditions if not condition.ok]
        return max((wait for wait in waits if wait is not None), default=None) if None not in waits else None

    def as_dict(self) -> dict[str, Any]:
        """For an answer: everything in the text, in parts."""
        told = {
            "agent": self.agent,
            "event": self.asked,
            "tool": tool_name(self.asked) if self.known else None,
            "allowed": self.allowed,
            "known": self.known,
            "decisions": [_decision_dict(decision) for decision in self.decisions],
            "conditions": [
                {"about": condition.about, "ok": condition.ok, "text": condition.text} for condition in self.conditions
            ],
            "retry_after_s": self.retry_after_s,
            "text": self.text(),
        }
        return {name: value for name, value in told.items() if value is not None}

    def text(self) -> str:
        """In words, one fact a line."""
        if not self.known:
            return f"no plugin owns the event {ascii(self.asked)[:120]}: `ksi events ls` shows the events there are"
        verb = "may call" if self.allowed else "may not call"
        lines = [f"{self.agent} {verb} {self.asked} (tool {tool_name(self.asked)})"]
        for decision in self.decisions:
            lines += _decision_lines(decision)
        lines += [f"  {'ok' if condition.ok else 'no'}: {condition.text}" for condition in self.conditions]
        return "\n".join(lines)

    def for_caller(self, *, names_are_public: bool = False) -> str:
        """The same in a refusal. Where names are not public, a tool that the caller does not see does not exist for it."""
        if not names_are_public and not self.listed:
            return no_such_tool(self.asked, self.agent)
        if not self.known:
            return f"there is no {ascii(self.asked)[:120]}"
        lines = [f"you {'may' if self.allowed else 'may not'} call {self.asked}"]
        for decision in self.decisions:
            lines += _decision_lines_for_caller(decision)
        for condition in self.conditions:
            said = condition.text if condition.for_caller is None else condition.for_caller
            if said:
                lines.append(f"  {'ok' if condition.ok else 'no'}: {said}")
        return "\n".join(lines)


def explain(
    agent: str,
    event: str,
    *,
    known: bool,
    decisions: Sequence[Decision] = (),
    conditions: Iterable[Condition] = (),
) -> Explanation:
    """Put decisions (each need, each link of the chain) and conditions together."""
    conditions = tuple(conditions)
    allowed = known and bool(decisions) and all(one.allowed for one in decisions) and all(one.ok for one in conditions)
    return Explanation(agent, event, allowed, known, tuple(decisions), conditions)


def no_such_tool(asked: str, agent: str) -> str:
    """The one text for what does not exist and for what the caller may not see, so that nobody can tell them apart."""
    if not EVENT_NAME.fullmatch(asked):
        return "no such tool for this agent; ask the operator to grant the one that you need"
    return f"no such tool for this agent; ask the operator to grant it: ksi permissions grant {agent} 'events/{asked}'"


def agent_condition(*, frozen: bool) -> Condition:
    """Frozen agents keep everything and may do nothing."""
    return Condition("agent", not frozen, "the agent is frozen" if frozen else "the agent is not frozen")


def token_condition(*, expires_at: float | None, revoked: bool, now: float) -> Condition:
    """The credential that the call came with."""
    if revoked:
        return Condition("token", False, "the token was revoked")
    if expires_at is not None and now >= expires_at:
        return Condition("token", False, f"the token expired at {iso_time(expires_at)}")
    until = "does not expire" if expires_at is None else f"is good until {iso_time(expires_at)}"
    return Condition("token", True, f"the token {until}")


def rate_condition(rate: Rate | None, allowance: Allowance) -> Condition:
    """The agent's token bucket."""
    if rate is None or rate.calls_per_minute is None:
        return Condition("rate", True, "no rate limit")
    limit = f"{rate.calls_per_minute} calls a minute, bursts of {rate.burst}"
    if allowance.allowed:
        return Condition("rate", True, f"{limit}: {allowance.remaining:.0f} left now")
    wait_s = allowance.retry_after_s
    return Condition("rate", False, f"{limit}: used up, try again in {wait_s:g} s", retry_after_s=wait_s)


def slots_condition(limit: int | None, in_use: int) -> Condition:
    """The agent's calls under way. A full house only means waiting, so it refuses nothing by itself."""
    if limit is None:
        return Condition("slots", True, "no limit on calls at once")
    waits = "; the next one waits" if in_use >= limit else ""
    return Condition("slots", True, f"{in_use} of {limit} calls at once are under way{waits}")


def breaker_condition(breaker: Breaker) -> Condition:
    """The backend's circuit breaker. Its failures are the operator's business."""
    state, wait_s = breaker.state, breaker.retry_after_s
    if state == "closed":
        text = f"the breaker of {breaker.backend} is closed, {breaker.recent_failures} recent failures"
        return Condition("breaker", True, text, for_caller="")
    if wait_s == 0:
        text = f"the breaker of {breaker.backend} is half open: the next call is a probe"
        return Condition("breaker", True, text, for_caller="")
    return Condition(
        "breaker",
        False,
        f"the breaker of {breaker.backend} is {state.replace('_', ' ')}, opened {breaker.opened} times; "
        f"try again in {wait_s:g} s",
        for_caller=f"this part failed too often and is left alone; try again in {wait_s:g} s",
        retry_after_s=wait_s,
    )


def approval_condition(*, needed: bool, given: bool) -> Condition:
    """A call that a person must agree to, each time."""
    if not needed:
        return Condition("approval", True, "needs nobody's approval")
    if given:
        return Condition("approval", True, "approved")
    return Condition("approval", False, "needs a person's approval: `ksi consent ls` shows it, then retry the same call",
                     for_caller="needs a person's approval; retry the same call after it was given")  # fmt: skip


def operator_only_condition(*, operator_only: bool) -> Condition:
    """Some events belong to the operator whatever the rules say."""
    return Condition("operator_only", not operator_only, "only for the operator" if operator_only else "open to agents")


def _shown(rule: Rule) -> str:
    until = "" if rule.expires_at is None else f", until {iso_time(rule.expires_at)}"
    return f"{rule.resource} {rule.access} ({rule.source}{until})"


_HEADING = {"own": "", "parent": " in the rules of its parent", "ceiling": " under the ceiling of its token"}


def _decision_lines(decision: Decision) -> list[str]:
    lines = [
        f"  {'ok' if decision.allowed else 'no'}: needs {decision.need} on {decision.resource}"
        f"{_HEADING[decision.whose]}: {decision.reason}"
    ]
    if decision.rule is not None:
        lines.append(f"      decided by  {_shown(decision.rule)}")
    lines += [f"      beats       {_shown(rule)}" for rule in decision.beaten]
    lines += [f"      expired     {_shown(rule)}" for rule in decision.expired]
    return lines


def _decision_lines_for_caller(decision: Decision) -> list[str]:
    """A caller may read its own rules and its token's ceiling; of its parent only that it does not allow this."""
    if decision.whose != "parent":
        return _decision_lines(decision)
    if decision.allowed:
        return []
    return [f"  no: needs {decision.need} on {decision.resource}: whoever started this agent does not have it either"]


def _decision_dict(decision: Decision) -> dict[str, Any]:
    return {
        "allowed": decision.allowed,
        "need": decision.need,
        "resource": decision.resource,
        "whose": decision.whose,
        "reason": decision.reason,
        "rule": None if decision.rule is None else msgspec.to_builtins(decision.rule),
        "beaten": [msgspec.to_builtins(rule) for rule in decision.beaten],
        "expired": [msgspec.to_builtins(rule) for rule in decision.expired],
    }
