"""Many agents at once: each gets its own answers, and the record knows whose each call was."""

import asyncio
import json

import pytest

from ksi_daemon.mcp import sessions
from tests.agents_at_work import limit, rows
from tests.cases import case
from tests.in_process import soon
from tests.mcp.test_cancellation import HangingCall, Patient
from tests.mcp.test_sessions import opened
from tests.mcp_hub import McpHub, serving_mcp

AGENTS = 15
CALLS = 30  # of each agent
AT_ONCE = 2  # of each agent, in one session


async def test_a_session_has_no_two_requests_with_one_id_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """L08: the answer of one would go to the other, and one of them would wait for ever."""
    monkeypatch.setattr(sessions, "SAME_ID_WAIT_S", 0.01)
    patient = Patient()
    async with serving_mcp(patient.plugin) as hub:
        token = await hub.agent()
        session, other = await opened(hub, token), await opened(hub, token)
        first = HangingCall(hub, token, session)
        await soon(patient.entered.wait())
        for same in (7, "7"):
            with case(same):
                body = {"jsonrpc": "2.0", "id": same, "method": "tools/list"}
                reply = await hub.post(token, body, headers=session)
                assert (reply.status_code, reply.json()["id"]) == (400, same)
                assert "is under way in this session" in reply.json()["error"]["message"]
                assert (await hub.post(token, body, headers=other)).status_code == 200
        patient.release.set()
        assert "waited" in (await soon(first.answer)).text
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/list"}
        assert (await hub.post(token, body, headers=session)).status_code == 200


async def test_requests_with_one_id_that_soon_end_are_each_answered() -> None:
    """L08: one after the other, and a crowd at once."""
    async with serving_mcp() as hub:
        token = await hub.agent()
        limit(hub.hub, calls_per_minute=None, concurrent_calls=None)
        session = await opened(hub, token)
        for number in range(50):
            assert await echoed(hub, token, session, 1, f"n{number}") == f"n{number}"
        texts = [f"n{number}" for number in range(8)]
        assert await asyncio.gather(*(echoed(hub, token, session, 1, text) for text in texts)) == texts


async def echoed(hub: McpHub, token: str, headers: dict[str, str] | None, number: int, text: str) -> str:
    """What the daemon answers, under an id that other agents use too."""
    params = {"name": "ksi_system_echo", "arguments": {"text": text}}
    if headers is None:
        reply = await hub.request_2026(token, "tools/call", params)
    else:
        body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        reply = await hub.post(token, body, headers=headers)
    lines = [line[6:] for line in reply.text.split("\r\n") if line.startswith('data: {"')] or [reply.text]
    answer = json.loads(lines[-1])
    assert answer["id"] == (1 if headers is None else number)
    return str(answer["result"]["structuredContent"]["text"])


async def test_no_answer_reaches_another_agent_or_another_request() -> None:
    """L08"""
    async with serving_mcp() as hub:
        limit(hub.hub, calls_per_minute=None, concurrent_calls=None)

        async def agent(number: int) -> int:
            name = f"agent-{number}"
            token = await hub.agent(name)
            headers = (None, {}, await opened(hub, token))[number % 3]
            left = iter(range(CALLS))

            async def work() -> int:
                own = 0
                for count in left:
                    text = f"{name} {count} {'x' * (count % 7)}"
                    with case(text):
                        assert await echoed(hub, token, headers, count, text) == text
                    own += 1
                return own

            return sum(await asyncio.gather(*(work() for _ in range(AT_ONCE))))

        assert sum(await asyncio.gather(*map(agent, range(AGENTS)))) == AGENTS * CALLS
        for number in range(AGENTS):
            found = await rows(hub.hub, agent=f"agent-{number}", phase="outcome")
            assert [row["status"] for row in found] == ["ok"] * CALLS
