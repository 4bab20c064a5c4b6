"""What some tests need of the machine, as marks that skip with a reason where it is missing. `.ci/run` accepts no skip."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, *, source: str = "tmpfs", options: str) -> Iterator[None]:
    """Mount a memory disk (or, with `bind` among the options, `source`) on a folder for a while."""
    kind = [] if "bind" in options.split(",") else ["-t", "tmpfs"]
    subprocess.run(["mount", *kind, "-o", options, source, str(folder)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _may_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        try:
            with mounted(Path(folder), options="size=64k"):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


def _may_trace() -> bool:
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", os.devnull, "true"], check=False, capture_output=True).returncode == 0


needs_mount = pytest.mark.skipif(os.geteuid() != 0 or not _may_mount(), reason="needs root that may mount a disk")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
needs_strace = pytest.mark.skipif(not _may_trace(), reason="needs strace, and the permission to trace")
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
