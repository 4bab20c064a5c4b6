"""The var folder: found, made private, marked, checked before use, and locked by one daemon at a time.

Imports the standard library only: of twenty daemons started at once, nineteen must fail before they have loaded anything.
"""

import fcntl
import os
import stat
from collections.abc import MutableMapping
from pathlib import Path
from typing import Self

from ksi_daemon.errors import AlreadyRunning, BadSettings
from ksi_daemon.process.forked import close_in_forked_children

FOLDERS = ("run", "db", "log", "plugins")
MARKER = ".ksi-var"
KNOWN_NAMES = frozenset({
    *FOLDERS, MARKER, ".gitignore", "agents", "audit-set-aside", "exports", "lost+found", "profiles",
})  # fmt: skip
IGNORED = ".gitignore"
IGNORED_TEXT = "# Databases, logs and agents' configs, with secrets in them: git must never take them.\n*\n"
MARKER_TEXT = "This folder holds the files of a KSI daemon; the ksi command finds it by this file.\n"


def choose(environ: MutableMapping[str, str]) -> Path:
    """The var folder, by the same rule as the command's (`ksi_client/paths.py`); stored in KSI_VAR_DIR, and KSI_CONFIG with it."""
    if not environ.get("KSI_VAR_DIR"):
        here = Path.cwd()
        nearest = next((folder / "var" for folder in (here, *here.parents) if _is_marked(folder / "var")), None)
        environ["KSI_VAR_DIR"] = str(nearest or Path.home() / ".local" / "state" / "ksi")
        if nearest is not None and not environ.get("KSI_CONFIG"):
            environ["KSI_CONFIG"] = str(nearest.with_name("ksi.toml"))
    return Path(environ["KSI_VAR_DIR"]).expanduser().absolute()


def prepare(var_dir: Path) -> None:
    """Create var/ and its folders with mode 0700. Refuses a folder of something else, one that others own or can read, or a link."""
    try:
        var_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_private_when_empty(var_dir)
        _refuse_unsafe(var_dir, is_marked=os.path.lexists(var_dir / MARKER))
        if not _is_marked(var_dir):
            _mark(var_dir)
        for name in FOLDERS:
            folder = var_dir / name
            folder.mkdir(mode=0o700, exist_ok=True)
            _refuse_unsafe(folder)
    except OSError as error:
        raise BadSettings(
            f"{var_dir} cannot be used: {error.strerror or error}. Give the daemon a writable folder with KSI_VAR_DIR=/some/folder."
        ) from error


def _make_private_when_empty(var_dir: Path) -> None:
    """In a fresh checkout var/ has the umask's mode and only a .gitignore: it holds no secrets yet."""
    seen = var_dir.lstat()
    if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid() and set(os.listdir(var_dir)) <= {".gitignore"}:
        var_dir.chmod(0o700)


def _is_marked(var_dir: Path) -> bool:
    """Whether a daemon of this user made this folder its var folder."""
    try:
        return (var_dir / MARKER).lstat().st_uid == os.geteuid() == var_dir.stat().st_uid
    except OSError:
        return False


def _mark(var_dir: Path) -> None:
    """Refuse a folder that holds something else; the files of a daemon that wrote no marker are known by their names."""
    others = sorted(set(os.listdir(var_dir)) - KNOWN_NAMES)
    if others:
        raise BadSettings(
            f"{var_dir} is not a folder of KSI: it holds {', '.join(others[:3])}{' and more' if others[3:] else ''}. "
            "Set KSI_VAR_DIR (or --var-dir) to a new or an empty folder."
        )
    for name, text in ((IGNORED, IGNORED_TEXT), (MARKER, MARKER_TEXT)):
        if not os.path.lexists(var_dir / name):
            handle = os.open(var_dir / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.write(handle, text.encode())
            finally:
                os.close(handle)


def _refuse_unsafe(folder: Path, *, is_marked: bool = True) -> None:
    """Raise `BadSettings`; what to do about the folder is said only when it is KSI's."""
    seen = folder.lstat()
    if stat.S_ISLNK(seen.st_mode):
        raise BadSettings(
            f"{folder} is a symbolic link, and its target can be swapped. Set KSI_VAR_DIR to the real folder."
        )
    if not stat.S_ISDIR(seen.st_mode):
        raise BadSettings(f"{folder} is not a folder. Move it away, or set KSI_VAR_DIR to another one.")
    another = "It has no marker of KSI: set KSI_VAR_DIR (or --var-dir) to a new or an empty folder."
    if seen.st_uid != os.geteuid():
        raise BadSettings(
            f"{folder} belongs to uid {seen.st_uid}, but this daemon runs as uid {os.geteuid()}. "
            + (f"Run: chown -R {os.geteuid()} '{folder}'" if is_marked else another)
        )
    if stat.S_IMODE(seen.st_mode) & 0o077:
        raise BadSettings(
            f"{folder} has mode {stat.S_IMODE(seen.st_mode):04o}: other users could access its files. "
            + (f"Run: chmod 700 '{folder}'" if is_marked else another)
        )


class Lock:
    """An flock on var/run/ksi.lock. The kernel releases it when the process ends, however it ends."""

    def __init__(self, var_dir: Path) -> None:
        self.path = var_dir / "run" / "ksi.lock"
        self._file = -1

    def __enter__(self) -> Self:
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise BadSettings(
                f"{self.path} cannot be opened ({error.strerror}). It must be a regular file that the daemon may write: "
                "fix that, or use another folder with KSI_VAR_DIR=/some/folder."
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = self._holder()
            os.close(self._file)
            if not isinstance(error, BlockingIOError):
                raise BadSettings(
                    f"{self.path} cannot be locked ({error.strerror}). Keep var/ on a local disk: KSI_VAR_DIR=/some/folder"
                ) from error
            raise AlreadyRunning(
                f"a daemon with pid {holder} already runs on {self.path.parent.parent}. "
                "Stop it with `ksi stop`, or give this daemon its own folder with KSI_VAR_DIR."
            ) from error
        close_in_forked_children(self._file)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        return self

    def _holder(self) -> str:
        """The pid of the lock's holder: from the kernel, because it may not be in the file yet."""
        inode = os.fstat(self._file).st_ino
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            _, kind, _, _, pid, place, *_ = line.split()
            if kind == "FLOCK" and place.endswith(f":{inode}"):
                return pid
        return os.pread(self._file, 32, 0).decode("ascii", "replace").strip() or "unknown"

    def __exit__(self, *_: object) -> None:
        os.ftruncate(self._file, 0)
        os.close(self._file)
