"""A fake daemon on a unix socket: answers from a table, can be silent, hang up, drop notices and restart."""

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Answering = Callable[[dict[str, Any]], Any]

ECHO_SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "times": {"type": "integer"},
        "loud": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "additionalProperties": False,
}
EVENTS = {
    "system:echo": {"summary": "Say it back.", "plugin": "system", "reads": True, "kind": "call"},
    "system:health": {"summary": "How it is.", "plugin": "system", "reads": True, "kind": "call"},
    "state:changed": {"summary": "A value changed.", "plugin": "state", "reads": False, "kind": "notice"},
}
TOOL = {
    "event": "system:echo",
    "name": "ksi_system_echo",
    "description": "Say it \x1b back.",
    "inputSchema": ECHO_SCHEMA,
    "annotations": {"readOnlyHint": True},
}
PLUGINS = [
    {"name": "system", "state": "running", "source": "core", "summary": "The core.", "events": ["system:echo"]},
    {"name": "weather", "state": "broken", "source": "folder", "path": "/p", "events": [], "reason": "no docstring"},
]

AT = "2026-11-18T07:00:00.123456Z"
AGENT = {
    "agent_id": "ada",
    "profile": "standard",
    "parent_id": None,
    "frozen": False,
    "note": "x\x1b[2J",
    "created_at": AT,
    "created_by": "operator",
    "tokens": 2,
    "grants": 1,
    "last_used_at": None,
}
SPAWNED = {"provider": "command", "completion_id": "c1", "conversation_id": "t1"}
LOG_PAGE = {"agent_id": "ada", "completion_id": "c1", "state": "done", "next_offset": 9, "size": 9}
USAGE = {
    "completions": 1, "input_tokens": 17, "cache_creation_tokens": 1, "cache_read_tokens": 2, "output_tokens": 3,
    "cost_usd": 0.5, "listing_bytes": 9,
}  # fmt: skip
COMPLETION = {
    "completion_id": "c1", "agent_id": "ada", "conversation_id": "t1", "state": "done", "place": None, "attempt": 1,
    "created_at": AT, "started_at": AT, "ended_at": AT, "text": "said\x1b[2J", "error": None, "usage": USAGE,
}  # fmt: skip
CONVERSATION = {
    "conversation_id": "t1", "agent_id": "ada", "messages": 1, "created_at": AT, "updated_at": AT, "can_resume": True,
}  # fmt: skip
MESSAGE = {"seq": 1, "role": "user", "text": "hi\x1b[2J", "completion_id": "c1", "at": AT}
RULE = {"resource": "events/a:*", "access": "write", "source": "profile standard", "expires_at": None}
TOKEN = {"credential_id": "t2", "agent_id": "ada", "token": "ksi_secret", "expires_at": AT}
HELD = {
    "agent_id": "ada",
    "profile": "standard",
    "allowed_tools": ["ksi_a"],
    "allowed_modules": ["a"],
    "disallowed_tools": [],
    "grants": [RULE],
    "frozen": False,
    "version": 1,
}
PROFILE = {"name": "standard", "description": "Everyday.", "includes": [], "grants": [RULE], "rate": {"per_minute": 1}}
CHANGE = {
    "agent_id": "ada",
    "resource": "events/a:*",
    "access": None,
    "expires_at": None,
    "gained": ["ksi_a"],
    "lost": ["ksi_\x1bb"],
}
AUDIT_ROW = {
    "seq": 1,
    "time": AT,
    "type": "tool_call",
    "phase": "outcome",
    "status": "ok",
    "principal": "operator",
    "agent_id": "ada",
    "event": "system:\x1becho",
    "duration_ms": 0.3,
}


class Failure(Exception):
    """What an answer raises to fail with an error object."""

    def __init__(self, **error: Any) -> None:
        super().__init__(error)
        self.error = error


class Silence(Exception):
    """What an answer raises to never answer."""


class HangUp(Exception):
    """What an answer raises to end the connection instead."""


def fail(**error: Any) -> Answering:
    """An answer that fails."""

    def answer(_: dict[str, Any]) -> Any:
        raise Failure(**error)

    return answer


LISTED = {"bytes": 30_000, "tokens": 7_500, "client": "test\x1b[2J 1", "listed_at": "2026-11-19T07:00:00Z"}
MCP_SESSION = {"agent_id": "ada", "conversation_id": "c1", "full": 1, "thin": 0, "last_kind": "full", **LISTED}
MCP_COMPLETION = {"completion_id": "k1", "kind": "full", "delivered": True, "listings": 1, **LISTED}


