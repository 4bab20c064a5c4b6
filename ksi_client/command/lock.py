"""Whether a daemon runs on a var folder, found by the lock it holds. Does not disturb a daemon that is starting."""

import fcntl
import os
from pathlib import Path

from ksi_client.paths import lock_file

_LOCKS = Path("/proc/locks")


def holder(var: Path) -> int | None:
    """The pid of the running daemon, 0 if one runs but its pid is unknown, None if none runs."""
    try:
        descriptor = os.open(lock_file(var), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return _holder(descriptor)
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> int | None:
    """Check the kernel's list first: trying the lock would briefly take it from a daemon that is starting."""
    listed = _listed_pid(os.fstat(descriptor).st_ino)
    if listed is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return listed or _written_pid(os.read(descriptor, 32))
    return None  # the listed inode was on another disk; closing the file releases the lock


def _listed_pid(inode: int) -> int | None:
    """The pid that holds a lock on this inode; 0 if the kernel does not say, None if no process does."""
    try:
        lines = _LOCKS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    for line in lines:
        _, kind, *rest = line.split()
        if kind == "FLOCK" and rest[-3].endswith(f":{inode}"):
            return int(rest[-4]) if rest[-4].isdigit() else 0
    return None


def _written_pid(text: bytes) -> int:
    digits = text.split(b"\n", 1)[0].strip()
    return int(digits) if digits.isdigit() else 0
