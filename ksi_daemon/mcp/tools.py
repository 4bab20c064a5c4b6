"""Events as tools: which name stands for which event, and which tools a caller sees now. Knows nothing of the protocol."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from ksi_daemon.gate.gate import Gate
from ksi_daemon.handler import Handler
from ksi_daemon.hygiene.mirrored_headers import mirrored_headers
from ksi_daemon.principal import Principal
from ksi_daemon.routing.describe import thin_definition, tool_definition
from ksi_daemon.routing.router import Router
from ksi_daemon.storage.mcp_sessions import HandshakeKind
from ksi_daemon.view import View, ViewTool

BYTES_PER_TOKEN = 4  # an estimate: tokenizers of models differ, and none of them is installed here

_encode = msgspec.json.Encoder().encode


class Definition(msgspec.Struct, frozen=True):
    """A tool as the protocol describes it, with its size."""

    wire: dict[str, Any]
    size: int

    @classmethod
    def of(cls, wire: dict[str, Any]) -> "Definition":
        return cls(wire, len(_encode(wire)))


class OfferedTool(msgspec.Struct, frozen=True):
    """A tool under one of its names: the event's own, or the one that a view gives it."""

    name: str
    handler: Handler
    full: Definition
    thin: Definition
    digest: bytes  # of the full definition
    mirrored: Mapping[str, str]  # parameters that clients repeat as headers
    view: View | None = None
    tool: ViewTool | None = None


def _offered(handler: Handler, view: View | None = None, tool: ViewTool | None = None) -> OfferedTool:
    wire = tool_definition(handler)
    if view is not None and tool is not None:
        wire |= {
            "name": tool.name,
            "title": tool.title or wire["title"],
            "description": tool.description or wire["description"],
        }
        if view.dialect.success is not None:
            del wire["outputSchema"]  # it describes the event's result, not what the dialect makes of it
    digest = hashlib.sha256(_encode(wire)).digest()
    thin = Definition.of(thin_definition(wire))
    mirrored = mirrored_headers(handler.input_schema)
    return OfferedTool(wire["name"], handler, Definition.of(wire), thin, digest, mirrored, view, tool)


def fingerprint(tools: Iterable[OfferedTool]) -> str:
    """A hash of what an agent may see: the same over restarts, and another when a name, a text or a schema changes."""
    return hashlib.sha256(b"".join(tool.digest for tool in tools)).hexdigest()


def sizes(tools: Iterable[OfferedTool], kind: HandshakeKind) -> tuple[int, int]:
    """The bytes of a list of these tools, and its tokens, estimated."""
    size = sum((tool.full if kind == "full" else tool.thin).size for tool in tools)
    return size, round(size / BYTES_PER_TOKEN)


class _Catalogue(msgspec.Struct, frozen=True):
    """Every tool at one moment."""

    version: int
    own: dict[str, OfferedTool]  # by the events' own tool names, in their order
    definitions: Mapping[str, View]
    views: dict[str, dict[str, OfferedTool]]  # by view and name, in the order of the view
    in_any_view: dict[str, OfferedTool]  # by names that only one view uses, or several for the same event


class Tools:
    """A view of the router's events by tool name, made anew whenever the events change."""

    def __init__(self, router: Router, gate: Gate, views: Callable[[], Mapping[str, View]]) -> None:
        self._router = router
        self._gate = gate
        self._views = views
        self._known = _Catalogue(-1, {}, {}, {}, {})

    @property
    def _catalogue(self) -> _Catalogue:
        version = self._router.catalogue_version
        if self._known.version != version:
            self._known = _catalogue(version, self._router, self._views())
        return self._known

    @property
    def own_names(self) -> list[str]:
        """The names of all tools, as their events have them."""
        return list(self._catalogue.own)

    @property
    def view_names(self) -> list[str]:
        """The names of all views."""
        return list(self._catalogue.views)

    def has_view(self, view: str) -> bool:
        """Whether there is a view of this name now."""
        return view in self._catalogue.views

    def visible(self, principal: Principal, view: str | None) -> list[OfferedTool]:
        """The tools that a caller may see at this moment, in the order in which they are listed."""
        catalogue = self._catalogue
        offered = catalogue.own if view is None else catalogue.views.get(view, {})
        return [tool for tool in offered.values() if self._gate.lists(principal, tool.handler)]

    def find(self, name: str, view: str | None) -> OfferedTool | None:
        """The tool of this name: in the view, by its event's own name, or by the name that another view gives it."""
        catalogue = self._catalogue
        in_view = catalogue.views.get(view or "", {}).get(name)
        return in_view or catalogue.own.get(name) or catalogue.in_any_view.get(name)

    def of_event(self, event: str) -> OfferedTool | None:
        """An event's tool, under its own name."""
        route = self._router.routes.get(event)
        return None if route is None else self._catalogue.own.get(route.handler.tool)

    def allows(self, principal: Principal, tool: OfferedTool) -> bool:
        """Whether a caller may call a tool now, as far as rights go."""
        return principal.agent_id is None or self._gate.judge(principal, tool.handler).allowed

    def seen(self, principal: Principal, name: str) -> OfferedTool | None:
        """The tool of this name, or of the event of this name, if the caller may see it."""
        tool = self.find(name, principal.default_view) or self.of_event(name)
        return tool if tool is not None and self._gate.lists(principal, tool.handler) else None

    def view(self, name: str | None) -> View | None:
        """A view by its name."""
        return self._catalogue.definitions.get(name or "")


def _catalogue(version: int, router: Router, views: Mapping[str, View]) -> _Catalogue:
    handlers = {event: route.handler for event, route in router.routes.items()}
    own = {handler.tool: _offered(handler) for handler in handlers.values()}
    in_views: dict[str, dict[str, OfferedTool]] = {
        name: {
            tool.name: _offered(handlers[tool.event], view, tool)
            for tool in view.tools
            if tool.event in handlers  # an event is missing when the machine lacks what it needs
        }
        for name, view in sorted(views.items())
    }
    in_any_view: dict[str, OfferedTool] = {}
    ambiguous: set[str] = set()
    for tools in in_views.values():
        for name, tool in tools.items():
            other = in_any_view.setdefault(name, tool)
            if other.handler is not tool.handler:
                ambiguous.add(name)
    unique = {name: tool for name, tool in in_any_view.items() if name not in ambiguous}
    return _Catalogue(version, dict(sorted(own.items())), views, in_views, unique)
