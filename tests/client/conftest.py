"""A fake daemon for the client's tests, and ways to run the `ksi` command against it: in process, as a process, on a terminal."""

import io
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest

from ksi_client.command.entry import run as run_command_line
from ksi_client.command.lock import holder
from tests.client.fake_daemon import FakeDaemon

ROOT = Path(__file__).parents[2]
WAIT_S = 20


@pytest.fixture
def var(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own var folder with nothing running on it, and a working folder without settings."""
    for name in [name for name in os.environ if name.startswith("KSI_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "var"
    monkeypatch.setenv("KSI_VAR_DIR", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return folder


def mark_var() -> None:
    """Put the marker of a daemon into the var folder, if there is one."""
    var = Path(os.environ["KSI_VAR_DIR"])
    if var.is_dir():
        (var / ".ksi-var").touch(mode=0o600)


@pytest.fixture
def daemon(var: Path) -> Iterator[FakeDaemon]:
    """A running fake daemon at the var folder's socket."""
    with FakeDaemon(var / "run" / "ksi.sock") as fake:
        mark_var()
        yield fake


Ksi = Callable[..., subprocess.CompletedProcess[str]]


def run_in_process(words: tuple[str, ...], stdin: TextIO, output: tuple[TextIO, TextIO], **environment: str) -> int:
    """Run one command line through the command's entry point, with these three streams; its exit code."""
    before = os.environ.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ksi", *words])
        patch.setattr(sys, "stdin", stdin)
        patch.setattr(sys, "stdout", output[0])
        patch.setattr(sys, "stderr", output[1])
        os.environ.update(environment)
        try:
            code = run_command_line()
            for stream in output:
                stream.flush()
        finally:
            os.environ.clear()
            os.environ.update(before)
    return code


@pytest.fixture
def ksi(var: Path) -> Ksi:
    """Run a command line in this process, with files for stdout and stderr: what it costs a process to start is saved."""

    def run(*words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8") as stdout,
            tempfile.TemporaryFile("w+", encoding="utf-8") as stderr,
        ):
            code = run_in_process(words, io.StringIO(stdin), (stdout, stderr), **environment)
            texts = []
            for stream in (stdout, stderr):
                stream.seek(0)
                texts.append(stream.read())
        return subprocess.CompletedProcess(words, code, *texts)

    return run


@pytest.fixture
def ksi_process(var: Path) -> Ksi:
    """Run the command as a user does, as a process of its own; stdout and stderr are pipes."""

    def run(*words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ksi_client", *words],
            env=os.environ | environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    return run


@pytest.fixture
def running(var: Path, ksi_process: Ksi, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The real daemon, detached as an operator starts it, on any free port."""
    monkeypatch.setenv("KSI_PORT", "0")
    Path("plugins").mkdir()
    monkeypatch.setenv("KSI_PLUGIN_DIRS", "plugins")
    started = ksi_process("start", "--wait")
    assert started.returncode == 0, started.stderr
    yield var
    _kill_daemon(var)  # half a second less than a stop


@pytest.fixture
def free_port() -> int:
    """A port without a listener."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


FAKE_DAEMON_MODULE = """
import fcntl, json, os, signal, sys, threading
from pathlib import Path
from tests.client.fake_daemon import FakeDaemon

var = Path(os.environ["KSI_VAR_DIR"])
config = Path(os.environ["KSI_CONFIG"])
bad = config.exists() and "bad" in config.read_text()
if "--check-config" in sys.argv:
    port = {"name": "port", "value": int(os.environ.get("KSI_PORT", "0")), "source": "default", "help": "The port."}
    problems = ["port: not a number"] if bad else []
    print(json.dumps({"ok": not bad, "config_file": str(config), "config_file_exists": config.exists(),
                      "settings": [port], "problems": problems, "warnings": []}))
    sys.exit(78 if bad else 0)
if bad:
    sys.exit(print("ksi.toml: port: not a number \\x1b[31m", file=sys.stderr) or 78)
if var.stat().st_mode & 0o077:
    sys.exit(print("var is open to others: chmod 700", file=sys.stderr) or 78)
(var / "run").mkdir(mode=0o700, exist_ok=True)
lock = os.open(var / "run" / "ksi.lock", os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
os.write(lock, b"%d\\n" % os.getpid())
stopped = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: None if os.environ.get("STUBBORN") else stopped.set())
print("serving", flush=True)
with FakeDaemon(var / "run" / "ksi.sock") as daemon:
    answer = daemon.answers["system:status"]
    daemon.answers["system:status"] = lambda data: answer(data) | {"config_file": str(config)}
    while not stopped.wait(0.05):
        pass
"""


@pytest.fixture
def installed(var: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A `python -m ksi_daemon` that starts in no time; whatever the test started is ended after it."""
    package = tmp_path / "installed" / "ksi_daemon"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(FAKE_DAEMON_MODULE)
    monkeypatch.setenv("PYTHONPATH", f"{package.parent}{os.pathsep}{ROOT}")
    yield var
    _kill_daemon(var)


def _kill_daemon(var: Path) -> None:
    pid = holder(var)
    if pid:
        os.kill(pid, signal.SIGKILL)


def on_terminal(*words: str, **environment: str) -> tuple[int, str]:
    """Run a command line in this process with stdout and stderr on a terminal; the exit code and all that was shown."""
    master, slave = pty.openpty()
    pieces: list[bytes] = []
    reader = threading.Thread(target=_read_terminal, args=(master, pieces), daemon=True)
    reader.start()
    environment = {"TERM": "xterm-256color", "COLUMNS": "120"} | environment
    with Path(os.devnull).open() as stdin, open(slave, "w", encoding="utf-8") as screen:  # a descriptor
        code = run_in_process(words, stdin, (screen, screen), **environment)
    reader.join(WAIT_S)
    assert not reader.is_alive()
    os.close(master)
    return code, b"".join(pieces).decode()


def process_on_terminal(*words: str, **environment: str) -> tuple[int, str]:
    """Run the command as a process with stdout and stderr on a terminal; the exit code and all that was shown."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "ksi_client", *words],
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"} | environment,
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
    ) as process:
        os.close(slave)
        pieces: list[bytes] = []
        _read_terminal(master, pieces)
        os.close(master)
        return process.wait(WAIT_S), b"".join(pieces).decode()


def _read_terminal(master: int, pieces: list[bytes]) -> None:
    """Collect what is written to a terminal until its other side is closed."""
    while select.select([master], [], [], WAIT_S)[0]:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other side is closed
            return
        if not piece:
            return
        pieces.append(piece)
