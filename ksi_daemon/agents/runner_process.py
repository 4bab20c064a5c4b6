"""The processes that run agents' programs (`program_runner.py`): started, found again after a restart, signalled, waited for.

A runner holds a lock on a file of its run as long as it lives: whoever holds it is the runner, whatever pid it has. Signals go through
a pidfd, so that a pid that was given to another process is never signalled. A mark in the environment of a program and of all that it
starts finds those whose runner was killed.
"""

import asyncio
import fcntl
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from ksi_daemon.errors import Unavailable

MARK = "KSI_RUN"
SCRIPT = Path(__file__).with_name("program_runner.py")
FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid
DESCRIPTOR = 3
START_LIMIT_S = 10.0


class RunnerProcess:
    """A runner that is alive, or was when it was found."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, self._on_end)

    def _on_end(self) -> None:
        self.abandon()
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
        """Watch it no more; it goes on."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


class RunnerStarter:
    """The process that forks runners; started at the first use, and again if it was killed."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._one_at_a_time = asyncio.Lock()

    async def start(self, folder: Path, environment: Mapping[str, str]) -> RunnerProcess | None:
        """Start the runner of a run; None if it has ended already. Secrets are in the program's environment only, never in its arguments."""
        body = msgspec.json.encode({"folder": str(folder), "environment": environment})
        async with self._one_at_a_time:
            for _ in range(2):
                if self._socket is None:
                    self._socket = _start_server()
                try:
                    async with asyncio.timeout(START_LIMIT_S):
                        answer = await self._ask(self._socket, len(body).to_bytes(4, "big") + body)
                except BaseException as error:
                    self.close()  # a late answer must not be taken for that to another request
                    if isinstance(error, TimeoutError):
                        raise Unavailable(
                            "the process that starts programs does not answer", hint="try again"
                        ) from error
                    raise
                if answer is not None:
                    return RunnerProcess(*answer)
                self.close()  # it was killed, perhaps after it had forked
                if os.path.lexists(folder / "began"):
                    return find_runner(folder)
        raise Unavailable("the process that starts programs was killed", hint="try again")

    async def _ask(self, server: socket.socket, request: bytes) -> tuple[int, int] | None:
        """The runner's pid and a pidfd; None if the server is gone."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        try:
            await loop.sock_sendall(server, request)
            loop.add_reader(server, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(server)
            data, descriptors, _, _ = socket.recv_fds(server, 4, 1)
        except OSError:
            return None
        return (int.from_bytes(data, "big"), descriptors[0]) if data and descriptors else None

    def close(self) -> None:
        """End the process; the runners that it started go on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _start_server() -> socket.socket:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        argv = [sys.executable, "-I", "-S", str(SCRIPT), str(DESCRIPTOR)]
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_DUP2, theirs.fileno(), DESCRIPTOR)
        ]
        actions += [(os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) for number in (0, 1, 2)]
        pid = os.posix_spawn(
            sys.executable,
            argv,
            {"PATH": os.environ.get("PATH", os.defpath)},
            file_actions=actions,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
        )
    _reap_at_the_end(pid)
    return ours


def _reap_at_the_end(pid: int) -> None:
    pidfd, loop = os.pidfd_open(pid), asyncio.get_running_loop()

    def reap() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)

    loop.add_reader(pidfd, reap)


def find_runner(folder: Path) -> RunnerProcess | None:
    """The runner of a run, if it is alive."""
    pid = runner_pid(folder)
    if pid is None:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    if runner_pid(folder) != pid:  # it ended meanwhile, and the pid may be another's
        os.close(pidfd)
        return None
    return RunnerProcess(pid, pidfd)


def runner_pid(folder: Path) -> int | None:
    """Who holds the lock of a run."""
    try:
        began = os.open(folder / "began", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(began, fcntl.F_GETLK, asked))
    finally:
        os.close(began)
    return None if kind == fcntl.F_UNLCK else int(pid)


def marked_processes(prefix: str) -> Iterator[tuple[int, str]]:
    """Every process of this user whose mark begins like this, with its mark: programs and what they started."""
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


def kill(pid: int) -> None:
    """End a process at once, if it is there and ours."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
