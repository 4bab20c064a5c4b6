"""Which tools an agent has, would have after a change of its grants, and why not: the gate's judgement over the catalogue."""

from collections.abc import Iterable, Iterator

import msgspec

from ksi_daemon.gate.explain import Explanation
from ksi_daemon.gate.gate import Gate
from ksi_daemon.gate.grants import Chain, Rule, RuleSet
from ksi_daemon.gate.judgement import judge
from ksi_daemon.handler import Handler
from ksi_daemon.identifiers import namespace_of
from ksi_daemon.principal import Principal
from ksi_daemon.routing.router import Router


class ToolList(msgspec.Struct, frozen=True):
    """An agent's tools, in the words of the KSI specification. A module is allowed when all of its events are listed."""

    allowed_tools: list[str]
    allowed_modules: list[str]
    disallowed_tools: list[str]
    needs_grant: dict[str, list[str]]  # listed tools whose call needs a further right that the agent lacks


class AgentTools:
    """Asks the gate about the router's events. Events for the operator alone are no tools of agents."""

    def __init__(self, router: Router, gate: Gate) -> None:
        self._router = router
        self._gate = gate

    def now(self) -> float:
        """The time that expiries are held against."""
        return self._gate.rights.clock()

    def tool_list(self, agent_id: str) -> ToolList:
        """What the agent sees at this moment."""
        principal = _principal(agent_id)
        judged = {handler.event: (handler, self._gate.judge(principal, handler)) for handler in self._handlers()}
        listed = {event for event, (_, judgement) in judged.items() if judgement.listed}
        hidden = judged.keys() - listed
        return ToolList(
            allowed_tools=sorted(judged[event][0].tool for event in listed),
            allowed_modules=sorted(
                {namespace_of(event) for event in listed} - {namespace_of(event) for event in hidden}
            ),
            disallowed_tools=sorted(judged[event][0].tool for event in hidden),
            needs_grant={
                judged[event][0].tool: [
                    f"{decision.need} on {decision.resource}"
                    for decision in judged[event][1].decisions
                    if not decision.allowed
                ]
                for event in sorted(listed)
                if not judged[event][1].allowed
            },
        )

    def usable(self, agent_id: str, *, without: str | None = None, plus: Iterable[Rule] = ()) -> set[str]:
        """The tools an agent may use by its rights, or could if one grant went and some rules came."""
        rights = self._gate.rights
        agent = rights.agent(agent_id)
        revoked = rights.grants.get(agent_id, {}).get(without or "")
        held = [rule for rule in rights.rules(agent) if revoked is None or rule.source != f"grant {revoked.grant_id}"]
        chain = Chain([RuleSet([*held, *plus]), *rights.chain(agent_id).links[1:]])
        now = self.now()
        return {handler.tool for handler in self._handlers() if judge(agent_id, handler, chain, now=now).allowed}

    def explain(self, agent_id: str, asked: str) -> Explanation:
        """Why an agent may or may not call an event, which may also be named as a tool."""
        by_tool = {route.handler.tool: event for event, route in self._router.routes.items()}
        event = by_tool.get(asked, asked)
        route = self._router.routes.get(event)
        return self._gate.explain(_principal(agent_id), None if route is None else route.handler, event)

    def _handlers(self) -> Iterator[Handler]:
        for route in self._router.routes.values():
            if not route.handler.traits.operator_only:
                yield route.handler


def _principal(agent_id: str) -> Principal:
    return Principal(kind="agent", name=agent_id, agent_id=agent_id)
