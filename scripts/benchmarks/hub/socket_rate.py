"""Requests a second through the operator socket beside a bare asyncio newline echo server, with one client for both.

Servers and client are processes of their own and meet on unix sockets. The peer with the limit is the echo server as asyncio comes;
the same server on uvloop, the loop that the daemon uses, and many requests in flight at once are shown beside it.
The CPU time a server spends on one request is shown too: it stays the same on a busy machine, where rates do not.
The audit waits for the disk and has a figure of its own: `bench rights`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from scripts.benchmarks.figure import Figure, ratio
from scripts.benchmarks.hub.daemon_process import daemon, environment, scratch_var
from scripts.benchmarks.hub.socket_peers import LINE

PEERS = str(Path(__file__).with_name("socket_peers.py"))
ANSWER = b'{"id":1,"ok":true,"data":{"text":"hello"}}\n'
TICKS = os.sysconf("SC_CLK_TCK")
SHAPES = (("ping-pong, 16 connections", 16, 1), ("16 in flight, 8 connections", 8, 16))


@dataclass
class Server:
    """One of the two, and what was measured of it in one shape of traffic."""

    path: Path
    pid: int
    answer: bytes
    rates: list[float] = field(default_factory=list)
    answered: int = 0
    cpu_s: float = 0.0

    def drive(self, connections: int, depth: int, length_s: float) -> None:
        """Have a fresh client process send requests for so long."""
        sizes = map(str, (connections, depth, length_s))
        command = [sys.executable, PEERS, "drive", str(self.path), self.answer.decode(), *sizes]
        before_s = self._cpu_s()
        done = subprocess.run(
            command, env=environment(self.path), check=True, capture_output=True, timeout=60 + length_s
        )
        self.cpu_s += self._cpu_s() - before_s
        rate, answered = done.stdout.split()
        self.rates.append(float(rate))
        self.answered += int(answered)

    @property
    def cost_s(self) -> float:
        """CPU seconds of one request; a clock tick at least, so that a quick run divides by something."""
        return max(self.cpu_s, 1 / TICKS) / self.answered

    def detail(self, name: str) -> str:
        """Its rate and cost in words."""
        return f"{name} {median(self.rates):,.0f}/s, {self.cost_s * 1e6:.1f} µs CPU"

    def _cpu_s(self) -> float:
        user, system = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / TICKS


def measure(quick: bool) -> list[Figure]:
    """One ratio for each shape of traffic; the two servers take turns."""
    rounds, length_s = (1, 0.1) if quick else (9, 1.0)
    figures = []
    with (
        scratch_var() as var_dir,
        daemon(var_dir, audited=False) as (pid, _),
        _echo_server(var_dir.parent / "asyncio.sock", "asyncio") as bare_place,
        _echo_server(var_dir.parent / "uvloop.sock", "uvloop") as quick_place,
    ):
        for shape, connections, depth in SHAPES:
            hub = Server(var_dir / "run" / "ksi.sock", pid, ANSWER)
            bare, quick_one = Server(*bare_place, LINE), Server(*quick_place, LINE)
            for _ in range(rounds):
                for server in (hub, bare, quick_one):
                    server.drive(connections, depth, length_s)
            figures += [
                _figure(f"socket / bare asyncio echo, {shape}", hub, bare, limit=0.4 if depth == 1 else None),
                _figure(f"socket / the same echo on uvloop, {shape}", hub, quick_one, limit=None),
            ]
    return figures


def _figure(name: str, hub: Server, peer: Server, limit: float | None) -> Figure:
    detail = f"{hub.detail('hub')}; {peer.detail('echo')}; by CPU {peer.cost_s / hub.cost_s:.2f} ×"
    return Figure(name, ratio(hub.rates, peer.rates), "×", limit, "at least", detail)


@contextmanager
def _echo_server(path: Path, loop: str) -> Iterator[tuple[Path, int]]:
    process = subprocess.Popen([sys.executable, PEERS, "serve", str(path), loop], env=environment(path))
    try:
        for _ in range(5_000):
            if path.exists():
                break
            time.sleep(0.002)
        yield path, process.pid
    finally:
        process.terminate()
        process.wait(30)
