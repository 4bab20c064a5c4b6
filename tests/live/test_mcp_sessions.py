"""MCP sessions and streams of a real daemon process: over kills and restarts, in great numbers, and at the end."""

import asyncio
import json
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.live.daemon_process import Daemon, until
from tests.mcp.test_sessions import initialize
from tests.mcp_hub import BOTH, META

SLOW = '''
class Wait(Params):
    seconds: float = Field(description="How long.")

@plugin.handles("slow:wait", timeout_s=60)
async def wait(ctx: Context, params: Wait) -> Done:
    """Answer after a while."""
    await asyncio.sleep(params.seconds)
    return Done()
'''
MEMORY_LIMIT_KB = 10 * 1024
INITIALIZE = json.dumps(initialize()["params"]).encode()


def url(daemon: Daemon) -> str:
    return f"http://127.0.0.1:{(daemon.var / 'run' / 'http_port').read_text()}/mcp"


def headers(token: str, **more: str) -> dict[str, str]:
    named = {name.replace("_", "-"): value for name, value in more.items()}
    return {"authorization": f"Bearer {token}", "accept": BOTH, "content-type": "application/json", **named}


def resident_kb(daemon: Daemon) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{daemon.pid}/status").read_text())
    assert found is not None
    return int(found[1])


async def test_a_client_with_a_session_does_not_notice_kill_9(daemon: Daemon) -> None:
    """K013 K022 D03"""
    await asyncio.to_thread(daemon.start)
    token = daemon.add_agent("bot", "standard")
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=30) as http,
        Client(streamable_http_client(url(daemon), http_client=http), mode="legacy") as client,
    ):
        names = [tool.name for tool in (await client.list_tools()).tools]
        for end in (daemon.kill, daemon.stop):
            await asyncio.to_thread(end)
            await asyncio.to_thread(daemon.start)
            answer = await asyncio.wait_for(client.call_tool("ksi_system_echo", {"text": "hi"}), 20)
            assert answer.structured_content == {"text": "hi"}
            assert [tool.name for tool in (await client.list_tools()).tools] == names
    with closing(sqlite3.connect(daemon.var / "db" / "mcp_sessions.db")) as database:
        assert database.execute("SELECT count(*) FROM sessions").fetchone() == (0,)  # the client ended its one session


async def test_a_thousand_initializations_take_little_memory(daemon: Daemon) -> None:
    """D03"""
    await asyncio.to_thread(daemon.start)
    token = daemon.add_agent("bot", "standard")
    async with httpx2.AsyncClient(timeout=30) as http:

        async def some(count: int) -> None:
            for _ in range(count):
                reply = await http.post(url(daemon), json=initialize(), headers=headers(token))
                assert reply.status_code == 200

        await asyncio.gather(*(some(50) for _ in range(4)))
        before = resident_kb(daemon)
        await asyncio.gather(*(some(200) for _ in range(4)))
        assert resident_kb(daemon) - before < MEMORY_LIMIT_KB


def test_ten_thousand_stored_sessions_and_completions_do_not_slow_the_start(daemon: Daemon) -> None:
    """D03 L04"""
    daemon.start()
    token = daemon.add_agent("bot", "standard")
    assert len(listed(daemon, headers(completion(daemon, 1)))) > 5_000
    daemon.stop()
    now = time.time()
    with closing(sqlite3.connect(daemon.var / "db" / "mcp_sessions.db")) as database, database:
        database.executemany(
            "INSERT INTO sessions (session_id, agent_id, initialize, opened_at, used_at) VALUES (?, ?, ?, ?, ?)",
            [(f"{number:032x}", f"bot{number % 100 or ''}", INITIALIZE, now, now) for number in range(10_000)],
        )
        database.executemany(
            "INSERT INTO completions SELECT agent_id, ?, completion_id, kind, fingerprint, delivered, listings, bytes, tokens,"
            " client, started_at, listed_at FROM completions WHERE conversation_id = 'c1'",
            [(f"other-{number}",) for number in range(10_000)],
        )
    daemon.start()
    session = headers(token, mcp_session_id=f"{100:032x}", mcp_protocol_version="2025-06-18")
    full, thin = listed(daemon, session), listed(daemon, headers(completion(daemon, 2)))
    assert len(thin) < len(full) / 2


def completion(daemon: Daemon, number: int) -> str:
    """A token for one completion of the conversation c1."""
    named = {"agent_id": "bot", "conversation_id": "c1", "completion_id": f"completion-{number}", "resumes": True}
    return str(daemon.call("token:create", named)["token"])


def listed(daemon: Daemon, sent: dict[str, str]) -> str:
    """The list of tools as the hub sends it."""
    reply = httpx2.post(url(daemon), json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, headers=sent, timeout=30)
    assert reply.status_code == 200
    assert "ksi_system_echo" in reply.text
    return reply.text


async def test_a_stop_with_fifty_streams_and_running_calls_answers_them_and_ends_in_time(daemon: Daemon) -> None:
    """F07 K038"""
    daemon.plugin("slow", SLOW)
    await asyncio.to_thread(daemon.start)
    tokens = [daemon.add_agent(f"bot{number}", "trusted") for number in range(7)]
    version = {"mcp_protocol_version": "2026-07-28"}
    limits = httpx2.Limits(max_connections=200)
    async with httpx2.AsyncClient(timeout=30, limits=limits) as http:

        async def session(token: str) -> dict[str, str]:
            reply = await http.post(url(daemon), json=initialize(), headers=headers(token))
            return headers(token, mcp_session_id=reply.headers["mcp-session-id"], mcp_protocol_version="2025-06-18")

        async def stream(number: int) -> str:
            token = tokens[number % len(tokens)]
            if number % 2:
                async with http.stream("GET", url(daemon), headers=await session(token)) as reply:
                    return await read(reply)
            params: dict[str, Any] = {"notifications": {"toolsListChanged": True}, "_meta": META}
            body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
            sent = headers(token, mcp_method="subscriptions/listen", **version)
            async with http.stream("POST", url(daemon), json=body, headers=sent) as reply:
                return await read(reply)

        opened = 0

        async def read(reply: httpx2.Response) -> str:
            nonlocal opened
            assert reply.status_code == 200
            opened += 1
            return (await reply.aread()).decode()

        async def call(number: int) -> str:
            token = tokens[number % len(tokens)]
            params: dict[str, Any] = {"name": "ksi_slow_wait", "arguments": {"seconds": 1.5}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            if number % 2:
                sent = await session(token)
            else:
                sent = headers(token, mcp_method="tools/call", mcp_name="ksi_slow_wait", **version)
                params["_meta"] = META
            reply = await http.post(url(daemon), json=body, headers=sent)
            assert reply.status_code == 200
            return reply.text

        streams = [asyncio.create_task(stream(number)) for number in range(50)]
        async with asyncio.timeout(20):
            while opened < 50:  # noqa: ASYNC110 - a counter has nothing to wait for
                await asyncio.sleep(0.01)
        calls = [asyncio.create_task(call(number)) for number in range(14)]
        await asyncio.to_thread(
            until, lambda: daemon.call("system:status")["calls_in_flight"] >= 14, what="14 calls under way"
        )
        began = time.monotonic()
        assert await asyncio.to_thread(daemon.stop) == 0
        assert time.monotonic() - began < 10
        assert all('"isError":false' in answer for answer in await asyncio.gather(*calls))
        await asyncio.wait_for(asyncio.gather(*streams), 5)
