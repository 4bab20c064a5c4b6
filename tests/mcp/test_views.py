"""Views: tools under the names, the envelope and the errors of a specification."""

from typing import Any

import pytest
from mcp import MCPError

from ksi_daemon.errors import Invalid, KsiError
from ksi_daemon.plugin import (
    Context,
    Dialect,
    Failure,
    Field,
    Forbidden,
    JsonValue,
    NotFound,
    Params,
    Plugin,
    PluginRefused,
    Result,
    View,
    ViewTool,
)
from ksi_daemon.testing import running
from tests.agents_at_work import rows
from tests.cases import case
from tests.in_process import Said, Text
from tests.mcp_hub import McpHub, serving_mcp

CODES: dict[type[KsiError], str] = {Invalid: "INVALID_ARGS", NotFound: "NOT_FOUND", Forbidden: "DENIED"}


class Id(Params):
    id: str = Field(description="Which node.")


class Node(Result):
    value: JsonValue


def unwrap(tool: str, result: Any) -> Any:
    return result["value"] if tool == "get_node" else {"success": True, "data": result}


def in_codes(tool: str, error: KsiError) -> Failure | None:
    code = CODES.get(type(error))
    return None if code is None else Failure({"error": {"code": code, "message": error.message}})


def graph_plugin(name: str = "graph", view: str = "seed", dialect: Dialect | None = None) -> Plugin:
    """A plugin with a view, as the plugins of the specifications have one."""
    tools = [
        ViewTool("search-all", f"{name}:search", description="Search everything."),
        ViewTool("get_node", f"{name}:get"),
        ViewTool("drop_node", f"{name}:drop"),
    ]
    plugin = Plugin(name, view=View(view, tools, dialect or Dialect(success=unwrap, failure=in_codes)))

    @plugin.handles(f"{name}:get", reads=True)
    async def get(ctx: Context, params: Id) -> Node:
        """Get a node."""
        if params.id == "none":
            return Node(value=None)
        if params.id == "many":
            return Node(value=[1, 2])
        if params.id == "lost":
            raise NotFound("no such node")
        return Node(value={"id": params.id})

    @plugin.handles(f"{name}:search", reads=True)
    async def search(ctx: Context, params: Text) -> Said:
        """Search."""
        return Said(text=params.text)

    @plugin.handles(f"{name}:drop")
    async def drop(ctx: Context, params: Id) -> Said:
        """Drop a node."""
        return Said(text="gone")

    return plugin


async def names(hub: McpHub, token: str, path: str) -> list[str]:
    async with hub.client(token, path=path) as client:
        return [tool.name for tool in (await client.list_tools()).tools]


async def test_a_view_lists_its_own_tools_alone_in_its_own_order() -> None:
    async with serving_mcp(graph_plugin()) as hub:
        token = await hub.agent()
        assert await names(hub, token, "/mcp/seed") == ["search-all", "get_node"]  # profile standard only reads
        await hub.hub.call("permission:grant", agent_id="bot", resource="events/graph:drop")
        assert await names(hub, token, "/mcp/seed") == ["search-all", "get_node", "drop_node"]
        plain = await names(hub, token, "/mcp")
        assert "ksi_graph_get" in plain
        assert "get_node" not in plain
        async with hub.client(token, path="/mcp/seed") as client:
            [search, *_] = (await client.list_tools()).tools
        assert (search.title, search.description) == ("Graph search", "Search everything.")
        assert "text" in search.input_schema["properties"]
        assert search.output_schema is None  # the dialect decides about the shape


async def test_results_have_the_envelope_of_the_view() -> None:
    async with serving_mcp(graph_plugin()) as hub:
        token = await hub.agent()
        async with hub.client(token, path="/mcp/seed") as client:
            expected: list[tuple[str, Any, str]] = [
                ("a", {"id": "a"}, '{"id":"a"}'),
                ("none", {"result": None}, "null"),
                ("many", {"result": [1, 2]}, "[1,2]"),
            ]
            for node, structured, text in expected:
                with case(node):
                    answer = await client.call_tool("get_node", {"id": node})
                    assert answer.structured_content == structured
                    assert answer.content[0].model_dump()["text"] == text
            answer = await client.call_tool("search-all", {"text": "x"})
            assert answer.structured_content == {"success": True, "data": {"text": "x"}}


async def test_errors_have_the_codes_of_the_view() -> None:
    """D053"""
    async with serving_mcp(graph_plugin()) as hub:
        token = await hub.agent()
        async with hub.client(token, path="/mcp/seed") as client:
            calls: list[tuple[str, dict[str, Any], str]] = [
                ("get_node", {"id": "lost"}, "NOT_FOUND"),
                ("get_node", {"id": 5}, "INVALID_ARGS"),
                ("drop_node", {"id": "a"}, "DENIED"),
                ("no_such_tool", {}, "NOT_FOUND"),
            ]
            for tool, arguments, code in calls:
                with case(tool, code):
                    answer = await client.call_tool(tool, arguments)
                    assert answer.is_error
                    assert answer.structured_content is not None
                    assert answer.structured_content["error"]["code"] == code
        found = await rows(hub.hub, agent="bot", type="authorization")
        assert [row["event"] for row in found] == ["graph:drop", "no_such_tool"]


