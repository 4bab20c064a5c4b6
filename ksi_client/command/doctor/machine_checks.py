"""Checks of the machine: free disk space, filesystem type, open files, SQLite, the clock."""

import os
import resource
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from ksi_client.command.doctor.finding import Finding, Site

_DISK_FAIL_BYTES = 100_000_000
_DISK_WARN_BYTES = 1_000_000_000
_INODES_WARN = 10_000
_OPEN_FILES_WARN = 1024
_SQLITE_NEEDED = (3, 35, 0)  # the first with RETURNING
_FUTURE_S = 120
_WRITTEN_IN_2025 = 1_735_689_600
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs", "davfs"}


def disk(site: Site) -> Iterator[Finding]:
    """There is enough free disk space."""
    place = _existing(site.var)
    state = os.statvfs(place)
    free = state.f_bavail * state.f_frsize
    seen = f"{free / 1e9:.1f} GB free at {place}"
    if free < _DISK_FAIL_BYTES:
        yield Finding("disk", "fail", seen, "free some space; the daemon refuses calls that it cannot audit")
    elif free < _DISK_WARN_BYTES or 0 < state.f_favail < _INODES_WARN:
        yield Finding("disk", "warn", f"{seen}, {state.f_favail:,} files may still be made", "free some space")
    else:
        yield Finding("disk", "ok", seen)


def filesystem(site: Site) -> Iterator[Finding]:
    """The var folder is on a local disk: locks and write-ahead logs do not work over a network."""
    place = _existing(site.var).resolve()
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        yield Finding("filesystem", "ok", "not known on this system")
        return
    kind, best = "unknown", -1
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        _, point, this_kind, *_ = line.split(" ")
        mounted = Path(point.replace("\\040", " "))
        if place.is_relative_to(mounted) and len(mounted.parts) >= best:
            kind, best = this_kind, len(mounted.parts)
    if kind in _REMOTE:
        yield Finding("filesystem", "fail", f"{place} is on {kind}", "set KSI_VAR_DIR to a folder on a local disk")
    else:
        yield Finding("filesystem", "ok", kind)


def open_files(site: Site) -> Iterator[Finding]:
    """The limit of open files is high enough: the daemon's limit if it runs, else this process's."""
    limit, owner = resource.getrlimit(resource.RLIMIT_NOFILE)[0], "this shell's"
    limits = Path(f"/proc/{site.pid}/limits")
    if site.pid and os.access(limits, os.R_OK):
        for line in limits.read_text().splitlines():
            if line.startswith("Max open files"):
                soft = line.split()[3]
                limit, owner = int(soft) if soft.isdigit() else resource.RLIM_INFINITY, "the daemon's"
    if limit != resource.RLIM_INFINITY and limit < _OPEN_FILES_WARN:
        yield Finding("open files", "warn", f"{owner} limit is {limit}", "ulimit -n 4096, then ksi restart")
    else:
        shown = "none" if limit == resource.RLIM_INFINITY else f"{limit:,}"
        yield Finding("open files", "ok", f"{owner} limit: {shown}")


def sqlite(_: Site) -> Iterator[Finding]:
    """SQLite has at least the required version."""
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < _SQLITE_NEEDED:
        needed = ".".join(map(str, _SQLITE_NEEDED))
        yield Finding("sqlite", "fail", f"{version}, at least {needed} is needed", "use a newer Python or SQLite")
    else:
        yield Finding("sqlite", "ok", version)


def clock(site: Site) -> Iterator[Finding]:
    """The clock is not behind the files the daemon has written."""
    now = time.time()
    newest = max(
        (path.lstat().st_mtime for folder in ("run", "db", "log") for path in (site.var / folder).glob("*")),
        default=0.0,
    )
    if now < _WRITTEN_IN_2025:
        yield Finding("clock", "fail", f"the system clock says {time.strftime('%Y-%m-%d')}", "set the clock")
    elif newest > now + _FUTURE_S:
        seen = f"files in {site.var} are from {newest - now:.0f} s in the future: the clock was set back"
        yield Finding("clock", "warn", seen, "check the clock (timedatectl)")
    else:
        yield Finding("clock", "ok", time.strftime("%Y-%m-%dT%H:%M:%S%z"))


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    while not path.exists():
        path = path.parent
    return path
