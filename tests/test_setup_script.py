"""scripts/setup, run and ksi, in a copy with spaces in its path, with a stand-in for the installer: no package index is asked.

The stand-in is a `uv` that writes down what it was asked to install, and an interpreter that claims to have no ensurepip.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.scratch_checkout import copy_checkout, outside_environment

TOOLS = [
    "bash", "cat", "chmod", "cut", "dirname", "env", "find", "flock", "id", "mkdir", "mv", "readlink", "rm", "sed",
    "sha256sum", "touch",
]  # fmt: skip
INSTALLER = """#!/usr/bin/env bash
set -euo pipefail
echo "$*" >>"$INSTALLER_LOG"
[ ! -e "$INSTALLER_LOG.broken" ] || exit 1
for argument in "$@"; do checkout="$argument"; done
case "$*" in *--editable*) ;; *) exit 0 ;; esac
for site in "$checkout"/.venv/lib/python*/site-packages; do echo "$checkout" >"$site/checkout.pth"; done
printf '#!/bin/sh\\nprintf "%%s|" "$KSI_VAR_DIR" "$KSI_CONFIG" "$PWD" "$@"\\n' >"$checkout/.venv/bin/ksi"
chmod +x "$checkout/.venv/bin/ksi"
"""
INTERPRETER = """#!/usr/bin/env bash
case "$*" in *ensurepip* | *"-m pip"*) exit 1 ;; esac
exec {python} "$@"
"""


@dataclass(frozen=True)
class Machine:
    """A PATH with the few tools of a bare Debian, a stand-in installer, and a checkout."""

    checkout: Path
    tools: Path
    log: Path

    def run(
        self, command: str, *arguments: str, cwd: Path = Path("/"), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        variables = outside_environment(PATH=str(self.tools), INSTALLER_LOG=str(self.log), PYTHONDONTWRITEBYTECODE="1")
        return subprocess.run(
            [self.checkout / "scripts" / command, *arguments],
            cwd=cwd, env=variables | environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def tool(self, name: str, text: str) -> None:
        (self.tools / name).write_text(text, encoding="utf-8")
        (self.tools / name).chmod(0o755)

    @property
    def installs(self) -> Sequence[str]:
        return self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in TOOLS:
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    machine = Machine(copy_checkout(tmp_path / "a folder with spaces" / "hub"), tools, tmp_path / "installer.log")
    real = os.path.realpath(Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")
    machine.tool("python3", INTERPRETER.format(python=f'"{real}"'))
    machine.tool("uv", INSTALLER)
    machine.tool("apt-get", "#!/bin/sh\nexit 100\n")
    return machine


def test_the_first_run_installs_locked_packages_with_hashes_and_the_second_does_nothing(machine: Machine) -> None:
    first = machine.run("setup")
    assert first.returncode == 0, first.stderr
    packages, project = machine.installs
    assert "--require-hashes" in packages
    assert packages.endswith(f"-r {machine.checkout}/requirements.lock -r {machine.checkout}/requirements-build.lock")
    assert project.endswith(f"--no-deps --no-build-isolation --editable {machine.checkout}")
    started = time.monotonic()
    second = machine.run("setup")
    assert second.returncode == 0, second.stderr
    assert time.monotonic() - started < 1
    assert len(machine.installs) == 2
    assert first.stdout == second.stdout == ""


def test_sources_are_compiled_even_where_python_may_not_write_bytecode(machine: Machine) -> None:
    assert machine.run("setup").returncode == 0
    compiled = machine.checkout / "ksi_client" / "__pycache__"
    assert list(compiled.glob("__init__.*.pyc"))
    later = machine.checkout / "ksi_client" / "written_later.py"
    later.write_text("", encoding="utf-8")
    os.utime(later, (time.time() + 5, time.time() + 5))
    assert machine.run("setup").returncode == 0
    assert list(compiled.glob("written_later.*.pyc"))


def test_an_interrupted_run_is_noticed_and_made_anew(machine: Machine) -> None:
    broken = Path(f"{machine.log}.broken")
    broken.touch()
    interrupted = machine.run("setup")
    assert interrupted.returncode == 1
    assert "python3-venv" in interrupted.stderr
    leftover = machine.checkout / ".venv" / "leftover"
    leftover.touch()
    broken.unlink()
    assert machine.run("setup").returncode == 0
    assert not leftover.exists()
    assert len(machine.run("setup", "--quiet").stderr) == 0


@pytest.mark.parametrize("harm", ["no interpreter", "a dead interpreter", "no command"])
def test_a_damaged_environment_is_repaired(machine: Machine, harm: str) -> None:
    assert machine.run("setup").returncode == 0
    venv = machine.checkout / ".venv"
    if harm == "no command":
        (venv / "bin" / "ksi").unlink()
    else:
        (venv / "bin" / "python").unlink()
    if harm == "a dead interpreter":
        (venv / "bin" / "python").symlink_to("/nowhere/python3")
    repaired = machine.run("setup")
    assert repaired.returncode == 0, repaired.stderr
    assert machine.run("ksi", "status").returncode == 0
    assert len(machine.installs) == 4


def test_an_environment_that_somebody_else_made_is_filled_and_kept(machine: Machine) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", machine.checkout / ".venv"], check=True, timeout=60)
    kept = machine.checkout / ".venv" / "kept"
    kept.touch()
    assert machine.run("setup").returncode == 0
    assert kept.exists()
    assert machine.run("ksi", "status").returncode == 0


def test_a_changed_lock_updates_the_environment_in_place(machine: Machine) -> None:
    assert machine.run("setup").returncode == 0
    kept = machine.checkout / ".venv" / "kept"
    kept.touch()
    with (machine.checkout / "requirements.lock").open("a", encoding="utf-8") as lock:
        lock.write("# changed\n")
    assert machine.run("setup").returncode == 0
    assert kept.exists()
    assert len(machine.installs) == 4


def test_the_development_tools_are_added_once_and_include_everything_else(machine: Machine) -> None:
    assert machine.run("setup").returncode == 0
    assert machine.run("setup", "--dev").returncode == 0
    assert machine.installs[2].endswith(f"-r {machine.checkout}/requirements-dev.lock")
    assert machine.run("setup").returncode == 0
    assert machine.run("setup", "--dev").returncode == 0
    assert len(machine.installs) == 4


def test_a_moved_checkout_is_set_up_again(machine: Machine) -> None:
    assert machine.run("setup").returncode == 0
    moved = Machine(machine.checkout.rename(machine.checkout.with_name("elsewhere")), machine.tools, machine.log)
    remade = moved.run("setup")
    assert remade.returncode == 0, remade.stderr
    assert "creating it again" in remade.stderr
    assert moved.installs[-1].endswith(f"--editable {moved.checkout}")


def test_an_old_python_is_named_with_what_to_do(machine: Machine) -> None:
    machine.tool("python3", "#!/bin/sh\necho 3.9\n")
    refused = machine.run("setup")
    assert refused.returncode == 1
    assert "needs Python 3.11 or later; found: python3=3.9" in refused.stderr
    assert "apt-get install python3" in refused.stderr


def test_without_any_installer_the_missing_package_is_named(machine: Machine) -> None:
    (machine.tools / "uv").unlink()
    refused = machine.run("setup")
    assert refused.returncode == 1
    assert "apt-get install python3-venv" in refused.stderr
    assert not (machine.checkout / ".venv" / "ksi-setup.stamp").exists()


def test_two_setups_at_once_do_the_work_once(machine: Machine) -> None:
    variables = outside_environment(PATH=str(machine.tools), INSTALLER_LOG=str(machine.log))
    command = [machine.checkout / "scripts" / "setup"]
    running = [subprocess.Popen(command, env=variables, stderr=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(timeout=60) for process in running] == [0, 0, 0]
    assert len(machine.installs) == 2


def test_the_command_runs_where_the_person_is_with_the_checkouts_own_var(machine: Machine, tmp_path: Path) -> None:
    link = tmp_path / "hub-command"
    link.symlink_to(machine.checkout / "scripts" / "ksi")
    variables = outside_environment(PATH=str(machine.tools), INSTALLER_LOG=str(machine.log))
    answer = subprocess.run(
        [link, "send", "two words"], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout == f"{machine.checkout}/var|{machine.checkout}/ksi.toml|{tmp_path}|send|two words|"
    own = machine.run("ksi", KSI_VAR_DIR="./mine", KSI_CONFIG="./mine.toml", cwd=tmp_path)
    assert own.stdout == f"./mine|./mine.toml|{tmp_path}|"


def test_run_starts_the_daemon_of_this_checkout_in_the_foreground(machine: Machine, tmp_path: Path) -> None:
    shutil.rmtree(machine.checkout / "ksi_daemon")
    (machine.checkout / "ksi_daemon").mkdir()
    (machine.checkout / "ksi_daemon" / "__main__.py").write_text(
        "import os, sys\nprint(os.environ['KSI_VAR_DIR'], os.environ['KSI_CONFIG'], os.getcwd(), sys.argv[1:], sep='|')\nsys.exit(75)\n",
        encoding="utf-8",
    )
    (tmp_path / "ksi_daemon.py").write_text("raise SystemExit('the wrong module')\n", encoding="utf-8")
    answer = machine.run("run", "--check-config", cwd=tmp_path)
    assert answer.stdout == f"{machine.checkout}/var|{machine.checkout}/ksi.toml|{tmp_path}|['--check-config']\n"
    assert answer.returncode == 75
