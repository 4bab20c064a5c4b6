"""The MCP server of a real daemon process."""

import http.client
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.live.daemon_process import Daemon

IDLE_LIMIT_KB = 120 * 1024


def request(
    daemon: Daemon, token: str, method: str, *, headers: Mapping[str, str] | None = None, **params: Any
) -> tuple[int, dict[str, Any]]:
    port = int((daemon.var / "run" / "http_port").read_text())
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **(headers or {})}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    try:
        connection.request("POST", "/mcp", body, sent)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_agents_are_served_over_a_restart_and_a_kill(daemon: Daemon) -> None:
    """K022"""
    daemon.start()
    token = daemon.call("agent:register", {"agent_id": "bot", "profile": "standard"})["token"]
    for end in (daemon.stop, daemon.kill):
        assert request(daemon, token, "tools/call", name="ksi_system_echo", arguments={"text": "hi"})[0] == 200
        end()
        daemon.start()
    status, answer = request(daemon, token, "tools/list")
    assert status == 200
    assert "ksi_system_health" in [tool["name"] for tool in answer["result"]["tools"]]


def test_an_idle_daemon_with_its_mcp_server_stays_small(daemon: Daemon) -> None:
    """L10"""
    daemon.start()
    token = daemon.call("agent:register", {"agent_id": "bot", "profile": "standard"})["token"]
    assert request(daemon, token, "tools/list")[0] == 200
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert resident is not None
    assert int(resident[1]) < IDLE_LIMIT_KB
