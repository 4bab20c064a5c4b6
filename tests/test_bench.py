"""The benches run and say what they measured. How fast anything is, is judged on a quiet machine and never here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.benchmarks.figure import Figure, ratio, table

ROOT = Path(__file__).parents[1]
UNITS = {"×", "s", "ms", "µs", "MB", "rows/s", "chunks/s", "files/s"}


def test_a_figure_is_judged_by_its_limit_and_told_without_one() -> None:
    assert Figure("call", 4.9, "×", 5.0).verdict == "ok"
    assert Figure("call", 5.1, "×", 5.0).verdict == "MISSED"
    assert Figure("rate", 0.39, "×", 0.4, "at least").verdict == "MISSED"
    assert Figure("rate", 0.4, "×", 0.4, "at least").verdict == "ok"
    assert Figure("rate", 0.4, "×").verdict == ""


def test_a_ratio_is_the_median_of_the_rounds_so_one_disturbed_round_does_not_count() -> None:
    assert ratio([2.0, 90.0, 4.0], [1.0, 1.0, 2.0]) == 2.0


def test_the_table_shows_measured_limit_and_verdict() -> None:
    shown = table([Figure("socket", 0.5, "×", 0.4, "at least", "hub 1/s")]).splitlines()
    assert shown[1].split() == ["socket", "0.50", "×", "at", "least", "0.40", "×", "ok", "hub", "1/s"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("suite", "count"), [("agents", 4), ("hub", 12), ("mcp", 9), ("retrieval", 13), ("rights", 5)])
def test_a_bench_runs_and_writes_every_figure(tmp_path: Path, suite: str, count: int) -> None:
    """U06: the rights bench measures it."""
    written = tmp_path / "figures.json"
    ran = subprocess.run(
        [sys.executable, "-m", "scripts.benchmarks", suite, "--quick", "--json", str(written)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    document = json.loads(written.read_text(encoding="utf-8"))
    assert document["suite"] == suite
    assert document["quick"] is True
    assert document["machine"]["cores"] > 0
    figures = {figure["name"]: figure for figure in document["figures"]}
    assert len(figures) == len(document["figures"]) == count
    for name, figure in figures.items():
        assert figure["unit"] in UNITS
        assert 0 < figure["value"] < 10_000_000
        assert figure["verdict"] in ({"ok", "MISSED"} if figure["limit"] else {None})
        assert name in ran.stdout
