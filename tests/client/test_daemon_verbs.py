"""start, stop, restart, status, config and doctor: the verbs that look after a daemon process."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from ksi_client.command.lock import holder
from tests.client.conftest import WAIT_S, Ksi, mark_var


@pytest.fixture
def ksi(ksi_process: Ksi) -> Ksi:
    """Starting and stopping is the work of processes: all verbs of this file run as processes."""
    return ksi_process


def test_a_life_start_status_second_start_restart_stop(installed: Path, ksi: Ksi) -> None:
    started = ksi("start", "--wait", "--json")
    assert started.returncode == 0, started.stderr
    pid = json.loads(started.stdout)["pid"]
    assert holder(installed) == pid
    assert json.loads(ksi("status", "--json").stdout)["state"] == "running"

    second = ksi("start")
    assert second.returncode == 75
    assert f"pid {pid}" in second.stderr

    restarted = ksi("restart", "--json")
    assert restarted.returncode == 0, restarted.stderr
    assert json.loads(restarted.stdout)["pid"] != pid

    stopped = ksi("stop", "--json")
    assert json.loads(stopped.stdout)["was_running"] is True
    assert holder(installed) is None


def test_what_start_makes_is_closed_to_others(installed: Path, ksi: Ksi) -> None:
    assert ksi("start", "--wait").returncode == 0
    modes = {path.name: path.stat().st_mode & 0o777 for path in (installed, installed / "log")}
    assert modes == {"var": 0o700, "log": 0o700}
    output = installed / "log" / "daemon.out"
    assert output.stat().st_mode & 0o777 == 0o600
    assert output.read_text() == "serving\n"


def test_start_without_waiting_returns_with_a_living_daemon(installed: Path, ksi: Ksi) -> None:
    started = ksi("start", "--no-wait", "--json")
    assert started.returncode == 0
    state = json.loads(started.stdout)
    assert state["state"] in ("starting", "running")
    assert holder(installed) in (state["pid"], None)


def test_a_daemon_that_refuses_its_settings_passes_its_words_and_code_on(installed: Path, ksi: Ksi) -> None:
    Path("ksi.toml").write_text("bad")
    for words in (("start",), ("start", "--wait"), ("start", "--no-wait")):
        done = ksi(*words)
        assert done.returncode == 78
        assert "port: not a number \\x1b[31m" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_open_var_folder_is_left_to_the_daemon_to_refuse(installed: Path, ksi: Ksi) -> None:
    installed.mkdir(mode=0o755)
    (installed / ".ksi-var").touch()
    done = ksi("start", "--wait")
    assert done.returncode == 78
    assert "chmod 700" in done.stderr
    assert sorted(path.name for path in installed.iterdir()) == [".ksi-var"]


def test_the_var_folder_of_a_fresh_checkout_is_closed_and_used(installed: Path, ksi: Ksi) -> None:
    installed.mkdir(mode=0o755)
    (installed / ".gitignore").touch()
    assert ksi("start", "--wait").returncode == 0
    assert installed.stat().st_mode & 0o777 == 0o700


def test_restart_keeps_the_settings_file_of_the_running_daemon(installed: Path, ksi: Ksi, tmp_path: Path) -> None:
    ksi("start", "--wait", KSI_CONFIG="other.toml")
    restarted = ksi("restart", "--json")
    assert json.loads(restarted.stdout)["config_file"] == str(tmp_path / "other.toml")


def test_restart_with_bad_settings_leaves_the_running_daemon_alone(installed: Path, ksi: Ksi) -> None:
    ksi("start", "--wait")
    pid = holder(installed)
    Path("ksi.toml").write_text("bad")
    done = ksi("restart")
    assert done.returncode == 78
    assert "port: not a number" in done.stderr
    assert holder(installed) == pid


def test_restart_of_a_stopped_daemon_starts_it(installed: Path, ksi: Ksi) -> None:
    done = ksi("restart")
    assert done.returncode == 0
    assert "no daemon was running" in done.stderr
    assert holder(installed) is not None


def test_stop_without_a_daemon_succeeds_and_signals_no_process(installed: Path, ksi: Ksi) -> None:
    (installed / "run").mkdir(parents=True)
    (installed / "run" / "ksi.lock").write_text(f"{os.getpid()}\n")  # a stale pid, which now is another process
    done = ksi("stop")
    assert done.returncode == 0
    assert "no daemon is running" in done.stderr


def test_a_daemon_that_does_not_stop_in_time_is_exit_6_with_the_last_resort(installed: Path, ksi: Ksi) -> None:
    ksi("start", "--wait", STUBBORN="1")
    done = ksi("stop", "--timeout", "0.2")
    assert done.returncode == 6
    assert f"kill -9 {holder(installed)}" in done.stderr


def test_status_of_a_stopped_daemon_is_stopped_and_exit_5(var: Path, ksi: Ksi) -> None:
    done = ksi("status", "--json")
    assert done.returncode == 5
    assert json.loads(done.stdout) == {
        "state": "stopped",
        "pid": None,
        "var_dir": str(var),
        "var_dir_from": "KSI_VAR_DIR or --var-dir",
        "socket": str(var / "run" / "ksi.sock"),
        "reason": f"no daemon answers at {var}/run/ksi.sock: the socket does not exist, "
        "so no daemon runs on this var folder",
    }
    assert not var.exists()


def test_foreground_becomes_the_daemon(installed: Path, ksi: Ksi) -> None:
    installed.mkdir(mode=0o700)
    with subprocess.Popen(
        [sys.executable, "-m", "ksi_client", "start", "--foreground"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"serving\n"
        assert holder(installed) == run.pid
        run.terminate()
        assert run.wait(WAIT_S) == 0


def test_looking_at_the_lock_never_takes_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "ksi.lock").touch()
    assert holder(tmp_path) is None
    assert holder(tmp_path / "absent") is None


def test_config_check_lists_problems_and_exits_78(installed: Path, ksi: Ksi) -> None:
    assert ksi("config", "check").returncode == 0
    Path("ksi.toml").write_text("bad")
    done = ksi("config", "check")
    assert done.returncode == 78
    assert "problem  port: not a number" in done.stdout
    assert json.loads(ksi("config", "check", "--json").stdout)["ok"] is False
    assert ksi("config", "show").returncode == 78


def findings(ksi: Ksi, **environment: str) -> tuple[int, dict[str, set[str]]]:
    """The exit code and, for each check, the states it found; the var folder is marked as a daemon would have done."""
    mark_var()
    done = ksi("doctor", "--json", **environment)
    found: dict[str, set[str]] = {}
    for check in json.loads(done.stdout)["checks"]:
        found.setdefault(check["check"], set()).add(check["status"])
        assert check["status"] == "ok" or check["fix"], check
    return done.returncode, found


def test_the_doctor_finds_a_stopped_clean_installation_usable(installed: Path, ksi: Ksi) -> None:
    code, found = findings(ksi)
    assert code == 0
    assert len(found) >= 15
    assert set.union(*found.values()) == {"ok", "warn"}
    assert not installed.exists()


def test_the_doctor_sees_a_running_daemon_agree_with_its_lock(installed: Path, ksi: Ksi) -> None:
    ksi("start", "--wait")
    code, found = findings(ksi)
    assert found["daemon"] == {"ok"}
    assert found["providers"] == {"ok"}
    assert found["plugins"] == {"fail"}  # the fake daemon has a broken one
    assert found["http port"] == {"fail"}
    assert code == 1


@pytest.mark.usefixtures("installed")
def test_the_doctor_finds_each_thing_that_is_wrong(var: Path, ksi: Ksi) -> None:
    for name in ("run", "db", "log"):
        (var / name).mkdir(mode=0o700, parents=True)
    var.chmod(0o755)
    (var / "db" / "empty.db").touch(mode=0o600)
    (var / "db" / "garbage.db").write_bytes(b"x" * 5000)
    (var / "log" / "daemon.out").write_text("Traceback (most recent call last):\nBoom: \x1b[31m\n")
    (var / "run" / "ksi.sock").touch(mode=0o600)
    os.utime(var / "db" / "garbage.db", (4e9, 4e9))
    Path("ksi.toml").write_text("bad")
    code, found = findings(ksi)
    assert code == 1
    expected = {"var folder", "private files", "databases", "settings"}
    assert {name for name, states in found.items() if "fail" in states} == expected
    assert {name for name, states in found.items() if "warn" in states} == {"daemon", "last output", "clock"}
    shown = ksi("doctor").stdout
    assert "chmod 700" in shown
    assert "\x1b" not in shown


@pytest.mark.usefixtures("installed")
def test_the_doctor_leaves_nothing_behind_in_a_database_folder(var: Path, ksi: Ksi) -> None:
    (var / "db").mkdir(mode=0o700, parents=True)
    var.chmod(0o700)
    connection = sqlite3.connect(var / "db" / "ksi.db")
    connection.executescript("PRAGMA journal_mode=WAL; CREATE TABLE a (b); INSERT INTO a VALUES (1);")
    connection.close()
    (var / "db" / "ksi.db").chmod(0o600)
    code, found = findings(ksi)
    assert (code, found["databases"]) == (0, {"ok"})
    assert [path.name for path in (var / "db").iterdir()] == ["ksi.db"]


@pytest.mark.usefixtures("installed")
def test_the_doctor_names_another_process_on_the_port(ksi: Ksi, free_port: int) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port))
        listener.listen()
        code, found = findings(ksi, KSI_PORT=str(free_port))
    assert (code, found["http port"]) == (1, {"fail"})


def test_without_an_installed_daemon_start_and_check_say_so(var: Path, ksi: Ksi, tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "ksi_daemon"
    broken.mkdir(parents=True)
    (broken / "__init__.py").touch()
    path = f"{broken.parent}{os.pathsep}{os.environ['PYTHONPATH']}"
    done = ksi("start", PYTHONPATH=path)
    assert done.returncode == 1
    assert "cannot be directly executed" in done.stderr
    assert ksi("config", "check", PYTHONPATH=path).returncode == 78
