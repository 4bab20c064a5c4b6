"""An MCP server on real HTTP that replies as a test says, and the bridge `ksi mcp stdio` as a process that a test writes to."""

import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

WAIT_S = 20
SESSION = "session-1"
INITIALIZED: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def request(message_id: Any, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message_id, "method": method, "params": params}


def request_2026(message_id: Any, method: str, **params: Any) -> dict[str, Any]:
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    return request(message_id, method, _meta=meta, **params)


def result(message: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": fields}


class Exchange(BaseHTTPRequestHandler):
    """One HTTP request, as the script of a test sees it."""

    protocol_version = "HTTP/1.1"
    server: "ScriptedHub"

    def do_POST(self) -> None:
        self.message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen.put(self)
        self.server.post(self)

    def do_GET(self) -> None:
        self.message = {"method": "GET"}
        self.server.seen.put(self)
        self.server.get(self)

    def do_DELETE(self) -> None:
        self.message = {"method": "DELETE"}
        self.server.seen.put(self)
        self.reply({})

    def reply(self, fields: Any, *, status: int = 200, **headers: str) -> None:
        """Reply with JSON."""
        body = b"" if status == 202 else json.dumps(fields, indent=1).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def stream(self) -> None:
        """Begin a reply that is a stream of events."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def event(self, fields: dict[str, Any]) -> None:
        """Send one event of the stream, in two chunks and between comments."""
        text = f": still here\r\nevent: message\r\ndata: {json.dumps(fields)}\r\n\r\n".encode()
        for piece in (text[:20], text[20:]):
            self.chunk(piece)

    def chunk(self, piece: bytes) -> None:
        """Send a piece of the stream as it is."""
        self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.flush()

    def break_off(self) -> None:
        """End the connection in the middle of the reply."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def wait_for_close(self) -> None:
        """Wait until the other side has closed the connection."""
        self.connection.settimeout(WAIT_S)
        assert self.connection.recv(1) == b""
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr."""


class ScriptedHub(ThreadingHTTPServer):
    """Serves until the end of the block. `post` and `get` decide about each reply; `seen` has the requests in their order."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Exchange)
        self.seen: queue.Queue[Exchange] = queue.Queue()
        self.post: Callable[[Exchange], None] = self.answer
        self.get: Callable[[Exchange], None] = lambda exchange: exchange.reply({}, status=405)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def answer(self, exchange: Exchange) -> None:
        """What an ordinary server replies: a session to `initialize`, the parameters to every other request."""
        message = exchange.message
        if message.get("method") == "initialize":
            capabilities = {"tools": {"listChanged": True}}
            exchange.reply(
                result(message, protocolVersion="2025-06-18", capabilities=capabilities), mcp_session_id=SESSION
            )
        elif "id" in message and "method" in message:
            exchange.reply(result(message, params=message.get("params")))
        else:
            exchange.reply(None, status=202)

    def next(self) -> Exchange:
        """The next request."""
        return self.seen.get(timeout=WAIT_S)

    def methods(self, number: int) -> list[str]:
        """The methods of the next requests."""
        return [self.next().message["method"] for _ in range(number)]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class Stdio:
    """The bridge as a client runs it. Every wait is bounded; the process is gone after the block."""

    def __init__(self, *words: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ksi_client", "mcp", "stdio", *words],
            env=os.environ | {"KSI_TOKEN": "ksi_secret"} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.notes: queue.Queue[bytes] = queue.Queue()
        self._threads = [
            threading.Thread(target=_read, args=(stream, lines))
            for stream, lines in ((self.process.stdout, self.lines), (self.process.stderr, self.notes))
        ]
        for thread in self._threads:
            thread.start()

    def send(self, *messages: Any) -> None:
        """Write messages; one that is bytes goes as it is."""
        assert self.process.stdin is not None
        for message in messages:
            self.process.stdin.write((message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n")
        self.process.stdin.flush()

    def next(self) -> dict[str, Any]:
        """The next line that the client gets."""
        line = self.lines.get(timeout=WAIT_S)
        assert line, "the bridge has ended"
        fields = json.loads(line)
        assert isinstance(fields, dict)
        return fields

    def call(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the next line."""
        self.send(message)
        return self.next()

    def note(self, text: str) -> str:
        """Wait for a note that has the text; the note."""
        while True:
            line = self.notes.get(timeout=WAIT_S).decode()
            assert line, "the bridge has ended"
            if text in line:
                return line

    def open(self) -> None:
        """Open a session, as a client of the old era does."""
        opened = self.call(request(0, "initialize", protocolVersion="2025-06-18", capabilities={}))
        assert opened["result"]["protocolVersion"] == "2025-06-18"
        self.send(INITIALIZED)

    def end(self) -> tuple[int, list[dict[str, Any]], str]:
        """Close its input and wait: the exit code, the lines that were not read, and the notes."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(WAIT_S)
        for thread in self._threads:
            thread.join(WAIT_S)
        lines, notes = _rest(self.lines), _rest(self.notes)
        return code, [json.loads(line) for line in lines], b"".join(notes).decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join(WAIT_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def _read(stream: Any, lines: "queue.Queue[bytes]") -> None:
    for line in stream:
        lines.put(line)
    lines.put(b"")


def _rest(lines: "queue.Queue[bytes]") -> list[bytes]:
    found = []
    while not lines.empty():
        found.append(lines.get())
    return [line for line in found if line]
