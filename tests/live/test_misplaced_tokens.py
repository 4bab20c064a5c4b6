"""A token anywhere but in the Authorization header: it opens nothing, and it is written nowhere."""

import base64
import http.client
import json
from typing import Any

from tests.cases import case
from tests.live.daemon_process import Daemon

OTHER_HEADERS = (
    "X-KSI-Token",
    "X-API-Key",
    "X-Authorization",
    "Proxy-Authorization",
    "X-KSI-Agent-ID",
    "Mcp-Session-Id",
)


def _statuses(daemon: Daemon, token: str) -> dict[str, int]:
    """What the token gets in each place where it does not belong."""
    port = int((daemon.var / "run" / "http_port").read_text())
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    basic = base64.b64encode(f"bot:{token}".encode()).decode()
    asked: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
        "query": (f"/mcp?token={token}", {}, message),
        "query, as OAuth names it": (f"/mcp?access_token={token}", {}, message),
        "query at the root": (f"/?authorization=Bearer%20{token}", {}, message),
        "query of a view": (f"/mcp/view?key={token}", {}, message),
        "path": (f"/mcp/{token}", {}, message),
        "cookie": ("/mcp", {"Cookie": f"token={token}; Authorization={token}"}, message),
        "password": ("/mcp", {"Authorization": f"Basic {basic}"}, message),
        "body": ("/mcp", {}, {**message, "token": token, "authorization": f"Bearer {token}"}),
        "params": ("/mcp", {}, {**message, "params": {"_meta": {"token": token}, "token": token}}),
        **{name: ("/mcp", {name: f"Bearer {token}"}, message) for name in OTHER_HEADERS},
    }
    found = {}
    for place, (path, headers, body) in asked.items():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
            response = connection.getresponse()
            found[place] = response.status
            with case(place):
                assert token.encode() not in response.read()
        finally:
            connection.close()
    return found


def test_a_token_in_any_other_place_is_refused_and_written_nowhere(daemon: Daemon) -> None:
    """A03"""
    daemon.start(KSI_LOG_LEVEL="debug")
    token = daemon.add_agent("bot")
    statuses = _statuses(daemon, token)
    assert statuses == dict.fromkeys(statuses, 401)
    daemon.stop()
    searched = [file for file in daemon.folder.rglob("*") if file.is_file()]
    assert daemon.var / "log" / "ksi.jsonl" in searched
    assert daemon.audit_database in searched
    assert [file for file in searched if token.encode() in file.read_bytes()] == []
