"""Requests a second through the operator socket beside a bare asyncio newline echo server, with one client for both.

Server and client are processes of their own; both servers run on uvloop and listen on a unix socket.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from scripts.benchmarks.figure import Figure, ratio
from scripts.benchmarks.hub.daemon_process import daemon, environment, scratch_var
from scripts.benchmarks.hub.socket_peers import LINE

PEERS = str(Path(__file__).with_name("socket_peers.py"))
ANSWER = b'{"id":1,"ok":true,"data":{"text":"hello"}}\n'
SHAPES = (("ping-pong, 16 connections", 16, 1), ("16 in flight, 8 connections", 8, 16))


def measure(quick: bool) -> list[Figure]:
    """One ratio for each shape of traffic; the two servers take turns."""
    rounds, length_s = (1, 0.1) if quick else (9, 1.0)
    with scratch_var() as var_dir, daemon(var_dir), _echo_server(var_dir.parent / "echo.sock") as echo:
        hub = var_dir / "run" / "ksi.sock"
        figures = []
        for shape, connections, depth in SHAPES:
            rates: dict[Path, list[float]] = {hub: [], echo: []}
            for _ in range(rounds):
                for server, expected in ((hub, ANSWER), (echo, LINE)):
                    rates[server].append(_client(server, expected, connections, depth, length_s))
            told = f"hub {median(rates[hub]):,.0f}/s, echo {median(rates[echo]):,.0f}/s"
            figures.append(
                Figure(f"socket / bare echo, {shape}", ratio(rates[hub], rates[echo]), "×", 0.4, "at least", told)
            )
    return figures


@contextmanager
def _echo_server(path: Path) -> Iterator[Path]:
    process = subprocess.Popen([sys.executable, PEERS, "serve", str(path)], env=environment(path))
    try:
        for _ in range(5_000):
            if path.exists():
                break
            time.sleep(0.002)
        yield path
    finally:
        process.terminate()
        process.wait(30)


def _client(path: Path, expected: bytes, connections: int, depth: int, length_s: float) -> float:
    """Requests a second, measured by a fresh client process."""
    command = [sys.executable, PEERS, "drive", str(path), expected.decode(), *map(str, (connections, depth, length_s))]
    done = subprocess.run(command, env=environment(path), check=True, capture_output=True, timeout=60 + length_s)
    return float(done.stdout)
