"""Views: some events under the tool names, in the order, and with the envelope and errors that a specification gives them.

A view is served at `/mcp/<its name>`; rights are those of the events behind it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ksi_daemon.errors import KsiError
from ksi_daemon.handler import PluginRefused
from ksi_daemon.identifiers import RESERVED_VIEWS, TOOL_NAME, VIEW_NAME, tool_name


@dataclass(frozen=True, slots=True)
class ViewTool:
    """One tool of a view: its name, the event behind it, and texts that replace the event's own."""

    name: str
    event: str
    title: str | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """How a dialect writes an error: as a result that is marked as an error, or as an error of the protocol with this as its data."""

    body: dict[str, Any]
    protocol_error: bool = False


Success = Callable[[str, Any], Any]
Fail = Callable[[str, KsiError], Failure | None]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a view writes results and errors, both given the tool's name.

    `success` makes any JSON value of an event's result: an envelope, a list, null. `failure` writes an error in the specification's
    codes, or returns None for what it does not know, which is then answered as everywhere else.
    """

    success: Success | None = None
    failure: Fail | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A named selection of tools."""

    name: str
    tools: Sequence[ViewTool]
    dialect: Dialect = Dialect()

    def __post_init__(self) -> None:
        if not VIEW_NAME.fullmatch(self.name) or self.name in RESERVED_VIEWS:
            raise PluginRefused(
                f"{self.name!r} is not a valid view name: use lower-case letters, digits and hyphens, at most 32; "
                f"{' and '.join(sorted(RESERVED_VIEWS))} are reserved"
            )
        names = [tool.name for tool in self.tools]
        for tool in self.tools:
            name = tool.name
            if name == tool_name(tool.event):
                continue
            if not TOOL_NAME.fullmatch(name) or name.startswith("ksi_"):
                raise PluginRefused(
                    f"the view {self.name}: {name!r} is not a valid tool name: use letters, digits, _ and -, at most 64, and not "
                    "the beginning ksi_"
                )
        for name in names:
            if names.count(name) > 1:
                raise PluginRefused(f"the view {self.name} has two tools named {name!r}")

    def tool(self, name: str) -> ViewTool | None:
        """The tool of this name."""
        return next((tool for tool in self.tools if tool.name == name), None)
