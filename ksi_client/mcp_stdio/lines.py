"""The client's side: lines from standard input through a thread, and lines to standard output."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator

from ksi_client.mcp_stdio.message import INVALID_REQUEST, BadLine

LINE_LIMIT_BYTES = 1024 * 1024  # what the hub takes
PIECE_BYTES = 65536
AHEAD = 16  # pieces that are read before they are used


async def input_lines(descriptor: int) -> AsyncIterator[bytes | BadLine]:
    """The lines of a descriptor of any kind, until its end. A line that is too long is skipped and reported."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(AHEAD)

    def read() -> None:
        # Not through sys.stdin: the interpreter could not end while a thread waits in its buffer.
        piece = b"-"
        while piece:
            room.acquire()
            try:
                piece = os.read(descriptor, PIECE_BYTES)
            except OSError:
                piece = b""
            try:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)
            except RuntimeError:
                return  # the loop has ended

    threading.Thread(target=read, daemon=True, name="standard input").start()
    unread = bytearray()
    skipping = False
    while piece := await pieces.get():
        room.release()
        unread += piece
        *whole, rest = unread.split(b"\n")
        unread = rest
        for line in whole:
            if skipping or len(line) > LINE_LIMIT_BYTES:
                skipping = False
                yield BadLine(INVALID_REQUEST, f"this line has more than {LINE_LIMIT_BYTES:,} bytes")
            elif line.strip():
                yield bytes(line)
        if len(unread) > LINE_LIMIT_BYTES:
            skipping = True
            unread.clear()
    if unread.strip() and not skipping:
        yield bytes(unread)


def write_line(line: bytes) -> None:
    """Write one line to standard output at once."""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()
