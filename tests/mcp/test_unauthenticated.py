"""Requests without a valid token: refused alike on every path, recorded, and of no effect."""

import asyncio
import secrets

from tests.agents_at_work import WallClock, limit, rows
from tests.cases import case
from tests.mcp.test_sessions import initialize, listed, opened
from tests.mcp_hub import BOTH, META, McpHub, serving_mcp

PATHS = ("/mcp", "/mcp/tools", "/mcp/nothing")
METHODS = ("POST", "GET", "DELETE", "PUT", "PATCH", "OPTIONS")
AT_ROOT = ("POST", "GET", "DELETE")  # with this Accept header; anything else at / is not MCP
CALL = {"name": "ksi_state_set", "arguments": {"key": "k", "value": "changed"}}
WRONG_TOKENS = 1_000
AT_ONCE = 50


async def recorded(hub: McpHub, expected: int) -> None:
    """Wait until so many refused requests are on record, each in a row or in the count of its second."""
    async with asyncio.timeout(20):
        while True:
            found = await rows(hub.hub, type="authorization")
            if sum(int(row["count"]) for row in found) >= expected:
                break
            await asyncio.sleep(0.1)
    assert sum(int(row["count"]) for row in found) == expected
    assert {(row["principal"], row["status"]) for row in found} == {("unknown", "unauthenticated")}


async def test_no_path_and_no_method_serves_a_request_without_a_valid_token() -> None:
    """A01"""
    async with serving_mcp() as hub:
        token = await hub.agent("bot", "trusted")
        wrong = [None, "Bearer", "Bearer junk", f"Bearer {token[:-1]}", f"Bearer {token}A", f"Bearer {token[4:]}",
                 f"Bearer {token.upper()}", token, f"Basic {token}", f"Token {token}", f"Bearer: {token}",
                 f"Bearer {token}, Bearer {token}"]  # fmt: skip
        asked = [(method, path) for path in PATHS for method in METHODS] + [(method, "/") for method in AT_ROOT]
        secret = [*hub.service.tools.own_names, *hub.hub.hub.router.routes]
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALL}

        async def ask(method: str, path: str, authorization: str | None) -> None:
            headers = {"accept": "text/event-stream" if path == "/" else BOTH}
            if authorization is not None:
                headers["authorization"] = authorization
            url = f"http://127.0.0.1:{hub.port}{path}"
            with case(method, path, authorization):
                reply = await hub.http.request(method, url, headers=headers, json=body)
                assert reply.status_code == 401
                assert reply.headers["www-authenticate"] == "Bearer"
                assert [name for name in secret if name in reply.text] == []
                assert token not in reply.text

        for method, path in asked:
            await asyncio.gather(*(ask(method, path, authorization) for authorization in wrong))
        assert len(asked) * len(wrong) >= 40
        await recorded(hub, len(asked) * len(wrong))
        assert (await hub.hub.call("state:list"))["entries"] == []


async def test_the_challenge_promises_no_oauth() -> None:
    """A06 K027"""
    async with serving_mcp() as hub:
        reply = await hub.post(None, initialize())
        assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
        error = reply.json()["error"]
        assert (error["code"], error["data"]["code"]) == (401, "unauthenticated")
        assert "ksi tokens create" in error["data"]["hint"]
        for page in ("oauth-protected-resource", "oauth-authorization-server", "openid-configuration"):
            for path in (f"/.well-known/{page}", f"/.well-known/{page}/mcp", f"/mcp/.well-known/{page}"):
                with case(path):
                    assert (await hub.http.get(f"http://127.0.0.1:{hub.port}{path}")).status_code == 404


async def statuses(hub: McpHub, token: str, session: dict[str, str]) -> set[int]:
    """What a token gets in each era, with and without a session."""
    return {
        (await hub.call_2026(token, "ksi_system_echo", text="x")).status_code,
        (await hub.call(token, "ksi_system_echo", text="x")).status_code,
        (await hub.post(token, initialize())).status_code,
        (await listed(hub, token, session)).status_code,
    }


async def test_a_token_that_ended_is_refused_from_the_next_request_on() -> None:
    """A05: expired, revoked, rotated, of an agent that was removed, and of another daemon."""
    async with serving_mcp() as hub, serving_mcp() as elsewhere:
        await hub.agent()

        async def end(token: str, session: dict[str, str], event: str, **params: str) -> None:
            with case(event):
                assert await statuses(hub, token, session) == {200}
                await hub.hub.call(event, **params)
                for _ in range(10):
                    assert await statuses(hub, token, session) == {401}

        for event in ("token:revoke", "token:rotate"):
            made = await hub.hub.call("token:create", agent_id="bot")
            session = await opened(hub, made["token"])
            await end(made["token"], session, event, credential_id=made["credential_id"])
        gone = await hub.agent("gone")
        await end(gone, await opened(hub, gone), "agent:remove", agent_id="gone")
        clock = WallClock(hub.hub)
        made = await hub.hub.call("token:create", agent_id="bot", expires_in_s=60.0)
        session = await opened(hub, made["token"])
        clock.now_s += 30
        assert await statuses(hub, made["token"], session) == {200}
        clock.now_s += 300
        assert await statuses(hub, made["token"], session) == {401}
        foreign = await elsewhere.agent()
        assert await statuses(elsewhere, foreign, await opened(elsewhere, foreign)) == {200}
        assert await statuses(hub, foreign, session) == {401}


async def test_guessing_over_http_finds_nothing_and_slows_no_other_agent_down() -> None:
    """A12"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        limit(hub.hub, calls_per_minute=None, concurrent_calls=None)
        left = iter(range(WRONG_TOKENS))
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
        seen: set[int] = set()

        async def guess() -> None:
            for _ in left:
                reply = await hub.post("ksi_" + secrets.token_urlsafe(32), body)
                seen.add(reply.status_code)

        guessing = asyncio.gather(*(guess() for _ in range(AT_ONCE)))
        served = 0
        while not guessing.done():
            assert (await hub.call_2026(token, "ksi_system_health")).status_code == 200
            served += 1
        await guessing
        assert seen == {401}
        assert served > 1
        await recorded(hub, WRONG_TOKENS)
