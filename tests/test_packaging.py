"""What travels: the wheel, the lock files and the one-word scripts. Nothing here needs a package index."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.cases import case
from tests.scratch_checkout import ROOT, copy_checkout, outside_environment

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = ["requirements.lock", "requirements-build.lock", "requirements-dev.lock"]
PLUGIN = '''"""Weather: a plugin that only has to be there."""

from ksi_daemon.plugin import Context, Field, Params, Plugin, Result

plugin = Plugin("weather")


class Ask(Params):
    place: str = Field(min_length=1, max_length=100, description="Town or airport code.")


class Sky(Result):
    sky: str


@plugin.handles("weather:look", reads=True)
async def look(ctx: Context, params: Ask) -> Sky:
    """Say what the sky looks like."""
    return Sky(sky=f"blue over {params.place}")
'''


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command in a folder, without our environment; its output when it succeeds, everything it wrote when it fails."""
    environment = outside_environment(KSI_VAR_DIR=str(cwd / "var"), KSI_PORT="0")
    answer = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, f"{command}: {answer.stdout}\n{answer.stderr}"
    return answer.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkout = copy_checkout(tmp_path_factory.mktemp("wheel") / "a folder with spaces")
    weather = checkout / "plugins" / "weather"
    for folder in ("tests", "data", "__pycache__"):
        (weather / folder).mkdir(parents=True)
    (weather / "__init__.py").write_text(PLUGIN, encoding="utf-8")
    (weather / "data" / "places.txt").write_text("Oslo\n", encoding="utf-8")
    for left_out in ("test_weather.py", "tests/test_more.py", "__pycache__/old.pyc"):
        (weather / left_out).write_text("", encoding="utf-8")
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        ".",
        ".",
        cwd=checkout,
    )
    [built] = checkout.glob("*.whl")
    return built


def test_a_wheel_carries_shipped_plugins_inside_the_daemon_and_claims_no_common_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [entry_points] = [archive.read(name).decode() for name in names if name.endswith("entry_points.txt")]
    metadata = f"ksi-{PYPROJECT['project']['version']}.dist-info"
    assert {name.split("/")[0] for name in names} == {"ksi_client", "ksi_daemon", metadata}
    assert {name for name in names if "/weather/" in name} == {
        "ksi_daemon/shipped_plugins/weather/__init__.py",
        "ksi_daemon/shipped_plugins/weather/data/places.txt",
    }
    assert {"ksi_client/py.typed", "ksi_daemon/py.typed", f"{metadata}/licenses/LICENSE"} <= set(names)
    assert "ksi = ksi_client.command:main" in entry_points


def test_the_wheel_alone_gives_a_command_a_daemon_and_its_shipped_plugins(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "installed here"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    python, ksi = venv / "bin" / "python", venv / "bin" / "ksi"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel, cwd=tmp_path)
    [site_packages] = venv.glob("lib/python*/site-packages")
    # The dependencies come from the environment that runs the tests; its own link to this checkout is not followed.
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")

    assert Path(run(python, "-c", "import ksi_daemon; print(ksi_daemon.__file__)", cwd=tmp_path)).is_relative_to(venv)
    assert PYPROJECT["project"]["version"] in run(ksi, "--version", cwd=tmp_path)
    run(ksi, "start", "--wait", cwd=tmp_path)
    try:
        plugins = json.loads(run(ksi, "send", "plugin:list", "--json", cwd=tmp_path))["plugins"]
        [weather] = [plugin for plugin in plugins if plugin["name"] == "weather"]
        assert (weather["source"], weather["state"]) == ("shipped", "running")
        assert json.loads(run(ksi, "send", "weather:look", "place=Oslo", "--json", cwd=tmp_path)) == {
            "sky": "blue over Oslo"
        }
    finally:
        run(ksi, "stop", cwd=tmp_path)


def pins(name: str) -> dict[str, tuple[Version, str]]:
    """Each locked package with its version and the lines that belong to it."""
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE | re.IGNORECASE)
    found: dict[str, tuple[Version, str]] = {}
    for block in blocks:
        match = re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", block)
        assert match or not block.strip(), f"{name}: not an exact version: {block.splitlines()[0]}"
        if match:
            found[canonicalize_name(match[1])] = (Version(match[2]), block)
    return found


def test_every_locked_package_has_hashes_and_no_lock_says_where_it_came_from() -> None:
    for name in LOCKS:
        with case(name):
            locked = pins(name)
            assert locked
            assert [package for package, (_, block) in locked.items() if "--hash=sha256:" not in block] == []
            text = (ROOT / name).read_text(encoding="utf-8")
            assert not re.search(
                r"://|^\s*-|@ |(?:^|\s)/|index.url|find.links|file:", re.sub(r"--hash=\S+|# .*", "", text), re.MULTILINE
            )
            assert "://" not in text


def test_the_locks_satisfy_every_floor_and_agree_with_each_other() -> None:
    runtime, build, dev = (pins(name) for name in LOCKS)
    groups = PYPROJECT["dependency-groups"]
    asked = [
        (runtime, PYPROJECT["project"]["dependencies"]),
        (build, groups["build"] + PYPROJECT["build-system"]["requires"]),
        (dev, [entry for entry in groups["dev"] if isinstance(entry, str)]),
    ]
    for locked, requirements in asked:
        for requirement in map(Requirement, requirements):
            version, _ = locked[canonicalize_name(requirement.name)]
            assert version in requirement.specifier, f"run scripts/lock: {requirement} but {version} is locked"
    for package, (version, _) in (runtime | build).items():
        assert dev[package][0] == version, f"run scripts/lock: requirements-dev.lock differs in {package}"


def test_every_script_can_be_run_and_a_shell_script_stops_at_the_first_error() -> None:
    for script in sorted([*ROOT.glob("scripts/*"), ROOT / ".ci" / "run"]):
        with case(script):
            if script.is_dir():
                return
            first, *_ = lines = script.read_text(encoding="utf-8").splitlines()
            assert os.access(script, os.X_OK)
            assert first.startswith("#!/usr/bin/env ")
            assert "bash" not in first or "set -euo pipefail" in lines
