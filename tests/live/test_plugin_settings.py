"""Settings of a plugin in a real daemon: from ksi.toml and variables, with one mistake at a time."""

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from tests.live.daemon_process import Daemon, until

STATION = Path(__file__).parents[1] / "whole_plugin" / "station"


def settings(daemon: Daemon) -> dict[str, Any]:
    rows = daemon.call("config:show")["settings"]
    return {row["name"]: (row["value"], row["source"]) for row in rows if row["name"].startswith("plugins.")}


def readyz(daemon: Daemon) -> tuple[int, str]:
    url = daemon.call("system:status")["url"].removesuffix("/mcp")
    with urllib.request.urlopen(f"{url}/readyz", timeout=10) as answer:  # noqa: S310 - the daemon under test
        return answer.status, answer.read().decode()


def test_bad_settings_of_a_plugin_set_it_aside_and_a_reload_with_good_ones_starts_it(daemon: Daemon) -> None:
    """Promise 5."""
    shutil.copytree(STATION, daemon.plugins / "station", ignore=shutil.ignore_patterns("__pycache__"))
    daemon.configure('[plugins.station]\nplcae = "Oslo"\napi_key = "hunter2"\n[plugins.statoin]\nplace = "Rome"\n')
    daemon.start(KSI_STATION_HIGHEST="30")
    broken = daemon.call("system:health")["plugins"]["station"]
    assert broken["state"] == "broken"
    assert "did you mean 'place'?" in broken["reason"]
    assert "did you mean 'station'?" in daemon.call("config:show")["warnings"][0]
    assert readyz(daemon) == (200, "ready\ndegraded\n")

    daemon.configure('[plugins.station]\nplace = "Oslo"\napi_key = "hunter2"\n')
    daemon.signal(signal.SIGHUP)
    until(lambda: daemon.call("system:health")["plugins"]["station"]["state"] == "running", what="it runs")
    shown = settings(daemon)
    assert shown["plugins.station.place"] == ("Oslo", "ksi.toml")
    assert shown["plugins.station.highest"] == (30, "KSI_STATION_HIGHEST")
    assert shown["plugins.station.every_s"] == (0.01, "default")
    assert daemon.call("config:show")["warnings"] == []
    assert readyz(daemon) == (200, "ready\n")
    assert "hunter2" not in str(daemon.call("config:show"))
    assert "hunter2" not in (daemon.var / "log" / "ksi.jsonl").read_text()


def test_a_check_names_the_tables_without_importing_a_plugin(daemon: Daemon) -> None:
    daemon.plugin_file("station", "raise SystemExit('imported')")
    daemon.configure("[plugins.station]\nplace = 'Oslo'\nday = 2026-01-01\n[plugins.statoin]\nplace = 'Rome'\n")
    environment = daemon.environment() | {"KSI_STATION_HIGHEST": "30", "KSI_PROT": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "ksi_daemon", "--check-config"],
        cwd=daemon.folder, env=environment, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert (done.returncode, found["ok"]) == (0, True)
    table, variable = found["warnings"]
    assert "[plugins.statoin]" in table
    assert "did you mean 'station'?" in table
    assert "KSI_PROT" in variable
    assert {"plugins.station.place", "plugins.station.day"} <= {row["name"] for row in found["settings"]}
