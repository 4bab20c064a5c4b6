"""The paths of a daemon's files: which var folder, and in it the socket, the lock, the logs. Does not read them.

The daemon finds its var folder by the same rule: `ksi_daemon/process/var_dir.py`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOCKET_PATH_LIMIT_BYTES = 107  # sun_path of Linux, less its closing zero


MARKER = ".ksi-var"  # the daemon puts it into its var folder
KNOWN_NAMES = frozenset({
    MARKER, ".gitignore", "agents", "audit-set-aside", "db", "exports", "log", "lost+found", "plugins", "profiles", "run",
})  # fmt: skip


def var_dir() -> Path:
    """The folder of the daemon's files."""
    return chosen_var_dir()[0]


def chosen_var_dir() -> tuple[Path, str]:
    """The var folder and why it is that: --var-dir or KSI_VAR_DIR, the nearest var/ of KSI from here upwards, or the one in the home folder."""
    if given := os.environ.get("KSI_VAR_DIR"):
        return Path(given).expanduser().absolute(), "KSI_VAR_DIR or --var-dir"
    if (nearest := _nearest_var()) is not None:
        return nearest, "the nearest var/ with KSI's marker, from here upwards"
    return Path.home() / ".local" / "state" / "ksi", "no var/ with KSI's marker, from here upwards"


def _nearest_var() -> Path | None:
    here = Path.cwd()
    return next((folder / "var" for folder in (here, *here.parents) if has_marker(folder / "var")), None)


def has_marker(var: Path) -> bool:
    """Whether a daemon of this user made this folder its var folder."""
    try:
        return (var / MARKER).lstat().st_uid == os.getuid() == var.stat().st_uid
    except OSError:
        return False


def may_be_used(var: Path) -> bool:
    """Whether the folder is one of KSI, or holds nothing else."""
    return has_marker(var) or set(os.listdir(var)) <= KNOWN_NAMES


def config_file() -> Path:
    """The settings file: KSI_CONFIG, or ksi.toml beside the nearest var/ of KSI, or here. It may be absent."""
    if given := os.environ.get("KSI_CONFIG"):
        return Path(given).absolute()
    nearest = None if os.environ.get("KSI_VAR_DIR") else _nearest_var()
    return Path.cwd() / "ksi.toml" if nearest is None else nearest.with_name("ksi.toml")


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
