"""The folder a hub lives in is private, or the hub does not start."""

import os
from pathlib import Path

import pytest

from tests.live.daemon_process import Daemon

ANOTHER_UID = 12_345


def test_a_var_that_others_can_reach_is_refused_with_the_command_that_mends_it(daemon: Daemon) -> None:
    """S06"""
    daemon.var.mkdir()
    (daemon.var / ".ksi-var").touch()
    daemon.var.chmod(0o777)
    code, message = daemon.refusal()
    assert code == 78
    assert f"chmod 700 '{daemon.var}'" in message
    assert daemon.var.stat().st_mode & 0o777 == 0o777, "mending it is the operator's decision"


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_folder_of_something_else_is_refused_without_advice_about_it(daemon: Daemon, mode: int) -> None:
    """S06: nothing is written into it, and no command that would change it is named."""
    daemon.var.mkdir()
    (daemon.var / "spool").mkdir()
    daemon.var.chmod(mode)
    code, message = daemon.refusal()
    assert code == 78
    assert "KSI_VAR_DIR" in message
    assert "chmod" not in message
    assert [path.name for path in daemon.var.iterdir()] == ["spool"]


def test_the_var_folder_of_a_daemon_that_wrote_no_marker_is_used_and_marked(daemon: Daemon) -> None:
    """S06: its folders are known by their names."""
    daemon.start()
    assert daemon.stop() == 0
    (daemon.var / ".ksi-var").unlink()
    daemon.start()
    assert (daemon.var / ".ksi-var").exists()


@pytest.mark.parametrize("name", ["run", "db", "log", "plugins"])
def test_a_folder_inside_var_that_others_can_reach_is_refused_too(daemon: Daemon, name: str) -> None:
    """S06"""
    daemon.var.mkdir(mode=0o700)
    (daemon.var / name).mkdir()
    (daemon.var / name).chmod(0o750)
    code, message = daemon.refusal()
    assert code == 78
    assert f"chmod 700 '{daemon.var / name}'" in message


def test_a_var_of_another_user_is_refused_with_the_command_that_mends_it(daemon: Daemon) -> None:
    """S06"""
    daemon.var.mkdir(mode=0o700)
    (daemon.var / ".ksi-var").touch()
    os.chown(daemon.var, ANOTHER_UID, -1)
    code, message = daemon.refusal()
    assert code == 78
    assert f"uid {ANOTHER_UID}" in message
    assert f"chown -R {os.geteuid()} '{daemon.var}'" in message


def test_a_var_that_is_a_symbolic_link_is_refused_and_its_target_left_alone(daemon: Daemon, folder: Path) -> None:
    """S06"""
    target = folder / "elsewhere"
    target.mkdir(mode=0o700)
    daemon.var.symlink_to(target)
    code, message = daemon.refusal()
    assert code == 78
    assert "symbolic link" in message
    assert "KSI_VAR_DIR" in message
    assert list(target.iterdir()) == []


def test_a_folder_inside_var_that_is_a_symbolic_link_is_refused(daemon: Daemon, folder: Path) -> None:
    """S06"""
    target = folder / "elsewhere"
    target.mkdir(mode=0o700)
    daemon.var.mkdir(mode=0o700)
    (daemon.var / "db").symlink_to(target)
    code, message = daemon.refusal()
    assert code == 78
    assert "symbolic link" in message
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("name", ["run/ksi.lock", "run/http_port"])
def test_a_link_in_place_of_its_lock_or_port_is_refused_and_never_written_through(
    daemon: Daemon, folder: Path, name: str
) -> None:
    """S06"""
    victim = _link(daemon, folder, name)
    code, message = daemon.refusal()
    assert code in (1, 78)
    assert str(daemon.var / name) in message
    assert "Traceback" not in message
    assert victim.read_text() == "mine"


def test_a_link_in_place_of_its_log_is_an_alarm_and_never_written_through(daemon: Daemon, folder: Path) -> None:
    """S06 F13"""
    victim = _link(daemon, folder, "log/ksi.jsonl")
    daemon.start()
    assert any("ksi.jsonl" in alarm for alarm in daemon.call("system:health")["alarms"])
    assert daemon.stop() == 0
    assert victim.read_text() == "mine"


def _link(daemon: Daemon, folder: Path, name: str) -> Path:
    victim = folder / "victim"
    victim.write_text("mine")
    daemon.var.mkdir(mode=0o700)
    (daemon.var / name).parent.mkdir(mode=0o700)
    (daemon.var / name).symlink_to(victim)
    return victim


def test_a_file_in_place_of_var_is_refused(daemon: Daemon) -> None:
    """S06"""
    daemon.var.write_text("no folder")
    code, message = daemon.refusal()
    assert code == 78
    assert str(daemon.var) in message


def test_the_var_of_a_fresh_checkout_is_made_private(daemon: Daemon) -> None:
    """S06"""
    daemon.var.mkdir()
    (daemon.var / ".gitignore").write_text("*\n")
    daemon.var.chmod(0o755)
    daemon.start()
    assert daemon.var.stat().st_mode & 0o777 == 0o700


def test_everything_in_var_is_private_even_under_a_careless_umask(daemon: Daemon) -> None:
    """S06"""
    daemon.umask = 0
    daemon.plugin("keeps", "", arguments=', migrations=["CREATE TABLE kept (thing TEXT)"]')
    daemon.start()
    daemon.call("state:set", {"key": "secret", "value": "x"})
    made = [daemon.var, *daemon.var.rglob("*")]
    assert {path.name for path in made} >= {"ksi.sock", "ksi.lock", "ksi.jsonl", "ksi.db", "ksi.db-wal", "keeps.db"}
    assert daemon.stop() == 0
    for path in [*made, *daemon.var.rglob("*")]:
        if path.exists():
            assert path.stat().st_mode & 0o077 == 0, f"{path} can be reached by others"
    for path in daemon.var.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_socket_while_it_is_served_is_for_its_owner_only(daemon: Daemon) -> None:
    """S06"""
    daemon.umask = 0
    daemon.start()
    assert daemon.socket_path.stat().st_mode & 0o777 == 0o600
