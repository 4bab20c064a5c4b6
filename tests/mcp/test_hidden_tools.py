"""What an agent may not see: its answers do not differ from those for what does not exist, and no error names it."""

import asyncio
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from httpx2 import Response

import ksi_daemon
from ksi_daemon.plugin import Context, Plugin
from tests.agents_at_work import limit
from tests.cases import case
from tests.in_process import Said, Text, until
from tests.mcp.test_sessions import initialize, opened
from tests.mcp_hub import META, McpHub, serving_mcp

PACKAGE = str(Path(ksi_daemon.__file__).parent)
FORBIDDEN, UNKNOWN = "ksi_secret_change", "ksi_secret_chanqe"
RESERVED = range(-32099, -31999)
OF_THE_SPECIFICATION = {-32020, -32021, -32022}  # header mismatch, missing capability, unsupported revision


secret = Plugin("secret")


@secret.handles("secret:change")
async def change(ctx: Context, params: Text) -> Said:
    """Change something, if granted."""
    return Said(text="done")


def is_background() -> bool:
    """Whether the daemon's own long-lived work runs now, which may fall into any call: its tasks have names such as "the deadline sweep"."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.get_name().startswith("the ")


@contextmanager
def functions_entered() -> Iterator[set[tuple[str, str, bool]]]:
    """Functions of the daemon that run meanwhile on a call's way: file, name, and whether it can wait."""
    entered: set[tuple[str, str, bool]] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            part = code.co_filename.removeprefix(PACKAGE).lstrip("/")
            if part.split("/")[0] in ("mcp", "gate", "routing") and not is_background():
                entered.add((part, code.co_qualname, bool(code.co_flags & inspect.CO_COROUTINE)))

    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)


async def call(hub: McpHub, token: str, era: dict[str, str] | None, tool: str, arguments: Any) -> Response:
    """A call in the revision of 2026, or with the headers of an older one."""
    if era is None:
        return await hub.request_2026(token, "tools/call", {"name": tool, "arguments": arguments})
    params = {"name": tool, "arguments": arguments}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return await hub.post(token, body, headers=era)


async def test_forbidden_and_unknown_tools_get_the_same_bytes_by_the_same_way() -> None:
    """P03"""
    async with serving_mcp(secret) as hub:
        token = await hub.agent()
        limit(hub.hub, calls_per_minute=None, concurrent_calls=None)
        await call(hub, token, None, "ksi_system_health", {})  # the first call makes the catalogue
        eras = {"2026": None, "without a session": {}, "in a session": await opened(hub, token)}
        for era, headers in eras.items():
            for arguments in ({}, {"text": "x"}, {"text": 5}, {"no_such_field": 1}):
                with case(era, arguments):
                    answers, paths = [], []
                    for tool in (FORBIDDEN, UNKNOWN):
                        with functions_entered() as entered:
                            reply = await call(hub, token, headers, tool, arguments)
                            await until(lambda: not hub.service.endpoint.requests)  # the reply comes before the end
                        sent = [(name, value) for name, value in reply.headers.items() if name != "date"]
                        answers.append((reply.status_code, sent, reply.text.replace(tool, "TOOL")))
                        paths.append(entered)
                    assert answers[0] == answers[1]
                    assert '"code":-32602' in answers[0][2]
                    # The right to what exists is looked up in memory; everything that waits, writes or answers is the same.
                    differ = paths[0] ^ paths[1]
                    assert [one for one in differ if one[2] or not one[0].startswith(("gate/", "routing/"))] == []
                    assert any(can_wait for _, _, can_wait in paths[0])


