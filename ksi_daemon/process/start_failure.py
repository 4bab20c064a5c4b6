"""Explains why the operating system kept the daemon from running: what, why, and what to do next, without a traceback.

Imports the standard library only: it is needed before the rest is loaded.
"""

import errno
import os
from pathlib import Path

from ksi_daemon.errors import CannotRun

NEEDED_BYTES = 1_000_000  # SQLite says "I/O error" when the disk has no space for its shared memory

_NEXT = {
    errno.ENOSPC: "The disk is full: free some space on it (df -h {where}), then start again",
    errno.EDQUOT: "The disk quota is used up: free some space ({where}), then start again",
    errno.EMFILE: "Too many files are open in one process: raise the limit (ulimit -n 4096), then start again",
    errno.ENFILE: "Too many files are open on this machine: close some programs, then start again",
    errno.EROFS: "The disk is read-only: mount it for writing, or use another folder with KSI_VAR_DIR",
    errno.EACCES: "Give the daemon's user the right to read and write it (ls -ld {where}), then start again",
    errno.EPERM: "Give the daemon's user the right to change it (lsattr -d {where}), then start again",
    errno.EISDIR: "A folder is where a file must be: move {where} away, then start again",
    errno.ENOTDIR: "A file is where a folder must be: move it away ({where}), then start again",
    errno.EIO: "The disk fails: see dmesg, and restore var/ from a backup on another disk",
}
# SQLite's own codes, as numbers: the sqlite3 module must not be loaded for this.
_OF_SQLITE = {3: errno.EACCES, 8: errno.EACCES, 10: errno.EIO, 13: errno.ENOSPC}  # PERM, READONLY, IOERR, FULL


def cannot_run(error: Exception, var_dir: Path) -> CannotRun:
    """An `OSError`, or an error of SQLite, with its cause and the next step."""
    if isinstance(error, OSError):
        number, why, path = error.errno, error.strerror or str(error), error.filename
    else:
        code = getattr(error, "sqlite_errorcode", None)
        number, why, path = None if code is None else _OF_SQLITE.get(code & 0xFF), str(error), None
        if number == errno.EIO and _is_full(var_dir):
            number = errno.ENOSPC
    where = os.fsdecode(path) if isinstance(path, str | bytes) else str(var_dir)
    next_step = _NEXT.get(number or 0, "`ksi doctor` checks the files, the disk and the limits").format(where=where)
    return CannotRun(f"the daemon cannot run: {why}{f' ({where})' if path else ''}. {next_step}.")


def _is_full(folder: Path) -> bool:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < NEEDED_BYTES
