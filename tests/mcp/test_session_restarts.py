"""Sessions outlive the daemon, and the SDK's own: a client's next request works as if nothing had happened."""

import asyncio
from pathlib import Path

import pytest

from ksi_daemon.mcp import sessions
from tests.agents_at_work import WallClock
from tests.in_process import WAIT_S, soon, until
from tests.mcp.test_handshakes import kind, tools_of, work
from tests.mcp.test_list_changes import stream_of
from tests.mcp.test_sessions import initialize, listed, opened
from tests.mcp_hub import McpHub, serving_mcp

ECHO = {
    "jsonrpc": "2.0",
    "id": 5,
    "method": "tools/call",
    "params": {"name": "ksi_system_echo", "arguments": {"text": "hi"}},
}


async def works(hub: McpHub, token: str, session: dict[str, str]) -> bool:
    reply = await hub.post(token, ECHO, headers=session)
    assert reply.status_code in (200, 404)
    assert reply.headers.get("mcp-session-id", session["mcp-session-id"]) == session["mcp-session-id"]
    return reply.status_code == 200 and '"isError":false' in reply.text


async def test_a_session_goes_on_after_a_restart_and_belongs_to_its_agent(tmp_path: Path) -> None:
    """K013 A07"""
    async with serving_mcp(var_dir=tmp_path / "var") as hub:
        token, other = await hub.agent(), await hub.agent("other")
        session = await opened(hub, token)
        names = tools_of(await listed(hub, token, session)).keys()
    async with serving_mcp(var_dir=tmp_path / "var") as hub:
        assert not await works(hub, other, session)
        assert tools_of(await listed(hub, token, session)).keys() == names
        assert await works(hub, token, session)
        assert not await works(hub, other, session)
        assert len(hub.service.sessions.live) == 1


async def test_a_session_that_was_ended_is_gone_for_good(tmp_path: Path) -> None:
    async with serving_mcp(var_dir=tmp_path / "var") as hub:
        token = await hub.agent()
        session = await opened(hub, token)
        ended = await hub.http.delete(hub.url, headers={"authorization": f"Bearer {token}", **session})
        assert ended.status_code == 200
        assert not await works(hub, token, session)
    async with serving_mcp(var_dir=tmp_path / "var") as hub:
        assert not await works(hub, token, session)


async def test_a_session_of_a_conversation_is_the_same_completion_after_a_restart(tmp_path: Path) -> None:
    """K012 K013"""
    conversation = {"x-ksi-conversation-id": "c1"}
    kinds = []
    async with serving_mcp(var_dir=tmp_path / "var") as hub:
        token = await hub.agent()
        session = await opened(hub, token, headers=conversation)
        kinds.append(kind(await listed(hub, token, session)))
        await soon(hub.service.handshakes.settled())
    async with serving_mcp(var_dir=tmp_path / "var") as hub:
        kinds.append(kind(await listed(hub, token, session)))
        kinds.append(kind(await listed(hub, token, await opened(hub, token, headers=conversation))))
    assert kinds == ["full", "full", "thin"]


async def test_a_client_is_told_what_changed_while_it_was_not_connected(tmp_path: Path) -> None:
    """K038"""
    async with serving_mcp(work, var_dir=tmp_path / "var") as hub:
        token = await hub.agent()
        session = await opened(hub, token)
        await listed(hub, token, session)
        await hub.hub.call("permission:grant", agent_id="bot", resource="events/work:change")
    async with serving_mcp(work, var_dir=tmp_path / "var") as hub, stream_of(hub, token, session) as mine:
        await mine.until(lambda: mine.told == 1)
        await listed(hub, token, session)
    async with serving_mcp(work, var_dir=tmp_path / "var") as hub, stream_of(hub, token, session) as mine:
        await hub.hub.call("permission:revoke", agent_id="bot", resource="events/work:change")
        await mine.until(lambda: mine.told == 1)


async def test_an_agents_idle_sessions_are_unloaded_beyond_sixteen_and_still_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D03"""
    monkeypatch.setattr(sessions, "LIVE_LIMIT", 4)
    async with serving_mcp() as hub:
        token = await hub.agent()
        all_sessions = [await opened(hub, token) for _ in range(10)]
        live = hub.service.sessions.live
        assert len(live) == 4
        assert all_sessions[-1]["mcp-session-id"] in live
        assert all_sessions[0]["mcp-session-id"] not in live
        assert all([await works(hub, token, session) for session in all_sessions])
        assert len(live) == 4


async def test_a_session_with_an_open_stream_is_not_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """D03"""
    monkeypatch.setattr(sessions, "LIVE_LIMIT", 2)
    async with serving_mcp(work) as hub:
        token = await hub.agent()
        session = await opened(hub, token)
        async with stream_of(hub, token, session) as mine:
            for _ in range(4):
                await opened(hub, token)
            assert session["mcp-session-id"] in hub.service.sessions.live
            await hub.hub.call("permission:grant", agent_id="bot", resource="events/work:change")
            await mine.until(lambda: mine.told == 1)


async def test_sessions_without_requests_are_unloaded_and_at_last_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """D03"""
    monkeypatch.setattr(sessions, "UPKEEP_EVERY_S", 0.01)
    async with serving_mcp() as hub:
        clock = WallClock(hub.hub)
        hub.service.sessions.clock = clock
        token = await hub.agent()
        session = await opened(hub, token)
        live = hub.service.sessions.live
        await until(lambda: not any(found.requests for found in live.values()))
        clock.now_s += sessions.UNLOAD_AFTER_S + 1
        await until(lambda: not live)
        assert await works(hub, token, session)
        await until(lambda: not any(found.requests for found in live.values()))
        clock.now_s += sessions.FORGET_AFTER_S * 2
        await until(lambda: not live)
        async with asyncio.timeout(WAIT_S):
            while await hub.service.sessions.store.count():  # noqa: ASYNC110 - the upkeep signals nothing
                await asyncio.sleep(0.01)
        assert not await works(hub, token, session)


async def test_a_huge_initialize_is_refused() -> None:
    """D03"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        body = initialize()
        body["params"]["clientInfo"]["name"] = "x" * 20_000
        reply = await hub.post(token, body)
        assert reply.status_code == 400
        assert "16,384 bytes" in reply.text
        assert not hub.service.sessions.live