async def test_what_a_dialect_does_not_know_is_answered_as_everywhere_else() -> None:
    async with serving_mcp(graph_plugin(dialect=Dialect(success=unwrap))) as hub:
        token = await hub.agent()
        async with hub.client(token, path="/mcp/seed") as client:
            for tool in ("drop_node", "no_such_tool"):
                with pytest.raises(MCPError) as refused:
                    await client.call_tool(tool, {})
                assert refused.value.code == -32602


async def test_a_dialect_can_answer_with_an_error_of_the_protocol() -> None:
    dialect = Dialect(failure=lambda tool, error: Failure({"code": "CONSENT_DENIED"}, protocol_error=True))
    async with serving_mcp(graph_plugin(dialect=dialect)) as hub:
        token = await hub.agent()
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "drop_node", "arguments": {}}}
        reply = await hub.post(token, body, path="/mcp/seed")
        assert (reply.status_code, reply.json()["error"]["data"]) == (403, {"code": "CONSENT_DENIED"})


async def test_a_dialect_that_fails_does_not_break_the_call() -> None:
    def broken(tool: str, anything: Any) -> Any:
        raise RuntimeError("broken")

    async with serving_mcp(graph_plugin(dialect=Dialect(success=broken, failure=broken))) as hub:
        token = await hub.agent()
        async with hub.client(token, path="/mcp/seed") as client:
            answer = await client.call_tool("get_node", {"id": "a"})
            assert answer.is_error
            assert "internal" in answer.content[0].model_dump()["text"]
            answer = await client.call_tool("get_node", {"id": "lost"})
            assert "not_found" in answer.content[0].model_dump()["text"]


async def test_either_name_works_wherever_the_agent_may_call_it() -> None:
    async with serving_mcp(graph_plugin()) as hub:
        token = await hub.agent()
        for path in ("/mcp", "/mcp/seed"):
            async with hub.client(token, path=path) as client:
                answer = await client.call_tool("get_node", {"id": "a"})
                assert answer.structured_content == {"id": "a"}
                answer = await client.call_tool("ksi_graph_get", {"id": "a"})
                assert answer.structured_content == {"value": {"id": "a"}}


async def test_a_name_that_two_views_give_to_different_events_works_in_each_view_alone() -> None:
    async with serving_mcp(graph_plugin(), graph_plugin("other", "second", Dialect())) as hub:
        token = await hub.agent()
        for path, structured in (("/mcp/seed", {"id": "a"}), ("/mcp/second", {"value": {"id": "a"}})):
            async with hub.client(token, path=path) as client:
                assert (await client.call_tool("get_node", {"id": "a"})).structured_content == structured
        assert (await hub.call(token, "get_node", id="a")).status_code == 403


async def test_a_token_can_have_a_view_of_its_own() -> None:
    async with serving_mcp(graph_plugin()) as hub:
        await hub.agent()
        token = (await hub.hub.call("token:create", agent_id="bot", view="seed"))["token"]
        assert await names(hub, token, "/mcp") == ["search-all", "get_node"]
        gone = (await hub.hub.call("token:create", agent_id="bot", view="elsewhere"))["token"]
        assert (await hub.request_2026(gone, "tools/list")).status_code == 503


async def test_an_address_without_a_view_is_not_found_for_those_who_are_known() -> None:
    async with serving_mcp(graph_plugin()) as hub:
        token = await hub.agent()
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        for view in ("nothing", "tools", "call", "SEED"):
            with case(view):
                assert (await hub.post(token, body, path=f"/mcp/{view}")).status_code == 404
                assert (await hub.post(None, body, path=f"/mcp/{view}")).status_code == 401


def test_a_view_that_breaks_a_rule_is_refused_when_it_is_made() -> None:
    tools = [ViewTool("a", "graph:get")]
    refused: list[tuple[str, list[ViewTool]]] = [
        ("tools", tools),
        ("Upper", tools),
        ("seed", [*tools, *tools]),
        ("seed", [ViewTool("with space", "graph:get")]),
        ("seed", [ViewTool("ksi_graph_got", "graph:get")]),
    ]
    for name, given in refused:
        with case(name, given), pytest.raises(PluginRefused):
            View(name, given)


async def test_a_plugin_whose_view_cannot_be_served_is_refused() -> None:
    foreign = Plugin("foreign", view=View("mine", [ViewTool("echo", "system:echo")]))
    with pytest.raises(PluginRefused, match="does not handle"):
        async with running(foreign):
            pass
    with pytest.raises(PluginRefused, match="seed"):
        async with running(graph_plugin(), graph_plugin("other")):
            pass
