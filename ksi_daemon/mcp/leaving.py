"""Ends the work for a client that leaves. The SDK does so only where it replies with a stream."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


async def serve_until_client_leaves(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one request whose body comes in one part; cancelled when the client closes the connection first."""
    body: list[Message] = [await receive()]
    leaving = asyncio.create_task(_client_leaves(receive), name="client of an MCP request")

    async def receive_body() -> Message:
        if body:
            return body.pop()
        await asyncio.shield(leaving)
        return {"type": "http.disconnect"}

    serving = asyncio.create_task(_served(app, scope, receive_body, send), name="MCP request")
    try:
        await asyncio.wait({serving, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (serving, leaving):
            task.cancel()
        await asyncio.wait({serving, leaving})
    if not serving.cancelled():
        serving.result()


async def _served(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


async def _client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
