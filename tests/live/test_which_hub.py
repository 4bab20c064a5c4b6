"""Which var folder a command and a daemon use when nothing names one, and that they agree."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ksi_client import paths
from ksi_daemon.process import var_dir

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder without var/, and a home of its own."""
    for name in [name for name in os.environ if name.startswith("KSI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    work = tmp_path / "work" / "deep"
    work.mkdir(parents=True)
    monkeypatch.chdir(work)
    return work


def marked(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / ".ksi-var").touch()
    return folder


def ksi(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ksi_client", *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_command_and_the_daemon_choose_the_same_folder(nowhere: Path, tmp_path: Path) -> None:
    """F06: KSI_VAR_DIR, then the nearest var/ with the marker upwards, then one in the home folder."""
    chosen = [(paths.var_dir(), var_dir.choose({}))]
    (nowhere / "var").mkdir()  # of something else
    chosen.append((paths.var_dir(), var_dir.choose({})))
    outer = marked(tmp_path / "work" / "var")
    found: dict[str, str] = {}
    chosen.append((paths.var_dir(), var_dir.choose(found)))
    assert found["KSI_CONFIG"] == str(paths.config_file()) == str(outer.with_name("ksi.toml"))
    given = {"KSI_VAR_DIR": str(tmp_path / "given")}
    os.environ.update(given)
    chosen.append((paths.var_dir(), var_dir.choose(given)))
    home = tmp_path / "home" / ".local" / "state" / "ksi"
    assert chosen == [(home, home), (home, home), (outer, outer), (tmp_path / "given", tmp_path / "given")]
    assert var_dir.KNOWN_NAMES == paths.KNOWN_NAMES


def test_status_names_the_hub_that_it_asks(nowhere: Path, tmp_path: Path) -> None:
    """F06: with the reason; --var-dir before or after the verb chooses another one."""
    state = json.loads(ksi("status", "--json").stdout)
    assert state["var_dir"] == str(tmp_path / "home" / ".local" / "state" / "ksi")
    assert "no var/ with KSI's marker" in ksi("status").stdout
    for words in (("status", "--var-dir", "there", "--json"), ("--var-dir", "there", "--json", "status")):
        assert json.loads(ksi(*words).stdout)["var_dir"] == str(nowhere / "there")


def test_the_doctor_advises_nothing_about_a_folder_of_something_else(nowhere: Path) -> None:
    """F06: `ksi doctor` above a var/ without the marker examines the hub's own folder, and a given one not at all."""
    other = nowhere / "var"
    other.mkdir(mode=0o755)
    (other / "log").mkdir(mode=0o755)
    assert str(other) not in ksi("doctor").stdout
    shown = ksi("doctor", "--var-dir", str(other)).stdout
    assert "has no marker of KSI" in shown
    assert "chmod" not in shown
    assert sorted(path.name for path in other.iterdir()) == ["log"]
