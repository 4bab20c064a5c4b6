"""The audit's key in a folder of its own, outside var/."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.daemon_process import Daemon, short_folder


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """A daemon whose settings name a key file outside its var folder. Not started."""
    with short_folder() as folder:
        daemon = Daemon(folder)
        (folder / "keys").mkdir(mode=0o700)
        daemon.configure('audit_key_file = "keys/audit.key"\n')
        try:
            yield daemon
        finally:
            daemon.end()


def key_of(daemon: Daemon) -> Path:
    return daemon.folder / "keys" / "audit.key"


def test_the_key_may_be_outside_var_and_is_found_by_every_check(daemon: Daemon) -> None:
    """U03, F04: daemon, verification without a daemon, exports and a new chain use it; var/ alone cannot sign."""
    daemon.start()
    daemon.call("state:set", {"key": "k", "value": 1})
    exported = daemon.call("audit:export", {"name": "all.jsonl"})["path"]
    assert daemon.call("audit:verify")["ok"]
    assert daemon.stop() == 0
    assert key_of(daemon).stat().st_mode & 0o777 == 0o600
    assert not (daemon.var / "run" / "audit.key").exists()
    assert daemon.verify_audit()["ok"]
    without_settings = ("--key", str(key_of(daemon)))
    assert daemon.verify_audit(*without_settings)["ok"]
    lines = Path(exported).read_text().splitlines()
    last = json.loads(lines[-1]) | {"mac": "00" * 32}
    Path(exported).write_text("\n".join([*lines[:-1], json.dumps(last, separators=(",", ":"))]) + "\n")
    checked = subprocess.run(
        [sys.executable, "-m", "ksi_daemon.audit", "verify-export", exported, str(daemon.var)],
        env=daemon.environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "not signed by this daemon" in json.loads(checked.stdout)["problem"]

    key = key_of(daemon).read_bytes()
    begun = subprocess.run(
        [sys.executable, "-m", "ksi_daemon", "--new-audit-chain", "for the test"],
        env=daemon.environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert begun.returncode == 0, begun.stderr
    (old,) = key_of(daemon).parent.glob("audit.key.*")
    assert (old.read_bytes(), key_of(daemon).read_bytes() == key) == (key, False)
    daemon.start()
    assert daemon.call("audit:verify")["ok"]


def test_a_key_that_was_not_moved_or_has_no_folder_is_named(daemon: Daemon) -> None:
    """F04: the setting alone moves no key; the message has the command."""
    daemon.configure("")
    daemon.start()
    assert daemon.stop() == 0
    daemon.configure('audit_key_file = "keys/audit.key"\n')
    code, message = daemon.refusal()
    assert code == 65
    assert f"mv '{daemon.var}/run/audit.key' '{key_of(daemon)}'" in message
    (daemon.var / "run" / "audit.key").rename(key_of(daemon))
    daemon.start()
    assert daemon.stop() == 0
    key_of(daemon).unlink()
    key_of(daemon).parent.rmdir()
    code, message = daemon.refusal()
    assert code == 78
    assert "does not exist" in message
    assert "Traceback" not in message
