"""Calls a second and their latency, in both eras of the protocol, with one client process for all servers.

The servers are processes of their own and take turns. The daemon is as it ships, with its audit on the disk; the bare application only
writes a constant answer, the bare SDK server parses, validates and calls a function that returns its argument.
Nothing here has a limit yet: the daemon answers through the SDK.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from scripts.benchmarks.figure import Figure, ratio
from scripts.benchmarks.hub.daemon_process import ask, daemon, environment, scratch_var

PEERS = str(Path(__file__).with_name("peers.py"))
CALLERS = str(Path(__file__).with_name("callers.py"))
CONNECTIONS = (1, 16)
ERAS = ("2026", "session")
HIDDEN, MISSING = "ksi_agent_list", "ksi_agent_lisd"


@dataclass
class Server:
    """One server, and what was measured of it in one shape of traffic."""

    name: str
    port: int
    token: str = "none"  # noqa: S105 - the peers ask for none
    rates: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)

    def drive(self, era: str, connections: int, length_s: float, tool: str = "ksi_system_echo") -> None:
        """Have a fresh client process call for so long."""
        words = [sys.executable, CALLERS, str(self.port), self.token, era, str(connections), str(length_s), tool]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, timeout=60 + length_s)
        rate, p50_ms, p99_ms = map(float, done.stdout.split())
        self.rates.append(rate)
        self.p50_ms.append(p50_ms)
        self.p99_ms.append(p99_ms)

    def detail(self) -> str:
        """Its rate and latencies in words."""
        times = f"p50 {median(self.p50_ms):.2f}, p99 {median(self.p99_ms):.2f} ms"
        return f"{self.name} {median(self.rates):,.0f}/s ({times})"


def measure(quick: bool) -> list[Figure]:
    """For each era and number of connections the daemon's rate, beside the peers'."""
    rounds, length_s = (1, 0.2) if quick else (5, 2.0)
    figures = []
    with ExitStack() as stack:
        var_dir = stack.enter_context(scratch_var())
        (var_dir.parent / "ksi.toml").write_text('rate_limit = "off"\n', encoding="utf-8")
        stack.enter_context(daemon(var_dir))
        hub = ("daemon", _port(var_dir), _token(var_dir))
        peers = [(name, stack.enter_context(_peer(name, var_dir))) for name in ("bare ASGI", "bare SDK")]
        for known in (Server(*hub), *(Server(*peer) for peer in peers)):
            known.drive("2026", 1, 0.1)  # the first call waits until the SDK is imported
        for era in ERAS:
            for connections in CONNECTIONS:
                servers = [Server(*hub), *(Server(*peer) for peer in peers)]
                for _ in range(rounds):
                    for server in servers:
                        server.drive(era, connections, length_s)
                figures += _figures(f"tools/call, {era}, {connections} connections", servers)
        figures.append(_refusals(lambda: Server(*hub), rounds, length_s))
    return figures


def _figures(shape: str, servers: list[Server]) -> list[Figure]:
    ours, bare, sdk = servers
    detail = "; ".join(server.detail() for server in servers)
    return [
        Figure(f"{shape}: daemon / bare SDK", ratio(ours.rates, sdk.rates), "×", detail=detail),
        Figure(f"{shape}: daemon / bare ASGI", ratio(ours.rates, bare.rates), "×"),
    ]


def _refusals(server: Callable[[], Server], rounds: int, length_s: float) -> Figure:
    """Whether the time of a refusal shows that a tool exists."""
    hidden, missing = server(), server()
    for _ in range(rounds):
        hidden.drive("2026", 1, length_s, HIDDEN)
        missing.drive("2026", 1, length_s, MISSING)
    detail = f"hidden: {hidden.detail()}; missing: {missing.detail()}"
    return Figure("time of a refusal, hidden / missing tool", ratio(hidden.p50_ms, missing.p50_ms), "×", detail=detail)


def _port(var_dir: Path) -> int:
    return int((var_dir / "run" / "http_port").read_text(encoding="ascii"))


def _token(var_dir: Path) -> str:
    return str(ask(var_dir, "agent:register", {"agent_id": "bench", "profile": "standard"})["token"])


@contextmanager
def _peer(name: str, var_dir: Path) -> Iterator[int]:
    command = [sys.executable, PEERS, name]
    with subprocess.Popen(command, env=environment(var_dir), stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            assert process.stdout is not None
            yield int(json.loads(process.stdout.readline()))
        finally:
            process.terminate()
