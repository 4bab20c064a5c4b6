"""Run by an interpreter that has `mcp` 1.30: connects, then does what each line of its input says, with one line of JSON for each step.

A line is null for the list of tools, else a tool's name and arguments.
"""

import asyncio
import json
import sys

from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamablehttp_client


async def step(session: ClientSession, line: str) -> dict[str, object]:
    wanted = json.loads(line)
    try:
        if wanted is None:
            tools = (await session.list_tools()).tools
            return {"tools": {tool.name: tool.inputSchema for tool in tools}}
        answer = await session.call_tool(*wanted)
    except McpError as error:
        return {"code": error.error.code, "data": error.error.data}
    text = answer.content[0].text
    return {"is_error": answer.isError, "structured": answer.structuredContent, "text": text}


async def main() -> None:
    url, headers = sys.argv[1], json.loads(sys.argv[2])
    async with streamablehttp_client(url, headers=headers) as (read, write, _), ClientSession(read, write) as session:
        opened = await session.initialize()
        print(json.dumps({"revision": opened.protocolVersion}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await step(session, line)), flush=True)


asyncio.run(main())
