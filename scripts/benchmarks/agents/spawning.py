"""From `agent:spawn` to the first thing that its program does, less what the same program takes by itself; and the making of a config."""

import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

from ksi_daemon.agents.client_config import Connection, render
from ksi_daemon.agents.run_folder import RunFolder
from scripts.benchmarks.figure import Figure, spread
from scripts.benchmarks.hub.daemon_process import ask, daemon, scratch_var

STAMP = ["/bin/date", "+%s%N"]


def measure(quick: bool) -> list[Figure]:
    """Our share of the time, and the time of one config."""
    rounds = 3 if quick else 50
    with scratch_var() as var_dir, daemon(var_dir):
        _spawn(var_dir, "first")  # starts the process that forks runners
        ours = [_spawn(var_dir, f"bot{number}") for number in range(rounds)]
    bare = []
    for _ in range(rounds):
        began = time.time_ns()
        bare.append((int(subprocess.run(STAMP, capture_output=True, check=True).stdout) - began) / 1e6)
    shares = [one - median(bare) for one in ours]
    return [
        Figure(
            "spawn to the program's first action",
            median(shares),
            "ms",
            100.0,
            detail=f"{spread(shares, 1)} ms, less {median(bare):.1f} ms that the program takes by itself",
        ),
        _config(20 if quick else 500),
    ]


def _spawn(var_dir: Path, name: str) -> float:
    """Milliseconds from the request to the program's own time."""
    began = time.time_ns()
    spawned = ask(
        var_dir,
        "agent:spawn",
        {"agent_id": name, "provider": "command", "options": {"command": STAMP}, "prompt": "now"},
    )
    done = ask(var_dir, "completion:wait", {"completion_id": spawned["completion_id"]})
    return (int(done["text"]) - began) / 1e6


def _config(rounds: int) -> Figure:
    connection = Connection(
        entry_name="ksi", url="http://127.0.0.1:8080/mcp", agent_id="bot", token="ksi_" + "x" * 43, token_outside=False
    )
    times = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            run = RunFolder(Path(folder) / "agents", "bot", f"run{number}")
            began = time.perf_counter()
            run.create({"mcp.json": render("generic", connection).text})
            times.append((time.perf_counter() - began) * 1e3)
    return Figure("one config, rendered and written", median(times), "ms", 2.0, detail=f"{spread(times, 2)} ms")
