"""Large bodies with little memory: requests are shed, the daemon stays."""

import http.client
import json
import re
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.live.daemon_process import Daemon, until

MIB = 1024 * 1024
BODIES = 100
BODY_BYTES = int(0.97 * MIB)


def _post(port: int, token: str, body: bytes) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request("POST", "/mcp", body, headers)
        response = connection.getresponse()
        response.read()
        return response.status
    except ConnectionError:  # refused while it was still being sent: the answer may be lost
        return None
    finally:
        connection.close()


def _call(**params: object) -> bytes:
    return json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, ensure_ascii=False
    ).encode()


def _used(daemon: Daemon, field: str) -> int:
    """A figure of the process in bytes, as the kernel counts it."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{daemon.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("letter", ["x", "\U0001f600"], ids=["one byte", "four bytes"])
def test_a_daemon_with_little_memory_sheds_large_bodies_and_lives(daemon: Daemon, letter: str) -> None:
    """D10: what an idle process reserves but does not use, as stacks of threads, is not counted."""
    daemon.start()
    port = int((daemon.var / "run" / "http_port").read_text())
    token = daemon.add_agent("bot")
    small = _call(name="ksi_system_echo", arguments={"text": "x"})
    assert _post(port, token, small) == 200
    unused = _used(daemon, "VmSize") - _used(daemon, "VmRSS")
    _, most = resource.prlimit(daemon.pid, resource.RLIMIT_AS)
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (unused + 512 * MIB, most))
    text = letter * (BODY_BYTES // len(letter.encode()))
    large = _call(name="ksi_state_set", arguments={"key": "k", "value": text})
    with ThreadPoolExecutor(BODIES) as threads:
        statuses = set(threads.map(lambda _: _post(port, token, large), range(BODIES)))
    assert 503 in statuses
    assert statuses <= {None, 200, 429, 503}
    assert daemon.alive
    until(lambda: _post(port, token, small) == 200, what="it serves again")
    assert _used(daemon, "VmHWM") < 512 * MIB
    assert daemon.logged("Exception in ASGI application") == []
