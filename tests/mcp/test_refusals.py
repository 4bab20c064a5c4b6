"""How refusals are answered: which status, which code, and what is on record."""

from ksi_daemon.plugin import Context, Plugin
from tests.agents_at_work import limit, rows
from tests.cases import case
from tests.in_process import Said, Text
from tests.mcp.test_sessions import opened
from tests.mcp_hub import McpHub, serving_mcp

work = Plugin("work")


@work.handles("work:change")
async def change(ctx: Context, params: Text) -> Said:
    """Change something."""
    return Said(text="done")


@work.handles(
    "work:publish", reads=True, needs=[("knowledge/maintainer", "execute"), ("operation/work:publish", "execute")]
)
async def publish(ctx: Context, params: Text) -> Said:
    """Publish something, with further rights."""
    return Said(text="done")


async def call_in_session(hub: McpHub, token: str, session: dict[str, str], tool: str) -> tuple[int, str]:
    call = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": tool, "arguments": {"text": "x"}}}
    reply = await hub.post(token, call, headers=session)
    return reply.status_code, reply.text


async def test_with_the_setting_http_a_refused_call_in_a_session_has_its_status() -> None:
    """K028: by default it has not, because older clients would drop the session."""
    async with serving_mcp(work, old_era_refusal="http") as hub:
        token = await hub.agent()
        session = await opened(hub, token)
        status, text = await call_in_session(hub, token, session, "ksi_work_change")
        assert status == 403
        assert text.startswith('{"jsonrpc":"2.0","id":3,"error":{"code":-32602')
        assert (await call_in_session(hub, token, session, "ksi_system_echo"))[0] == 200
        limit(hub.hub, calls_per_minute=1, burst=1, concurrent_calls=10)
        statuses = [(await call_in_session(hub, token, session, "ksi_system_echo"))[0] for _ in range(2)]
        assert statuses[-1] == 429


async def test_each_refusal_has_its_status_and_code_word() -> None:
    """K028 K029 K030"""
    async with serving_mcp(work) as hub:
        token = await hub.agent()
        expected = [
            ("ksi_work_change", 403, -32602, "forbidden"),
            ("ksi_work_publish", 403, 403, "forbidden"),
        ]
        for tool, status, code, word in expected:
            with case(tool):
                reply = await hub.call_2026(token, tool)
                error = reply.json()["error"]
                assert (reply.status_code, error["code"], error["data"]["code"]) == (status, code, word)
                assert error["data"]["hint"]
        await hub.hub.call("permission:grant", agent_id="bot", resource="knowledge/maintainer", access="execute")
        reply = await hub.call_2026(token, "ksi_work_publish")
        assert (reply.status_code, reply.json()["error"]["data"]["code"]) == (403, "approval_required")
        limit(hub.hub, calls_per_minute=1, burst=1, concurrent_calls=10)
        reply = await hub.call_2026(token, "ksi_system_echo", text="x")
        reply = await hub.call_2026(token, "ksi_system_echo", text="x")
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, 429)
        assert int(reply.headers["retry-after"]) > 0


async def test_a_frozen_agent_sees_nothing_and_calls_nothing() -> None:
    """K021"""
    async with serving_mcp(work) as hub:
        token = await hub.agent()
        await hub.hub.call("agent:freeze", agent_id="bot")
        assert (await hub.request_2026(token, "tools/list")).json()["result"]["tools"] == []
        reply = await hub.call_2026(token, "ksi_system_echo", text="x")
        assert reply.status_code == 403
        assert "frozen" in reply.text
        await hub.hub.call("agent:unfreeze", agent_id="bot")
        assert (await hub.call_2026(token, "ksi_system_echo", text="x")).status_code == 200


async def test_errors_of_the_protocol_are_on_record_too() -> None:
    """K034"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        assert (await hub.request_2026(token, "no/such")).status_code == 404
        assert (await hub.post(token, b"{")).status_code == 400
        [unknown, junk] = await rows(hub.hub, agent="bot")
        assert (unknown["type"], unknown["status"], unknown["transport"]) == ("error", "invalid", "http")
        assert "no/such" in unknown["reason"]
        assert "not a valid JSON document" in junk["reason"]


async def test_the_conversation_comes_from_the_header_unless_the_token_is_bound_to_one() -> None:
    """K010 A02"""
    async with serving_mcp() as hub:
        free = await hub.agent()
        bound = (await hub.hub.call("token:create", agent_id="bot", conversation_id="c-1"))["token"]

        async def status(token: str, conversation: str | None) -> int:
            headers = {} if conversation is None else {"x-ksi-conversation-id": conversation}
            return (await hub.request_2026(token, "tools/list", headers=headers)).status_code

        assert [await status(free, name) for name in (None, "c-1", "c-2")] == [200, 200, 200]
        assert [await status(bound, name) for name in (None, "c-1", "c-2")] == [200, 200, 403]
        [row] = await rows(hub.hub, agent="bot", type="authorization")
        assert row["reason"].startswith("identity_mismatch")


async def test_every_error_of_the_protocol_has_a_code_word_a_reason_and_a_next_step_and_no_librarys_details() -> None:
    """K030: those that the SDK replies with too."""
    async with serving_mcp(work) as hub:
        token = await hub.agent()
        session = await opened(hub, token)
        listing: dict[str, object] = {"jsonrpc": "2.0", "id": 7, "method": "tools/list"}
        modern = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}
        requests: list[tuple[int, str, object, dict[str, str]]] = [
            (400, "invalid", {"jsonrpc": "2.0", "id": 7}, {}),
            (400, "invalid", {"jsonrpc": "2.0", "id": 7}, session),
            (400, "invalid", {"jsonrpc": "2.0", "id": 7, "method": 5}, {}),
            (400, "invalid", listing, {"mcp-protocol-version": "2025-06-18"}),
            (400, "invalid", listing, modern),
            (400, "invalid", listing, {"mcp-protocol-version": "1999-01-01"}),
            (400, "invalid", listing, {"x-ksi-handshake": "small"}),
            (404, "not_found", listing, {**session, "mcp-session-id": "0" * 32}),
            (406, "invalid", listing, {"accept": "text/html"}),
            (406, "invalid", listing, {**modern, "accept": "text/event-stream"}),
            (406, "invalid", listing, {**session, "accept": "text/html"}),
        ]
        for status, word, body, headers in requests:
            with case(body, headers):
                reply = await hub.post(token, body, headers=headers)
                answer = reply.json()
                assert (reply.status_code, answer["jsonrpc"], answer["id"]) == (status, "2.0", 7)
                assert answer["error"]["data"]["code"] == word
                assert answer["error"]["data"]["hint"]
                assert answer["error"]["message"]
                assert "pydantic" not in reply.text
                assert "JSONRPC" not in reply.text
        unknown = (await hub.request_2026(token, "no/such")).json()["error"]
        assert (unknown["code"], unknown["data"]["code"]) == (-32601, "not_found")


async def test_a_method_of_http_that_is_not_allowed_says_which_is() -> None:
    """K030"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        for method, headers in (
            ("GET", {}),
            ("DELETE", {}),
            ("GET", {"mcp-protocol-version": "2026-07-28", "mcp-session-id": "x"}),
        ):
            with case(method, headers):
                sent = {"authorization": f"Bearer {token}", "accept": "text/event-stream", **headers}
                reply = await hub.http.request(method, hub.url, headers=sent)
                assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
                assert "POST" in reply.json()["error"]["data"]["hint"]
