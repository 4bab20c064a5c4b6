"""Questions about rights that need the catalogue too: which tools an agent has, would have, and why not."""

from collections.abc import Iterable

from ksi_daemon.gate.explain import Explanation
from ksi_daemon.gate.gate import Gate
from ksi_daemon.gate.grants import Chain, Rule, RuleSet
from ksi_daemon.gate.tool_list import Needs, tools_for
from ksi_daemon.principal import Principal
from ksi_daemon.routing.router import Router


class Inquiry:
    """Asks the gate about the router's events."""

    def __init__(self, router: Router, gate: Gate) -> None:
        self._router = router
        self._gate = gate

    def now(self) -> float:
        """The time that expiries are held against."""
        return self._gate.rights.now()

    def needs(self) -> dict[str, Needs]:
        """Every event an agent could be given, with what it takes."""
        return {
            event: route.handler.needs
            for event, route in self._router.routes.items()
            if not route.handler.traits.operator_only
        }

    def tools(self, agent_id: str, *, without: str | None = None, plus: Iterable[Rule] = ()) -> set[str]:
        """The tools an agent may use, or would if one grant went and some rules came."""
        rights = self._gate.rights
        agent = rights.agent(agent_id)
        gone = rights.grants.get(agent_id, {}).get(without or "")
        held = [rule for rule in rights.rules(agent) if gone is None or rule.source != f"grant {gone.grant_id}"]
        links = [RuleSet([*held, *plus]), *rights.chain(agent_id).links[1:]]
        return set(tools_for(agent.profile, Chain(links), self.needs(), self.now()).allowed_tools)

    def explain(self, agent_id: str, asked: str) -> Explanation:
        """Why an agent may or may not call an event, which may also be named as a tool."""
        by_tool = {route.handler.tool: event for event, route in self._router.routes.items()}
        event = by_tool.get(asked, asked)
        route = self._router.routes.get(event)
        principal = Principal(kind="agent", name=agent_id, agent_id=agent_id)
        return self._gate.explain(principal, None if route is None else route.handler, event)
