"""Clients that we did not write: each lists, calls, and goes on with the same connection after every kind of refusal."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError

from ksi_daemon.plugin import Context, Plugin
from tests.agents_at_work import limit
from tests.clients import old_client
from tests.in_process import Said, Text
from tests.machine import needs_curl
from tests.mcp_hub import McpHub, serving_mcp

work = Plugin("work")


@work.handles("work:change")
async def change(ctx: Context, params: Text) -> Said:
    """Change something."""
    return Said(text="done")


ECHO = ("ksi_system_echo", {"text": "still here"})
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("ksi_work_change", {}),  # forbidden
    ("ksi_no_such", {}),  # unknown
    ("ksi_system_echo", {"text": 5}),  # invalid
    ("ksi_state_get", {"key": "none"}),  # the tool's own failure
]


async def exhaust(hub: McpHub) -> None:
    """From now on the agent has two calls left, and then none for a minute."""
    limit(hub.hub, calls_per_minute=1, burst=2, concurrent_calls=10)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_sdk_of_today(mode: str) -> None:
    """K001 K018 K028"""
    async with serving_mcp(work) as hub:
        token = await hub.agent()
        async with hub.client(token, mode) as client:
            assert "ksi_system_echo" in [tool.name for tool in (await client.list_tools()).tools]
            for name, arguments in REFUSED:
                try:
                    assert (await client.call_tool(name, arguments)).is_error
                except MCPError as error:
                    assert error.code == -32602  # noqa: PT017 - both kinds of refusal are looked at
                assert (await client.call_tool(*ECHO)).structured_content == ECHO[1]
            await exhaust(hub)
            for _ in range(2):
                await client.call_tool(*ECHO)
            with pytest.raises(MCPError) as limited:
                await client.call_tool(*ECHO)
            assert limited.value.code == 429
            assert limited.value.data["retry_after_s"] > 0
            assert (await client.list_tools()).tools


async def test_the_sdk_of_before() -> None:
    """K001 K018 K028: `mcp` 1.30 drops its whole session at an HTTP 403 or 429."""
    async with serving_mcp(work) as hub:
        token = await hub.agent()
        calls = [call for refused in REFUSED for call in (refused, ECHO)]
        revision, listed, *answers = await old_client.run(hub.url, token, calls)
        assert revision == {"revision": "2025-11-25"}
        assert "ksi_system_echo" in listed["tools"]
        refusals, echoes = answers[::2], answers[1::2]
        assert [refusal.get("code") for refusal in refusals] == [-32602, -32602, None, None]
        assert [refusal.get("is_error") for refusal in refusals] == [None, None, True, True]
        assert echoes == [{"is_error": False, "structured": ECHO[1]}] * len(REFUSED)
        await exhaust(hub)
        *_, first, second, limited = await old_client.run(hub.url, token, [ECHO, ECHO, ECHO])
        assert first == second == {"is_error": False, "structured": ECHO[1]}
        assert limited["code"] == 429


async def curl(hub: McpHub, token: str, body: dict[str, Any], *options: str) -> dict[str, Any]:
    """The line that the specifications show."""
    process = await asyncio.create_subprocess_exec(
        "curl", "-sS", "-X", "POST", hub.url, "-H", f"Authorization: Bearer {token}",
        "-H", "Accept: application/json, text/event-stream", "-H", "Content-Type: application/json",
        "-d", json.dumps(body), *options, stdout=subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(30):
        out, _ = await process.communicate()
    answer: dict[str, Any] = json.loads(out)
    return answer


@needs_curl
async def test_curl_as_the_specifications_show_it() -> None:
    """E006 E008 E009"""
    async with serving_mcp(work) as hub:
        token = await hub.agent()
        call = {"name": ECHO[0], "arguments": ECHO[1]}
        answer = await curl(hub, token, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
        assert answer["result"]["structuredContent"] == ECHO[1]
        refused = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ksi_work_change"}}
        assert (await curl(hub, token, refused))["error"]["code"] == -32602
        assert (await curl(hub, "ksi_" + "x" * 43, refused))["error"]["code"] == 401


def test_the_old_clients_packages_are_locked() -> None:
    text = Path(old_client.LOCK).read_text(encoding="utf-8")
    assert "mcp==1.30.0" in text
    assert "--hash=sha256:" in text
