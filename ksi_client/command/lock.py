"""Whether a daemon lives on a var folder, told by the lock it holds. Looking disturbs no daemon that is starting."""

import fcntl
import os
from pathlib import Path

from ksi_client.paths import lock_file

_LOCKS = Path("/proc/locks")


def holder(var: Path) -> int | None:
    """The pid of the living daemon, 0 if one lives but its pid is not known, None if none lives."""
    try:
        descriptor = os.open(lock_file(var), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return _holder(descriptor)
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> int | None:
    """Ask the kernel's list first: trying the lock would, for an instant, take it from a daemon about to start."""
    listed = _listed_pid(os.fstat(descriptor).st_ino)
    if listed is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return listed or _written_pid(os.read(descriptor, 32))
    return None  # the list meant a file of the same number on another disk; closing gives our lock back


def _listed_pid(inode: int) -> int | None:
    """Who holds a lock on a file of this number; 0 where the kernel does not say, None for nobody."""
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
