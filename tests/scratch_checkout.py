"""A copy of this checkout that a test may set up, build and break. Running things in it is left to the tests."""

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRAVELS = [
    "pyproject.toml", "requirements.lock", "requirements-build.lock", "requirements-dev.lock", "README.md", "LICENSE",
    ".gitignore", "ksi_client", "ksi_daemon", "plugins", "scripts",
]  # fmt: skip


def copy_checkout(target: Path) -> Path:
    """Copy what an installation needs, without the environment and anything compiled."""
    target.mkdir(parents=True)
    for name in TRAVELS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, target / name)
    return target


def outside_environment(**changes: str) -> dict[str, str]:
    """The environment of somebody who knows nothing of this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KSI_", "PYTHON", "VIRTUAL_ENV"))}
    return kept | changes
