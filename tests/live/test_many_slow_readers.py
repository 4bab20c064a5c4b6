"""Hundreds of clients that never read, all at once: what they leave unread is bounded over all of them, and readers lose nothing."""

import asyncio
import socket
from contextlib import ExitStack

import pytest

from tests.live.daemon_process import Connection, Daemon, until

CLIENTS = 400
GROWTH_LIMIT_BYTES = 300_000_000  # 64 MB of unread bytes, as many of notices, and the results of the calls under way
WAIT_S = 60.0


def _subscribers(daemon: Daemon, count: int, stack: ExitStack) -> list[Connection]:
    opened = [stack.enter_context(daemon.connect(wait_s=WAIT_S)) for _ in range(count)]
    for connection in opened:
        connection.call("message:subscribe", {"patterns": ["load:*"]})
    return opened


@pytest.mark.parametrize(("size", "count"), [(50_000, 200), (900_000, 30)])
def test_hundreds_of_subscribers_that_never_read_are_bounded_and_one_that_reads_hears_everything(
    daemon: Daemon, size: int, count: int
) -> None:
    """D04"""
    daemon.start()
    with ExitStack() as stack:
        _subscribers(daemon, CLIENTS, stack)
        [keen] = _subscribers(daemon, 1, stack)
        sender = stack.enter_context(daemon.connect(wait_s=WAIT_S))
        before, most = daemon.resting_bytes(), 0
        for number in range(count):
            sender.call("message:publish", {"event": "load:item", "data": {"number": number, "text": "x" * size}})
            assert keen.notice()["data"]["number"] == number
            most = max(most, daemon.resident_bytes())
        assert keen.dropped == 0
        assert most - before <= GROWTH_LIMIT_BYTES
        stats = daemon.call("monitor:get_stats")
        assert stats["slow_readers"]["unread_bytes"] <= stats["slow_readers"]["limit_bytes"]
        assert stats["waiting_notices"]["bytes"] <= stats["waiting_notices"]["limit_bytes"]
        assert stats["slow_readers"]["cut"] + stats["dropped_notices"] > 0, "they must have been too slow"
        assert daemon.health_s() <= 0.5


def test_replies_that_many_clients_do_not_read_are_bounded(daemon: Daemon) -> None:
    """D04"""
    daemon.start()
    daemon.call("state:set", {"key": "large", "value": "x" * 800_000})
    with ExitStack() as stack:
        before, most = daemon.resting_bytes(), 0
        request = b'{"event":"state:get","data":{"key":"large"},"id":1}\n' * 60
        keen = stack.enter_context(daemon.connect(wait_s=WAIT_S))
        for _ in range(30):
            try:
                stack.enter_context(daemon.connect()).write(request)
            except BrokenPipeError:
                continue  # it was cut already
            most = max(most, daemon.resident_bytes())
            assert len(keen.call("state:get", {"key": "large"})["value"]) == 800_000
        until(lambda: daemon.call("system:status")["calls_in_flight"] == 0, what="every call has ended")
        most = max(most, daemon.resident_bytes())
        assert most - before <= GROWTH_LIMIT_BYTES
        figures = daemon.call("monitor:get_stats")["slow_readers"]
        assert figures["cut"] > 0
        assert figures["unread_bytes"] <= figures["limit_bytes"]


async def _reader(daemon: Daemon, count: int, ready: asyncio.Event) -> int:
    """Subscribe, then read so many notices; how many were dropped."""
    reader, writer = await asyncio.open_unix_connection(daemon.socket_path, limit=4_000_000)
    writer.write(b'{"event":"message:subscribe","data":{"patterns":["load:*"]},"id":1}\n')
    await reader.readline()
    ready.set()
    heard = dropped = 0
    while heard + dropped < count:
        line = await reader.readline()
        assert line, "it was cut"
        if line.startswith(b'{"dropped":'):
            dropped += int(line.removeprefix(b'{"dropped":').removesuffix(b"}\n"))
        else:
            heard += 1
    writer.close()
    return dropped


async def test_many_readers_that_do_read_are_not_cut_although_all_together_are_slow(daemon: Daemon) -> None:
    """D04: 150 in one process, where a notice to all of them is more than may be left unread."""
    daemon.start()
    count, ready = 6, [asyncio.Event() for _ in range(150)]
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        readers = [group.create_task(_reader(daemon, count, one)) for one in ready]
        for one in ready:
            await one.wait()
        publish = {"event": "load:item", "data": {"text": "x" * 900_000}}
        for _ in range(count):
            await asyncio.to_thread(daemon.call, "message:publish", publish)
    assert [reader.result() for reader in readers] == [0] * 150
    figures = daemon.call("monitor:get_stats")["slow_readers"]
    assert figures["cut"] == 0


LARGE_RESULT = '''
class Text(Result):
    text: str


@plugin.handles("large:text", reads=True)
async def text(ctx: Context, params: Nothing) -> Text:
    """Return more than the kernel keeps for one connection."""
    return Text(text="x" * 20_000_000)
'''


def test_an_http_client_that_does_not_read_its_response_is_cut_and_counted(daemon: Daemon) -> None:
    """D04"""
    daemon.plugin("large", LARGE_RESULT)
    daemon.start(KSI_RESULT_LIMIT_BYTES="30000000")
    token = daemon.add_agent("scout")
    port = int((daemon.var / "run" / "http_port").read_text())
    body = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ksi_large_text","arguments":{}}}'
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as deaf:
        deaf.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        until(lambda: daemon.call("monitor:get_stats")["slow_readers"]["behind"], what="it is behind")
        until(lambda: daemon.call("monitor:get_stats")["slow_readers"]["cut"], within_s=15, what="it is cut")
        [line] = daemon.logged("a client that does not read was disconnected")
        assert line["unread_bytes"] > 1_000_000
        assert daemon.call("monitor:get_stats")["slow_readers"]["unread_bytes"] == 0
