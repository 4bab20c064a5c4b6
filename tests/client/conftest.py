"""A small daemon of the contract's manners for the client's tests, and a way to run the `ksi` command against it."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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


@pytest.fixture
def daemon(var: Path) -> Iterator[FakeDaemon]:
    """A running fake daemon at the var folder's socket."""
    with FakeDaemon(var / "run" / "ksi.sock") as fake:
        yield fake


Ksi = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def ksi(var: Path) -> Ksi:
    """Run the command as a user does; stdout and stderr are pipes."""

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
def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
