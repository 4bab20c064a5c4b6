"""Many agents at once: each gets its own answers, and the record knows whose each call was."""

import asyncio
import json

from tests.agents_at_work import limit, rows
from tests.cases import case
from tests.mcp.test_sessions import opened
from tests.mcp_hub import McpHub, serving_mcp

AGENTS = 50
CALLS = 100  # of each agent
AT_ONCE = 2  # of each agent


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
