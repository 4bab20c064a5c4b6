"""A queue of completions whose program does nothing, beside a pool of bare subprocesses of the same width."""

import asyncio
import json
import socket
import time
from pathlib import Path

from scripts.benchmarks.figure import Figure, ratio
from scripts.benchmarks.hub.daemon_process import daemon, scratch_var

WIDTH = 16
NOTHING = ["/bin/true"]


def measure(quick: bool) -> list[Figure]:
    """The ratio of the two rates, round by round."""
    rounds, count = (1, 20) if quick else (5, 400)
    ours, bare = [], []
    with scratch_var() as var_dir, daemon(var_dir):
        client = _Client(var_dir)
        for number in range(rounds):
            client.call("agent:spawn", agent_id=f"bot{number}", provider="command", options={"command": NOTHING})
            ours.append(count / _drain(client, f"bot{number}", count))
            bare.append(count / asyncio.run(_pool(count)))
    detail = f"{max(ours):,.0f}/s beside {max(bare):,.0f}/s at best, {WIDTH} at once, {count} a round"
    return [Figure("completions / bare subprocesses", ratio(ours, bare), "×", 0.5, "at least", detail)]


class _Client:
    """One connection of the operator."""

    def __init__(self, var_dir: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(var_dir / "run" / "ksi.sock"))
        self._lines = self._socket.makefile("rb")

    def post(self, event: str, **data: object) -> None:
        """Send without waiting."""
        self._socket.sendall(json.dumps({"event": event, "data": data}).encode() + b"\n")

    def answer(self) -> dict[str, str]:
        """The next answer's data."""
        data: dict[str, str] = json.loads(self._lines.readline())["data"]
        return data

    def call(self, event: str, **data: object) -> dict[str, str]:
        """Send and wait."""
        self.post(event, **data)
        return self.answer()


def _drain(client: _Client, agent: str, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        client.post("completion:async", agent_id=agent, prompt="x")
    asked = [client.answer()["completion_id"] for _ in range(count)]
    for completion_id in asked:
        assert client.call("completion:wait", completion_id=completion_id)["state"] == "done"
    return time.perf_counter() - began


async def _pool(count: int) -> float:
    began = time.perf_counter()
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            process = await asyncio.create_subprocess_exec(
                *NOTHING, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            await process.communicate(b"x")

    await asyncio.gather(*(worker() for _ in range(WIDTH)))
    return time.perf_counter() - began
