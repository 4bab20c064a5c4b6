"""A client that knows tools only from their thin entries, against a real daemon."""

from typing import Any

from tests.cases import case
from tests.live.daemon_process import Daemon
from tests.live.test_mcp_over_http import request
from tests.mcp.test_thin_entries import Signature

ECHO = {"name": "ksi_system_echo", "arguments": {"text": "word"}}
TARGETS: dict[str, dict[str, Any]] = {  # what a call of these calls is not in their signature
    "ksi_call_tool": ECHO,
    "ksi_batch_call": {"calls": [ECHO]},
    "ksi_raw_event": {"event": "system:echo", "data": {"text": "word"}},
}


def test_the_first_call_of_every_tool_is_valid_when_made_from_its_thin_entry_alone(daemon: Daemon) -> None:
    """K012 X007: with only what must be sent, and with everything that may be."""
    daemon.settings["rate_limit"] = "off"
    daemon.start()
    token = daemon.add_agent("scripted", "trusted")
    status, answer = request(daemon, token, "tools/list", headers={"X-KSI-Handshake": "thin"})
    assert status == 200
    tools = answer["result"]["tools"]
    held = daemon.call("permission:get_agent", {"agent_id": "scripted"})
    assert {tool["name"] for tool in tools} == set(held["allowed_tools"])
    for tool in tools:
        assert tool.keys() == {"name", "description", "inputSchema"}
        for optional in (False, True):
            arguments = Signature(tool["description"]).arguments(optional=optional)
            if tool["name"] in TARGETS:
                assert TARGETS[tool["name"]].keys() <= Signature(tool["description"]).arguments(optional=True).keys()
                arguments |= TARGETS[tool["name"]]
            with case(tool["name"], arguments):
                status, answer = request(daemon, token, "tools/call", name=tool["name"], arguments=arguments)
                assert status == 200, answer
                result = answer["result"]
                assert not result["isError"] or '"code":"invalid"' not in result["content"][0]["text"], result
