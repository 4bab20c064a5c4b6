"""What is decided about one caller and one handler at one moment.

There is one function that decides, `judge`; listing, permitting, explaining and `permission:get_agent` are views of its record.
"""

import functools

import msgspec

from ksi_daemon.access import Need
from ksi_daemon.errors import ApprovalRequired, Forbidden, NotVisible
from ksi_daemon.gate.grants import Chain, Decision, Rule
from ksi_daemon.handler import Handler
from ksi_daemon.identifiers import EVENT_NAME

APPROVALS = "operation/"  # what a person agrees to, held as a grant


class Judgement(msgspec.Struct, frozen=True):
    """One decision for each right that the handler needs, the event's own first, and what refuses whatever the rules say."""

    agent_id: str
    event: str
    tool: str
    decisions: tuple[Decision, ...]
    inactive_reason: str | None = None  # why the caller may do nothing at all
    operator_only: bool = False

    @property
    def listed(self) -> bool:
        """Whether the caller sees the event and its tool: only the right to the event itself decides that."""
        return self.inactive_reason is None and not self.operator_only and self.decisions[0].allowed

    @property
    def allowed(self) -> bool:
        """Whether the caller may call it now, as far as rights go."""
        return self.listed and (len(self.decisions) == 1 or all(decision.allowed for decision in self.decisions))

    @property
    def rule(self) -> str | None:
        """The rule that lets the caller use the event, for the audit."""
        rule = self.decisions[0].rule
        return None if rule is None else f"{rule.resource} {rule.access} ({rule.source})"

    def refusal(self) -> Forbidden | ApprovalRequired:
        """What the caller may know of why it is refused."""
        if not self.listed:
            return unseen(self.agent_id, self.event, self.inactive_reason)
        lacking = next(decision for decision in self.decisions if not decision.allowed)
        hint = f"ask the operator: ksi permissions grant {self.agent_id} {lacking.resource} --access {lacking.need}"
        if lacking.resource.startswith(APPROVALS):
            return ApprovalRequired(f"{self.event} needs a person's consent for {lacking.resource}", hint=hint)
        return Forbidden(f"{self.event} also needs {lacking.need} on {lacking.resource}", hint=hint)


def judge(
    agent_id: str, handler: Handler, rights: Chain, *, now: float, inactive_reason: str | None = None
) -> Judgement:
    """Hold a handler's needs against an agent's rights."""
    needs = handler.needs
    own = () if not handler.traits.every_agent else (_open_to_all(*needs[0]),)
    decisions = (*own, *[rights.decide(resource, need, now) for resource, need in needs[len(own) :]])
    return Judgement(agent_id, handler.event, handler.tool, decisions, inactive_reason, handler.traits.operator_only)


@functools.cache
def _open_to_all(resource: str, need: Need) -> Decision:
    return Decision(True, resource, need, "every agent may call it", Rule(resource, need, "every agent"))


def unseen(agent_id: str, event: str, inactive_reason: str | None) -> Forbidden:
    """The one refusal for what does not exist and for what the caller may not see."""
    if inactive_reason is not None:
        return Forbidden(f"{agent_id} may do nothing now: {inactive_reason}", hint="ask the operator")
    return NotVisible(no_such_tool(event, agent_id))


def no_such_tool(asked: str, agent_id: str) -> str:
    """The one text for what does not exist and for what the caller may not see, so that both look the same."""
    if not EVENT_NAME.fullmatch(asked):
        return "no such tool for this agent; ask the operator to grant the one that you need"
    return (
        f"no such tool for this agent; ask the operator to grant it: ksi permissions grant {agent_id} 'events/{asked}'"
    )
