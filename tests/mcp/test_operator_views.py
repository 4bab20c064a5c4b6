"""Views that the operator defines in ksi.toml: which tools, under which names, and that they come and go with a reload."""

import os
from pathlib import Path
from typing import Any

import pytest

from ksi_daemon.errors import Invalid
from ksi_daemon.view_settings import ViewSettings
from tests.in_process import log_lines
from tests.mcp.test_list_changes import listening
from tests.mcp.test_views import graph_plugin, names
from tests.mcp_hub import serving_mcp

OPS = """
[views.ops]
tools = ["system:health", "state:*"]
rename = { "state:get" = "read_value" }
hide = ["state:list"]
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings that a reload reads."""
    for name in [name for name in os.environ if name.startswith("KSI_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "ksi.toml"


def ops(**keys: Any) -> dict[str, ViewSettings]:
    return {"ops": ViewSettings(**keys)}


async def test_a_view_lists_what_was_chosen_under_the_given_names_and_only_what_the_agent_may_call() -> None:
    views = ops(tools=["system:health", "state:*", "graph:*"], rename={"state:get": "read_value"}, hide=["state:list"])
    async with serving_mcp(graph_plugin(), views=views) as hub:
        token = await hub.agent()
        listed = await names(hub, token, "/mcp/ops")
        assert listed[:2] == ["ksi_system_health", "ksi_state_delete"]
        assert "read_value" in listed
        assert "ksi_graph_get" in listed
        assert not {"ksi_state_get", "ksi_state_list", "ksi_graph_drop", "ksi_system_echo"} & set(listed)
        await hub.hub.call("permission:grant", agent_id="bot", resource="events/graph:drop")
        assert "ksi_graph_drop" in await names(hub, token, "/mcp/ops")
        async with hub.client(token, path="/mcp/ops") as client:
            await client.call_tool("ksi_state_set", {"key": "k", "value": 1})
            answer = await client.call_tool("read_value", {"key": "k"})
            assert answer.structured_content is not None
            assert answer.structured_content["value"] == 1
            [reading] = [tool for tool in (await client.list_tools()).tools if tool.name == "read_value"]
            assert reading.output_schema is not None
            assert "key" in reading.input_schema["properties"]


async def test_a_view_of_the_operator_gives_no_right_and_can_be_a_tokens_own() -> None:
    async with serving_mcp(views=ops(tools=["system:echo", "agent:*"], rename={"system:echo": "say"})) as hub:
        await hub.agent()
        token = (await hub.hub.call("token:create", agent_id="bot", view="ops"))["token"]
        assert await names(hub, token, "/mcp") == ["say"]
        assert (await hub.call(token, "ksi_agent_list")).status_code == 403
        reply = await hub.call(token, "say", text="hi")
        assert reply.json()["result"]["structuredContent"] == {"text": "hi"}


async def test_a_reload_makes_changes_and_removes_views_and_tells_clients_that_listen(file: Path) -> None:
    """K038"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert (await hub.post(token, body, path="/mcp/ops")).status_code == 404
        file.write_text(OPS, encoding="utf-8")
        assert (await hub.hub.call("config:reload"))["warnings"] == []
        assert "read_value" in await names(hub, token, "/mcp/ops")
        assert "ops" in (await hub.hub.call("mcp:status"))["views"]
        async with listening(hub, token, path="/mcp/ops") as stream:
            file.write_text(OPS.replace("read_value", "look_up"), encoding="utf-8")
            await hub.hub.call("config:reload")
            await stream.until(lambda: stream.told == 1)
            assert "look_up" in await names(hub, token, "/mcp/ops")
            file.unlink()
            await hub.hub.call("config:reload")
            await stream.until(lambda: stream.told == 2)
        assert (await hub.post(token, body, path="/mcp/ops")).status_code == 404


async def test_an_event_that_does_not_exist_is_a_warning_until_its_plugin_is_there(file: Path) -> None:
    async with serving_mcp() as hub:
        token = await hub.agent()
        file.write_text('[views.ops]\ntools = ["graph:get", "state:gett", "system:echo"]\n', encoding="utf-8")
        gone, misspelt = (await hub.hub.call("config:reload"))["warnings"]
        assert gone.startswith("[views.ops]: there is no event 'graph:get' now")
        assert "did you mean 'state:get'?" in misspelt
        log = hub.hub.hub.control.read.settings.var_dir / "log" / "ksi.jsonl"
        assert {gone, misspelt} <= {line["event"] for line in log_lines(log) if line["level"] == "warning"}
        assert await names(hub, token, "/mcp/ops") == ["ksi_system_echo"]
        await hub.hub.load(graph_plugin())
        assert await names(hub, token, "/mcp/ops") == ["ksi_graph_get", "ksi_system_echo"]
        assert (await hub.hub.call("config:reload"))["warnings"] == [misspelt]


async def test_a_name_that_is_a_plugins_view_is_refused_and_the_plugins_view_stays(file: Path) -> None:
    async with serving_mcp(graph_plugin()) as hub:
        token = await hub.agent()
        file.write_text('[views.seed]\ntools = ["system:echo"]\n', encoding="utf-8")
        with pytest.raises(Invalid, match=r"\[views.seed\]: a plugin has a view of this name"):
            await hub.hub.call("config:reload")
        assert "get_node" in await names(hub, token, "/mcp/seed")


async def test_a_plugins_view_goes_before_one_of_the_settings_and_health_says_so() -> None:
    async with serving_mcp(graph_plugin(), views={"seed": ViewSettings(tools=("system:echo",))}) as hub:
        assert "get_node" in await names(hub, await hub.agent(), "/mcp/seed")
        assert "[views.seed]" in "".join((await hub.hub.call("system:health"))["alarms"])
