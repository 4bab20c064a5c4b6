"""Who ends a call before its answer: in the revision 2026 the client that leaves, in sessions only `notifications/cancelled`."""

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest
from mcp import Client

from ksi_daemon.plugin import Context, Plugin
from tests.agents_at_work import rows
from tests.in_process import Said, Text, soon, until
from tests.mcp.test_sessions import listed, opened
from tests.mcp_hub import META, McpHub, serving_mcp

MODERN = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "ksi_patient_wait"}
JSON_ONLY = {"accept": "application/json"}


class Patient:
    """A plugin whose handler waits until it is released, and knows when it was cancelled."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.release = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.plugin = Plugin("patient")

        @self.plugin.handles("patient:wait", reads=True, timeout_s=60)
        async def wait(ctx: Context, params: Text) -> Said:
            """Report that it is under way, and wait."""
            ctx.progress(1, 2)
            self.entered.set()
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return Said(text="waited")


class HangingCall:
    """A POST of a call whose client leaves when it is told to, while the handler waits."""

    def __init__(
        self,
        hub: McpHub,
        token: str,
        headers: Mapping[str, str],
        *,
        tool: str = "ksi_patient_wait",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        meta = {"progressToken": 1, **(META if "mcp-method" in headers else {})}
        params = {"name": tool, "arguments": arguments or {}, "_meta": meta}
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
        self.answer = asyncio.create_task(hub.post(token, body, headers=headers))

    async def leave(self) -> None:
        """Close the connection."""
        self.answer.cancel()
        await asyncio.wait([self.answer])


async def outcome(hub: McpHub) -> tuple[str, str]:
    """The event and the status of the one call on record."""
    await hub.hub.hub.router.idle(5)
    [row] = await rows(hub.hub, event="patient:wait", phase="outcome")
    return row["agent_id"], row["status"]


@pytest.mark.parametrize("accept", [{}, JSON_ONLY], ids=["stream", "json"])
async def test_closing_the_reply_cancels_a_call_of_2026(accept: dict[str, str]) -> None:
    """H11: with the reply begun or not, and for a client that only reads JSON too."""
    patient = Patient()
    async with serving_mcp(patient.plugin) as hub:
        call = HangingCall(hub, await hub.agent(), {**MODERN, **accept})
        await soon(patient.entered.wait())
        await call.leave()
        await soon(patient.cancelled.wait())
        await until(lambda: not hub.service.endpoint.requests)
        assert await outcome(hub) == ("bot", "cancelled")


WAIT = {"name": "ksi_patient_wait", "arguments": {}}


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("ksi_call_tool", WAIT),
        ("ksi_raw_event", {"event": "patient:wait", "data": {}}),
        ("ksi_batch_call", {"calls": [WAIT]}),
        ("ksi_batch_call", {"calls": [WAIT, WAIT], "at_once": True}),
    ],
)
@pytest.mark.parametrize("in_session", [True, False])
async def test_what_a_helper_tool_calls_is_cancelled_with_it(
    tool: str, arguments: dict[str, Any], in_session: bool
) -> None:
    """H11"""
    patient = Patient()
    async with serving_mcp(patient.plugin) as hub:
        token = await hub.agent(profile="trusted")
        session = await opened(hub, token) if in_session else None
        headers = session or {**MODERN, "mcp-name": tool}
        call = HangingCall(hub, token, headers, tool=tool, arguments=arguments)
        await soon(patient.entered.wait())
        if session is None:
            await call.leave()
        else:
            await cancel(hub, token, session, 7)
        await soon(patient.cancelled.wait())
        await until(lambda: not hub.service.endpoint.requests or session is not None)
        await hub.hub.hub.router.idle(5)
        found = await rows(hub.hub, event="patient:wait", phase="outcome")
        assert [row["status"] for row in found] == ["cancelled"] * len(found)
        assert len(found) == len(arguments.get("calls", [1]))
        await call.leave()


async def test_a_word_of_cancellation_is_not_one_in_2026() -> None:
    """H11: ids are the clients' own there, and one could cancel what another calls."""
    patient = Patient()
    async with serving_mcp(patient.plugin) as hub:
        token = await hub.agent()
        call = HangingCall(hub, token, MODERN)
        await soon(patient.entered.wait())
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7, "_meta": META}}
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "notifications/cancelled"}
        assert (await hub.post(token, cancel, headers=headers)).status_code == 202
        patient.release.set()
        assert "waited" in (await soon(call.answer)).text
        assert await outcome(hub) == ("bot", "ok")


