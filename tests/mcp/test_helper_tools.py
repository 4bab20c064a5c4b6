"""The tools about tools: help, search, and calls of other tools, which are gated, charged and recorded as those tools' own."""

import asyncio
import json
from typing import Any

import pytest
from httpx2 import Response

from ksi_daemon.errors import Conflict
from ksi_daemon.handler import PluginRefused
from ksi_daemon.plugin import Context, Field, NotFound, Nothing, Params, Plugin, Result
from ksi_daemon.testing import running
from tests.agents_at_work import limit, rows
from tests.cases import case
from tests.in_process import Said, Text
from tests.mcp.test_handshakes import show, tools_of
from tests.mcp.test_sessions import opened
from tests.mcp.test_views import graph_plugin
from tests.mcp_hub import McpHub, serving_mcp

ALWAYS = {"ksi_help", "ksi_find_tools", "ksi_call_tool", "ksi_batch_call"}

work = Plugin("work")


class Meal(Params):
    dish: str = Field(max_length=100, description="What was eaten.")


@work.handles("work:change")
async def change(ctx: Context, params: Text) -> Said:
    """Change something."""
    if params.text == "lost":
        raise NotFound("no such thing")
    return Said(text=params.text)


@work.handles("work:subscribe_weekly", reads=True)
async def subscribe(ctx: Context, params: Meal) -> Said:
    """Deliver a report of nutrition."""
    return Said(text="done")


@work.handles("work:large", reads=True)
async def large(ctx: Context, params: Nothing) -> Said:
    """Return much."""
    return Said(text="x" * 600_000)


class Meeting:
    """Calls that end only when so many are under way at once."""

    def __init__(self, size: int) -> None:
        self.barrier = asyncio.Barrier(size)
        self.plugin = Plugin("meeting")

        @self.plugin.handles("meeting:join", reads=True)
        async def join(ctx: Context, params: Nothing) -> Said:
            """Wait for the others."""
            await self.barrier.wait()
            return Said(text="met")


async def structured(reply: Response) -> Any:
    assert reply.status_code == 200, reply.text
    result = reply.json()["result"]
    assert not result.get("isError"), result
    return result["structuredContent"]


async def names(hub: McpHub, token: str) -> set[str]:
    return set(tools_of(await show(hub, token)))


def raw(event: str, **data: Any) -> dict[str, Any]:
    return {"event": event, "data": data}


