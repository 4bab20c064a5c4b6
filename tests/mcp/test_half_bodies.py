"""Bodies that never end: closed in time, while other agents are served."""

import asyncio

from ksi_daemon.mcp.endpoint import REQUESTS_LIMIT
from ksi_daemon.web.http_protocol import HttpLimits
from tests.agents_at_work import limit
from tests.in_process import until
from tests.mcp_hub import BOTH, serving_mcp
from tests.web.raw_http import Site

HALVES = 300


async def test_half_bodies_are_closed_while_others_are_served() -> None:
    """D01"""
    async with serving_mcp(limits=HttpLimits(body_s=2.0)) as hub:
        greedy, other = await hub.agent("greedy"), await hub.agent("other")
        limit(hub.hub, calls_per_minute=None, concurrent_calls=None)
        site = Site(hub.port)
        rest = (f"Accept: {BOTH}", "Content-Type: application/json", "Content-Length: 1000")
        known = site.head("POST /mcp HTTP/1.1", f"Authorization: Bearer {greedy}", *rest) + b'{"jsonrpc":'
        unknown = site.head("POST /mcp HTTP/1.1", *rest) + b'{"jsonrpc":'

        async def half(raw: bytes) -> int:
            async with site.connection() as connection:
                connection.send(raw)
                status, _, _ = await connection.answer()
                await connection.closed()
                return status

        halves = [asyncio.create_task(half(known if number % 2 else unknown)) for number in range(HALVES)]
        await until(lambda: hub.service.endpoint.requests["greedy"] == REQUESTS_LIMIT)
        served = 0
        while not all(task.done() for task in halves):
            assert (await hub.call_2026(other, "ksi_system_echo", text="x")).status_code == 200
            served += 1
        assert served > 1
        statuses = [task.result() for task in halves]
        assert statuses.count(408) == REQUESTS_LIMIT
        assert statuses.count(401) == HALVES // 2  # at once: nobody waits for the body of an unknown caller
        assert statuses.count(429) == HALVES - HALVES // 2 - REQUESTS_LIMIT
        await until(lambda: not hub.service.endpoint.requests)
        assert (await hub.call_2026(greedy, "ksi_system_echo", text="x")).status_code == 200
