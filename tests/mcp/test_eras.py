"""Every revision of the protocol at one address, spoken by the same agent at the same time: none of them notices the others."""

from collections.abc import Mapping
from typing import Any

import pytest
from httpx2 import Response
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from tests.agents_at_work import limit
from tests.cases import case
from tests.clients import old_client
from tests.in_process import soon
from tests.mcp.test_feedback import LEVEL, called, messages, talkative, told
from tests.mcp.test_handshakes import kind
from tests.mcp.test_sessions import initialize, listed
from tests.mcp_hub import META, McpHub, serving_mcp

ECHO = {"name": "ksi_system_echo", "arguments": {"text": "hello"}}
CONVERSATION = {"x-ksi-conversation-id": "c1"}
Session = dict[str, str]


async def opened_in(hub: McpHub, token: str, revision: str) -> Session:
    """The headers of a new session of a revision, in the conversation."""
    reply = await hub.post(token, initialize(revision), headers=CONVERSATION)
    [answer] = messages(reply)
    assert answer["result"]["protocolVersion"] == revision
    session = {"mcp-session-id": reply.headers["mcp-session-id"], **CONVERSATION}
    if revision >= "2025-06-18":  # the header is younger than the older two
        session["mcp-protocol-version"] = revision
    await hub.post(token, {"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
    return session


async def modern(
    hub: McpHub, token: str, method: str, params: dict[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    return await hub.request_2026(token, method, params, headers={**CONVERSATION, **(headers or {})})


def speaks_2026(reply: Response) -> None:
    """Nothing in the reply is of a revision with sessions."""
    assert reply.status_code == 200
    assert "mcp-session-id" not in reply.headers
    assert messages(reply)[-1]["result"]["resultType"] == "complete"


def speaks_of_sessions(reply: Response, session: Session) -> None:
    """Nothing in the reply is of the revision 2026."""
    assert reply.status_code == 200
    assert reply.headers["mcp-session-id"] == session["mcp-session-id"]
    assert not {"resultType", "ttlMs", "cacheScope", "_meta"} & messages(reply)[-1]["result"].keys()


async def test_one_agent_speaks_all_revisions_in_turn_and_each_is_answered_in_its_own() -> None:
    """H10"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        limit(hub.hub, calls_per_minute=None, concurrent_calls=None)
        sessions = {revision: await opened_in(hub, token, revision) for revision in HANDSHAKE_PROTOCOL_VERSIONS}
        for number in range(3):
            for revision, session in sessions.items():
                with case(number, revision):
                    call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": ECHO}
                    reply = await hub.post(token, call, headers=session)
                    speaks_of_sessions(reply, session)
                    assert messages(reply)[-1]["result"]["content"][0]["text"] == '{"text":"hello"}'
                    reply = await modern(hub, token, "tools/call", ECHO)
                    speaks_2026(reply)
                    assert messages(reply)[-1]["result"]["structuredContent"] == {"text": "hello"}


async def test_lists_of_sessions_are_thin_after_the_first_and_those_between_them_full() -> None:
    """H10 K012: a list of the revision 2026 neither counts as a completion of the conversation nor is one."""
    async with serving_mcp() as hub:
        token = await hub.agent()
        kinds, between, again = [], [], []
        sessions = []
        for revision in HANDSHAKE_PROTOCOL_VERSIONS:
            between.append(kind(await modern(hub, token, "tools/list", {})))
            sessions.append(await opened_in(hub, token, revision))
            reply = await listed(hub, token, sessions[-1])
            speaks_of_sessions(reply, sessions[-1])
            await soon(hub.service.handshakes.settled())
            kinds.append(kind(reply))
        for session in sessions:
            again.append(kind(await listed(hub, token, session)))
            between.append(kind(await modern(hub, token, "tools/list", {}, session_id(session))))
        assert kinds == again == ["full", "thin", "thin", "thin"]
        assert set(between) == {"full"}


def session_id(session: Session) -> dict[str, str]:
    return {"mcp-session-id": session["mcp-session-id"]}


@pytest.mark.parametrize("accept", [{}, {"accept": "application/json"}], ids=["both", "json"])
async def test_a_request_of_2026_is_answered_as_if_it_named_no_session(accept: dict[str, str]) -> None:
    """H10: its own session, one that never was, one of another agent, and a stream's last event."""
    async with serving_mcp() as hub:
        token, other = await hub.agent(), await hub.agent("other")
        own, foreign = await opened_in(hub, token, "2025-06-18"), await opened_in(hub, other, "2025-11-25")
        for method, params in (("tools/list", {}), ("tools/call", ECHO), ("server/discover", {})):
            expected = await modern(hub, token, method, params, accept)
            speaks_2026(expected)
            for named in (session_id(own), session_id(foreign), {"mcp-session-id": "x"}, {"last-event-id": "1"}):
                with case(method, named):
                    reply = await modern(hub, token, method, params, {**named, **accept})
                    assert (reply.status_code, reply.text) == (200, expected.text)
                    assert "mcp-session-id" not in reply.headers


async def test_get_and_delete_of_2026_are_not_allowed_and_leave_the_session_alone() -> None:
    """H10"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        session = await opened_in(hub, token, "2025-06-18")
        headers = {**session, "authorization": f"Bearer {token}", "accept": "text/event-stream"}
        for method in ("GET", "DELETE"):
            reply = await soon(
                hub.http.request(method, hub.url, headers={**headers, "mcp-protocol-version": "2026-07-28"})
            )
            assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
        assert (await listed(hub, token, session)).status_code == 200


async def test_what_a_session_asked_for_is_not_done_for_requests_of_2026() -> None:
    """H10: the level of log lines is the session's; the other way about, one request's is not the session's."""
    async with serving_mcp(talkative()) as hub:
        token = await hub.agent()
        loud, silent = await opened_in(hub, token, "2025-06-18"), await opened_in(hub, token, "2025-11-25")
        asked = {"jsonrpc": "2.0", "id": 4, "method": "logging/setLevel", "params": {"level": "debug"}}
        await hub.post(token, asked, headers=loud)
        params = {"name": "ksi_talk_log", "arguments": {}}
        assert len(messages(await modern(hub, token, "tools/call", params, session_id(loud)))) == 1
        params |= {"_meta": {**META, LEVEL: "debug"}}
        found = messages(await modern(hub, token, "tools/call", params, session_id(silent)))
        assert len(told(found, "notifications/message")) == 4
        assert len(await called(hub, token, "ksi_talk_log", silent, {})) == 1
        assert len(told(await called(hub, token, "ksi_talk_log", loud, {}), "notifications/message")) == 4


async def test_clients_of_three_kinds_take_turns() -> None:
    """H10 K012: each as its own authors wrote it."""
    async with serving_mcp() as hub:
        token = await hub.agent()
        thin = {}
        async with (
            hub.client(token, "legacy", **CONVERSATION) as first,
            hub.client(token, "auto", **CONVERSATION) as newest,
            hub.client(token, "legacy", **CONVERSATION) as second,
        ):
            for name, client in (("first", first), ("newest", newest), ("second", second), ("newest again", newest)):
                tools = (await client.list_tools()).tools
                await soon(hub.service.handshakes.settled())
                thin[name] = all(tool.input_schema == {"type": "object"} for tool in tools)
                assert (await client.call_tool("ksi_system_echo", {"text": name})).structured_content == {"text": name}
            assert (first.protocol_version, newest.protocol_version) == ("2025-11-25", "2026-07-28")
            async with old_client.connected(hub.url, token, CONVERSATION) as before:
                assert before.revision == "2025-11-25"
                schemas = (await before.step(None))["tools"].values()
                thin["before"] = all(schema == {"type": "object"} for schema in schemas)
                assert (await before.step(("ksi_system_echo", {"text": "old"})))["structured"] == {"text": "old"}
        assert thin == {"first": False, "newest": False, "second": True, "newest again": False, "before": True}
