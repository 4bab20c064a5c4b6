"""The protocol's revision 2026-07-28: one POST a request, no session."""

import asyncio
from typing import Any

import pytest
from mcp import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from ksi_daemon.mcp.endpoint import SESSION_REVISIONS
from ksi_daemon.plugin import Annotations, Context, NotFound, Plugin
from tests.agents_at_work import rows
from tests.in_process import Said, Text
from tests.mcp_hub import META, serving_mcp

weather = Plugin("weather")


@weather.handles("weather:forecast", reads=True, title="Weather forecast", annotations=Annotations(open_world=True))
async def forecast(ctx: Context, params: Text) -> Said:
    """Say what the weather will be."""
    if params.text == "nowhere":
        raise NotFound("there is no such place", hint="ask for another")
    if params.text == "broken":
        raise RuntimeError("a secret detail")
    return Said(text=f"rain in {params.text}")


@weather.handles("weather:change")
async def change(ctx: Context, params: Text) -> Said:
    """Change the weather."""
    return Said(text="done")


def test_the_endpoint_knows_the_revisions_with_sessions() -> None:
    assert SESSION_REVISIONS == HANDSHAKE_PROTOCOL_VERSIONS


async def test_an_agent_sees_its_tools_and_calls_them() -> None:
    """K001 K018 K023 K025"""
    async with serving_mcp(weather) as hub:
        token = await hub.agent()
        async with hub.client(token) as client:
            listed = await client.list_tools()
            names = [tool.name for tool in listed.tools]
            assert names == sorted(names)
            assert "ksi_system_health" in names
            assert "ksi_weather_forecast" in names
            assert "ksi_weather_change" not in names  # profile standard only reads
            assert (listed.ttl_ms, listed.cache_scope, listed.next_cursor) == (0, "private", None)
            [tool] = [tool for tool in listed.tools if tool.name == "ksi_weather_forecast"]
            assert (tool.title, tool.description) == ("Weather forecast", "Say what the weather will be.")
            assert tool.input_schema["properties"]["text"]["description"] == "Any text."
            assert tool.output_schema is not None
            assert tool.annotations is not None
            assert (tool.annotations.read_only_hint, tool.annotations.open_world_hint) == (True, True)
            answer = await client.call_tool("ksi_weather_forecast", {"text": "Rome"})
            assert answer.structured_content == {"text": "rain in Rome"}
            assert [part.model_dump()["text"] for part in answer.content] == ['{"text":"rain in Rome"}']


async def test_a_grant_opens_a_tool_and_a_revocation_closes_it_from_the_next_request_on() -> None:
    """K021 K040"""
    async with serving_mcp(weather) as hub:
        token = await hub.agent()

        async def sees_and_calls() -> tuple[bool, int]:
            listed = (await hub.request_2026(token, "tools/list")).json()["result"]["tools"]
            called = await hub.call_2026(token, "ksi_weather_change")
            return "ksi_weather_change" in [tool["name"] for tool in listed], called.status_code

        assert await sees_and_calls() == (False, 403)
        await hub.hub.call("permission:grant", agent_id="bot", resource="events/weather:change")
        assert await sees_and_calls() == (True, 200)
        await hub.hub.call("permission:revoke", agent_id="bot", resource="events/weather:change")
        assert await sees_and_calls() == (False, 403)


async def test_a_tools_own_failure_is_a_result_that_the_model_can_read() -> None:
    async with serving_mcp(weather) as hub:
        token = await hub.agent()
        async with hub.client(token) as client:
            for text, code, words in [
                ("nowhere", "not_found", "ask for another"),
                ("broken", "internal", "the log has the details"),
            ]:
                answer = await client.call_tool("ksi_weather_forecast", {"text": text})
                assert answer.is_error
                shown = answer.content[0].model_dump()["text"]
                assert code in shown
                assert words in shown
                assert "secret" not in shown
            answer = await client.call_tool("ksi_weather_forecast", {"text": 5})
            assert answer.is_error
            assert "text" in answer.content[0].model_dump()["text"]


