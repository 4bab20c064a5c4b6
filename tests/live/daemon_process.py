"""A real daemon process and real connections to it, for the live tests and for `scripts/chaos`.

Knows how to start, ask, signal and end a daemon; what must be true of it is said in the tests.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 20.0  # generous: two cores may be shared by two test runners and twenty daemons
POLL_S = 0.005

Seen = TypeVar("Seen")
Answer = dict[str, Any]


class Refused(Exception):
    """A call that was answered with an error."""

    def __init__(self, event: str, error: dict[str, Any]) -> None:
        super().__init__(f"{event}: {error}")
        self.code: str = error["code"]
        self.error = error


def until(condition: Callable[[], Seen], *, within_s: float = WAIT_S, what: str = "") -> Seen:
    """Look again and again until `condition` gives something true, and return that; a failure when it never does."""
    deadline = time.monotonic() + within_s
    while True:
        seen = condition()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(
                f"did not come true within {within_s:g} s: {what or getattr(condition, '__name__', condition)}"
            )
        time.sleep(POLL_S)


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A private folder whose path is short enough for a unix socket, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ksi-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Connection:
    """One client of the operator socket: lines out, lines in, every wait bounded."""

    def __init__(self, path: Path, *, wait_s: float = WAIT_S) -> None:
        self.notices: list[dict[str, Any]] = []
        self.dropped = 0
        self._answers: dict[Any, Answer] = {}
        self._buffer = bytearray()
        self._next_id = 0
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(wait_s)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def write(self, raw: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(raw)

    def line(self) -> bytes:
        """The next line as it came; `EOFError` when the daemon has hung up."""
        while (end := self._buffer.find(b"\n")) < 0:
            piece = self.socket.recv(262_144)
            if not piece:
                raise EOFError("the daemon closed the connection")
            self._buffer += piece
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def next(self) -> Answer:
        """The next line, decoded."""
        decoded = json.loads(self.line())
        assert isinstance(decoded, dict), decoded
        return decoded

    def post(self, event: str, data: dict[str, Any] | None = None, **extra: Any) -> int:
        """Send a request without waiting; returns its id."""
        self._next_id += 1
        request = {"event": event, "data": data or {}, "id": self._next_id, **extra}
        self.write(json.dumps(request).encode() + b"\n")
        return self._next_id

    def answer(self, request_id: Any) -> Answer:
        """The whole answer to a request; other lines that come first are kept."""
        while request_id not in self._answers:
            self._sort(self.next())
        return self._answers.pop(request_id)

    def notice(self) -> dict[str, Any]:
        """The oldest notice that was not looked at yet."""
        while not self.notices:
            self._sort(self.next())
        return self.notices.pop(0)

    def _sort(self, decoded: Answer) -> None:
        if "notice" in decoded:
            self.notices.append(decoded["notice"])
        elif "dropped" in decoded:
            self.dropped += decoded["dropped"]
        else:
            self._answers[decoded["id"]] = decoded

    def send(self, event: str, data: dict[str, Any] | None = None, **extra: Any) -> Answer:
        """Send a request and wait for its whole answer."""
        return self.answer(self.post(event, data, **extra))

    def call(self, event: str, data: dict[str, Any] | None = None, **extra: Any) -> dict[str, Any]:
        """Send a request and return its data; raises `Refused` for an error."""
        answer = self.send(event, data, **extra)
        if not answer["ok"]:
            raise Refused(event, answer["error"])
        result: dict[str, Any] = answer["data"]
        return result

    def ask(self, raw: bytes) -> Answer:
        """Send one raw line (without its end) and return the next line."""
        self.write(raw + b"\n")
        return self.next()


class Daemon:
    """One var folder and at most one daemon process on it. Nothing runs until `start`."""

    def __init__(self, folder: Path, **settings: str | int | float) -> None:
        self.folder = folder
        self.var = folder / "var"
        self.config_file = folder / "ksi.toml"
        self.plugins = folder / "plugins"
        self.plugins.mkdir(exist_ok=True)
        self.settings: dict[str, str] = {name: str(value) for name, value in settings.items()}
        self.python_path = [str(ROOT)]
        self.umask = -1
        self.ready_s = 0.0  # how long the last start took
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def socket_path(self) -> Path:
        return self.var / "run" / "ksi.sock"

    @property
    def database(self) -> Path:
        return self.var / "db" / "ksi.db"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def errors(self) -> str:
        """What it wrote to stderr, over all starts."""
        return (self.folder / "stderr").read_text()

    def environment(self) -> dict[str, str]:
        """Nothing of the surroundings but what a program needs."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KSI_", "COV_"))}
        return kept | {
            "PYTHONPATH": os.pathsep.join(self.python_path),
            "KSI_VAR_DIR": str(self.var),
            "KSI_CONFIG": str(self.config_file),
            "KSI_PORT": "0",
            "KSI_PLUGIN_DIRS": str(self.plugins),
            **{f"KSI_{name.upper()}": value for name, value in self.settings.items()},
        }

    def spawn(self, **environment: str) -> Self:
        """Start the process without waiting for anything."""
        assert self.process is None, "it runs already"
        with (self.folder / "stdout").open("ab") as out, (self.folder / "stderr").open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ksi_daemon"],
                cwd=self.folder,
                env=self.environment() | environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                umask=self.umask,
            )
        return self

    def start(self, **environment: str) -> Self:
        """Start it and wait until it answers."""
        began = time.monotonic()
        self.spawn(**environment)
        until(self.answers, what="the daemon answers")
        self.ready_s = time.monotonic() - began
        return self

    def answers(self) -> bool:
        """Whether it serves now; a failure when it has ended instead."""
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon ended with {self.process.returncode} instead of starting: {self.errors}")
        try:
            with self.connect() as connection:
                return bool(connection.call("system:status")["pid"] == self.pid)
        except (OSError, EOFError):
            return False

    def connect(self, *, wait_s: float = WAIT_S) -> Connection:
        """A new connection to its socket."""
        return Connection(self.socket_path, wait_s=wait_s)

    def call(self, event: str, data: dict[str, Any] | None = None, **extra: Any) -> dict[str, Any]:
        """One call on a connection of its own."""
        with self.connect() as connection:
            return connection.call(event, data, **extra)

    def add_agent(self, name: str, profile: str = "trusted", **more: Any) -> str:
        """A new agent; its token."""
        return str(self.call("agent:register", {"agent_id": name, "profile": profile, **more})["token"])

    @property
    def audit_database(self) -> Path:
        return self.var / "db" / "audit.db"

    def audit_rows(self, where: str = "1", *values: Any) -> list[dict[str, Any]]:
        """Rows of the audit in their order, read beside the daemon or without one."""
        address = f"file:{self.audit_database}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            found = connection.execute(f"SELECT * FROM entries WHERE {where} ORDER BY seq", values)  # noqa: S608 - ours
            return [dict(row) for row in found]

    def verify_audit(self, *options: str) -> dict[str, Any]:
        """The verdict of `python -m ksi_daemon.audit verify`, which needs no daemon; with its exit code."""
        words = [sys.executable, "-m", "ksi_daemon.audit", "verify", str(self.var), *options]
        ended = subprocess.run(words, env=self.environment(), capture_output=True, text=True, timeout=60, check=False)
        assert "Traceback" not in ended.stderr, ended.stderr
        verdict: dict[str, Any] = json.loads(ended.stdout)
        return verdict | {"exit_code": ended.returncode}

    def health_s(self) -> float:
        """How long it takes to learn that it is well: the middle of three, each on a connection of its own."""
        return sorted(self._health_s() for _ in range(3))[1]

    def _health_s(self) -> float:
        with self.connect() as connection:
            began = time.monotonic()
            connection.call("system:health")
            return time.monotonic() - began

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, within_s: float = WAIT_S) -> int:
        """Wait for the end; the exit code."""
        assert self.process is not None
        code = self.process.wait(within_s)
        self.process = None
        return code

    def stop(self) -> int:
        """Ask it to stop, and wait."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def end(self) -> None:
        """However it stands: afterwards nothing runs."""
        if self.process is not None:
            self.kill()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def refusal(self, *, within_s: float = 10.0, **environment: str) -> tuple[int, str]:
        """Start it where it must refuse to; its exit code and message."""
        self.spawn(**environment)
        try:
            code = self.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not refuse to start: {self.errors or 'it serves'}") from None
        return code, self.errors

    def resident_bytes(self) -> int:
        """How much memory it has in use now."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * resource.getpagesize()

    def settled_bytes(self) -> int:
        """The same once everything is imported, which goes on for a while after the start."""
        until(lambda: self.call("mcp:status")["state"] == "serving", what="the MCP server serves")
        return self.resident_bytes()

    def log_lines(self) -> list[dict[str, Any]]:
        """The structured log so far, without a line that is being written just now."""
        whole, _, _ = (self.var / "log" / "ksi.jsonl").read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Log lines with this text."""
        return [line for line in self.log_lines() if line["event"] == event]

    def configure(self, text: str) -> None:
        """Write the settings file."""
        self.config_file.write_text(text)

    def plugin(self, name: str, body: str, *, arguments: str = "") -> Path:
        """Write a plugin: the usual imports, its `plugin` object, a `Done` result, then `body`."""
        return self.plugin_file(name, PLUGIN_HEAD.format(name=name, arguments=arguments) + body)

    def plugin_file(self, name: str, source: str) -> Path:
        """Write a plugin exactly as given."""
        folder = self.plugins / name
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text(source)
        return folder


PLUGIN_HEAD = '''"""{name}: a plugin of the live tests."""
import asyncio, contextlib, os, sys, threading, time
from typing import Any
from ksi_daemon.plugin import Context, Field, JsonValue, NotFound, Nothing, Notice, Params, Plugin, Result, in_process, in_thread

plugin = Plugin("{name}"{arguments})


class Done(Result):
    done: bool = True


'''
