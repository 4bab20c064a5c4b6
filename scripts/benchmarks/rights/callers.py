"""The client process of the audit's measurement: callers that each wait for their answer, half of them reading, half writing.

python callers.py SOCKET CALLERS SECONDS     prints requests a second
"""

import asyncio
import sys
import time
from typing import cast

import uvloop

READ = b'{"event":"system:echo","data":{"text":"hello"},"id":1}\n'
WRITE = b'{"event":"state:set","data":{"key":"key-%d","value":"some value"},"id":1}\n'
GOOD = b'{"id":1,"ok":true,'


class _Caller(asyncio.Protocol):
    """One connection with one request in flight: echo and state:set in turn."""

    def __init__(self, number: int) -> None:
        self.answered = 0
        self.wrong: bytes | None = None
        self._lines = (READ, WRITE % number)
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._lines[0])

    def data_received(self, data: bytes) -> None:
        self._rest += data
        if not self._rest.endswith(b"\n"):
            return
        if not self._rest.startswith(GOOD):
            self.wrong = self._rest[:200]
            self._transport.abort()
            return
        self._rest = b""
        self.answered += 1
        self._transport.write(self._lines[self.answered % 2])


async def _drive(path: str, callers: int, length_s: float) -> float:
    loop = asyncio.get_running_loop()
    all_of_them = [_Caller(number) for number in range(callers)]
    for caller in all_of_them:
        await loop.create_unix_connection(lambda caller=caller: caller, path)  # type: ignore[misc]
    await asyncio.sleep(min(0.2, length_s))
    before, began = sum(caller.answered for caller in all_of_them), time.perf_counter()
    await asyncio.sleep(length_s)
    rate = (sum(caller.answered for caller in all_of_them) - before) / (time.perf_counter() - began)
    for caller in all_of_them:
        if caller.wrong is not None:
            raise RuntimeError(f"an unexpected answer: {caller.wrong!r}")
    if not rate:
        raise RuntimeError("nothing was answered")
    return rate


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(runner.run(_drive(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
