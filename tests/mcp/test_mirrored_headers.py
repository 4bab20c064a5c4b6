"""Parameters that clients of 2026 repeat as headers: the header must say what the body says, for those who may call the tool."""

from typing import Any

from ksi_daemon.plugin import Context, Field, Params, Plugin
from tests.agents_at_work import rows
from tests.cases import case
from tests.in_process import Said
from tests.mcp_hub import McpHub, serving_mcp

MISMATCH = -32020


class Where(Params):
    """Params of a tool that a proxy may route by."""

    region: str = Field("", description="Where it runs.", json_schema_extra={"x-mcp-header": "Region"})


def regional(*, reads: bool) -> Plugin:
    plugin = Plugin("regional")

    @plugin.handles("regional:run", reads=reads)
    async def run(ctx: Context, params: Where) -> Said:
        """Run somewhere."""
        return Said(text=params.region)

    return plugin


async def sent(hub: McpHub, token: str, arguments: dict[str, Any], header: str | None) -> tuple[int, str]:
    headers = {} if header is None else {"mcp-param-region": header}
    params = {"name": "ksi_regional_run", "arguments": arguments}
    reply = await hub.request_2026(token, "tools/call", params, headers=headers)
    return reply.status_code, reply.text


async def test_a_header_that_contradicts_its_argument_is_refused_and_on_record() -> None:
    """G04 H07"""
    async with serving_mcp(regional(reads=True)) as hub:
        token = await hub.agent()
        for arguments, header in (({"region": "north"}, "south"), ({}, "north"), ({"region": "north"}, "=?base64?%?=")):
            with case(arguments, header):
                status, text = await sent(hub, token, arguments, header)
                assert (status, f'"code":{MISMATCH}' in text) == (400, True)
        assert not await rows(hub.hub, event="regional:run")
        assert len(await rows(hub.hub, agent="bot", status="invalid")) == 3


async def test_a_header_that_agrees_and_one_that_is_missing_are_served() -> None:
    """G04: a client that was shown only the thin definition does not know of the header."""
    async with serving_mcp(regional(reads=True)) as hub:
        token = await hub.agent()
        for arguments, header in (
            ({"region": "north"}, "north"),
            ({"region": "nörd"}, "=?base64?bsO2cmQ=?="),
            ({"region": "north"}, None),
            ({}, None),
        ):
            with case(arguments, header):
                assert (await sent(hub, token, arguments, header))[0] == 200


async def test_the_client_of_the_sdk_sends_the_header() -> None:
    """G04"""
    async with serving_mcp(regional(reads=True)) as hub, hub.client(await hub.agent()) as client:
        assert "ksi_regional_run" in [tool.name for tool in (await client.list_tools()).tools]
        answer = await client.call_tool("ksi_regional_run", {"region": "nörd"})
        assert answer.structured_content == {"text": "nörd"}


async def test_a_header_tells_nothing_of_a_tool_that_the_caller_may_not_use() -> None:
    """P03"""
    async with serving_mcp(regional(reads=False)) as hub:
        token = await hub.agent()
        replies = {await sent(hub, token, {"region": "north"}, header) for header in ("north", "south", None)}
        assert len(replies) == 1
        assert next(iter(replies))[0] == 403
