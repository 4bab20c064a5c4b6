"""Events as tools: which tool is which event, and which tools a caller sees now. Knows nothing of the protocol."""

from ksi_daemon.gate.gate import Gate
from ksi_daemon.handler import Handler
from ksi_daemon.principal import Principal
from ksi_daemon.routing.router import Router


class Tools:
    """A view of the router's events by tool name, made anew whenever the events change."""

    def __init__(self, router: Router, gate: Gate) -> None:
        self._router = router
        self._gate = gate
        self._version = -1
        self._by_name: dict[str, Handler] = {}

    @property
    def by_name(self) -> dict[str, Handler]:
        """Every tool, in the order of its name."""
        if self._version != self._router.catalogue_version:
            self._version = self._router.catalogue_version
            handlers = [route.handler for route in self._router.routes.values()]
            self._by_name = {handler.tool: handler for handler in sorted(handlers, key=lambda handler: handler.tool)}
        return self._by_name

    def visible(self, principal: Principal) -> list[Handler]:
        """The tools that a caller may see at this moment, in the order of their names."""
        return [handler for handler in self.by_name.values() if self._gate.lists(principal, handler)]

    def event_of(self, tool: str) -> str:
        """The event behind a tool. For an unknown tool its own name, which no event can have, so that the router refuses it."""
        handler = self.by_name.get(tool)
        return tool if handler is None else handler.event
