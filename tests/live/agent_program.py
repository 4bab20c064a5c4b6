"""An agent for the live tests: a client of the MCP SDK as the daemon starts it. It lists its tools, calls one, and says what it saw.

The prompt on stdin is a JSON object: {"call": "ksi_system_echo", "arguments": {…}, "sleep_s": 0}.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def main() -> None:
    wanted = json.load(sys.stdin)
    config = json.loads(Path(os.environ["KSI_MCP_CONFIG"]).read_text())["mcpServers"]["ksi"]
    seen: dict[str, object] = {}
    async with (
        httpx2.AsyncClient(headers=config["headers"], timeout=30) as http,
        Client(streamable_http_client(config["url"], http_client=http), mode=wanted.get("mode", "auto")) as client,
    ):
        tools = (await client.list_tools()).tools
        seen["tools"] = len(tools)
        seen["thin"] = all(tool.input_schema == {"type": "object"} for tool in tools)
        print(json.dumps({"listed": len(tools)}), flush=True)
        await asyncio.sleep(wanted.get("sleep_s", 0))
        if "call" in wanted:
            try:
                answer = await client.call_tool(wanted["call"], wanted.get("arguments", {}))
                seen["answer"] = answer.structured_content
            except Exception as error:  # noqa: BLE001 - the test looks at it
                seen["refused"] = str(error)
    print(json.dumps(seen))


asyncio.run(main())