class FakeDaemon:
    """Serves until closed; `answers` may be changed while it runs, `requests` holds what it was asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.requests: list[dict[str, Any]] = []
        self.subscribed = threading.Event()
        self._connections: list[socket.socket] = []
        self._subscribers: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.answers: dict[str, Answering] = {
            "system:echo": lambda data: data,
            "system:status": lambda _: {
                "state": "running",
                "pid": os.getpid(),
                "version": "9.9.9",
                "url": "http://127.0.0.1:1/mcp",
                "started_at": "2026-11-18T07:00:00.123456Z",
                "uptime_s": 75.5,
                "plugins": {"running": 1, "broken": 1},
                "alarms": [],
            },
            "system:health": lambda _: {"status": "ok", "loop_lag_ms": 0.2, "dropped_notices": 0, "alarms": []},
            "system:help": self._help,
            "system:discover": lambda data: {
                "events": {"system:echo": TOOL} if data.get("format_style") == "mcp" else EVENTS,
                "namespaces": ["state", "system"],
                "total": 3,
            },
            "plugin:list": lambda _: {"plugins": PLUGINS, "folders": []},
            "plugin:inspect": lambda data: {**PLUGINS[0], "handlers": [], "subscriptions": [], "name": data["name"]},
            "plugin:reload": lambda data: {"name": data["name"], "state": "running", "events": ["a:b"], "drained": 0},
            "config:show": lambda _: {"settings": [{"name": "port", "value": 8080, "source": "default", "help": "?"}]},
            "config:reload": lambda _: {"changed": ["log_level"], "needs_restart": ["port"]},
            "monitor:get_stats": lambda _: {"calls": {"gone:event": {"calls": 4, "errors": 1, "p50_ms": 0.1}}},
            "monitor:get_events": lambda _: {"events": [], "matched": 0, "forgotten": 0},
            "agent:register": lambda data: {
                "agent_id": data["agent_id"],
                "profile": data["profile"],
                "token": "ksi_secret",
                "credential_id": "t1",
                "url": "http://127.0.0.1:1/mcp",
            },
            "agent:config": lambda data: {
                "agent_id": data["agent_id"],
                "client": data["client"],
                "text": "{}\n",
                "entry": {"url": "http://127.0.0.1:1/mcp"},
                "inputs": [],
                "credential_id": "t3",
                "token": None,
                "url": "http://127.0.0.1:1/mcp",
            },
            "agent:list": lambda _: {"agents": [AGENT]},
            "agent:get": lambda _: AGENT | {"children": [], "rules": [RULE], "credentials": [{"credential_id": "t1"}]},
            "agent:remove": lambda data: {"agent_id": data["agent_id"], "removed": True},
            "agent:freeze": lambda _: {"agents": ["ada"]},
            "agent:unfreeze": lambda _: {"agents": ["ada"]},
            "agent:spawn": lambda data: SPAWNED | {"agent_id": data["agent_id"]},
            "agent:tree": lambda _: {
                "agents": [AGENT | {"depth": depth, "provider": "command", "state": "idle"} for depth in (0, 1)]
            },
            "agent:logs": lambda data: LOG_PAGE | {"text": "" if data["offset"] else "said\x1b[2J\n"},
            "agent:terminate": lambda _: {"agents": ["ada", "kid"], "completions": 1},
            "agent:restart": lambda _: {"agent_id": "ada", "completions": 0},
            "completion:async": lambda data: {
                "completion_id": "c1",
                "conversation_id": "t1",
                "state": "queued",
                **data,
            },
            "completion:wait": lambda _: COMPLETION,
            "completion:status": lambda _: COMPLETION,
            "completion:cancel": lambda _: COMPLETION | {"state": "cancelled"},
            "completion:list": lambda _: {"completions": [COMPLETION], "waiting": 1, "under_way": 2},
            "completion:token_usage": lambda data: {"by": data["by"], "usage": [USAGE | {"group": "ada"}]},
            "completion:providers": lambda _: {"providers": [{"name": "claude", "program": None, "hint": "npm"}]},
            "conversation:list": lambda _: {"conversations": [CONVERSATION]},
            "conversation:get": lambda _: CONVERSATION | {"page": [MESSAGE], "next_after": None},
            "conversation:export": lambda data: {
                "content": {"messages": []} if data["format"] == "json" else "# Conversation\n"
            },
            "token:create": lambda data: TOKEN | {"agent_id": data["agent_id"]},
            "token:list": lambda _: {"tokens": [{"credential_id": "t1", "agent_id": "ada", "state": "live"}]},
            "token:revoke": lambda data: {**data, "agent_id": "ada", "revoked": True},
            "token:rotate": lambda _: TOKEN,
            "session:create": lambda _: {"sessionId": "s1", "token": "ksi_secret", "expires_at": AT},
            "mcp:list_sessions": lambda _: {"sessions": [MCP_SESSION]},
            "mcp:get_session": lambda _: {"completions": [MCP_COMPLETION]},
            "mcp:clear_sessions": lambda _: {"completions": 1},
            "session:list": lambda _: {"sessions": [{"sessionId": "s1", "clientId": "ada", "scopes": ["read"]}]},
            "session:revoke": lambda data: {**data, "revoked": True},
            "permission:get_agent": lambda _: HELD,
            "permission:set_agent": lambda data: HELD | data | {"allowed_tools": ["ksi_b"]},
            "permission:list_profiles": lambda _: {"profiles": [PROFILE]},
            "permission:get_profile": lambda _: {"profile": PROFILE},
            "permission:grant": lambda data: CHANGE | {"applied": not data["dry_run"], "access": "read"},
            "permission:revoke": lambda data: CHANGE | {"applied": not data["dry_run"]},
            "permission:explain": lambda data: {
                **data,
                "allowed": data["event"] == "system:echo",
                "text": "ada may\n  rule \x1b[31m",
                "explanation": {},
            },
            "audit:query": lambda data: {"rows": [] if data.get("status") == "unknown" else [AUDIT_ROW], "more": True},
            "audit:stats": lambda _: {"totalEvents": 1, "byType": {"tool_call": 1}, "errorRate": 0.0},
            "audit:verify": lambda _: {"ok": True, "rows": 42, "first_bad_seq": None, "problem": None},
            "audit:export": lambda data: {"path": f"/var/exports/{data['name']}", "rows": 42},
            "audit:checkpoint": lambda _: {"head": "ksi-audit-head:aa:7:bb:cc", "daemon_id": "aa", "seq": 7},
            "audit:retain": lambda _: {"dropped": 7, "first_seq": 8, "unexported": 0},
            "message:subscribe": lambda data: {"patterns": data["patterns"]},
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, in the place of a daemon that may have been here before."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        folder = os.open(self.path.parent, os.O_RDONLY)
        self._listener.bind(f"/proc/self/fd/{folder}/{self.path.name}")
        os.close(folder)
        self.path.chmod(0o600)
        self._listener.listen()
        self.subscribed.clear()
        self._spawn(self._accept)

    def stop(self) -> None:
        """Hang up on everybody and leave; the socket file goes too."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(10)
        self._threads.clear()
        self.path.unlink(missing_ok=True)

    def hang_up(self) -> None:
        """End every connection, and go on listening."""
        with self._lock:
            connections, self._connections = self._connections, []
            self._subscribers = []
        for connection in connections:
            _shut(connection)

    def publish(self, event: str, **data: Any) -> None:
        """Send a notice to every subscriber."""
        notice = {"id": f"n-{event}", "event": event, "data": data, "at": "2026-11-18T07:00:00.123456Z", "depth": 1}
        self.push({"notice": notice, "of the future": True})

    def push(self, message: dict[str, Any]) -> None:
        """Send any line to every subscriber."""
        for connection in list(self._subscribers):
            _write(connection, message)

    def _spawn(self, work: Callable[..., None], *details: Any) -> None:
        thread = threading.Thread(target=work, args=details, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._connections.append(connection)
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            try:
                for line in lines:
                    self._spawn(self._answer, connection, json.loads(line))
            except OSError:
                return

    def _answer(self, connection: socket.socket, request: dict[str, Any]) -> None:
        self.requests.append(request)
        reply: dict[str, Any] = {"id": request.get("id")}
        unknown = fail(code="unknown_event", message=f"no plugin handles {request['event']}", hint="ksi events ls")
        try:
            reply |= {"ok": True, "data": self.answers.get(request["event"], unknown)(request["data"])}
        except Failure as failure:
            reply |= {"ok": False, "error": failure.error}
        except Silence:
            return
        except HangUp:
            _shut(connection)
            return
        if request["event"] == "message:subscribe":
            self._subscribers.append(connection)
        _write(connection, reply)
        if request["event"] == "message:subscribe":
            self.subscribed.set()

    def _help(self, data: dict[str, Any]) -> Any:
        if data["event"] not in EVENTS:
            raise Failure(code="unknown_event", message=f"no event {data['event']}", hint="ksi events ls")
        if data.get("format_style") == "json_schema":
            return {"event": data["event"], "schema": ECHO_SCHEMA}
        parameters = {"text": {"type": "string", "required": True, "description": "What to say."}}
        return {"event": data["event"], "summary": "Say it back.", "kind": "call", "parameters": parameters}


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it had gone by itself


def _write(connection: socket.socket, message: dict[str, Any]) -> None:
    try:
        connection.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        return  # the reader left, as readers do
