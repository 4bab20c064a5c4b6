"""What an operator waits for: the daemon's start, its idle memory, and the `ksi` command beside a bare Python.

These are seconds of a quiet machine: the minimum is judged, the median shown.
"""

import compileall
import subprocess
import sys
import time
from pathlib import Path

from scripts.benchmarks.figure import Figure, spread
from scripts.benchmarks.hub.daemon_process import daemon, environment, scratch_var

ROOT = Path(__file__).parents[3]
INSTALLED = Path(sys.executable).with_name("ksi")
KSI = [str(INSTALLED)] if INSTALLED.exists() else [sys.executable, "-m", "ksi_client"]


def measure(quick: bool) -> list[Figure]:
    """Start, memory, and two commands."""
    for package in ("ksi_daemon", "ksi_client"):  # PYTHONDONTWRITEBYTECODE may have kept Python from doing it
        compileall.compile_dir(ROOT / package, quiet=2)
    return [*_start(1 if quick else 5), *_idle(quick), *_commands(1 if quick else 10)]


def _start(starts: int) -> list[Figure]:
    seconds = []
    for _ in range(starts):
        with scratch_var() as var_dir, daemon(var_dir) as (_, ready_s):
            seconds.append(ready_s)
    return [Figure("daemon start to ready, fresh var/", min(seconds), "s", 1.0, detail=spread(seconds, 3))]


def _idle(quick: bool) -> list[Figure]:
    with scratch_var() as var_dir, daemon(var_dir) as (pid, _):
        time.sleep(0.1 if quick else 2)
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    kilobytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return [Figure("daemon idle memory (RSS)", kilobytes * 1024 / 1e6, "MB", 120.0, detail="2 s after ready")]


def _commands(times: int) -> list[Figure]:
    took: dict[str, list[float]] = {"pass": [], "send": [], "help": []}
    commands = {
        "pass": [sys.executable, "-c", "pass"],
        "send": [*KSI, "send", "system:health"],
        "help": [*KSI, "--help"],
    }
    with scratch_var() as var_dir, daemon(var_dir):
        for _ in range(times):
            for name, command in commands.items():
                began = time.perf_counter()
                subprocess.run(command, env=environment(var_dir), check=True, stdout=subprocess.DEVNULL)
                took[name].append((time.perf_counter() - began) * 1000)
    beyond = min(took["send"]) - min(took["pass"])
    detail = f"send {spread(took['send'])}; python -c pass {spread(took['pass'])}"
    return [
        Figure("ksi send system:health − python -c pass", beyond, "ms", 120.0, detail=detail),
        Figure("ksi --help", min(took["help"]), "ms", 200.0, detail=spread(took["help"])),
    ]
