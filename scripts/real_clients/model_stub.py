"""A model's API on loopback with scripted answers: each turn first calls one tool of KSI, then ends with the tool's result in its text.

Speaks as much of Anthropic's Messages API and of OpenAI's Responses API as Claude Code and Codex need.
"""

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REQUESTS_LIMIT = 40  # a client that loops is stopped
USAGE = {"input_tokens": 11, "cache_creation_input_tokens": 1_000, "cache_read_input_tokens": 50, "output_tokens": 7}
CODEX_USAGE = {
    "input_tokens": 1_061,
    "input_tokens_details": {"cached_tokens": 50},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 1_068,
}


class ModelStub:
    """The server, and what it was sent."""

    def __init__(self, tool: str, arguments: dict[str, Any]) -> None:
        self.tool = tool
        self.arguments = arguments
        self.bodies: list[dict[str, Any]] = []  # of the requests for an answer
        self.keys: set[str] = set()
        self.other_paths: list[str] = []
        self.fails_with: int | None = None  # an HTTP status in place of an answer
        self._lock = threading.Lock()
        self._calls = 0
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Not to stderr."""

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")
                self._reply(*stub.answer(self.path.split("?")[0], body, dict(self.headers)))

            def do_GET(self) -> None:
                self._reply(*stub.answer(self.path, None, dict(self.headers)))

            do_HEAD = do_GET  # noqa: N815 - named by http.server

            def _reply(self, status: int, kind: str, data: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def serving(self) -> Iterator["ModelStub"]:
        """Serve in a thread."""
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(10)

    def answer(self, path: str, body: dict[str, Any] | None, headers: dict[str, str]) -> tuple[int, str, bytes]:
        """Status, content type and body."""
        wanted = {name.lower(): value for name, value in headers.items()}
        with self._lock:
            if body is None or path not in ("/v1/messages", "/v1/responses"):
                self.other_paths.append(path)
                return 404, "application/json", b'{"type":"error","error":{"type":"not_found_error","message":"stub"}}'
            self.bodies.append(body)
            self.keys.add(wanted.get("x-api-key") or wanted.get("authorization", ""))
            if self.fails_with is not None or len(self.bodies) > REQUESTS_LIMIT:
                status = self.fails_with or 400
                error = {"type": "overloaded_error" if status == 529 else "api_error", "message": "scripted failure"}
                return status, "application/json", json.dumps({"type": "error", "error": error}).encode()
            self._calls += 1
            number = self._calls
        write = self._messages if path == "/v1/messages" else self._responses
        return 200, "text/event-stream", b"".join(_lines(write(body, number)))

    def tool_results(self) -> list[str]:
        """What tools answered, as far as the model was shown it; each result once, in order."""
        found: dict[str, str] = {}
        for body in self.bodies:
            for call, text in [*_messages_results(body), *_responses_results(body)]:
                found.setdefault(call, text)
        return list(found.values())

    def _messages(self, body: dict[str, Any], number: int) -> Iterator[tuple[str, dict[str, Any]]]:
        result = _last_result(body)
        calls = result is None and bool(body.get("tools"))
        usage = {**USAGE, "output_tokens": 1}
        message = {
            "id": f"msg_{number}", "type": "message", "role": "assistant", "model": body.get("model", "stub"),
            "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage,
        }  # fmt: skip
        yield "message_start", {"message": message}
        if calls:
            block = {"type": "tool_use", "id": f"toolu_{number:04}", "name": f"mcp__ksi__{self.tool}", "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(self.arguments)}
        else:
            block = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": f"The tool answered: {result}"}
        yield "content_block_start", {"index": 0, "content_block": block}
        yield "content_block_delta", {"index": 0, "delta": delta}
        yield "content_block_stop", {"index": 0}
        stop = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
        yield "message_delta", {"delta": stop, "usage": {"output_tokens": USAGE["output_tokens"]}}
        yield "message_stop", {}

    def _responses(self, body: dict[str, Any], number: int) -> Iterator[tuple[str, dict[str, Any]]]:
        last = body.get("input", [{}])[-1]
        answered = last.get("type") == "function_call_output"
        identity = {"id": f"resp_{number}"}
        yield "response.created", {"response": identity}
        if not answered and body.get("tools"):
            item: dict[str, Any] = {
                "type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": self.tool,
                "namespace": "mcp__ksi", "arguments": json.dumps(self.arguments),
            }  # fmt: skip
        else:
            text = f"The tool answered: {_text(last.get('output'))}"
            item = {
                "type": "message", "id": f"item_{number}", "role": "assistant",
                "content": [{"type": "output_text", "text": text, "annotations": []}],
            }  # fmt: skip
        yield "response.output_item.done", {"output_index": 0, "item": item}
        yield "response.completed", {"response": {**identity, "usage": CODEX_USAGE}}


def _lines(events: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[bytes]:
    for name, data in events:
        yield f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()


def _messages_results(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for message in body.get("messages", []):
        content = message.get("content")
        for block in content if isinstance(content, list) else []:
            if block.get("type") == "tool_result":
                yield block["tool_use_id"], _text(block.get("content"))


def _responses_results(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for item in body.get("input", []):
        if item.get("type") == "function_call_output":
            yield item["call_id"], _text(item.get("output"))


def _last_result(body: dict[str, Any]) -> str | None:
    """The tool's result, if the request's last user message has one."""
    for message in reversed(body["messages"]):
        if message["role"] == "user":
            content = message["content"]
            results = [block for block in content if isinstance(block, dict) and block.get("type") == "tool_result"]
            return _text(results[-1].get("content")) if results else None
    return None


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(block.get("text", "")) for block in content if isinstance(block, dict))
    return str(content)
