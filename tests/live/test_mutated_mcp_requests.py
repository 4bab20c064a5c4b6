"""Spoilt requests to the MCP server: each is answered, none with a failure of the server's own."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cases import case
from tests.live.daemon_process import Daemon, short_folder
from tests.live.test_mutated_lines import json_leaves, json_values

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
}
CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
METHODS = ("initialize", "ping", "tools/list", "tools/call", "server/discover", "resources/read", "prompts/get",
           "completion/complete", "notifications/cancelled", "notifications/initialized", "logging/setLevel")  # fmt: skip
HEADERS = ("mcp-protocol-version", "mcp-method", "mcp-name", "mcp-session-id", "accept", "last-event-id",
           "x-ksi-conversation-id", "x-ksi-agent-id", "mcp-param-x")  # fmt: skip
TOOLS = ("ksi_system_echo", "ksi_state_set", "ksi_state_get", "ksi_system_health", "ksi_no_such")


class Target:
    """A daemon, an agent's token, and one connection that is opened again when the daemon closed it."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.token = daemon.add_agent("fuzz")
        self.connection = http.client.HTTPConnection(
            "127.0.0.1", int((daemon.var / "run" / "http_port").read_text()), timeout=20
        )

    def post(self, body: bytes, headers: dict[str, str], path: str = "/mcp") -> tuple[int, str]:
        """Status and text of the answer."""
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **headers}
        try:
            self.connection.request("POST", path, body, sent)
            response = self.connection.getresponse()
            return response.status, response.read().decode()
        except (ConnectionError, http.client.HTTPException):
            self.connection.close()
            raise

    def harmless(self, body: bytes, headers: dict[str, str], path: str = "/mcp") -> None:
        """The request is served or refused; 5xx would be the server's own failure."""
        with case(body, headers, path):
            status, text = self.post(body, headers, path)
            assert status < 500
            assert "Traceback" not in text
            assert '"code":-32603' not in text  # the SDK's word for an unexpected error
            assert '"code":0' not in text


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    """One daemon for all of this file: that it lives through everything is the point."""
    with short_folder() as folder:
        daemon = Daemon(folder).start()
        try:
            aimed = Target(daemon)
            pid = daemon.pid
            yield aimed
            assert daemon.call("system:status")["pid"] == pid
            assert aimed.post(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}', {})[0] == 200
            aimed.connection.close()
            assert daemon.stop() == 0
            assert "Traceback" not in daemon.errors
            assert [line for line in daemon.log_lines() if line["level"] == "error"] == []
        finally:
            daemon.end()


params = st.fixed_dictionaries(
    {},
    optional={
        "_meta": st.just(META) | st.dictionaries(st.sampled_from(sorted(META)), json_values, max_size=3) | json_values,
        "name": st.sampled_from(TOOLS) | json_leaves,
        "arguments": st.dictionaries(st.sampled_from(("text", "key", "value")), json_values, max_size=3) | json_values,
        "cursor": json_leaves,
        "uri": json_leaves,
        "ref": json_values,
        "requestId": json_leaves,
        **{key: st.just(value) | json_values for key, value in CLIENT.items()},
    },
)
messages = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0") | json_leaves, "method": st.sampled_from(METHODS) | json_leaves},
    optional={"id": st.integers(0, 9) | json_leaves, "params": params | json_values, "result": json_values},
)
values = st.sampled_from((*METHODS, *TOOLS, "2026-07-28", "2025-06-18", "*/*", "application/json", "text/event-stream")) | st.text(
    st.characters(min_codepoint=32, max_codepoint=126), max_size=30
).map(str.strip)  # fmt: skip
headers = st.dictionaries(st.sampled_from(HEADERS), values, max_size=4)
paths = st.sampled_from(("/mcp", "/", "/mcp/tools", "/mcp/%00", "/mcp?x=1"))
bounded = settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@bounded
@given(batch=st.lists(st.tuples(messages, headers, paths), min_size=10, max_size=20))
def test_any_message_of_the_right_outline_is_answered_and_breaks_nothing(
    target: Target, batch: list[tuple[dict[str, Any], dict[str, str], str]]
) -> None:
    """J07"""
    for message, sent, path in batch:
        if {"method", "id"} <= message.keys() and sent.get("mcp-protocol-version") == "2026-07-28":
            sent.setdefault("mcp-method", ascii(message["method"]).strip("'"))
        target.harmless(json.dumps(message).encode(), sent, path)


SPOILT = json.dumps(
    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": TOOLS[0], "arguments": {"text": "x"}, "_meta": META}}
).encode()  # fmt: skip
cuts = st.tuples(st.integers(0, len(SPOILT)), st.integers(0, 5), st.binary(max_size=8))


@bounded
@given(batch=st.lists(st.lists(cuts, min_size=1, max_size=4), min_size=10, max_size=20))
def test_any_change_of_bytes_is_answered_and_breaks_nothing(
    target: Target, batch: list[list[tuple[int, int, bytes]]]
) -> None:
    """J07"""
    now = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": TOOLS[0]}
    for changes in batch:
        body = SPOILT
        for start, length, put in changes:
            body = body[:start] + put + body[start + length :]
        target.harmless(body, now)
        target.harmless(body, {})
