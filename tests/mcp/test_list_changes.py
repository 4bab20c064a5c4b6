"""list_changed: told to the streams of those whose list has changed, and to nobody else."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from ksi_daemon.plugin import Context, Plugin
from tests.agents_at_work import WallClock
from tests.in_process import Said, Text, soon, until
from tests.mcp.test_sessions import opened as opened_session
from tests.mcp_hub import BOTH, META, McpHub, serving_mcp

TOLD = "notifications/tools/list_changed"
work = Plugin("work")


@work.handles("work:change")
async def change(ctx: Context, params: Text) -> Said:
    """Change something."""
    return Said(text="done")


class Stream:
    """The messages of one open stream, as they come; `ended` once the hub has ended it."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.ended = asyncio.Event()
        self._came = asyncio.Event()

    @property
    def told(self) -> int:
        return sum(message.get("method") == TOLD for message in self.messages)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._came.clear()
            await soon(self._came.wait())

    async def read(self, response: httpx2.Response) -> None:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                self.messages.append(json.loads(line.removeprefix("data: ")))
                self._came.set()
        self.ended.set()


@asynccontextmanager
async def stream(hub: McpHub, request: httpx2.Request) -> AsyncIterator[Stream]:
    response = await soon(hub.http.send(request, stream=True))
    assert response.status_code == 200, await response.aread()
    found = Stream()
    reading = asyncio.create_task(found.read(response))
    try:
        yield found
    finally:
        reading.cancel()
        await response.aclose()


@asynccontextmanager
async def listening(hub: McpHub, token: str, *, path: str = "/mcp") -> AsyncIterator[Stream]:
    """A stream of the revision 2026-07-28."""
    wanted = {"notifications": {"toolsListChanged": True}, "_meta": META}
    request = hub.http.build_request(
        "POST",
        f"http://127.0.0.1:{hub.port}{path}",
        json={"jsonrpc": "2.0", "id": 9, "method": "subscriptions/listen", "params": wanted},
        headers={
            "authorization": f"Bearer {token}",
            "accept": BOTH,
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "subscriptions/listen",
        },
        timeout=None,
    )
    async with stream(hub, request) as found:
        await found.until(lambda: len(found.messages) == 1)
        assert found.messages[0]["method"] == "notifications/subscriptions/acknowledged"
        yield found


@asynccontextmanager
async def in_session(hub: McpHub, token: str) -> AsyncIterator[Stream]:
    """The stream of a session of an older revision."""
    async with stream_of(hub, token, await opened_session(hub, token)) as found:
        yield found


@asynccontextmanager
async def stream_of(hub: McpHub, token: str, session: dict[str, str]) -> AsyncIterator[Stream]:
    """The stream of a session that is open."""
    request = hub.http.build_request(
        "GET",
        hub.url,
        headers={"authorization": f"Bearer {token}", "accept": "text/event-stream", **session},
        timeout=None,
    )
    async with stream(hub, request) as found:
        yield found


OPENERS = pytest.mark.parametrize("opened", [listening, in_session])


@OPENERS
async def test_a_grant_and_a_revocation_are_told_to_the_agent_and_to_nobody_else(opened: Any) -> None:
    """K038 P01"""
    async with serving_mcp(work) as hub:
        token, other = await hub.agent("bot"), await hub.agent("other")
        async with opened(hub, token) as mine, opened(hub, token) as mine_too, opened(hub, other) as theirs:
            await hub.hub.call("permission:grant", agent_id="bot", resource="events/work:change")
            await mine.until(lambda: mine.told == 1)
            await mine_too.until(lambda: mine_too.told == 1)
            await hub.hub.call("permission:revoke", agent_id="bot", resource="events/work:change")
            await mine.until(lambda: mine.told == 2)
            await hub.hub.call("permission:grant", agent_id="other", resource="events/work:change")
            await theirs.until(lambda: theirs.told == 1)
            assert (mine.told, mine_too.told, theirs.told) == (2, 2, 1)


