"""Headers that name an agent: they must agree with the token, and every form that two readers could take differently is refused."""

from tests.agents_at_work import rows
from tests.cases import case
from tests.mcp.test_sessions import initialize, listed, opened
from tests.mcp_hub import BOTH, serving_mcp
from tests.web.raw_http import Site

BODY = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'


async def test_a_token_with_the_id_of_another_agent_is_refused_on_every_method() -> None:
    """A02"""
    async with serving_mcp() as hub:
        token, other = await hub.agent("a1", "trusted"), await hub.agent("a2", "trusted")
        session, own = await opened(hub, other), await opened(hub, token)
        named = {"x-ksi-agent-id": "a2"}
        change = {"name": "ksi_state_set", "arguments": {"key": "k", "value": 1}}
        replies = [
            await hub.request_2026(token, "tools/list", headers=named),
            await hub.request_2026(token, "tools/call", change, headers=named),
            await hub.request_2026(token, "server/discover", headers=named),
            await hub.post(token, initialize(), headers=named),
            await hub.post(token, {"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=named | own),
            await hub.post(token, b"not even JSON", headers=named),
        ]
        for method in ("GET", "DELETE", "PUT", "OPTIONS"):
            for held in (session, own):
                headers = {**held, **named, "authorization": f"Bearer {token}", "accept": "text/event-stream"}
                headers["content-type"] = "application/json"
                replies.append(await hub.http.request(method, hub.url, headers=headers))
        for number, reply in enumerate(replies):
            with case(number):
                assert reply.status_code == 403
                assert "identity_mismatch" in reply.text
        found = await rows(hub.hub, type="authorization")
        assert len(found) == len(replies)
        for row in found:
            assert (row["agent_id"], row["status"]) == ("a1", "forbidden")
            assert row["reason"].startswith("identity_mismatch")
        assert (await hub.hub.call("state:list"))["entries"] == []
        assert (await listed(hub, other, session)).status_code == 200
        assert (await listed(hub, token, own)).status_code == 200


def identity_headers(token: str) -> list[bytes]:
    """Lines that must never be taken for an agent, sent beside a valid token or instead of one."""
    bearer = f"Authorization: Bearer {token}".encode()
    ids = [
        b"X-KSI-Agent-ID: a1\r\nX-KSI-Agent-ID: a1",
        b"X-KSI-Agent-ID: a1\r\nx-ksi-agent-id: a2",
        b"X-KSI-Agent-ID: a1, a2",
        b"X-KSI-Agent-ID: a1,a1",
        b"X-KSI-Agent-ID: a1\r\n a2",
        b"X-KSI-Agent-ID: a1\r\n\ta2",
        b"X-KSI-Agent-ID:\r\n a1",
        b"X_KSI_Agent_ID: a1",
        b"X-KSI_Agent-ID: a1",
        b"x_ksi_agent_id: a1\r\nX-KSI-Agent-ID: a1",
        b"X-KSI-Agent-ID: \xe4gent",
        b"X-KSI-Agent-ID: a1\xa0",
        b"X-KSI-Agent-ID: a1\xad",
        b"X-KSI-Agent-ID: a\xef\xbc\x91",
        b"X-KSI-Agent-ID: " + b"a" * 65,
        b"X-KSI-Agent-ID:",
        b"X-KSI-Agent-ID:  \t ",
        b"X-KSI-Agent-ID: a1\x00",
        b"X-KSI-Agent-ID: a1\x7f",
        b"X-KSI-Agent-ID: a1\x0b",
        b"X-KSI-Agent-ID\x00: a1",
        b"X-KSI-Agent-ID : a1",
        b" X-KSI-Agent-ID: a1",
        b"X-KSI-Agent-ID: a1\rX-A: 1",
        b"X-KSI-Agent-ID: a1\nX-A: 1",
        b"X-KSI-Agent-ID: a1;a2",
        b'X-KSI-Agent-ID: "a1"',
        b"X-KSI-Agent-ID: a1%20",
        b"X-KSI-Agent-ID: ../a1",
        b"X-KSI-Conversation-ID: c1\r\nx-ksi-conversation-id: c1",
        b"X_KSI_Conversation_ID: c1",
        b"X-KSI-Conversation-ID: c 1",
        b"Mcp_Session_Id: " + b"0" * 32,
        b"Mcp-Session-Id: x\r\nmcp-session-id: x",
    ]
    return [*(bearer + b"\r\n" + line for line in ids),
            bearer + b"\r\n" + bearer,
            bearer + b"\r\nauthorization: Bearer junk",
            bearer + b"\r\nAuthorization: Basic YTE6",
            b"Authorization: Bearer junk\r\n" + bearer,
            bearer + b"\r\nAuthorization:",
            b"Authorization: Bearer\r\n " + token.encode()]  # fmt: skip


async def test_an_identity_that_readers_could_take_differently_is_refused() -> None:
    """A04"""
    async with serving_mcp() as hub:
        site = Site(hub.port)
        token = await hub.agent("a1")
        await hub.agent("a2")
        rest = (f"Accept: {BOTH}", "Content-Type: application/json", f"Content-Length: {len(BODY)}")
        head = site.head("POST /mcp HTTP/1.1", *rest).removesuffix(b"\r\n")
        own = f"Authorization: Bearer {token}\r\nX-kSi-aGeNt-iD: \t a1 \r\n\r\n".encode()
        assert (await site.ask(head + own + BODY))[0] == 200
        for lines in identity_headers(token):
            with case(lines.replace(token.encode(), b"TOKEN")):
                assert (await site.ask(head + lines + b"\r\n\r\n" + BODY))[0] == 400
        large = f"Authorization: Bearer {token}\r\nX-KSI-Agent-ID: ".encode() + b"a" * 65_536
        assert (await site.ask(head + large + b"\r\n\r\n" + BODY))[0] == 431
        served = [row for row in await rows(hub.hub) if row["status"] == "ok" and row["transport"] == "http"]
        assert [(row["event"], row["agent_id"]) for row in served] == [("mcp:tools_listed", "a1")]
        assert (await site.ask(head + own + BODY))[0] == 200
