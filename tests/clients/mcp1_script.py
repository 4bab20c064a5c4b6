"""Run by an interpreter that has `mcp` 1.30: connects, lists, and calls what it is told to, one line of JSON for each step."""

import asyncio
import json
import sys

from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamablehttp_client


async def main() -> None:
    url, headers, calls = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    async with streamablehttp_client(url, headers=headers) as (read, write, _), ClientSession(read, write) as session:
        opened = await session.initialize()
        print(json.dumps({"revision": opened.protocolVersion}), flush=True)
        listed = await session.list_tools()
        thin = all(tool.inputSchema == {"type": "object"} for tool in listed.tools)
        print(json.dumps({"tools": [tool.name for tool in listed.tools], "thin": thin}), flush=True)
        for name, arguments in calls:
            try:
                answer = await session.call_tool(name, arguments)
                step = {"is_error": answer.isError, "structured": answer.structuredContent}
            except McpError as error:
                step = {"code": error.error.code, "data": error.error.data}
            print(json.dumps(step), flush=True)


asyncio.run(main())
