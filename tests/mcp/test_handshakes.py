"""Full and thin lists: each completion of a conversation gets one of them, by rules that hold over a restart."""

import asyncio
import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response

from ksi_daemon.errors import Invalid, NotFound
from ksi_daemon.plugin import Context, Plugin
from tests.agents_at_work import rows
from tests.in_process import Said, Text, soon
from tests.mcp.test_sessions import listed, opened
from tests.mcp_hub import BOTH, META, McpHub, serving_mcp

work = Plugin("work")


@work.handles("work:change")
async def change(ctx: Context, params: Text) -> Said:
    """Change something."""
    return Said(text="done")


async def completion(hub: McpHub, number: int, *, resumes: bool = True, **options: Any) -> str:
    """A token for one completion of the conversation c1."""
    options = {"conversation_id": "c1", **options}
    made = await hub.hub.call(
        "token:create", agent_id="bot", completion_id=f"completion-{number}", resumes=resumes, **options
    )
    return str(made["token"])


async def show(hub: McpHub, token: str, **headers: str) -> Response:
    reply = await hub.request_2026(token, "tools/list", headers=headers)
    assert reply.status_code == 200
    await soon(hub.service.handshakes.settled())
    return reply


async def leave_without_reading(hub: McpHub, token: str) -> None:
    """Ask for the list and be gone before it has arrived whole."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await soon(loop.sock_connect(client, ("127.0.0.1", hub.port)))
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{hub.port}\r\nAuthorization: Bearer {token}\r\nAccept: {BOTH}\r\n"
        f"Content-Type: application/json\r\nMCP-Protocol-Version: 2026-07-28\r\nMCP-Method: tools/list\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    await soon(loop.sock_sendall(client, head.encode() + body))
    assert (await soon(loop.sock_recv(client, 12))).endswith(b"200")
    client.close()
    await soon(hub.service.handshakes.settled())


def tools_of(reply: Response) -> dict[str, dict[str, Any]]:
    """The tools that a list shows, by name."""
    data = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
    tools = json.loads(data[-1] if data else reply.text)["result"]["tools"]
    return {tool["name"]: tool for tool in tools}


def kind(reply: Response) -> str:
    """Whether a list is full or thin, as a client sees it."""
    tools = tools_of(reply).values()
    assert tools
    thin = [tool for tool in tools if tool["inputSchema"] == {"type": "object"} and "outputSchema" not in tool]
    assert len(thin) in (0, len(tools))
    return "thin" if thin else "full"


async def test_a_conversation_is_shown_everything_once_and_again_when_its_rights_change(tmp_path: Path) -> None:
    """K011 K012 K013 K024"""
    kinds = []
    async with serving_mcp(work, var_dir=tmp_path / "var") as hub:
        await hub.agent()
        kinds += [kind(await show(hub, await completion(hub, number))) for number in (1, 2)]
    async with serving_mcp(work, var_dir=tmp_path / "var") as hub:
        kinds += [kind(await show(hub, await completion(hub, 3)))]
        await hub.hub.call("permission:grant", agent_id="bot", resource="events/work:change")
        kinds += [kind(await show(hub, await completion(hub, number))) for number in (4, 5)]
    assert kinds == ["full", "thin", "thin", "full", "thin"]


async def test_the_first_completion_is_full_whatever_its_token_says_of_resuming() -> None:
    """K011"""
    async with serving_mcp() as hub:
        await hub.agent()
        assert kind(await show(hub, await completion(hub, 1, resumes=True))) == "full"


async def test_a_model_without_the_history_is_shown_everything() -> None:
    """K012"""
    async with serving_mcp() as hub:
        await hub.agent()
        for number in (1, 2, 3):
            assert kind(await show(hub, await completion(hub, number, resumes=False))) == "full"


async def test_another_conversation_and_another_agent_begin_in_full() -> None:
    """K011"""
    async with serving_mcp() as hub:
        await hub.agent()
        await hub.agent("other")
        assert kind(await show(hub, await completion(hub, 1))) == "full"
        assert kind(await show(hub, await completion(hub, 2, conversation_id="c2"))) == "full"
        other = await hub.hub.call(
            "token:create", agent_id="other", conversation_id="c1", completion_id="completion-2", resumes=True
        )
        assert kind(await show(hub, other["token"])) == "full"


async def test_lists_of_one_completion_are_the_same_bytes() -> None:
    """K013 H12"""
    async with serving_mcp() as hub:
        await hub.agent()
        for number in (1, 2):
            token = await completion(hub, number)
            replies = {(await show(hub, token)).text for _ in range(3)}
            assert len(replies) == 1


async def test_a_list_that_was_never_delivered_leaves_the_next_one_full() -> None:
    """K013"""
    async with serving_mcp() as hub:
        await hub.agent()
        await leave_without_reading(hub, await completion(hub, 1))
        assert kind(await show(hub, await completion(hub, 2))) == "full"
        assert kind(await show(hub, await completion(hub, 3))) == "thin"


async def leave_after_the_list(hub: McpHub, token: str, session: dict[str, str]) -> None:
    """Read the list, and close before the stream that brings it has ended."""
    reader, writer = await soon(asyncio.open_connection("127.0.0.1", hub.port))
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/list"}).encode()
    named = {**session, "host": f"127.0.0.1:{hub.port}", "authorization": f"Bearer {token}", "accept": BOTH}
    named |= {"content-type": "application/json", "content-length": str(len(body))}
    head = "POST /mcp HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in named.items())
    writer.write(head.encode() + b"\r\n" + body)
    await soon(reader.readuntil(b"]}}"))  # the end of the list, with which its event ends
    writer.close()
    await soon(writer.wait_closed())
    await soon(hub.service.handshakes.settled())


async def test_a_client_that_leaves_as_soon_as_it_has_the_list_was_delivered_it() -> None:
    """K013: Codex closes the stream of a session's reply before it has ended."""
    async with serving_mcp() as hub:
        token = await hub.agent()
        for expected in ("full", "thin", "thin"):
            session = await opened(hub, token, headers={"x-ksi-conversation-id": "c1"})
            await leave_after_the_list(hub, token, session)
            shown = await hub.hub.call("mcp:get_session", agent_id="bot", conversation_id="c1")
            assert (shown["completions"][0]["kind"], shown["completions"][0]["delivered"]) == (expected, True)


