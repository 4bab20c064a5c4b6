"""Why a call is or would be refused, for the operator: the judgement, every rule and every other condition, and the same in words.

Deciding is left to `judgement.py` and to the limits that are asked.
"""

from typing import Any, Literal

import msgspec

from ksi_daemon.gate.breaker import Breaker
from ksi_daemon.gate.grants import Decision, Rule
from ksi_daemon.gate.judgement import Judgement
from ksi_daemon.gate.limits import Allowance, Rate
from ksi_daemon.notice import iso_time

About = Literal["agent", "rate", "slots", "breaker", "operator_only"]


class Condition(msgspec.Struct, frozen=True):
    """Something besides rules that must be so."""

    about: About
    ok: bool
    text: str
    retry_after_s: float | None = None


class Explanation(msgspec.Struct, frozen=True):
    """Whether an agent may call an event now, and everything that decides it. Without a judgement the event does not exist."""

    agent: str
    asked: str
    judgement: Judgement | None = None
    decisions: tuple[Decision, ...] = ()
    conditions: tuple[Condition, ...] = ()

    @property
    def known(self) -> bool:
        """Whether a plugin owns the event."""
        return self.judgement is not None

    @property
    def allowed(self) -> bool:
        """Whether a call would be let through now: by its rights, and by every limit."""
        permitted = self.judgement is not None and self.judgement.allowed
        return permitted and all(condition.ok for condition in self.conditions)

    @property
    def retry_after_s(self) -> float | None:
        """The longest wait that a failing condition asks for; None when waiting does not help."""
        if self.judgement is None or not self.judgement.allowed:
            return None
        waits = [condition.retry_after_s for condition in self.conditions if not condition.ok]
        return max((wait for wait in waits if wait is not None), default=None) if None not in waits else None

    def as_dict(self) -> dict[str, Any]:
        """For an answer: everything in the text, in parts."""
        facts = {
            "agent": self.agent,
            "event": self.asked,
            "tool": None if self.judgement is None else self.judgement.tool,
            "allowed": self.allowed,
            "known": self.known,
            "decisions": [_decision_dict(decision) for decision in self.decisions],
            "conditions": [
                {"about": condition.about, "ok": condition.ok, "text": condition.text} for condition in self.conditions
            ],
            "retry_after_s": self.retry_after_s,
            "text": self.text(),
        }
        return {name: value for name, value in facts.items() if value is not None}

    def text(self) -> str:
        """In words, one fact a line."""
        if self.judgement is None:
            return f"no plugin owns the event {ascii(self.asked)[:120]}: `ksi events ls` shows the events there are"
        verb = "may call" if self.allowed else "may not call"
        lines = [f"{self.agent} {verb} {self.asked} (tool {self.judgement.tool})"]
        for decision in self.decisions:
            lines += _decision_lines(decision)
        lines += [f"  {'ok' if condition.ok else 'no'}: {condition.text}" for condition in self.conditions]
        return "\n".join(lines)


def active_condition(inactive_reason: str | None) -> Condition:
    """A frozen agent keeps everything and may do nothing; a revoked token may do nothing either."""
    return Condition("agent", inactive_reason is None, inactive_reason or "the agent is active")


def rate_condition(agent_id: str, rate: Rate | None, allowance: Allowance) -> Condition:
    """The token bucket of the agent, or of one that it descends from."""
    if rate is None or rate.calls_per_minute is None:
        return Condition("rate", True, "no rate limit")
    limit = f"{rate.calls_per_minute} calls a minute, bursts of {rate.burst}, for {agent_id} and its children"
    if allowance.allowed:
        return Condition("rate", True, f"{limit}: {allowance.remaining:.0f} left now")
    wait_s = allowance.retry_after_s
    return Condition("rate", False, f"{limit}: used up, try again in {wait_s:g} s", retry_after_s=wait_s)


def slots_condition(limit: int | None, in_use: int) -> Condition:
    """The agent's calls under way. When all slots are in use the next call waits, so this refuses nothing by itself."""
    if limit is None:
        return Condition("slots", True, "no limit on calls at once")
    waits = "; the next one waits" if in_use >= limit else ""
    return Condition("slots", True, f"{in_use} of {limit} calls at once are under way{waits}")


def breaker_condition(breaker: Breaker) -> Condition:
    """The plugin's circuit breaker."""
    state, wait_s = breaker.state, breaker.retry_after_s
    if state == "closed":
        text = f"the circuit breaker of {breaker.backend} is closed, {breaker.recent_failures} recent failures"
        return Condition("breaker", True, text)
    if wait_s == 0:
        text = f"the circuit breaker of {breaker.backend} is half open: the next call is a probe"
        return Condition("breaker", True, text)
    text = (
        f"the circuit breaker of {breaker.backend} is {state.replace('_', ' ')}, opened {breaker.opened} times; "
        f"try again in {wait_s:g} s"
    )
    return Condition("breaker", False, text, retry_after_s=wait_s)


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
