"""The long form of the storms runs, counts and judges."""

import json
import subprocess
import sys

from tests.live.daemon_process import ROOT

CHAOS = [sys.executable, "-m", "scripts.chaos_rounds", "--seed", "1"]


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CHAOS, *words], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


def test_a_short_storm_ends_with_figures_and_without_a_violation() -> None:
    """F01 F06 J07"""
    finished = _run("--rounds", "2", "--races", "1", "--mutations", "500", "--json")
    assert finished.returncode == 0, finished.stderr
    figures = json.loads(finished.stdout)
    assert figures["violations"] == []
    assert figures["kill_9"]["lost_writes"] == 0
    assert figures["kill_9"]["acknowledged_writes"] > 0
    assert figures["together"]["one_winner"] == 1
    assert figures["mutations"]["answered"] == 500


def test_the_figures_come_as_one_line_for_people() -> None:
    """J07"""
    finished = _run("--rounds", "0", "--races", "0", "--mutations", "300")
    assert finished.stdout == "300 bad lines, 0 crashes, 0 internal\n"
