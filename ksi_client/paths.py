"""The paths of a daemon's files: the var folder, the socket, the lock, the logs. Does not read them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOCKET_PATH_LIMIT_BYTES = 107  # sun_path of Linux, less its closing zero


def var_dir() -> Path:
    """The folder of this daemon's state: KSI_VAR_DIR, or ./var."""
    return Path(os.environ.get("KSI_VAR_DIR") or "var").absolute()


def config_file() -> Path:
    """The settings file: KSI_CONFIG, or ./ksi.toml. It may be absent."""
    return Path(os.environ.get("KSI_CONFIG") or "ksi.toml").absolute()


def socket_file(var: Path | None = None) -> Path:
    """The operator's socket in a var folder."""
    return (var or var_dir()) / "run" / "ksi.sock"


def lock_file(var: Path) -> Path:
    """The file that a running daemon holds locked; it contains the pid."""
    return var / "run" / "ksi.lock"


def output_file(var: Path) -> Path:
    """What a detached daemon writes to its standard output and error."""
    return var / "log" / "daemon.out"


def audit_file(var: Path) -> Path:
    """The audit's readable copy, one JSON object a line; the daemon rotates it."""
    return var / "log" / "audit.jsonl"


@contextmanager
def connectable(path: Path) -> Iterator[str]:
    """An address for `connect` that stays within the kernel's limit, however long the path is.

    The kernel takes 107 bytes. A longer path is reached through a descriptor of its folder, because
    `chdir` would affect the rest of the process.
    """
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