async def refused(hub: McpHub, token: str, session: dict[str, str]) -> list[Response]:
    """The reply to a request of each kind that is refused or fails."""
    tools = [
        FORBIDDEN,
        UNKNOWN,
        "secret:change",
        "ksi_agent_list",
        "ksi_system_shutdown",
        "ksi_",
        "",
        "../",
        "ksi_secret",
    ]
    calls: list[tuple[str, Any]] = [(tool, {"text": "x"}) for tool in tools]
    calls += [("ksi_system_echo", {"text": 5}), ("ksi_system_echo", {"txet": ""}), ("ksi_state_get", {"key": "none"}),
              ("ksi_system_echo", {}), ("ksi_system_echo", {"text": "x" * 3_000_000})]  # fmt: skip
    replies = [await call(hub, token, era, *one) for one in calls for era in (None, {}, session)]
    listing: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    bodies: list[Any] = [
        b"{", b"[]", {}, {"jsonrpc": "1.0"}, {**listing, "method": "no/such"}, {**listing, "method": 5}, {**listing, "params": 5},
        {**listing, "params": {"cursor": "!"}}, {**listing, "params": {"_meta": META}}, {**listing, "id": 1.5},
        {**listing, "method": "tools/call"}, {**listing, "method": "tools/call", "params": {"name": 5}},
        {**listing, "method": "resources/read", "params": {"uri": "secret://change"}}, initialize("1999-01-01"),
        {"jsonrpc": "2.0", "id": 1, "method": "initialize"}, {"jsonrpc": "2.0", "id": 5, "result": {}},
    ]  # fmt: skip
    now = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}
    headers: list[dict[str, str]] = [
        {}, session, now, {**session, "mcp-session-id": "0" * 32}, {**now, "mcp-method": "other"}, {"accept": "text/html"},
        {"mcp-protocol-version": "1999-01-01"}, {"x-ksi-agent-id": "zebra-seven"}, {"x-ksi-agent-id": "a b"},
    ]  # fmt: skip
    replies += [await hub.post(token, body, headers=one) for body in bodies for one in headers]
    future = {"_meta": {**META, "io.modelcontextprotocol/protocolVersion": "2031-01-01"}}
    replies.append(await hub.request_2026(token, "tools/list", future, headers={"mcp-protocol-version": "2031-01-01"}))
    replies += [
        await hub.post(token, listing, path=path) for path in ("/mcp/secret", "/mcp/change", "/mcp/zebra-seven")
    ]
    replies += [await hub.post(wrong, listing) for wrong in (None, "ksi_" + "x" * 43, "zebra-seven")]
    for method in ("GET", "PUT", "DELETE"):
        for one in ({}, {"mcp-session-id": "0" * 32}):
            held = {"authorization": f"Bearer {token}", "content-type": "application/json", **one}
            replies.append(await hub.http.request(method, hub.url, headers=held))
    return [
        reply for reply in replies if reply.status_code >= 400 or '"error"' in reply.text or "isError" in reply.text
    ]


async def test_no_error_names_what_its_reader_may_not_see() -> None:
    """P04"""
    async with serving_mcp(secret) as hub:
        token = await hub.agent()
        await hub.agent("zebra-seven", "trusted")
        limit(hub.hub, calls_per_minute=None, concurrent_calls=None)
        listed = await hub.request_2026(token, "tools/list")
        seen = {tool["name"] for tool in listed.json()["result"]["tools"]}
        routes = hub.hub.hub.router.routes.values()
        hidden = [route.handler for route in routes if route.handler.tool not in seen]
        assert len(hidden) > 10
        words = {name for handler in hidden for name in (handler.event, handler.tool)}
        words |= {"zebra-seven", str(hub.hub.hub.control.read.settings.var_dir), "Traceback", "site-packages"}
        replies = await refused(hub, token, await opened(hub, token))
        assert len(replies) > 100
        for reply in replies:
            asked = reply.request.content.decode("utf-8", "replace") + str(reply.request.url)
            with case(asked, reply.text):
                assert [word for word in words if word in reply.text and word not in asked] == []


async def test_no_code_of_an_error_is_one_that_the_specification_reserves() -> None:
    """H09"""
    async with serving_mcp(secret) as hub:
        token = await hub.agent()
        limit(hub.hub, calls_per_minute=None, concurrent_calls=None)
        session = await opened(hub, token)
        replies = await refused(hub, token, session)
        limit(hub.hub, calls_per_minute=1, burst=1, concurrent_calls=10)
        replies += [await call(hub, token, era, "ksi_system_echo", {}) for era in (None, {}, session) for _ in range(2)]
        hub.hub.hub.router.stopping = True
        replies += [await call(hub, token, era, "ksi_system_echo", {}) for era in (None, {}, session)]
        codes = set()
        for reply in replies:
            text = next((line[6:] for line in reply.text.split("\r\n") if line.startswith('data: {"')), reply.text)
            if '"error":{"code":' in text:
                codes.add(int(text.partition('"error":{"code":')[2].partition(",")[0]))
        assert {-32602, -32600, -32601, -32020, -32022, 401, 403, 404, 429, 503} <= codes
        assert {code for code in codes if code in RESERVED} <= OF_THE_SPECIFICATION
