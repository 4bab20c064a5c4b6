"""Ten thousand notices a second: every subscriber can account for each of them, and the daemon still answers."""

import asyncio
import statistics
import time
from pathlib import Path

from tests.live.daemon_process import Daemon

PUBLISHERS = 4
SUBSCRIBERS = 3
EACH = 5_000
OFFERED_PER_S = 10_000
WAIT_S = 60


async def _publish(path: Path) -> int:
    """Offer notices at this publisher's share of the rate, in bursts; how many were acknowledged."""
    reader, writer = await asyncio.open_unix_connection(path)
    burst = 100
    line = b'{"event":"message:publish","data":{"event":"load:item","data":{"n":1}},"id":1}\n'
    began = time.monotonic()
    counting = asyncio.create_task(_count_answers(reader))
    for sent in range(0, EACH, burst):
        writer.write(line * burst)
        await writer.drain()
        ahead_s = (sent + burst) / (OFFERED_PER_S / PUBLISHERS) - (time.monotonic() - began)
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)  # the rate that is offered, not a wait for something
    acknowledged = await asyncio.wait_for(counting, WAIT_S)
    writer.close()
    return acknowledged


async def _count_answers(reader: asyncio.StreamReader) -> int:
    acknowledged = 0
    while acknowledged < EACH:
        line = await reader.readline()
        assert b'"ok":true' in line, line
        acknowledged += 1
    return acknowledged


class _Subscriber:
    """Counts what it heard and what it was told it missed."""

    def __init__(self) -> None:
        self.heard = 0
        self.missed = 0

    async def listen(self, path: Path, ready: asyncio.Event) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b'{"event":"message:subscribe","data":{"patterns":["load:*"]},"id":1}\n')
        assert b'"ok":true' in await reader.readline()
        ready.set()
        while self.heard + self.missed < PUBLISHERS * EACH:
            line = await reader.readline()
            if line.startswith(b'{"notice"'):
                self.heard += 1
            else:
                self.missed += int(line.removeprefix(b'{"dropped":').removesuffix(b"}\n"))
        writer.close()


async def _health_times(path: Path, flood: asyncio.Future[list[int]]) -> list[float]:
    reader, writer = await asyncio.open_unix_connection(path)
    times: list[float] = []
    while not flood.done():
        began = time.monotonic()
        writer.write(b'{"event":"system:health","id":1}\n')
        await asyncio.wait_for(reader.readline(), WAIT_S)
        times.append(time.monotonic() - began)
        await asyncio.sleep(0.05)
    writer.close()
    return times


async def test_every_subscriber_can_account_for_every_notice_of_a_flood(daemon: Daemon) -> None:
    """L06"""
    daemon.start()
    path = daemon.socket_path
    subscribers = [_Subscriber() for _ in range(SUBSCRIBERS)]
    ready = [asyncio.Event() for _ in subscribers]
    listening = [
        asyncio.create_task(one.listen(path, is_ready)) for one, is_ready in zip(subscribers, ready, strict=True)
    ]
    await asyncio.wait_for(asyncio.gather(*(one.wait() for one in ready)), WAIT_S)
    flood = asyncio.gather(*(_publish(path) for _ in range(PUBLISHERS)))
    times = await _health_times(path, flood)
    assert sum(await flood) == PUBLISHERS * EACH
    await asyncio.wait_for(asyncio.gather(*listening), WAIT_S)
    for one in subscribers:
        assert one.heard + one.missed == PUBLISHERS * EACH
    assert statistics.median(times) <= 0.5
    health = daemon.call("system:health")
    assert health["dropped_notices"] == sum(one.missed for one in subscribers)


async def test_a_subscriber_that_stops_reading_in_a_flood_costs_the_others_nothing(daemon: Daemon) -> None:
    """L06 D04"""
    daemon.start()
    path = daemon.socket_path
    keen, ready = _Subscriber(), asyncio.Event()
    listening = asyncio.create_task(keen.listen(path, ready))
    await asyncio.wait_for(ready.wait(), WAIT_S)
    with daemon.connect() as deaf:
        deaf.call("message:subscribe", {"patterns": ["load:*"]})
        flood = asyncio.gather(*(_publish(path) for _ in range(PUBLISHERS)))
        times = await _health_times(path, flood)
        await asyncio.wait_for(listening, WAIT_S)
        assert keen.heard + keen.missed == PUBLISHERS * EACH
        assert keen.heard >= PUBLISHERS * EACH // 2
        assert statistics.median(times) <= 0.5
        rows = daemon.call("message:subscriptions")["subscriptions"]
        for row in rows:
            assert row["delivered"] + row["dropped"] + row["waiting"] == PUBLISHERS * EACH