async def test_sessions_of_a_conversation_are_its_completions() -> None:
    """K012 K041"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        kinds = []
        for _ in range(3):
            session = await opened(hub, token, headers={"x-ksi-conversation-id": "c1"})
            replies = [await listed(hub, token, session) for _ in range(2)]
            await soon(hub.service.handshakes.settled())
            kinds += [kind(reply) for reply in replies]
        assert kinds == ["full", "full", "thin", "thin", "thin", "thin"]


async def test_without_a_conversation_everything_is_shown_in_full() -> None:
    """K041"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        for _ in range(2):
            assert kind(await show(hub, token)) == "full"
            session = await opened(hub, token)
            assert kind(await listed(hub, token, session)) == "full"


async def test_a_client_may_ask_for_either_kind() -> None:
    """K016"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        assert kind(await show(hub, token, **{"x-ksi-handshake": "thin"})) == "thin"
        assert kind(await show(hub, token, **{"x-ksi-handshake": "full"})) == "full"
        refused = await hub.request_2026(token, "tools/list", headers={"x-ksi-handshake": "small"})
        assert refused.status_code == 400
        assert "full or thin" in refused.text


async def test_a_thin_tool_is_its_name_and_one_line_that_ends_in_the_signature() -> None:
    """K012"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        tools = tools_of(await show(hub, token, **{"x-ksi-handshake": "thin"}))
        assert tools["ksi_state_set"].keys() == {"name", "description", "inputSchema"}
        assert tools["ksi_state_set"]["description"].endswith(
            "(key: string, namespace?: string, value: any, metadata?: object)"
        )


async def test_each_list_is_on_record_with_its_kind_and_size() -> None:
    """K033"""
    async with serving_mcp() as hub:
        await hub.agent()
        for number in (1, 2):
            await show(hub, await completion(hub, number))
        first, second = [row["details"] for row in await rows(hub.hub, event="mcp:tools_listed")]
        assert (first["handshake"], second["handshake"]) == ("full", "thin")
        assert first["tools"] == second["tools"] > 0
        assert second["bytes"] < first["bytes"]
        assert second["tokens"] < first["tokens"]


async def test_a_call_that_does_not_fit_is_answered_with_the_whole_schema() -> None:
    """K012"""
    async with serving_mcp() as hub:
        token = await hub.agent()
        full = tools_of(await show(hub, token))["ksi_state_get"]
        result = (await hub.call(token, "ksi_state_get", name="k")).json()["result"]
        answer = json.loads(result["content"][0]["text"])
        assert result["isError"] is True
        assert answer["code"] == "invalid"
        assert answer["inputSchema"] == full["inputSchema"]
        assert "inputSchema" in answer["hint"]


async def test_an_operator_sees_what_conversations_were_shown_and_resets_them() -> None:
    """K044"""
    async with serving_mcp() as hub:
        await hub.agent()
        for number in (1, 2):
            await show(hub, await completion(hub, number))
        [session] = (await hub.hub.call("mcp:list_sessions"))["sessions"]
        assert (session["conversation_id"], session["full"], session["thin"], session["last_kind"]) == (
            "c1",
            1,
            1,
            "thin",
        )
        found = await hub.hub.call("mcp:get_session", agent_id="bot", conversation_id="c1")
        second, first = found["completions"]
        assert (first["kind"], first["delivered"], first["listings"]) == ("full", True, 1)
        assert second["fingerprint"] == first["fingerprint"]
        with pytest.raises(Invalid, match="needs agent_id"):
            await hub.hub.call("mcp:clear_sessions", conversation_id="c1")
        assert await hub.hub.call("mcp:clear_sessions", agent_id="other") == {"completions": 0}
        assert await hub.hub.call("mcp:clear_sessions", agent_id="bot", conversation_id="c1") == {"completions": 2}
        with pytest.raises(NotFound):
            await hub.hub.call("mcp:get_session", agent_id="bot", conversation_id="c1")
        assert kind(await show(hub, await completion(hub, 3))) == "full"
