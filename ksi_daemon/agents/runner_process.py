"""The process that runs an agent's program (`program_runner.py`): started, found again after a restart, signalled, waited for.

A process is known by its pid and the moment of its start, so that a pid that was given to another is never signalled; signals go
through a pidfd for the same reason. A mark in its environment finds those that no record knows.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ksi_daemon.storage.completions import StoredProcess

MARK = "KSI_RUN"
RUNNER = Path(__file__).with_name("program_runner.py")


class RunnerProcess:
    """A runner that is alive, or was when it was found."""

    def __init__(self, pid: int, pidfd: int, identity: StoredProcess) -> None:
        self.identity = identity
        self._pid = pid
        self._pidfd = pidfd
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, self._on_end)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        with suppress(ChildProcessError):  # that of an earlier daemon is reaped by its new parent
            os.waitpid(self._pid, os.WNOHANG)
        self._ended.set()

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._ended.is_set()

    async def wait(self) -> None:
        """Wait for its end."""
        await self._ended.wait()

    def send(self, number: signal.Signals) -> None:
        """Signal it, if it is still there."""
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def abandon(self) -> None:
        """Leave it running, for the next daemon to find."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


def start_runner(folder: Path, environment: Mapping[str, str]) -> RunnerProcess:
    """Start a runner in a session of its own. Secrets are in the environment only, never in the arguments."""
    argv = [sys.executable, "-I", "-S", str(RUNNER), str(folder)]
    nothing = [(os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) for number in (0, 1, 2)]
    pid = os.posix_spawn(
        sys.executable,
        argv,
        dict(environment),
        file_actions=nothing,
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
    )
    pidfd = os.pidfd_open(pid)  # our own child: its pid cannot be another's before it is waited for
    identity = identity_of(pid)
    assert identity is not None
    return RunnerProcess(pid, pidfd, identity)


def find_runner(identity: StoredProcess) -> RunnerProcess | None:
    """The runner with this identity, if it is alive."""
    try:
        pidfd = os.pidfd_open(identity.pid)
    except OSError:
        return None
    if identity_of(identity.pid) != identity or _is_zombie(identity.pid):
        os.close(pidfd)
        return None
    return RunnerProcess(identity.pid, pidfd, identity)


def runner_of(pid: int) -> RunnerProcess | None:
    """The runner with this pid, if it is alive."""
    identity = identity_of(pid)
    return None if identity is None else find_runner(identity)


def identity_of(pid: int) -> StoredProcess | None:
    """What distinguishes this process from all others that had or will have its pid."""
    fields = _stat(pid)
    return None if fields is None else StoredProcess(pid=pid, started=int(fields[19]), boot=_boot())


def is_alive(identity: StoredProcess) -> bool:
    """Whether this very process runs."""
    return identity_of(identity.pid) == identity and not _is_zombie(identity.pid)


def marked_processes(prefix: str) -> Iterator[tuple[int, str]]:
    """Every process of this user whose mark begins like this, with its mark: runners, their programs and what those started."""
    wanted = f"\0{MARK}={prefix}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                environment = b"\0" + Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            place = environment.find(wanted)
            if place >= 0:
                mark = environment[place + len(MARK) + 2 :].partition(b"\0")[0]
                yield int(name), mark.decode("utf-8", "replace")


def is_runner(pid: int) -> bool:
    """Whether a marked process is the runner itself: it leads its session, and runs our script."""
    fields = _stat(pid)
    if fields is None or int(fields[3]) != pid:
        return False
    try:
        return str(RUNNER).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def kill(pid: int) -> None:
    """End a process at once, if it is there and ours."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _is_zombie(pid: int) -> bool:
    fields = _stat(pid)
    return fields is None or fields[0] in ("Z", "X")


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on (field 3 of the manual is number 0 here)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
