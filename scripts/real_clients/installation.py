"""Installs a client from npm, with the Node that it needs, into the user's cache. Needs npm for the first run only."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

NODE = "24"  # with an older one npm chooses an old release of a client, without a word
LIMIT_S = 600


def installed(package: str, version: str) -> Path:
    """The folder in which the client's and Node's programs are."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ksi" / "real-clients"
    place = cache / f"{package.rpartition('/')[2]}-{version}-node-{NODE}"
    if not place.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise SystemExit(f"npm is not installed, and only npm has {package}")
        print(f"installing {package} {version} with Node {NODE} into {cache}; once", flush=True)
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="installing-") as name:
            folder = Path(name) / "it"
            folder.mkdir()
            (folder / "package.json").write_text('{"private": true}\n', encoding="ascii")
            node = folder / "node_modules" / "node" / "bin"
            path = f"{node}{os.pathsep}{os.environ['PATH']}"
            for wanted in (f"node@{NODE}", f"{package}@{version}"):
                _run([npm, "install", "--no-fund", "--no-audit", "--loglevel=error", wanted], folder, path)
            if not place.exists():  # another run may have been faster
                folder.rename(place)
    return place / "node_modules" / ".bin"


def _run(argv: list[str], folder: Path, path: str) -> None:
    done = subprocess.run(
        argv, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(argv[1:])} failed:\n{done.stdout}{done.stderr}")
