"""A daemon that the machine keeps from running says what, why and what next, and its process ends."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.daemon_process import Daemon
from tests.machine import mounted, needs_mount


def started(daemon: Daemon, **environment: str) -> subprocess.CompletedProcess[str]:
    """A start in the foreground that must end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "ksi_daemon"],
        cwd=daemon.folder, env=daemon.environment() | environment, capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "name", ["db/ksi.db", "log/audit.anchor.jsonl", "run/ksi.sock", "run/ksi.lock", "run/http_port"]
)
def test_a_file_that_cannot_be_opened_is_named_with_the_way_out(daemon: Daemon, name: str) -> None:
    """F13: a folder is in its place."""
    (daemon.var / name).mkdir(parents=True, mode=0o700)
    for folder in (daemon.var, (daemon.var / name).parent):
        folder.chmod(0o700)
    done = started(daemon)
    assert done.returncode in (71, 78)
    assert str(daemon.var / name) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("limit", [8, 10])
def test_too_few_descriptors_are_named_with_the_limit_to_raise(daemon: Daemon, limit: int) -> None:
    """F13"""
    done = subprocess.run(
        [sys.executable, "-m", "ksi_daemon"],
        cwd=daemon.folder, env=daemon.environment(), capture_output=True, text=True, timeout=20, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 71
    assert "ulimit -n" in done.stderr
    assert "Traceback" not in done.stderr


@needs_mount
@pytest.mark.parametrize("size_kb", [8, 20, 64])
def test_a_full_disk_is_named_and_the_process_ends(daemon: Daemon, size_kb: int) -> None:
    """F13: it hung with a thread of a database that could not be opened."""
    disk: Path = daemon.folder / "disk"
    disk.mkdir(mode=0o700)
    with mounted(disk, options=f"size={size_kb}k,mode=700"):
        done = started(daemon, KSI_VAR_DIR=str(disk / "var"))
    assert done.returncode != 0
    assert "full" in done.stderr or "No space left" in done.stderr
    assert "Traceback" not in done.stderr