@OPENERS
async def test_a_change_that_changes_no_list_is_not_told(opened: Any) -> None:
    """K038"""
    async with serving_mcp(work) as hub:
        token = await hub.agent()
        async with opened(hub, token) as mine:
            await hub.hub.call("permission:grant", agent_id="bot", resource="events/nothing:here")
            await hub.hub.call("permission:grant", agent_id="bot", resource="events/work:change")
            await mine.until(lambda: mine.told == 1)
            await hub.hub.call("token:create", agent_id="bot")
            await hub.hub.call("permission:grant", agent_id="bot", resource="events/work:change", for_s=600)
            await hub.hub.call("agent:freeze", agent_id="bot")
            await mine.until(lambda: mine.told == 2)


@OPENERS
async def test_a_grant_that_expires_is_told_also_when_others_rights_change_just_then(opened: Any) -> None:
    """K038 P01"""
    async with serving_mcp(work) as hub:
        clock = WallClock(hub.hub)
        token, _ = await hub.agent("bot"), await hub.agent("other")
        await hub.hub.call("permission:grant", agent_id="bot", resource="events/work:change", for_s=60)
        async with opened(hub, token) as mine:
            clock.now_s += 61
            await hub.hub.call("permission:grant", agent_id="other", resource="events/work:change")
            await mine.until(lambda: mine.told == 1)


@OPENERS
async def test_a_grant_that_expires_is_told(opened: Any) -> None:
    """K038"""
    async with serving_mcp(work) as hub:
        clock = WallClock(hub.hub)
        token = await hub.agent()
        await hub.hub.call("permission:grant", agent_id="bot", resource="events/work:change", for_s=60)
        async with opened(hub, token) as mine:
            clock.now_s += 61
            await mine.until(lambda: mine.told == 1)


@OPENERS
async def test_a_stream_whose_token_ends_is_ended_without_a_word(opened: Any) -> None:
    """K038 A05"""
    async with serving_mcp(work) as hub:
        clock = WallClock(hub.hub)
        await hub.agent()
        kept = await hub.hub.call("token:create", agent_id="bot")
        revoked = await hub.hub.call("token:create", agent_id="bot")
        expiring = await hub.hub.call("token:create", agent_id="bot", expires_in_s=60)
        async with (
            opened(hub, kept["token"]) as first,
            opened(hub, revoked["token"]) as second,
            opened(hub, expiring["token"]) as third,
        ):
            await hub.hub.call("token:revoke", credential_id=revoked["credential_id"])
            await soon(second.ended.wait())
            clock.now_s += 61
            await soon(third.ended.wait())
            assert (first.told, second.told, third.told) == (0, 0, 0)
            assert not first.ended.is_set()


@OPENERS
async def test_a_plugin_that_comes_is_told_to_those_who_may_use_it(opened: Any) -> None:
    """K038"""
    async with serving_mcp() as hub:
        token, other = await hub.agent(), await hub.agent("other")
        await hub.hub.call("permission:grant", agent_id="bot", resource="events/work:*")
        async with opened(hub, token) as mine, opened(hub, other) as theirs:
            await hub.hub.load(work)
            await mine.until(lambda: mine.told == 1)
            assert theirs.told == 0


async def test_a_ninth_stream_of_an_agent_is_refused() -> None:
    """D02"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        async with asyncio.TaskGroup() as group:
            done = asyncio.Event()
            opened = []

            async def hold() -> None:
                async with listening(hub, token) as mine:
                    opened.append(mine)
                    await done.wait()

            for _ in range(8):
                group.create_task(hold())
            await until(lambda: len(opened) == 8)
            params = {"notifications": {"toolsListChanged": True}}
            refused = await hub.request_2026(token, "subscriptions/listen", params)
            assert refused.status_code == 429
            done.set()
