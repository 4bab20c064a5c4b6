"""Every client sees what its agent may use, goes on with its connection after each kind of refusal, and is on record."""

import json
from pathlib import Path
from typing import Any

import pytest

from ksi_daemon.plugin import Context, Plugin
from tests.agents_at_work import limit, rows
from tests.clients import old_client
from tests.clients.every_client import CLIENTS, Call, Connect, Step
from tests.in_process import Said, Text
from tests.machine import needs_curl
from tests.mcp_hub import McpHub, serving_mcp

work = Plugin("work")


@work.handles("work:change")
async def change(ctx: Context, params: Text) -> Said:
    """Change something."""
    return Said(text="done")


@work.handles("work:break", reads=True)
async def crash(ctx: Context, params: Text) -> Said:
    """Break."""
    raise RuntimeError("broken")


ECHO: Call = ("ksi_system_echo", {"text": "still here"})
FORBIDDEN: Call = ("ksi_work_change", {})
UNKNOWN: Call = ("ksi_no_such", {})
INVALID: Call = ("ksi_system_echo", {"text": 5})
BROKEN: Call = ("ksi_work_break", {})
FAILING: Call = ("ksi_state_get", {"key": "none"})

every_client = pytest.mark.parametrize(
    "connect",
    [pytest.param(connect, marks=needs_curl if name == "curl" else ()) for name, connect in CLIENTS.items()],
    ids=list(CLIENTS),
)


@every_client
async def test_a_client_goes_on_with_its_connection_after_every_kind_of_refusal(connect: Connect) -> None:
    """K001 K018 K028 E006 E008 E009"""
    async with serving_mcp(work) as hub, connect(hub, await hub.agent()) as client:
        wanted: list[Step] = [None]
        for refused in (FORBIDDEN, UNKNOWN, INVALID, FAILING):
            wanted += [refused, ECHO]
        listed, *answers = await client.steps(wanted)
        assert ECHO[0] in listed.tools
        refusals, echoes = answers[::2], answers[1::2]
        assert [refusal.code for refusal in refusals] == [-32602, -32602, None, None]
        assert [refusal.is_error for refusal in refusals[2:]] == [True, True]
        assert [json.loads(refusal.text)["code"] for refusal in refusals[2:]] == ["invalid", "not_found"]
        assert [echo.structured for echo in echoes] == [ECHO[1]] * 4
        limit(hub.hub, calls_per_minute=1, burst=2, concurrent_calls=10)
        first, second, limited, listed = await client.steps([ECHO, ECHO, ECHO, None])
        assert first.structured == second.structured == ECHO[1]
        assert limited.code == 429
        assert limited.data["retry_after_s"] > 0
        assert ECHO[0] in listed.tools
        limit(hub.hub, calls_per_minute=None, concurrent_calls=None)
        [echo] = await client.steps([ECHO])
        assert echo.structured == ECHO[1]


async def shown(hub: McpHub) -> dict[str, Any]:
    """What the operator is told that the agent may use."""
    held: dict[str, Any] = await hub.hub.call("permission:get_agent", agent_id="bot")
    return held


@every_client
async def test_the_rights_of_the_moment_decide_what_a_connected_client_sees_and_calls(connect: Connect) -> None:
    """K018 K019 K020 K021 K040: by a grant, its end, and another profile."""
    async with serving_mcp(work, rate_limit="off") as hub, connect(hub, await hub.agent()) as client:

        async def may_change() -> bool:
            listed, called = await client.steps([None, FORBIDDEN])
            held = await shown(hub)
            allowed = FORBIDDEN[0] in listed.tools
            assert set(listed.tools) == set(held["allowed_tools"])
            assert (FORBIDDEN[0] not in held["disallowed_tools"]) == allowed
            assert (called.structured, called.code) == (({"text": "done"}, None) if allowed else (None, -32602))
            return allowed

        assert not await may_change()
        await hub.hub.call("permission:grant", agent_id="bot", resource="events/work:change")
        assert await may_change()
        await hub.hub.call("permission:revoke", agent_id="bot", resource="events/work:change")
        assert not await may_change()
        await hub.hub.call("permission:set_agent", agent_id="bot", profile="researcher")
        assert await may_change()
        await hub.hub.call("permission:set_agent", agent_id="bot", profile="restricted")
        assert not await may_change()


@every_client
async def test_a_client_cannot_tell_a_forbidden_tool_from_one_that_does_not_exist(connect: Connect) -> None:
    """K040"""
    async with serving_mcp(work) as hub, connect(hub, await hub.agent()) as client:
        names = ("ksi_work_change", "ksi_work_chanqe", "ksi_system_shutdown", "ksi_system_shutdowm")
        answers = await client.steps([None, *((name, {}) for name in names)])
        assert not set(names) & set(answers[0].tools)
        told = {repr(answer).replace(name, "TOOL") for name, answer in zip(names, answers[1:], strict=True)}
        assert len(told) == 1


@every_client
async def test_all_that_a_client_does_is_on_record_under_its_agent(connect: Connect) -> None:
    """K031 K032 K034 K042: the call, the check of its right with the rule, and a failure of the plugin as an error."""
    async with serving_mcp(work) as hub:
        await hub.agent("other")
        async with connect(hub, await hub.agent()) as client:
            await client.steps([ECHO, INVALID, FAILING, BROKEN, FORBIDDEN, UNKNOWN])
        found = await rows(hub.hub, agent="bot", phase="outcome")
        told = [(row["type"], row["status"], row["event"]) for row in found if row["event"] != "mcp:tools_listed"]
        assert told == [
            ("tool_call", "ok", "system:echo"),
            ("tool_call", "invalid", "system:echo"),
            ("tool_call", "not_found", "state:get"),
            ("error", "internal", "work:break"),
            ("authorization", "forbidden", "work:change"),
            ("authorization", "forbidden", "ksi_no_such"),
        ]
        echo = next(row for row in found if row["event"] == "system:echo")
        assert (echo["principal"], echo["tool"], echo["transport"]) == ("agent", ECHO[0], "http")
        assert echo["arguments"] == ECHO[1]
        assert echo["rule"] == "events/system:echo read (profile restricted)"  # which standard contains
        assert all(row["credential_id"] == echo["credential_id"] for row in found)
        assert all("no such tool" in row["reason"] for row in found if row["type"] == "authorization")
        assert await rows(hub.hub, agent="other") == []


def test_the_old_clients_packages_are_locked() -> None:
    text = Path(old_client.LOCK).read_text(encoding="utf-8")
    assert "mcp==1.30.0" in text
    assert "--hash=sha256:" in text
