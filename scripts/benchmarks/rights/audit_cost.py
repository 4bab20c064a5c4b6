"""Requests a second through the socket, with 64 callers who read and write in turn: a daemon as it is, beside one without its audit.

Both are processes of their own and take turns with one client process; every write is durable in both, the record of it only in one.
"""

import subprocess
import sys
from pathlib import Path
from statistics import median

from scripts.benchmarks.figure import Figure, ratio
from scripts.benchmarks.hub.daemon_process import daemon, environment, scratch_var

CALLERS = 64
CLIENT = str(Path(__file__).with_name("callers.py"))


def measure(quick: bool) -> list[Figure]:
    """The ratio of the two rates, round by round."""
    rounds, length_s = (1, 0.2) if quick else (9, 2.0)
    rates: dict[bool, list[float]] = {True: [], False: []}
    with (
        scratch_var() as with_audit,
        scratch_var() as without,
        daemon(with_audit),
        daemon(without, audited=False),
    ):
        for _ in range(rounds):
            for audited, var_dir in ((True, with_audit), (False, without)):
                rates[audited].append(_rate(var_dir, length_s))
    detail = (
        f"audited {median(rates[True]):,.0f}/s, unaudited {median(rates[False]):,.0f}/s, {CALLERS} callers, "
        f"half system:echo, half state:set, {rounds} rounds"
    )
    return [Figure("socket with audit / without", ratio(rates[True], rates[False]), "×", 0.4, "at least", detail)]


def _rate(var_dir: Path, length_s: float) -> float:
    done = subprocess.run(
        [sys.executable, CLIENT, str(var_dir / "run" / "ksi.sock"), str(CALLERS), str(length_s)],
        env=environment(var_dir),
        check=True,
        capture_output=True,
        timeout=60 + length_s,
    )
    return float(done.stdout)
