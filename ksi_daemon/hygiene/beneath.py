"""Opens files beneath a folder, never outside of it: no `..`, no symbolic link, no folder swapped during the open.

The kernel does it in one step (openat2) where it can; elsewhere each folder of the path is opened in turn. Only regular
files and folders are opened, without blocking. Messages name the path as given, not the folder.
"""

import ctypes
import errno
import functools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ksi_daemon.errors import Conflict, Forbidden, Invalid, KsiError, NotFound, TooLarge

OPENAT2 = 437  # the same number on every architecture since Linux 5.6
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
TRIES = 16  # the kernel asks to try again when a rename happened meanwhile
PATH_LIMIT_BYTES = 4096

Base = str | Path | int  # a folder, by path or as an open descriptor


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_beneath(
    base_dir: Base, relative: str, flags: int = os.O_RDONLY, *, mode: int = 0o600, allow_hard_links: bool = False
) -> int:
    """A descriptor of a regular file (or of a folder, with `O_DIRECTORY`). The caller closes it. Raises `KsiError`s."""
    names = _names(relative)
    with _opened_base(base_dir) as base:
        # Truncating happens only after the check: a file that is refused must not be changed.
        wanted = (flags & ~os.O_TRUNC) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        try:
            found = _open(base, names, wanted, mode)
        except OSError as error:
            raise _caller_error(error, relative) from error
        try:
            _check(found, flags, relative, allow_hard_links)
            if flags & os.O_TRUNC and flags & (os.O_WRONLY | os.O_RDWR):
                os.ftruncate(found, 0)
            os.set_blocking(found, True)
        except BaseException:
            os.close(found)
            raise
        return found


def read_beneath(base_dir: Base, relative: str, *, limit_bytes: int, allow_hard_links: bool = False) -> bytes:
    """The whole content of a file. More than the limit raises `TooLarge`; content is never truncated."""
    with os.fdopen(open_beneath(base_dir, relative, allow_hard_links=allow_hard_links), "rb", buffering=0) as file:
        parts: list[bytes] = []
        left = limit_bytes + 1
        while left and (part := file.read(min(left, 1_000_000))):
            parts.append(part)
            left -= len(part)
    if not left:
        raise TooLarge(f"{relative!r} has more than {limit_bytes:,} bytes", hint="ask for a smaller file")
    return b"".join(parts)


def create_beneath(base_dir: Base, relative: str, content: bytes, *, mode: int = 0o600, parents: bool = False) -> None:
    """A new file with this content. Raises `Conflict` if it exists; a write that fails leaves no file."""
    *folders, name = _names(relative)
    with _opened_base(base_dir) as base:
        try:
            folder = _open_folders(base, folders, make=parents)
        except OSError as error:
            raise _caller_error(error, relative) from error
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                made = os.open(name, flags, mode, dir_fd=folder)
            except OSError as error:
                raise _caller_error(error, relative) from error
            try:
                with os.fdopen(made, "wb", buffering=0) as file:
                    rest = memoryview(content)
                    while rest:
                        rest = rest[file.write(rest) :]
            except BaseException:
                os.unlink(name, dir_fd=folder)
                raise
        finally:
            os.close(folder)


def _names(relative: str) -> list[str]:
    """The parts of the path, checked; they are used exactly as checked."""
    try:
        size = len(os.fsencode(relative))
    except UnicodeEncodeError as error:
        raise Invalid("the path cannot be written as bytes") from error
    if not 0 < size <= PATH_LIMIT_BYTES or "\0" in relative:
        raise Invalid("the path is empty, too long, or has a NUL character")
    names = relative.split("/")
    if ".." in names or names[0] == "":
        raise Forbidden(f"{relative[:200]!r} leads out of the folder")
    if "" in names or ("." in names and names != ["."]):
        raise Invalid(f"{relative[:200]!r} has empty parts", hint="use the value that sanitize_path returns")
    return names


@contextmanager
def _opened_base(base_dir: Base) -> Iterator[int]:
    if isinstance(base_dir, int):
        yield base_dir
        return
    base = os.open(base_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield base
    finally:
        os.close(base)


def _open(base: int, names: list[str], flags: int, mode: int) -> int:
    if kernel_can_open_beneath():
        return _openat2(base, "/".join(names), flags, mode)
    folder = _open_folders(base, names[:-1])
    try:
        return os.open(names[-1], flags, mode, dir_fd=folder)
    finally:
        os.close(folder)


def _openat2(base: int, relative: str, flags: int, mode: int) -> int:
    how = _OpenHow(
        flags, mode if flags & os.O_CREAT else 0, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
    )
    for _ in range(TRIES):
        found = _libc().syscall(
            ctypes.c_long(OPENAT2),
            ctypes.c_int(base),
            ctypes.c_char_p(os.fsencode(relative)),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if found >= 0:
            return int(found)
        if ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


@functools.cache
def kernel_can_open_beneath() -> bool:
    """Whether openat2 works: kernels before 5.6 lack it, and some sandboxes block unknown system calls."""
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        os.close(_openat2(root, ".", os.O_PATH | os.O_CLOEXEC, 0))
    except OSError:
        return False
    finally:
        os.close(root)
    return True


def _open_folders(base: int, names: list[str], *, make: bool = False) -> int:
    """Open folder by folder, each relative to the open parent, so that none can be swapped."""
    current = os.dup(base)
    for name in names:
        try:
            if make:
                _make_folder(current, name)
            below = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
        finally:
            os.close(current)
        current = below
        kind = os.fstat(current).st_mode
        if not stat.S_ISDIR(kind):
            os.close(current)
            code = errno.ELOOP if stat.S_ISLNK(kind) else errno.ENOTDIR
            raise OSError(code, os.strerror(code))
    return current


def _make_folder(folder: int, name: str) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        return


def _check(found: int, flags: int, relative: str, allow_hard_links: bool) -> None:
    about = os.fstat(found)
    if stat.S_ISDIR(about.st_mode):
        if not flags & os.O_DIRECTORY:
            raise Invalid(f"{relative!r} is a folder")
    elif not stat.S_ISREG(about.st_mode):
        raise Forbidden(f"{relative!r} is neither a file nor a folder")
    elif about.st_nlink != 1 and not allow_hard_links:
        raise Forbidden(f"{relative!r} has another hard link, which may be outside of the folder")


def _caller_error(error: OSError, relative: str) -> KsiError | OSError:
    """The error for the caller. Errors that the caller cannot fix (a full or broken disk) are returned unchanged."""
    shown = repr(relative[:200])
    if error.errno == errno.EXDEV:
        return Forbidden(f"{shown} leads out of the folder")
    if error.errno == errno.ELOOP:
        return Forbidden(f"{shown} goes through a symbolic link")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Forbidden(f"{shown} may not be opened: the system refuses it")
    if error.errno in (errno.ENXIO, errno.ENODEV):
        return Forbidden(f"{shown} is neither a file nor a folder")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotFound(f"{shown} does not exist")
    if error.errno == errno.EEXIST:
        return Conflict(f"{shown} already exists")
    if error.errno == errno.EISDIR:
        return Invalid(f"{shown} is a folder")
    if error.errno in (errno.ENAMETOOLONG, errno.EINVAL):
        return Invalid(f"{shown} is not a valid file name")
    return error
