"""Starts and stops daemon processes: detached, with output to var/log, watched until they answer or have failed."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ksi_client.command.fault import ALREADY_RUNNING, BAD_CONFIG, BAD_DATA, FAILED, TIMED_OUT, Fault
from ksi_client.command.lock import holder
from ksi_client.paths import config_file, may_be_used, output_file

_POLL_S = 0.02
_TAIL_BYTES = 8_000
DAEMON = [sys.executable, "-m", "ksi_daemon"]


def environment(var: Path, config: Path | None = None) -> dict[str, str]:
    """This process's environment, with the paths of the var folder and the settings file made absolute."""
    return os.environ | {"KSI_VAR_DIR": str(var), "KSI_CONFIG": str(config or config_file())}


def refuse_second_daemon(var: Path) -> None:
    """Raise `Fault` if a daemon already runs on this var folder."""
    pid = holder(var)
    if pid is not None:
        raise _already_running(var, pid)


def _already_running(var: Path, pid: int | None) -> Fault:
    who = f"pid {pid}" if pid else "pid unknown"
    return Fault(
        f"a daemon is already running on {var} ({who})", exit_code=ALREADY_RUNNING, hint="ksi status, or ksi restart"
    )


class Detached:
    """A daemon process in its own session, with its output file."""

    def __init__(self, var: Path, config: Path | None = None) -> None:
        self._var = var
        self.output = _open_output(var)
        self._began_at = self.output.seek(0, os.SEEK_END)
        self._process = subprocess.Popen(
            DAEMON,
            env=environment(var, config),
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def wait_until(self, is_ready: Callable[[], bool], *, at_most_s: float) -> bool:
        """Whether it became ready in time. Raises `Fault`, with the daemon's output, if it exited instead."""
        deadline = time.monotonic() + at_most_s
        while True:
            code = self._process.poll()
            if code is not None:
                raise self._failure(code)
            if is_ready():
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)

    def _failure(self, code: int) -> Fault:
        if code == ALREADY_RUNNING:  # another start was faster; both write to the same output file, so it is not shown
            return _already_running(self._var, holder(self._var))
        self.output.seek(max(self._began_at, self.output.seek(0, os.SEEK_END) - _TAIL_BYTES))
        output = self.output.read().decode(errors="replace").strip()
        code = code if code > 0 else FAILED
        kind = {BAD_DATA: "bad data", BAD_CONFIG: "bad settings"}.get(code, f"exit {code}")
        hint = "ksi config check" if code == BAD_CONFIG else "ksi doctor"
        return Fault(
            f"the daemon did not start ({kind})" + (f":\n{output}" if output else ""), exit_code=code, hint=hint
        )


def _open_output(var: Path) -> IO[bytes]:
    """var/log/daemon.out. If var is not private, a temporary file: the daemon will refuse to start and say why."""
    if not _prepared(var):
        return tempfile.TemporaryFile()
    path = output_file(var)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return os.fdopen(os.open(path, flags, 0o600), "rb+", buffering=0)
    except OSError as error:
        raise Fault(f"cannot write {path}: {error.strerror}", hint="ksi doctor") from error


def _prepared(var: Path) -> bool:
    """Create var if it is absent, make it private if it is still empty; returns whether it is private."""
    try:
        var.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = var.stat()
        if state.st_uid != os.getuid() or not may_be_used(var):
            return False
        if state.st_mode & 0o077 and all(entry.name == ".gitignore" for entry in var.iterdir()):
            var.chmod(0o700)
            return True
        return not state.st_mode & 0o077
    except OSError:
        return False


def stop_process(var: Path, *, at_most_s: float, keep_agents: bool = False) -> int | None:
    """Ask the daemon on this var folder to stop and wait until it has. Returns its pid, or None if none was running.

    With `keep_agents` the programs of its agents go on, for the daemon that is started next.

    The process is signalled through a pidfd, so that a pid reused by another process is never signalled.
    """
    pid = holder(var)
    if pid is None:
        return None
    try:
        process = os.pidfd_open(pid)
    except (ProcessLookupError, OverflowError, OSError) as error:
        if holder(var) is None:
            return None
        raise Fault(
            f"a daemon holds {var}, but its process {pid or ''} cannot be reached: {error}", hint="ksi doctor"
        ) from error
    try:
        if holder(var) != pid:
            return None
        signal.pidfd_send_signal(process, signal.SIGUSR1 if keep_agents else signal.SIGTERM)
        if not select.select([process], [], [], at_most_s)[0]:
            raise Fault(
                f"the daemon (pid {pid}) is still stopping after {at_most_s:g} s",
                exit_code=TIMED_OUT,
                hint=f"ksi stop --timeout 60, or as a last resort kill -9 {pid}",
            )
    except PermissionError as error:
        raise Fault(f"the daemon (pid {pid}) belongs to another user", exit_code=4) from error
    finally:
        os.close(process)
    return pid
