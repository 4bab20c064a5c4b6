"""Reads the messages out of a `text/event-stream` body."""

from collections.abc import AsyncIterator


async def messages(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each event that has any; comments and events without data only keep the connection alive."""
    unread = bytearray()
    data: list[bytes] = []
    async for piece in pieces:
        unread += piece
        while (end := unread.find(b"\n")) >= 0:
            line = bytes(unread[:end]).removesuffix(b"\r")
            del unread[: end + 1]
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line:
                if any(data):
                    yield b"\n".join(data)
                data.clear()
