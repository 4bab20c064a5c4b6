"""Clients that we did not write, behind one interface: each does steps, one after the other over one connection."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import httpx2
import msgspec
from mcp import Client, MCPError

from tests.clients import old_client
from tests.mcp.test_feedback import messages
from tests.mcp.test_sessions import opened
from tests.mcp_hub import BOTH, META, McpHub

LIMIT_S = 30
Call = tuple[str, dict[str, Any]]  # a tool's name, and arguments
Step = Call | None  # None: list the tools


class Seen(msgspec.Struct, frozen=True):
    """What a client saw of one step: an error of the protocol, a tool's answer, or a list."""

    code: int | None = None
    data: Any = None
    is_error: bool = False
    structured: Any = None
    text: str = ""
    tools: tuple[str, ...] = ()


class AnyClient(Protocol):
    """A client that is connected."""

    async def steps(self, wanted: Sequence[Step]) -> list[Seen]: ...


Connect = Callable[[McpHub, str], AbstractAsyncContextManager[AnyClient]]


class _Sdk:
    """The SDK's client of today."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def steps(self, wanted: Sequence[Step]) -> list[Seen]:
        return [await self._step(step) for step in wanted]

    async def _step(self, step: Step) -> Seen:
        try:
            if step is None:
                return Seen(tools=tuple(tool.name for tool in (await self._client.list_tools()).tools))
            answer = await self._client.call_tool(*step)
        except MCPError as error:
            return Seen(code=error.code, data=error.data)
        text = str(answer.content[0].model_dump()["text"])
        return Seen(is_error=bool(answer.is_error), structured=answer.structured_content, text=text)


class _Old:
    """`mcp` 1.30, which drops its whole session at an HTTP 403 or 429."""

    def __init__(self, client: old_client.OldClient) -> None:
        self._client = client

    async def steps(self, wanted: Sequence[Step]) -> list[Seen]:
        found = [await self._client.step(step) for step in wanted]
        return [Seen(tools=tuple(one["tools"])) if "tools" in one else msgspec.convert(one, Seen) for one in found]


class _Raw:
    """Plain HTTP, over a connection that must stay the same."""

    def __init__(self, hub: McpHub, token: str, http: httpx2.AsyncClient, headers: dict[str, str] | None) -> None:
        self._hub = hub
        self._token = token
        self._http = http
        self._session = headers
        self._ports: set[int] = set()

    async def steps(self, wanted: Sequence[Step]) -> list[Seen]:
        return [await self._step(step) for step in wanted]

    async def _step(self, step: Step) -> Seen:
        headers = {"authorization": f"Bearer {self._token}", "accept": BOTH, **(self._session or {})}
        body = message(step)
        if self._session is None:
            body["params"]["_meta"] = META
            headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": body["method"]}
            headers |= {} if step is None else {"mcp-name": step[0]}
        reply = await self._http.post(self._hub.url, json=body, headers=headers)
        self._ports.add(reply.extensions["network_stream"].get_extra_info("client_addr")[1])
        assert len(self._ports) == 1, "the connection was closed"
        return seen(messages(reply)[-1])


class _Curl:
    """curl in the shape that the specifications show: all steps in one process, over one connection."""

    def __init__(self, hub: McpHub, token: str) -> None:
        self._url = hub.url
        self._token = token

    async def steps(self, wanted: Sequence[Step]) -> list[Seen]:
        words: list[str] = []
        for step in wanted:
            words += ["--next"] if words else []
            words += [
                "-sS", "-X", "POST", self._url, "-H", f"Authorization: Bearer {self._token}",
                "-H", f"Accept: {BOTH}", "-H", "Content-Type: application/json", "-d", json.dumps(message(step)),
                "-w", "\n%{num_connects}\n",
            ]  # fmt: skip
        process = await asyncio.create_subprocess_exec("curl", *words, stdout=subprocess.PIPE)
        async with asyncio.timeout(LIMIT_S):
            out, _ = await process.communicate()
        assert process.returncode == 0
        lines = out.decode().splitlines()
        assert lines[1::2] == ["1", *["0"] * (len(wanted) - 1)], "the connection was closed"
        return [seen(json.loads(line)) for line in lines[::2]]


def message(step: Step) -> dict[str, Any]:
    """The request of a step."""
    if step is None:
        return {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    params = {"name": step[0], "arguments": step[1]}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


def seen(answer: dict[str, Any]) -> Seen:
    """A JSON-RPC answer."""
    if "error" in answer:
        return Seen(code=answer["error"]["code"], data=answer["error"].get("data"))
    result = answer["result"]
    if "tools" in result:
        return Seen(tools=tuple(tool["name"] for tool in result["tools"]))
    text = result["content"][0]["text"]
    return Seen(is_error=result.get("isError", False), structured=result.get("structuredContent"), text=text)


def _sdk(mode: str) -> Connect:
    @asynccontextmanager
    async def connect(hub: McpHub, token: str) -> AsyncIterator[AnyClient]:
        async with hub.client(token, mode) as client:
            yield _Sdk(client)

    return connect


@asynccontextmanager
async def _old(hub: McpHub, token: str) -> AsyncIterator[AnyClient]:
    async with old_client.connected(hub.url, token) as client:
        yield _Old(client)


def _raw(*, in_session: bool) -> Connect:
    @asynccontextmanager
    async def connect(hub: McpHub, token: str) -> AsyncIterator[AnyClient]:
        headers = await opened(hub, token) if in_session else None
        limits = httpx2.Limits(max_connections=1, keepalive_expiry=None)
        async with httpx2.AsyncClient(limits=limits, timeout=LIMIT_S) as http:
            yield _Raw(hub, token, http, headers)

    return connect


@asynccontextmanager
async def _curl(hub: McpHub, token: str) -> AsyncIterator[AnyClient]:
    yield _Curl(hub, token)


CLIENTS: dict[str, Connect] = {
    "mcp 2, newest revision": _sdk("auto"),
    "mcp 2, in a session": _sdk("legacy"),
    "mcp 1.30": _old,
    "HTTP of 2026": _raw(in_session=False),
    "HTTP in a session": _raw(in_session=True),
    "curl": _curl,
}
