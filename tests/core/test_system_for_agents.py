"""What the hub tells an agent about itself: only what that agent may use."""

import msgspec
import pytest

from ksi_daemon.errors import UnknownEvent
from ksi_daemon.testing import TestHub, running


async def _as_agent(hub: TestHub, called: str, /, **data: object) -> dict[str, object]:
    principal = hub.hub.rights.impersonate("scout")
    answer: dict[str, object] = msgspec.json.decode(await hub.hub.router.call(called, data, principal=principal))
    return answer


async def test_an_agent_discovers_only_the_events_it_may_call() -> None:
    """K040: each agent sees only what it is permitted, and the operator sees everything."""
    async with running() as hub:
        await hub.call("agent:register", agent_id="scout", profile="restricted")
        seen = await _as_agent(hub, "system:discover")
        assert seen["namespaces"] == ["mcp", "system"]
        events = seen["events"]
        assert isinstance(events, dict)
        calls = {name for name, about in events.items() if about["kind"] == "call"}
        open_to_all = {"mcp:help", "mcp:find_tools", "mcp:call_tool", "mcp:batch_call"}
        assert calls - open_to_all == {
            "system:echo",
            "system:health",
            "system:help",
            "system:discover",
            "system:validate",
        }
        assert open_to_all < calls
        assert "permission:grant" in (await hub.call("system:discover"))["events"]


@pytest.mark.parametrize("asked", ["permission:grant", "nobody:home"])
async def test_help_and_validate_know_hidden_events_as_little_as_absent_ones(asked: str) -> None:
    """K040"""
    async with running() as hub:
        await hub.call("agent:register", agent_id="scout", profile="standard")
        cases: list[tuple[str, dict[str, object]]] = [("system:help", {}), ("system:validate", {"data": {}})]
        for called, data in cases:
            with pytest.raises(UnknownEvent, match=f"there is no event '{asked}'"):
                await _as_agent(hub, called, event=asked, **data)


async def test_a_grant_makes_an_event_appear_at_once() -> None:
    """K021, K041"""
    async with running() as hub:
        await hub.call("agent:register", agent_id="scout", profile="restricted")
        await hub.call("permission:grant", agent_id="scout", resource="events/state:get", access="read")
        assert (await _as_agent(hub, "system:help", event="state:get"))["event"] == "state:get"