def called(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


async def test_every_agent_has_them_and_a_view_lists_only_its_own() -> None:
    """X007"""
    async with serving_mcp(graph_plugin()) as hub:
        for number, profile in enumerate(("restricted", "standard", "researcher", "trusted")):
            listed = await names(hub, await hub.agent(f"agent-{number}", profile))
            with case(profile):
                assert listed >= ALWAYS
                assert ("ksi_raw_event" in listed) == (profile == "trusted")
        token = await hub.agent("last")
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        for path, there in (("/", True), ("/mcp", True), ("/mcp/seed", False)):
            tools = tools_of(await hub.post(token, request, path=path))
            with case(path):
                assert (tools.keys() >= ALWAYS) == there
                assert bool(tools.keys() & ALWAYS) == there
        full = tools_of(await show(hub, token))
        assert full["ksi_help"]["annotations"]["readOnlyHint"] is True
        assert full["ksi_call_tool"]["annotations"]["readOnlyHint"] is False
        thin = tools_of(await show(hub, token, **{"x-ksi-handshake": "thin"}))
        assert thin["ksi_call_tool"]["description"].endswith("(name: string, arguments?: object)")


async def test_a_frozen_agent_has_none_of_them() -> None:
    """X007 K021"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        await hub.hub.call("agent:freeze", agent_id="bot")
        reply = await hub.call_2026(token, "ksi_help", name="ksi_help")
        assert reply.status_code == 403


async def test_they_work_in_every_era() -> None:
    """X007 K026"""
    async with serving_mcp() as hub:
        token = await hub.agent(profile="trusted")
        for mode in ("auto", "legacy"):
            async with hub.client(token, mode) as client:
                with case(mode):
                    await client.list_tools()
                    for tool, arguments in (
                        ("ksi_call_tool", called("ksi_system_echo", text="hello")),
                        ("ksi_raw_event", raw("system:echo", text="hello")),
                    ):
                        result = await client.call_tool(tool, arguments)
                        assert result.structured_content == {"text": "hello"}
                    helped = await client.call_tool("ksi_help", {"name": "ksi_state_set"})
                    assert helped.structured_content is not None
                    assert helped.structured_content["event"] == "state:set"
        assert await structured(await hub.call(token, "ksi_call_tool", **called("ksi_system_echo", text="h"))) == {
            "text": "h"
        }


async def test_help_shows_one_tool_completely_under_each_of_its_names() -> None:
    """X007"""
    async with serving_mcp(graph_plugin()) as hub:
        token = await hub.agent()
        listed = tools_of(await show(hub, token))["ksi_state_set"]
        for name in ("ksi_state_set", "state:set"):
            helped = await structured(await hub.call_2026(token, "ksi_help", name=name))
            assert listed.items() <= helped.items()
            assert helped["signature"] == "(key: string, namespace?: string, value: any, metadata?: object)"
        assert (await structured(await hub.call_2026(token, "ksi_help", name="get_node")))["event"] == "graph:get"
        assert (await structured(await hub.call_2026(token, "ksi_help", name="ksi_batch_call")))[
            "name"
        ] == "ksi_batch_call"


async def test_help_names_what_may_have_been_meant_among_what_the_caller_sees() -> None:
    """X007 P03"""
    async with serving_mcp(work) as hub:
        token = await hub.agent()
        texts = []
        for name in ("ksi_work_change", "ksi_work_chanqe", "ksi_state_gett"):
            result = (await hub.call_2026(token, "ksi_help", name=name)).json()["result"]
            answer = json.loads(result["content"][0]["text"])
            assert answer["code"] == "not_found"
            texts.append(json.dumps(answer).replace(name, "NAME"))
        assert texts[0] == texts[1]
        assert "ksi_work_change" not in texts[0]
        assert "did you mean ksi_state_get," in texts[2]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("state get", "ksi_state_get"),
        ("deleting a key", "ksi_state_delete"),
        ("subscriptions", "ksi_message_subscriptions"),
        ("publishes notices", "ksi_message_publish"),
        ("uptime and load", "ksi_system_status"),
        ("correlat", "ksi_monitor_get_correlation_chain"),
        ("dish", "ksi_work_subscribe_weekly"),
        ("nutritional reports", "ksi_work_subscribe_weekly"),
        ("WEEKLY", "ksi_work_subscribe_weekly"),
    ],
)
async def test_search_finds_tools_by_name_description_and_parameter_also_inflected_or_in_part(
    query: str, first: str
) -> None:
    """X007"""
    async with serving_mcp(work) as hub:
        token = await hub.agent(profile="trusted")
        found = await structured(await hub.call_2026(token, "ksi_find_tools", query=query, limit=3))
        assert found["tools"][0]["name"] == first
        assert 1 <= len(found["tools"]) <= 3
        assert found == await structured(await hub.call_2026(token, "ksi_find_tools", query=query, limit=3))


async def test_search_returns_thin_entries_of_what_the_agent_may_use_at_this_moment() -> None:
    """X007 K021"""
    async with serving_mcp(work) as hub:
        token = await hub.agent()
        before = await structured(await hub.call_2026(token, "ksi_find_tools", query="change something"))
        assert "ksi_work_change" not in [tool["name"] for tool in before["tools"]]
        await hub.hub.call("permission:grant", agent_id="bot", resource="events/work:change")
        after = await structured(await hub.call_2026(token, "ksi_find_tools", query="change something"))
        assert after["tools"][0] == {"name": "ksi_work_change", "description": "Change something. (text?: string)"}
        assert after["searched"] == before["searched"] + 1
        nothing = await structured(await hub.call_2026(token, "ksi_find_tools", query="xylophone"))
        assert nothing["tools"] == []


async def test_a_tool_granted_after_the_list_was_made_is_called_as_if_directly() -> None:
    """X007 K021 K031"""
    async with serving_mcp(work) as hub:
        token = await hub.agent()
        target = called("ksi_work_change", text="now")
        async with hub.client(token, "legacy") as client:
            assert "ksi_work_change" not in {tool.name for tool in (await client.list_tools()).tools}
            await hub.hub.call("permission:grant", agent_id="bot", resource="events/work:change")
            assert (await client.call_tool("ksi_call_tool", target)).structured_content == {"text": "now"}
        found = await rows(hub.hub, event="work:change")
        assert [(row["phase"], row["status"], row["agent_id"]) for row in found] == [
            ("intent", "started", "bot"),
            ("outcome", "ok", "bot"),
        ]
        assert all("parent_id" not in row and row["tool"] == "ksi_work_change" for row in found)
        assert await rows(hub.hub, event="mcp:call_tool") == []


async def test_a_call_by_another_tool_is_answered_as_a_direct_one() -> None:
    """X007 P03 K026"""
    async with serving_mcp(work, graph_plugin()) as hub:
        token = await hub.agent(profile="trusted")
        limit(hub.hub, "trusted", calls_per_minute=None, concurrent_calls=None)
        session = await opened(hub, token)
        targets = [
            called("ksi_system_echo", text="x"),
            called("ksi_system_echo", text=5),
            called("ksi_work_change", text="lost"),
            called("ksi_system_shutdown"),
            called("ksi_no_such"),
            called("system:echo", text="x"),
            called("search-all", text="x"),
        ]
        for headers in ({"mcp-protocol-version": "2025-06-18"}, session):
            for target in targets:
                with case(target):
                    replies = [
                        await hub.post(
                            token,
                            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params},
                            headers=headers,
                        )
                        for params in (target, {"name": "ksi_call_tool", "arguments": target})
                    ]
                    assert replies[0].status_code == replies[1].status_code
                    assert replies[0].text == replies[1].text
        direct = await hub.call(token, "ksi_system_echo", text=5)
        by_event = await hub.call(token, "ksi_raw_event", **raw("system:echo", text=5))
        assert direct.text == by_event.text


async def test_only_trusted_agents_send_raw_events() -> None:
    """K026"""
    async with serving_mcp(work) as hub:
        researcher, trusted = await hub.agent("reader", "researcher"), await hub.agent("bot", "trusted")
        sent = raw("work:change", text="x")
        refused = await hub.call(researcher, "ksi_raw_event", **sent)
        unknown = await hub.call(researcher, "ksi_raw_evemt", **sent)
        assert refused.status_code == unknown.status_code == 403
        assert refused.text.replace("ksi_raw_event", "TOOL") == unknown.text.replace("ksi_raw_evemt", "TOOL")
        by_name = await hub.call(researcher, "work:change", text="x")
        assert by_name.status_code == 403, "an event's name is not a tool's"
        assert await rows(hub.hub, event="work:change") == []
        assert (await rows(hub.hub, event="mcp:raw_event"))[0]["status"] == "forbidden"
        assert await structured(await hub.call(trusted, "ksi_raw_event", **sent)) == {"text": "x"}
        assert [row["agent_id"] for row in await rows(hub.hub, event="work:change")] == ["bot", "bot"]
        for event in ("system:shutdown", "no:such", "ksi_work_change", "nonsense"):
            with case(event):
                assert (await hub.call(trusted, "ksi_raw_event", **raw(event))).status_code == 403
        await hub.hub.call("permission:grant", agent_id="bot", resource="raw/events", access="none")
        denied = await hub.call(trusted, "ksi_raw_event", **sent)
        assert denied.status_code == 403
        assert "raw/events" in denied.text


async def test_a_tool_that_calls_cannot_be_called_by_another() -> None:
    """K026 X007"""
    async with serving_mcp() as hub:
        token = await hub.agent(profile="trusted")
        for name in ("ksi_call_tool", "ksi_batch_call", "ksi_raw_event"):
            reply = await hub.call(token, "ksi_call_tool", **called(name))
            answer = json.loads(reply.json()["result"]["content"][0]["text"])
            with case(name):
                assert answer["code"] == "invalid"
                assert name in answer["hint"]
        reply = await hub.call(token, "ksi_raw_event", **raw("mcp:batch_call", calls=[called("ksi_system_health")]))
        assert "cannot be called by one" in reply.text
        assert len([row for row in await rows(hub.hub, type="error") if "calls tools" in row["reason"]]) == 4


async def test_each_call_of_a_batch_has_its_own_result_or_error_in_order() -> None:
    """X007 K037"""
    async with serving_mcp(work) as hub:
        token = await hub.agent()
        calls = [
            called("ksi_system_echo", text="a"),
            called("ksi_work_change", text="b"),
            called("ksi_system_echo", text=5),
            called("ksi_state_get", key="none"),
            called("ksi_batch_call", calls=[]),
            called("ksi_system_echo", text="f"),
        ]
        for at_once in (False, True):
            results = (await structured(await hub.call(token, "ksi_batch_call", calls=calls, at_once=at_once)))[
                "results"
            ]
            with case(at_once):
                assert [element["name"] for element in results] == [one["name"] for one in calls]
                assert [element["ok"] for element in results] == [True, False, False, False, False, True]
                assert (results[0]["result"], results[5]["result"]) == ({"text": "a"}, {"text": "f"})
                errors = [results[number]["error"] for number in (1, 2, 3, 4)]
                assert [error["code"] for error in errors] == ["forbidden", "invalid", "not_found", "invalid"]
                assert "no such tool" in errors[0]["message"]
                assert errors[1]["inputSchema"]["properties"].keys() == {"text"}


async def test_a_batch_has_a_bounded_number_of_calls_and_size() -> None:
    """X007 K037"""
    async with serving_mcp(work) as hub:
        token = await hub.agent(profile="trusted")
        for number in (0, 21):
            reply = await hub.call(token, "ksi_batch_call", calls=[called("ksi_system_health")] * number)
            answer = json.loads(reply.json()["result"]["content"][0]["text"])
            assert answer["code"] == "invalid"
            assert answer["inputSchema"]["properties"]["calls"]["maxItems"] == 20
        assert [row["status"] for row in await rows(hub.hub, event="mcp:batch_call") if row["phase"] == "outcome"] == [
            "invalid",
            "invalid",
        ]
        results = (await structured(await hub.call(token, "ksi_batch_call", calls=[called("ksi_work_large")] * 2)))[
            "results"
        ]
        assert [element["ok"] for element in results] == [True, False]
        assert results[1]["error"]["code"] == "too_large"


async def test_each_call_of_a_batch_pays_for_itself() -> None:
    """X007 K037"""
    async with serving_mcp(work) as hub:
        token = await hub.agent()
        limit(hub.hub, calls_per_minute=1, burst=3, concurrent_calls=4)
        calls = [called("ksi_system_echo", text="x")] * 5
        results = (await structured(await hub.call(token, "ksi_batch_call", calls=calls)))["results"]
        assert [element["ok"] for element in results] == [True, True, True, False, False]
        assert results[4]["error"]["code"] == "too_many"
        assert (await hub.call(token, "ksi_call_tool", **calls[0])).status_code == 429
        assert len([row for row in await rows(hub.hub, event="system:echo") if row["status"] == "ok"]) == 3


async def test_a_batch_at_once_runs_side_by_side_and_within_the_slots() -> None:
    """X007 K037"""
    meeting = Meeting(3)
    async with serving_mcp(meeting.plugin) as hub:
        token = await hub.agent()
        limit(hub.hub, calls_per_minute=None, concurrent_calls=3)
        calls = [called("ksi_meeting_join")] * 6
        results = (await structured(await hub.call(token, "ksi_batch_call", calls=calls, at_once=True)))["results"]
        assert [element.get("result") for element in results] == [{"text": "met"}] * 6


async def test_they_are_part_of_what_decides_whether_a_list_is_new() -> None:
    """K013 K026"""
    async with serving_mcp() as hub:
        await hub.agent()
        options = {"agent_id": "bot", "conversation_id": "c1", "resumes": True}
        fingerprints = []
        for number in (1, 2):
            token = (await hub.hub.call("token:create", completion_id=f"completion-{number}", **options))["token"]
            await show(hub, token)
            await hub.hub.call("permission:grant", agent_id="bot", resource="events/mcp:raw_event")
        found = await hub.hub.call("mcp:get_session", agent_id="bot", conversation_id="c1")
        fingerprints = [one["fingerprint"] for one in found["completions"]]
        assert len(set(fingerprints)) == 2
        assert [one["kind"] for one in found["completions"]] == ["full", "full"]


async def test_the_operator_has_them_as_events_too() -> None:
    """X007"""
    async with running(work) as hub:
        assert (await hub.call("mcp:help", name="work:change"))["name"] == "ksi_work_change"
        assert (await hub.call("mcp:call_tool", **called("ksi_work_change", text="a"))) == {"text": "a"}
        assert (await hub.call("mcp:raw_event", **raw("work:change", text="b"))) == {"text": "b"}
        calls = [called("ksi_work_change", text="c"), called("ksi_no_such")]
        first, second = (await hub.call("mcp:batch_call", calls=calls))["results"]
        assert first["result"] == {"text": "c"}
        assert second["error"]["code"] == "forbidden"
        text = (await hub.call("permission:explain", agent_id=await _added(hub), event="ksi_help"))["text"]
        assert "(tool ksi_help)" in text
        assert "every agent" in text


async def _added(hub: Any) -> str:
    await hub.call("agent:register", agent_id="bot", profile="restricted")
    return "bot"


@pytest.mark.parametrize(("event", "tool"), [("call:tool", "ksi_call_tool"), ("find:tools", "ksi_find_tools")])
async def test_no_event_takes_the_name_of_one_of_them(event: str, tool: str) -> None:
    """X007"""
    plugin = Plugin(event.partition(":")[0])

    @plugin.handles(event, reads=True)
    async def handle(ctx: Context, params: Nothing) -> Said:
        """Do it."""
        return Said(text="")

    with pytest.raises((PluginRefused, Conflict), match=f"would both be the tool '{tool}'"):
        async with running(plugin):
            pass


async def test_a_plugin_from_outside_cannot_open_its_events_to_everybody() -> None:
    """X007"""
    for options in ({"every_agent": True}, {"tool": "ksi_mine"}):
        plugin = Plugin("mine")

        @plugin.handles("mine:get", reads=True, **options)
        async def handle(ctx: Context, params: Nothing) -> Result:
            """Do it."""
            return Said(text="")

        with pytest.raises(PluginRefused, match="the daemon's own events"):
            async with running(plugin):
                pass
