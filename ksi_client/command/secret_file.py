"""Replaces a file so that it may hold a secret: mode 0600 from its first byte, atomically, with a backup of what it held.

Anything but an ordinary file of this user with one name is refused and left untouched. What is in the file is left to others.
"""

import contextlib
import errno
import os
import secrets
import shlex
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from ksi_client.command.fault import BAD_DATA, CONFLICT, FAILED, Fault

SIZE_LIMIT_BYTES = 10_000_000
BACKUPS_PER_SECOND = 100
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Replaced(NamedTuple):
    """What a replacement did."""

    path: Path
    backup: Path | None
    mode_before: int | None


class SecretFile:
    """One file at a path, read when entered. Its folder stays open, so that a folder swapped meanwhile changes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.text: str | None = None  # None: there is no such file
        self._seen: os.stat_result | None = None
        self._folder = -1

    def __enter__(self) -> Self:
        try:
            self._folder = self._open_folder()
        except FileNotFoundError:
            return self  # made when there is something to write
        try:
            self._read()
        except BaseException:
            os.close(self._folder)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder >= 0:
            os.close(self._folder)

    def replace(self, text: str) -> Replaced:
        """Write the new content; what was there is kept in a backup beside it. On failure nothing has changed."""
        if self._folder < 0:
            self._folder = self._open_folder(make=True)
        data = text.encode()
        temporary = f".{self.path.name}.ksi-{secrets.token_hex(8)}"
        backup: str | None = None
        try:
            if self.text is not None:
                backup = self._back_up(self.text.encode())
            self._create(temporary, data)
            self._refuse_if_changed()
            os.rename(temporary, self.path.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException as error:
            for name in filter(None, (temporary, backup)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self._folder)
            if isinstance(error, OSError):
                raise Fault(f"{self.path} cannot be written: {error.strerror}; it is unchanged") from error
            raise
        os.fsync(self._folder)
        return Replaced(
            self.path,
            None if backup is None else self.path.with_name(backup),
            None if self._seen is None else stat.S_IMODE(self._seen.st_mode),
        )

    def _open_folder(self, *, make: bool = False) -> int:
        folder = self.path.parent
        try:
            if make:
                _make_private(folder)
            return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not make:
                raise
            raise Fault(
                f"the folder {folder} cannot be used: {error.strerror}", hint="choose another: --file PATH"
            ) from error

    def _read(self) -> None:
        name = self.path.name
        try:
            _refuse_unsafe(self.path, os.stat(name, dir_fd=self._folder, follow_symlinks=False))
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, dir_fd=self._folder), "rb") as file:
                self._seen = os.fstat(file.fileno())
                _refuse_unsafe(self.path, self._seen)
                data = file.read(SIZE_LIMIT_BYTES + 1)
        except FileNotFoundError:
            return
        except OSError as error:
            raise Fault(f"{self.path} cannot be read: {error.strerror}", hint="choose another: --file PATH") from error
        if len(data) > SIZE_LIMIT_BYTES:
            raise Fault(f"{self.path} is larger than {SIZE_LIMIT_BYTES:,} bytes", exit_code=BAD_DATA)
        try:
            self.text = data.decode()
        except UnicodeDecodeError as error:
            raise Fault(f"{self.path} is not UTF-8 text; it is unchanged", exit_code=BAD_DATA) from error

    def _refuse_if_changed(self) -> None:
        try:
            found = os.stat(self.path.name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            found = None
        if _identity(found) != _identity(self._seen):
            raise Fault(
                f"{self.path} was changed by another program meanwhile; it is left as it is",
                exit_code=CONFLICT,
                hint="run the command again",
            )

    def _back_up(self, data: bytes) -> str:
        moment = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        for number in range(1, BACKUPS_PER_SECOND + 1):
            name = f"{self.path.name}.ksi-backup-{moment}" + (f"-{number}" if number > 1 else "")
            try:
                self._create(name, data)
            except FileExistsError:
                continue
            return name
        raise FileExistsError(errno.EEXIST, "all names for a backup are taken")

    def _create(self, name: str, data: bytes) -> None:
        handle = os.open(name, _NEW_FILE, 0o600, dir_fd=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                os.fchmod(file.fileno(), 0o600)  # whatever the umask has taken away
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            os.unlink(name, dir_fd=self._folder)
            raise


def _identity(found: os.stat_result | None) -> tuple[int, ...] | None:
    return None if found is None else (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _make_private(folder: Path) -> None:
    """Create a folder and the missing ones above it, each with mode 0700."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)


def _refuse_unsafe(path: Path, found: os.stat_result) -> None:
    problem = next(_problems(found), None)
    if problem is not None:
        raise Fault(
            f"{path} {problem}: a secret is not written there, and it is left untouched",
            exit_code=FAILED,
            hint=f"look at it with: ls -l {shlex.quote(str(path))}; then move it away, or choose another: --file PATH",
        )


def _problems(found: os.stat_result) -> Iterator[str]:
    if stat.S_ISLNK(found.st_mode):
        yield "is a symbolic link, whose target can be swapped"
    elif not stat.S_ISREG(found.st_mode):
        yield "is not an ordinary file"
    if found.st_uid != os.geteuid():
        yield f"belongs to another user (uid {found.st_uid})"
    if found.st_nlink > 1:
        yield f"has {found.st_nlink} names (hard links)"
