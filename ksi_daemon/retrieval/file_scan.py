"""The files below a root as they are now: which there are, and a stamp of each. Knows nothing of events or of what was before."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ksi_daemon.errors import Unavailable

FILES_LIMIT = 200_000
HASH_LIMIT_BYTES = 16_000_000  # a larger file is compared by size and time only
READ_BYTES = 1_048_576


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What a file is recognised by. `digest` is the SHA-256 of its content, empty when it could not be read."""

    inode: int
    size: int
    mtime_ns: int
    digest: str = ""

    def same_file(self, other: FileStamp) -> bool:
        """The very same file, not changed since."""
        return (self.inode, self.size, self.mtime_ns) == (other.inode, other.size, other.mtime_ns)


def stamp_of(content: bytes) -> FileStamp:
    """The stamp of a content whose file is not known: it equals a file by content only."""
    return FileStamp(0, len(content), 0, hashlib.sha256(content).hexdigest())


@dataclass(frozen=True, slots=True)
class FileChoice:
    """Which files count. A pattern is compared with each part of a path; `only` with the file's name."""

    ignore: tuple[str, ...] = (".git", "node_modules")
    only: tuple[str, ...] = ("*",)

    def ignores(self, path: str) -> bool:
        """Whether a path, or a folder above it, is ignored."""
        return any(fnmatch.fnmatchcase(part, pattern) for part in path.split("/") for pattern in self.ignore)

    def takes(self, path: str) -> bool:
        """Whether a file counts."""
        name = path.rpartition("/")[2]
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.only) and not self.ignores(path)


@dataclass(slots=True)
class Scan:
    """What was found, by path relative to the root with forward slashes."""

    files: dict[str, FileStamp] = field(default_factory=dict)  # without digests
    unreadable: list[str] = field(default_factory=list)  # folders whose content is not known

    def knows(self, path: str) -> bool:
        """Whether a file that was not found is really not there."""
        return not any(not folder or path.startswith(f"{folder}/") for folder in self.unreadable)


def scan(root: Path, choice: FileChoice, places: Iterable[str]) -> Scan:
    """Regular files at or below places ("" is the root). Links are not followed."""
    found = Scan()
    for place in places:
        for path, status in _walk(root, choice, place, found.unreadable):
            found.files[path] = FileStamp(status.st_ino, status.st_size, status.st_mtime_ns)
            if len(found.files) > FILES_LIMIT:
                raise Unavailable(
                    f"more than {FILES_LIMIT:,} files below {root.name}", hint="ignore some of the folders"
                )
    return found


def _walk(root: Path, choice: FileChoice, place: str, unreadable: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    folder = os.path.dirname(root / place)
    if place and os.path.realpath(folder) != folder:  # below a link
        return
    waiting = [place]
    while waiting:
        path = waiting.pop()
        try:
            status = os.lstat(root / path)
            if stat.S_ISREG(status.st_mode) and choice.takes(path):
                yield path, status
            if not stat.S_ISDIR(status.st_mode):
                continue
            with os.scandir(root / path) as entries:
                for entry in entries:
                    below = f"{path}/{entry.name}" if path else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if not choice.ignores(below):
                            waiting.append(below)
                    elif entry.is_file(follow_symlinks=False) and choice.takes(below):
                        yield below, entry.stat(follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):  # it went meanwhile, and its event will come
            continue
        except OSError:
            unreadable.append(path)


def with_digests(
    root: Path, files: dict[str, FileStamp], paths: Collection[str]
) -> tuple[dict[str, FileStamp], set[str]]:
    """The stamps of these paths with digests; and which of them changed while they were read."""
    complete: dict[str, FileStamp] = {}
    unsettled: set[str] = set()
    for path in paths:
        digest, after = _read(root / path)
        if after is None or not files[path].same_file(after):
            unsettled.add(path)
        else:
            complete[path] = replace(files[path], digest=digest)
    return complete, unsettled


def _read(path: Path) -> tuple[str, FileStamp | None]:
    """The digest and the stamp after reading; no stamp when there is no such file."""
    digest = ""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return "", None
    except OSError:  # it may not be read: size and time must do
        descriptor = -1
    if descriptor >= 0:
        with open(descriptor, "rb") as file:
            if os.fstat(descriptor).st_size <= HASH_LIMIT_BYTES and stat.S_ISREG(os.fstat(descriptor).st_mode):
                content = hashlib.sha256()
                while block := file.read(READ_BYTES):
                    content.update(block)
                digest = content.hexdigest()
    try:
        status = os.lstat(path)
    except OSError:
        return "", None
    return digest, FileStamp(status.st_ino, status.st_size, status.st_mtime_ns)
