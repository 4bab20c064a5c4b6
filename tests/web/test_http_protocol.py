"""What a client may send, how long it may take, and how many may connect."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from ksi_daemon.web import http_protocol
from ksi_daemon.web.http_protocol import FREE_DESCRIPTORS, MOST_CONNECTIONS, HttpLimits, connection_limit
from tests.cases import case
from tests.web.raw_http import WAIT_S, Site, site

POST = "POST /anything HTTP/1.1"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with what arrived: method, path, headers, size of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        more = message["more_body"]
    names = [name.decode() for name, _ in scope["headers"]]
    text = json.dumps({"method": scope["method"], "path": scope["path"], "headers": names, "size": size}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
    await send({"type": "http.response.body", "body": text})


async def unread(scope: Any, receive: Any, send: Any) -> None:
    """Answers without reading the body."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def malformed(served: Site) -> list[bytes]:
    own = b"Host: 127.0.0.1:%d\r\n" % served.port
    get, post = b"GET /healthz HTTP/1.1\r\n", b"POST /healthz HTTP/1.1\r\n"
    return [
        post + own + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        post + own + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        post + own + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        post + own + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        post + own + b"Content-Length: 2, 2\r\n\r\n{}",
        post + own + b"Content-Length: +2\r\n\r\n{}",
        post + own + b"Content-Length: -2\r\n\r\n{}",
        post + own + b"Content-Length: 0x2\r\n\r\n{}",
        post + own + b"Content-Length:\r\n\r\n{}",
        post + own + b"Content-Length : 2\r\n\r\n{}",
        post + own + b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\n{}",
        post + own + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        post + own + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        post + own + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        post + own + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        post.replace(b"1.1", b"1.0") + own + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        post + own + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        post + own + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        post + own + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n",
        post + own + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\n{\n0\n\n",
        post + own + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\n",
        get + own.replace(b"Host:", b"Host :") + b"\r\n",
        get.replace(b"\r\n", b"\n") + own + b"\r\n",
        get + own.replace(b"\r\n", b"\n") + b"\r\n",
        get.replace(b"\r", b"") + own.replace(b"\r", b"") + b"\n",
        get + own + b"X-A: 1\rX-B: 2\r\n\r\n",
        get + own + b"X-A: 1\r\n folded\r\n\r\n",
        get + own + b"X-A: 1\r\n\tfolded\r\n\r\n",
        get + b" " + own + b"\r\n",
        get + own + b"X\x00Y: 1\r\n\r\n",
        get + own + b"X-A: 1\x002\r\n\r\n",
        get + own + b"X-A: 1\x7f2\r\n\r\n",
        get + own + b": nameless\r\n\r\n",
        get + own + b"no colon\r\n\r\n",
        get + own + b"X(A): 1\r\n\r\n",
        get + own + b"X\xe4: 1\r\n\r\n",
        b"\r\n" + get + own + b"\r\n",
        b" " + get + own + b"\r\n",
        b"GET  /healthz HTTP/1.1\r\n" + own + b"\r\n",
        b"GET /healthz HTTP/1.1 \r\n" + own + b"\r\n",
        b"GET /heal thz HTTP/1.1\r\n" + own + b"\r\n",
        b"GET /heal\x00thz HTTP/1.1\r\n" + own + b"\r\n",
        b"GET /healthz HTTP/1.2\r\n" + own + b"\r\n",
        b"GET /healthz HTTP/2.0\r\n" + own + b"\r\n",
        b"GET /healthz http/1.1\r\n" + own + b"\r\n",
        b"GET /healthz\r\n\r\n",
        b"GET http://evil.example/healthz HTTP/1.1\r\n" + own + b"\r\n",
        b"OPTIONS * HTTP/1.1\r\n" + own + b"\r\n",
        b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n" + own + b"\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\r\n\r\n",
    ]


async def test_a_malformed_request_is_refused_and_closed_and_the_next_connection_is_served(tmp_path: Path) -> None:
    """H06"""
    async with site(tmp_path) as served:
        for raw in malformed(served):
            with case(raw):
                assert await served.ask(raw) == (400, True)
                assert await served.ask(served.head()) == (200, False)
        for method in ("TRACE", "BREW", "get"):
            assert await served.ask(served.head(f"{method} /healthz HTTP/1.1")) == (501, True)


async def test_a_malformed_request_is_also_refused_byte_by_byte_and_after_a_good_one(tmp_path: Path) -> None:
    """H06"""
    async with site(tmp_path) as served:
        for raw in malformed(served)[:30]:
            with case(raw):
                async with served.connection() as connection:
                    connection.send(served.head())
                    assert (await connection.answer())[0] == 200
                    for position in range(len(raw)):
                        connection.send(raw[position : position + 1])
                        await asyncio.sleep(0)
                    status, _, _ = await connection.answer()
                    assert status in ((400, 405) if b"/json" in raw else (400,))  # a bad body may come after its answer
                    assert await connection.closed() == b""


async def test_large_headers_and_many_headers_are_refused(tmp_path: Path) -> None:
    """H06"""
    async with site(tmp_path) as served:
        frame = len(served.head("GET /healthz HTTP/1.1", "X-A: "))
        largest = 32 * 1024 - frame
        assert await served.ask(served.head("GET /healthz HTTP/1.1", "X-A: " + "a" * largest)) == (200, False)
        assert await served.ask(served.head("GET /healthz HTTP/1.1", "X-A: " + "a" * (largest + 1))) == (431, True)
        assert await served.ask(served.head("GET /healthz HTTP/1.1", "X-A: " + "a" * 1_000_000)) == (431, True)
        assert await served.ask(b"GET /" + b"a" * 1_000_000) == (431, True)
        assert await served.ask(served.head("GET /healthz HTTP/1.1", *["X-A: 1"] * 99)) == (200, False)
        assert await served.ask(served.head("GET /healthz HTTP/1.1", *["X-A: 1"] * 100)) == (431, True)
        assert await served.ask(served.head()) == (200, False)


async def test_a_body_over_the_limit_is_refused_before_and_while_it_is_read(tmp_path: Path) -> None:
    """H06"""
    limit = 1024 * 1024
    async with site(tmp_path, echo) as served:
        assert await served.ask(served.head(POST, f"Content-Length: {limit}") + b"x" * limit) == (200, False)
        assert await served.ask(served.head(POST, f"Content-Length: {limit + 1}")) == (413, True)
        assert await served.ask(served.head(POST, f"Content-Length: {limit + 1}") + b"x" * (limit + 1)) == (413, True)
        async with served.connection() as connection:
            connection.send(served.head(POST, "Transfer-Encoding: chunked"))
            for _ in range(16):
                connection.send(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
            assert (await connection.answer())[0] == 413
            await connection.closed()
        assert await served.ask(served.head()) == (200, False)


async def test_good_requests_of_every_kind_are_served_on_one_connection(tmp_path: Path) -> None:
    async with site(tmp_path, echo) as served, served.connection() as connection:
        good = [
            (served.head("GET /a%20b?c=d HTTP/1.1"), "/a b", 0),
            (served.head(POST, "Content-Length: 5") + b"hello", "/anything", 5),
            (
                served.head(POST, "Transfer-Encoding: Chunked") + b"5;x=y\r\nhello\r\n1\r\n!\r\n0\r\n\r\n",
                "/anything",
                6,
            ),
            (served.head(POST, "Transfer-Encoding: chunked") + b"1\r\n!\r\n0\r\nOrigin: null\r\n\r\n", "/anything", 1),
            (served.head(POST, "Transfer-Encoding: chunked") + b"0\r\nA: b\r\nOrigin: null\r\n\r\n", "/anything", 0),
            (served.head("GET / HTTP/1.1", "X-A:", "X-B:  \t1\t ", "X_C: \xe4"), "/", 0),
            (served.head(POST, "Connection: Upgrade", "Upgrade: h2c", "Content-Length: 2") + b"{}", "/anything", 2),
            (served.head("DELETE / HTTP/1.1", "Content-Length: 0"), "/", 0),
        ]
        for step in (1_000_000, 1):
            for raw, path, size in good:
                with case(step, raw):
                    for position in range(0, len(raw), step):
                        connection.send(raw[position : position + step])
                        await asyncio.sleep(0)
                    status, _, body = await connection.answer()
                    seen = json.loads(body)
                    assert (status, seen["path"], seen["size"]) == (200, path, size)
                    assert "origin" not in seen["headers"]


async def test_a_client_cannot_claim_another_address_or_scheme(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["client"][0], scope["scheme"]))
        await unread(scope, receive, send)

    async with site(tmp_path, app) as served:
        await served.ask(served.head("GET / HTTP/1.1", "X-Forwarded-For: 192.0.2.1", "X-Forwarded-Proto: https"))
    assert seen == [("127.0.0.1", "http")]


async def test_a_request_that_comes_before_the_last_answer_is_not_served(tmp_path: Path) -> None:
    async with site(tmp_path, echo) as served:
        for first in (served.head(), served.head(POST, "Transfer-Encoding: chunked") + b"0\r\n\r\n"):
            for second in (served.head("GET /second HTTP/1.1"), b"junk"):
                async with served.connection() as connection:
                    connection.send(first + second)
                    status, head, _ = await connection.answer()
                    assert (status, "connection: close" in head) == (200, True)
                    assert await connection.closed() == b""


async def test_a_body_that_nobody_reads_is_dropped_and_the_connection_stays(tmp_path: Path) -> None:
    async with site(tmp_path, unread) as served, served.connection() as connection:
        for _ in range(3):
            connection.send(served.head(POST, "Content-Length: 1000000"))
            assert (await connection.answer())[0] == 200
            connection.send(b"x" * 1_000_000)
        connection.send(served.head())
        assert (await connection.answer())[0] == 200
    async with site(tmp_path, unread) as served, served.connection() as connection:
        connection.send(served.head(POST, "Transfer-Encoding: chunked"))
        assert (await connection.answer())[0] == 200
        connection.send(b"1\r\n!\r\n0\r\n\r\n" + served.head())
        assert await connection.closed() == b""


async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked_or_closed(tmp_path: Path) -> None:
    waiting = ("Content-Length: 2", "Expect: 100-continue")
    async with site(tmp_path, echo) as served, served.connection() as connection:
        connection.send(served.head(POST, *waiting))
        assert (await connection.answer())[0] == 100
        connection.send(b"{}")
        assert (await connection.answer())[0] == 200
    async with site(tmp_path, unread) as served:
        assert await served.ask(served.head(POST, *waiting)) == (200, True)


async def test_half_a_head_half_a_body_and_an_idle_connection_are_closed(tmp_path: Path) -> None:
    """D01"""
    limits = HttpLimits(head_s=0.2, body_s=0.2, keep_alive_s=1)
    async with site(tmp_path, echo, limits=limits) as served:
        async with served.connection() as connection:
            assert await connection.closed() == b""
        assert await served.ask(b"GET / HTT") == (408, True)
        assert await served.ask(served.head(POST, "Content-Length: 9") + b"half") == (408, True)
        assert await served.ask(served.head(POST, "Transfer-Encoding: chunked") + b"9\r\nhalf") == (408, True)
        async with served.connection() as connection:
            connection.send(served.head())
            assert (await connection.answer())[0] == 200
            connection.send(b"GET / HTT")
            assert (await connection.answer())[0] == 408
            await connection.closed()
        async with served.connection() as connection:
            connection.send(served.head())
            assert (await connection.answer())[0] == 200
            assert await connection.closed() == b""
    async with site(tmp_path, unread, limits=limits) as served, served.connection() as connection:
        connection.send(served.head(POST, "Content-Length: 9"))
        assert (await connection.answer())[0] == 200
        assert await connection.closed() == b""


async def test_a_head_that_trickles_in_is_not_given_more_time(tmp_path: Path) -> None:
    """D01"""
    async with site(tmp_path, limits=HttpLimits(head_s=0.3)) as served, served.connection() as connection:

        async def trickle() -> None:
            while True:
                connection.send(b"a")
                await asyncio.sleep(0.02)

        connection.send(b"GET /")
        task = asyncio.create_task(trickle())
        try:
            assert (await connection.answer())[0] == 408
        finally:
            task.cancel()


async def test_a_long_response_is_not_cut(tmp_path: Path) -> None:
    """Only the reading of a request is timed."""
    closed_others = asyncio.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/stream":
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
            await closed_others.wait()
            await send({"type": "http.response.body", "body": b"b"})

    limits = HttpLimits(head_s=0.1, body_s=0.1, keep_alive_s=0)
    async with site(tmp_path, stream, limits=limits) as served, served.connection() as connection:
        connection.send(served.head("POST /stream HTTP/1.1", "Content-Length: 2") + b"{}")
        for _ in range(3):  # each of these waits for the whole time limit
            async with served.connection() as other:
                await other.closed()
        closed_others.set()
        assert (await connection.answer())[2] == b"ab"


async def test_many_half_sent_requests_are_closed_while_others_are_served(tmp_path: Path) -> None:
    """D01"""
    limits = HttpLimits(head_s=1.0, body_s=1.0)
    heads, bodies = 90, 30
    async with site(tmp_path, limits=limits) as served:

        async def half(raw: bytes) -> None:
            async with served.connection() as connection:
                connection.send(raw)
                await connection.closed()

        json_post = served.head("POST /healthz HTTP/1.1", "Content-Type: application/json", "Content-Length: 9")
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            halves = [group.create_task(half(b"GET /healthz HT")) for _ in range(heads)]
            halves += [group.create_task(half(json_post + b"{")) for _ in range(bodies)]
            while not all(task.done() for task in halves):
                assert await served.ask(served.head()) == (200, False)


async def test_connections_over_the_limit_are_refused_and_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D09"""
    lines: list[str] = []
    reported = asyncio.Event()

    def report(text: str, *values: int) -> None:
        lines.append(text % values)
        reported.set()

    monkeypatch.setattr(http_protocol, "REPORT_EVERY_S", 0.5)
    monkeypatch.setattr(logging.getLogger(http_protocol.__name__), "warning", report)
    async with site(tmp_path, limits=HttpLimits(connections=3)) as served:
        open_connections = [served.connection() for _ in range(3)]
        for each in open_connections:
            connection = await each.__aenter__()
            connection.send(served.head())
            assert (await connection.answer())[0] == 200
        for _ in range(20):
            async with served.connection() as connection:
                assert (await connection.answer())[0] == 503
                await connection.closed()
        for each in open_connections:
            await each.__aexit__(None, None, None)
        async with asyncio.timeout(WAIT_S):
            await reported.wait()
            while (await served.ask(served.head()))[0] != 200:
                pass  # the server still learns that the others are gone
    assert lines[0].endswith("HTTP connections were refused: 3 are open already")
    assert sum(int(line.split()[0]) for line in lines) >= 20
    assert len(lines) <= 3


async def test_large_bodies_together_are_refused_before_they_fill_the_memory(tmp_path: Path) -> None:
    """Each is within its own limit."""
    release = asyncio.Event()

    async def hold(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await echo(scope, receive, send)

    limits = HttpLimits(all_bodies_bytes=100_000)
    async with site(tmp_path, hold, limits=limits) as served, served.connection() as first:
        first.send(served.head(POST, "Content-Length: 60000") + b"x" * 60_000)
        async with served.connection() as second:
            second.send(served.head(POST, "Transfer-Encoding: chunked") + b"7530\r\n" + b"x" * 30_000 + b"\r\n")
            assert await served.ask(served.head(POST, "Content-Length: 50000") + b"x" * 50_000) == (503, True)
            second.send(b"7530\r\n" + b"x" * 30_000 + b"\r\n")
            assert (await second.answer())[0] == 503
        release.set()
        assert (await first.answer())[0] == 200
        assert await served.ask(served.head(POST, "Content-Length: 90000") + b"x" * 90_000) == (200, False)


def test_the_limit_of_connections_leaves_descriptors_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """D09"""
    for descriptors, expected in ((256, 256 - FREE_DESCRIPTORS), (1024, 1024 - FREE_DESCRIPTORS), (64, 16)):
        monkeypatch.setattr("resource.getrlimit", lambda _, soft=descriptors: (soft, soft))
        assert connection_limit() == expected
    for descriptors in (1_000_000, -1):
        monkeypatch.setattr("resource.getrlimit", lambda _, soft=descriptors: (soft, soft))
        assert connection_limit() == MOST_CONNECTIONS


@pytest.mark.parametrize("size", [100, 20_000_000])
async def test_whether_a_client_took_what_was_written_is_known_also_when_it_leaves(tmp_path: Path, size: int) -> None:
    """K013: one that leaves before the end of a reply took all that had been written, or not."""
    found: asyncio.Future[tuple[bool, bool]] = asyncio.get_running_loop().create_future()

    async def begin_and_wait(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        writing = asyncio.ensure_future(send({"type": "http.response.body", "body": b"x" * size, "more_body": True}))
        await receive()
        while (await receive())["type"] != "http.disconnect":
            pass
        await writing
        found.set_result((scope["ksi.has_left"](), await scope["ksi.flushed"]()))

    async with site(tmp_path, begin_and_wait) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(served.head())
        await reader.readexactly(150)  # the head, and at least the first bytes
        writer.close()
        assert await asyncio.wait_for(found, WAIT_S) == (True, size == 100)
