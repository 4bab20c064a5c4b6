"""Connections that each call a tool again and again: `callers.py PORT TOKEN 2026|session CONNECTIONS SECONDS TOOL`.

Prints calls a second, and the median and the 99th percentile of their time in ms. Written on bare streams: a client library would
take longer than the servers that are measured.
"""

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import uvloop

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}


class Caller:
    """One connection, and how long each of its calls took."""

    def __init__(self, port: int, token: str, tool: str) -> None:
        self.port = port
        self.tool = tool
        self.headers = {"Host": f"127.0.0.1:{port}", "Authorization": f"Bearer {token}",
                        "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}  # fmt: skip
        self.params: dict[str, Any] = {"name": tool, "arguments": {"text": "x"}}
        self.times_s: list[float] = []

    async def connect(self) -> None:
        """Connect, with neither a revision nor a session."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def open(self, era: str) -> None:
        """Connect, and open a session where there are sessions."""
        await self.connect()
        if era == "2026":
            self.headers |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": self.tool}
            self.params["_meta"] = META
            return
        _, head, _ = await self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": CLIENT})
        self.headers |= {"MCP-Protocol-Version": "2025-06-18", "Mcp-Session-Id": head["mcp-session-id"]}
        await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def post(self, message: Mapping[str, Any]) -> tuple[int, dict[str, str], bytes]:
        """One request: status, headers and body of its reply."""
        body = json.dumps(message).encode()
        lines = [f"{name}: {value}" for name, value in self.headers.items()]
        head = "\r\n".join(["POST /mcp HTTP/1.1", *lines, f"Content-Length: {len(body)}", "", ""])
        self.writer.write(head.encode() + body)
        first, *rest = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower().splitlines()
        headers = dict(line.split(": ", 1) for line in rest if line)
        if headers.get("transfer-encoding") == "chunked":
            answer = await self.reader.readuntil(b"0\r\n\r\n")
        else:
            answer = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(first.split()[1]), headers, answer

    async def call_until(self, end_s: float) -> None:
        """Call until the time is over; ids count up, because equal ids in a session wait for each other."""
        number = 0
        while (began := time.perf_counter()) < end_s:
            number += 1
            status, _, answer = await self.post(
                {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": self.params}
            )
            self.times_s.append(time.perf_counter() - began)
            if status not in (200, 403) or b"jsonrpc" not in answer:
                raise RuntimeError(f"answered with {status}: {answer[:200]!r}")


async def main() -> None:
    """Call from all connections at once."""
    port, token, era, connections, length_s, tool = sys.argv[1:]
    callers = [Caller(int(port), token, tool) for _ in range(int(connections))]
    for caller in callers:
        await caller.open(era)
    began = time.perf_counter()
    await asyncio.gather(*(caller.call_until(began + float(length_s)) for caller in callers))
    took_s = time.perf_counter() - began
    times_s = sorted(one for caller in callers for one in caller.times_s)
    p50_ms, p99_ms = (times_s[int(len(times_s) * part)] * 1000 for part in (0.5, 0.99))
    sys.stdout.write(f"{len(times_s) / took_s} {p50_ms} {p99_ms}\n")


if __name__ == "__main__":
    uvloop.run(main())
