"""The two small processes of the socket's measurement: the bare echo server, and the client that drives both servers.

python socket_peers.py serve SOCKET asyncio|uvloop
python socket_peers.py drive SOCKET EXPECTED_ANSWER CONNECTIONS DEPTH SECONDS     prints requests a second, and all requests
"""

import asyncio
import sys
import time
from contextlib import suppress
from typing import cast

import uvloop

LINE = b'{"event":"system:echo","data":{"text":"hello"},"id":1}\n'


async def _serve(path: str) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # a client that has measured enough just leaves
            while line := await reader.readline():
                writer.write(line)
                await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(echo, path)
    await server.serve_forever()


class _Driver(asyncio.Protocol):
    """Keeps `depth` requests in flight on one connection and counts the answers."""

    def __init__(self, depth: int, expected: bytes) -> None:
        self.answered = 0
        self.wrong: bytes | None = None
        self._depth = depth
        self._expected = expected
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(LINE * self._depth)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        count, left = divmod(len(data), len(self._expected))
        self._rest = data[len(data) - left :]
        if data[: len(data) - left] != self._expected * count:
            self.wrong = data[:200]
            self._transport.abort()
            return
        self.answered += count
        self._transport.write(LINE * count)


async def _drive(path: str, expected: bytes, connections: int, depth: int, length_s: float) -> tuple[float, int]:
    loop = asyncio.get_running_loop()
    drivers = [_Driver(depth, expected) for _ in range(connections)]
    for driver in drivers:
        await loop.create_unix_connection(lambda driver=driver: driver, path)  # type: ignore[misc]
    await asyncio.sleep(min(0.2, length_s))
    before, began = sum(driver.answered for driver in drivers), time.perf_counter()
    await asyncio.sleep(length_s)
    rate = (sum(driver.answered for driver in drivers) - before) / (time.perf_counter() - began)
    for driver in drivers:
        if driver.wrong is not None:
            raise RuntimeError(f"an unexpected answer: {driver.wrong!r}")
    if not rate:
        raise RuntimeError("nothing was answered")
    return rate, sum(driver.answered for driver in drivers)


def main(arguments: list[str]) -> None:
    """The server's or the client's process."""
    bare = arguments[0] == "serve" and arguments[2] == "asyncio"
    with asyncio.Runner(loop_factory=asyncio.new_event_loop if bare else uvloop.new_event_loop) as runner:
        if arguments[0] == "serve":
            runner.run(_serve(arguments[1]))
        else:
            path, expected, connections, depth, length_s = arguments[1:]
            print(*runner.run(_drive(path, expected.encode(), int(connections), int(depth), float(length_s))))


if __name__ == "__main__":
    main(sys.argv[1:])
