"""The gate in the router's line: may this caller do this now, and is there room for it?

One predicate for listing, calling and explaining. The operator, the daemon and plugins acting by themselves pass: the socket has
proved who the operator is, and plugins are trusted code. Agents are asked about everything, on the state of this moment.
"""

from ksi_daemon.errors import ApprovalRequired, Forbidden
from ksi_daemon.gate.breaker import Breakers
from ksi_daemon.gate.explain import (
    Condition,
    Explanation,
    agent_condition,
    breaker_condition,
    explain,
    no_such_tool,
    operator_only_condition,
    rate_condition,
    slots_condition,
)
from ksi_daemon.gate.grants import Decision
from ksi_daemon.gate.limits import Buckets, Rate
from ksi_daemon.gate.rights import Rights
from ksi_daemon.gate.slots import Slots
from ksi_daemon.handler import Handler
from ksi_daemon.principal import Principal

APPROVALS = "operation/"  # what a person agrees to, held as a grant


class Gate:
    """Rights, rates, slots and breakers of one daemon. `rate_limited` is off for load tests only."""

    def __init__(self, rights: Rights, *, rate_limited: bool = True) -> None:
        self.rights = rights
        self.rate_limited = rate_limited
        self.buckets = Buckets()
        self.slots = Slots()
        self.breakers = Breakers()

    def permit(self, principal: Principal, handler: Handler) -> str | None:
        """The rule that lets an agent call this; raises what the caller may know of a refusal."""
        if principal.agent_id is None:
            return None
        reason = self.rights.inactive_reason(principal)
        if reason is not None:
            raise self._inactive(principal, reason)
        if handler.traits.operator_only:
            raise self.unseen(principal, handler.event)
        decided: Decision | None = None
        for resource, need in handler.needs:
            decision = self.rights.decide(principal, resource, need)
            decided = decided or decision
            if not decision.allowed:
                raise self._refusal(principal, handler, decision)
        rule = decided.rule if decided is not None else None
        return None if rule is None else f"{rule.resource} {rule.access} ({rule.source})"

    def unseen(self, principal: Principal, event: str) -> Forbidden:
        """The one refusal for what does not exist and for what this agent may not see."""
        reason = self.rights.inactive_reason(principal)
        if reason is not None:
            return self._inactive(principal, reason)
        return Forbidden(no_such_tool(event, principal.agent_id or principal.name))

    def sees(self, principal: Principal, handler: Handler) -> bool:
        """Whether a handler is listed for a caller: rules about the event itself decide that."""
        if principal.agent_id is None:
            return True
        if handler.traits.operator_only or self.rights.inactive_reason(principal) is not None:
            return False
        resource, need = handler.needs[0]
        return self.rights.decide(principal, resource, need).allowed

    def hears(self, principal: Principal, notice: str) -> bool:
        """Whether a notice may reach a caller: for an agent, if it may read an event of that name."""
        if principal.agent_id is None:
            return True
        if self.rights.inactive_reason(principal) is not None:
            return False
        return self.rights.decide(principal, f"events/{notice}", "read").allowed

    async def enter(self, principal: Principal, handler: Handler) -> bool:
        """Pay for the call and take a slot, waiting for one if need be; whether there is one to give back. Raises `TooMany`."""
        rate = self.rate(principal)
        name = principal.agent_id or ""
        self.buckets.require(name, rate, handler.traits.cost)
        if rate is not None and rate.concurrent_calls is not None:
            await self.slots.enter(name, rate.concurrent_calls)
            return True
        return False

    def leave(self, principal: Principal) -> None:
        """Give the slot back."""
        self.slots.leave(principal.agent_id or "")

    def rate(self, principal: Principal) -> Rate | None:
        """The limits that hold for a caller."""
        return self.rights.rate(principal) if self.rate_limited else None

    def explain(self, principal: Principal, handler: Handler | None, asked: str) -> Explanation:
        """Everything that decides about a call, in one record."""
        agent = self.rights.agent(principal.agent_id or "")
        if handler is None:
            return explain(agent.agent_id, asked, known=False)
        chain, now = self.rights.chain(agent.agent_id, principal.credential_id), self.rights.now()
        decisions = [said for resource, need in handler.needs for said in chain.decisions(resource, need, now)]
        rate = self.rate(principal)
        conditions: list[Condition] = [
            agent_condition(frozen=any(one.frozen for one in self.rights.lineage(agent.agent_id))),
            operator_only_condition(operator_only=handler.traits.operator_only),
            rate_condition(rate, self.buckets.peek(agent.agent_id, rate, handler.traits.cost)),
            slots_condition(None if rate is None else rate.concurrent_calls, self.slots.in_use(agent.agent_id)),
            breaker_condition(self.breakers.of(handler.plugin)),
        ]
        return explain(agent.agent_id, handler.event, known=True, decisions=decisions, conditions=conditions)

    def _inactive(self, principal: Principal, reason: str) -> Forbidden:
        return Forbidden(f"{principal.agent_id} may do nothing now: {reason}", hint="ask the operator")

    def _refusal(self, principal: Principal, handler: Handler, decision: Decision) -> Forbidden | ApprovalRequired:
        if decision.resource == handler.needs[0][0]:
            return self.unseen(principal, handler.event)
        if decision.resource.startswith(APPROVALS):
            return ApprovalRequired(
                f"{handler.event} needs a person's consent for {decision.resource}",
                hint=f"ask the operator: ksi permissions grant {principal.agent_id} {decision.resource} --access {decision.need}",
            )
        return Forbidden(
            f"{handler.event} also needs {decision.need} on {decision.resource}",
            hint=f"ask the operator: ksi permissions grant {principal.agent_id} {decision.resource} --access {decision.need}",
        )
