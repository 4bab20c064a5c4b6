"""A daemon of its own for a measurement: fresh var/, any port, the outside settings kept out."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 30.0


@contextmanager
def daemon(var_dir: Path, *, audited: bool = True) -> Iterator[tuple[int, float]]:
    """A running daemon: its pid, and the seconds from the process's start until `system:status` was answered.

    Without the audit it is only for measuring the other parts.
    """
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "ksi_daemon" if audited else "scripts.benchmarks.unaudited_daemon"],
        env=environment(var_dir),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        while True:
            if process.poll() is not None:
                output = process.stderr.read().decode() if process.stderr else ""
                raise RuntimeError(f"the daemon did not start: {output}")
            try:
                ask(var_dir, "system:status")
                break
            except OSError:
                if time.perf_counter() - began > PATIENCE_S:
                    raise
                time.sleep(0.002)
        yield process.pid, time.perf_counter() - began
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


def ask(var_dir: Path, event: str, data: dict[str, Any] | None = None) -> Any:
    """One request on a connection of its own, without the client library's time."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(str(var_dir / "run" / "ksi.sock"))
        connection.sendall(json.dumps({"event": event, "data": data or {}}).encode() + b"\n")
        with connection.makefile("rb") as lines:
            return json.loads(lines.readline())["data"]


def environment(var_dir: Path) -> dict[str, str]:
    """Ours, with no settings but these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KSI_")}
    kept |= {"PYTHONPATH": str(Path(__file__).parents[3])}
    return kept | {"KSI_VAR_DIR": str(var_dir), "KSI_PORT": "0", "KSI_CONFIG": str(var_dir.parent / "ksi.toml")}


@contextmanager
def scratch_var() -> Iterator[Path]:
    """A var/ that is gone afterwards, at a path short enough for any socket."""
    with tempfile.TemporaryDirectory(prefix="ksi-bench-") as folder:
        yield Path(folder) / "var"
