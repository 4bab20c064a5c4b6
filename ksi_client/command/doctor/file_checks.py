"""Checks of the files in the var folder: owners and modes, databases, logs."""

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from ksi_client.command.doctor.finding import Finding, Site
from ksi_client.paths import SOCKET_PATH_LIMIT_BYTES, output_file, socket_file

_FILES_LIMIT = 20_000
_QUICK_CHECK_S = 20.0
_LOG_LARGE_BYTES = 1_000_000_000
_OUTPUT_TAIL_BYTES = 65_536


def var_folder(site: Site) -> Iterator[Finding]:
    """It belongs to this user and is private."""
    name, var = "var folder", site.var
    try:
        state = var.lstat()
    except FileNotFoundError:
        yield Finding(name, "warn", f"{var} does not exist yet", "ksi start creates it")
        return
    mode = stat.S_IMODE(state.st_mode)
    if not site.is_known:
        seen = f"{var} has no marker of KSI, so it is not examined: no daemon has used it"
        yield Finding(name, "warn", seen, "set KSI_VAR_DIR or --var-dir to the folder of a daemon")
        return
    if not var.is_dir():
        yield Finding(name, "fail", f"{var} is not a folder", "set KSI_VAR_DIR to a folder")
    elif var.stat().st_uid != os.getuid():
        yield Finding(name, "fail", f"{var} belongs to user {state.st_uid}", "run ksi as that user, or set KSI_VAR_DIR")
    elif (
        mode & 0o077 and not stat.S_ISLNK(state.st_mode) and any(entry.name != ".gitignore" for entry in var.iterdir())
    ):
        yield Finding(name, "fail", f"{var} has mode {mode:04o}: other users can read it", f"chmod 700 {var}")
    else:
        yield Finding(name, "ok", f"{var}, mode {stat.S_IMODE(var.stat().st_mode):04o}")


def private_files(site: Site) -> Iterator[Finding]:
    """No file below var can be read or written by others."""
    name = "private files"
    paths = list(islice(_below(site.var), _FILES_LIMIT))
    readable = [path for path in paths if not path.is_symlink() and path.lstat().st_mode & 0o077]
    if readable:
        shown = ", ".join(f"{path.relative_to(site.var)} ({path.lstat().st_mode & 0o777:04o})" for path in readable[:5])
        more = f" and {len(readable) - 5} more" if len(readable) > 5 else ""
        yield Finding(name, "fail", f"accessible to other users: {shown}{more}", f"chmod -R go= {site.var}")
    else:
        yield Finding(name, "ok", f"{len(paths)} files and folders are private")


def databases(site: Site) -> Iterator[Finding]:
    """Every database opens, is not empty and is intact."""
    name = "databases"
    files = [path for path in islice(_below(site.var), _FILES_LIMIT) if path.suffix == ".db" and path.is_file()]
    if not files:
        yield Finding(name, "ok", "none yet")
    for path in files:
        shown = path.relative_to(site.var)
        try:
            problem = _quick_check(path, immutable=site.pid is None)
        except sqlite3.OperationalError as error:
            yield Finding(name, "warn", f"{shown} could not be checked: {error}", "try again with the daemon stopped")
        except sqlite3.DatabaseError as error:
            yield Finding(name, "fail", f"{shown}: {error}", "ksi stop, then restore it from a backup")
        else:
            if problem:
                yield Finding(name, "fail", f"{shown}: {problem}", "ksi stop, then restore it from a backup")
            else:
                yield Finding(name, "ok", f"{shown} is intact ({path.stat().st_size:,} bytes)")


def _quick_check(path: Path, *, immutable: bool) -> str | None:
    """The problem, or None. Read-only; leaves no -wal or -shm files beside a database that no process has open."""
    if path.stat().st_size == 0:
        return "is empty; a database of the daemon never is"
    wal = path.with_name(path.name + "-wal")
    unused = immutable and not wal.exists()
    address = f"{path.as_uri()}?mode=ro" + ("&immutable=1" if unused else "")
    connection = sqlite3.connect(address, uri=True, timeout=2)
    try:
        deadline = time.monotonic() + _QUICK_CHECK_S
        connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    finally:
        connection.close()
    return None if found == "ok" else str(found)


def log(site: Site) -> Iterator[Finding]:
    """The log is writable and not too large."""
    name, path = "log", site.var / "log" / "ksi.jsonl"
    if not path.exists():
        yield Finding(name, "ok", "no log yet")
    elif not os.access(path, os.W_OK):
        yield Finding(name, "fail", f"{path} cannot be written", f"chmod 600 {path}")
    elif path.stat().st_size > _LOG_LARGE_BYTES:
        size = path.stat().st_size
        yield Finding(name, "warn", f"{path} has {size:,} bytes", "move it away, then ksi restart")
    else:
        yield Finding(name, "ok", f"{path}, {path.stat().st_size:,} bytes")


def last_output(site: Site) -> Iterator[Finding]:
    """The last detached daemon did not end with a traceback."""
    name, path = "last output", output_file(site.var)
    if not path.exists():
        yield Finding(name, "ok", "no detached daemon has run yet")
        return
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _OUTPUT_TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    bad = [line for line in lines if line.startswith(("Traceback", "Fatal", "Segmentation"))]
    if bad:
        last = next((line for line in reversed(lines) if line.strip()), bad[-1])
        yield Finding(name, "warn", f"{path} holds {len(bad)} traceback(s); it ends with: {last[:160]}", f"read {path}")
    else:
        yield Finding(name, "ok", f"{path} holds no traceback")


def socket_path(site: Site) -> Iterator[Finding]:
    """The socket's path is short enough for other programs."""
    path = socket_file(site.var)
    size = len(os.fsencode(path))
    if size > SOCKET_PATH_LIMIT_BYTES:
        seen = f"{size} bytes; ksi can connect, other programs only up to {SOCKET_PATH_LIMIT_BYTES}"
        yield Finding("socket path", "warn", seen, "set KSI_VAR_DIR to a shorter path")
    else:
        yield Finding("socket path", "ok", f"{size} of {SOCKET_PATH_LIMIT_BYTES} bytes")


def _below(folder: Path) -> Iterator[Path]:
    """All files and folders below a folder, in a stable order; links are not followed."""
    for place, folders, files in os.walk(folder):
        folders.sort()
        yield from (Path(place, name) for name in sorted([*folders, *files]) if name != ".gitignore")
