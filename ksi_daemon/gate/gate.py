"""The gate that every call passes: may this caller do this now, and within its limits?

`judge` is the one predicate for listing, calling and explaining. The operator and the daemon pass: the socket has proved who the
operator is. Agents are asked about everything, on the state of this moment; plugins acting by themselves have what they declare.
"""

from ksi_daemon.errors import Forbidden, TooMany
from ksi_daemon.gate.breaker import Breakers
from ksi_daemon.gate.explain import (
    Condition,
    Explanation,
    active_condition,
    breaker_condition,
    operator_only_condition,
    rate_condition,
    slots_condition,
)
from ksi_daemon.gate.judgement import Judgement, judge, unseen
from ksi_daemon.gate.limits import Buckets, Rate
from ksi_daemon.gate.plugin_rights import PluginRights, refusal
from ksi_daemon.gate.rights import Rights
from ksi_daemon.gate.slots import Slot, Slots
from ksi_daemon.handler import Handler
from ksi_daemon.principal import Principal
from ksi_daemon.storage.agents import Agent

# Of one agent, whatever its profile, and of all unknown callers together.
REFUSALS = Rate(calls_per_minute=600, burst=100, concurrent_calls=None)


class Gate:
    """Rights, rates, slots and breakers of one daemon. `rate_limited` is off for load tests only."""

    def __init__(self, rights: Rights, *, rate_limited: bool = True) -> None:
        self.rights = rights
        self.plugins = PluginRights()
        self.rate_limited = rate_limited
        self.buckets = Buckets()
        self.refusals = Buckets()
        self.slots = Slots()
        self.breakers = Breakers()

    def judge(self, principal: Principal, handler: Handler) -> Judgement:
        """What is decided about an agent or a plugin, and a handler, now."""
        rights, agent_id = self.rights, principal.agent_id or ""
        if principal.kind == "plugin":
            return self.plugins.judge(principal.name, handler, now=rights.clock())
        return judge(
            agent_id,
            handler,
            rights.chain_of(principal),
            now=rights.clock(),
            inactive_reason=rights.inactive_reason(principal),
        )

    def permit(self, principal: Principal, handler: Handler) -> str | None:
        """The rule that lets an agent or a plugin call this; raises what the caller may know of a refusal."""
        if _may_everything(principal):
            return None
        judgement = self.judge(principal, handler)
        if not judgement.allowed:
            raise refusal(judgement) if principal.kind == "plugin" else judgement.refusal()
        return judgement.rule

    def lists(self, principal: Principal, handler: Handler) -> bool:
        """Whether a handler is listed for a caller."""
        return _may_everything(principal) or self.judge(principal, handler).listed

    def unseen(self, principal: Principal, event: str) -> Forbidden:
        """The refusal for an event that does not exist; the same as for one that the caller may not see."""
        return unseen(principal.agent_id or principal.name, event, self.rights.inactive_reason(principal))

    def receives(self, principal: Principal, notice: str) -> bool:
        """Whether a notice may reach a caller: an agent, if it may read an event of that name."""
        if principal.agent_id is None:
            return True
        if self.rights.inactive_reason(principal) is not None:
            return False
        return self.rights.decide(principal, f"events/{notice}", "read").allowed

    async def enter(self, principal: Principal, handler: Handler) -> Slot | None:
        """Charge the call to its agent and take a slot, waiting for one if need be; None without a limit. Raises `TooMany`."""
        if not self.rate_limited:
            return None
        lineage = self.rights.lineage(principal.agent_id or "")
        self._charge(lineage, handler.traits.cost)
        limit = self.rights.rate(lineage[0]).concurrent_calls
        return None if limit is None else await self.slots.enter(lineage[0].agent_id, limit)

    def limit_refusals(self, principal: Principal) -> TooMany | None:
        """Count a refused call; the error to answer with when the agent has had too many of them."""
        if not self.rate_limited:
            return None
        allowance = self.refusals.check(principal.agent_id or "", REFUSALS)
        if allowance.allowed:
            return None
        return TooMany(
            f"more than {REFUSALS.calls_per_minute} refused calls a minute",
            retry_after_s=allowance.retry_after_s,
            hint="system:discover lists what this agent may call",
        )

    def has_many_unauthenticated(self) -> bool:
        """Count a request whose caller is unknown; True when there have been very many of them."""
        return self.rate_limited and not self.refusals.check("", REFUSALS).allowed

    def forget(self, agent_id: str) -> None:
        """The agent was removed."""
        self.buckets.forget(agent_id)
        self.refusals.forget(agent_id)

    def explain(self, principal: Principal, handler: Handler | None, asked: str) -> Explanation:
        """Everything that decides about a call, in one record."""
        agent = self.rights.agent(principal.agent_id or "")
        if handler is None:
            return Explanation(agent.agent_id, asked)
        judgement = self.judge(principal, handler)
        chain, now = self.rights.chain_of(principal), self.rights.clock()
        rate = self.rights.rate(agent)
        open_to_all = judgement.decisions[:1] if handler.traits.every_agent else ()
        by_rules = handler.needs[len(open_to_all) :]
        conditions: list[Condition] = [
            active_condition(judgement.inactive_reason),
            operator_only_condition(operator_only=judgement.operator_only),
            *self._rate_conditions(agent, handler.traits.cost),
            slots_condition(rate.concurrent_calls if self.rate_limited else None, self.slots.in_use(agent.agent_id)),
            breaker_condition(self.breakers.of(handler.plugin)),
        ]
        return Explanation(
            agent.agent_id,
            handler.event,
            judgement=judgement,
            decisions=(
                *open_to_all,
                *(decision for resource, need in by_rules for decision in chain.decisions(resource, need, now)),
            ),
            conditions=tuple(conditions),
        )

    def _charge(self, lineage: list[Agent], cost: float) -> None:
        """Take the cost from the agent's bucket and from those of the agents above it, or from none of them."""
        if len(lineage) > 1:
            for agent in lineage:
                rate = self.rights.rate(agent)
                self.buckets.refuse(agent.agent_id, rate, self.buckets.peek(agent.agent_id, rate, cost))
        for agent in lineage:
            self.buckets.require(agent.agent_id, self.rights.rate(agent), cost)

    def _rate_conditions(self, agent: Agent, cost: float) -> list[Condition]:
        if not self.rate_limited:
            return [rate_condition(agent.agent_id, None, self.buckets.peek(agent.agent_id, None))]
        return [
            rate_condition(holder.agent_id, rate, self.buckets.peek(holder.agent_id, rate, cost))
            for holder in self.rights.lineage(agent.agent_id)
            if (rate := self.rights.rate(holder)).calls_per_minute is not None or holder is agent
        ]


def _may_everything(principal: Principal) -> bool:
    return principal.agent_id is None and principal.kind != "plugin"
