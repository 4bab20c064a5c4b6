"""The HTTP listener: there from the first moment to the last, on loopback only, for its own host names only."""

import contextlib
import http.client
import resource
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cases import case
from tests.live.daemon_process import Daemon, until


def _address(daemon: Daemon) -> tuple[str, int]:
    url = urlsplit(daemon.call("system:status")["url"])
    assert url.path == "/mcp"
    return url.hostname or "", url.port or 0


def _get(host: str, port: int, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def _raw(port: int, request: bytes) -> bytes:
    """The answer to a request after which the daemon closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_a_running_daemon_says_over_http_that_it_lives_and_is_ready(daemon: Daemon) -> None:
    """K004"""
    daemon.start()
    host, port = _address(daemon)
    assert _get(host, port, "/healthz") == (200, "ok\n")
    assert _get(host, port, "/readyz") == (200, "ready\n")
    assert _get(host, port, "/readyz", Host=f"localhost:{port}") == (200, "ready\n")
    assert _get(host, port, "/elsewhere")[0] == 404


def test_a_request_for_another_host_is_refused(daemon: Daemon) -> None:
    """K004"""
    daemon.start()
    host, port = _address(daemon)
    names = [
        "evil.example",
        "127.0.0.1",
        "127.0.0.1:1",
        "",
        f"evil.example:{port}",
        f"127.0.0.1.evil:{port}",
        f"localhost.:{port}",
    ]
    names += [f"localhost:{port}@evil", f"2130706433:{port}", f"0.0.0.0:{port}"]
    for name in names:
        assert _get(host, port, "/healthz", Host=name)[0] in (400, 421), name


def test_a_request_with_no_host_or_two_is_refused(daemon: Daemon) -> None:
    """K004 H02"""
    daemon.start()
    _, port = _address(daemon)
    own = b"Host: 127.0.0.1:%d\r\n" % port
    assert _raw(port, b"GET /healthz HTTP/1.0\r\n\r\n").split()[1] in (b"400", b"421")
    assert _raw(port, b"GET /healthz HTTP/1.1\r\n" + own + own + b"Connection: close\r\n\r\n").split()[1] in (
        b"400",
        b"421",
    )
    assert _raw(port, b"GET /healthz HTTP/1.1\r\n" + own + b"Connection: close\r\n\r\n").split()[1] == b"200"


def _listening(pid: int) -> list[tuple[str, int]]:
    """Every TCP address the process listens on, from the kernel's own tables."""
    inodes = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(handle.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, port = fields[1].split(":")
                packed = b"".join(
                    bytes.fromhex(address[start : start + 8])[::-1] for start in range(0, len(address), 8)
                )
                found.append((socket.inet_ntop(family, packed), int(port, 16)))
    return found


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_the_only_open_port_is_the_http_one_and_only_on_loopback(daemon: Daemon, host: str) -> None:
    """K004 K039 L077 H05"""
    daemon.start(KSI_HOST=host)
    _, port = _address(daemon)
    [(address, listening_port)] = _listening(daemon.pid)
    assert address in ("127.0.0.1", "::1")
    assert listening_port == port


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", ""])  # noqa: S104 - that it is refused
def test_any_other_address_is_refused_at_the_start(daemon: Daemon, host: str) -> None:
    """L077"""
    code, message = daemon.refusal(KSI_HOST=host)
    assert code == 78
    assert "host" in message.lower()


def test_http_starts_and_stops_with_the_daemon(daemon: Daemon) -> None:
    """K005"""
    daemon.start()
    host, port = _address(daemon)
    assert _get(host, port, "/readyz")[0] == 200
    assert daemon.stop() == 0
    with pytest.raises(ConnectionRefusedError):
        _get(host, port, "/healthz")


def test_while_it_starts_it_lives_but_is_not_ready(daemon: Daemon) -> None:
    """K005"""
    daemon.plugin("lingers", "time.sleep(2)\n")
    daemon.spawn()
    remembered = daemon.var / "run" / "http_port"
    port = int(until(lambda: remembered.exists() and remembered.read_text(), what="it listens") or 0)
    assert _get("127.0.0.1", port, "/readyz") == (503, "starting\n")
    assert _get("127.0.0.1", port, "/healthz") == (200, "ok\n")
    until(lambda: _get("127.0.0.1", port, "/readyz")[0] == 200, what="it is ready")


def test_while_it_stops_it_lives_but_is_not_ready(daemon: Daemon) -> None:
    """K005"""
    daemon.plugin(
        "slow",
        '''
@plugin.handles("slow:wait")
async def wait(ctx: Context, params: Nothing) -> Done:
    """Answer after a while."""
    await asyncio.sleep(2.5)
    return Done()
''',
    )
    daemon.start()
    host, port = _address(daemon)
    with daemon.connect() as caller:
        request = caller.post("slow:wait")
        daemon.call("system:shutdown")
        until(lambda: _get(host, port, "/readyz") == (503, "stopping\n"), within_s=2.4, what="it says that it stops")
        assert caller.answer(request)["ok"] is True
    assert daemon.wait() == 0


def test_a_port_that_was_chosen_freely_is_kept_over_a_restart_and_a_crash(daemon: Daemon) -> None:
    """K004"""
    daemon.start()
    first = _address(daemon)
    assert daemon.stop() == 0
    daemon.start()
    assert _address(daemon) == first
    daemon.kill()
    daemon.start()
    assert _address(daemon) == first


def test_a_kept_port_that_somebody_else_has_now_is_replaced(daemon: Daemon) -> None:
    """K004"""
    daemon.start()
    _, port = _address(daemon)
    assert daemon.stop() == 0
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", port))
        thief.listen()
        daemon.start()
        assert _address(daemon)[1] != port


def test_a_taken_port_ends_the_start_with_a_clear_message(daemon: Daemon) -> None:
    """K004"""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, message = daemon.refusal(KSI_PORT=str(port))
    assert code == 1
    assert f"127.0.0.1:{port}" in message
    assert "KSI_PORT" in message
    assert "Traceback" not in message


@pytest.mark.parametrize("remembered", ["junk", "99999999", "9" * 10_000])
def test_a_spoilt_memory_of_the_port_does_not_stop_a_start(daemon: Daemon, remembered: str) -> None:
    """K004"""
    daemon.var.mkdir(mode=0o700)
    (daemon.var / "run").mkdir(mode=0o700)
    (daemon.var / "run" / "http_port").write_text(remembered)
    daemon.start()
    assert _address(daemon)[1] > 0


def test_a_daemon_refuses_malformed_and_oversized_requests_and_serves_the_next(daemon: Daemon) -> None:
    """H06"""
    daemon.start()
    host, port = _address(daemon)
    head = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % port
    refused = {
        b"400": [
            head + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            head + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx",
            head + b"X-A : 1\r\n\r\n",
            head.replace(b"\r", b"") + b"\n",
        ],
        b"431": [head + b"X-A: 1\r\n" * 100 + b"\r\n", head + b"X-A: " + b"a" * 1_000_000 + b"\r\n\r\n"],
        b"413": [head + b"Content-Length: 1048577\r\n\r\n" + b"x" * 1_048_577],
    }
    for status, requests in refused.items():
        for request in requests:
            with case(status, request):
                assert _raw(port, request).split()[1] == status
                assert _get(host, port, "/healthz") == (200, "ok\n")
    assert daemon.logged("Invalid HTTP request received.") == []


def test_nine_hundred_half_sent_requests_are_closed_while_others_are_served(daemon: Daemon) -> None:
    """D01"""
    daemon.start()
    host, port = _address(daemon)
    count = min(900, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)
    began = time.monotonic()
    halves = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(count)]
    try:
        for half in halves:
            half.sendall(b"GET /healthz HTTP/1.1\r\nHost:")
        assert [_get(host, port, "/healthz")[0] for _ in range(50)] == [200] * 50
        for half in halves:
            assert half.recv(65_536).split()[1] == b"408"
    finally:
        for half in halves:
            half.close()
    assert time.monotonic() - began >= 10 - 0.5
    assert _get(host, port, "/healthz") == (200, "ok\n")


def test_a_daemon_that_runs_out_of_descriptors_serves_again_when_they_are_released(daemon: Daemon) -> None:
    """D09"""
    daemon.start()
    host, port = _address(daemon)
    _, most = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (256, most))
    with contextlib.ExitStack() as taken:
        connections = [
            taken.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)) for _ in range(356)
        ]
        for connection in connections[-100:]:
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) in (b"", b"H")
    until(lambda: _served(host, port), within_s=2, what="it serves again")
    assert daemon.alive
    assert len(daemon.log_lines()) <= 100


def _served(host: str, port: int) -> bool:
    try:
        return _get(host, port, "/healthz") == (200, "ok\n")
    except OSError:
        return False


def test_many_ranges_and_many_parts_cost_nothing(daemon: Daemon) -> None:
    """D06"""
    daemon.start()
    _, port = _address(daemon)
    own = b"Host: 127.0.0.1:%d\r\nConnection: close\r\n" % port
    ranges = b"Range: bytes=" + b",".join(b"%d-" % start for start in range(4_000)) + b"\r\n\r\n"
    parts = b"".join(b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' for _ in range(10_000)) + b"--x--"
    form = b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: %d\r\n\r\n" % len(parts)
    for _ in range(20):
        assert _raw(port, b"GET /healthz HTTP/1.1\r\n" + own + ranges).split()[1] == b"200"
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(b"POST /healthz HTTP/1.1\r\n" + own.replace(b"close", b"keep-alive") + form + parts)
            assert connection.recv(65_536).split()[1] == b"415"
    assert daemon.logged("the event loop is blocked") == []
