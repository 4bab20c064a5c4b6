"""What a holder of rights may use, told in the words of the KSI specification: allowed tools, allowed modules, the rest."""

from collections.abc import Mapping
from typing import Any

import msgspec

from ksi_daemon.gate.grants import Chain, Need, RuleSet
from ksi_daemon.identifiers import namespace_of, tool_name

Needs = tuple[tuple[str, Need], ...]


class ToolList(msgspec.Struct, frozen=True):
    """For `permission:get_agent` and `permission:get_profile`."""

    profile: str
    allowed_tools: tuple[str, ...]
    allowed_modules: tuple[str, ...]
    disallowed_tools: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain lists, for an answer."""
        return {
            name: value if isinstance(value, str) else list(value)
            for name, value in msgspec.structs.asdict(self).items()
        }


def needs_of(event: str, *, reads: bool, more: Needs = ()) -> Needs:
    """What a caller must hold to use an event."""
    return ((f"events/{event}", "read" if reads else "write"), *more)


def tools_for(profile: str, rights: RuleSet | Chain, known_events: Mapping[str, Needs], now: float) -> ToolList:
    """Every known event as an allowed or a disallowed tool; a module is allowed when all of its events are."""
    allowed = {
        event
        for event, needs in known_events.items()
        if needs and all(rights.decide(resource, need, now).allowed for resource, need in needs)
    }
    refused = known_events.keys() - allowed
    return ToolList(
        profile=profile,
        allowed_tools=tuple(sorted(tool_name(event) for event in allowed)),
        allowed_modules=tuple(
            sorted({namespace_of(event) for event in allowed} - {namespace_of(event) for event in refused})
        ),
        disallowed_tools=tuple(sorted(tool_name(event) for event in refused)),
    )
