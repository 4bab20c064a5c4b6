"""Many agents that call a real daemon at once: each counts the answers that are its own."""

import argparse
import asyncio
import json
import secrets
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import uvloop

from scripts.benchmarks.hub.daemon_process import ask, daemon, scratch_var
from scripts.benchmarks.mcp.callers import Caller

CONNECTIONS = 2  # of each agent
ERAS = ("2026", "session", "neither")  # in turn, by agent
LIMIT_S = 1_800.0
TOOL = "ksi_system_echo"


class Agent:
    """One agent with its connections. Its request ids are those of all others; what it sends is not."""

    def __init__(self, port: int, name: str, token: str, era: str) -> None:
        self.name = name
        self.era = era
        self.own = 0
        self.wrong: list[str] = []
        self._connections = [Caller(port, token, TOOL) for _ in range(CONNECTIONS)]

    async def call(self, calls: int) -> None:
        """Open every connection, and make this many calls over all of them."""
        numbers = iter(range(calls))
        await asyncio.gather(*(self._call_over(connection, numbers) for connection in self._connections))

    async def _call_over(self, connection: Caller, numbers: Any) -> None:
        if self.era == "neither":
            await connection.connect()
        else:
            await connection.open(self.era)
        for number in numbers:
            text = f"{self.name} {number} {secrets.token_hex(number % 50)}"
            params = {**connection.params, "arguments": {"text": text}}
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            status, _, body = await connection.post(message)
            self.judge(status, body, number, text)
        connection.writer.close()

    def judge(self, status: int, body: bytes, number: int, text: str) -> None:
        """Count an answer, or keep what is wrong with it."""
        documents = [line[line.index(b"{") :] for line in body.splitlines() if b'"jsonrpc"' in line]
        answer = json.loads(documents[-1]) if documents else {}
        result = answer.get("result", {}).get("structuredContent", {})
        if (status, len(documents), answer.get("id"), result) == (200, 1, number, {"text": text}):
            self.own += 1
        else:
            self.wrong.append(f"{self.name} ({self.era}) call {number}: status {status}, {body[:200]!r}")


async def drive(agents: list[Agent], calls: int) -> float:
    """Everybody at once; the seconds that it took."""
    began = time.perf_counter()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(agent.call(calls) for agent in agents))
    return time.perf_counter() - began


def recorded(var_dir: Path, agents: list[Agent]) -> Counter[str]:
    """The calls that the audit has under each agent's name, all of which succeeded."""
    found: Counter[str] = Counter()
    for agent in agents:
        stats = ask(var_dir, "audit:stats", {"agent_id": agent.name, "event": "system:echo"})
        found[agent.name] = stats["byStatus"].get("ok", 0)
    return found


def run(agents: int, calls: int) -> dict[str, Any]:
    """The figures, and the first violations in words."""
    with scratch_var() as var_dir:
        (var_dir.parent / "ksi.toml").write_text('rate_limit = "off"\n', encoding="utf-8")
        with daemon(var_dir):
            port = int((var_dir / "run" / "http_port").read_text(encoding="ascii"))
            crowd = [_agent(var_dir, port, number) for number in range(agents)]
            seconds = uvloop.run(drive(crowd, calls))
            counted = recorded(var_dir, crowd)
    wrong = [text for agent in crowd for text in agent.wrong]
    wrong += [
        f"{agent.name}: {counted[agent.name]} of {calls} calls are in the audit"
        for agent in crowd
        if counted[agent.name] != calls
    ]
    return {
        "agents": agents, "calls": agents * calls, "own": sum(agent.own for agent in crowd),
        "recorded": counted.total(), "seconds": round(seconds, 1), "violations": wrong[:20],
    }  # fmt: skip


def _agent(var_dir: Path, port: int, number: int) -> Agent:
    name = f"agent-{number}"
    token = ask(var_dir, "agent:register", {"agent_id": name, "profile": "standard"})["token"]
    return Agent(port, name, token, ERAS[number % len(ERAS)])


def main() -> int:
    """Returns the exit code: 1 when an answer was not its caller's own."""
    parser = argparse.ArgumentParser(
        prog="scripts/cross-talk", description="Look for answers that reach the wrong agent."
    )
    parser.add_argument("--agents", type=int, default=100, help="how many agents (default 100)")
    parser.add_argument("--calls", type=int, default=500, help="how many calls each makes (default 500)")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON document instead")
    arguments = parser.parse_args()
    figures = run(arguments.agents, arguments.calls)
    if arguments.json:
        print(json.dumps(figures, indent=2))
    else:
        print(
            "{own:,} of {calls:,} answers were their caller's own, {recorded:,} are on record; {seconds} s".format(
                **figures
            )
        )
        print("".join(f"violation: {text}\n" for text in figures["violations"]), end="", file=sys.stderr)
    return 1 if figures["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
