"""Who calls: a token, its ceiling, and headers where an operator trusts them."""

from tests.agents_at_work import rows
from tests.mcp_hub import McpHub, serving_mcp


async def tools(hub: McpHub, token: str | None, **headers: str) -> list[str] | int:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    reply = await hub.post(token, body, headers={name.replace("_", "-"): value for name, value in headers.items()})
    if reply.status_code != 200:
        return reply.status_code
    return [tool["name"] for tool in reply.json()["result"]["tools"]]


async def test_a_token_with_a_ceiling_never_exceeds_it_whatever_its_agent_may_do() -> None:
    async with serving_mcp() as hub:
        whole = await hub.agent("bot", "trusted")
        capped = (await hub.hub.call("token:create", agent_id="bot", ceiling="restricted"))["token"]
        for token, sees in ((whole, True), (capped, False)):
            seen = await tools(hub, token)
            assert isinstance(seen, list)
            assert ("ksi_state_set" in seen) is sees
            assert (await hub.call(token, "ksi_state_set", key="k", value=1)).status_code == (200 if sees else 403)
        await hub.hub.call("permission:grant", agent_id="bot", resource="events/state:*")
        assert (await hub.call(capped, "ksi_state_set", key="k", value=1)).status_code == 403
        assert (await hub.call(capped, "ksi_system_echo", text="x")).status_code == 200


async def test_headers_alone_are_nobody_unless_the_operator_trusts_them() -> None:
    """A01"""
    async with serving_mcp() as hub:
        await hub.agent("bot", "trusted")
        assert await tools(hub, None, x_ksi_agent_id="bot") == 401


async def test_with_trusted_headers_an_agent_is_at_most_restricted() -> None:
    """K027: an id that no agent has is 401."""
    async with serving_mcp(trust_headers=True) as hub:
        token = await hub.agent("bot", "trusted")
        seen = await tools(hub, None, x_ksi_agent_id="bot")
        assert isinstance(seen, list)
        assert "ksi_system_echo" in seen
        assert "ksi_state_set" not in seen
        assert await tools(hub, None, x_ksi_agent_id="stranger") == 401
        assert await tools(hub, None) == 401
        assert await tools(hub, token + "x", x_ksi_agent_id="bot") == 401  # a wrong token is not replaced by the header
        assert "ksi_state_set" in str(await tools(hub, token, x_ksi_agent_id="bot"))
        assert {row["principal"] for row in await rows(hub.hub, type="authorization")} == {"unknown"}