async def test_after_each_refusal_the_client_goes_on() -> None:
    """K028"""
    async with serving_mcp(weather) as hub:
        token = await hub.agent()
        async with hub.client(token) as client:
            for tool in ("ksi_weather_change", "ksi_no_such", "ksi_system_shutdown"):
                with pytest.raises(MCPError) as refused:
                    await client.call_tool(tool, {})
                assert refused.value.code == -32602
                answer = await client.call_tool("ksi_system_echo", {"text": "still here"})
                assert answer.structured_content == {"text": "still here"}


async def test_unknown_and_forbidden_tools_get_the_same_bytes() -> None:
    """P03"""
    async with serving_mcp(weather) as hub:
        token = await hub.agent()
        replies: set[tuple[int, str]] = set()
        for tool in ("ksi_weather_change", "ksi_weather_chanqe", "ksi_system_shutdown", "ksi_system_shutdowm"):
            reply = await hub.call_2026(token, tool)
            headers = sorted(name for name, _ in reply.headers.items())
            replies.add((reply.status_code, reply.text.replace(tool, "TOOL") + str(headers)))
        assert len(replies) == 1


async def test_every_call_and_refusal_is_on_record_with_its_agent() -> None:
    """K031 K032 K034 K042"""
    async with serving_mcp(weather) as hub:
        token = await hub.agent()
        for tool, text in [
            ("ksi_weather_forecast", "Rome"),
            ("ksi_weather_forecast", "broken"),
            ("ksi_weather_change", ""),
            ("ksi_no_such", ""),
        ]:
            await hub.call_2026(token, tool, text=text)
        found = await rows(hub.hub, agent="bot")
        assert [(row["type"], row["status"], row["event"], row["transport"]) for row in found] == [
            ("tool_call", "ok", "weather:forecast", "http"),
            ("error", "internal", "weather:forecast", "http"),
            ("authorization", "forbidden", "weather:change", "http"),
            ("authorization", "forbidden", "ksi_no_such", "http"),
        ]


async def test_a_list_of_more_than_200_tools_comes_in_pages() -> None:
    many = Plugin("many")

    async def handler(ctx: Context, params: Text) -> Said:
        """One of many."""
        return Said()

    for number in range(450):
        many.handles(f"many:tool_{number:03}", reads=True)(handler)
    async with serving_mcp(many) as hub:
        token = await hub.agent()
        async with hub.client(token) as client:
            found: list[str] = []
            cursor: str | None = None
            sizes: list[int] = []
            while True:
                page = await client.list_tools(cursor=cursor)
                sizes.append(len(page.tools))
                found += [tool.name for tool in page.tools]
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert sizes[:2] == [200, 200]
            assert len(sizes) == 3
            assert len(set(found)) == len(found) > 450
            assert found == sorted(found)
            with pytest.raises(MCPError, match="cursor"):
                await client.list_tools(cursor="not one of ours!")


async def test_the_list_is_the_same_bytes_every_time() -> None:
    """H12"""
    async with serving_mcp(weather) as hub:
        token = await hub.agent()

        async def contents() -> set[bytes]:
            return {(await hub.request_2026(token, "tools/list")).content for _ in range(100)}

        replies: set[bytes] = set().union(*await asyncio.gather(*(contents() for _ in range(10))))
        assert len(replies) == 1
        assert b'"cacheScope":"private"' in replies.pop()


async def test_protocol_errors_have_the_codes_of_the_specification() -> None:
    """H08 K030"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        future = {"_meta": {**META, "io.modelcontextprotocol/protocolVersion": "2031-01-01"}}
        wrong = await hub.request_2026(token, "tools/list", future, headers={"mcp-protocol-version": "2031-01-01"})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, -32022)
        assert wrong.json()["error"]["data"]["supported"] == ["2026-07-28"]
        unknown = await hub.request_2026(token, "no/such")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, -32601)
        without: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}
        missing = await hub.post(token, without, headers=headers)
        assert (missing.status_code, missing.json()["error"]["code"]) == (400, -32602)
