"""The revisions with sessions, 2024-11-05 to 2025-11-25: initialize, a session id, a stream, an end."""

from collections.abc import Mapping
from typing import Any

import pytest
from httpx2 import Response
from mcp import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from ksi_daemon.mcp.endpoint import STREAMS_LIMIT
from ksi_daemon.plugin import Context, Plugin
from tests.agents_at_work import rows
from tests.cases import case
from tests.in_process import Said, Text, soon, until
from tests.mcp_hub import META, McpHub, serving_mcp

work = Plugin("work")


@work.handles("work:change")
async def change(ctx: Context, params: Text) -> Said:
    """Change something."""
    return Said(text="done")


def initialize(version: str = "2025-06-18") -> dict[str, Any]:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


async def opened(
    hub: McpHub, token: str, *, path: str = "/mcp", headers: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The headers of a session that was just opened."""
    reply = await hub.post(token, initialize(), path=path, headers=headers)
    assert reply.status_code == 200
    session = {
        "mcp-session-id": reply.headers["mcp-session-id"],
        "mcp-protocol-version": "2025-06-18",
        **(headers or {}),
    }
    done = await hub.post(token, {"jsonrpc": "2.0", "method": "notifications/initialized"}, path=path, headers=session)
    assert done.status_code == 202
    return session


async def listed(hub: McpHub, token: str, session: dict[str, str]) -> Response:
    return await hub.post(token, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, headers=session)


async def test_every_revision_with_sessions_is_spoken() -> None:
    """K001 K002"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        for version in HANDSHAKE_PROTOCOL_VERSIONS:
            with case(version):
                reply = await hub.post(token, initialize(version))
                assert f'"protocolVersion":"{version}"' in reply.text
                assert len(reply.headers["mcp-session-id"]) >= 32


async def test_an_initialize_without_its_params_opens_no_session() -> None:
    """K030"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        whole: dict[str, Any] = initialize()["params"]
        broken: list[Any] = [None, [], {}, *({**whole, name: 5} for name in whole)]
        for params in broken:
            with case(params):
                reply = await hub.post(token, {**initialize(), "params": params})
                assert reply.status_code == 400
                assert reply.json()["error"]["data"]["hint"]
                assert "mcp-session-id" not in reply.headers
        assert (await hub.hub.call("mcp:status"))["stored_sessions"] == 0


async def test_a_client_with_a_session_lists_calls_and_goes_on_after_each_refusal() -> None:
    """K002 K028"""
    async with serving_mcp(work) as hub:
        token = await hub.agent()
        async with hub.client(token, "legacy") as client:
            assert "ksi_system_echo" in [tool.name for tool in (await client.list_tools()).tools]
            for tool in ("ksi_work_change", "ksi_no_such"):
                with pytest.raises(MCPError) as refused:
                    await client.call_tool(tool, {})
                assert refused.value.code == -32602
                answer = await client.call_tool("ksi_system_echo", {"text": "still here"})
                assert answer.structured_content == {"text": "still here"}


async def test_a_refused_call_in_a_session_is_an_error_in_a_reply_with_status_200() -> None:
    async with serving_mcp(work) as hub:
        token = await hub.agent()
        session = await opened(hub, token)
        call = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "ksi_work_change"}}
        reply = await hub.post(token, call, headers=session)
        assert reply.status_code == 200
        assert '"code":-32602' in reply.text


async def test_a_session_is_of_no_use_to_another_agent() -> None:
    """A07"""
    async with serving_mcp() as hub:
        alice, bob = await hub.agent("alice"), await hub.agent("bob")
        session = await opened(hub, alice)
        unknown = {**session, "mcp-session-id": "0" * 32}
        foreign, missing = await listed(hub, bob, session), await listed(hub, bob, unknown)
        assert (foreign.status_code, foreign.text) == (missing.status_code, missing.text)
        assert foreign.status_code == 404
        for method in ("DELETE", "GET"):
            headers = {**session, "authorization": f"Bearer {bob}", "accept": "text/event-stream", "last-event-id": "1"}
            reply = await hub.http.request(method, hub.url, headers=headers)
            assert reply.status_code == 404
        assert (await listed(hub, alice, session)).status_code == 200
        ids = {(await opened(hub, alice))["mcp-session-id"] for _ in range(50)}
        assert len(ids) == 50
        assert all(len(one) >= 32 and set(one) <= set("0123456789abcdef") for one in ids)  # of a random UUID


async def test_a_session_belongs_to_the_agent_and_not_to_one_of_its_tokens() -> None:
    """A05: a token that was rotated is refused at once; the session goes on with the new one."""
    async with serving_mcp() as hub:
        old = await hub.agent()
        session = await opened(hub, old)
        [token] = (await hub.hub.call("token:list", agent_id="bot"))["tokens"]
        new = (await hub.hub.call("token:rotate", credential_id=token["credential_id"]))["token"]
        assert (await listed(hub, old, session)).status_code == 401
        assert (await listed(hub, new, session)).status_code == 200


async def test_a_session_ends_when_its_client_deletes_it() -> None:
    """K001"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        session = await opened(hub, token)
        deleted = await hub.http.delete(hub.url, headers={**session, "authorization": f"Bearer {token}"})
        assert deleted.status_code == 200
        assert (await listed(hub, token, session)).status_code == 404


async def test_an_agent_has_only_so_many_streams_at_once() -> None:
    """D02"""
    async with serving_mcp() as hub:
        token, other = await hub.agent("greedy"), await hub.agent("other")

        def stream(session: dict[str, str], token: str) -> Any:
            headers = {**session, "authorization": f"Bearer {token}", "accept": "text/event-stream"}
            return hub.http.stream("GET", hub.url, headers=headers)

        sessions = [await opened(hub, token) for _ in range(STREAMS_LIMIT + 1)]
        streams = [stream(session, token) for session in sessions]
        for one in streams[:-1]:
            assert (await one.__aenter__()).status_code == 200
        async with streams[-1] as refused:
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
        async with stream(await opened(hub, other), other) as accepted:
            assert accepted.status_code == 200
        for one in streams[:-1]:
            await one.__aexit__(None, None, None)
        await until(lambda: not hub.service.endpoint.streams)


async def test_the_root_path_is_mcp_too() -> None:
    """K008 E006"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        session = await opened(hub, token, path="/")
        reply = await hub.post(token, {"jsonrpc": "2.0", "id": 2, "method": "ping"}, path="/", headers=session)
        assert reply.status_code == 200
        root = f"http://127.0.0.1:{hub.port}/"
        headers = {**session, "authorization": f"Bearer {token}"}
        async with hub.http.stream("GET", root, headers={**headers, "accept": "text/event-stream"}) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
        assert (await hub.http.get(root, headers={"accept": "text/html"})).status_code == 404
        assert (await hub.http.delete(root, headers=headers)).status_code == 200
        async with hub.client(token, path="/") as client:
            assert (await client.list_tools()).tools


async def test_a_request_without_session_and_version_is_answered_on_its_own() -> None:
    """E008 E009: the curl lines of the specifications work as they stand."""
    async with serving_mcp(work) as hub:
        token = await hub.agent()
        for accept in ("application/json, text/event-stream", "application/json", "*/*"):
            with case(accept):
                call = {"name": "ksi_system_echo", "arguments": {"text": "hi"}}
                body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call}
                reply = await hub.post(token, body, headers={"accept": accept})
                assert reply.headers["content-type"] == "application/json"
                assert "mcp-session-id" not in reply.headers
                assert reply.json()["result"]["structuredContent"] == {"text": "hi"}
        refused = await hub.call(token, "ksi_work_change")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, -32602)


async def test_a_client_that_takes_only_json_is_served_without_a_session_in_every_revision() -> None:
    """E009"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        for headers in ({}, {"mcp-protocol-version": "2025-06-18"}):
            for body in (initialize(), {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}):
                reply = await hub.post(token, body, headers={"accept": "application/json", **headers})
                assert reply.status_code == 200
                assert reply.headers["content-type"] == "application/json"
                assert "result" in reply.json()
        reply = await hub.request_2026(token, "tools/list", headers={"accept": "application/json"})
        assert reply.status_code == 200


async def test_an_accept_header_in_several_lines_is_one_list() -> None:
    """K001: clients and proxies may send it so."""
    async with serving_mcp() as hub:
        token = await hub.agent()
        lines = [("accept", "application/json"), ("accept", "text/event-stream")]
        both = [("authorization", f"Bearer {token}"), ("content-type", "application/json"), *lines]
        session = await soon(hub.http.post(hub.url, json=initialize(), headers=both))
        assert session.headers["content-type"].startswith("text/event-stream")
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
        modern = [*both, ("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/list")]
        assert (await soon(hub.http.post(hub.url, json=body, headers=modern))).status_code == 200
        neither = [*both[:2], ("accept", "text/html"), ("accept", "text/event-stream"), *modern[-2:]]
        assert (await soon(hub.http.post(hub.url, json=body, headers=neither))).status_code == 406
        doubled = [*both[:2], ("accept", "text/event-stream"), ("accept", "text/html")]
        assert (await soon(hub.http.get(f"http://127.0.0.1:{hub.port}/", headers=doubled))).status_code == 404


async def test_a_body_of_more_than_a_mebibyte_is_refused() -> None:
    """L062: parsing it would keep all others waiting."""
    async with serving_mcp() as hub:
        token = await hub.agent()
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
        limit = 1024 * 1024
        assert (await hub.post(token, body.ljust(limit))).status_code == 200
        assert (await hub.post(token, body.ljust(limit + 1))).status_code == 413


async def test_calls_of_a_session_are_on_record_like_any_other() -> None:
    """K031 K042 K010"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        async with hub.client(token, "legacy", **{"X-KSI-Agent-ID": "bot", "X-KSI-Conversation-ID": "c-1"}) as client:
            await client.call_tool("ksi_system_echo", {"text": "x"})
        [row] = await rows(hub.hub, event="system:echo")
        assert (row["event"], row["tool"], row["status"]) == ("system:echo", "ksi_system_echo", "ok")
        assert (row["transport"], row["conversation_id"]) == ("http", "c-1")