@pytest.mark.parametrize("in_session", [True, False])
async def test_a_connection_that_is_lost_cancels_nothing_in_the_revisions_before(in_session: bool) -> None:
    """H11: the call runs to its end, in a session and without one, and the session goes on."""
    patient = Patient()
    async with serving_mcp(patient.plugin) as hub:
        token = await hub.agent()
        session = await opened(hub, token) if in_session else {}
        call = HangingCall(hub, token, session)
        await soon(patient.entered.wait())
        await call.leave()
        assert (await listed(hub, token, session)).status_code == 200
        patient.release.set()
        assert await outcome(hub) == ("bot", "ok")
        assert not patient.cancelled.is_set()
        await until(lambda: not hub.service.endpoint.requests)


async def cancel(hub: McpHub, token: str, session: dict[str, str], request_id: int) -> httpx2.Response:
    told = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}
    return await hub.post(token, told, headers=session)


async def test_a_session_cancels_its_call_by_saying_so() -> None:
    """H11"""
    patient = Patient()
    async with serving_mcp(patient.plugin) as hub:
        token = await hub.agent()
        session = await opened(hub, token)
        call = HangingCall(hub, token, session)
        await soon(patient.entered.wait())
        assert (await cancel(hub, token, session, 7)).status_code == 202
        await soon(patient.cancelled.wait())
        assert "waited" not in (await soon(call.answer)).text
        assert await outcome(hub) == ("bot", "cancelled")
        assert (await listed(hub, token, session)).status_code == 200


async def test_a_session_cancels_a_call_whose_connection_it_lost() -> None:
    """H11"""
    patient = Patient()
    async with serving_mcp(patient.plugin) as hub:
        token = await hub.agent()
        session = await opened(hub, token)
        call = HangingCall(hub, token, session)
        await soon(patient.entered.wait())
        await call.leave()
        await cancel(hub, token, session, 7)
        await soon(patient.cancelled.wait())
        assert await outcome(hub) == ("bot", "cancelled")


async def test_nobody_cancels_the_calls_of_another_session() -> None:
    """H11: not with the same id, of the same agent or of another, and not with an id that names no call."""
    patient = Patient()
    async with serving_mcp(patient.plugin) as hub:
        token, other = await hub.agent(), await hub.agent("other")
        session = await opened(hub, token)
        call = HangingCall(hub, token, session)
        await soon(patient.entered.wait())
        assert (await cancel(hub, token, await opened(hub, token), 7)).status_code == 202
        assert (await cancel(hub, other, await opened(hub, other), 7)).status_code == 202
        assert (await cancel(hub, other, session, 7)).status_code == 404
        assert (await cancel(hub, token, session, 8)).status_code == 202
        patient.release.set()
        assert "waited" in (await soon(call.answer)).text
        assert await outcome(hub) == ("bot", "ok")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_client_of_the_sdk_cancels_in_both_eras(mode: str) -> None:
    """H11: it closes the reply, or says so, as its era has it; afterwards it goes on."""
    patient = Patient()
    async with serving_mcp(patient.plugin) as hub:
        async with hub.client(await hub.agent(), mode) as client:
            await _cancelled_call(client, patient)
            await soon(patient.cancelled.wait())
            answer = await soon(client.call_tool("ksi_system_echo", {"text": "still here"}))
            assert answer.structured_content == {"text": "still here"}
        assert await outcome(hub) == ("bot", "cancelled")


async def _cancelled_call(client: Client, patient: Patient) -> Any:
    call = asyncio.create_task(client.call_tool("ksi_patient_wait", {}))
    await soon(patient.entered.wait())
    call.cancel()
    await asyncio.wait([call])
